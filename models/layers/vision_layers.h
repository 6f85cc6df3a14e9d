// Layers that the models of models/vision.h share. Sizes have passed its checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/vision.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {

enum class Mask : std::uint8_t { kNone, kCausal };

struct BlockDims {
  std::string name;
  std::int64_t hidden = 0, heads = 0, ffn = 0;
  bool quick_gelu = false;
  bool dropout = false, attention_dropout = false;
  bool branch_weights = false, gated = false;
};

// Whether a tower's sequences are the images of a sample, and whether it may be frozen as a tower.
struct Place {
  bool of_images = false;
  bool tower = false;
};

Domain domain_of(const Place& place, std::int64_t positions);

// A pre-norm block with biases, its parameters named as the family's (vit, or clip's).
LayerSpec encoder_block(const BlockDims& sizes, std::string_view family, Mask mask);
LayerSpec tower_block(const VisionDims& dims, const Place& place);

// Pixels come in fp32; the convolution's input is in its weight's dtype, and kept for its gradient.
LayerSpec patch_embedding(const VisionDims& dims, const Place& place);

// Rows of a table; the caller names what they are looked up by.
Index lookup(LayerWriter& layer, const std::string& module, std::vector<std::int64_t> shape, TensorSpec rows);
Index add(LayerWriter& layer, TensorSpec sum, Indices inputs);

// Of the layer's tokens, k -> n features; `module`.weight is [n, k].
enum class Bias : std::uint8_t { kNone, kAdded };
Index linear(LayerWriter& layer, const std::string& module, std::int64_t n, std::int64_t k, Bias bias, Index input);
// LayerNorm over `width` features of every row of `result`, which has the shape of the input.
Index layer_norm(LayerWriter& layer, const std::string& module, TensorSpec result, std::int64_t width, Index input);

// What `whole_sequence` is the input of: the position that classifies or is compared, as a view.
Index class_token(LayerWriter& layer, const TowerDims& tower);
TensorSpec whole_sequence(const TowerDims& tower);

}
