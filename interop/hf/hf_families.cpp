// Defaults are those of configuration_*.py of transformers 4.5x and 5.x. Class names follow the
// model_type in transformers ("qwen2_moe": Qwen2MoeForCausalLM), so there is no table of them.
#include "interop/hf/hf_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr std::string_view kQwenVl = "num_key_value_heads=8 max_position_embeddings=32768";

constexpr std::string_view kGptJ =
    "n_positions=2048 rotary_dim=64 tie_word_embeddings=false resid_pdrop=0 attn_pdrop=0 "
    "embd_pdrop=0";

constexpr HfFamily kFamilies[] = {
    // --- rotary decoders ---
    {"llama", "llama", HfReader::kDecoder, "attention_bias mlp_bias"},
    {"mistral", "mistral", HfReader::kDecoder, "window",
     "num_key_value_heads=8 max_position_embeddings=131072 sliding_window=4096"},
    {"ministral", "mistral", HfReader::kDecoder, "window_in_some",
     "num_key_value_heads=8 max_position_embeddings=131072"},
    {"ministral3", "mistral", HfReader::kDecoder, "window_if_named",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=262144"},
    {"qwen2", "qwen2", HfReader::kDecoder, "window_if_used",
     "num_key_value_heads=32 max_position_embeddings=32768"},
    {"qwen2_vl", "qwen2", HfReader::kDecoder, "window_if_used", kQwenVl},
    {"qwen2_5_vl", "qwen2", HfReader::kDecoder, "window_if_used", kQwenVl},
    {"qwen3", "qwen3", HfReader::kDecoder, "attention_bias window_if_used",
     "num_key_value_heads=32 head_dim=128 max_position_embeddings=32768"},
    {"qwen3_vl", "qwen3", HfReader::kDecoder, "attention_bias",
     "num_key_value_heads=32 head_dim=128 max_position_embeddings=128000"},
    {"gemma", "gemma", HfReader::kDecoder, "attention_bias",
     "num_key_value_heads=16 head_dim=256 max_position_embeddings=8192 tie_word_embeddings=true"},
    {"gemma2", "gemma2", HfReader::kDecoder, "attention_bias softcap window",
     "num_key_value_heads=4 head_dim=256 max_position_embeddings=8192 tie_word_embeddings=true "
     "final_logit_softcapping=30 attn_logit_softcapping=50 sliding_window=4096"},
    {"gemma3", "gemma3", HfReader::kDecoder, "attention_bias softcap window_in_some",
     "num_key_value_heads=4 head_dim=256 max_position_embeddings=131072 tie_word_embeddings=true "
     "sliding_window=4096 sliding_window_pattern=6",
     "vocab_size=262208 hidden_size=2304 intermediate_size=9216 num_hidden_layers=26 "
     "num_attention_heads=8"},
    {"phi3", "phi3", HfReader::kDecoder, "partial_rotary window_if_named",
     "max_position_embeddings=4096"},
    {"phi", "phi", HfReader::kDecoder, "partial_rotary plain_heads",
     "partial_rotary_factor=0.5 hidden_act=gelu_new"},
    {"starcoder2", "starcoder2", HfReader::kDecoder, "use_bias window_if_named",
     "num_key_value_heads=2 max_position_embeddings=4096 tie_word_embeddings=true use_bias=true "
     "hidden_act=gelu_pytorch_tanh"},
    {"exaone", "llama", HfReader::kDecoder, "attention_bias mlp_bias",
     "num_key_value_heads=8 max_position_embeddings=4096"},
    {"cwm", "cwm", HfReader::kDecoder, "mlp_bias window_in_some all_seen_first",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=131072 sliding_window=8192 "
     "sliding_window_pattern=4"},
    {"olmo", "olmo", HfReader::kDecoder, "attention_bias"},
    {"olmo2", "olmo2", HfReader::kDecoder, "attention_bias"},
    {"olmo3", "olmo3", HfReader::kDecoder, "attention_bias window_in_some",
     "sliding_window=4096 sliding_window_pattern=4"},
    {"exaone4", "exaone4", HfReader::kDecoder, "rotary_in_windows window_in_some",
     "num_key_value_heads=32 sliding_window=4096 sliding_window_pattern=4"},
    {"smollm3", "smollm3", HfReader::kDecoder, "attention_bias mlp_bias unrotated window_in_some",
     "num_key_value_heads=4 max_position_embeddings=32768 tie_word_embeddings=true"},
    {"granite", "granite", HfReader::kDecoder, "attention_bias mlp_bias multipliers"},
    {"cohere", "cohere", HfReader::kDecoder, "attention_bias use_qk_norm",
     "max_position_embeddings=8192 tie_word_embeddings=true"},
    {"cohere2", "cohere", HfReader::kDecoder, "attention_bias rotary_in_windows window_in_some",
     "max_position_embeddings=8192 tie_word_embeddings=true sliding_window=4096 "
     "sliding_window_pattern=4"},
    {"stablelm", "stablelm", HfReader::kDecoder,
     "use_qkv_bias plain_heads partial_rotary parallel_residual",
     "num_key_value_heads=32 max_position_embeddings=4096 partial_rotary_factor=0.25"},
    {"glm", "glm", HfReader::kDecoder, "qkv_bias partial_rotary",
     "num_key_value_heads=2 head_dim=128 max_position_embeddings=131072 attention_bias=true "
     "partial_rotary_factor=0.5"},
    {"glm4", "glm4", HfReader::kDecoder, "qkv_bias partial_rotary",
     "num_key_value_heads=2 head_dim=128 max_position_embeddings=131072 attention_bias=true "
     "partial_rotary_factor=0.5"},
    {"seed_oss", "seed_oss", HfReader::kDecoder, "qkv_bias attention_out_bias mlp_bias",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=524288 attention_bias=true"},
    {"ernie4_5", "ernie4_5", HfReader::kDecoder, "use_bias",
     "num_key_value_heads=2 head_dim=128 max_position_embeddings=131072 tie_word_embeddings=true"},
    {"helium", "helium", HfReader::kDecoder, "qkv_bias mlp_bias",
     "num_key_value_heads=20 head_dim=128 max_position_embeddings=4096"},
    {"hunyuan_v1_dense", "hunyuan_v1_dense", HfReader::kDecoder, "attention_bias"},
    {"arcee", "arcee", HfReader::kDecoder, "attention_bias mlp_bias",
     "max_position_embeddings=4096"},
    {"nemotron", "nemotron", HfReader::kDecoder, "attention_bias mlp_bias partial_rotary",
     "max_position_embeddings=4096 partial_rotary_factor=0.5"},
    {"persimmon", "persimmon", HfReader::kDecoder, "qk_layernorm partial_rotary",
     "max_position_embeddings=16384 partial_rotary_factor=0.5"},
    // --- of experts ---
    {"mixtral", "mixtral", HfReader::kDecoder, "experts window_if_named",
     "num_key_value_heads=8 max_position_embeddings=131072 num_local_experts=8 "
     "num_experts_per_tok=2"},
    {"qwen2_moe", "qwen2_moe", HfReader::kDecoder, "sparse_experts window_if_used",
     "num_key_value_heads=16 max_position_embeddings=32768 num_experts=60 num_experts_per_tok=4 "
     "moe_intermediate_size=1408 shared_expert_intermediate_size=5632"},
    {"qwen3_moe", "qwen3_moe", HfReader::kDecoder, "attention_bias sparse_experts window_if_used",
     "num_key_value_heads=4 max_position_embeddings=32768 num_experts=128 num_experts_per_tok=8 "
     "moe_intermediate_size=768"},
    {"qwen3_vl_moe", "qwen3_moe", HfReader::kDecoder, "attention_bias sparse_experts",
     "num_key_value_heads=16 max_position_embeddings=128000 num_experts=60 num_experts_per_tok=4 "
     "moe_intermediate_size=1408 norm_topk_prob=true"},
    {"olmoe", "olmoe", HfReader::kDecoder, "attention_bias experts norm_topk_prob",
     "max_position_embeddings=4096 num_experts=64 num_experts_per_tok=8"},
    {"flex_olmo", "flex_olmo", HfReader::kDecoder, "attention_bias experts norm_topk_prob",
     "max_position_embeddings=4096 num_experts=7 num_experts_per_tok=5"},
    {"ernie4_5_moe", "ernie4_5_moe", HfReader::kDecoder, "use_bias spread_experts",
     "num_key_value_heads=4 max_position_embeddings=131072 tie_word_embeddings=true "
     "moe_intermediate_size=1536 moe_num_experts=64 moe_k=6 moe_num_shared_experts=2 "
     "moe_layer_start_index=1 moe_layer_interval=1"},
    {"granitemoe", "granitemoe", HfReader::kDecoder, "attention_bias experts multipliers",
     "num_local_experts=8 num_experts_per_tok=2"},
    {"granitemoeshared", "granitemoeshared", HfReader::kDecoder,
     "attention_bias experts shared_intermediate_size multipliers",
     "num_local_experts=8 num_experts_per_tok=2"},
    {"phimoe", "phimoe", HfReader::kDecoder, "attention_bias experts window_if_named lm_head_bias",
     "num_key_value_heads=8 max_position_embeddings=131072 num_local_experts=16 "
     "num_experts_per_tok=2"},
    {"minimax_m2", "minimax_m2", HfReader::kDecoder, "experts partial_rotary",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=196608 num_local_experts=256 "
     "num_experts_per_tok=8"},
    {"hunyuan_v1_moe", "hunyuan_v1_moe", HfReader::kDecoder,
     "attention_bias experts shared_as_wide", "num_experts=1 moe_topk=1"},
    {"gpt_oss", "gpt_oss", HfReader::kDecoder, "attention_bias experts window_in_some",
     "num_key_value_heads=8 head_dim=64 max_position_embeddings=131072 attention_bias=true "
     "num_local_experts=128 num_experts_per_tok=4 sliding_window=128 sliding_window_pattern=2"},
    {"llama4", "llama4", HfReader::kDecoder,
     "attention_bias unrotated use_qk_norm interleaved_experts window_in_some "
     "chunks_where_rotated",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=131072 use_qk_norm=true "
     "num_local_experts=16 num_experts_per_tok=1 attention_chunk_size=8192",
     "vocab_size=202048 hidden_size=5120 intermediate_size=8192 num_hidden_layers=48 "
     "num_attention_heads=40"},
    {"glm4_moe", "glm4_moe", HfReader::kDecoder, "qkv_bias partial_rotary use_qk_norm late_experts",
     "num_key_value_heads=8 max_position_embeddings=131072 partial_rotary_factor=0.5 "
     "n_routed_experts=128 num_experts_per_tok=8 moe_intermediate_size=1408 n_shared_experts=1 "
     "norm_topk_prob=true first_k_dense_replace=1"},
    {"solar_open", "solar_open", HfReader::kDecoder, "qkv_bias partial_rotary late_experts",
     "num_key_value_heads=8 head_dim=128 max_position_embeddings=131072 intermediate_size=10944 "
     "n_routed_experts=128 num_experts_per_tok=8 moe_intermediate_size=1280 n_shared_experts=1 "
     "norm_topk_prob=true first_k_dense_replace=0"},
    {"dots1", "dots1", HfReader::kDecoder, "attention_bias window_in_some late_experts",
     "num_key_value_heads=32 sliding_window=4096 max_window_layers=62 moe_intermediate_size=1408 "
     "norm_topk_prob=false first_k_dense_replace=0"},
    {"exaone_moe", "exaone_moe", HfReader::kDecoder,
     "rotary_in_windows window_in_some late_experts",
     "num_key_value_heads=32 sliding_window=4096 sliding_window_pattern=4 num_experts=64 "
     "num_experts_per_tok=8 moe_intermediate_size=1024 num_shared_experts=1 norm_topk_prob=true "
     "first_k_dense_replace=1"},
    {"glm4_moe_lite", "glm4_moe_lite", HfReader::kLatent, "late_experts",
     "q_lora_rank=768 kv_lora_rank=512 qk_nope_head_dim=192 qk_rope_head_dim=64 v_head_dim=256 "
     "num_key_value_heads=20 max_position_embeddings=202752 n_routed_experts=64 "
     "num_experts_per_tok=4 moe_intermediate_size=1536 n_shared_experts=1 norm_topk_prob=true "
     "first_k_dense_replace=1"},
    {"youtu", "youtu", HfReader::kLatent, "",
     "num_key_value_heads=16 max_position_embeddings=131072 tie_word_embeddings=true"},
    {"deepseek_v2", "deepseek_v2", HfReader::kLatent, "late_experts",
     "n_routed_experts=64 moe_intermediate_size=1407 n_shared_experts=2 norm_topk_prob=false "
     "first_k_dense_replace=0"},
    {"deepseek_v3", "deepseek_v3", HfReader::kLatent, "late_experts",
     "max_position_embeddings=4096 n_routed_experts=256 num_experts_per_tok=8 "
     "moe_intermediate_size=2048 n_shared_experts=1 norm_topk_prob=true first_k_dense_replace=3"},
    // --- with keys of their own ---
    {"gpt2", "gpt2", HfReader::kGpt2},
    {"gpt_bigcode", "gpt_bigcode", HfReader::kGpt2, "",
     "multi_query=true activation_function=gelu_pytorch_tanh"},
    {"gpt_neo", "gpt_neo", HfReader::kGpt2, "",
     "n_positions=2048 resid_pdrop=0 attn_pdrop=0 embd_pdrop=0"},
    {"gptj", "gptj", HfReader::kGpt2, "", kGptJ},
    {"codegen", "codegen", HfReader::kGpt2, "", kGptJ},
    {"opt", "opt", HfReader::kOpt},
    {"bloom", "bloom", HfReader::kBloom},
    {"mpt", "mpt", HfReader::kMpt},
    {"gpt_neox", "gpt_neox", HfReader::kParallel},
    {"falcon", "falcon", HfReader::kParallel},
    {"bert", "bert", HfReader::kEncoder},
    {"roberta", "roberta", HfReader::kEncoder},
    {"xlm_roberta", "roberta", HfReader::kEncoder},
    {"camembert", "roberta", HfReader::kEncoder},
    {"distilbert", "distilbert", HfReader::kEncoder, "", "type_vocab_size=0"},
    {"electra", "electra", HfReader::kEncoder, "", "embedding_size=128"},
    {"t5", "t5", HfReader::kEncoderDecoder},
    {"mt5", "t5", HfReader::kEncoderDecoder, "",
     "vocab_size=250112 d_ff=1024 num_layers=8 num_heads=6 feed_forward_proj=gated-gelu "
     "tie_word_embeddings=false"},
};

constexpr std::array<std::string_view, 4> kHeads = {"ForCausalLM", "LMHeadModel",
                                                    "ForConditionalGeneration", "ForMaskedLM"};

// Letters and digits in lower case: "GPTNeoX" and "gpt_neox" are one word.
std::string plain(std::string_view word) {
  std::string result;
  for (const char c : word) {
    if (c >= 'A' && c <= 'Z') result += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) result += c;
  }
  return result;
}

// A decoder inside another model says so in its type: "gemma3_text".
std::string_view without_text(std::string_view model_type) {
  constexpr std::string_view kText = "_text";
  return model_type.ends_with(kText) ? model_type.substr(0, model_type.size() - kText.size())
                                     : model_type;
}

// Whether a class is the type's: its letters in whatever order ("hunyuan_v1_dense":
// HunYuanDenseV1ForCausalLM).
bool is_class_of(std::string_view stem, std::string_view model_type) {
  const std::string a = plain(without_text(stem)), b = plain(without_text(model_type));
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

const HfFamily* find_family(std::string_view model_type) {
  const std::string wanted = plain(without_text(model_type));
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                  [&](const HfFamily& f) { return plain(f.model_type) == wanted; });
  return found == std::end(kFamilies) ? nullptr : found;
}

// The class's name without its head; empty where it has none that is modelled.
std::string_view stem_of(std::string_view architecture) {
  for (const std::string_view head : kHeads) {
    if (architecture.ends_with(head)) {
      return architecture.substr(0, architecture.size() - head.size());
    }
  }
  return {};
}

// What the keys look like, where the name says nothing.
std::string_view family_by_keys(const ConfigNode& node) {
  constexpr std::pair<std::string_view, std::string_view> kSigns[] = {
      {"kv_lora_rank", "deepseek_v3"},  {"num_local_experts", "mixtral"},
      {"n_routed_experts", "glm4_moe"}, {"num_experts", "qwen3_moe"},
      {"type_vocab_size", "bert"},      {"n_embd", "gpt2"},
      {"num_key_value_heads", "llama"}};
  for (const auto& [key, family] : kSigns) {
    if (node.has(key)) return family;
  }
  return "llama";
}

[[noreturn]] void refuse(const ConfigNode& where, const std::string& what, std::string_view word,
                         const ConfigNode& node) {
  std::vector<std::string> names;
  for (const HfFamily& family : kFamilies) names.emplace_back(family.model_type);
  const std::string meant = nearest_spelling(without_text(word), names);
  throw where.error(
      what,
      fmt::format(
          "a family that is read; the nearest is {}: name it as model_type if the blocks are "
          "the same, else describe them: foreshard models NAME --yaml writes a model.yaml "
          "to start from",
          meant.empty() ? family_by_keys(node) : std::string_view(meant)),
      meant);
}

}  // namespace

