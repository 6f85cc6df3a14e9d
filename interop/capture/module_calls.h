// A program that calls its layers several times in a step, each time for other samples (two views,
// question and answer): their operations as if they were called once, for all of them.
#pragma once

#include <cstdint>

#include "sim/base/json.h"

namespace foreshard {

// How many calls of `document` (modules.json) became one; 1: it is as it was. Calls that compute
// other operations, or of which one reads what another made, stay as they are.
std::int64_t fold_calls(Json& document);

}  // namespace foreshard
