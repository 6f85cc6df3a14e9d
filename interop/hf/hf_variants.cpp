// Decoders with parallel branches, and encoders.
#include <algorithm>
#include <string>

#include "interop/hf/hf_readers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

void expect_gelu(KeyReader& keys, ModelDims& dims) {
  const std::string_view key = keys.node().has("activation") ? "activation" : "hidden_act";
  const std::string activation = keys.word_or(key, "gelu");
  if (read_gelu(activation, dims)) return;
  keys.refuse(key, "activation \"" + activation + "\" is not supported", "gelu");
}

// DebertaV2Encoder, DisentangledSelfAttention.
void read_distances(KeyReader& keys, ModelDims& dims) {
  keys.refuse_if_set("conv_kernel_size", "a convolution behind the first layer is not supported");
  if (!keys.flag_or("legacy", true)) keys.refuse("legacy", "the other head is not supported", "true");
  if (keys.size_or({"embedding_size"}, dims.hidden) != dims.hidden)
    keys.refuse("embedding_size", "narrower embeddings are not supported", "hidden_size");
  if (!keys.flag_or("position_biased_input", true)) dims.positions = Positions::kNone;
  if (!keys.flag_or("relative_attention", false)) return;
  BlockParts& parts = dims.parts;
  const auto given = [&](std::string_view key) {
    const ConfigNode* value = keys.find({key});
    return value == nullptr ? std::int64_t{-1} : value->as_int(-1, kLargestHfSize);
  };
  const std::int64_t buckets = given("position_buckets"), most = given("max_relative_positions");
  parts.distances = 2 * (buckets > 0 ? buckets : most > 0 ? most : dims.position_rows);
  parts.distance_products = !keys.flag_or("share_att_key", false);
  const auto says = [&](const char* key, const char* word) {
    const ConfigNode* value = keys.find({key});
    if (value == nullptr) return false;
    if (!value->is_sequence()) return contains(value->text(), word);
    return std::ranges::any_of(value->elements(), [&](const ConfigNode& each) { return each.text() == word; });
  };
  parts.distance_keys = says("pos_att_type", "c2p");
  parts.distance_queries = says("pos_att_type", "p2c");
  parts.distance_norm = says("norm_rel_ebd", "layer_norm");
}

}

