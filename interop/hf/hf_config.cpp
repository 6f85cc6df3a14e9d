// The row of the family (hf_families.h) names the function that says in Hugging Face's words what
// the dimensions are; KeyReader looks keys up and writes the ledger. Here stand what those
// functions share, the choice among them, and what a whole file has beside its decoder.
#include "interop/hf/hf_config.h"

#include <algorithm>

#include "interop/hf/hf_families.h"
#include "interop/hf/hf_readers.h"
#include "models/families.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {

void read_common(KeyReader& keys, ModelDims& dims) {
  dims.layers = keys.size({"num_hidden_layers", "n_layer", "n_layers", "num_layers"});
  dims.hidden = keys.size({"hidden_size", "n_embd", "n_embed", "d_model", "dim"});
  dims.heads = keys.size({"num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"});
  dims.vocabulary = keys.size({"vocab_size"});
}

void read_dropouts(KeyReader& keys, const Dropouts& usual, ModelDims& dims) {
  const auto drops = [&](KeyReader::Spellings spellings, bool otherwise) {
    bool found = false, any = false;
    for (const std::string_view spelling : spellings) {
      const ConfigNode* value = keys.find({spelling});
      if (value == nullptr) continue;
      found = true;
      any = value->as_double(0, 1) > 0 || any;
    }
    if (found) return any;
    otherwise = otherwise && !keys.provides(*spellings.begin());  // (with 0)
    if (otherwise) keys.assume(*spellings.begin(), "0.1");
    return otherwise;
  };
  dims.dropout =
      drops({"resid_pdrop", "resid_dropout", "hidden_dropout_prob", "hidden_dropout", "residual_dropout", "dropout"},
          usual.branches);
  dims.attention_dropout = drops({"attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"}, usual.attention);
  dims.embedding_dropout = drops({"embd_pdrop", "embed_dropout", "embedding_dropout"}, usual.embedding);
}

bool read_gelu(std::string_view word, ModelDims& dims) {
  if (!word.starts_with("gelu")) return false;
  dims.numerics.gelu_tanh = word != "gelu";
  dims.numerics.gelu_new = word == "gelu_new";
  return true;
}

void read_gelu_or_relu(KeyReader& keys, std::string_view usual, const std::string& expected, ModelDims& dims) {
  constexpr std::string_view kKey = "activation_function";
  const std::string word = keys.word_or(kKey, usual);
  if (word == "relu") dims.activation = Activation::kRelu;
  else if (word == "swish" || word == "silu") dims.activation = Activation::kGelu;  // a pass that keeps its input, too
  else if (!read_gelu(word, dims)) keys.refuse(kKey, "activation \"" + word + "\" is not supported", expected);
}

std::int64_t even_head_dim(KeyReader& keys, const ModelDims& dims) {
  if (dims.hidden % dims.heads != 0) {
    throw keys.node().error("the hidden size " + std::to_string(dims.hidden) + " is not divisible by " +
                                std::to_string(dims.heads) + " heads",
        "a head_dim, or a hidden size that is a multiple of the heads");
  }
  return dims.hidden / dims.heads;
}

void check_kv_heads(KeyReader& keys, const ModelDims& dims) {
  if (dims.heads % dims.kv_heads != 0) {
    throw keys.node().error(
        std::to_string(dims.kv_heads) + " key/value heads do not divide " + std::to_string(dims.heads) + " heads",
        "num_key_value_heads that divides num_attention_heads");
  }
}

void check_layer_count(KeyReader& keys, const ModelDims& dims) {
  constexpr std::int64_t kMostLayers = 100'000;
  if (dims.layers > kMostLayers) {
    throw keys.node().error(
        std::to_string(dims.layers) + " layers are too many", "at most " + std::to_string(kMostLayers));
  }
}

void bound_by_window(KeyReader& keys, ModelDims& dims) {
  std::int64_t window = 0;
  if (const ConfigNode* value = keys.find({"sliding_window"})) {
    window = value->as_int(1, kLargestHfSize);
    keys.comment("full causal up to the window, beyond it a mask as scaled_dot_product_attention takes it");
  } else if (!keys.node().has("sliding_window")) {
    window = 4096;
    keys.assume("sliding_window", std::to_string(window),
        "full causal up to the window, beyond it a mask as scaled_dot_product_attention takes it");
  }
  if (window == 0) return;
  dims.window = window;
  dims.max_positions = std::min(dims.max_positions, window);
}

