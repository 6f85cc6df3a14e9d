// What the rows of runtime fsdp2 cost, in counts.
#include "sim/base/error.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {

// _get_gradient_divide_factors. fp16 sums overflow, so that about the square root of the factor is
// divided away before and the rest after; else NCCL divides while it sums.
Fsdp2::Division Fsdp2::division(std::int32_t unit) const {
  const bool overflows = plan_.reduce_dtype == DType::kFp16;
  const std::int64_t ranks = shape(unit).shards * plan_.mesh.replicate;
  const bool listed = has_factor(unit);
  const std::optional<double> factor = listed ? plan_.gradient_divide_factor : std::nullopt;
  if (!overflows && !(plan_.force_sum_reduction && listed)) {
    if (!factor) {
      const std::string_view op = ranks == 1 && !version_.averages_alone ? "SUM" : "AVG";
      return {0, 0, op, op};
    }
    const bool whole = *factor == as_double(shape(unit).shards);
    return {0, 0, whole ? "AVG" : "PREMUL_SUM", "SUM"};
  }
  const double total = factor.value_or(as_double(ranks));
  if (!overflows) return {0, total, "SUM", "SUM"};
  std::int64_t before = 1;
  const auto whole = static_cast<std::int64_t>(total);
  while (total == as_double(whole) && whole % before == 0 && total / as_double(before) > as_double(before)) before *= 2;
  return {as_double(before), total / as_double(before), "SUM", "SUM"};
}

Fsdp2::UnitWork Fsdp2::unit_work(EventKind kind, const UnitShape& s, std::int32_t variant) const {
  UnitWork work;
  const std::int64_t shards = s.shards;
  const std::int64_t padded = checked_multiply(s.shard_numel, shards);
  const std::int64_t gathered = checked_multiply(s.gather_bytes, shards);
  const std::int64_t trained = checked_multiply(s.trained_shard_numel, shards);
  const std::int64_t p = param_size(), r = reduce_size(), o = master_size();
  switch (kind) {
    case EventKind::kHostToDevice:
      work.bytes = Bytes(s.shard_bytes);
      work.kernels = {copy_kernel(s.shard_bytes)};
      work.launches = s.parameters;
      break;
    case EventKind::kDeviceToHost:
      work.bytes = Bytes(s.trained_local_numel * o);
      work.kernels = {copy_kernel(s.trained_local_numel * o)};
      work.launches = s.trained;
      break;
    case EventKind::kAllGatherCopyIn:
      if (variant == kSmallGroup) {
        const std::int64_t slice = padded / s.reshard_group * p;
        work.bytes = Bytes(slice);
        if (casts_parameters()) work.kernels.push_back(copy_kernel(2 * slice));
        work.kernels.push_back(copy_kernel(2 * slice));
      } else {
        work.bytes = Bytes(s.gather_bytes);
        if (s.cast_bytes > 0) work.kernels.push_back(copy_kernel(s.cast_bytes));
        work.kernels.push_back(copy_kernel(2 * s.gather_bytes));
      }
      break;
    case EventKind::kAllGather:
      work.bytes = Bytes(gathered);
      work.communicator = variant == kSmallGroup ? post_forward_communicator(s.reshard_group) : gathers_on(s);
      work.queues = variant != kSmallGroup;
      break;
    case EventKind::kAllGatherCopyOut:
      work.bytes = Bytes(gathered);
      if (variant == kSingleRank) {
        if (s.cast_bytes > 0) work.kernels.push_back(copy_kernel(s.cast_bytes));
        work.launches = (casts_parameters() ? 2 : 1) * s.parameters;
      }
      work.kernels.push_back(copy_kernel(2 * gathered));
      if (s.cut_numel > 0) work.kernels.push_back(copy_kernel(2 * s.cut_numel * p));
      break;
    case EventKind::kReshard:
      work.bytes = Bytes(padded / s.reshard_group * p);
      work.kernels = {copy_kernel(2 * work.bytes.count())};
      work.launches = s.parameters;
      break;
    case EventKind::kGradientCopyIn:
      work.bytes = Bytes(s.trained_numel * p);
      work.kernels = {copy_kernel(2 * s.trained_numel * p)};
      break;
    case EventKind::kReduceScatterCopyIn: {
      const std::int64_t gradient = variant == kUnsharded ? r : p;
      work.bytes = Bytes(trained * r);
      if (s.trained_cut_numel > 0) work.kernels.push_back(copy_kernel(2 * s.trained_cut_numel * gradient));
      work.kernels.push_back(copy_kernel(s.trained_numel * gradient + trained * r));
      break;
    }
    case EventKind::kReduceScatter:
      work.bytes = Bytes(trained * r);
      work.communicator =
          plan_.communicators == Communicators::kSeparate ? reduce_scatter_communicator() : gathers_on(s);
      break;
    case EventKind::kAllReduce:
      work.bytes = Bytes(s.trained_shard_numel * r);
      work.communicator = replicates_on(s);
      break;
    case EventKind::kAccumulate:
      switch (variant) {
        case kUnsharded:  // read the new gradient, read and write the kept one
          work.bytes = Bytes(s.trained_numel * r);
          work.kernels = {copy_kernel(s.trained_numel * (p + 2 * r))};
          work.launches = s.trained;
          break;
        case kDivideInput:
          work.bytes = Bytes(trained * r);
          work.kernels = {copy_kernel(2 * trained * r)};
          break;
        case kDivide:
          work.bytes = Bytes(s.trained_shard_numel * r);
          work.kernels = {copy_kernel(2 * s.trained_shard_numel * r)};
          break;
        case kPartial:
          work.bytes = Bytes(s.trained_shard_numel * r);
          work.kernels = {copy_kernel(3 * s.trained_shard_numel * r)};
          break;
        case kCopyAlone:
          work.bytes = Bytes(s.trained_shard_numel * r);
          work.kernels = {copy_kernel(2 * s.trained_shard_numel * r)};
          break;
        default:
          work.bytes = Bytes(s.trained_shard_numel * o);
          if (variant != kAdd) work.kernels.push_back(copy_kernel(s.trained_shard_numel * (r + o)));
          if (variant != kCast) {
            work.kernels.push_back(copy_kernel(3 * s.trained_shard_numel * o));
            work.launches = s.trained;  // one `+=` per parameter
          }
      }
      break;
    default: FORESHARD_CHECK(false, "not a unit's row");
  }
  return work;
}

Fsdp2::UnitWork Fsdp2::step_work(EventKind kind) const {
  std::int64_t elements = 0, in_fp8 = 0;
  for (std::int32_t u = 0; u < unit_count(); ++u) {
    elements = checked_add(elements, shape(u).trained_local_numel);
    if (kind == EventKind::kOptimizer) elements -= shape(u).unstepped_local_numel;
    in_fp8 = checked_add(in_fp8, shape(u).fp8_shard_numel);
  }
  std::int64_t by_muon = 0;
  if (kind == EventKind::kOptimizer) {
    for (const Trained& p : trained_) {
      if (p.rows == 0 || !p.stepped) continue;
      elements -= p.state_bytes / size_of(plan_.optimizer.state);
      ++by_muon;
    }
  }
  UnitWork work = step_work_of(kind, elements);
  work.tensors = -by_muon;                          // they have rows of their own
  if (kind == EventKind::kOptimizer && in_fp8 > 0)  // their greatest values, for the scales
    work.kernels.push_back(memory_kernel(MemoryClass::kOptimizer, in_fp8 * master_size()));
  return work;
}

}
