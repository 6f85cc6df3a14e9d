#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "interop/frameworks/frameworks.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

void read_model(ForeignReader& reader) {
  std::string model, flavor, path = "model.name";
  for (const char* key : {"model.name", "model_spec.name"}) {
    if (const ConfigNode* node = reader.find(key)) {
      model = node->as_string();
      path = key;
    }
  }
  for (const char* key : {"model.flavor", "model_spec.flavor", "model_spec.size"})
    if (const ConfigNode* node = reader.find(key)) flavor = node->as_string();
  if (model.empty()) return;
  const ConfigNode flavors = settings_of("torchtitan").at("flavors");
  const ConfigNode* known = flavors.find(model);
  const ConfigNode* zoo = known == nullptr ? nullptr : known->find(flavor);
  if (zoo != nullptr) return reader.map(path, "model", zoo->as_string());
  reader.unsupported(path, fmt::format("flavor {} of {} is no model that is known by name: give --model",
                               flavor.empty() ? "?" : flavor, model));
}

// The saved JSON holds every module's settings; FlexAttention's are the ones with kernel options.
void read_attention(ForeignReader& reader) {
  static constexpr const char* kBackend = "attn_backend";  // of model_registry()
  if (const ConfigNode* backend = reader.find(kBackend)) {
    return backend->as_string() == "flex" ? reader.map(kBackend, "attention", "flex")
                                          : reader.ignore(kBackend, "FlashAttention over packed documents");
  }
  static constexpr const char* kLayers = "model_spec.model.layers";
  const ConfigNode* node = reader.find(kLayers);
  if (node == nullptr || !node->is_sequence() || node->elements().empty()) return;
  node = &node->elements().front();
  for (const char* key : {"attention", "inner_attention"}) {
    node = node->is_mapping() ? node->find(key) : nullptr;
    if (node == nullptr) return;
  }
  if (!node->is_mapping()) return;
  if (node->has("kernel_options")) return reader.map(kLayers, "attention", "flex");
  if (node->has("window_size")) reader.map(kLayers, "attention", "flash");  // over packed documents
}

std::int64_t stages_of(ForeignReader& reader) {
  const ConfigNode* const node = reader.find("parallelism.pipeline_parallel_degree");
  return node == nullptr ? 1 : node->as_int(1);
}

// A pipeline cuts what is a micro-batch without one (build_pipeline_schedule), whose gradients
// further ones may be added to.
void read_microbatches(ForeignReader& reader, const char* path, std::int64_t local) {
  static constexpr const char* kSize = "parallelism.pipeline_parallel_microbatch_size";
  const ConfigNode* const node = reader.find(kSize);
  const std::int64_t size = node == nullptr ? 1 : node->as_int(1);
  if (local % size != 0)
    return reader.unsupported(kSize, fmt::format("{} does not divide {} of {}", size, path, local));
  const std::string count = fmt::format("{}", local / size);
  if (node == nullptr) reader.assume("batch.micro_batch", "1", "as torchtitan cuts the batch for a pipeline");
  else reader.integer(kSize, "batch.micro_batch");
  reader.map(path, "pipeline.microbatches", count);
  const ConfigNode* const global = reader.find("training.global_batch_size");
  if (global == nullptr || global->as_int(-1) < 1)
    reader.assume("batch.accumulation", count, "one call of the schedule each step");
}

void read_stages(ForeignReader& reader) {
  if (stages_of(reader) == 1) return;
  const auto key = [](const char* name) { return fmt::format("parallelism.pipeline_parallel_{}", name); };
  reader.take("stages");
  const ConfigNode* const schedule = reader.find(key("schedule"));
  const bool is_single = schedule == nullptr || schedule->as_string() == "1F1B" || schedule->as_string() == "GPipe";
  if (reader.find(key("layers_per_stage")) != nullptr) {
    reader.unsupported(key("layers_per_stage"),
        "how many stages that makes depends on the model's layers: give pipeline.stages_per_rank");
  } else if (!is_single) {
    reader.assume("pipeline.stages_per_rank", "2", "as torchtitan makes of schedules of several");
  }
  reader.take("stage_ends");
  if (const ConfigNode* csv = reader.find(key("schedule_csv")); csv != nullptr && !csv->as_string().empty())
    reader.unsupported(key("schedule_csv"), "its rows are pipeline.orders of schedule custom");
}