std::span<const HfFamily> hf_families() { return kFamilies; }

const HfFamily& hf_family_of(KeyReader& keys, const ConfigNode* fallback) {
  const ConfigNode* named = nullptr;
  if (const ConfigNode* list = keys.find({"architectures"}); list && !list->elements().empty()) {
    named = &list->elements().front();
  }
  const std::string architecture = named == nullptr ? "" : named->as_string();
  const std::string_view stem = stem_of(architecture);
  const ConfigNode* type = keys.find({"model_type"});
  if (type == nullptr) type = fallback;
  if (type == nullptr && named == nullptr) {
    throw keys.node().error("neither model_type nor architectures says which model this is",
                            "model_type, for example \"llama\"");
  }
  const std::string word = type != nullptr ? type->as_string() : std::string(stem);
  const HfFamily* family = find_family(word);
  if (family == nullptr && type != nullptr) {
    refuse(*type, "model_type \"" + word + "\" is not supported", word, keys.node());
  }
  const bool masked = architecture.ends_with("ForMaskedLM");
  const bool is_encoder = family != nullptr && family->reader == HfReader::kEncoder;
  const auto is_class = [&] {
    const HfFamily* of_class = find_family(stem);
    return (of_class != nullptr && of_class->family == family->family) ||
           is_class_of(stem, family->model_type);
  };
  if (named != nullptr &&
      (family == nullptr || stem.empty() || !is_class() || masked != is_encoder)) {
    const std::string what =
        type == nullptr
            ? "architecture \"" + architecture + "\" is not supported"
            : "architecture \"" + architecture + "\" of model_type " + word + " is not supported";
    if (family == nullptr) refuse(*named, what, stem, keys.node());
    throw named->error(what, "the language model with its head, for example LlamaForCausalLM");
  }
  return *family;
}

}  // namespace foreshard
