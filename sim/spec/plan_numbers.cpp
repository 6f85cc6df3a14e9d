// Which units a plan has, and other numbers that follow from it.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {

bool splits_table(const Units& units, const LayerSpec& layer) {
  if (layer.role != LayerRole::kEmbedding) return false;
  if (!layer.nested.empty() || !units.table_alone) return !layer.nested.empty();
  for (const Operation& op : layer.operations)
    if (!op.parameters.empty()) return op.parameters.size() < layer.parameters.size();
  return false;
}

bool in_root(const Units& units, LayerRole role) {
  const bool tied_unit = units.embedding == UnitPlacement::kWithHead;
  switch (role) {
    case LayerRole::kEmbedding: return units.embedding == UnitPlacement::kRoot;
    case LayerRole::kBlock: return units.blocks == UnitPlacement::kRoot;
    case LayerRole::kFinalNorm: return units.head != UnitPlacement::kWithNorm && units.head != UnitPlacement::kNorm;
    case LayerRole::kHead:
      return (units.head == UnitPlacement::kRoot || units.head == UnitPlacement::kNorm) && !tied_unit;
    case LayerRole::kInner: return true;
    case LayerRole::kLoss: break;
  }
  return false;
}

bool parts_tied(const Units& units) {
  if (units.embedding == UnitPlacement::kWithHead) return false;
  return (units.embedding == UnitPlacement::kRoot) != in_root(units, LayerRole::kHead);
}

bool is_titan_3(const Plan& plan) {
  return plan.step_frame != StepFrame::kPlain && fsdp2_minor(plan.runtime.version).value_or(0) >= 13;
}

bool gathers_own_head(const Plan& plan) {
  return plan.runtime.kind == RuntimeKind::kFsdp2 && plan.units.head == UnitPlacement::kOwn &&
         plan.units.embedding != UnitPlacement::kWithHead && plan.loss.kind == Loss::Kind::kTiledLinear &&
         plan.lora.rank > 0 && !plan.lora.trains_head;
}

bool takes_labelled_rows(const Plan& plan) {
  using enum Loss::Kind;
  const bool of_all = plan.loss.kind == kTiledLinear || plan.loss.kind == kSmoothed ||
                      plan.loss.kind == kLogProbabilities || plan.reference != Reference::kNone;
  const bool is_module = plan.runtime.kind != RuntimeKind::kNative && plan.runtime.kind != RuntimeKind::kMegatron &&
                         plan.host != HostKind::kComputes;
  return plan.batch.labelled > 0 && !of_all && is_module && plan.mesh.tp == 1 && plan.mesh.cp == 1;
}

bool has_wide_adapters(const Plan& plan) {
  const RuntimeKind kind = plan.runtime.kind;
  // Under zero.Init a base is made in 16 bits, and what comes later is not cast.
  // What is a unit of FSDP1 has the dtype of its shard wherever others read it (_cast_input_dtype).
  const bool is_unit = kind == RuntimeKind::kFsdp1 && plan.units.adapters_alone && plan.fsdp1.use_orig_params;
  const bool stay = kind == RuntimeKind::kDdp || kind == RuntimeKind::kZero3 || is_unit;
  return plan.lora.rank > 0 && plan.lora.base <= Lora::Base::kParam && stay && !plan.lora.fused &&
         plan.lora.autocast_adapter_dtype && plan.master_dtype == DType::kFp32 && plan.param_dtype != DType::kFp32;
}

bool is_frozen(const Frozen& frozen, const LayerSpec& layer, std::int64_t block) {
  if (layer.unread || (layer.tower && frozen.tower)) return true;
  // Of a tower, only the blocks have numbers.
  if (layer.tower && layer.role != LayerRole::kBlock) return false;
  switch (layer.role) {
    case LayerRole::kEmbedding: return frozen.embedding;
    case LayerRole::kBlock: return frozen.blocks.at(block);
    case LayerRole::kFinalNorm: return frozen.norm;
    case LayerRole::kHead: return frozen.head;
    case LayerRole::kInner:
    case LayerRole::kLoss: break;
  }
  return false;
}

bool splits_block(const Units& units, std::int64_t block) {
  if (units.min_parameters > 0 || units.adapters_alone) return true;
  return units.experts == UnitPlacement::kOwn && units.blocks == UnitPlacement::kOwn &&
         block % units.experts_every == 0;
}

bool has_root_unit(const Plan& plan, const ModelSpec& model) {
  return std::ranges::any_of(
      model.order,
      [&](const LayerInstance& layer) {
        const LayerSpec& spec = model.kinds[at(layer.kind)];
        return !spec.parameters.empty() && (splits_table(plan.units, spec) || in_root(plan.units, spec.role));
      });
}