// Since July 2026 the batch comes cut, and says into how many.
void read_cut_batch(ForeignReader& reader) {
  static constexpr const char* kCount = "parallelism.num_pp_microbatches";
  const ConfigNode* const count = reader.find(kCount);
  if (count == nullptr) return;
  if (stages_of(reader) == 1) return reader.ignore(kCount, "without stages");
  reader.integer(kCount, "pipeline.microbatches");
  const ConfigNode* const step = reader.find("training.num_tokens_per_train_step");
  if (step == nullptr || step->as_int(-1) < 1)
    reader.assume("batch.accumulation", std::string(count->text()), "one call of the schedule each step");
}

void read_batch(ForeignReader& reader) {
  std::optional<std::int64_t> sequence;
  for (const char* key : {"training.seq_len", "training.max_context_length"}) {
    if (const ConfigNode* node = reader.find(key)) {
      sequence = node->as_int(1);
      reader.integer(key, "batch.sequence");
    }
  }
  const bool has_stages = stages_of(reader) > 1;
  for (const char* key : {"training.local_batch_size", "training.batch_size"})
    if (const ConfigNode* node = reader.find(key); node != nullptr && has_stages)
      read_microbatches(reader, key, node->as_int(1));
    else reader.integer(key, "batch.micro_batch");
  const auto tokens = [&](const char* path, const char* key) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr || node->as_int(-1) < 1) return;
    if (!sequence || node->as_int() % *sequence != 0)
      return reader.unsupported(path, "tokens that are no whole sequences of max_context_length");
    reader.map(path, key, fmt::format("{}", node->as_int() / *sequence));
  };
  tokens("training.num_tokens_per_microbatch_per_dp_rank", "batch.micro_batch");
  tokens("training.num_tokens_per_train_step", "batch.global");
  if (const ConfigNode* node = reader.find("training.global_batch_size"); node != nullptr && node->as_int(-1) > 0)
    reader.integer("training.global_batch_size", "batch.global");
  read_cut_batch(reader);
}

void read_parallelism(ForeignReader& reader) {
  const auto key = [](const char* name) { return fmt::format("parallelism.{}", name); };
  reader.integer(key("data_parallel_replicate_degree"), "mesh.replicate");
  if (const ConfigNode* node = reader.find(key("data_parallel_shard_degree"))) {
    if (node->as_int(-1) > 0) reader.integer(key("data_parallel_shard_degree"), "mesh.shard");
    else reader.ignore(key("data_parallel_shard_degree"), "the rest of the ranks, as by default");
  }
  reader.take("axes");
  read_stages(reader);
  reader.take("sharding");
}

// Since June 2026 a policy is a class whose settings do not name it (FullAC, SelectiveAC and
// MemoryBudgetAC of distributed/activation_checkpoint.py); null: none.
void read_policy(ForeignReader& reader, const ConfigNode& root) {
  static constexpr const char* kPolicy = "activation_checkpoint";
  const ConfigNode* const policy = root.find(kPolicy);
  if (policy == nullptr) return;
  if (policy->is_null()) return reader.map(kPolicy, "recompute", "none");
  if (!policy->is_mapping() || !policy->has("determinism_check")) return;
  if (policy->has("memory_budget"))
    return reader.unsupported(kPolicy, "a budget of memory, by which the compiler chooses");
  reader.map(kPolicy, "recompute", policy->has("force_recompute_mm_shapes_by_fqns") ? "selective" : "full");
}

void read_checkpointing(ForeignReader& reader, const ConfigNode& root) {
  const ConfigNode* mode = reader.find("activation_checkpoint.mode");
  const ConfigNode* option = reader.find("activation_checkpoint.selective_ac_option");
  if (mode == nullptr) return read_policy(reader, root);
  static constexpr std::string_view kWords[] = {"none", "full", "selective"};
  const std::size_t which = mode->as_choice(kWords);
  if (which < 2 || option == nullptr || option->text() == "op")
    return reader.map("activation_checkpoint.mode", "recompute", std::string(kWords[which]));
  const auto every = parse_number<std::int64_t>(option->text()).value_or(0);
  if (every < 1) throw option->error(quote(option->text()) + " is neither op nor a number of layers", "op or 2");
  reader.map(
      "activation_checkpoint.selective_ac_option", "recompute", every == 1 ? "full" : fmt::format("every-{}", every));
}

void read_float8(ForeignReader& reader, const std::string& table) {
  const std::string recipe = table + ".recipe_name";
  const std::string gather = table + ".enable_fsdp_float8_all_gather";
  const ConfigNode* gathers = reader.find(gather);
  if (gathers == nullptr || !gathers->as_bool()) return;
  if (reader.find(recipe) == nullptr) reader.assume("float8", "tensorwise", "torchao's default recipe");
  const std::string scales = table + ".precompute_float8_dynamic_scale_for_fsdp";
  const ConfigNode* precomputed = reader.find(scales);
  if (precomputed != nullptr && precomputed->as_bool()) {
    reader.map(gather, "float8_all_gather", "true");
    reader.ignore(scales, "as the forecast computes them");
    return;
  }
  reader.unsupported(gather, "an all-reduce of each weight's scale before its gather");
  reader.assume("float8_all_gather", "true", "all scales once, behind the optimizer's step");
}