namespace {

ModelDims read_text_model(KeyReader& keys, const ConfigNode* outer_type, std::vector<HfKey>& ledger) {
  const HfFamily& family = hf_family_of(keys, outer_type);
  ModelDims dims = family_dims(family.family).value();
  keys.provide(family.defaults);
  if (outer_type != nullptr) keys.provide(family.nested);
  switch (family.reader) {
    case HfReader::kDecoder: read_decoder(keys, family, dims); break;
    case HfReader::kGpt2: read_gpt2(keys, dims); break;
    case HfReader::kOpt: read_opt(keys, dims); break;
    case HfReader::kBloom: read_bloom(keys, dims); break;
    case HfReader::kMpt: read_mpt(keys, dims, ledger); break;
    case HfReader::kParallel: read_parallel(keys, dims); break;
    case HfReader::kEncoder: read_encoder(keys, dims); break;
    case HfReader::kEncoderDecoder: read_encoder_decoder(keys, dims); break;
    case HfReader::kBart: read_bart(keys, dims); break;
    case HfReader::kLatent:
      read_latent(keys, family, dims);
      if (is_hybrid(family)) read_hybrid(keys, family, dims);
      break;
  }
  check_rotary(keys, dims);
  return dims;
}

// Labels are 2 unless the file says otherwise; so are where an answer begins and ends.
std::int64_t count_labels(const ConfigNode& root) {
  if (const ConfigNode* labels = root.find("id2label"); labels && labels->is_mapping())
    return std::max<std::int64_t>(1, std::ssize(labels->keys()));
  const ConfigNode* count = root.find("num_labels");
  return count == nullptr ? 2 : count->as_int(1, kLargestHfSize);
}

void read_scores(const ConfigNode& root, ModelDims& dims) {
  const ConfigNode* named = root.find("architectures");
  if (named == nullptr || !named->is_sequence() || named->elements().empty()) return;
  const std::optional<ScoreOf> of = score_of(named->elements().front().as_string());
  if (!of) return;
  dims.score_of = *of;
  dims.scores = *of == ScoreOf::kSpan ? 2 : *of == ScoreOf::kValue ? 1 : count_labels(root);
  // A dropout of the head's own, else that of the branches (GenericForTokenClassification: 0.1);
  // of spans DistilBERT's alone.
  const auto rate = [&](std::string_view key, bool otherwise) {
    const ConfigNode* value = root.find(key);
    return value == nullptr || value->is_null() ? otherwise : value->as_double(0, 1) > 0;
  };
  if (*of == ScoreOf::kSpan) {
    dims.score_dropout = dims.family == "distilbert" && rate("qa_dropout", true);
  } else if (dims.bidirectional || *of == ScoreOf::kToken) {
    const bool usual = dims.bidirectional ? dims.dropout : rate("hidden_dropout", true);
    dims.score_dropout = rate("classifier_dropout", usual);
  }
}

std::string name_of(const std::filesystem::path& path) {
  if (path.stem() != "config") return path.stem().string();
  const std::string folder = path.parent_path().filename().string();
  return folder.empty() || folder == "." || folder == ".." ? "config.json" : folder;
}

}

std::vector<std::string_view> hf_model_types() {
  return list_of<std::string_view>(hf_families(), &HfFamily::model_type);
}

HfConfig parse_hf_config(const ConfigNode& root, std::string_view name) {
  if (!root.is_mapping()) throw root.error("this is not a JSON object", "the object of a Hugging Face config.json");
  HfConfig config;
  KeyReader outer(root, "", config.ledger);
  const ConfigNode* type = root.find("model_type");
  const auto types = hf_vision_types();
  if (type != nullptr && type->is_scalar() && contains(types, type->text())) {
    config.vision = read_hf_vision(outer, config.ledger, read_text_model);
    outer.ignore_rest();
    config.vision->name = name;
    config.vision->source = root.location().file;
    return config;
  }
  const std::string stored = read_quantization(outer);
  if (!stored.empty()) config.notes.push_back(stored);
  if (const ConfigNode* text = outer.find({"text_config"})) {
    KeyReader inner(*text, "text_config.", config.ledger);
    config.dims = read_text_model(inner, type, config.ledger);
    inner.ignore_rest();
    // The whole model's head is tied as the whole model says (transformers 5: tie_weights).
    if (const ConfigNode* tied = outer.find({"tie_word_embeddings"}); tied && !tied->is_null())
      config.dims.tied = tied->as_bool();
  } else {
    config.dims = read_text_model(outer, nullptr, config.ledger);
  }
  if (root.has("vision_config")) config.notes.push_back("the language model alone: the vision tower is left out");
  outer.ignore_rest();
  read_scores(root, config.dims);
  config.dims.name = name;
  config.dims.source = root.location().file;
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  return parse_hf_config(read_json_file(path), name_of(path));
}

ModelSpec build_hf_model(const HfConfig& config, Stack stack) {
  try {
    return config.vision ? build_vision_model(*config.vision, stack) : build_model(config.dims, stack);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    const std::string& file = config.vision ? config.vision->source : config.dims.source;
    throw ConfigError({.file = file, .line = 1, .column = 1, .key_path = ""}, error.what());
  }
}

}