bool takes_adapter(const LayerSpec& layer, const Operation& operation) {
  return operation.kind == OperationKind::kGemm && operation.groups == 1 &&
         layer.parameters[at(operation.parameters.front())].shape.size() == 2;
}

bool is_module(std::string_view module, std::string_view target) {
  if (module == target) return true;
  return module.ends_with(target) && module[module.size() - target.size() - 1] == '.';
}

std::int64_t shard_dim_of(const ParameterSpec& parameter, std::int64_t wanted, std::int64_t shards) {
  const std::vector<std::int64_t>& shape = parameter.shape;
  if (shape.size() < 2) return 0;
  if (wanted != Units::kExpertsDim) return wanted;
  return shape.size() > 2 && shape[0] < shards && shape[1] % shards == 0 ? 1 : 0;
}

std::int64_t shard_dim_of(const ParameterSpec& parameter, std::int64_t wanted, const Mesh& mesh) {
  const bool has_own_mesh = mesh.ep * mesh.etp > 1 && parameter.shape.size() > 2;
  if (!has_own_mesh) return shard_dim_of(parameter, wanted, mesh.fsdp());
  ParameterSpec local = parameter;
  local.shape[0] /= mesh.ep;
  return shard_dim_of(local, wanted, mesh.efsdp());
}

std::int64_t unit_count(const Plan& plan, const ModelSpec& model) {
  std::int64_t block = 0;
  std::int64_t blocks = 0, nested = 0, others = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& spec = model.kinds[at(layer.kind)];
    if (spec.parameters.empty() || layer.same_as >= 0) continue;
    if (in_root(plan.units, spec.role)) continue;
    if (spec.role == LayerRole::kBlock) ++blocks;
    else if (spec.role == LayerRole::kEmbedding ||
             (spec.role == LayerRole::kFinalNorm && plan.units.head == UnitPlacement::kNorm) ||
             (spec.role == LayerRole::kHead && plan.units.embedding != UnitPlacement::kWithHead))
      ++others;  // the norm is in the head's unit, or both in the embedding's
    if (spec.role == LayerRole::kEmbedding && spec.nested.size() > 1) nested += std::ssize(spec.nested) - 1;
    if (spec.role == LayerRole::kBlock && splits_block(plan.units, block++)) nested += std::ssize(spec.nested);
  }
  const std::int64_t per_unit = plan.units.layers_per_unit;
  return (has_root_unit(plan, model) ? 1 : 0) + others + (blocks + per_unit - 1) / per_unit + nested;
}

std::int64_t global_batch(const Plan& plan) {
  const std::int64_t world = checked_multiply(plan.mesh.shard, plan.mesh.replicate);
  return checked_multiply(checked_multiply(world, plan.batch.micro_batch), plan.batch.accumulation);
}

// The first range changes nothing. It keeps the number of blocks, without which every-K could not
// be told from a list of the same blocks that stops earlier; the reader of lists drops such ranges.
RangedPolicy<Recompute> recompute_every(std::int64_t k, std::int64_t blocks) {
  FORESHARD_CHECK(k >= 1 && blocks >= 0, "recompute_every needs k >= 1");
  if (k == 1 || blocks <= 1) return {Recompute::kFull, {}};
  RangedPolicy<Recompute> policy{Recompute::kNone, {{0, blocks - 1, Recompute::kNone}}};
  for (std::int64_t block = 0; block < blocks; block += k) policy.ranges.push_back({block, block, Recompute::kFull});
  return policy;
}

std::optional<std::int64_t> every_k(const RangedPolicy<Recompute>& policy) {
  if (policy.value != Recompute::kNone || policy.ranges.size() < 2) return std::nullopt;
  const std::int64_t blocks = policy.ranges[0].last + 1;
  const std::int64_t k = policy.ranges.size() == 2 ? blocks : policy.ranges[2].first;
  if (k < 2 || k > plan_limits::kEvery || blocks > plan_limits::kNumber) return std::nullopt;
  if (policy != recompute_every(k, blocks)) return std::nullopt;
  return k;
}

std::vector<std::int64_t> nearest_divisors(std::int64_t n, std::int64_t x) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  const auto take = [&](std::int64_t divisor) {
    if (divisor <= x) below = std::max(below, divisor);
    if (divisor >= x) above = above == 0 ? divisor : std::min(above, divisor);
  };
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    take(d);
    take(n / d);
  }
  std::vector<std::int64_t> divisors;
  if (below > 0) divisors.push_back(below);
  if (above > 0 && above != below) divisors.push_back(above);
  return divisors;
}

}
