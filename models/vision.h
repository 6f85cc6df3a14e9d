// Models that read images: classifiers (ViT), pairs of an image's and a text's tower (CLIP), and
// decoders that read images among words (LLaVA).
//
// A tower is Hugging Face's ViTModel or CLIPVisionTransformer: a convolution cuts the image into patches, a class token
// goes in front, learned positions are added, and pre-norm blocks with biases attend both ways. The convolution is
// counted as the matrix product patches x (channels * patch^2) x hidden that it is; a workspace of cuDNN's is not
// counted. Dropout is off, as it is in the published configurations.
//
// CLIP's loss compares the samples of a rank's own micro-batch, as CLIPModel does; gathering
// features over ranks is not modelled, nor is the [samples, samples] matrix of their similarities
// (2 * samples^2 * projection FLOPs, 4 * samples^2 bytes).
//
// LLaVA takes the features in front of its tower's last block (vision_feature_layer -2): that block
// and the norm behind it are executed, and nobody reads them (LayerSpec::unread). Hidden states
// that Hugging Face's output_hidden_states holds while the tower runs are not counted.
#pragma once

#include <cstdint>
#include <string>

#include "models/model_dims.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct TowerDims {
  std::int64_t image = 0;  // pixels along each side
  std::int64_t patch = 0;
  std::int64_t channels = 3;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;
  bool quick_gelu = false;  // x * sigmoid(1.702 x), three operations; else gelu
  bool dropout = false;     // behind the embedding and both branches
  bool attention_dropout = false;
  // In front of the patches: a class, a distillation's (DeiT), registers, which have no positions.
  std::int64_t tokens = 1, registers = 0;
  bool branch_weights = false;  // both branches times a vector (DINOv2)
  bool gated = false;           // silu(gate) * up, both of one product (DINOv2 giant)
  bool spare_token = false;     // of masked images, which a classifier has and does not read
  std::int64_t patches() const { return image / patch * (image / patch); }
  std::int64_t positions() const { return patches() + tokens + registers; }
  bool operator==(const TowerDims&) const = default;
};

// "vit" and classifiers like it: tower and labels; "clip": tower, text and projection; "llava": tower and text.
struct VisionDims {
  std::string name;
  std::string family;
  std::string source;
  TowerDims tower;
  std::int64_t labels = 0;  // classes
  // What classifies: the first token, the mean of all, or the first beside the patches' mean.
  enum class Reads : std::uint8_t { kToken, kMean, kBoth };
  Reads reads = Reads::kToken;
  std::int64_t projection = 0;  // features that the two towers are compared by
  // llava: the decoder. clip: layers, hidden, heads, ffn, vocabulary and max_positions count.
  ModelDims text;
  bool operator==(const VisionDims&) const = default;
};

// One image per sample (with_images). Throws Error(kInvalidInput), naming the model and the size,
// where a size is not positive or too large or heads do not divide the hidden size; and for another
// family. Pixels beyond the last whole patch are not read, as a convolution does it.
// Error(kMissingCapability) for the engine's stack, which executes decoders of words only.
ModelSpec build_vision_model(const VisionDims& dims, Stack stack = Stack::kEager);

}
