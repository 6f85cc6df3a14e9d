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
                                      .head = "lm_head",
                                      .project_in = "model.decoder.project_in",
                                      .project_out = "model.decoder.project_out"};

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

// A variation of another implementation's names.
template <typename Change>
constexpr ParameterNames changed(ParameterNames names, Change change) {
  change(names);
  return names;
}

constexpr ParameterNames kT5Names = changed(kLlamaNames, [](ParameterNames& n) {
  n.blocks = "decoder.block";
  n.embedding = "shared";
  n.final_norm = "decoder.final_layer_norm";
});

constexpr ParameterNames kMixtralNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.router = "block_sparse_moe.gate";
  n.experts = "block_sparse_moe.experts";
  n.expert_gate = "w1";
  n.expert_up = "w3";
  n.expert_down = "w2";
  n.shared_expert_gate = "shared_mlp.input_linear";  // GraniteMoeShared
  n.shared_expert_down = "shared_mlp.output_linear";
});

constexpr ParameterNames kDeepSeekNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.shared_expert_gate = "mlp.shared_experts.gate_proj";
  n.shared_expert_up = "mlp.shared_experts.up_proj";
  n.shared_expert_down = "mlp.shared_experts.down_proj";
});

constexpr ParameterNames kGemma2Names = changed(kLlamaNames, [](ParameterNames& n) {
  n.norm2 = "pre_feedforward_layernorm";
  n.post_attention_norm = "post_attention_layernorm";
  n.post_mlp_norm = "post_feedforward_layernorm";
});

constexpr ParameterNames kStarcoder2Names = changed(kLlamaNames, [](ParameterNames& n) {
  n.up = "mlp.c_fc";
  n.down = "mlp.c_proj";
});

constexpr ParameterNames kNeoXNames = changed(kBloomNames, [](ParameterNames& n) {
  n.blocks = "gpt_neox.layers";
  n.embedding = "gpt_neox.embed_in";
  n.qkv = "attention.query_key_value";
  n.o = "attention.dense";
  n.final_norm = "gpt_neox.final_layer_norm";
  n.head = "lm_head";  // (embed_out before transformers 5.24)
});

// With two norms: ln_attn and ln_mlp (new_decoder_architecture).
constexpr ParameterNames kFalconNames = changed(kBloomNames, [](ParameterNames& n) {
  n.norm1 = "ln_attn";
  n.norm2 = "ln_mlp";
});

constexpr ParameterNames kBertNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.blocks = "bert.encoder.layer";
  n.embedding = "bert.embeddings.word_embeddings";
  n.positions = "bert.embeddings.position_embeddings";
  n.token_types = "bert.embeddings.token_type_embeddings";
  n.embedding_norm = "bert.embeddings.LayerNorm";
  n.q = "attention.self.query";
  n.k = "attention.self.key";
  n.v = "attention.self.value";
  n.o = "attention.output.dense";
  n.norm1 = "attention.output.LayerNorm";
  n.up = "intermediate.dense";
  n.down = "output.dense";
  n.norm2 = "output.LayerNorm";
  n.head_transform = "cls.predictions.transform.dense";
  n.head_norm = "cls.predictions.transform.LayerNorm";
  n.head = "cls.predictions.decoder";
  n.head_bias = "cls.predictions";
});

constexpr ParameterNames kRobertaNames = changed(kBertNames, [](ParameterNames& n) {
  n.blocks = "roberta.encoder.layer";
  n.embedding = "roberta.embeddings.word_embeddings";
  n.positions = "roberta.embeddings.position_embeddings";
  n.token_types = "roberta.embeddings.token_type_embeddings";
  n.embedding_norm = "roberta.embeddings.LayerNorm";
  n.head_transform = "lm_head.dense";
  n.head_norm = "lm_head.layer_norm";
  n.head = "lm_head.decoder";
  n.head_bias = "lm_head";
});

constexpr ParameterNames kPostBranchNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.post_attention_norm = "post_attention_layernorm";
  n.post_mlp_norm = "post_feedforward_layernorm";
});

constexpr ParameterNames kGlm4Names = changed(kLlamaNames, [](ParameterNames& n) {
  n.post_attention_norm = "post_self_attn_layernorm";
  n.post_mlp_norm = "post_mlp_layernorm";
});

constexpr ParameterNames kGptOssNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.router = "mlp.router";
  n.expert_gate = "gate_up_proj";
});

constexpr ParameterNames kLlama4Names = changed(kLlamaNames, [](ParameterNames& n) {
  n.gate = "feed_forward.gate_proj";
  n.up = "feed_forward.up_proj";
  n.down = "feed_forward.down_proj";
  n.router = "feed_forward.router";
  n.experts = "feed_forward.experts";
  n.expert_gate = "gate_up_proj";
  n.shared_expert_gate = "feed_forward.shared_expert.gate_proj";
  n.shared_expert_up = "feed_forward.shared_expert.up_proj";
  n.shared_expert_down = "feed_forward.shared_expert.down_proj";
});

