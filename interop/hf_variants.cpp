// Decoders whose blocks differ from Llama's, and encoders.
#include <cmath>
#include <string>

#include "interop/hf_readers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

struct Defaults {
  std::int64_t kv_heads;  // 0: as many as heads
  std::int64_t head_dim;  // 0: hidden / heads
  std::int64_t positions;
  bool tied;
};

Defaults defaults_of(std::string_view model_type) {
  if (model_type == "gemma") return {16, 256, 8192, true};
  if (model_type == "gemma2") return {4, 256, 8192, true};
  if (model_type == "starcoder2") return {2, 0, 4096, true};
  return {0, 0, 4096, false};  // phi3
}

// The part of every head that is rotated, from a fraction of it.
void read_rotary_part(KeyReader& keys, KeyReader::Spellings spellings, double fallback,
                      ModelDims& dims) {
  const ConfigNode* value = keys.find(spellings);
  if (value == nullptr) keys.assume(*spellings.begin(), fallback == 1 ? "1" : "0.25");
  const double fraction = value != nullptr ? value->as_double(0, 1) : fallback;
  const auto rotated =
      static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(dims.head_dim)));
  if (rotated < 1) {
    throw(value != nullptr ? *value : keys.node())
        .error("no element of a head of " + std::to_string(dims.head_dim) + " is rotated",
               "a fraction of the head dimension");
  }
  dims.rotary_dim = rotated == dims.head_dim ? 0 : rotated;
}

void expect_activation(KeyReader& keys, std::string_view key, std::string_view prefix,
                       std::string_view fallback) {
  const std::string activation = keys.word_or(key, fallback);
  if (activation.rfind(prefix, 0) == 0) return;
  keys.refuse(key, "activation \"" + activation + "\" is not supported", std::string(fallback));
}

}  // namespace

void read_rotary_variant(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  const Defaults defaults = defaults_of(model_type);
  const bool gemma = model_type == "gemma" || model_type == "gemma2";
  read_common(keys, dims);
  if (const ConfigNode* value = keys.find({"head_dim"})) {
    dims.head_dim = value->as_int(1, kLargestHfSize);
  } else {
    dims.head_dim = defaults.head_dim > 0 ? defaults.head_dim : even_head_dim(keys, dims);
    keys.assume("head_dim", std::to_string(dims.head_dim));
  }
  dims.kv_heads =
      keys.size_or({"num_key_value_heads"}, defaults.kv_heads > 0 ? defaults.kv_heads : dims.heads);
  check_kv_heads(keys, dims);
  dims.ffn = keys.size({"intermediate_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings"}, defaults.positions);
  dims.tied = keys.flag_or("tie_word_embeddings", defaults.tied);
  read_numerics(keys, dims);
  if (gemma) {
    dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", false);
    // hidden_activation comes before hidden_act; both are the tanh approximation of gelu.
    keys.find({"hidden_act"});
    expect_activation(keys, "hidden_activation", "gelu", "gelu_pytorch_tanh");
  } else if (model_type == "phi3") {
    expect_activation(keys, "hidden_act", "silu", "silu");
    read_rotary_part(keys, {"partial_rotary_factor"}, 1, dims);
  } else {
    expect_activation(keys, "hidden_act", "gelu", "gelu_pytorch_tanh");
    const bool bias = keys.flag_or("use_bias", true);
    dims.qkv_bias = dims.output_bias = dims.mlp_bias = bias;
  }
  if (model_type == "gemma2") {
    if (const ConfigNode* cap = keys.find({"final_logit_softcapping"})) {
      cap->as_double(0, 1e9);
    } else {
      dims.logit_softcap = !keys.node().has("final_logit_softcapping");  // null: none
      keys.assume("final_logit_softcapping", dims.logit_softcap ? "30" : "none");
    }
  }
  if (model_type == "gemma2" || keys.node().has("sliding_window")) bound_by_window(keys, dims);
}

void read_parallel(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  const bool falcon = model_type == "falcon";
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.kv_heads = dims.heads;
  dims.max_positions = keys.size_or({"max_position_embeddings"}, 2048);
  if (!falcon) {
    dims.ffn = keys.size({"intermediate_size"});
    dims.tied = keys.flag_or("tie_word_embeddings", false);
    dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", true);
    if (!keys.flag_or("use_parallel_residual", true)) dims.residual = Residual::kPreNorm;
    expect_activation(keys, "hidden_act", "gelu", "gelu");
    return read_rotary_part(keys, {"rotary_pct", "partial_rotary_factor"}, 0.25, dims);
  }
  dims.ffn = keys.size_or({"ffn_hidden_size"}, checked_multiply(4, dims.hidden));
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  dims.qkv_bias = dims.output_bias = dims.mlp_bias = keys.flag_or("bias", false);
  if (keys.flag_or("alibi", false)) dims.positions = Positions::kAlibi;
  if (keys.flag_or("new_decoder_architecture", false)) {
    dims.kv_heads = keys.size_or({"num_kv_heads", "n_head_kv"}, dims.heads);
    check_kv_heads(keys, dims);
    const std::int64_t norms = keys.size_or({"num_ln_in_parallel_attn"}, 2);
    if (norms == 2) dims.residual = Residual::kParallel;
    return;
  }
  if (keys.flag_or("multi_query", true)) dims.kv_heads = 1;
  if (!keys.flag_or("parallel_attn", true)) dims.residual = Residual::kPreNorm;
}

void read_encoder(KeyReader& keys, ModelDims& dims) {
  const bool roberta = dims.naming == Naming::kRoberta;
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.kv_heads = dims.heads;
  dims.ffn = keys.size({"intermediate_size"});
  dims.position_rows = keys.size_or({"max_position_embeddings"}, 512);
  // RoBERTa's positions begin behind the one of padding.
  dims.max_positions = dims.position_rows - (roberta ? 2 : 0);
  dims.token_types = keys.size_or({"type_vocab_size"}, 2);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  keys.refuse_if_set("is_decoder", "an encoder with a causal mask is not supported");
  const std::string kind = keys.word_or("position_embedding_type", "absolute");
  if (kind != "absolute") {
    keys.refuse("position_embedding_type", "\"" + kind + "\" is not supported", "absolute");
  }
  expect_activation(keys, "hidden_act", "gelu", "gelu");
  const ConfigNode* dropout = keys.find({"hidden_dropout_prob"});
  if (dropout == nullptr) keys.assume("hidden_dropout_prob", "0.1");
  dims.dropout = dropout == nullptr || dropout->as_double(0, 1) > 0;
}

}  // namespace foreshard
