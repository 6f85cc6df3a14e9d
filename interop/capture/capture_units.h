// The units of a captured program, as fully_shard made them, in a plan's words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace foreshard {

// model.json of a capture: its units are in forward order, the root first where it has parameters.
// Keys and values of a plan: mesh, units, reshard_after_forward, dtype and what else units say;
// behind each, what it was read off.
struct UnitWords {
  std::string key, value, source;
};
std::vector<UnitWords> words_of_units(const Json& document);

// The text under a key; empty where there is none.
std::string text_in(const Json& of, const char* key);
// "torch.bfloat16" -> "bf16"
std::string dtype_of_torch(std::string_view torch);

}  // namespace foreshard
