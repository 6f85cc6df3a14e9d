#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "interop/hf/hf_config.h"
#include "interop/hf/safetensors.h"
#include "interop/network/topology_import.h"
#include "models/zoo.h"
#include "planner/job.h"
#include "planner/model_name.h"
#include "sim/base/config_tree.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

enum class Kind { kNone, kWeights, kToml, kJson, kYaml };

Kind kind_of(const std::string& path) {
  if (looks_like_safetensors(path)) return Kind::kWeights;
  if (path.ends_with(".toml")) return Kind::kToml;
  const std::string text = read_text_start(path, kMaxYamlBytes);
  if (topology_format(text) != TopologyFormat::kNone) return Kind::kNone;
  if (path.ends_with(".json")) return Kind::kJson;
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first != std::string::npos && text[first] == '{') return Kind::kJson;
  for (const char* key :
       {"distributed_type:", "compute_environment:", "tensor_model_parallel_size:"}) {
    if (text.find(key) != std::string::npos) return Kind::kYaml;
  }
  return Kind::kNone;
}

bool is_hf_config(const ConfigNode& root) {
  return root.is_mapping() && (root.has("model_type") || root.has("architectures"));
}

// Settings of a trainer as JSON.
ForeignPlan read_json_plan(const ConfigNode& root) {
  if (looks_like_torchtitan(root)) return read_torchtitan(root);
  if (looks_like_accelerate(root)) return read_accelerate(root);
  if (looks_like_megatron(root)) return read_megatron(root);
  for (const char* key : {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "bf16", "fp16"}) {
    if (root.is_mapping() && root.has(key)) return read_deepspeed(root);
  }
  throw root.error("is of no known form",
                   "Hugging Face's config.json, DeepSpeed's or TorchTitan's settings");
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
    plan.ledger.push_back({mapping, key.value.empty() ? key.key : key.key + ": " + key.value,
                           mapping == Mapping::kMapped ? "model" : "", key.comment, path,
                           node == nullptr ? 0 : node->key_location().line});
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

Import read_all(const ImportOptions& options) {
  Import import;
  import.model = options.model;
  for (const std::string& path : options.files) {
    const Kind kind = kind_of(path);
    if (kind == Kind::kWeights) {
      import.weights = path;
      continue;
    }
    std::optional<ForeignPlan> plan;
    if (kind == Kind::kToml) {
      plan = read_torchtitan(read_toml_file(path));
    } else if (kind == Kind::kYaml) {
      const ConfigNode root = read_yaml_file(path);
      plan = looks_like_megatron(root) ? read_megatron(root) : read_accelerate(root);
    } else if (kind == Kind::kJson) {
      const ConfigNode root = parse_json(read_text_file(path, kMaxJsonBytes), path);
      if (is_hf_config(root)) {
        add_model(root, path, import.plan);
        if (import.model.empty()) import.model = path;
        continue;
      }
      plan = read_json_plan(root);
    } else {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} describes a machine, other files a training job: import them in "
                              "two calls",
                              path));
    }
    if (!import.settings.empty()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} and {} are both a trainer's settings", import.settings, path));
    }
    import.settings = path;
    plan->ledger.insert(plan->ledger.end(), import.plan.ledger.begin(), import.plan.ledger.end());
    import.plan = std::move(*plan);
  }
  return import;
}

// The model that its name means.
ModelSpec named_model(const std::string& name) { return load_model(find_model(name, name)).model; }

}  // namespace

bool is_training_file(const std::string& path) { return kind_of(path) != Kind::kNone; }

ExitCode import_training_files(const ImportOptions& options) {
  Import import = read_all(options);
  ForeignPlan& plan = import.plan;
  std::vector<std::pair<std::string, std::string>> beside;
  if (!plan.has("model") && !import.model.empty()) beside.emplace_back("model", import.model);
  if (!options.cluster.empty()) beside.emplace_back("cluster", options.cluster);
  for (const auto& [key, given] : {std::pair("model", !import.model.empty() || plan.has("model")),
                                   std::pair("cluster", !options.cluster.empty())}) {
    if (given) continue;
    plan.ledger.push_back({Mapping::kDefaulted, key, "",
                           fmt::format("not in the file: name it with --{}", key),
                           options.files.front(), 0});
  }
  if (import.weights) {
    const std::string name = import.model.empty() ? plan.value("model") : import.model;
    if (name.empty()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{}: of which model? --model says, or a config.json "
                              "beside it",
                              *import.weights));
    }
    const ImportLedger found = check_stored(read_safetensors(*import.weights), named_model(name));
    plan.ledger.insert(plan.ledger.end(), found.begin(), found.end());
  }
  document_of(PlanDocument{}, plan);  // throws for a value that is none of the key's
  const std::string text = plan_text(plan, beside);
  if (!options.out.empty()) write_file(options.out, text);
  if (options.output.form == Form::kJson) {
    write_answer(
        document("foreshard.import/1",
                 {{"format", plan.format}, {"plan", text}, {"ledger", ledger_json(plan.ledger)}}));
    return ExitCode::kOk;
  }
  std::string answer = options.out.empty() ? text : fmt::format("# written to {}\n", options.out);
  answer += "\n";
  write_text(answer + ledger_comments(plan.ledger));
  return ExitCode::kOk;
}

}  // namespace foreshard
