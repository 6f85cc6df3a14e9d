#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "interop/frameworks/frameworks.h"
#include "sim/base/letters.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// Whose words the file has beside those of TrainingArguments.
enum class Dialect { kTransformers, kTrl, kLlamaFactory, kAxolotl };

Dialect dialect_of(const ConfigNode& root) {
  if (root.has("base_model")) return Dialect::kAxolotl;
  if (root.has("finetuning_type") || root.has("cutoff_len")) return Dialect::kLlamaFactory;
  for (const char* key : {"max_length", "max_seq_length", "packing", "use_peft", "loss_type"}) {
    if (root.has(key)) return Dialect::kTrl;
  }
  return Dialect::kTransformers;
}

class TrainerReader {
 public:
  TrainerReader(const ConfigNode& root, ForeignPlan& plan, const ForeignPlan* sharding)
      : root_(root),
        plan_(plan),
        sharding_(sharding),
        dialect_(dialect_of(root)),
        reader_(root, plan, "trainer") {}

  void read() {
    for (const char* key : {"model_name_or_path", "base_model"}) {
      if (const ConfigNode* name = reader_.find(key)) reader_.map(key, "model", name->as_string());
    }
    reader_.assume("stack", "hf_trainer", "transformers' Trainer");
    read_runtime();
    read_dtypes();
    reader_.take("arguments");
    if (!plan_.has("optimizer.kind")) {
      reader_.assume("optimizer.implementation", "fused", "transformers 5: adamw_torch_fused");
    }
    if (runtime() == "ddp") reader_.take("ddp");
    read_missing();
    read_checkpoints();
    read_adapters();
    read_unused();
    read_stored();
    read_batch();
    read_loss();
    reader_.finish();
  }

