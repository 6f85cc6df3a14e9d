// One function per group of families (rotary decoders, gpt2, mpt) says in Hugging Face's words what
// the dimensions are; KeyReader looks keys up and writes the ledger. Defaults are those of
// configuration_*.py of transformers 4.5x. The other families stand in hf_experts.cpp and
// hf_variants.cpp.
#include "interop/hf_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "interop/hf_keys.h"
#include "interop/hf_readers.h"
#include "interop/hf_vision.h"
#include "models/families.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 19> kModelTypes = {
    "llama",     "mistral",     "qwen2",       "qwen3",    "gpt2",   "mpt",     "gemma",
    "gemma2",    "phi3",        "starcoder2",  "gpt_neox", "falcon", "mixtral", "qwen2_moe",
    "qwen3_moe", "deepseek_v2", "deepseek_v3", "bert",     "roberta"};
constexpr std::string_view kSupported =
    "one of llama, mistral, qwen2, qwen3, gpt2, mpt, gemma, gemma2, phi3, starcoder2, gpt_neox, "
    "falcon, mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, bert, roberta, vit, clip, "
    "llava";

struct Architecture {
  std::string_view name, model_type;
};
constexpr std::array<Architecture, 20> kArchitectures = {{{"LlamaForCausalLM", "llama"},
                                                          {"MistralForCausalLM", "mistral"},
                                                          {"Qwen2ForCausalLM", "qwen2"},
                                                          {"Qwen3ForCausalLM", "qwen3"},
                                                          {"GPT2LMHeadModel", "gpt2"},
                                                          {"MPTForCausalLM", "mpt"},
                                                          {"MptForCausalLM", "mpt"},
                                                          {"GemmaForCausalLM", "gemma"},
                                                          {"Gemma2ForCausalLM", "gemma2"},
                                                          {"Phi3ForCausalLM", "phi3"},
                                                          {"Starcoder2ForCausalLM", "starcoder2"},
                                                          {"GPTNeoXForCausalLM", "gpt_neox"},
                                                          {"FalconForCausalLM", "falcon"},
                                                          {"MixtralForCausalLM", "mixtral"},
                                                          {"Qwen2MoeForCausalLM", "qwen2_moe"},
                                                          {"Qwen3MoeForCausalLM", "qwen3_moe"},
                                                          {"DeepseekV2ForCausalLM", "deepseek_v2"},
                                                          {"DeepseekV3ForCausalLM", "deepseek_v3"},
                                                          {"BertForMaskedLM", "bert"},
                                                          {"RobertaForMaskedLM", "roberta"}}};

std::string nearest(std::string_view word, std::span<const std::string_view> words) {
  const std::vector<std::string> candidates(words.begin(), words.end());
  return nearest_spelling(word, candidates);
}

// The model_type this object is read as; `fallback` is the enclosing object's.
std::string model_type_of(KeyReader& keys, const ConfigNode* fallback) {
  std::string architecture;
  const ConfigNode* named = nullptr;
  if (const ConfigNode* list = keys.find({"architectures"}); list && !list->elements().empty()) {
    named = &list->elements().front();
    architecture = named->as_string();
  }
  const auto known = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                  [&](const Architecture& a) { return a.name == architecture; });
  const ConfigNode* type = keys.find({"model_type"});
  if (type == nullptr) type = fallback;
  if (type != nullptr) {
    std::string model_type = type->as_string();
    if (std::find(kModelTypes.begin(), kModelTypes.end(), model_type) == kModelTypes.end()) {
      throw type->error("model_type \"" + model_type + "\" is not supported",
                        std::string(kSupported), nearest(model_type, kModelTypes));
    }
    if (named != nullptr && (known == kArchitectures.end() || known->model_type != model_type)) {
      throw named->error(
          "architecture \"" + architecture + "\" of model_type " + model_type + " is not supported",
          "the language model with its head, for example LlamaForCausalLM");
    }
    return model_type;
  }
  if (named == nullptr) {
    throw keys.node().error("neither model_type nor architectures says which model this is",
                            std::string(kSupported));
  }
  if (known == kArchitectures.end()) {
    throw named->error("architecture \"" + architecture + "\" is not supported",
                       "a model_type that is " + std::string(kSupported));
  }
  return std::string(known->model_type);
}

}  // namespace

void read_common(KeyReader& keys, ModelDims& dims) {
  dims.layers = keys.size({"num_hidden_layers", "n_layer", "n_layers"});
  dims.hidden = keys.size({"hidden_size", "n_embd", "d_model"});
  dims.heads = keys.size({"num_attention_heads", "n_head", "n_heads"});
  dims.vocabulary = keys.size({"vocab_size"});
}

