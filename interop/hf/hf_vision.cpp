// One function per model; a nested object that is absent is read as an empty one, all defaults.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "interop/hf/hf_readers.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 8> kTypes = {
    "vit", "deit", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "clip", "llava"};

// Classifiers of a tower's tokens (transformers 5.17, models/TYPE/modeling_TYPE.py).
struct Classifier {
  std::string_view type, architecture;
  std::int64_t tokens = 1;
  VisionDims::Reads reads = VisionDims::Reads::kToken;
};
constexpr Classifier kClassifiers[] = {{"vit", "ViTForImageClassification"}, {"deit", "DeiTForImageClassification", 2},
    {"vit_msn", "ViTMSNForImageClassification"}, {"ijepa", "IJepaForImageClassification", 0, VisionDims::Reads::kMean},
    {"dinov2", "Dinov2ForImageClassification", 1, VisionDims::Reads::kBoth},
    {"dinov2_with_registers", "Dinov2WithRegistersForImageClassification", 1, VisionDims::Reads::kBoth}};

void require_architecture(KeyReader& keys, std::string_view wanted) {
  const ConfigNode* list = keys.find({"architectures"});
  if (list == nullptr || list->elements().empty()) return;
  const ConfigNode& named = list->elements().front();
  const std::string name = named.as_string();
  if (name == wanted) return;
  throw named.error("architecture \"" + name + "\" is not supported", std::string(wanted));
}

// The object under `key`, or an empty one.
ConfigNode nested(KeyReader& keys, std::string_view key) {
  if (const ConfigNode* node = keys.find({key})) return *node;
  keys.assume(key, "", "Hugging Face's default");
  return parse_json("{}", keys.node().location().file);
}

struct TowerDefaults {
  std::int64_t image = 224, patch = 16, layers = 12, hidden = 768, heads = 12, ffn = 3072;
};

TowerDims read_tower(KeyReader& keys, const TowerDefaults& usual) {
  return TowerDims{.image = keys.size_or({"image_size"}, usual.image),
      .patch = keys.size_or({"patch_size"}, usual.patch),
      .channels = keys.size_or({"num_channels"}, 3),
      .layers = keys.size_or({"num_hidden_layers"}, usual.layers),
      .hidden = keys.size_or({"hidden_size"}, usual.hidden),
      .heads = keys.size_or({"num_attention_heads"}, usual.heads),
      .ffn = keys.size_or({"intermediate_size"}, usual.ffn)};
}

bool reads_quick_gelu(KeyReader& keys, std::string_view usual) {
  return keys.one_of("hidden_act", usual, "activation", {"quick_gelu", "gelu"}) == "quick_gelu";
}

// Of towers beside words no dropout is modelled: it keeps masks for backward.
void refuse_dropout(KeyReader& keys, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const ConfigNode* value = keys.find({name});
    if (value != nullptr && value->as_double(0, 1) > 0) throw value->error("dropout is not modelled", "0");
  }
}

// DINOv2's: widths by a ratio, vectors behind the branches, perhaps registers.
void read_dino(KeyReader& keys, TowerDims& tower, bool registers) {
  tower.branch_weights = true;
  tower.gated = keys.flag_or("use_swiglu_ffn", false);
  tower.ffn = tower.hidden * keys.size_or({"mlp_ratio"}, 4);
  if (tower.gated) tower.ffn = (tower.ffn * 2 / 3 + 7) / 8 * 8;
  if (registers) tower.registers = keys.count_or("num_register_tokens", 4);
  tower.spare_token = registers || keys.flag_or("use_mask_token", true);
  refuse_dropout(keys, {"drop_path_rate"});
}

VisionDims read_vit(KeyReader& keys, const Classifier& kind) {
  VisionDims dims;
  require_architecture(keys, kind.architecture);
  const bool dino = kind.reads == VisionDims::Reads::kBoth;
  dims.tower = read_tower(keys, {.patch = kind.type == "dinov2" ? 14 : 16});
  dims.tower.tokens = kind.tokens;
  dims.reads = kind.reads;
  if (dino) read_dino(keys, dims.tower, kind.type != "dinov2");
  dims.tower.quick_gelu = reads_quick_gelu(keys, "gelu");
  const auto drops = [&](std::string_view name) {
    const ConfigNode* value = keys.find({name});
    return value != nullptr && value->as_double(0, 1) > 0;
  };
  dims.tower.dropout = drops("hidden_dropout_prob");
  dims.tower.attention_dropout = drops("attention_probs_dropout_prob");
  if (!keys.flag_or("qkv_bias", true)) keys.refuse("qkv_bias", "projections without biases are not supported", "true");
  if (const ConfigNode* labels = keys.find({"id2label"})) {
    dims.labels = static_cast<std::int64_t>(labels->items().size());
    if (dims.labels == 0) throw labels->error("there are no labels", "a label at least");
  } else {
    dims.labels = keys.size_or({"num_labels"}, 2);
  }
  return dims;
}

