// How the keys of each group of model types become ModelDims; internal to interop/.
//
// Defaults are those of transformers' configuration classes, where a key is absent or null
// (hf_families.txt, or beside the key).
// Every failure is a ConfigError at the value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "interop/hf/hf_families.h"
#include "interop/hf/hf_keys.h"
#include "models/model_dims.h"
#include "models/vision.h"

namespace foreshard {

// --- shared (hf_config.cpp, hf_rope.cpp) ---
// Layers, hidden size, heads and vocabulary, under all their spellings.
void read_common(KeyReader& keys, ModelDims& dims);
// Dropout of branches, of the embedding and of attention's probabilities, under all their
// spellings; `usual` is the family's where there is none.
struct Dropouts {
  bool branches = false, embedding = false, attention = false;  // of 0.1
};
void read_dropouts(KeyReader& keys, const Dropouts& usual, ModelDims& dims);
// Which of transformers' gelus the word names; false: none.
bool read_gelu(std::string_view word, ModelDims& dims);
// activation_function of models that have one of these.
void read_gelu_or_relu(KeyReader& keys, std::string_view usual, const std::string& expected, ModelDims& dims);
std::int64_t even_head_dim(KeyReader& keys, const ModelDims& dims);  // hidden / heads
void check_kv_heads(KeyReader& keys, const ModelDims& dims);
void check_layer_count(KeyReader& keys, const ModelDims& dims);  // before layers are listed
// Attention is modelled as full causal: right up to the window, so that bounds the sequence.
void bound_by_window(KeyReader& keys, ModelDims& dims);
// Norms' epsilon and rotary frequencies: rope_theta and rope_scaling, or rope_parameters of transformers 5, which may
// differ by type of layer (that of full attention is taken). A rope_type that is unknown is refused.
struct RopeKeys {
  std::optional<double> partial;   // partial_rotary_factor of rope_parameters
  std::optional<double> windowed;  // ... of layers within a window, where those have their own
};
RopeKeys read_numerics(KeyReader& keys, ModelDims& dims);
// The part of every head that is rotated: partial_rotary_factor (`spelling`), which rope_parameters may hold.
void read_rotary_part(
    KeyReader& keys, std::optional<double> given, ModelDims& dims, std::string_view spelling = "partial_rotary_factor");
// Rotated elements come in pairs. Throws where their number is odd.
void check_rotary(KeyReader& keys, const ModelDims& dims);
// quantization_config of the released weights: training starts from the same parameters in the
// plan's dtypes where the format is that of a release (fp8, mxfp4); adapters on packed weights and
// what is unknown are refused. The comment to print, or "".
std::string read_quantization(KeyReader& keys);

// --- one per HfReader ---
void read_decoder(KeyReader& keys, const HfFamily& family, ModelDims& dims);
// Layers of several kinds (hf_hybrid.cpp), behind what all decoders have; how many there are is known from their list.
bool is_hybrid(const HfFamily& family);
void provide_layers(KeyReader& keys, const HfFamily& family);
void read_hybrid(KeyReader& keys, const HfFamily& family, ModelDims& dims);
void read_gpt2(KeyReader& keys, ModelDims& dims);
void read_opt(KeyReader& keys, ModelDims& dims);
void read_bloom(KeyReader& keys, ModelDims& dims);
void read_mpt(KeyReader& keys, ModelDims& dims, std::vector<HfKey>& ledger);
// gpt_neox, falcon.
void read_parallel(KeyReader& keys, ModelDims& dims);
// bert, roberta.
void read_encoder(KeyReader& keys, ModelDims& dims);
void read_encoder_decoder(KeyReader& keys, ModelDims& dims);
void read_bart(KeyReader& keys, ModelDims& dims);
// Layers left out at random are another step each time.
void refuse_layerdrop(KeyReader& keys);
// deepseek_v2, deepseek_v3, youtu. The layers of multi-token prediction are left out.
void read_latent(KeyReader& keys, const HfFamily& family, ModelDims& dims);

// --- experts, which come on top of a decoder (hf_experts.cpp) ---
// As wide as intermediate_size, in every layer (Mixtral).
void read_plain_experts(KeyReader& keys, bool says_normalized, ModelDims& dims);
// In every decoder_sparse_step-th layer that mlp_only_layers does not name (Qwen).
void read_sparse_experts(KeyReader& keys, ModelDims& dims);
// From first_k_dense_replace on, beside shared ones (DeepSeek).
void read_late_experts(KeyReader& keys, ModelDims& dims);
// In every moe_layer_interval-th layer between two of them, beside shared ones (ERNIE 4.5).
void read_spread_experts(KeyReader& keys, ModelDims& dims);
// As wide as intermediate_size, beside shared ones as wide, where mlp_layer_types says sparse; the
// best logits are given scores (Cohere).
void read_listed_experts(KeyReader& keys, ModelDims& dims);
// In every layer, beside its feed-forward layer (Gemma 4).
void read_experts_beside(KeyReader& keys, ModelDims& dims);
// In every interleave_moe_layer_step-th layer, or those of moe_layers (Llama 4).
void read_interleaved_experts(KeyReader& keys, ModelDims& dims);

// Hugging Face configurations of models that read images: model_type vit, clip and llava.
//
// Defaults are those of configuration_{vit,clip,llava}.py of transformers 4.5x: a nested
// vision_config or text_config holds what differs. ViT must classify
// (ViTForImageClassification); LLaVA's tower is CLIP's, read in front of its last block without the
// class token (vision_feature_layer -2, vision_feature_select_strategy default).

std::span<const std::string_view> hf_vision_types();

// How a decoder's object is read (interop/hf/hf_config.cpp); `outer_type` is the enclosing object's.
using ReadDecoder = ModelDims (*)(KeyReader& keys, const ConfigNode* outer_type, std::vector<HfKey>& ledger);

// Of the object whose model_type is one of hf_vision_types(). Throws ConfigError for what is
// missing, out of range or not modelled.
VisionDims read_hf_vision(KeyReader& keys, std::vector<HfKey>& ledger, ReadDecoder read_decoder);

}