void read_parallel(KeyReader& keys, ModelDims& dims) {
  const bool falcon = dims.naming == Naming::kFalcon;
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.kv_heads = dims.heads;
  dims.max_positions = keys.size_or({"max_position_embeddings"}, 2048);
  read_dropouts(keys, {}, dims);
  if (!falcon) {
    dims.embedding_dropout = dims.dropout;  // GPTNeoXModel.emb_dropout
    dims.ffn = keys.size({"intermediate_size"});
    dims.tied = keys.flag_or("tie_word_embeddings", false);
    dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", true);
    if (!keys.flag_or("use_parallel_residual", true)) dims.residual = Residual::kPreNorm;
    expect_gelu(keys, dims);
    const RopeKeys rope = read_numerics(keys, dims);
    keys.provide("rotary_pct=0.25");
    return read_rotary_part(keys, rope.partial, dims, "rotary_pct");
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
  dims.broadcast_kv = true;
  if (!keys.flag_or("parallel_attn", true)) dims.residual = Residual::kPreNorm;
}

void read_encoder(KeyReader& keys, ModelDims& dims) {
  const bool roberta = starts_behind_padding(dims.naming);
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.kv_heads = dims.heads;
  dims.ffn = keys.size({"intermediate_size", "hidden_dim"});
  for (const std::string_view key : {"embedding_size", "input_embedding_size"}) {
    const std::int64_t width = keys.provides(key) ? keys.size({key}) : dims.hidden;
    if (width != dims.hidden) dims.embedding_width = width;
  }
  if (keys.provides("output_embedding_size"))  // whose projection is there whatever its width
    dims.output_width = keys.size({"output_embedding_size"});
  keys.refuse_if_set("sinusoidal_pos_embds", "positions that are not learned are not supported");
  if (keys.provides("num_hidden_groups")) {
    dims.block_groups = keys.size({"num_hidden_groups"});
    if (keys.size_or({"inner_group_num"}, 1) != 1)
      keys.refuse("inner_group_num", "groups of several layers are not supported", "1");
  }
  dims.position_rows = keys.size_or({"max_position_embeddings"}, 512);
  if (dims.naming == Naming::kDebertaV2) read_distances(keys, dims);
  // RoBERTa's positions begin behind the one of padding.
  dims.max_positions = dims.position_rows - (roberta ? 2 : 0);
  dims.token_types = keys.count_or("type_vocab_size", 2);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  keys.refuse_if_set("use_task_id", "types of tasks are not supported");  // (ERNIE's)
  const ConfigNode* list = keys.node().find("architectures");
  if (list != nullptr && !list->is_null() && !list->elements().empty() &&
      is_causal_head(list->elements().front().as_string())) {
    dims.wide_loss = true;  // (ForCausalLMLoss)
    dims.parts.causal = keys.flag_or("is_decoder", false);
    keys.refuse_if_set("add_cross_attention", "cross attention is not supported");
  }
  if (!dims.wide_loss) keys.refuse_if_set("is_decoder", "an encoder with a causal mask is not supported");
  const std::string kind = keys.word_or("position_embedding_type", "absolute");
  if (kind != "absolute") keys.refuse("position_embedding_type", "\"" + kind + "\" is not supported", "absolute");
  if (dims.positions == Positions::kRotary) {  // Nomic's, whose dropout is 0 by default
    keys.one_of("hidden_act", "silu", "activation", {"silu"});
    read_numerics(keys, dims);
    dims.position_rows = 0;
    read_dropouts(keys, {}, dims);
    dims.embedding_dropout = dims.dropout;
    return;
  }
  expect_gelu(keys, dims);
  read_dropouts(keys, {.branches = true, .attention = true}, dims);
  dims.embedding_dropout = dims.dropout;
}

void refuse_layerdrop(KeyReader& keys) {
  for (const std::string_view key : {"layerdrop", "encoder_layerdrop", "decoder_layerdrop"}) {
    const ConfigNode* value = keys.find({key});
    if (value == nullptr || value->as_double(0, 1) == 0) continue;
    throw value->error("layers that are left out at random are not supported", "0");
  }
}

void read_bart(KeyReader& keys, ModelDims& dims) {
  const auto both = [&](const char* encoder, const char* decoder, std::int64_t usual) {
    const std::int64_t size = keys.size_or({encoder}, usual);
    if (keys.size_or({decoder}, usual) != size)
      keys.refuse(decoder, std::string("differs from ") + encoder, "stacks as wide as each other");
    return size;
  };
  dims.encoder_layers = keys.size_or({"encoder_layers"}, 12);
  dims.layers = keys.size_or({"decoder_layers"}, 12);
  dims.hidden = keys.size_or({"d_model"}, 1024);
  dims.heads = dims.kv_heads = both("encoder_attention_heads", "decoder_attention_heads", 16);
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = both("encoder_ffn_dim", "decoder_ffn_dim", 4096);
  dims.vocabulary = keys.size_or({"vocab_size"}, 50265);
  dims.max_positions = keys.size_or({"max_position_embeddings"}, 1024);
  // BartLearnedPositionalEmbedding, M2M100SinusoidalPositionalEmbedding: two more.
  const bool more = dims.embedding_norm || dims.positions == Positions::kSinusoidal;
  dims.position_rows = dims.max_positions + (more ? 2 : 0);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  dims.final_norm = dims.residual == Residual::kPreNorm;  // (mBART's)
  keys.flag_or("scale_embedding", false);                 // by 1, too
  read_gelu_or_relu(keys, "gelu", "gelu or relu", dims);
  read_dropouts(keys, {.branches = true}, dims);
  dims.embedding_dropout = dims.dropout;
  dims.ffn_dropout = keys.number_or("activation_dropout", 0) > 0;
  refuse_layerdrop(keys);
  keys.refuse_if_set("use_prompt", "prompts in front of each layer are not supported");
  const bool shares =
      !keys.node().has("share_encoder_decoder_embeddings") || keys.flag_or("share_encoder_decoder_embeddings", true);
  const ConfigNode* words = keys.find({"decoder_vocab_size"});
  const bool differ = words != nullptr && words->as_int(1, kLargestHfSize) != dims.vocabulary;
  if (!shares || differ) {
    keys.refuse(shares ? "decoder_vocab_size" : "share_encoder_decoder_embeddings",
        "a table for each stack is not supported", "one for both");
  }
}

void read_encoder_decoder(KeyReader& keys, ModelDims& dims) {
  dims.encoder_layers = keys.size_or({"num_layers"}, 6);
  dims.layers = keys.size_or({"num_decoder_layers"}, dims.encoder_layers);
  dims.hidden = keys.size_or({"d_model"}, 512);
  dims.heads = dims.kv_heads = keys.size_or({"num_heads"}, 8);
  dims.head_dim = keys.size_or({"d_kv"}, 64);
  dims.ffn = keys.size_or({"d_ff"}, 2048);
  dims.vocabulary = keys.size_or({"vocab_size"}, 32128);
  dims.position_buckets = keys.size_or({"relative_attention_num_buckets"}, 32);
  // Not a limit: positions are relative.
  dims.max_positions = keys.size_or({"n_positions"}, 512);
  dims.numerics.norm_epsilon = keys.number_or("layer_norm_epsilon", 1e-6);
  // Of one table, the head's output is scaled; without, the head has a table of its own: so its
  // checkpoints hold it, though transformers 5 ties it whatever the file says.
  dims.tied = dims.output_scale = keys.flag_or("tie_word_embeddings", true);
  const std::string work = keys.word_or("feed_forward_proj", "relu");
  if (work == "gated-gelu" || work == "gated-gelu_new") {
    dims.activation = Activation::kGeGlu;
    dims.numerics.gelu_new = true;
  } else if (work == "gated-silu") {
    dims.activation = Activation::kSwiGlu;
  } else if (work != "relu") {
    keys.refuse("feed_forward_proj", "activation \"" + work + "\" is not supported", "relu, gated-gelu or gated-silu");
  }
  const ConfigNode* rate = keys.find({"dropout_rate"});
  const bool drops = rate == nullptr || rate->as_double(0, 1) > 0;
  if (rate == nullptr) keys.assume("dropout_rate", "0.1");
  dims.dropout = dims.embedding_dropout = dims.attention_dropout = dims.ffn_dropout = drops;
}

}