VisionDims read_clip(KeyReader& keys, std::vector<HfKey>& ledger) {
  VisionDims dims;
  require_architecture(keys, "CLIPModel");
  dims.projection = keys.size_or({"projection_dim"}, 512);
  KeyReader vision(nested(keys, "vision_config"), "vision_config.", ledger);
  dims.tower = read_tower(vision, {.patch = 32});
  dims.tower.quick_gelu = reads_quick_gelu(vision, "quick_gelu");
  refuse_dropout(vision, {"attention_dropout"});
  vision.ignore_rest();
  KeyReader text(nested(keys, "text_config"), "text_config.", ledger);
  dims.text.layers = text.size_or({"num_hidden_layers"}, 12);
  dims.text.hidden = text.size_or({"hidden_size"}, 512);
  dims.text.heads = text.size_or({"num_attention_heads"}, 8);
  dims.text.ffn = text.size_or({"intermediate_size"}, 2048);
  dims.text.vocabulary = text.size_or({"vocab_size"}, 49408);
  dims.text.max_positions = text.size_or({"max_position_embeddings"}, 77);
  if (reads_quick_gelu(text, "quick_gelu") != dims.tower.quick_gelu)
    text.refuse("hidden_act", "the two towers have different activations", "those of vision_config");
  refuse_dropout(text, {"attention_dropout"});
  text.ignore_rest();
  return dims;
}

void provide_decoder(KeyReader& text) {
  const ConfigNode* type = text.node().find("model_type");
  const bool is_mistral = type != nullptr && type->text() == "mistral";
  text.provide("hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 vocab_size=32000");
  text.provide(is_mistral ? "intermediate_size=14336" : "intermediate_size=11008");
}

VisionDims read_llava(KeyReader& keys, std::vector<HfKey>& ledger, ReadDecoder read_decoder) {
  VisionDims dims;
  require_architecture(keys, "LlavaForConditionalGeneration");
  KeyReader vision(nested(keys, "vision_config"), "vision_config.", ledger);
  vision.one_of("model_type", "clip_vision_model", "a tower of model_type", {"clip_vision_model"});
  // LlavaConfig's own tower where there is none, CLIPVisionConfig's defaults where there is one.
  const bool is_there = keys.node().has("vision_config");
  dims.tower = read_tower(vision, is_there ? TowerDefaults{.patch = 32} : TowerDefaults{336, 14, 24, 1024, 16, 4096});
  dims.tower.quick_gelu = reads_quick_gelu(vision, "quick_gelu");
  refuse_dropout(vision, {"attention_dropout"});
  vision.ignore_rest();
  KeyReader text(nested(keys, "text_config"), "text_config.", ledger);
  provide_decoder(text);
  const ConfigNode llama = parse_json("\"llama\"", "config.json");
  dims.text = read_decoder(text, &llama, ledger);
  text.ignore_rest();

  keys.one_of("projector_hidden_act", "gelu", "activation", {"gelu"});
  if (const ConfigNode* layer = keys.find({"vision_feature_layer"})) {
    if (layer->as_int() != -2) throw layer->error("features of another layer are not supported", "-2");
  } else {
    keys.assume("vision_feature_layer", "-2");
  }
  if (keys.word_or("vision_feature_select_strategy", "default") != "default")
    keys.refuse("vision_feature_select_strategy", "features with the class token are not supported", "default");
  if (!keys.flag_or("multimodal_projector_bias", true))
    keys.refuse("multimodal_projector_bias", "a projector without biases is not supported", "true");
  if (const ConfigNode* length = keys.find({"image_seq_length"})) {
    if (length->as_int(1, kLargestHfSize) != dims.tower.patches())
      throw length->error("the tower makes " + std::to_string(dims.tower.patches()) + " features of an image");
  }
  return dims;
}

}

std::span<const std::string_view> hf_vision_types() { return kTypes; }

VisionDims read_hf_vision(KeyReader& keys, std::vector<HfKey>& ledger, ReadDecoder read_decoder) {
  const std::string type = keys.find({"model_type"})->as_string();
  const auto classifier = std::ranges::find(kClassifiers, type, &Classifier::type);
  VisionDims dims = classifier != std::end(kClassifiers) ? read_vit(keys, *classifier)
                    : type == "clip"                     ? read_clip(keys, ledger)
                                                         : read_llava(keys, ledger, read_decoder);
  dims.family = type;
  return dims;
}

}
