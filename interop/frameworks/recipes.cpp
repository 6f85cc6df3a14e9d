// Which recipe or command a file is of it does not say: adapters and pretraining are told by their
// keys, one GPU by the cluster or by `devices`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "interop/frameworks/frameworks.h"

namespace foreshard {
namespace {

// "torchtune.models.qwen2_5.qlora_qwen2_5_7b" -> "qlora", "qwen2_5_7b"
std::pair<std::string, std::string> builder_of(const std::string& component) {
  std::string name = component.substr(component.rfind('.') + 1);
  for (const char* kind : {"qlora", "lora"}) {
    if (name.starts_with(kind)) return {kind, name.substr(name.find('_') + 1)};
  }
  return {"", name};
}

// A flag has the modules of its row, of a list each word its own.
void read_targets(ForeignReader& reader, const ConfigNode& rows) {
  std::vector<std::string> targets;
  const auto add = [&](const ConfigNode& modules) {
    for (const ConfigNode& module : modules.elements()) targets.push_back(module.as_string());
  };
  for (const ConfigItem& row : rows.items()) {
    const ConfigNode* node = reader.find(row.key);
    if (node == nullptr) continue;
    if (node->is_sequence()) {
      for (const ConfigNode& word : node->elements()) add(row.value.at(word.as_string()));
    } else if (flag_of(*node)) {
      add(row.value);
    }
  }
  if (!targets.empty()) {
    reader.map(rows.items().front().key, "lora.targets", Json(targets).dump());
  }
}

}  // namespace

std::string recipe_format(const ConfigNode& root) {
  if (!root.is_mapping()) return "";
  const ConfigNode* words = root.find("tokenizer");
  if (words != nullptr && words->is_mapping() && words->has("_component_")) return "torchtune";
  const bool is_litgpt = root.has("checkpoint_dir") || root.has("model_name");
  return is_litgpt && root.has("train") ? "litgpt" : "";
}

ForeignPlan read_recipe(const ConfigNode& root, std::int64_t gpus) {
  ForeignPlan plan;
  plan.format = recipe_format(root);
  const ConfigNode settings = settings_of(plan.format);
  ForeignReader reader(root, plan, plan.format);
  const auto assume = [&](const ConfigNode& keys, const std::string& why) {
    for (const ConfigItem& key : keys.items()) reader.assume(key.key, key.value.as_string(), why);
  };
  std::string adapters, program = "full";
  for (const char* path : {"policy_model._component_", "model._component_"}) {
    const ConfigNode* builder = reader.find(path);
    if (builder == nullptr) continue;
    const auto [kind, name] = builder_of(builder->as_string());
    adapters = kind;
    reader.map(path, "model", name);
  }
  for (const char* path : {"checkpoint_dir", "model_name"}) {
    const ConfigNode* name = plan.format == "torchtune" ? nullptr : reader.find(path);
    if (name == nullptr) continue;
    const std::string text = name->as_string();
    reader.map(path, "model", text.substr(text.rfind('/') + 1));
    if (name == root.find("model_name")) program = "pretrain";
  }
  if (!adapters.empty() || root.has("lora_r")) program = "lora";
  if (gpus == 0 && reader.find("devices") != nullptr) {
    const ConfigNode* nodes = reader.find("num_nodes");
    gpus = root.at("devices").as_int(1) * (nodes == nullptr ? 1 : nodes->as_int(1));
  }
  assume(settings.at("programs").at(program), fmt::format("{}'s {}", plan.format, program));
  assume(gpus == 1 ? settings.at("one") : settings.at("sharded").at(program),
         gpus == 1 ? "one GPU" : "its sharding");
  reader.take("settings");
  for (const char* path : {"clip_grad_norm", "train.max_norm"}) reader.clipping(path);
  if (program == "lora") {
    reader.take("adapters");
    read_targets(reader, settings.at("targets"));
    if (adapters == "qlora") reader.assume("lora.base", "nf4", "the model's builder");
  }
  reader.finish();
  return plan;
}

}  // namespace foreshard
