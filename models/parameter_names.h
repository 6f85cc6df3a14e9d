// What Hugging Face's implementations call the modules that hold a model's parameters.
//
// Names of a block's modules are relative to "<blocks>.<number>"; the others are whole. A module that an implementation
// does not have is named as its siblings would be, or empty. Experts are one tensor per matrix
// ("mlp.experts.gate_proj", [experts, ffn, hidden]), as the grouped product reads them, instead of a module each.
#pragma once

#include <string_view>

#include "models/model_dims.h"

namespace foreshard {

struct ParameterNames {
  std::string_view blocks, embedding, positions, embedding_norm;
  std::string_view norm1, q, k, v, qkv, o, q_norm, k_norm, norm2, gate, up, down;
  std::string_view final_norm, head;
  // Only some implementations have what follows.
  std::string_view q_a = "self_attn.q_a_proj", q_a_norm = "self_attn.q_a_layernorm", q_b = "self_attn.q_b_proj",
                   kv_a = "self_attn.kv_a_proj_with_mqa", kv_a_norm = "self_attn.kv_a_layernorm",
                   kv_b = "self_attn.kv_b_proj";
  std::string_view gate_up = "mlp.gate_up_proj";
  std::string_view post_attention_norm = "", post_mlp_norm = "";  // of a sandwich
  std::string_view router = "mlp.gate", experts = "mlp.experts";
  std::string_view expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  std::string_view shared_gate = "mlp.shared_expert_gate";
  std::string_view shared_expert_gate = "mlp.shared_expert.gate_proj", shared_expert_up = "mlp.shared_expert.up_proj",
                   shared_expert_down = "mlp.shared_expert.down_proj";
  std::string_view sinks = "self_attn.sinks";
  std::string_view attention_gate = "self_attn.gate_proj", attention_norm = "self_attn.attn_sub_norm",
                   ffn_norm = "mlp.ffn_sub_norm", mixture_norm = "mlp.post_mlp_layernorm",
                   index = "self_attn.indexer";  // (BlockParts)
  // Parameters of a router: what corrects its scores, and what it and its scores are multiplied by.
  std::string_view correction = "", router_scale = "", expert_scale = "";
  std::string_view token_types = "", head_transform = "", head_norm = "", head_bias = "";
  std::string_view mamba = "mamba";                    // the module of Mamba-2's mixer
  std::string_view latent_in = "", latent_out = "";    // around Experts::latent
  std::string_view project_in = "", project_out = "";  // around ModelDims::embedding_width
};

const ParameterNames& parameter_names(const ModelDims& dims);

// By the member's name. Precondition: there is one.
std::string_view name_in(const ParameterNames& names, std::string_view member);

// By its name in parameter_names.txt.
Naming naming_of(std::string_view name);

}
