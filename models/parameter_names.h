// What Hugging Face's implementations call the modules that hold a decoder's parameters.
//
// Names of a block's modules are relative to "<blocks>.<number>"; the others are whole. A module
// that an implementation does not have is named as its siblings would be, or empty.
#pragma once

#include <string_view>

#include "models/model_dims.h"

namespace foreshard {

struct ParameterNames {
  std::string_view blocks, embedding, positions, embedding_norm;
  std::string_view norm1, q, k, v, qkv, o, q_norm, k_norm, norm2, gate, up, down;
  std::string_view final_norm, head;
};

const ParameterNames& parameter_names(Naming naming);

}  // namespace foreshard