 private:
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
    for (const char* key : {"bf16", "bfloat16", "pure_bf16"}) {
      if (is_on_or_auto(key)) return {key, "bf16"};
    }
    for (const char* key : {"fp16", "float16"}) {
      if (is_on_or_auto(key)) return {key, "fp16"};
    }
    // trl/trainer/base_config.py: bf16 unless fp16 is asked for.
    return {"", dialect_ == Dialect::kTrl && !root_.has("bf16") ? "bf16" : ""};
  }

  void read_dtypes() {
    const auto [key, compute] = dtype();
    const bool by_sharding = sharding_ != nullptr && sharding_->has("dtype.param") &&
                             !sharding_->assumed.contains("dtype.param");
    if (!key.empty()) {
      reader_.map(key, "dtype.param", compute);
    } else if (!compute.empty()) {
      reader_.assume("dtype.param", compute, "TRL's default");
    } else if (!by_sharding) {
      reader_.assume("dtype.param", "fp32", "neither bf16 nor fp16");
    }
  }

  // Under DDP parameters stay as they were loaded, but for adapters, which PEFT makes in fp32; the
  // others train in fp32.
  void read_stored() {
    const bool pure = is_on("pure_bf16");
    const ConfigNode* loaded = find_first({"dtype", "torch_dtype"});
    if (runtime() != "ddp" || plan_.has("lora.rank")) return;
    if (pure) {
      reader_.map("pure_bf16", "dtype.master", "bf16");
    } else if (dialect_ == Dialect::kAxolotl && plan_.value("dtype.param") == "bf16") {
      reader_.assume("dtype.master", "bf16",
                     "Axolotl loads the model in bf16; but for flash attention it keeps tables and "
                     "norms in fp32, which are taken as the rest");
    } else if (loaded != nullptr) {
      const std::string word = loaded->as_string();
      const char* path = root_.has("dtype") ? "dtype" : "torch_dtype";
      if (word == "bfloat16") reader_.map(path, "dtype.master", "bf16");
      if (word == "float16") reader_.map(path, "dtype.master", "fp16");
    }
  }

  // "", [] and false say that there is none.
  const ConfigNode* find_given(const char* path) {
    const ConfigNode* node = reader_.find(path);
    if (node == nullptr) return nullptr;
    const bool is_empty = node->is_sequence() ? node->elements().empty()
                                              : node->is_scalar() && (node->text().empty() ||
                                                                      node->text() == "false");
    return is_empty ? nullptr : node;
  }

  const ConfigNode* find_first(std::initializer_list<const char*> paths) {
    for (const char* path : paths) {
      if (const ConfigNode* node = reader_.find(path)) return node;
    }
    return nullptr;
  }

  void read_runtime() {
    const ConfigNode* deepspeed = find_given("deepspeed");
    if (sharding_ != nullptr) {
      if (deepspeed != nullptr) reader_.ignore("deepspeed", "read beside it");
      for (const char* key : {"fsdp", "fsdp_config", "fsdp_version"}) {
        reader_.ignore(key, fmt::format("{}'s settings say the runtime", sharding_->format));
      }
      const bool is_fsdp = sharding_->value("runtime").starts_with("fsdp");
      if (!is_fsdp) reader_.assume("trainer", "transformers", "Trainer");
      return;
    }
    if (deepspeed != nullptr) {
      take(read_deepspeed(*deepspeed), "deepspeed");
      reader_.assume("trainer", "transformers", "Trainer");
      return;
    }
    if (find_given("fsdp") != nullptr || find_given("fsdp_config") != nullptr) {
      take(read_accelerate(fsdp_settings()), root_.has("fsdp_config") ? "fsdp_config" : "fsdp");
      return;
    }
    reader_.assume("runtime", "ddp", "neither deepspeed nor fsdp");
    reader_.assume("trainer", "transformers", "Trainer");
  }

  // A flag, or text; a list as words with commas between, as Accelerate has it.
  static Json json_of(const ConfigNode& node) {
    if (node.is_sequence()) return fmt::format("{}", fmt::join(texts_of(node), ","));
    const std::string text = lower(std::string(node.text()));
    const bool is_flag = !node.is_quoted() && (text == "true" || text == "false");
    return is_flag ? Json(text == "true") : Json(node.as_string());
  }
  static std::vector<std::string> texts_of(const ConfigNode& list) {
    std::vector<std::string> texts;
    for (const ConfigNode& element : list.elements()) texts.push_back(element.as_string());
    return texts;
  }

  // fsdp and fsdp_config as Accelerate's plugin has them (transformers, trainer.py,
  // _process_fsdp_args); the files' words may have its prefix.
  ConfigNode fsdp_settings() {
    Json config = Json::object();
    const auto set = [&](std::string key, const Json& value) {
      if (key == "fsdp_transformer_layer_cls_to_wrap" || key == "fsdp_min_num_params") {
        config["fsdp_auto_wrap_policy"] =
            key == "fsdp_min_num_params" ? "SIZE_BASED_WRAP" : "TRANSFORMER_BASED_WRAP";
      }
      config[std::move(key)] = value;
    };
    if (const ConfigNode* version = reader_.find("fsdp_version")) {
      set("fsdp_version", version->as_int(1, 2));
    }
    std::vector<std::string> words;
    if (const ConfigNode* fsdp = root_.find("fsdp"); fsdp != nullptr && fsdp->is_sequence()) {
      words = texts_of(*fsdp);
    } else if (fsdp != nullptr && fsdp->is_scalar()) {
      words = parts_of(fsdp->as_string(), " ");
    }
    for (const std::string& word : words) {
      if (word == "auto_wrap") set("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
      if (word == "offload") set("fsdp_offload_params", true);
      if (word == "full_shard") set("fsdp_sharding_strategy", "FULL_SHARD");
      if (word == "shard_grad_op") set("fsdp_sharding_strategy", "SHARD_GRAD_OP");
      if (word == "hybrid_shard") set("fsdp_sharding_strategy", "HYBRID_SHARD");
    }
    const ConfigNode* own = root_.find("fsdp_config");
    if (own != nullptr && own->is_mapping()) {
      for (const ConfigItem& item : own->items()) {
        if (item.value.is_mapping() || item.value.is_null()) continue;
        set(item.key.starts_with("fsdp_") ? item.key : "fsdp_" + item.key, json_of(item.value));
      }
    }
    // Blocks are wrapped unless told otherwise, from FSDP2 on.
    const bool is_second = config.contains("fsdp_version") &&
                           (config["fsdp_version"] == 2 || config["fsdp_version"] == "2");
    if (config.contains("fsdp_version")) config["fsdp_version"] = is_second ? 2 : 1;
    if (is_second && !config.contains("fsdp_auto_wrap_policy")) {
      config["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP";
    }
    const std::string compute = dtype().second;
    const Json all = {{"distributed_type", "FSDP"},
                      {"mixed_precision", compute.empty() ? "no" : compute},
                      {"fsdp_config", std::move(config)}};
    return parse_json(all.dump(), root_.location().file);
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

  void read_missing() {
    reader_.take("missing");
    std::erase_if(plan_.ledger, [](const ImportEntry& each) {  // as they are by default
      return each.mapping == Mapping::kUnsupported &&
             (each.what.ends_with(": false") || each.what.ends_with(": 1"));
    });
    if (const ConfigNode* stage = reader_.find("stage")) {
      const std::string word = stage->as_string();
      if (word != "sft" && word != "pt") {
        reader_.unsupported("stage", "forecast as a step of fine-tuning over the same sequences");
      }
    }
    if (const ConfigNode* rl = reader_.find("rl")) {
      reader_.unsupported("rl",
                          fmt::format("{} is forecast as a step of fine-tuning", rl->as_string()));
    }
  }

  void read_checkpoints() {
    if (!plan_.has("recompute") || plan_.assumed.contains("recompute")) {
      const bool on = dialect_ == Dialect::kLlamaFactory || dialect_ == Dialect::kTrl;
      reader_.assume("recompute", on ? "full" : "none",
                     on ? "gradients are checkpointed by default" : "no gradient_checkpointing");
    }
    if (plan_.has("recompute_reentrant") || plan_.value("recompute") == "none") return;
    const bool is_reentrant = dialect_ == Dialect::kLlamaFactory || dialect_ == Dialect::kAxolotl;
    if (is_reentrant && runtime() != "fsdp2") {
      reader_.assume("recompute_reentrant", "true", "the code's default");
    }
  }

  void read_adapters() {
    const bool by_type = is_word("finetuning_type", "lora"), by_peft = is_on("use_peft");
    const bool by_adapter = is_word("adapter", "lora"), is_qlora = is_word("adapter", "qlora");
    const bool four_bits = is_on("load_in_4bit"), all_linear = is_on("lora_target_linear");
    const ConfigNode* bits = reader_.find("quantization_bit");
    if (is_word("finetuning_type", "freeze")) {
      reader_.unsupported("finetuning_type", "all parameters are taken as trained");
    }
    const bool has_adapters = by_type || by_peft || by_adapter || is_qlora;
    for (const char* key : {"finetuning_type", "adapter", "use_peft"}) {
      if (root_.has(key) && !is_word(key, "freeze")) {
        reader_.ignore(key, has_adapters ? "adapters" : "no adapters");
      }
    }
    if (!has_adapters) {
      std::erase_if(plan_.keys, [](const auto& key) { return key.first.starts_with("lora."); });
      for (ImportEntry& entry : plan_.ledger) {
        if (!entry.to.starts_with("lora.")) continue;
        entry.mapping = Mapping::kIgnored;
        entry.why = "no adapters";
      }
      return;
    }
    const bool is_trl = dialect_ == Dialect::kTrl;
    if (!plan_.has("lora.rank")) {
      reader_.assume("lora.rank", is_trl ? "16" : "8", "the code's default");
    }
    if (is_trl && !plan_.has("lora.dropout")) {
      reader_.assume("lora.dropout", "0.05", "TRL's default");
    }
    bool has_targets = false;
    for (const char* key : {"lora_target_modules", "lora_target"}) {
      const ConfigNode* names = reader_.find(key);
      if (names == nullptr) continue;
      const std::vector<std::string> list =
          names->is_sequence() ? texts_of(*names) : parts_of(names->as_string(), ",");
      const bool is_pattern = std::ranges::any_of(list, [](const std::string& name) {
        return name.find_first_of("\\*+?[]()|^$") != std::string::npos;
      });
      if (is_pattern) {
        reader_.unsupported(key, "a pattern; taken as all linear layers");
        continue;
      }
      const bool is_all = list.size() == 1 && (list[0] == "all" || list[0] == "all-linear");
      reader_.map(key, "lora.targets",
                  is_all ? "all-linear" : fmt::format("[{}]", fmt::join(list, ", ")));
      has_targets = true;
    }
    if (all_linear && !has_targets) {
      reader_.map("lora_target_linear", "lora.targets", "all-linear");
    }
    if (is_qlora || four_bits || (bits != nullptr && bits->as_int() == 4)) {
      reader_.assume("lora.base", "nf4", "a base of four bits");
    } else if (is_trl && !is_word("dtype", "bfloat16") && !is_word("dtype", "auto")) {
      reader_.assume("lora.base", "master", "TRL loads the model in fp32");
    }
  }

  // llamafactory/hparams/parser.py, of adapters; axolotl/core/builders/causal.py.
  void read_unused() {
    const bool is_off = dialect_ == Dialect::kAxolotl ||
                        (dialect_ == Dialect::kLlamaFactory && plan_.has("lora.rank"));
    if (is_off && runtime() == "ddp" && !plan_.has("ddp.find_unused_parameters")) {
      reader_.assume("ddp.find_unused_parameters", "false", "the code's default");
    }
  }

  bool is_word(const char* path, const char* word) {
    const ConfigNode* node = reader_.find(path);
    return node != nullptr && node->is_scalar() && node->text() == word;
  }

  // Sequences are as long as the longest of a batch, at most what is said; packed ones as long.
  void read_batch() {
    if (!plan_.has("batch.micro_batch")) {
      const bool is_axolotl = dialect_ == Dialect::kAxolotl;
      reader_.assume("batch.micro_batch", is_axolotl ? "1" : "8", "TrainingArguments' default");
    }
    const bool is_packed = is_on("packing") || is_on("sample_packing") || is_on("neat_packing") ||
                           is_on("padding_free");
    for (const char* key : {"packing", "sample_packing", "neat_packing", "padding_free"}) {
      reader_.ignore(key, is_packed ? "sequences are full; attention is taken over all of each"
                                    : "sequences are taken as long as they may be");
    }
    if (!is_packed && plan_.value("batch.micro_batch") != "1") {
      reader_.assume("batch.padded", "true", "samples that are not packed are padded");
    }
  }

  // trl/trainer/sft_config.py: chunked_nll unless Liger's is on.
  void read_loss() {
    const ConfigNode* type = reader_.find("loss_type");
    const std::string word = type == nullptr ? "chunked_nll" : type->as_string();
    if (type != nullptr) reader_.ignore("loss_type", "loss");
    const ConfigNode* smoothing = reader_.find("label_smoothing_factor");
    if (smoothing != nullptr && smoothing->as_double() > 0) {
      reader_.map("label_smoothing_factor", "loss", "smoothed");
    } else if (dialect_ == Dialect::kTrl && word == "chunked_nll" && !plan_.has("loss")) {
      reader_.assume("loss", "tiled-linear", "TRL's chunked_nll");
    }
  }

  ConfigNode root_;
  ForeignPlan& plan_;
  const ForeignPlan* sharding_;
  Dialect dialect_;
  ForeignReader reader_;
};

}  // namespace

bool looks_like_trainer(const ConfigNode& root) {
  if (!root.is_mapping()) return false;
  const bool is_axolotl =
      root.has("base_model") && (root.has("micro_batch_size") || root.has("sequence_len"));
  return is_axolotl || root.has("per_device_train_batch_size") || root.has("finetuning_type") ||
         (root.has("model_name_or_path") && (root.has("learning_rate") || root.has("use_peft")));
}

std::string deepspeed_file_of(const ConfigNode& root) {
  const ConfigNode* file = root.find("deepspeed");
  return file != nullptr && file->is_scalar() ? file->as_string() : "";
}

ForeignPlan read_trainer(const ConfigNode& root, const ForeignPlan* sharding) {
  ForeignPlan plan;
  static constexpr const char* kNames[] = {"transformers' Trainer", "TRL", "LLaMA-Factory",
                                           "Axolotl"};
  plan.format = kNames[static_cast<std::size_t>(dialect_of(root))];
  TrainerReader(root, plan, sharding).read();
  return sharding == nullptr ? plan : joined(std::move(plan), *sharding);
}

}  // namespace foreshard
