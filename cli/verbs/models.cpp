// models: the zoo as a table, or one model in full: its sizes with their source and, for a
// config.json, what became of every key.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "models/names.h"
#include "models/yaml/model_yaml.h"
#include "models/zoo.h"
#include "planner/model_name.h"
#include "reports/view/layout.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

Json to_json(const ZooEntry& entry) {
  const ModelDims& d = entry.dims;
  return {{"name", d.name}, {"family", d.family}, {"parameters", entry.parameters}, {"published", entry.published},
      {"exact", entry.exact}, {"layers", d.layers}, {"hidden", d.hidden}, {"heads", d.heads}, {"kv_heads", d.kv_heads},
      {"head_dim", d.head_dim}, {"ffn", d.ffn}, {"vocabulary", d.vocabulary}, {"max_positions", d.max_positions},
      {"tied", d.tied}, {"source", d.source}, {"note", entry.note}};
}

std::string models_text(const std::vector<ZooEntry>& entries) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "family", "parameters", "layers", "hidden", "heads", "ffn", "vocabulary", "positions"}};
  for (const ZooEntry& entry : entries) {
    const ModelDims& d = entry.dims;
    const std::string heads =
        d.heads == d.kv_heads ? std::to_string(d.heads) : fmt::format("{}/{}", d.heads, d.kv_heads);
    rows.push_back(
        {d.name, d.family, format_count(entry.parameters), std::to_string(d.layers), std::to_string(d.hidden), heads,
            std::to_string(d.ffn), std::to_string(d.vocabulary), std::to_string(d.max_positions)});
  }
  return fmt::format("{}\n\n{} models; heads as query/key-value where they differ.\n",
      fmt::join(aligned(rows, 2), "\n"), entries.size());
}

Json to_json(const VisionEntry& entry) {
  const TowerDims& t = entry.dims.tower;
  Json json = {{"name", entry.dims.name}, {"family", entry.dims.family}, {"parameters", entry.parameters},
      {"published", entry.published}, {"exact", entry.exact},
      {"tower", {{"image", t.image}, {"patch", t.patch}, {"layers", t.layers}, {"hidden", t.hidden}, {"heads", t.heads},
                    {"ffn", t.ffn}}},
      {"source", entry.dims.source}, {"note", entry.note}};
  if (entry.dims.labels > 0) json["labels"] = entry.dims.labels;
  if (entry.dims.projection > 0) json["projection"] = entry.dims.projection;
  if (const ModelDims& text = entry.dims.text; text.layers > 0) {
    json["text"] = {{"layers", text.layers}, {"hidden", text.hidden}, {"heads", text.heads}, {"ffn", text.ffn},
        {"vocabulary", text.vocabulary}, {"max_positions", text.max_positions}};
  }
  return json;
}

std::string vision_text(const std::vector<VisionEntry>& entries) {
  std::string text = fmt::format("\n{:<28} {:<8} {:>14} {:>7} {:>6} {:>6} {:>7} {:>12}\n", "model of images", "family",
      "parameters", "layers", "hidden", "pixels", "patches", "text layers");
  for (const VisionEntry& entry : entries) {
    const TowerDims& t = entry.dims.tower;
    const std::int64_t layers = entry.dims.text.layers;
    text += fmt::format("{:<28} {:<8} {:>14} {:>7} {:>6} {:>6} {:>7} {:>12}\n", entry.dims.name, entry.dims.family,
        format_count(entry.parameters), t.layers, t.hidden, t.image, t.patches(),
        layers > 0 ? std::to_string(layers) : "");
  }
  return text;
}

constexpr const char* kOtherModels =
    "\nAny other model: --model path/to/config.json or its folder, an id in this machine's "
    "Hugging\n"
    "Face cache, or a model.yaml such as foreshard models NAME --yaml writes.\n";

// One model in full: its sizes with their source, and for a config.json what became of every key.
struct OneModel {
  std::optional<ModelDims> dims;  // of a decoder
  ModelSpec model;
  std::string note;
  std::vector<HfKey> keys;
};

OneModel one_model(const std::string& text) {
  LoadedModel loaded = load_model(find_model(text, text));
  OneModel one{std::nullopt, std::move(loaded.model), fmt::format("{}", fmt::join(loaded.notes, "; ")), {}};
  if (loaded.config) {
    one.keys = loaded.config->ledger;
    if (!loaded.config->vision) one.dims = loaded.config->dims;
    return one;
  }
  const auto add_note = [&](const std::string& note) {
    if (!note.empty()) one.note += (one.note.empty() ? "" : "; ") + note;
  };
  for (const ZooEntry& entry : zoo()) {
    if (entry.dims.name != one.model.name) continue;
    one.dims = entry.dims;
    add_note(entry.note);
  }
  if (const auto entry = find_vision_model(one.model.name)) add_note(entry->note);
  return one;
}

// The part of the catalogue that a text which names no model names in part.
std::vector<std::string> names_meant(const std::string& text) {
  if (contains(text, '/') || published_name(text)) return {};
  return zoo_names_with(text);
}

template <typename Entry>
void keep(std::vector<Entry>& entries, const std::vector<std::string>& names) {
  std::erase_if(
      entries, [&](const Entry& entry) { return !contains(names, entry.dims.name); });
}

