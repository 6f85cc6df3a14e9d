#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "interop/frameworks/frameworks.h"
#include "sim/base/integers.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/graph/layers/layer_modules.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// Whose words the file has beside those of TrainingArguments, and what that code takes by default.
ConfigItem code_of(const ConfigNode& root) {
  const ConfigNode codes = settings_of("trainer").at("codes");
  const auto is = [&](const ConfigItem& code) {
    return std::ranges::any_of(
        parts_of(code.value.at("tells").as_string(), " "), [&](const std::string& key) { return root.has(key); });
  };
  const auto found = std::ranges::find_if(codes.items(), is);
  return found == codes.items().end() ? codes.items().back() : *found;
}

// Settings of a runtime that the code has by their name, or what is said.
ConfigNode named(const ConfigNode& root, const ConfigNode& said) {
  const ConfigNode code = code_of(root).value;
  const ConfigNode* names = said.is_scalar() ? code.find("named") : nullptr;
  const ConfigNode* settings = names == nullptr ? nullptr : names->find(said.text());
  return settings == nullptr ? said : *settings;
}

bool is_pattern(const std::string& name) { return name.find_first_of("\\*+?[]()|^$") != std::string::npos; }

// A flag, or text; a list as words with commas between, as Accelerate has it.
std::vector<std::string> texts_of(const ConfigNode& list) {
  std::vector<std::string> texts;
  for (const ConfigNode& element : list.elements()) texts.push_back(element.as_string());
  return texts;
}
Json json_of(const ConfigNode& node) {
  if (node.is_sequence()) return fmt::format("{}", fmt::join(texts_of(node), ","));
  const std::string text = lower(std::string(node.text()));
  const bool is_flag = !node.is_quoted() && (text == "true" || text == "false");
  return is_flag ? Json(text == "true") : Json(node.as_string());
}

