// Flat buffers and their buckets. A parameter begins at a multiple of 64 elements, a bucket ends at one of lcm(ranks,
// 128), so that every rank's shard is aligned; where there are no shards nothing is (param_and_grad_buffer.py,
// _ParamAndGradBuffer.__init__ of 0.20). Weights in fp8 have buckets of their own, whose last goes with everything else
// (partition_buckets). Without overlap_grad_reduce a buffer is one bucket (distributed_data_parallel.py).
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "sim/graph/layers/layer_autograd.h"
#include "sim/graph/megatron/megatron_builder.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

std::int64_t padded(std::int64_t numel, std::int64_t multiple) { return (numel + multiple - 1) / multiple * multiple; }

}

bool Megatron::is_expert(std::int32_t p) const {
  const Parameter& each = parameter(p);
  return is_over_experts(spec_of(each.layer).parameters[at(each.index)]);
}

std::int64_t Megatron::bucket_size(const FlatBuffer& buffer) const {
  if (options().bucket_size > 0) return options().bucket_size;
  return std::max<std::int64_t>(40'000'000, 1'000'000 * buffer.ranks);
}

void Megatron::lay_out() {
  const Mesh& mesh = plan_.mesh;
  place_of_.assign(parameters().size(), {});
  first_of_layer_.assign(model_.order.size() + 1, 0);
  for (const Parameter& p : parameters()) ++first_of_layer_[at(p.layer) + 1];
  std::partial_sum(first_of_layer_.begin(), first_of_layer_.end(), first_of_layer_.begin());
  FlatBuffer dense{.shards = mesh.is_plain() ? kShard : communicator_of(MeshDim::kFsdp), .ranks = mesh.fsdp()};
  FlatBuffer experts{.shards = communicator_of(MeshDim::kEfsdp), .ranks = mesh.efsdp()};
  if (mesh.replicate > 1) {
    dense.replicas = mesh.is_plain() ? kReplicate : communicator_of(MeshDim::kReplicate);
    experts.replicas = communicator_of(MeshDim::kExpertReplicate);
  }
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const bool has_stages = plan_.mesh.pp > 1;
  const std::vector<StageLayers> whole = {{.stage = 0, .begin = 0, .end = layers}};
  for (const StageLayers& stage : has_stages ? stages() : whole) {
    lay_out(dense, stage, false);
    lay_out(experts, stage, true);
  }
}

void Megatron::lay_out(FlatBuffer buffer, const StageLayers& stage, bool of_experts) {
  // Those of other stages than the first are not cut (DistributedDataParallel's pp_rank, disable_bucketing).
  const bool is_cut = options().gradients == MegatronOptions::Gradients::kBucketed ||
                      (fuses() && options().overlap_grad_reduce && stage.stage == 0);
  const auto number = static_cast<std::int32_t>(buffers_.size());
  const std::int64_t limit = bucket_size(buffer);
  const bool shards = options().distributed_optimizer;
  buffer.parts = shards ? buffer.ranks : 1;
  const std::int64_t begin = shards && fuses() ? 64 : 1;
  const std::int64_t multiple = shards && fuses() ? std::lcm(buffer.ranks, std::int64_t{128}) : 1;
  bool open = false;
  for (const bool narrow : {true, false}) {
    for (std::int32_t p = first_of_layer_[at(stage.end)]; p-- > first_of_layer_[at(stage.begin)];) {
      const Parameter& each = parameter(p);
      const bool is_narrow = spec_of(each.layer).parameters[at(each.index)].gathered_in_fp8;
      if (!each.trained || is_expert(p) != of_experts || is_narrow != narrow) continue;
      const ParameterSpec& spec = spec_of(each.layer).parameters[at(each.index)];
      buffer.own += (each.numel + buffer.parts - 1) / buffer.parts;
      // Each expert's weight is a parameter (TEGroupedLinear).
      const std::int64_t count = spec.shape.size() == 3 ? spec.shape[0] : 1;
      // Both stages cut a table alike (_does_param_require_new_bucket).
      const bool alone = shards && spec.in_two_stages;
      for (std::int64_t i = 0; i < count; ++i) {
        const bool is_new = !open || alone;
        if (is_new) buffer.buckets.emplace_back();
        Bucket& bucket = buffer.buckets.back();
        const auto b = static_cast<std::int32_t>(buffer.buckets.size()) - 1;
        if (i == 0) place_of_[at(p)] = {number, b, b};
        place_of_[at(p)].last_bucket = b;
        bucket.missing += each.used && (i == 0 || is_new) ? 1 : 0;
        bucket.numel = padded(bucket.numel, begin) + each.numel / count;
        const bool is_last = !narrow && buffer.narrow > 0;
        open = !alone && (is_last || !is_cut || bucket.numel < limit);
        if (!narrow) continue;
        bucket.narrow += each.numel / count;
        buffer.narrow += each.numel / count;
        ++buffer.narrow_weights;
      }
    }
    open = open || buffer.narrow > 0;
  }
  for (Bucket& bucket : buffer.buckets) {
    bucket.numel = padded(bucket.numel, multiple);
    buffer.numel += bucket.numel;
  }
  if (fuses()) buffer.own = buffer.numel / buffer.parts;  // not of each parameter
  if (!buffer.buckets.empty()) buffers_.push_back(std::move(buffer));
}

