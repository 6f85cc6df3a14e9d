// Decoders with learned positions or ALiBi, whose keys are their own: gpt2, opt, bloom, mpt.
#include <string>

#include "interop/hf/hf_readers.h"
#include "models/families.h"

namespace foreshard {

void read_gpt2(KeyReader& keys, ModelDims& dims) {
  read_common(keys, dims);
  keys.refuse_if_set("add_cross_attention", "cross attention is not supported");
  dims.kv_heads = keys.provides("multi_query") && keys.flag_or("multi_query", true) ? 1 : dims.heads;
  dims.head_dim = even_head_dim(keys, dims);
  if (keys.provides("rotary_dim")) dims.rotary_dim = keys.size({"rotary_dim"});
  dims.ffn = keys.size_or({"n_inner", "intermediate_size"}, 4 * dims.hidden);
  dims.max_positions = dims.position_rows = keys.size_or({"n_positions", "max_position_embeddings"}, 1024);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  read_dropouts(keys, {true, true, true}, dims);
  read_gelu_or_relu(keys, "gelu_new", "gelu_new, gelu or relu", dims);
}

void read_opt(KeyReader& keys, ModelDims& dims) {
  read_common(keys, dims);
  dims.kv_heads = dims.heads;
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = keys.size({"ffn_dim", "intermediate_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings"}, 2048);
  dims.position_rows = dims.max_positions + 2;  // OPTLearnedPositionalEmbedding
  const bool drops = dims.embedding_scale;      // XGLM's and BioGPT's, which scale embeddings
  read_dropouts(keys, {.branches = true, .attention = drops}, dims);
  if (drops) {
    dims.embedding_dropout = dims.dropout;
    dims.ffn_dropout = keys.number_or("activation_dropout", 0) > 0;
  }
  refuse_layerdrop(keys);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  if (!keys.flag_or("enable_bias", true)) dims.qkv_bias = dims.output_bias = dims.mlp_bias = false;
  // opt-350m: narrower embeddings between projections, norms behind the sums, none at the end.
  const std::int64_t width = keys.size_or({"word_embed_proj_dim"}, dims.hidden);
  if (width != dims.hidden) dims.embedding_width = width;
  if (!keys.flag_or("do_layer_norm_before", true)) {
    dims.residual = Residual::kPostNorm;
    dims.final_norm = false;
  }
  if (!keys.flag_or("layer_norm_elementwise_affine", true))
    keys.refuse("layer_norm_elementwise_affine", "norms without weights are not supported", "true");
  if (keys.flag_or("_remove_final_layer_norm", false)) dims.final_norm = false;
  if (!dims.final_norm && dims.embedding_width == 0) {
    keys.refuse("word_embed_proj_dim", "nothing would stand between the last block and the head",
        "a norm there (do_layer_norm_before), or embeddings narrower than hidden_size");
  }
  const std::string_view kind = keys.node().has("hidden_act") ? "hidden_act" : "activation_function";
  const std::string activation = keys.word_or(kind, "relu");
  if (read_gelu(activation, dims)) dims.activation = Activation::kGelu;
  else if (activation != "relu")
    keys.refuse(kind, "activation \"" + activation + "\" is not supported", "relu or gelu");
}

void read_bloom(KeyReader& keys, ModelDims& dims) {
  read_common(keys, dims);
  dims.kv_heads = dims.heads;
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = checked_multiply(4, dims.hidden);
  read_dropouts(keys, {}, dims);
  // ALiBi has no table; the length is that of the first training.
  dims.max_positions = keys.size_or({"seq_length", "max_position_embeddings"}, 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  keys.refuse_if_set("apply_residual_connection_post_layernorm", "residuals behind the norms are not supported");
  if (const ConfigNode* epsilon = keys.find({"layer_norm_epsilon"}))
    dims.numerics.norm_epsilon = epsilon->as_double(0, 1);
}

// attn_config of MPT: positions and the number of key/value heads.
void read_mpt_attention(KeyReader& keys, KeyReader& attention, ModelDims& dims) {
  attention.refuse_if_set("rope", "rotary positions of an mpt model are not supported");
  attention.refuse_if_set("qk_ln", "norms of queries and keys of an mpt model are not supported");
  attention.refuse_if_set("prefix_lm", "prefix attention is not supported");
  if (!attention.flag_or("alibi", true)) {
    if (!keys.flag_or("learned_pos_emb", true)) {
      throw keys.node().error(
          "the model has neither ALiBi nor learned positions", "attn_config.alibi or learned_pos_emb");
    }
    dims.positions = Positions::kLearned;
    dims.position_rows = dims.max_positions;
  }
  const std::string type = attention.one_of("attn_type", "multihead_attention", "attention",
      {"multihead_attention", "multiquery_attention", "grouped_query_attention"});
  dims.kv_heads = type == "multihead_attention"    ? dims.heads
                  : type == "multiquery_attention" ? 1
                                                   : attention.size({"kv_n_heads"});
  check_kv_heads(keys, dims);
}

void read_mpt(KeyReader& keys, ModelDims& dims, std::vector<HfKey>& ledger) {
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = checked_multiply(keys.size_or({"expansion_ratio"}, 4), dims.hidden);
  dims.max_positions = keys.size_or({"max_seq_len", "max_position_embeddings"}, 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  if (!keys.flag_or("no_bias", true)) add_biases(dims);
  keys.one_of("norm_type", "low_precision_layernorm", "norm", {"low_precision_layernorm", "layernorm"});
  if (const ConfigNode* node = keys.find({"ffn_config"})) {
    KeyReader ffn(*node, "ffn_config.", ledger);
    ffn.one_of("ffn_type", "mptmlp", "feed-forward", {"mptmlp"});
    ffn.ignore_rest();
  }
  if (const ConfigNode* node = keys.find({"attn_config"})) {
    KeyReader attention(*node, "attn_config.", ledger);
    read_mpt_attention(keys, attention, dims);
    attention.ignore_rest();
  } else {
    keys.assume("attn_config", "", "multi-head attention with ALiBi");
    dims.kv_heads = dims.heads;
  }
}

}
