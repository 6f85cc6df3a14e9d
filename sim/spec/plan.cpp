// The words of a plan's enumerations; the rules that check() applies are in plan_check.cpp.
#include "sim/spec/plan.h"

#include <algorithm>
#include <limits>

#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

std::int64_t size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

std::int32_t Runtime::torch_minor() const {
  const bool is_torchs = kind == RuntimeKind::kFsdp2 || kind == RuntimeKind::kFsdp1 || kind == RuntimeKind::kDdp;
  const auto numbers = parse_version(is_torchs ? version : torch);
  return numbers && numbers->first == 2 ? numbers->second : std::numeric_limits<std::int32_t>::max();
}

bool PipelineParallel::splits_backward() const {
  if (schedule != PipelineSchedule::kCustom) return schedule >= PipelineSchedule::kInterleavedZeroBubble;
  return std::ranges::any_of(
      orders, [](const std::string& order) { return order.find_first_of("IW") != std::string::npos; });
}

Plan shortened(Plan plan, std::int64_t most) {
  std::int64_t& all = plan.batch.accumulation;
  if (all <= most) return plan;
  if (plan.mesh.pp > 1 && plan.pipeline.microbatches == 0)
    plan.pipeline.stands_for = std::max(plan.pipeline.stands_for, all);
  plan.batch.whole = plan.batch.prefetched ? std::max(plan.batch.whole, all) : 0;
  all = most;
  return plan;
}

std::vector<std::int64_t> blocks_of_stages(std::int64_t blocks, const Plan& plan) {
  const PipelineParallel& pipeline = plan.pipeline;
  const std::int64_t stages = checked_multiply(plan.mesh.pp, pipeline.stages_per_rank);
  const std::int64_t all = blocks + pipeline.first_less + pipeline.last_less;
  std::vector<std::int64_t> list;
  for (std::int64_t s = 0; s < stages; ++s) list.push_back(all / stages + (s < all % stages));
  list.front() -= pipeline.first_less;
  list.back() -= pipeline.last_less;
  return list;
}

namespace {

// deepspeed/runtime/utils.py, partition_balanced: where parts begin whose heaviest and lightest differ least, and where
// the last ends. `sums`: of the weights before each.
std::vector<std::size_t> balanced_parts(const std::vector<double>& sums, std::size_t parts) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Best {
    double cost = kNever, most = kNever, least = kNever;
    std::size_t from = 0;
  };
  std::vector best(sums.size(), std::vector<Best>(parts + 1));
  best[0][0].cost = best[0][0].most = 0;
  for (std::size_t i = 1; i < sums.size(); ++i) {
    for (std::size_t j = 1; j <= parts; ++j) {
      for (std::size_t k = j - 1; k < i; ++k) {
        const Best& before = best[k][j - 1];
        const double most = std::max(before.most, sums[i] - sums[k]), least = std::min(before.least, sums[i] - sums[k]);
        if (best[i][j].cost >= most - least) best[i][j] = {most - least, most, least, k};
      }
    }
  }
  std::vector<std::size_t> begins{sums.size() - 1};
  for (std::size_t j = parts; j > 0; --j) begins.insert(begins.begin(), best[begins.front()][j].from);
  return begins;
}

}

std::vector<std::int64_t> blocks_of_stages(const ModelSpec& model, const Plan& plan) {
  const PipelinePartition by = plan.pipeline.partition;
  if (by == PipelinePartition::kBlocks) return blocks_of_stages(model.block_count(), plan);
  std::vector<double> sums(1);
  std::vector<std::int64_t> blocks(1);  // before each layer, as sums
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& kind = model.kinds[at(layer.kind)];
    if (kind.role == LayerRole::kLoss) continue;
    const bool shares = kind.role == LayerRole::kHead && model.tied_embeddings;  // the embedding's module
    sums.push_back(sums.back() + (shares ? sums[1] : as_double(kind.numel())));
    blocks.push_back(blocks.back() + (kind.role == LayerRole::kBlock ? 1 : 0));
  }
  const std::size_t stages = at(plan.mesh.pp), layers = blocks.size() - 1;
  std::vector<std::size_t> begins;
  for (std::size_t s = 0; s <= stages; ++s) begins.push_back(s * (layers / stages) + std::min(s, layers % stages));
  if (by == PipelinePartition::kParameters && layers > stages) begins = balanced_parts(sums, stages);
  std::vector<std::int64_t> list;
  for (std::size_t s = 0; s < stages; ++s) list.push_back(blocks[begins[s + 1]] - blocks[begins[s]]);
  return list;
}

std::int64_t slices_of(ReductionOrder order) {
  using enum ReductionOrder;
  return value_of<ReductionOrder, std::int64_t>(order, {{kMicrobatch2, 2}, {kMicrobatch4, 4}, {kMicrobatch8, 8}}, 1);
}

void check(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (const auto problem = find_problem(plan, model, cluster)) throw_problem(*problem, {});
}

}
