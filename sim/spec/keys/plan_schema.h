// The JSON Schema (draft 7) of a plan file, from the table of keys (plan_keys.h).
#pragma once

#include "sim/base/json.h"

namespace foreshard {

Json plan_schema();

}  // namespace foreshard
