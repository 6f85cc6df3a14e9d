#include <fmt/format.h>

#include <string>
#include <string_view>

#include "interop/frameworks/frameworks.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::string_view kPlaces[] = {"model.", "trainer.strategy."};

void read_clipping(ForeignReader& reader) {
  for (const char* path : {"optimizer.clip_grad", "trainer.gradient_clip_val"}) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr) continue;
    const double value = node->as_double(0);
    reader.map(path, "optimizer.clip_norm", value > 0 ? fmt::format("{}", value) : "none");
  }
}

std::string path_of(std::string_view place, std::string_view name) { return fmt::format("{}{}", place, name); }

// The first of the places that says it.
struct Found {
  std::string path;
  const ConfigNode* node = nullptr;
};
Found find(ForeignReader& reader, std::string_view name) {
  for (const std::string_view place : kPlaces) {
    std::string path = path_of(place, name);
    if (const ConfigNode* node = reader.find(path)) return {std::move(path), node};
  }
  return {};
}

std::int64_t tensor_ranks(ForeignReader& reader) {
  const Found found = find(reader, "tensor_model_parallel_size");
  return found.node == nullptr ? 1 : found.node->as_int(1);
}

// Without tp nothing is cut by sequence; false is the codes' default.
void read_sequence_parallel(ForeignReader& reader) {
  const bool cuts = tensor_ranks(reader) > 1;
  const auto [path, sequence] = find(reader, "sequence_parallel");
  if (sequence != nullptr)
    reader.map(path, "tensor_parallel.sequence", sequence->as_bool() || !cuts ? "true" : "false");
  else if (cuts) reader.assume("tensor_parallel.sequence", "false", "no sequence_parallel: off");
}

// As wide as tensor parallelism unless said (core/model_parallel_config.py, __post_init__).
void read_expert_tensor_parallel(ForeignReader& reader) {
  const std::int64_t tp = tensor_ranks(reader);
  const auto [path, experts] = find(reader, "expert_model_parallel_size");
  if (find(reader, "expert_tensor_parallel_size").node != nullptr) return;
  if (tp == 1 || experts == nullptr || experts->as_int(1) == 1) return;
  reader.assume("mesh.etp", fmt::format("{}", tp), "no expert_tensor_parallel_size: as tensor_model_parallel_size");
}

// A null: core_attn, as the plan's own default.
void read_recompute_modules(ForeignReader& reader) {
  const ConfigNode* node = reader.find("model.recompute_modules");
  if (node == nullptr || !node->is_sequence()) return;
  std::string modules;
  for (const ConfigNode& module : node->elements()) modules += (modules.empty() ? "" : ", ") + module.as_string();
  reader.map("model.recompute_modules", "megatron.recompute_modules", "[" + modules + "]");
}

void read_recompute(ForeignReader& reader) {
  for (const char* path : {"model.recompute_granularity", "model.activations_checkpoint_granularity"}) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr) continue;
    if (node->as_string() == "full") {
      reader.map(path, "recompute", "full");
    } else if (node->as_string() == "selective") {
      reader.map(path, "recompute", "selective");
      read_recompute_modules(reader);
    } else {
      throw node->error("is no granularity of recomputation", "full or selective");
    }
  }
}

// transformer_config.py: p2p, all_gather, a2a, a2a+p2p; of every layer or of each.
void read_context_parallel(ForeignReader& reader) {
  const ConfigNode* node = reader.find("model.cp_comm_type");
  if (node == nullptr || !node->is_scalar()) return;
  const std::string word = node->as_string();
  if (word == "a2a+p2p") return reader.unsupported("model.cp_comm_type", "rings of groups are not modelled");
  reader.take("rotation");
}

// transformer_config.py: cuda_graph_impl; local captures layers, unless its scope is the iteration.
void read_cuda_graphs(ForeignReader& reader) {
  const ConfigNode* node = reader.find("model.cuda_graph_impl");
  if (node == nullptr || !node->is_scalar()) return;
  static constexpr std::string_view kWords[] = {"none", "transformer_engine", "full_iteration", "local"};
  static constexpr const char* kOurs[] = {"none", "modules", "iteration", "modules"};
  const ConfigNode* scope = reader.find("model.cuda_graph_scope");
  const bool whole = scope != nullptr && scope->is_scalar() && scope->as_string() == "full_iteration";
  reader.map("model.cuda_graph_impl", "megatron.cuda_graphs", whole ? "iteration" : kOurs[node->as_choice(kWords)]);
}

