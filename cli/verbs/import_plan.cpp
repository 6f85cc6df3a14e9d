#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "interop/hf/hf_config.h"
#include "interop/hf/safetensors.h"
#include "interop/network/topology_import.h"
#include "planner/job.h"
#include "planner/model_name.h"
#include "sim/base/config_tree.h"
#include "sim/base/lookup.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

enum class Kind { kNone, kWeights, kToml, kShell, kJson, kYaml };

Kind kind_of(const std::string& path) {
  if (looks_like_safetensors(path)) return Kind::kWeights;
  if (path.ends_with(".toml")) return Kind::kToml;
  if (path.ends_with(".sh")) return Kind::kShell;
  const std::string text = read_text_start(path, kMaxYamlBytes);
  if (topology_format(text) != TopologyFormat::kNone) return Kind::kNone;
  if (path.ends_with(".json")) return Kind::kJson;
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first != std::string::npos && text[first] == '{') return Kind::kJson;
  for (const char* key :
      {"distributed_type:", "compute_environment:", "tensor_model_parallel_size:", "per_device_train_batch_size:",
          "finetuning_type:", "model_name_or_path:", "base_model:", "_component_:", "micro_batch_size:", "tuner_type:",
          "rlhf_type:", "pipe_parallel_size", "pipe-parallel-size", "step_scheduler:"})
    if (contains(text, key)) return Kind::kYaml;
  return Kind::kNone;
}

bool is_hf_config(const ConfigNode& root) {
  return root.is_mapping() && (root.has("model_type") || root.has("architectures"));
}

// Settings of a runtime, or of a trainer with them.
ForeignPlan read_settings(const ConfigNode& root, std::int64_t gpus) {
  if (!recipe_format(root).empty()) return read_recipe(root, gpus);
  if (looks_like_torchtitan(root)) return read_torchtitan(root);
  if (looks_like_accelerate(root)) return read_accelerate(root);
  if (looks_like_megatron(root)) return read_megatron(root);
  for (const char* key : {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
           "gradient_accumulation_steps", "bf16", "fp16"})
    if (root.is_mapping() && root.has(key)) return read_deepspeed(root);
  throw root.error("is of no known form",
      "Hugging Face's config.json, settings of DeepSpeed, Accelerate, TorchTitan, "
      "Megatron-Bridge, torchtune, LitGPT, NeMo AutoModel, verl or transformers' Trainer");
}

// The keys of config.json with their lines.
void add_model(const ConfigNode& root, const std::string& path, ForeignPlan& plan) {
  const HfConfig config = parse_hf_config(root, path);
  for (const HfKey& key : config.ledger) {
    const ConfigNode* node = root.is_mapping() ? root.find(key.key) : nullptr;
    if (node == nullptr && key.key.starts_with("text_config.") && root.has("text_config")) {
      const ConfigNode inner = root.at("text_config");
      if (inner.is_mapping()) node = inner.find(key.key.substr(12));
    }
    const Mapping mapping = key.use == KeyUse::kMapped      ? Mapping::kMapped
                            : key.use == KeyUse::kDefaulted ? Mapping::kDefaulted
                                                            : Mapping::kIgnored;
    plan.ledger.push_back(
        {mapping, key.value.empty() ? key.key : key.key + ": " + key.value, mapping == Mapping::kMapped ? "model" : "",
            key.comment, path, node == nullptr ? 0 : node->key_location().line});
  }
  const ModelSpec model = build_hf_model(config);
  plan.ledger.push_back({Mapping::kMapped, "config.json of " + model.family,
      fmt::format("model: {} parameters", model.parameters()), "", path, 0});
}

struct Import {
  ForeignPlan plan;
  std::string settings;  // the trainer's file; "": none
  std::string model;     // of --model or a config.json; "": nobody says
  std::optional<std::string> weights;
};

// DeepSpeed's file that a trainer's settings name, as their path has it from their folder or one above it.
ForeignPlan named_deepspeed(const std::string& named, const std::string& settings) {
  namespace fs = std::filesystem;
  for (fs::path folder = fs::absolute(settings).parent_path();; folder = folder.parent_path()) {
    const fs::path file = folder / named;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) {
      const ConfigNode root = parse_json(read_text_file(file, kMaxJsonBytes), file.string());
      return read_deepspeed(root);
    }
    if (folder == folder.root_path()) break;
  }
  throw ConfigError({settings, 0, 0, "deepspeed"}, fmt::format("there is no {}", named),
      "DeepSpeed's file named beside the settings: foreshard import SETTINGS FILE");
}

// Accelerate's file counts the processes of where it was written.
void follow_cluster(std::int64_t gpus, ForeignPlan& plan) {
  if (plan.ranks == 0 || plan.ranks == gpus) return;
  const auto is_of_mesh = [](const auto& text) { return text.starts_with("mesh."); };
  for (ImportEntry& entry : plan.ledger) {
    if (!is_of_mesh(entry.to)) continue;
    entry.mapping = Mapping::kIgnored;
    entry.why = fmt::format("the cluster has {}", gpus);
  }
  std::erase_if(plan.keys, [&](const auto& key) { return is_of_mesh(key.first); });
}

