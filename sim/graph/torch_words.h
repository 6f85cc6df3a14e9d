// Names as torch and the recordings of its libraries spell them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// "float32".
std::string_view torch_word(DType dtype);
// "h.11.mlp.c_fc.bias..h.10.mlp.c_proj.weight"; the one name of a single one.
std::string span_of(const std::string& first, const std::string& last, std::size_t count);
std::string span_of(const std::vector<std::string>& names);
// A group of `size` ranks from `first` on, each `stride` behind the one before: "0:12:4"; "world" if these are all.
std::string group_word(std::int64_t first, std::int64_t size, std::int64_t stride, std::int64_t world);

struct PlacedParameter {
  std::int32_t layer = 0;
  std::int16_t index = 0;  // in its layer
};

// Numbers of parameters as named_parameters() lists them: a module's own in front of those of
// modules inside of it, and a block's behind the one before. Where the head is defined first, its
// transform's, its own and then a table that it shares stand in front of all.
std::vector<std::int32_t> as_defined(const ModelSpec& model, const std::vector<PlacedParameter>& parameters);

}
