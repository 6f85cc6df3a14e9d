// The rows of keys/ as one table.
#include "sim/spec/plan_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/embedded.h"
#include "sim/spec/keys/key_rows.h"

namespace foreshard {

std::span<const EmbeddedFile> key_page_files();

namespace {

constexpr std::pair<std::string_view, std::string_view> kGroups[] = {
    {"batch",
     "What one step computes. global, if given, makes accumulation = global / (ranks x "
     "micro_batch)."},
    {"mesh",
     "shard x replicate x cp x tp = all GPUs of the cluster. One of the first two alone gives the "
     "other; without both, all GPUs that cp and tp leave shard."},
    {"tensor_parallel", "How layers run on the ranks of mesh.tp."},
    {"context_parallel", "How attention runs over the ranks of mesh.cp."},
    {"expert_parallel",
     "Routing of one rank and layer over the ranks of mesh.ep, in rows: tokens times experts each "
     "goes to. Without it: balanced."},
    {"units", "Which parameters are gathered and reduced together."},
    {"prefetch", "How many units ahead parameters are gathered."},
    {"kernels", "Kernels that the model's modules launch around matrix products and attention."},
    {"dtype", "Element types."},
    {"accumulation", "How gradients of several micro-batches add up."},
    {"lora", "Low-rank adapters (PEFT's LoRA) on a frozen base; QLoRA with base nf4 (fsdp2 only)."},
    {"optimizer", "The update of the parameters."},
    {"buffers", "Buffers of communication."},
    {"collectives", "How NCCL runs them; changes prices, not the graph."},
    {"reduction", "How gradients are averaged."},
    {"fsdp1",
     "Arguments of FullyShardedDataParallel that no shared key says (runtime fsdp1). Sharding "
     "strategies follow from mesh and reshard_after_forward."},
    {"ddp", "Arguments of DistributedDataParallel (runtime ddp)."},
    {"zero",
     "\"zero_optimization\" of a DeepSpeed configuration (runtimes zero1, zero2, zero3); sizes are "
     "elements."},
    {"megatron",
     "Megatron-Core's DistributedDataParallelConfig beside its distributed optimizer (runtime "
     "megatron)."},
    {"evaluation", "Loss on held-back data."},
};

}  // namespace

Json PlanKey::write(const Plan& plan) const {
  static const Plan kUsual;
  if (value == nullptr) return {};
  Json written = value(plan);
  if (quiet && written == value(kUsual)) return {};
  return written;
}

std::span<const PlanKey> plan_key_table() {
  static const std::vector<PlanKey> table = [] {
    std::vector<PlanKey> keys(shape_keys().begin(), shape_keys().end());
    keys.insert(keys.end(), compute_keys().begin(), compute_keys().end());
    const auto place =
        std::ranges::find_if(keys, [](const PlanKey& k) { return k.path == "host_sync"; });
    keys.insert(place, library_keys().begin(), library_keys().end());
    return keys;
  }();
  return table;
}

std::string_view PlanKey::says() const {
  const std::string_view page = file_named("docs/plan-keys.md", key_page_files()).content;
  const std::size_t row = page.find(fmt::format("\n| `{}` |", path));
  if (row == std::string_view::npos) return "";
  const std::string_view cells = page.substr(row, page.find(" |\n", row) - row);
  return cells.substr(cells.rfind("| ") + 2);
}

const PlanKey* find_plan_key(std::string_view path) {
  for (const PlanKey& key : plan_key_table()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

std::string_view plan_group_says(std::string_view group) {
  for (const auto& [name, says] : kGroups) {
    if (name == group) return says;
  }
  return "";
}

}  // namespace foreshard