// fsdp and fsdp_config as Accelerate's plugin has them (transformers, trainer.py,
// _process_fsdp_args); the files' words may have its prefix.
ConfigNode accelerate_settings(const ConfigNode& root, const std::string& compute) {
  Json config = Json::object();
  const auto set = [&](std::string key, const Json& value) {
    if (key == "fsdp_transformer_layer_cls_to_wrap" || key == "fsdp_min_num_params")
      config["fsdp_auto_wrap_policy"] = key == "fsdp_min_num_params" ? "SIZE_BASED_WRAP" : "TRANSFORMER_BASED_WRAP";
    config[std::move(key)] = value;
  };
  if (const ConfigNode* version = root.find("fsdp_version")) set("fsdp_version", version->as_int(1, 2));
  std::vector<std::string> words;
  if (const ConfigNode* fsdp = root.find("fsdp"); fsdp != nullptr && fsdp->is_sequence()) words = texts_of(*fsdp);
  else if (fsdp != nullptr && fsdp->is_scalar()) words = parts_of(fsdp->as_string(), " ");
  static constexpr std::pair<const char*, const char*> kStrategies[] = {
      {"full_shard", "FULL_SHARD"}, {"shard_grad_op", "SHARD_GRAD_OP"}, {"hybrid_shard", "HYBRID_SHARD"}};
  for (const std::string& word : words) {
    if (word == "auto_wrap") set("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
    if (word == "offload") set("fsdp_offload_params", true);
    for (const auto& [theirs, ours] : kStrategies)
      if (word == theirs) set("fsdp_sharding_strategy", ours);
  }
  const ConfigNode* own = root.find("fsdp_config");
  if (own != nullptr && own->is_mapping()) {
    for (const ConfigItem& item : own->items()) {
      if (item.value.is_mapping() || item.value.is_null()) continue;
      set(item.key.starts_with("fsdp_") ? item.key : "fsdp_" + item.key, json_of(item.value));
    }
  }
  // Blocks are wrapped unless told otherwise, from FSDP2 on.
  const bool is_second =
      config.contains("fsdp_version") && (config["fsdp_version"] == 2 || config["fsdp_version"] == "2");
  if (config.contains("fsdp_version")) config["fsdp_version"] = is_second ? 2 : 1;
  if (is_second && !config.contains("fsdp_auto_wrap_policy"))
    config["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP";
  const Json all = {{"distributed_type", "FSDP"}, {"mixed_precision", compute.empty() ? "no" : compute},
      {"fsdp_config", std::move(config)}};
  return parse_json(all.dump(), root.location().file);
}

constexpr const char* kUsual = "the code's default";

class TrainerReader {
 public:
  TrainerReader(
      const ConfigNode& root, ForeignPlan& plan, const ForeignPlan* sharding, std::string stage, std::int64_t gpus)
      : root_(root),
        plan_(plan),
        sharding_(sharding),
        stage_(std::move(stage)),
        gpus_(gpus),
        code_(code_of(root)),
        reader_(root, plan, "trainer") {
    plan_.format = code_.key;
  }

  void read() {
    for (const char* key : {"model_name_or_path", "base_model", "model"})
      if (const ConfigNode* name = reader_.find(key)) reader_.map(key, "model", name->as_string());
    reader_.assume("stack", "hf_trainer", "transformers' Trainer");
    read_runtime();
    read_dtypes();
    reader_.take("arguments");
    if (!plan_.has("optimizer.kind"))
      reader_.assume("optimizer.implementation", "fused", "transformers 5: adamw_torch_fused");
    if (runtime() == "ddp") reader_.take("ddp");
    if (runtime() == "ddp" && gpus_ == 1) reader_.assume("ddp.bucket_cap_mb", "0", "one GPU");
    reader_.take("missing");
    read_checkpoints();
    read_adapters();
    read_stored();
    read_batch();
    read_loss();
    read_stage();
    take_usual(where());
    if (!root_.has("rl")) take_usual("tuning_on_" + runtime());
    reader_.finish();
  }

 private:
  bool is_of(std::string_view code) const { return code_.key == code; }
  // What the code takes in such a case where nobody says it.
  void take_usual(const std::string& when) {
    const ConfigNode* keys = code_.value.find(when);
    if (keys == nullptr) return;
    for (const ConfigItem& each : keys->items()) {
      const bool is_off = each.key == "recompute_reentrant" && plan_.value("recompute") == "none";
      if (!plan_.has(each.key) && !is_off) reader_.assume(each.key, each.value.as_string(), kUsual);
    }
  }
  std::string where() const { return (plan_.has("lora.rank") ? "adapters_on_" : "full_on_") + runtime(); }
  bool is_on(const char* path) {
    const ConfigNode* node = reader_.find(path);
    return node != nullptr && node->is_scalar() && flag_of(*node);
  }
  // "auto" of Axolotl is yes on GPUs that have bf16.
  bool is_on_or_auto(const char* path) {
    const ConfigNode* node = root_.find(path);
    return is_on(path) || (node != nullptr && node->is_scalar() && node->text() == "auto");
  }
  std::string runtime() const {
    const std::string own = plan_.value("runtime");
    return own.empty() ? sharding_->value("runtime") : own;
  }

  // The key that switches 16 bits on, "": none does, and what it says.
  std::pair<std::string, std::string> dtype() {
    for (const char* key : {"bf16", "bfloat16", "pure_bf16"})
      if (is_on_or_auto(key)) return {key, "bf16"};
    for (const char* key : {"fp16", "float16"})
      if (is_on_or_auto(key)) return {key, "fp16"};
    if (is_of("ms-swift") && reader_.find("torch_dtype") != nullptr)
      return {"torch_dtype", is_word("torch_dtype", "bfloat16") ? "bf16" : "fp16"};
    // trl/trainer/base_config.py: bf16 unless fp16 is asked for; ms-swift: as config.json says.
    return {"", (is_of("TRL") || is_of("ms-swift")) && !root_.has("bf16") ? "bf16" : ""};
  }

  void read_dtypes() {
    const auto [key, compute] = dtype();
    const bool by_sharding =
        sharding_ != nullptr && sharding_->has("dtype.param") && !sharding_->assumed.contains("dtype.param");
    const bool is_late = is_of("Axolotl") && runtime() == "zero3" && !plan_.has("dtype.param") && !by_sharding;
    if (is_late) reader_.assume("dtype.param", "fp32", "Axolotl makes the model before an \"auto\" is filled in");
    else if (!key.empty()) reader_.map(key, "dtype.param", compute);
    else if (!compute.empty()) reader_.assume("dtype.param", compute, kUsual);
    else if (!by_sharding) reader_.assume("dtype.param", "fp32", "neither bf16 nor fp16");
  }

  // Parameters stay as they were loaded under DDP, but for adapters, which PEFT makes in fp32;
  // Axolotl's under fully_shard, too; the others train in fp32.
  void read_stored() {
    const bool is_sharded = runtime() == "fsdp2";
    const bool is_axolotl = is_of("Axolotl") && plan_.value("dtype.param") == "bf16";
    if (plan_.has("lora.rank") || !(runtime() == "ddp" || (is_sharded && is_axolotl))) return;
    const ConfigNode* loaded = find_first({"dtype", "torch_dtype"});
    if (is_on("pure_bf16")) {
      reader_.map("pure_bf16", "dtype.master", "bf16");
    } else if (is_axolotl) {
      // axolotl/loaders/model.py, _configure_embedding_dtypes; ATTN_IMPLS_WITHOUT_DTYPE_CAST
      const std::string attention = plan_.value("attention");
      const bool is_narrow = is_sharded || attention.starts_with("fa") || attention == "flex";
      reader_.assume(is_narrow ? "dtype.master" : "ddp.blocks_narrow", is_narrow ? "bf16" : "true",
          "Axolotl loads the model in bf16, tables and norms in fp32 but for flash attention and fully_shard");
    } else if (is_of("ms-swift") && loaded == nullptr) {
      reader_.assume("dtype.master", plan_.value("dtype.param"), "loaded as config.json says");
    } else if (loaded != nullptr) {
      const std::string word = loaded->as_string();
      const char* path = root_.has("dtype") ? "dtype" : "torch_dtype";
      if (word == "bfloat16") reader_.map(path, "dtype.master", "bf16");
      if (word == "float16") reader_.map(path, "dtype.master", "fp16");
    }
  }

  const ConfigNode* find_given(const char* path) {
    const ConfigNode* node = reader_.find(path);
    return node != nullptr && says_something(*node) ? node : nullptr;
  }

  static constexpr std::initializer_list<const char*> kKernels = {
      "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"};

  const ConfigNode* find_first(std::initializer_list<const char*> paths) {
    for (const char* path : paths)
      if (const ConfigNode* node = reader_.find(path)) return node;
    return nullptr;
  }

  void read_runtime() {
    const ConfigNode* deepspeed = find_given("deepspeed");
    if (sharding_ != nullptr) {
      if (deepspeed != nullptr) reader_.ignore("deepspeed", "read beside it");
      for (const char* key : {"fsdp", "fsdp_config", "fsdp_version"})
        reader_.ignore(key, fmt::format("{}'s settings say the runtime", sharding_->format));
      plugin_checkpoints_ = sharding_->value("recompute") == "full";
      const bool is_fsdp = sharding_->value("runtime").starts_with("fsdp");
      if (!is_fsdp) reader_.assume("trainer", "transformers", "Trainer");
      if (is_fsdp) take_usual("fsdp");
      return;
    }
    if (deepspeed != nullptr) {
      take(read_deepspeed(named(root_, *deepspeed)), "deepspeed");
      reader_.assume("trainer", "transformers", "Trainer");
      return;
    }
    const ConfigNode* fsdp = find_given("fsdp");
    if (fsdp != nullptr || find_given("fsdp_config") != nullptr) {
      take_usual("fsdp");
      reader_.ignore("fsdp_version", "read as Accelerate's settings");
      const ConfigNode by_name = fsdp == nullptr ? root_ : named(root_, *fsdp);
      take(read_accelerate(accelerate_settings(by_name.is_mapping() ? by_name : root_, dtype().second)),
          root_.has("fsdp_config") ? "fsdp_config" : "fsdp");
      plugin_checkpoints_ = plan_.value("recompute") == "full";
      return;
    }
    reader_.assume("runtime", "ddp", "neither deepspeed nor fsdp");
    reader_.assume("trainer", "transformers", "Trainer");
  }

  // What another reader made of a part of this file.
  void take(ForeignPlan part, const char* path) {
    reader_.ignore(path, fmt::format("read as {}'s settings", part.format));
    const int line = root_.at(path).key_location().line;
    for (ImportEntry& entry : part.ledger) {
      entry.file = root_.location().file;
      entry.line = line;
    }
    plan_ = joined(std::move(plan_), std::move(part));
  }

  // Preferences: the answers of a sample are one batch; a frozen reference may run beside it.
  void read_stage() {
    const char* path = root_.has("rl") ? "rl" : root_.has("rlhf_type") ? "rlhf_type" : "stage";
    if (const ConfigNode* said = reader_.find(path)) stage_ = said->as_string();
    if (stage_.empty()) stage_ = "sft";
    const ConfigNode stages = settings_of("trainer").at("stages");
    const ConfigNode* loss = reader_.find("pref_loss");
    if (stage_ == "dpo" && loss != nullptr && stages.has(loss->as_string())) stage_ = loss->as_string();
    const ConfigNode* row = stages.find(stage_);
    if (row == nullptr || (row->is_mapping() && !row->has(plan_.format)))
      return reader_.unsupported(path, stage_ + " is forecast as fine-tuning on the same sequences");
    reader_.ignore(path, "what a sample is");
    if (!row->is_mapping()) return;
    const auto micro_batch = parse_number<std::int64_t>(plan_.value("batch.micro_batch"));
    const auto say = [&](const char* key, const std::string& value, const char* why) {
      reader_.assume(key, value, why);
      plan_.assumed.erase(key);
    };
    if (const ConfigNode* one = row->find("one_answer")) {
      reader_.assume("batch.micro_batch", fmt::format("{}", micro_batch.value_or(1)), one->as_string());
    } else {
      say("batch.micro_batch", fmt::format("{}", 2 * micro_batch.value_or(1)),
          "two answers to each prompt are one batch");
    }
    if (!plan_.has("batch.padded")) reader_.assume("batch.padded", "true", "answers are padded");
    // Outputs of DDP and FSDP1 are fp32 (Accelerate's prepare_model).
    const auto say_all = [&](const ConfigNode& keys) {
      for (const ConfigItem& each : keys.items()) {
        const bool is_meant = !each.key.starts_with("lora.") || plan_.has("lora.rank");
        if (is_meant && each.value.is_scalar()) say(each.key.c_str(), each.value.as_string(), "the code's step");
      }
    };
    const ConfigNode ours = row->at(plan_.format);
    const ConfigNode *wide = ours.find("fp32"), *here = ours.find(where());
    say_all(ours);
    if (here != nullptr) say_all(*here);
    if (wide != nullptr && (runtime() == "ddp" || runtime() == "fsdp1")) say_all(*wide);
    if (row->find("reference") == nullptr || is_on("precompute_ref_log_probs")) return;
    if (plan_.has("lora.rank")) return say("reference", "base", "the model without its adapters");
    const bool is_factory = is_of("LLaMA-Factory");
    const char* cut = is_factory ? "units" : "unit";
    const bool cuts = runtime() == "zero3" || runtime() == "fsdp1";
    say("reference", runtime() == "fsdp2" ? cut : cuts ? "units" : "whole", "a frozen copy of the model");
    if (is_factory && runtime() == "ddp" && !is_on("pure_bf16"))
      reader_.assume("dtype.reference", plan_.value("dtype.param"), "loaded to compute");
  }

  void read_checkpoints() {
    if (plugin_checkpoints_) reader_.assume("recompute", "full", "the plugin's, which the trainer's are off for");
    else if (!plan_.has("recompute") || plan_.assumed.contains("recompute"))
      reader_.assume("recompute", code_.value.at("always").at("recompute").as_string(), kUsual);
    if (runtime() == "fsdp2") return;
    take_usual(runtime() == "ddp" && gpus_ != 1 ? "ddp" : "checkpoints");
  }

  void read_adapters() {
    const bool by_type = is_word("finetuning_type", "lora"), by_peft = is_on("use_peft");
    const bool by_adapter = is_word("adapter", "lora"), is_qlora = is_word("adapter", "qlora");
    const bool four_bits = is_on("load_in_4bit"), all_linear = is_on("lora_target_linear");
    const ConfigNode* bits = find_first({"quantization_bit", "quant_bits"});
    if (is_word("finetuning_type", "freeze"))
      reader_.unsupported("finetuning_type", "all parameters are taken as trained");
    const bool by_tuner = is_word("tuner_type", "lora");
    const bool has_adapters = by_type || by_peft || by_adapter || is_qlora || by_tuner ||
                              (is_of("ms-swift") && !find_first({"tuner_type", "train_type"}));
    for (const char* key : {"finetuning_type", "adapter", "use_peft", "tuner_type"})
      if (root_.has(key) && !is_word(key, "freeze")) reader_.ignore(key, has_adapters ? "adapters" : "no adapters");
    if (!has_adapters) return drop_adapters();
    if (runtime() == "fsdp1" || (is_of("Axolotl") && runtime() == "fsdp2")) {
      reader_.assume("units.adapters_alone", "true",
          is_of("Axolotl") ? "Axolotl makes a unit of each" : "Trainer takes PEFT's fsdp_auto_wrap_policy");
    }
    read_fused_adapters();
    read_targets(all_linear);
    take_usual("adapters");
    read_modules_to_save();
    read_base(is_qlora || four_bits || (bits != nullptr && bits->as_int() == 4));
  }

  void drop_adapters() {
    std::erase_if(plan_.keys, [](const auto& key) { return key.first.starts_with("lora."); });
    for (ImportEntry& entry : plan_.ledger) {
      if (!entry.to.starts_with("lora.")) continue;
      entry.mapping = Mapping::kIgnored;
      entry.why = "no adapters";
    }
  }

  // Axolotl's kernels, where the feed-forward's three have adapters.
  void read_fused_adapters() {
    const ConfigNode* list = find_given("lora_target_modules");
    const std::string adapted = list == nullptr ? "linear" : json_of(*list).dump();
    const bool has_mlp = contains(adapted, "linear") || contains(adapted, "gate_proj");
    if (is_of("Axolotl") && runtime() != "fsdp1" && !find_first(kKernels) && !is_on("load_in_8bit") &&
        !is_on("trust_remote_code") && !root_.has("rl") && has_mlp)
      reader_.assume("lora.fused", "true", "Axolotl switches its kernels on");
  }

  void read_targets(bool all_linear) {
    bool has_targets = false;
    for (const char* key : {"lora_target_modules", "lora_target", "target_modules", "target_regex"}) {
      const ConfigNode* names = reader_.find(key);
      if (names == nullptr) continue;
      const bool is_one = !names->is_sequence() && is_pattern(names->as_string());
      const auto list = names->is_sequence() ? texts_of(*names) : parts_of(names->as_string(), is_one ? "\n" : ",");
      const bool is_all = list.size() == 1 && (list[0] == "all" || list[0] == "all-linear");
      reader_.map(key, "lora.targets", is_all ? "all-linear" : Json(list).dump());
      has_targets = true;
    }
    if (all_linear && !has_targets) reader_.map("lora_target_linear", "lora.targets", "all-linear");
  }

  void read_modules_to_save() {
    for (const char* key : {"lora_modules_to_save", "additional_target", "modules_to_save"}) {
      const ConfigNode* names = find_given(key);
      if (names == nullptr) continue;
      const std::string all = json_of(*names).dump();
      std::vector<const char*> saved;
      if (contains(all, "embed_tokens")) saved.push_back("embedding");
      if (contains(all, "lm_head")) saved.push_back("head");
      if (saved.empty()) reader_.unsupported(key, "what is trained whole is embedding or head alone");
      else reader_.map(key, "lora.modules_to_save", fmt::format("[{}]", fmt::join(saved, ", ")));
    }
  }

  // How what adapters lie beside is stored.
  void read_base(bool in_four_bits) {
    const bool is_trl = is_of("TRL"), is_fsdp2 = runtime() == "fsdp2";
    const bool is_wide = is_trl && !is_word("dtype", "bfloat16") && !is_word("dtype", "auto");
    if (!in_four_bits) {
      if (is_wide || (is_of("LLaMA-Factory") && is_fsdp2))
        reader_.assume("lora.base", "master", is_trl ? "TRL loads the model in fp32" : "Accelerate 1.11 makes it fp32");
      return;
    }
    const bool is_replicated = runtime() == "ddp" || (is_trl && is_fsdp2);
    const bool is_mixed = is_wide && is_replicated;
    reader_.assume("lora.base", is_mixed ? "nf4-master" : "nf4", "a base of four bits");
    if (is_replicated && !is_mixed && (is_trl || root_.has("rl")))
      reader_.assume("dtype.master", "bf16", "TRL casts adapters on such a base");
    if (!is_trl) return;
    if (is_fsdp2 && !root_.has("bnb_4bit_quant_storage"))
      reader_.assume("ignored", "packed", "Accelerate leaves blocks that are stored as bytes whole");
    else if (runtime() == "fsdp1") reader_.unsupported("load_in_4bit", "FSDP1 fails on it: it flattens no integers");
    if (!plan_.has("lora.double_quant")) reader_.assume("lora.double_quant", "false", "TRL's default");
  }

  bool is_word(const char* path, const char* word) {
    const ConfigNode* node = reader_.find(path);
    return node != nullptr && node->is_scalar() && node->text() == word;
  }

  // Sequences are as long as the longest of a batch, at most what is said; packed ones as long.
  void read_batch() {
    take_usual("always");
    if (is_of("ms-swift") && !plan_.has("batch.accumulation") && gpus_ > 0) {
      const auto micro = parse_number<std::int64_t>(plan_.value("batch.micro_batch")).value_or(1);
      reader_.assume(
          "batch.accumulation", fmt::format("{}", (15 + micro * gpus_) / (micro * gpus_)), "16 sequences a step");
    }
    const bool is_packed =
        is_on("packing") || is_on("sample_packing") || is_on("neat_packing") || is_on("padding_free");
    for (const char* key : {"packing", "sample_packing", "neat_packing", "padding_free"}) {
      reader_.ignore(key, is_packed ? "sequences are full; attention is taken over all of each"
                                    : "sequences are taken as long as they may be");
    }
    if (is_packed && is_of("Axolotl") && plan_.value("attention") == "flash" && !is_word("sdpa_varlen", "false"))
      reader_.assume("attention", "flash-all-heads", "PyTorch's varlen_attn, which Axolotl repeats heads for");
    if (!is_packed && plan_.value("batch.micro_batch") != "1")
      reader_.assume("batch.padded", "true", "samples that are not packed are padded");
  }

  // trl/trainer/sft_trainer.py: every loss takes the head's product by tiles.
  void read_loss() {
    reader_.ignore("loss_type", "loss");
    const ConfigNode* smoothing = reader_.find("label_smoothing_factor");
    if (smoothing != nullptr && smoothing->as_double() > 0) reader_.map("label_smoothing_factor", "loss", "smoothed");
    else if (is_of("TRL") && !plan_.has("loss")) reader_.assume("loss", "tiled-linear", "TRL's");
    if (is_of("TRL") && plan_.value("loss") == "liger") {
      reader_.assume("loss", "tiled-linear", "TRL leaves Liger's loss out");
      reader_.assume("kernels.activation", "liger", "use_liger_kernel");
    }
    if (is_of("TRL")) read_labelled();
  }

  // Prompts have no labels.
  void read_labelled() {
    const auto length = parse_number<std::int64_t>(plan_.value("batch.sequence")).value_or(0);
    const auto say = [&](const char* key, bool is_prompt) {
      const ConfigNode* node = reader_.find(key);
      if (node == nullptr) return;
      const std::int64_t labelled = is_prompt ? length - node->as_int() : node->as_int();
      if (plan_.has("batch.labelled") || labelled <= 0 || labelled > length)
        return reader_.ignore(key, "the sequence's length says it");
      reader_.map(key, "batch.labelled", fmt::format("{}", labelled));
    };
    say("max_completion_length", false);
    say("max_prompt_length", true);
  }

  ConfigNode root_;
  ForeignPlan& plan_;
  const ForeignPlan* sharding_;
  std::string stage_;
  std::int64_t gpus_;
  bool plugin_checkpoints_ = false;
  ConfigItem code_;
  ForeignReader reader_;
};

}

// peft/tuners/tuners_utils.py, check_target_module_exists: a pattern is of whole names, which a
// model of images has longer; words of a list are their ends. What the model lacks is nobody's.
void fill_targets(const ModelSpec* model, ForeignPlan& plan) {
  const std::string value = plan.value("lora.targets");
  if (!value.starts_with("[\"")) return;
  const auto targets = Json::parse(value).get<std::vector<std::string>>();
  std::set<std::string> found;
  std::optional<std::regex> pattern;
  try {
    if (is_pattern(targets.front())) pattern = targets.front();
  } catch (const std::regex_error&) {  // Python's alone
    model = nullptr;
  }
  if (model == nullptr && !is_pattern(targets.front())) found = {targets.begin(), targets.end()};
  for (std::int32_t l = 0; model != nullptr && l < std::ssize(model->order); ++l) {
    const LayerSpec& layer = model->kinds[at(model->order[at(l)].kind)];
    for (const Operation& op : layer.operations) {
      if (!takes_adapter(layer, op)) continue;
      std::string name = parameter_name(*model, l, op.parameters.front());
      name.resize(std::min(name.rfind('.'), name.size()));
      const auto is = [&](const auto& word) { return is_module(name, word); };
      const auto fits = [&](const std::string& whole) { return std::regex_match(whole, *pattern); };
      if (pattern ? fits(name) || fits("language_model." + name) ||
                        fits("model.language_model" + name.substr(std::min(name.size(), name.find('.'))))
                  : std::ranges::any_of(targets, is))
        found.insert(op.name);
    }
  }
  const std::string names = fmt::format("[{}]", fmt::join(found, ", "));
  std::erase_if(plan.keys, [](const auto& key) { return key.first == "lora.targets"; });
  if (!found.empty()) plan.set("lora.targets", names);
  for (ImportEntry& entry : plan.ledger) {
    if (!entry.to.starts_with("lora.targets: ")) continue;
    entry.to = found.empty() ? "" : "lora.targets: " + names;
    if (!found.empty()) continue;
    entry.mapping = Mapping::kUnsupported;
    entry.why = "not known of this model; taken as all linear layers";
  }
}

bool looks_like_trainer(const ConfigNode& root) {
  if (!root.is_mapping()) return false;
  const bool is_axolotl = root.has("base_model") && (root.has("micro_batch_size") || root.has("sequence_len"));
  return is_axolotl || root.has("per_device_train_batch_size") || root.has("finetuning_type") ||
         code_of(root).key == "ms-swift" ||
         (root.has("model_name_or_path") && (root.has("learning_rate") || root.has("use_peft")));
}

std::string deepspeed_file_of(const ConfigNode& root) {
  const ConfigNode* file = root.find("deepspeed");
  return file != nullptr && named(root, *file).is_scalar() ? file->as_string() : "";
}

ForeignPlan read_trainer(
    const ConfigNode& root, const ForeignPlan* sharding, const std::string& stage, std::int64_t gpus) {
  ForeignPlan plan;
  TrainerReader(root, plan, sharding, stage, gpus).read();
  return sharding == nullptr ? plan : joined(std::move(plan), *sharding);
}

}
