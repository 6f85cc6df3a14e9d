// What a plan hardly means, then what its version of PyTorch is known to do wrong or wastefully
// with it. Rows are those of the table of versions in tests/recordings/README.md.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/unit_strings.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/gpu_generation.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {
namespace {

bool has_modules_in_blocks(const ModelSpec& model) {
  return std::ranges::any_of(
      model.kinds, [](const LayerSpec& kind) { return kind.role == LayerRole::kBlock && !kind.nested.empty(); });
}

const Operation* find_experts(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    for (const Operation& op : kind.operations)
      if (op.groups > 1) return &op;
  }
  return nullptr;
}

void add_known_defects(const Plan& plan, const Fsdp2Version& version, std::vector<std::string>& texts) {
  const std::string name = "fsdp2@" + plan.runtime.version;
  const AccumulationDetails& details = plan.accumulation_details;
  const bool accumulates = plan.batch.accumulation > 1;
  const bool is_last_marked = accumulates && details.is_last_backward == When::kLast;
  // Row 7: nobody waits for such a gather, so the unit's next unshard takes it.
  if (!version.drops_stray_gathers && (plan.evaluation.in_step || is_last_marked)) {
    texts.push_back(
        fmt::format("{} keeps a prefetch that backward did not use ({}) and gives it to the next step, with the "
                    "weights from before the optimizer step; PyTorch 2.6 drops it",
            name, plan.evaluation.in_step ? "evaluation.in_step" : "accumulation.is_last_backward last"));
  }
  if (!version.drops_stray_gathers && plan.frozen.any()) {
    texts.push_back(
        fmt::format("{} keeps the prefetched parameters of a frozen unit from one step to the next "
                    "(memory); PyTorch 2.6 drops them",
            name));
  }
  // Row 7 from 2.6 on: gathered, waited for and dropped.
  if (version.drops_stray_gathers && plan.evaluation.in_step) {
    texts.push_back(
        fmt::format("evaluation.in_step: the order of its forward stays on record, so that {} prefetches one "
                    "unit in each backward that nobody uses",
            name));
  }
  // Row 10b.
  if (version.input_release == InputRelease::kAfterPostBackward) {
    texts.push_back(
        fmt::format("{} keeps a second reduce-scatter input alive during every reduction (memory); "
                    "PyTorch 2.13 frees it",
            name));
  }
  if (plan.mesh.replicate == 1) return;
  // Row 5.
  if (version.holds_all_reduce_input && plan.reduce_dtype != plan.master_dtype) {
    texts.push_back(
        fmt::format("dtype.reduce {} is not dtype.master {}: with replicas {} keeps every unit's all-reduce "
                    "input until the end of backward (memory)",
            to_string(plan.reduce_dtype), to_string(plan.master_dtype), name));
  }
  if (accumulates && plan.accumulation == AccumulationMode::kReduceEach && details.all_reduce == When::kEach) {
    texts.push_back(
        fmt::format("every one of the {} micro-batches is all-reduced over the {} replicas; "
                    "accumulation.all_reduce last does it once",
            plan.batch.accumulation, plan.mesh.replicate));
  }
}

void add_mixed_nodes(const Cluster& cluster, std::vector<std::string>& texts) {
  if (!cluster.layout) return;
  std::int64_t slow = 0;
  bool is_mixed = false;
  for (const NodeGroup& group : cluster.layout->groups) {
    if (group.gpu.key == cluster.gpu.key) slow += group.count;
    is_mixed = is_mixed || group.gpu.key != cluster.gpu.key;
  }
  if (!is_mixed) return;
  texts.push_back(
      fmt::format("nodes of several kinds: {} of {} have {}, which sets the pace of all, and every GPU counts "
                  "with the least memory of all, {}; foreshard explain says what leaving them out gives",
          slow, cluster.nodes(), cluster.gpu.key, format_bytes(cluster.gpu.memory)));
}

}

std::vector<std::string> warnings(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  std::vector<std::string> texts;
  add_mixed_nodes(cluster, texts);
  if (plan.placement != RankPlacement::kListed && !cluster.routes)
    texts.push_back(fmt::format("placement {} has no effect: all nodes are alike", to_string(plan.placement)));
  if (model.max_positions > 0 && plan.batch.sequence > model.max_positions) {
    texts.push_back(fmt::format("batch.sequence {} exceeds the {} positions {} was made for", plan.batch.sequence,
        model.max_positions, model.name));
  }
  if (plan.accumulation == AccumulationMode::kKeepUnsharded && plan.batch.accumulation == 1)
    texts.emplace_back("accumulation.mode keep_unsharded has no effect while batch.accumulation is 1");
  if (plan.batch.labelled > 0 && plan.loss.kind != Loss::Kind::kTiledLinear && !takes_labelled_rows(plan)) {
    texts.emplace_back(
        "batch.labelled has no effect here: logits of every token are made (so of runtimes native "
        "and megatron, over mesh.tp and mesh.cp, of a loss with smoothing or a reference)");
  }
  if (plan.compute_dtype() == DType::kBf16 && generation_of(cluster.gpu).is_before_ampere()) {
    texts.push_back(
        fmt::format("{} has no bf16: PyTorch emulates it far slower than the fp16 that is forecast; "
                    "dtype.param fp16 is what it has",
            cluster.gpu.name));
  }
  if (plan.param_dtype == DType::kFp16)
    texts.emplace_back("dtype.param fp16 needs loss scaling, which is not modelled");
  if (const Operation* experts = find_experts(model)) {
    const std::int64_t rows = plan.batch.micro_batch * plan.batch.sequence * experts->rows / experts->groups;
    texts.push_back(fmt::format(
        "routing is taken as balanced: every one of {} experts gets {} rows of a micro-batch", experts->groups, rows));
    if (plan.units.shard_dim == 0 && cuts_another_dimension(model, Units::kExpertsDim, plan.mesh)) {
      texts.push_back(
          fmt::format("{} experts are fewer than the {} ranks that hold them, so that most hold padding and gathers "
                      "grow; units.shard_dim: experts shards them along dimension 1, as torchtitan does",
              experts->groups, plan.mesh.efsdp() * plan.mesh.ep));
    }
  }
  const std::int64_t blocks = model.block_count();
  if (const std::int64_t rest = blocks % plan.units.layers_per_unit; rest != 0) {
    texts.push_back(fmt::format("units.layers_per_unit {} does not divide {} blocks: the last unit has {}",
        plan.units.layers_per_unit, blocks, rest));
  }
  // FullyShardedDataParallel's notes on CPU offload: the newly reduced gradient replaces the other.
  if (plan.runtime.kind == RuntimeKind::kFsdp1 && plan.offload != Offload::kNone && plan.batch.accumulation > 1 &&
      plan.accumulation == AccumulationMode::kReduceEach) {
    texts.emplace_back(
        "FSDP with CPU offload does not accumulate gradients outside of no_sync(): every "
        "micro-batch replaces them; accumulation.mode keep_unsharded adds them");
  }
  if (plan.runtime.kind != RuntimeKind::kFsdp2) return texts;
  if (const auto minor = fsdp2_minor(plan.runtime.version)) add_known_defects(plan, fsdp2_version(*minor), texts);
  if (plan.units.experts == UnitPlacement::kOwn && !has_modules_in_blocks(model)) {
    texts.push_back(
        fmt::format("units.experts own has no effect: the blocks of {} have no modules that may be units", model.name));
  }
  return texts;
}

}
