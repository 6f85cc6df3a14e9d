// One table per implementation.
#include "models/parameter_names.h"

namespace foreshard {
namespace {

constexpr ParameterNames kLlamaNames = {.blocks = "model.layers",
                                        .embedding = "model.embed_tokens",
                                        .positions = "",
                                        .embedding_norm = "",
                                        .norm1 = "input_layernorm",
                                        .q = "self_attn.q_proj",
                                        .k = "self_attn.k_proj",
                                        .v = "self_attn.v_proj",
                                        .qkv = "self_attn.qkv_proj",
                                        .o = "self_attn.o_proj",
                                        .q_norm = "self_attn.q_norm",
                                        .k_norm = "self_attn.k_norm",
                                        .norm2 = "post_attention_layernorm",
                                        .gate = "mlp.gate_proj",
                                        .up = "mlp.up_proj",
                                        .down = "mlp.down_proj",
                                        .final_norm = "model.norm",
                                        .head = "lm_head"};

constexpr ParameterNames kGpt2Names = {.blocks = "transformer.h",
                                       .embedding = "transformer.wte",
                                       .positions = "transformer.wpe",
                                       .embedding_norm = "",
                                       .norm1 = "ln_1",
                                       .q = "attn.q_proj",
                                       .k = "attn.k_proj",
                                       .v = "attn.v_proj",
                                       .qkv = "attn.c_attn",
                                       .o = "attn.c_proj",
                                       .q_norm = "attn.q_norm",
                                       .k_norm = "attn.k_norm",
                                       .norm2 = "ln_2",
                                       .gate = "mlp.c_gate",
                                       .up = "mlp.c_fc",
                                       .down = "mlp.c_proj",
                                       .final_norm = "transformer.ln_f",
                                       .head = "lm_head"};

constexpr ParameterNames kOptNames = {.blocks = "model.decoder.layers",
                                      .embedding = "model.decoder.embed_tokens",
                                      .positions = "model.decoder.embed_positions",
                                      .embedding_norm = "",
                                      .norm1 = "self_attn_layer_norm",
                                      .q = "self_attn.q_proj",
                                      .k = "self_attn.k_proj",
                                      .v = "self_attn.v_proj",
                                      .qkv = "self_attn.qkv_proj",
                                      .o = "self_attn.out_proj",
                                      .q_norm = "self_attn.q_norm",
                                      .k_norm = "self_attn.k_norm",
                                      .norm2 = "final_layer_norm",
                                      .gate = "gate",
                                      .up = "fc1",
                                      .down = "fc2",
                                      .final_norm = "model.decoder.final_layer_norm",
                                      .head = "lm_head"};

constexpr ParameterNames kMptNames = {.blocks = "transformer.blocks",
                                      .embedding = "transformer.wte",
                                      .positions = "transformer.wpe",
                                      .embedding_norm = "",
                                      .norm1 = "norm_1",
                                      .q = "attn.q_proj",
                                      .k = "attn.k_proj",
                                      .v = "attn.v_proj",
                                      .qkv = "attn.Wqkv",
                                      .o = "attn.out_proj",
                                      .q_norm = "attn.q_ln",
                                      .k_norm = "attn.k_ln",
                                      .norm2 = "norm_2",
                                      .gate = "ffn.gate_proj",
                                      .up = "ffn.up_proj",
                                      .down = "ffn.down_proj",
                                      .final_norm = "transformer.norm_f",
                                      .head = "lm_head"};

constexpr ParameterNames kBloomNames = {.blocks = "transformer.h",
                                        .embedding = "transformer.word_embeddings",
                                        .positions = "",
                                        .embedding_norm = "transformer.word_embeddings_layernorm",
                                        .norm1 = "input_layernorm",
                                        .q = "self_attention.query",
                                        .k = "self_attention.key",
                                        .v = "self_attention.value",
                                        .qkv = "self_attention.query_key_value",
                                        .o = "self_attention.dense",
                                        .q_norm = "self_attention.q_norm",
                                        .k_norm = "self_attention.k_norm",
                                        .norm2 = "post_attention_layernorm",
                                        .gate = "mlp.gate",
                                        .up = "mlp.dense_h_to_4h",
                                        .down = "mlp.dense_4h_to_h",
                                        .final_norm = "transformer.ln_f",
                                        .head = "lm_head"};

}  // namespace

const ParameterNames& parameter_names(Naming naming) {
  switch (naming) {
    case Naming::kLlama:
      return kLlamaNames;
    case Naming::kGpt2:
      return kGpt2Names;
    case Naming::kOpt:
      return kOptNames;
    case Naming::kMpt:
      return kMptNames;
    case Naming::kBloom:
      return kBloomNames;
  }
  return kLlamaNames;
}

}  // namespace foreshard