std::int64_t even_head_dim(KeyReader& keys, const ModelDims& dims) {
  if (dims.hidden % dims.heads != 0) {
    throw keys.node().error("the hidden size " + std::to_string(dims.hidden) +
                                " is not divisible by " + std::to_string(dims.heads) + " heads",
                            "a head_dim, or a hidden size that is a multiple of the heads");
  }
  return dims.hidden / dims.heads;
}

void check_kv_heads(KeyReader& keys, const ModelDims& dims) {
  if (dims.heads % dims.kv_heads != 0) {
    throw keys.node().error(std::to_string(dims.kv_heads) + " key/value heads do not divide " +
                                std::to_string(dims.heads) + " heads",
                            "num_key_value_heads that divides num_attention_heads");
  }
}

namespace {

// A dense model_type with experts is another model.
void refuse_experts(KeyReader& keys) {
  for (const std::string_view key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const ConfigNode* value = keys.find({key});
    if (value != nullptr && value->as_int(0, kLargestHfSize) > 1) {
      throw value->error("mixtures of experts are not supported in a dense model_type",
                         "mixtral, qwen2_moe, qwen3_moe, deepseek_v2 or deepseek_v3");
    }
  }
}

}  // namespace

void bound_by_window(KeyReader& keys, ModelDims& dims) {
  std::int64_t window = 0;
  if (const ConfigNode* value = keys.find({"sliding_window"})) {
    window = value->as_int(1, kLargestHfSize);
    keys.comment("attention is full causal up to the window; longer sequences are not modelled");
  } else if (!keys.node().has("sliding_window")) {
    window = 4096;
    keys.assume("sliding_window", std::to_string(window),
                "attention is full causal up to the window; longer sequences are not modelled");
  }
  if (window > 0) dims.max_positions = std::min(dims.max_positions, window);
}

namespace {

// {"rope_type": "llama3", "factor": 8.0, ...}; before transformers 4.43 the key was "type". What is
// not computed, or not whole, is kOther.
RopeScaling read_rope_scaling(const ConfigNode& node) {
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::kOther;
  if (!node.is_mapping()) return scaling;
  const ConfigNode* type = node.find("rope_type");
  if (type == nullptr) type = node.find("type");
  const std::string name = type == nullptr ? "" : type->as_string();
  if (name == "default") return {};
  const ConfigNode* factor = node.find("factor");
  if (factor == nullptr) return scaling;
  if (name == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = factor->as_double(1, 1e6);
  }
  const ConfigNode* low = node.find("low_freq_factor");
  const ConfigNode* high = node.find("high_freq_factor");
  const ConfigNode* original = node.find("original_max_position_embeddings");
  if (name == "llama3" && low != nullptr && high != nullptr && original != nullptr) {
    scaling.factor = factor->as_double(1, 1e6);
    scaling.low_frequency_factor = low->as_double(1e-3, 1e6);
    scaling.high_frequency_factor = high->as_double(1e-3, 1e6);
    scaling.original_positions = original->as_int(1, kLargestHfSize);
    const bool has_band = scaling.high_frequency_factor > scaling.low_frequency_factor;
    if (has_band) scaling.kind = RopeScaling::Kind::kLlama3;
  }
  return scaling;
}

}  // namespace

void read_numerics(KeyReader& keys, ModelDims& dims) {
  if (const ConfigNode* value = keys.find({"rms_norm_eps"})) {
    dims.numerics.norm_epsilon = value->as_double(0, 1);
  }
  if (const ConfigNode* value = keys.find({"rope_theta"})) {
    dims.numerics.rope_theta = value->as_double(1, 1e12);
  }
  if (const ConfigNode* value = keys.find({"rope_scaling"})) {
    dims.numerics.rope_scaling = read_rope_scaling(*value);
  }
}

