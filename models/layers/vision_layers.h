// Layers that the models of models/vision.h share. Sizes have passed its checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/layers/layer_writer.h"
#include "models/vision.h"
#include "sim/spec/model_spec.h"

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
LayerWriter::Index lookup(LayerWriter& layer, const std::string& module,
                          std::vector<std::int64_t> shape, TensorSpec rows);
LayerWriter::Index add(LayerWriter& layer, TensorSpec sum, LayerWriter::Indices inputs);

// What `whole_sequence` is the input of: the position that classifies or is compared, as a view.
LayerWriter::Index class_token(LayerWriter& layer, const TowerDims& tower);
TensorSpec whole_sequence(const TowerDims& tower);

}  // namespace foreshard
