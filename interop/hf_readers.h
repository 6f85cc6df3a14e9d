// How the keys of each group of model types become ModelDims; internal to interop/.
//
// Defaults are those of transformers' configuration classes (4.5x), where a key is absent or null.
// Every failure is a ConfigError at the value.
#pragma once

#include <cstdint>
#include <string_view>

#include "interop/hf_keys.h"
#include "models/model_dims.h"

namespace foreshard {

// --- shared (hf_config.cpp) ---
// Layers, hidden size, heads and vocabulary, under all their spellings.
void read_common(KeyReader& keys, ModelDims& dims);
std::int64_t even_head_dim(KeyReader& keys, const ModelDims& dims);  // hidden / heads
void check_kv_heads(KeyReader& keys, const ModelDims& dims);
// Attention is modelled as full causal: right up to the window, so that bounds the sequence.
void bound_by_window(KeyReader& keys, ModelDims& dims);
void read_numerics(KeyReader& keys, ModelDims& dims);

// --- one per group of model types ---
// gemma, gemma2, phi3, starcoder2: rotary decoders that differ from Llama in their blocks.
void read_rotary_variant(KeyReader& keys, std::string_view model_type, ModelDims& dims);
// gpt_neox, falcon.
void read_parallel(KeyReader& keys, std::string_view model_type, ModelDims& dims);
// bert, roberta.
void read_encoder(KeyReader& keys, ModelDims& dims);
// mixtral, qwen2_moe, qwen3_moe: what comes on top of a rotary decoder.
void read_experts(KeyReader& keys, std::string_view model_type, ModelDims& dims);
// deepseek_v2, deepseek_v3. The layers of multi-token prediction are left out.
void read_deepseek(KeyReader& keys, std::string_view model_type, ModelDims& dims);

}  // namespace foreshard