constexpr ParameterNames kPhiNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.o = "self_attn.dense";
  n.up = "mlp.fc1";
  n.down = "mlp.fc2";
  n.final_norm = "model.final_layernorm";
});

constexpr ParameterNames kHunYuanNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.q_norm = "self_attn.query_layernorm";
  n.k_norm = "self_attn.key_layernorm";
  n.router = "mlp.gate.wg";
  n.shared_expert_gate = "mlp.shared_mlp.gate_proj";
  n.shared_expert_up = "mlp.shared_mlp.up_proj";
  n.shared_expert_down = "mlp.shared_mlp.down_proj";
});

constexpr ParameterNames kGptJNames = changed(kGpt2Names, [](ParameterNames& n) {
  n.qkv = "attn.qkv_proj";
  n.o = "attn.out_proj";
  n.up = "mlp.fc_in";
  n.down = "mlp.fc_out";
});

constexpr ParameterNames kGptNeoNames = changed(kGpt2Names, [](ParameterNames& n) {
  n.q = "attn.attention.q_proj";
  n.k = "attn.attention.k_proj";
  n.v = "attn.attention.v_proj";
  n.o = "attn.attention.out_proj";
});

constexpr ParameterNames kDistilBertNames = changed(kBertNames, [](ParameterNames& n) {
  n.blocks = "distilbert.transformer.layer";
  n.embedding = "distilbert.embeddings.word_embeddings";
  n.positions = "distilbert.embeddings.position_embeddings";
  n.embedding_norm = "distilbert.embeddings.LayerNorm";
  n.q = "attention.q_lin";
  n.k = "attention.k_lin";
  n.v = "attention.v_lin";
  n.o = "attention.out_lin";
  n.norm1 = "sa_layer_norm";
  n.up = "ffn.lin1";
  n.down = "ffn.lin2";
  n.norm2 = "output_layer_norm";
  n.head_transform = "vocab_transform";
  n.head_norm = "vocab_layer_norm";
  n.head = n.head_bias = "vocab_projector";
});

constexpr ParameterNames kElectraNames = changed(kBertNames, [](ParameterNames& n) {
  n.blocks = "electra.encoder.layer";
  n.embedding = "electra.embeddings.word_embeddings";
  n.positions = "electra.embeddings.position_embeddings";
  n.token_types = "electra.embeddings.token_type_embeddings";
  n.embedding_norm = "electra.embeddings.LayerNorm";
  n.project_in = "electra.embeddings_project";
  n.head_transform = "generator_predictions.dense";
  n.head_norm = "generator_predictions.LayerNorm";
  n.head = n.head_bias = "generator_lm_head";
});

constexpr ParameterNames kPersimmonNames = changed(kLlamaNames, [](ParameterNames& n) {
  n.qkv = "self_attn.query_key_value";
  n.o = "self_attn.dense";
  n.q_norm = "self_attn.q_layernorm";
  n.k_norm = "self_attn.k_layernorm";
  n.up = "mlp.dense_h_to_4h";
  n.down = "mlp.dense_4h_to_h";
  n.final_norm = "model.final_layernorm";
});

}  // namespace

const ParameterNames& parameter_names(const ModelDims& dims) {
  switch (dims.naming) {
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
    case Naming::kMixtral:
      return kMixtralNames;
    case Naming::kDeepSeek:
      return kDeepSeekNames;
    case Naming::kGemma2:
      return kGemma2Names;
    case Naming::kNeoX:
      return kNeoXNames;
    case Naming::kFalcon:
      return dims.residual == Residual::kParallel ? kFalconNames : kBloomNames;
    case Naming::kStarcoder2:
      return kStarcoder2Names;
    case Naming::kBert:
      return kBertNames;
    case Naming::kRoberta:
      return kRobertaNames;
    case Naming::kPostBranch:
      return kPostBranchNames;
    case Naming::kGlm4:
      return kGlm4Names;
    case Naming::kGptOss:
      return kGptOssNames;
    case Naming::kLlama4:
      return kLlama4Names;
    case Naming::kPhi:
      return kPhiNames;
    case Naming::kT5:
      return kT5Names;
    case Naming::kHunYuan:
      return kHunYuanNames;
    case Naming::kGptJ:
      return kGptJNames;
    case Naming::kGptNeo:
      return kGptNeoNames;
    case Naming::kDistilBert:
      return kDistilBertNames;
    case Naming::kElectra:
      return kElectraNames;
    case Naming::kPersimmon:
      return kPersimmonNames;
  }
  return kLlamaNames;
}

}  // namespace foreshard