// model_parallel_config.py: cross_entropy_loss_fusion, and by whom.
void read_cross_entropy(ForeignReader& reader) {
  const ConfigNode* fuses = reader.find("model.cross_entropy_loss_fusion");
  if (fuses != nullptr && !fuses->as_bool()) {
    reader.find("model.cross_entropy_fusion_impl");  // which says nothing then
    return reader.map("model.cross_entropy_loss_fusion", "loss", "eager");
  }
  const ConfigNode* impl = reader.find("model.cross_entropy_fusion_impl");
  if (impl == nullptr || !impl->is_scalar()) return;
  reader.take("cross_entropy");
}

// transformer_config.py: allgather, alltoall, flex; of flex, whose kernels.
void read_dispatcher(ForeignReader& reader) {
  const ConfigNode* node = reader.find("model.moe_token_dispatcher_type");
  const ConfigNode* backend = reader.find("model.moe_flex_dispatcher_backend");
  const ConfigNode* deepep = reader.find("model.moe_enable_deepep");
  const bool names_kernels = backend != nullptr && backend->is_scalar();
  if (node == nullptr && !names_kernels) return;
  static constexpr std::string_view kWords[] = {"allgather", "alltoall", "flex"};
  const std::size_t which = node != nullptr ? node->as_choice(kWords) : 2;
  // deepep and hybridep send a row once to each rank.
  const bool sends_once =
      (names_kernels && backend->as_string().ends_with("ep")) || (deepep != nullptr && deepep->as_bool());
  if (which == 0) return reader.unsupported("model.moe_token_dispatcher_type", "rows by all-to-all are modelled");
  reader.map(node != nullptr ? "model.moe_token_dispatcher_type" : "model.moe_flex_dispatcher_backend",
      "expert_parallel.dispatcher", which == 2 && sends_once ? "deepep" : "alltoall");
}

void read_dtypes(ForeignReader& reader) {
  for (const char* path : {"mixed_precision", "trainer.precision", "trainer.plugins.precision"}) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr || !node->is_scalar()) continue;
    const std::string word = lower(node->text());
    const bool fp16 = contains(word, "fp16") || word.starts_with("16");
    const bool fp32 = word.starts_with("32") || word.starts_with("fp32");
    reader.map(path, "dtype.param", fp16 ? "fp16" : fp32 ? "fp32" : "bf16");
  }
  reader.take("reduction");
}

void read_pipeline(ForeignReader& reader) {
  const auto [path, node] = find(reader, "pipeline_model_parallel_size");
  if (node == nullptr || node->as_int(1) == 1) return;
  reader.integer(path, "mesh.pp");
  const auto [chunks, count] = find(reader, "virtual_pipeline_model_parallel_size");
  if (count != nullptr && count->as_int(1) > 1) {
    reader.integer(chunks, "pipeline.stages_per_rank");
    reader.assume("pipeline.schedule", "Interleaved1F1B", "that of several chunks on a rank");
  }
  const auto counts_as_layer = [&](std::string_view name, std::string_view key) {
    const Found end = find(reader, name);
    if (end.node != nullptr) reader.flag(end.path, key, "1", "0");
  };
  counts_as_layer("account_for_embedding_in_pipeline_split", "pipeline.first_stage_less_layers");
  counts_as_layer("account_for_loss_in_pipeline_split", "pipeline.last_stage_less_layers");
}

void refuse_what_is_missing(ForeignReader& reader) {
  if (const ConfigNode* fsdp = reader.find("ddp.use_megatron_fsdp"); fsdp != nullptr && fsdp->as_bool())
    reader.unsupported("ddp.use_megatron_fsdp", "runtime fsdp2 is the nearest");
}

}

bool looks_like_megatron(const ConfigNode& root) {
  return std::ranges::any_of(
      kPlaces,
      [&](std::string_view place) {
        const ConfigNode* node = &root;
        while (!place.empty() && node != nullptr) {
          const std::size_t dot = place.find('.');
          node = node->is_mapping() ? node->find(place.substr(0, dot)) : nullptr;
          place.remove_prefix(dot + 1);
        }
        return node != nullptr && node->is_mapping() && node->has("tensor_model_parallel_size");
      });
}

ForeignPlan read_megatron(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "Megatron";
  if (!looks_like_megatron(root)) {
    throw root.error("has no model.tensor_model_parallel_size (NeMo 2.0: of trainer.strategy)",
        "settings of Megatron-Bridge or NeMo");
  }
  ForeignReader reader(root, plan, "megatron");
  reader.assume("runtime", "megatron", "Megatron-Core's DistributedDataParallel");
  reader.take("settings");
  read_sequence_parallel(reader);
  read_expert_tensor_parallel(reader);
  read_context_parallel(reader);
  read_recompute(reader);
  read_cross_entropy(reader);
  read_cuda_graphs(reader);
  read_dispatcher(reader);
  read_dtypes(reader);
  read_clipping(reader);
  read_pipeline(reader);
  refuse_what_is_missing(reader);
  reader.finish();
  return plan;
}

}