Json sizes_of(const OneModel& one) {
  const ModelSpec& model = one.model;
  if (one.dims) {
    ZooEntry entry = {.dims = *one.dims, .parameters = model.parameters(), .note = one.note};
    Json json = to_json(entry);
    json.erase("published");
    json.erase("exact");
    return json;
  }
  Json json = {{"name", model.name}, {"family", model.family}, {"parameters", model.parameters()},
      {"layers", model.block_count()}, {"hidden", model.hidden}, {"vocabulary", model.vocabulary},
      {"max_positions", model.max_positions}, {"tied", model.tied_embeddings}, {"source", model.source},
      {"note", one.note}};
  if (model.fixed_sequence > 0) json["fixed_sequence"] = model.fixed_sequence;
  if (model.image_tokens > 0) json["image_tokens"] = model.image_tokens;
  return json;
}

Json to_json(const OneModel& one) {
  Json json = sizes_of(one);
  if (one.dims && one.dims->moe.experts > 0) {
    json["experts"] = one.dims->moe.experts;
    json["experts_per_token"] = one.dims->moe.top_k;
    json["active_parameters"] = one.model.active_parameters();
  }
  Json keys = json_list(one.keys, [&](const HfKey& key) -> Json {
    return {{"key", key.key}, {"use", to_string(key.use)}, {"value", key.value}, {"comment", key.comment}};
  });
  if (!keys.empty()) json["keys"] = keys;
  return json;
}

std::string sizes_text(const OneModel& one) {
  const ModelSpec& model = one.model;
  if (one.dims) {
    const ModelDims& d = *one.dims;
    return fmt::format("{} layers, hidden {}, {} heads of {} ({} key/value), ffn {}, vocabulary {}, {} positions\n",
        d.layers, d.hidden, d.heads, d.head_dim, d.kv_heads, d.ffn, d.vocabulary, d.max_positions);
  }
  std::string text = fmt::format("{} blocks, {} positions", model.block_count(), model.max_positions);
  if (model.fixed_sequence > 0) text += ", no other sequence";
  if (model.image_tokens > 0) text += fmt::format(", {} of them per image", model.image_tokens);
  text += "\n";
  for (std::size_t k = 0; k < model.kinds.size(); ++k) {
    const LayerSpec& kind = model.kinds[k];
    const auto count =
        std::ranges::count_if(model.order, [&](const LayerInstance& layer) { return at(layer.kind) == k; });
    text += fmt::format("{:>5} x {:<22} {:>14} parameters each\n", count, kind.name, format_count(kind.numel()));
  }
  return text;
}

std::string model_text(const OneModel& one) {
  const ModelSpec& model = one.model;
  std::string text = fmt::format("{} ({}): {} parameters{}\n", model.name, model.family,
      format_count(model.parameters()), model.tied_embeddings ? ", tied embeddings" : "");
  text += sizes_text(one);
  if (one.dims && one.dims->moe.experts > 0) {
    const auto& moe = one.dims->moe;
    text += fmt::format("{} experts of width {}, {} per token{}: {} active parameters\n", moe.experts, moe.ffn,
        moe.top_k, moe.shared_ffn > 0 ? fmt::format(", shared ones of width {}", moe.shared_ffn) : "",
        format_count(model.active_parameters()));
  }
  text += fmt::format("source: {}\n", model.source);
  if (!one.note.empty()) text += fmt::format("note: {}\n", one.note);
  if (!one.keys.empty()) text += "\n";
  for (const HfKey& key : one.keys) {
    text += fmt::format("{:<10} {}{}{}\n", to_string(key.use), key.key, key.value.empty() ? "" : " = " + key.value,
        key.comment.empty() ? "" : " (" + key.comment + ")");
  }
  return text;
}

}

ExitCode run_models(const ModelsOptions& options) {
  const bool is_json = options.output.form == Form::kJson;
  const std::vector<std::string> meant = names_meant(options.name);
  if (!options.name.empty() && meant.empty()) {
    const OneModel one = one_model(options.name);
    if (options.as_yaml) {
      write_answer(to_model_yaml(one.model));
      return ExitCode::kOk;
    }
    is_json ? write_answer(document("foreshard.model/1", to_json(one))) : write_text(model_text(one));
    return ExitCode::kOk;
  }
  if (options.as_yaml) {
    throw Error(ExitCode::kUsage, "--yaml writes one model; {} is part of {}: {}", quote(options.name), meant.size(),
        fmt::join(meant, ", "));
  }
  std::vector<ZooEntry> entries = zoo();
  std::vector<VisionEntry> vision = vision_zoo();
  if (!meant.empty()) {
    keep(entries, meant);
    keep(vision, meant);
  }
  if (!is_json) {
    write_text(
        (entries.empty() ? "" : models_text(entries)) + (vision.empty() ? "" : vision_text(vision)) + kOtherModels);
    return ExitCode::kOk;
  }
  Json models = json_list(
      entries, [&](const ZooEntry& entry) -> Json { return to_json(entry); });
  Json images = json_list(vision, [&](const VisionEntry& entry) -> Json { return to_json(entry); });
  write_answer(document("foreshard.models/1", {{"models", models}, {"vision", images}}));
  return ExitCode::kOk;
}

}
