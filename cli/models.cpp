// models: the zoo as a table, or one model in full: its sizes with their source and, for a
// config.json, what became of every key.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/job.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "interop/hf_config.h"
#include "models/zoo.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

Json to_json(const ZooEntry& entry) {
  const ModelDims& d = entry.dims;
  return {{"name", d.name},
          {"family", d.family},
          {"parameters", entry.parameters},
          {"published", entry.published},
          {"exact", entry.exact},
          {"layers", d.layers},
          {"hidden", d.hidden},
          {"heads", d.heads},
          {"kv_heads", d.kv_heads},
          {"head_dim", d.head_dim},
          {"ffn", d.ffn},
          {"vocabulary", d.vocabulary},
          {"max_positions", d.max_positions},
          {"tied", d.tied},
          {"source", d.source},
          {"note", entry.note}};
}

std::string models_text(const std::vector<ZooEntry>& entries) {
  std::string text =
      fmt::format("{:<20} {:<8} {:>15} {:>6} {:>6} {:>7} {:>8} {:>10} {:>9}\n", "model", "family",
                  "parameters", "layers", "hidden", "heads", "ffn", "vocabulary", "positions");
  for (const ZooEntry& entry : entries) {
    const ModelDims& d = entry.dims;
    const std::string heads =
        d.heads == d.kv_heads ? std::to_string(d.heads) : fmt::format("{}/{}", d.heads, d.kv_heads);
    text += fmt::format("{:<20} {:<8} {:>15} {:>6} {:>6} {:>7} {:>8} {:>10} {:>9}\n", d.name,
                        d.family, format_count(entry.parameters), d.layers, d.hidden, heads, d.ffn,
                        d.vocabulary, d.max_positions);
  }
  return text + fmt::format(
                    "\n{} models; heads as query/key-value where they differ. Any other model: "
                    "--model path/to/config.json\n",
                    entries.size());
}

// One model in full: its sizes with their source, and for a config.json what became of every key.
struct OneModel {
  ModelDims dims;
  std::int64_t parameters = 0;
  std::string note;
  std::vector<HfKey> keys;
};

OneModel one_model(const std::string& name) {
  if (is_model_file(name, name)) {
    const HfConfig config = read_hf_config(name);
    return {config.dims, load_hf_config(name).parameters(), "", config.ledger};
  }
  const ModelSpec model = load_zoo_model(name);  // knows what to say to a misspelt name
  for (const ZooEntry& entry : zoo()) {
    if (entry.dims.name == model.name) return {entry.dims, entry.parameters, entry.note, {}};
  }
  FORESHARD_CHECK(false, "a model that is not in the zoo");
}

Json to_json(const OneModel& one) {
  ZooEntry entry;
  entry.dims = one.dims;
  entry.parameters = one.parameters;
  entry.note = one.note;
  Json json = to_json(entry);
  json.erase("published");
  json.erase("exact");
  Json keys = Json::array();
  for (const HfKey& key : one.keys) {
    keys.push_back({{"key", key.key},
                    {"use", to_string(key.use)},
                    {"value", key.value},
                    {"comment", key.comment}});
  }
  if (!keys.empty()) json["keys"] = keys;
  return json;
}

std::string to_text(const OneModel& one) {
  const ModelDims& d = one.dims;
  std::string text = fmt::format("{} ({}): {} parameters{}\n", d.name, d.family,
                                 format_count(one.parameters), d.tied ? ", tied embeddings" : "");
  text += fmt::format(
      "{} layers, hidden {}, {} heads of {} ({} key/value), ffn {}, vocabulary {}, {} positions\n",
      d.layers, d.hidden, d.heads, d.head_dim, d.kv_heads, d.ffn, d.vocabulary, d.max_positions);
  text += fmt::format("source: {}\n", d.source);
  if (!one.note.empty()) text += fmt::format("note: {}\n", one.note);
  if (!one.keys.empty()) text += "\n";
  for (const HfKey& key : one.keys) {
    text += fmt::format("{:<10} {}{}{}\n", to_string(key.use), key.key,
                        key.value.empty() ? "" : " = " + key.value,
                        key.comment.empty() ? "" : " (" + key.comment + ")");
  }
  return text;
}

}  // namespace

ExitCode run_models(const ModelsOptions& options) {
  const bool is_json = options.output.form == Form::kJson;
  if (!options.name.empty()) {
    const OneModel one = one_model(options.name);
    write_answer(is_json ? document("foreshard.model/1", to_json(one)) : to_text(one));
    return ExitCode::kOk;
  }
  const std::vector<ZooEntry> entries = zoo();
  if (!is_json) {
    write_answer(models_text(entries));
    return ExitCode::kOk;
  }
  Json models = Json::array();
  for (const ZooEntry& entry : entries) models.push_back(to_json(entry));
  write_answer(document("foreshard.models/1", {{"models", models}}));
  return ExitCode::kOk;
}

}  // namespace foreshard
