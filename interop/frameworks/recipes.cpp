// Which recipe or command a file is of it does not say: adapters and pretraining are told by their
// keys, one GPU by the cluster or by `devices`. verl's settings are its command's (Hydra).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "interop/frameworks/frameworks.h"

namespace foreshard {
namespace {

// A flag has the modules of its row, of a list each word its own.
void read_targets(ForeignReader& reader, const ConfigNode& rows) {
  std::vector<std::string> targets;
  const auto add = [&](const ConfigNode& modules) {
    for (const ConfigNode& module : modules.elements()) targets.push_back(module.as_string());
  };
  for (const ConfigItem& row : rows.items()) {
    const ConfigNode* node = reader.find(row.key);
    if (node == nullptr) continue;
    if (!row.value.is_mapping()) {
      if (flag_of(*node)) add(row.value);
      continue;
    }
    const auto add_named = [&](const ConfigNode& word) {
      const ConfigNode* const named = row.value.find(word.as_string());
      if (named != nullptr) add(*named);
      else reader.unsupported(row.key, "names that are not read: taken without, or as all linear layers");
    };
    if (node->is_sequence()) std::ranges::for_each(node->elements(), add_named);
    else add_named(*node);
  }
  if (!targets.empty()) reader.map(rows.items().front().key, "lora.targets", Json(targets).dump());
}

// Its model's sizes are in the file; DDP's buckets are in MiB of 16 bits.
void read_nanotron(ForeignReader& reader, const ForeignPlan& plan) {
  if (plan.has("mesh.pp")) reader.take("stages");
  if (!plan.has("optimizer.clip_norm")) reader.assume("optimizer.clip_norm", "none", "no clip_grad");
  if (const ConfigNode* cap = reader.find("model.ddp_bucket_cap_mb"))
    reader.map("model.ddp_bucket_cap_mb", "megatron.bucket_size", fmt::format("{}", cap->as_int(1) << 19));
}

}

std::string recipe_format(const ConfigNode& root) {
  if (!root.is_mapping()) return "";
  const ConfigNode* words = root.find("tokenizer");
  if (words != nullptr && words->is_mapping() && words->has("_component_")) return "torchtune";
  if (root.has("parallelism") && root.has("tokens") && root.has("model")) return "nanotron";
  if (root.has("step_scheduler")) return "nemo_automodel";
  if (root.has("data.train_files")) return "verl";
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
  std::string kind, program = root.has("lora_r") || root.has("peft") ? "lora" : "full";
  for (const std::string path : {"policy_model._component_", "model._component_", "checkpoint_dir", "model_name",
           "model.pretrained_model_name_or_path", "model.path"}) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr) continue;
    // "torchtune.models.qwen2_5.qlora_qwen2_5_7b", "checkpoints/meta-llama/Llama-3.2-1B"
    const bool is_builder = path.ends_with("_component_");
    std::string name = node->as_string();
    if (!path.ends_with("path")) name.erase(0, name.rfind(is_builder ? '.' : '/') + 1);
    if (is_builder && (name.starts_with("lora") || name.starts_with("qlora"))) {
      program = "lora";
      kind = name.substr(0, name.find('_'));
      name.erase(0, kind.size() + 1);
    }
    reader.map(path, "model", name);
    if (path == "model_name") program = "pretrain";
  }
  if (gpus == 0 && reader.find("devices") != nullptr) {
    const ConfigNode* nodes = reader.find("num_nodes");
    gpus = root.at("devices").as_int(1) * (nodes == nullptr ? 1 : nodes->as_int(1));
  }
  assume(settings.at("programs").at(program), fmt::format("{}'s {}", plan.format, program));
  assume(gpus == 1 ? settings.at("one") : settings.at("sharded").at(program), gpus == 1 ? "one GPU" : "its sharding");
  reader.take("settings");
  for (const char* path :
      {"clip_grad_norm", "clip_grad_norm.max_norm", "train.max_norm", "optimizer.clip_grad", "optim.clip_grad"})
    reader.clipping(path);
  if (plan.format == "nanotron") read_nanotron(reader, plan);
  if (program == "lora") {
    reader.take("adapters");
    read_targets(reader, settings.at("targets"));
    if (kind == "qlora") reader.assume("lora.base", "nf4", "the model's builder");
  }
  if (!plan.has("batch.sequence")) {
    plan.ledger.push_back({Mapping::kDefaulted, "batch.sequence", "",
        "not in the file: samples are taken as long as the model's positions", root.location().file, 0});
  }
  reader.finish();
  return plan;
}

}