Import read_all(const ImportOptions& options) {
  Import import = {.model = options.model};
  std::optional<ConfigNode> trainer;  // what may have a runtime's settings beside it
  const auto take_name = [](std::string& file, const std::string& path) {
    if (!file.empty()) throw Error(ExitCode::kUsage, "{} and {} are both a trainer's settings", file, path);
    file = path;
  };
  std::string trainer_file;
  std::optional<ForeignPlan> plan;
  const std::int64_t gpus = options.cluster.empty() ? 0 : load_cluster(options.cluster).gpus;
  for (const std::string& path : options.files) {
    const Kind kind = kind_of(path);
    if (kind == Kind::kWeights) {
      import.weights = path;
      continue;
    }
    if (kind == Kind::kNone) {
      throw Error(
          ExitCode::kUsage, "{} describes a machine, other files a training job: import them in two calls", path);
    }
    if (kind == Kind::kToml) {
      take_name(import.settings, path);
      plan = read_torchtitan(read_toml_file(path));
      continue;
    }
    const ConfigNode root = kind == Kind::kYaml    ? read_yaml_file(path)
                            : kind == Kind::kShell ? read_trainer_script(read_text_file(path, kMaxYamlBytes), path)
                                                   : parse_json(read_text_file(path, kMaxJsonBytes), path);
    if (looks_like_trainer(root)) {
      take_name(trainer_file, path);
      trainer = root;
    } else if (is_hf_config(root)) {
      add_model(root, path, import.plan);
      if (import.model.empty()) import.model = path;
    } else {
      take_name(import.settings, path);
      plan = read_settings(root, gpus);
    }
  }
  if (trainer) {
    const std::string named = deepspeed_file_of(*trainer);
    if (!plan && !named.empty()) plan = named_deepspeed(named, trainer_file);
    plan = read_trainer(*trainer, plan ? &*plan : nullptr, options.stage, gpus);
  }
  if (!plan) return import;
  if (gpus != 0) follow_cluster(gpus, *plan);
  append(plan->ledger, import.plan.ledger);
  import.plan = std::move(*plan);
  return import;
}

// The model that its name means.
ModelSpec named_model(const std::string& name) { return load_model(find_model(name, name)).model; }

}

bool is_training_file(const std::string& path) { return kind_of(path) != Kind::kNone; }

ExitCode import_training_files(const ImportOptions& options) {
  Import import = read_all(options);
  ForeignPlan& plan = import.plan;
  std::vector<std::pair<std::string, std::string>> beside;
  if (plan.has("head")) {  // in place of that of words: part of the model's name
    if (import.model.empty()) import.model = plan.value("model");
    import.model += fmt::format("+{}{}", plan.value("head"), plan.value("head.scores"));
    std::erase_if(plan.keys, [](const auto& key) { return key.first.starts_with("head"); });
  }
  if (!import.model.empty()) {
    std::erase_if(plan.keys, [](const auto& key) { return key.first == "model"; });
    beside.emplace_back("model", import.model);
  }
  if (!options.cluster.empty()) beside.emplace_back("cluster", options.cluster);
  for (const auto& [key, given] : {std::pair("model", !import.model.empty() || plan.has("model")),
           std::pair("cluster", !options.cluster.empty())}) {
    if (given) continue;
    plan.ledger.push_back({Mapping::kDefaulted, key, "", fmt::format("not in the file: name it with --{}", key),
        options.files.front(), 0});
  }
  const std::string model = import.model.empty() ? plan.value("model") : import.model;
  if (import.weights) {
    if (model.empty())
      throw Error(ExitCode::kUsage, "{}: of which model? --model says, or a config.json beside it", *import.weights);
    const ImportLedger found = check_stored(read_safetensors(*import.weights), named_model(model));
    append(plan.ledger, found);
  }
  std::optional<ModelSpec> known;
  try {
    if (!model.empty()) known = named_model(model);
  } catch (const Error&) {  // of no known name: --model will say
  }
  if (known && plan.value("runtime").starts_with("zero")) fill_buckets(known->hidden, plan);
  fill_targets(known ? &*known : nullptr, plan);
  document_of(PlanDocument{}, plan);  // throws for a value that is none of the key's
  const std::string text = plan_text(plan, beside);
  if (!options.out.empty()) write_file(options.out, text);
  if (options.output.form == Form::kJson) {
    write_answer(document(
        "foreshard.import/1", {{"format", plan.format}, {"plan", text}, {"ledger", ledger_json(plan.ledger)}}));
    return ExitCode::kOk;
  }
  std::string answer = options.out.empty() ? text : fmt::format("# written to {}\n", options.out);
  answer += "\n";
  write_text(answer + ledger_comments(plan.ledger));
  return ExitCode::kOk;
}

}