void Megatron::persistent_memory() {
  const auto hold = [&](MemoryCategory category, std::int64_t bytes) {
    allocate_persistent(category, -1, Bytes(bytes));
  };
  std::int64_t frozen = 0;
  for (const Parameter& p : parameters()) frozen += p.trained ? 0 : p.bytes();
  if (frozen > 0) hold(MemoryCategory::kUnshardedParam, frozen);
  for (const std::int64_t bytes : resident_bytes()) hold(MemoryCategory::kUnshardedParam, bytes);
  for (const FlatBuffer& buffer : buffers_) {
    hold(MemoryCategory::kUnshardedParam, param_bytes(buffer.numel, buffer.narrow));
    if (options().gradients == MegatronOptions::Gradients::kBucketed && buffer.ranks > 1)
      hold(MemoryCategory::kUnshardedGrad, buffer.numel * param_size());
    if (is_flat()) {
      hold(MemoryCategory::kAccumulatedGrad, buffer.numel * gradient_size());
      hold(MemoryCategory::kShardedParam, buffer.own * 4);
    }
    if (plan_.optimizer.kind != Optimizer::Kind::kAdamW) continue;
    for (int moment = 0; moment < 2; ++moment)
      hold(MemoryCategory::kOptimizerState, buffer.own * size_of(plan_.optimizer.state));
  }
  unread_gradients();
  // Weights in fp8 are kept, in the layouts that the parameter itself has not.
  const bool in_both = has_block_scales(plan_.float8) || options().fp8_transposes;
  const std::int64_t layouts = (in_both ? 2 : 1) - (plan_.float8_all_gather ? 1 : 0);
  std::int64_t narrow = 0;
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(model_.order.size()); ++layer) {
    for (const Operation& op : spec_of(layer).operations) {
      if (!op.fp8_weight) continue;
      narrow += spec_of(layer).parameters[at(op.parameters.front())].numel();
    }
  }
  if (layouts * narrow > 0) hold(MemoryCategory::kUnshardedParam, layouts * narrow_bytes(plan_.float8, narrow));
  // The head's module gathers into a buffer of the process (GlobalMemoryBuffer "mpu"); nanotron's
  // row-parallel layers have one for gradients, too ("allgather2"; tp_linear_async_communication).
  const bool has_head = std::ranges::any_of(
      model_.order, [&](const LayerInstance& each) { return model_.kinds[at(each.kind)].role == LayerRole::kHead; });
  if (!has_head || plan_.mesh.tp == 1 || !plan_.tensor_parallel.sequence) return;
  const std::int64_t tokens = plan_.batch.micro_batch * plan_.batch.sequence / plan_.mesh.cp;
  for (const bool gathers : {!plan_.tensor_parallel.keeps_gathered, !fuses()})
    if (gathers) hold(MemoryCategory::kCommTemp, tokens * model_.hidden * param_size());
}

// Where products add to the buffer, autograd is handed a gradient of the weight's shape that nobody
// reads: one for each shape, which stays (TransformerEngine's get_dummy_wgrad, 2.11).
void Megatron::unread_gradients() {
  if (!has_engine_modules(plan_.runtime) || !fuses()) return;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(model_.order.size()); ++layer) {
    const LayerSpec& spec = spec_of(layer);
    for (const ParameterSpec& p : spec.parameters)
      if (p.trainable && has_product_gradient(spec, p)) shapes.emplace(p.shape[p.shape.size() - 2], p.shape.back());
  }
  for (const auto& [rows, columns] : shapes)
    allocate_persistent(MemoryCategory::kBackwardTemp, -1, Bytes(rows * columns * param_size()));
}

// start_param_sync
void Megatron::gather(FlatBuffer& buffer, Bucket& bucket) {
  if (bucket.dispatched) return;
  bucket.dispatched = true;
  if (buffer.parts == 1) return;
  wait(Stream::kAllGather, tail(Stream::kCompute));
  bucket.gathered = StepBuilder::add_collective(
      EventKind::kAllGather, Stream::kAllGather, buffer.shards, Bytes(param_bytes(bucket.numel, bucket.narrow)), -1);
}

// Waits for the bucket's gather and sends the next one's, that of the bucket before it in the buffer, on its way.
void Megatron::finish_param_sync(const Place& place) {
  FlatBuffer& buffer = buffers_[at(place.buffer)];
  for (std::int32_t b = place.last_bucket; b >= place.bucket; --b) {
    Bucket& bucket = buffer.buckets[at(b)];
    gather(buffer, bucket);
    if (bucket.gathered == kNoEvent) continue;
    wait(Stream::kCompute, std::exchange(bucket.gathered, kNoEvent));
    if (b > 0) gather(buffer, buffer.buckets[at(b) - 1]);
  }
}

// start_grad_sync; with several instances of the optimizer each shard is summed over them.
void Megatron::reduce(FlatBuffer& buffer, Bucket& bucket) {
  const std::int64_t bytes = bucket.numel * gradient_size();
  const std::int64_t ranks = plan_.mesh.fsdp() * plan_.mesh.replicate;
  if (ranks > 1 && fuses()) add_copy(EventKind::kGradScale, Stream::kCompute, 2 * bytes, 1);  // else ncclAvg
  bucket.missing = 0;
  wait(Stream::kReduceScatter, tail(Stream::kCompute));
  if (buffer.ranks > 1) {
    const bool scatters = options().distributed_optimizer && fuses();
    StepBuilder::add_collective(scatters ? EventKind::kReduceScatter : EventKind::kAllReduce, Stream::kReduceScatter,
        buffer.shards, Bytes(bytes), -1);
  }
  if (buffer.replicas == kNoCommunicator) return;
  StepBuilder::add_collective(
      EventKind::kAllReduce, Stream::kReduceScatter, buffer.replicas, Bytes(bytes / buffer.ranks), -1);
}

}
