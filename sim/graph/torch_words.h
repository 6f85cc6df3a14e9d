// Names as torch and the recordings of its libraries spell them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/plan.h"

namespace foreshard {

// "float32".
std::string_view torch_word(DType dtype);
// "h.11.mlp.c_fc.bias..h.10.mlp.c_proj.weight"; the one name of a single one.
std::string span_of(const std::string& first, const std::string& last, std::size_t count);
std::string span_of(const std::vector<std::string>& names);
// A group of `size` ranks from `first` on, each `stride` behind the one before: "0:12:4"; "world"
// if these are all.
std::string group_word(std::int64_t first, std::int64_t size, std::int64_t stride,
                       std::int64_t world);

// Numbers of parameters as named_parameters() lists them: a module's own in front of those of
// modules inside of it. Where the name is empty, a parameter stays behind the one before.
std::vector<std::int32_t> as_defined(const std::vector<std::string>& names);

}  // namespace foreshard
