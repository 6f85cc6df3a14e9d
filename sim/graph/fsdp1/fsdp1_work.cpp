// What FullyShardedDataParallel's rows cost.
//
// Divisions: _get_gradient_predivide_factor of default_hooks.py, the least power of two whose
// square is not below the ranks by more than it divides them; the rest divides the shard.
#include "sim/base/error.h"
#include "sim/graph/fsdp1/fsdp1_builder.h"

namespace foreshard {

// In place, the loss is scaled instead.
double Fsdp1::pre_divide() const {
  if (in_place()) return 1;
  const std::int64_t world = plan_.mesh.world();
  std::int64_t factor = 1;
  while (world % factor == 0 && world / factor > factor) factor *= 2;
  return as_double(factor);
}

double Fsdp1::post_divide() const { return in_place() ? 1 : as_double(plan_.mesh.world()) / pre_divide(); }

Fsdp1::UnitWork Fsdp1::unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const {
  const FlatSize size = flat_size(shape.list, plan_);
  const std::int64_t p = param_size();
  const std::int64_t r = reduce_size();
  const std::int64_t o = master_size();
  UnitWork work;
  const auto copy = [&](std::int64_t bytes) { work.kernels.push_back(copy_kernel(bytes)); };
  switch (kind) {
    case EventKind::kHostToDevice:
    case EventKind::kDeviceToHost:
      work.bytes = Bytes(size.shard * o);
      copy(size.shard * o);
      break;
    case EventKind::kAllGatherCopyIn:
      work.bytes = Bytes(size.shard * p);
      copy(size.shard * (o + p));
      break;
    case EventKind::kAllGather:
      work.bytes = Bytes(size.padded * p);
      work.communicator = kShard;
      break;
    case EventKind::kGradientCopyIn:
      work.bytes = Bytes(size.flat * p);
      copy(2 * size.flat * p);
      break;
    case EventKind::kReduceScatterCopyIn: {
      const std::int64_t made = variant == kPrepareKept ? o : p;
      const DType from = variant == kPrepareKept ? plan_.master_dtype : plan_.param_dtype;
      work.bytes = Bytes(size.padded * r);
      if (from != plan_.reduce_dtype) copy(size.flat * (made + r));
      if (sharded() && size.padded > size.flat) copy((size.flat + size.padded) * r);
      if (pre_divide() > 1) copy(2 * size.padded * r);
      break;
    }
    case EventKind::kReduceScatter:
      work.bytes = Bytes(size.padded * r);
      work.communicator = kShard;
      break;
    case EventKind::kAllReduce:
      work.bytes = Bytes(size.shard * r);
      work.communicator = sharded() || !plan_.fsdp1.hybrid_shard ? kReplicate : kShard;
      break;
    case EventKind::kAccumulate:
      if (variant == kAdd) {
        work.bytes = Bytes(size.flat * p);
        copy(3 * size.flat * p);
        break;
      }
      work.bytes = Bytes(size.shard * o);
      if (variant == kLowerAgain) {
        copy(size.shard * (o + p));
        break;
      }
      if (post_divide() > 1) copy(2 * size.shard * r);
      if (plan_.reduce_dtype != plan_.master_dtype && (sharded() || !plan_.fsdp1.keep_low_precision_grads))
        copy(size.shard * (r + o));
      if (variant == kFinishAdd) copy(3 * size.shard * o);
      break;
    default: FORESHARD_CHECK(false, "not a unit's row");
  }
  return work;
}

Fsdp1::UnitWork Fsdp1::step_work(EventKind kind) const {
  std::int64_t elements = 0;
  for (const Handle& h : handles_) elements = checked_add(elements, h.size.trained_shard);
  return step_work_of(kind, elements);
}

}