void read_precision(ForeignReader& reader) {
  reader.take("precision");
  for (const std::string table : {"float8", "quantize.linear.float8"}) read_float8(reader, table);
}

// Since May 2026 parameters are grouped by pattern, the first that matches: what the last group,
// which takes the rest, says is that of the plan's optimizer.
void read_groups(ForeignReader& reader) {
  static constexpr const char* kGroups = "optimizer.param_groups";
  const ConfigNode* const groups = reader.find(kGroups);
  if (groups == nullptr || !groups->is_sequence() || groups->elements().empty()) return;
  const ConfigNode& rest = groups->elements().back();
  const ConfigNode* const name = rest.find("optimizer_name");
  const bool is_adam = name != nullptr && (name->as_string() == "AdamW" || name->as_string() == "Adam");
  if (!is_adam || groups->elements().size() > 1)
    reader.unsupported(kGroups, "one group of AdamW is modelled for this trainer");
  const ConfigNode* const settings = rest.find("optimizer_kwargs");
  if (!is_adam || settings == nullptr) return;
  reader.map(kGroups, "optimizer.kind", "adamw");
  for (const auto& [theirs, ours] :
      {std::pair{"lr", "learning_rate"}, {"eps", "epsilon"}, {"weight_decay", "weight_decay"}})
    if (const ConfigNode* node = settings->find(theirs))
      reader.map(kGroups, fmt::format("optimizer.{}", ours), std::string(node->text()));
  const ConfigNode* const betas = settings->find("betas");
  if (betas == nullptr || !betas->is_sequence() || betas->elements().size() != 2) return;
  reader.map(kGroups, "optimizer.beta1", std::string(betas->elements().front().text()));
  reader.map(kGroups, "optimizer.beta2", std::string(betas->elements().back().text()));
}

// components/loss.py, ChunkedLossWrapper: the head's product, the loss and its gradient for a part
// of the tokens at a time.
bool read_chunked_loss(ForeignReader& reader) {
  if (reader.find("loss.num_chunks") == nullptr) return false;
  reader.map("loss.num_chunks", "loss", fmt::format("chunked-head-{}", reader.find("loss.num_chunks")->as_int(2)));
  return true;
}

void read_compile(ForeignReader& reader) {
  const bool chunked = read_chunked_loss(reader);
  const ConfigNode* const node = reader.find("compile.enable");
  if (node == nullptr) return;
  reader.map("compile.enable", "compile", node->as_bool() ? "blocks" : "none");
  const ConfigNode* const parts = reader.find("compile.components");
  bool of_loss = node->as_bool() && parts == nullptr;
  if (parts != nullptr && parts->is_sequence())
    for (const ConfigNode& part : parts->elements()) of_loss = of_loss || (node->as_bool() && part.text() == "loss");
  if (chunked) return;
  if (parts != nullptr) reader.map("compile.components", "loss", of_loss ? "compiled" : "eager");
  else if (of_loss) reader.assume("loss", "compiled", "compile.components: model and loss by default");
}

}

bool looks_like_torchtitan(const ConfigNode& root) {
  return root.is_mapping() && (root.has("parallelism") || root.has("training"));
}

ForeignPlan read_torchtitan(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "TorchTitan";
  if (!looks_like_torchtitan(root))
    throw root.error("this has neither [training] nor [parallelism]", "TorchTitan's TOML, or the JSON that it saves");
  ForeignReader reader(root, plan, "torchtitan");
  reader.assume("runtime", "fsdp2", "TorchTitan shards with fully_shard");
  reader.assume("trainer", "torchtitan", "the file is TorchTitan's");
  read_model(reader);
  read_attention(reader);
  read_batch(reader);
  read_parallelism(reader);
  read_precision(reader);
  read_checkpointing(reader, root);
  read_compile(reader);
  if (const ConfigNode* off = reader.find("training.disable_cuda_graphs")) {
    static constexpr const char* kGraphs = "training.disable_cuda_graphs";
    off->as_bool()
        ? reader.ignore(kGraphs, "as it is forecast")
        : reader.unsupported(kGraphs, "a CUDA graph of forward and backward, which the host launches at once");
  }
  reader.take("optimizer");
  read_groups(reader);
  reader.finish();
  return plan;
}

}
