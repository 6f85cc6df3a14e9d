// Class names follow the model_type in transformers ("qwen2_moe": Qwen2MoeForCausalLM), so there is no table of them.
#include "interop/hf/hf_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "models/families.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 10> kReaders = {
    "decoder", "gpt2", "opt", "bloom", "mpt", "parallel", "encoder", "encoder_decoder", "bart", "latent"};

HfFamily family_of(std::vector<std::string_view> cells) {
  cells.resize(6);
  const auto reader = std::find(kReaders.begin(), kReaders.end(), cells[2]) - kReaders.begin();
  FORESHARD_CHECK(reader < std::ssize(kReaders), fmt::format("no reader is {}", cells[2]));
  return {cells[0], cells[1], static_cast<HfReader>(reader), cells[3], cells[4], cells[5]};
}

constexpr std::pair<std::string_view, ScoreOf> kScores[] = {{"ForCausalLMWithValueHead", ScoreOf::kValue},
    {"ForSequenceClassification", ScoreOf::kSequence}, {"ForTokenClassification", ScoreOf::kToken},
    {"ForQuestionAnswering", ScoreOf::kSpan}};
constexpr std::string_view kHeads[] = {
    "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "MTModel"};

// A decoder inside another model says so in its type: "gemma3_text".
std::string_view without_text(std::string_view model_type) {
  constexpr std::string_view kText = "_text";
  return model_type.ends_with(kText) ? model_type.substr(0, model_type.size() - kText.size()) : model_type;
}

// Whether a class is the type's: its letters in whatever order ("hunyuan_v1_dense": HunYuanDenseV1ForCausalLM).
bool is_class_of(std::string_view stem, std::string_view model_type) {
  const std::string a = squeezed(without_text(stem)), b = squeezed(without_text(model_type));
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

// "GPTNeoX" and "gpt_neox" are one word.
const HfFamily* find_family(std::string_view model_type) {
  const std::string wanted = squeezed(without_text(model_type));
  for (const HfFamily& family : hf_families())
    if (squeezed(family.model_type) == wanted) return &family;
  return nullptr;
}

// The class's name without its head; empty where it has none that is modelled.
std::string_view stem_of(std::string_view architecture) {
  const auto without = [&](std::string_view head) {
    return architecture.ends_with(head) ? architecture.substr(0, architecture.size() - head.size())
                                        : std::string_view();
  };
  for (const std::string_view head : kHeads)
    if (const std::string_view stem = without(head); !stem.empty()) return stem;
  for (const auto& [head, of] : kScores)
    if (const std::string_view stem = without(head); !stem.empty()) return stem;
  return {};
}

// What the keys look like, where the name says nothing.
std::string_view family_by_keys(const ConfigNode& node) {
  constexpr std::pair<std::string_view, std::string_view> kSigns[] = {{"kv_lora_rank", "deepseek_v3"},
      {"num_local_experts", "mixtral"}, {"n_routed_experts", "glm4_moe"}, {"num_experts", "qwen3_moe"},
      {"type_vocab_size", "bert"}, {"n_embd", "gpt2"}, {"num_key_value_heads", "llama"}};
  for (const auto& [key, family] : kSigns)
    if (node.has(key)) return family;
  return "llama";
}

constexpr std::string_view kMissing = "missing";

// ": it has ..., which is not modelled", of a type whose row says so.
std::string missing_of(std::string_view model_type) {
  const std::string wanted = squeezed(without_text(model_type));
  for (const auto& cells : rows_of_table(hf_family_files().front().content)) {
    if (cells.at(1) != kMissing) continue;
    for (std::string_view types = cells.at(0); !types.empty();) {
      if (squeezed(cut(types, " ")) != wanted) continue;
      return fmt::format(": it has {}, which is not modelled", cells.at(2));
    }
  }
  return "";
}

[[noreturn]] void refuse(
    const ConfigNode& where, const std::string& what, std::string_view word, const ConfigNode& node) {
  auto names = list_of<std::string>(hf_families(), &HfFamily::model_type);
  const std::string meant = nearest_spelling(without_text(word), names);
  throw where.error(what,
      fmt::format("a family that is read; the nearest is {}: name it as model_type if the blocks are the same; else "
                  "foreshard-null --gpu h100 --config FILE takes three of its steps where PyTorch and transformers are "
                  "installed, and foreshard import capture makes its layers of them (docs/capture.md); foreshard "
                  "models NAME --yaml writes a model.yaml to start from",
          meant.empty() ? family_by_keys(node) : std::string_view(meant)),
      meant);
}

}

std::optional<ScoreOf> score_of(std::string_view architecture) {
  for (const auto& [head, of] : kScores)
    if (architecture.ends_with(head)) return of;
  return std::nullopt;
}

bool is_causal_head(std::string_view architecture) {
  return architecture.ends_with("ForCausalLM") || architecture.ends_with("LMHeadModel");
}

std::span<const HfFamily> hf_families() {
  static const std::vector<HfFamily> families = [] {
    std::vector<HfFamily> rows;
    for (const auto& cells : rows_of_table(hf_family_files().front().content)) {
      if (cells.at(1) == kMissing) continue;
      HfFamily family = family_of(cells);
      for (std::string_view types = cells.at(0); !types.empty();) {
        family.model_type = cut(types, " ");
        rows.push_back(family);
      }
    }
    return rows;
  }();
  return families;
}

const HfFamily& hf_family_of(KeyReader& keys, const ConfigNode* fallback) {
  const ConfigNode* named = nullptr;
  if (const ConfigNode* list = keys.find({"architectures"}); list && !list->elements().empty())
    named = &list->elements().front();
  const std::string architecture = named == nullptr ? "" : named->as_string();
  const std::string_view stem = stem_of(architecture);
  const ConfigNode* type = keys.find({"model_type"});
  if (type == nullptr) type = fallback;
  if (type == nullptr && named == nullptr) {
    throw keys.node().error(
        "neither model_type nor architectures says which model this is", "model_type, for example \"llama\"");
  }
  const std::string word = type != nullptr ? type->as_string() : std::string(stem);
  const HfFamily* family = find_family(word);
  if (family == nullptr && type != nullptr)
    refuse(*type, "model_type \"" + word + "\" is not supported" + missing_of(word), word, keys.node());
  const bool masked = architecture.ends_with("ForMaskedLM");
  const bool is_encoder = family != nullptr && family_dims(family->family)->bidirectional;
  const bool two_stacks =
      family != nullptr && (family->reader == HfReader::kEncoderDecoder || family->reader == HfReader::kBart);
  const bool causal = is_causal_head(architecture);
  const bool is_other_head =  // T5's classifier has a layer before its last
      score_of(architecture) ? two_stacks
      : causal               ? two_stacks || (is_encoder && family->reader != HfReader::kEncoder)
                             : masked != is_encoder;
  const auto is_class = [&] {
    const HfFamily* of_class = find_family(stem);
    return (of_class != nullptr && of_class->family == family->family) || is_class_of(stem, family->model_type);
  };
  if (named != nullptr && (family == nullptr || stem.empty() || !is_class() || is_other_head)) {
    std::string what = type == nullptr
                           ? "architecture \"" + architecture + "\" is not supported"
                           : "architecture \"" + architecture + "\" of model_type " + word + " is not supported";
    if (family == nullptr) refuse(*named, what, stem, keys.node());
    if (causal && two_stacks) what += ": a decoder alone, whose cross attention reads nothing";
    throw named->error(what, "the language model with its head, for example LlamaForCausalLM");
  }
  return *family;
}

}