namespace {

// Which defaults the configuration classes of the rotary decoders have.
struct RotaryDefaults {
  std::int64_t kv_heads;  // 0: as many as heads
  std::int64_t head_dim;  // 0: hidden / heads
  std::int64_t positions;
};

RotaryDefaults rotary_defaults(std::string_view model_type) {
  if (model_type == "mistral") return {8, 0, 131072};
  if (model_type == "qwen2") return {32, 0, 32768};
  if (model_type == "qwen3") return {32, 128, 32768};
  if (model_type == "mixtral") return {8, 0, 131072};
  if (model_type == "qwen2_moe") return {16, 0, 32768};
  if (model_type == "qwen3_moe") return {4, 0, 32768};
  return {0, 0, 2048};
}

// Whether any layer attends within a window only.
bool has_window_layers(KeyReader& keys) {
  const ConfigNode* types = keys.find({"layer_types"});
  if (types == nullptr) return false;
  bool window = false;
  for (const ConfigNode& type : types->elements()) {
    const std::string word = type.as_string();
    if (word != "full_attention" && word != "sliding_attention") {
      throw type.error("layers of type \"" + word + "\" are not supported",
                       "full_attention or sliding_attention");
    }
    window = window || word == "sliding_attention";
  }
  return window;
}

void read_rotary(KeyReader& keys, std::string_view model_type, ModelDims& dims) {
  read_common(keys, dims);
  const bool moe = model_type == "mixtral" || model_type.ends_with("_moe");
  if (!moe) refuse_experts(keys);
  const RotaryDefaults defaults = rotary_defaults(model_type);
  if (const ConfigNode* value = keys.find({"head_dim", "attention_head_dim"})) {
    dims.head_dim = value->as_int(1, kLargestHfSize);
  } else {
    dims.head_dim = defaults.head_dim > 0 && !keys.node().has("head_dim")
                        ? defaults.head_dim
                        : even_head_dim(keys, dims);
    keys.assume("head_dim", std::to_string(dims.head_dim), "");
  }
  // Null is stored by configurations that leave the number of heads to the reader.
  const bool null_kv = keys.node().has("num_key_value_heads");
  dims.kv_heads = keys.size_or({"num_key_value_heads", "num_kv_heads"},
                               defaults.kv_heads > 0 && !null_kv ? defaults.kv_heads : dims.heads);
  check_kv_heads(keys, dims);
  dims.ffn = keys.size({"intermediate_size", "ffn_dim", "ffn_hidden_size"});
  dims.max_positions = keys.size_or({"max_position_embeddings", "n_positions"}, defaults.positions);
  dims.tied = keys.flag_or("tie_word_embeddings", false);
  read_numerics(keys, dims);

  const std::string activation = keys.word_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    keys.refuse("hidden_act", "activation \"" + activation + "\" is not supported", "silu");
  }
  if (model_type == "llama" || model_type == "qwen3" || model_type == "qwen3_moe") {
    dims.qkv_bias = dims.output_bias = keys.flag_or("attention_bias", false);
  }
  if (model_type == "llama") dims.mlp_bias = keys.flag_or("mlp_bias", false);

  const bool window_layers = has_window_layers(keys);
  bool windowed =
      model_type == "mistral" || (model_type == "mixtral" && keys.node().has("sliding_window"));
  if (model_type.starts_with("qwen")) {
    windowed = keys.flag_or("use_sliding_window", false) || window_layers;
  }
  if (windowed) bound_by_window(keys, dims);
  if (moe) read_experts(keys, model_type, dims);
}

void read_gpt2(KeyReader& keys, ModelDims& dims) {
  read_common(keys, dims);
  keys.refuse_if_set("add_cross_attention", "cross attention is not supported");
  dims.kv_heads = dims.heads;
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = keys.size_or({"n_inner", "intermediate_size"}, 4 * dims.hidden);
  dims.max_positions = dims.position_rows =
      keys.size_or({"n_positions", "max_position_embeddings"}, 1024);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  const std::string activation = keys.word_or("activation_function", "gelu_new");
  if (activation == "relu") {
    dims.activation = Activation::kRelu;
  } else if (activation == "gelu") {
    dims.numerics.gelu_tanh = false;
  } else if (activation.rfind("gelu", 0) != 0) {
    keys.refuse("activation_function", "activation \"" + activation + "\" is not supported",
                "gelu_new, gelu or relu");
  }
}

// attn_config of MPT: positions and the number of key/value heads.
void read_mpt_attention(KeyReader& keys, KeyReader& attention, ModelDims& dims) {
  attention.refuse_if_set("rope", "rotary positions of an mpt model are not supported");
  attention.refuse_if_set("qk_ln", "norms of queries and keys of an mpt model are not supported");
  attention.refuse_if_set("prefix_lm", "prefix attention is not supported");
  if (!attention.flag_or("alibi", true)) {
    if (!keys.flag_or("learned_pos_emb", true)) {
      throw keys.node().error("the model has neither ALiBi nor learned positions",
                              "attn_config.alibi or learned_pos_emb");
    }
    dims.positions = Positions::kLearned;
    dims.position_rows = dims.max_positions;
  }
  const std::string type = attention.word_or("attn_type", "multihead_attention");
  if (type == "multihead_attention") {
    dims.kv_heads = dims.heads;
  } else if (type == "multiquery_attention") {
    dims.kv_heads = 1;
  } else if (type == "grouped_query_attention") {
    dims.kv_heads = attention.size({"kv_n_heads"});
  } else {
    attention.refuse("attn_type", "attention \"" + type + "\" is not supported",
                     "multihead_attention, multiquery_attention or grouped_query_attention");
  }
  check_kv_heads(keys, dims);
}

