// Hugging Face configurations of models that read images: model_type vit, clip and llava.
//
// Defaults are those of configuration_{vit,clip,llava}.py of transformers 4.5x: a nested
// vision_config or text_config holds what differs. ViT must classify
// (ViTForImageClassification); LLaVA's tower is CLIP's, read in front of its last block without the
// class token (vision_feature_layer -2, vision_feature_select_strategy default).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "interop/hf/hf_keys.h"
#include "models/model_dims.h"
#include "models/vision.h"

namespace foreshard {

std::span<const std::string_view> hf_vision_types();

// How a decoder's object is read (interop/hf/hf_config.cpp); `outer_type` is the enclosing
// object's.
using ReadDecoder = ModelDims (*)(KeyReader& keys, const ConfigNode* outer_type,
                                  std::vector<HfKey>& ledger);

// Of the object whose model_type is one of hf_vision_types(). Throws ConfigError for what is
// missing, out of range or not modelled.
VisionDims read_hf_vision(KeyReader& keys, std::vector<HfKey>& ledger, ReadDecoder read_decoder);

}  // namespace foreshard