void read_mpt(KeyReader& keys, ModelDims& dims, std::vector<HfKey>& ledger) {
  read_common(keys, dims);
  dims.head_dim = even_head_dim(keys, dims);
  dims.ffn = checked_multiply(keys.size_or({"expansion_ratio"}, 4), dims.hidden);
  dims.max_positions = keys.size_or({"max_seq_len", "max_position_embeddings"}, 2048);
  dims.tied = keys.flag_or("tie_word_embeddings", true);
  if (!keys.flag_or("no_bias", true)) add_biases(dims);
  const std::string norm = keys.word_or("norm_type", "low_precision_layernorm");
  if (norm != "low_precision_layernorm" && norm != "layernorm") {
    keys.refuse("norm_type", "norm \"" + norm + "\" is not supported",
                "low_precision_layernorm or layernorm");
  }
  if (const ConfigNode* node = keys.find({"ffn_config"})) {
    KeyReader ffn(*node, "ffn_config.", ledger);
    const std::string type = ffn.word_or("ffn_type", "mptmlp");
    if (type != "mptmlp") {
      ffn.refuse("ffn_type", "feed-forward \"" + type + "\" is not supported", "mptmlp");
    }
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

ModelDims read_text_model(KeyReader& keys, const ConfigNode* outer_type,
                          std::vector<HfKey>& ledger) {
  const std::string model_type = model_type_of(keys, outer_type);
  ModelDims dims = family_dims(model_type).value();
  if (model_type == "gpt2") {
    read_gpt2(keys, dims);
  } else if (model_type == "mpt") {
    read_mpt(keys, dims, ledger);
  } else if (dims.bidirectional) {
    read_encoder(keys, dims);
  } else if (dims.naming == Naming::kDeepSeek) {
    read_deepseek(keys, model_type, dims);
  } else if (dims.naming == Naming::kNeoX || dims.naming == Naming::kFalcon) {
    read_parallel(keys, model_type, dims);
  } else if (model_type == "phi3" || model_type == "starcoder2" ||
             model_type.starts_with("gemma")) {
    read_rotary_variant(keys, model_type, dims);
  } else {
    read_rotary(keys, model_type, dims);
  }
  return dims;
}

std::string name_of(const std::filesystem::path& path) {
  if (path.stem() != "config") return path.stem().string();
  const std::string folder = path.parent_path().filename().string();
  return folder.empty() || folder == "." || folder == ".." ? "config.json" : folder;
}

}  // namespace

std::span<const std::string_view> hf_model_types() { return kModelTypes; }

HfConfig parse_hf_config(const ConfigNode& root, std::string_view name) {
  if (!root.is_mapping()) {
    throw root.error("this is not a JSON object", "the object of a Hugging Face config.json");
  }
  HfConfig config;
  KeyReader outer(root, "", config.ledger);
  const ConfigNode* type = root.find("model_type");
  const auto types = hf_vision_types();
  if (type != nullptr && type->is_scalar() &&
      std::find(types.begin(), types.end(), type->text()) != types.end()) {
    config.vision = read_hf_vision(outer, config.ledger, read_text_model);
    outer.ignore_rest();
    config.vision->name = name;
    config.vision->source = root.location().file;
    return config;
  }
  if (const ConfigNode* text = outer.find({"text_config"})) {
    KeyReader inner(*text, "text_config.", config.ledger);
    config.dims = read_text_model(inner, root.find("model_type"), config.ledger);
    inner.ignore_rest();
  } else {
    config.dims = read_text_model(outer, nullptr, config.ledger);
  }
  outer.ignore_rest();
  config.dims.name = name;
  config.dims.source = root.location().file;
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  return parse_hf_config(read_json_file(path), name_of(path));
}

ModelSpec load_hf_config(const std::filesystem::path& path, Stack stack) {
  const ConfigNode root = read_json_file(path);
  const HfConfig config = parse_hf_config(root, name_of(path));
  try {
    return config.vision ? build_vision_model(*config.vision, stack)
                         : build_model(config.dims, stack);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    throw root.error(error.what());
  }
}

}  // namespace foreshard
