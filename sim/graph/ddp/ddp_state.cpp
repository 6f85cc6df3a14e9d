// What DDP holds between steps, the optimizer's step, and what a recording lists of its buckets.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/ddp/ddp_builder.h"
#include "sim/graph/optimizer_state.h"
#include "sim/graph/runtimes.h"

namespace foreshard {
namespace {

constexpr std::int64_t kDefaultCapMiB = 25;           // distributed.py, bucket_cap_mb=None
constexpr std::int64_t kFirstBucketBytes = kMiB;      // _DEFAULT_FIRST_BUCKET_BYTES
constexpr std::int64_t kBroadcastBytes = 250 * kMiB;  // broadcast_bucket_size

}

// --- buckets ---

std::int64_t Ddp::bucket_cap() const {
  const std::optional<double>& cap = options().bucket_cap_mb;
  return cap ? static_cast<std::int64_t>(*cap * as_double(kMiB)) : kDefaultCapMiB * kMiB;
}

std::vector<std::int32_t> Ddp::trained() const {
  std::vector<std::int32_t> list;
  list.reserve(parameters().size());
  for (std::size_t p = 0; p < parameters().size(); ++p)
    if (parameters()[p].trained) list.push_back(static_cast<std::int32_t>(p));
  return list;
}

std::vector<std::int32_t> Ddp::trained_as_defined() const {
  std::vector<PlacedParameter> placed;
  for (const Parameter& p : parameters()) placed.push_back({p.layer, p.index});
  std::vector<std::int32_t> order = as_defined(model_, placed);
  std::erase_if(order, [&](std::int32_t p) { return !parameter(p).trained; });
  return order;
}

std::vector<std::int32_t> Ddp::unused() const {
  std::vector<std::int32_t> list;
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    const Parameter& each = parameters()[p];
    if (each.trained && !each.used) list.push_back(static_cast<std::int32_t>(p));
  }
  return list;
}

std::vector<DdpBucket> Ddp::buckets_of(bool rebuilt) const {
  if (alone()) return {};
  std::vector<std::int64_t> limits = {bucket_cap()};
  if (!options().bucket_cap_mb) limits.insert(limits.begin(), kFirstBucketBytes);
  if (rebuilt) {
    std::vector<std::int32_t> order = ready_order();
    append(order, unused_);
    return assign_buckets(parameters(), order, limits);
  }
  if (rebuilds()) limits = {std::numeric_limits<std::int64_t>::max()};
  return assign_initial_buckets(parameters(), trained_as_defined(), limits);
}

void Ddp::allocate_buckets(bool persistent) {
  const MemoryCategory category = is_view() ? MemoryCategory::kUnshardedGrad : MemoryCategory::kReduceScatterInput;
  bucket_buffers_.clear();
  for (const DdpBucket& bucket : buckets_) {
    const Bytes bytes(buffer_bytes(bucket));
    bucket_buffers_.push_back(
        persistent ? allocate_persistent(category, -1, bytes) : allocate(category, Stream::kCompute, -1, bytes));
  }
}

// --- memory ---

// Parameters that this rank's optimizer steps.
std::vector<std::int32_t> Ddp::stepped() const {
  if (!partition_.empty()) return partition_[at(plan_.rank())];
  std::vector<std::int32_t> list = trained();
  std::erase_if(list, [&](std::int32_t p) { return !parameter(p).used; });  // p.grad is None
  return list;
}

const ParameterSpec& Ddp::specification(std::int32_t p) const {
  return spec_of(parameter(p).layer).parameters[at(parameter(p).index)];
}

bool Ddp::is_of_muon(std::int32_t p) const {
  return foreshard::is_of_muon(plan_.optimizer, specification(p), spec_of(parameter(p).layer).role);
}

std::vector<std::int32_t> Ddp::listed() const {
  std::vector<std::int32_t> list = stepped();
  std::erase_if(list, [&](std::int32_t p) { return is_of_muon(p); });
  return list;
}

// One list for each state of a parameter, with a tensor for each parameter that has it.
std::vector<std::int32_t> Ddp::state_parts() {
  const std::vector<std::int32_t> own = stepped();
  std::vector<std::vector<Bytes>> lists;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Parameter& p = parameter(own[i]);
    const LayerSpec& layer = spec_of(p.layer);
    std::size_t k = 0;
    for (const StateTensor& state : optimizer_state(plan_.optimizer, layer.parameters[at(p.index)], layer.role)) {
      if (state.is_paged) continue;
      if (k == lists.size()) lists.emplace_back(own.size());
      // (torch.optim's are like the parameter, of one that is stored in 16 bits by itself.)
      const bool is_narrow =
          layer.parameters[at(p.index)].stored_as_computed && state.bytes == p.numel * size_of(plan_.master_dtype);
      lists[k++][i] = allocated_size(is_narrow ? p.bytes() : state.bytes);
    }
  }
  return list_of<std::int32_t>(lists, [&](std::vector<Bytes>& list) { return add_part_list(std::move(list)); });
}

void Ddp::persistent_memory(bool stepped) {
  auto stored = list_of<Bytes>(parameters(), [&](const Parameter& p) { return allocated_size(p.bytes()); });
  for (const std::int64_t bytes : resident_bytes()) stored.push_back(allocated_size(bytes));
  allocate_persistent_parts(MemoryCategory::kShardedParam, -1, add_part_list(std::move(stored)));
  hold_reference();
  allocate_buckets(/*persistent=*/true);
  if (!stepped) return;
  for (const std::int32_t parts : state_parts()) allocate_persistent_parts(MemoryCategory::kOptimizerState, -1, parts);
  if (!steps_by_adamw()) return;
  // Unless it is fused, AdamW keeps the number of steps on the host.
  allocate_persistent_parts(
      MemoryCategory::kOptimizerState, -1, add_part_list(std::vector<Bytes>(listed().size(), allocated_size(4))));
  graph().buffers.back().on_host = plan_.optimizer.implementation != Optimizer::Implementation::kFused;
}

// --- the optimizer ---

Ddp::UnitWork Ddp::step_work(EventKind kind) const {
  if (kind == EventKind::kOptimizer) {
    std::int64_t elements = 0;
    for (const std::int32_t p : listed()) elements += parameter(p).numel;
    UnitWork work = step_work_of(kind, elements);
    work.tensors = std::ssize(listed()) - std::ssize(stepped());  // Muon's have rows of their own
    return work;
  }
  std::int64_t elements = 0;  // (of all ranks alike)
  for (const Parameter& p : parameters()) elements += p.trained ? p.numel : 0;
  return step_work_of(kind, elements);
}

// Gradients are alike on every rank: clipping needs no collective.
void Ddp::optimizer(bool stepped) {
  if (plan_.optimizer.in_backward) {
    const EventId last = tail(Stream::kCompute);
    if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
    return;
  }
  if (plan_.optimizer.clip_norm) {
    add_step_row(EventKind::kGradNorm, Stream::kCompute);
    add_step_row(EventKind::kGradScale, Stream::kCompute);
  }
  for (const std::int32_t p : Ddp::stepped())
    if (is_of_muon(p)) step_by_muon(specification(p).shape[0], specification(p).shape[1], 1, kReplicate);
  EventId last = add_step_row(EventKind::kOptimizer, Stream::kCompute);
  log({.kind = "optimizer_step"});
  const std::vector<std::int32_t> states = state_parts();
  for (std::size_t i = 0; i < states.size() && !stepped; ++i)
    allocate_parts(MemoryCategory::kOptimizerState, -1, states[i]);
  if (plan_.optimizer.kind == Optimizer::Kind::kAdafactor) adafactor();
  // torchao's states of eight bits are fp32 while a compiled step of their parameter runs.
  const bool widens = plan_.optimizer.kind == Optimizer::Kind::kTorchao8bit;
  if (widens || (steps_by_adamw() && plan_.optimizer.implementation == Optimizer::Implementation::kLoop)) {
    std::vector<Bytes> moments;
    const std::int64_t size = size_of(widens ? DType::kFp32 : plan_.optimizer.state);
    for (const std::int32_t p : listed()) moments.emplace_back(parameter(p).numel * size);
    step_one_by_one(moments, false);
  }
  if (const std::int64_t count = listed_temporaries(); count > 0) {
    auto sizes = list_of<Bytes>(listed(),
        [&](const std::int32_t p) { return allocated_size(parameter(p).numel * size_of(plan_.optimizer.state)); });
    const bool as_states = !states.empty() && plan_.optimizer.kind != Optimizer::Kind::kMuon;
    hold_temporaries(count, as_states ? states.front() : add_part_list(std::move(sizes)), false);
  }
  // _sync_params of ZeroRedundancyOptimizer: every parameter by itself from its owner.
  for (std::size_t rank = 0; rank < partition_.size(); ++rank) {
    for (const std::int32_t p : partition_[rank]) {
      wait(Stream::kAllReduce, last);
      add_collective(EventKind::kBroadcast, Stream::kAllReduce, parameter(p).bytes(), kReplicate);
      log_collective("broadcast", parameter(p).bytes(), torch_word(parameter(p).dtype), "root=" + std::to_string(rank));
    }
  }
  if (!partition_.empty()) {
    last = tail(Stream::kAllReduce);
    wait(Stream::kCompute, last);
  }
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    if (!parameters()[p].used || is_in_bucket_[p]) continue;
    std::int32_t gradient = gradient_buffer(static_cast<std::int32_t>(p), 0);
    drop_gradient(gradient);
  }
  is_in_bucket_.assign(parameters().size(), false);
  for (std::int32_t& gradient : wide_gradients_) drop_gradient(gradient);
  wide_gradients_.clear();
  if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
}

// transformers' Adafactor.step: the update of a parameter lives until the next one's square is
// there, fp32 copies of one of 16 bits and of its gradient until the next one's are made. Trainer's
// first group are the parameters that decay, matrices (trainer.py, create_optimizer).
void Ddp::adafactor() {
  std::vector<std::int32_t> order = stepped();
  std::ranges::stable_partition(order, [&](std::int32_t p) { return specification(p).shape.size() > 1; });
  std::int32_t update = kNoBuffer, gradient = kNoBuffer, wide = kNoBuffer;
  for (const std::int32_t p : order) {
    const auto temporary = [&] {
      return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(parameter(p).numel * 4));
    };
    const auto becomes = [&](std::int32_t next) {
      StepBuilder::free(update);
      update = next;
    };
    const bool widens = size_of(parameter(p).dtype) < 4;
    StepBuilder::free(gradient);
    if (widens) gradient = temporary();
    StepBuilder::free(wide);
    if (widens) wide = temporary();
    std::int32_t square = temporary();
    const std::int32_t sum = temporary();
    StepBuilder::free(square);
    becomes(sum);
    becomes(temporary());
    std::int32_t negative = temporary();
    StepBuilder::free(negative);
  }
  StepBuilder::free(update);
  StepBuilder::free(gradient);
  StepBuilder::free(wide);
}

// --- what a recording lists ---

std::vector<LibraryEvent> Ddp::construction() {
  take_log();
  const std::int64_t world = plan_.mesh.replicate;
  std::int64_t dimensions = 0;
  std::vector<std::int32_t> all;
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    const Parameter& each = parameters()[p];
    all.push_back(static_cast<std::int32_t>(p));
    const auto& shape = spec_of(each.layer).parameters[at(each.index)].shape;
    dimensions += each.trained ? std::ssize(shape) : 0;
  }
  // _verify_params_across_processes: how many, then sizes and strides of each.
  log({.kind = "all_gather",
      .bytes_in = 8,
      .bytes_out = 8 * world,
      .dtype = "int64",
      .group = "world",
      .note = "list"});
  log_collective("broadcast", dimensions * 2 * 8, "int64", "root=0");
  // _sync_module_states: parameters, then buffers, in pieces of a dtype.
  std::vector<Parameter> states = parameters();
  if (options().broadcast_buffers && model_.buffer_elements > 0) {
    all.push_back(static_cast<std::int32_t>(states.size()));
    states.push_back({.dtype = plan_.master_dtype, .numel = model_.buffer_elements});
  }
  std::vector<DdpBucket> pieces = assign_initial_buckets(states, all, std::array<std::int64_t, 1>{kBroadcastBytes});
  std::ranges::reverse(pieces);
  for (const DdpBucket& piece : pieces) log_collective("broadcast", piece.bytes, torch_word(piece.dtype), "root=0");
  return take_log();
}

std::vector<LibraryBucket> Ddp::list_buckets(bool rebuilt) const {
  std::vector<LibraryBucket> list;
  const std::vector<DdpBucket> buckets = buckets_of(rebuilt);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    LibraryBucket& bucket = list.emplace_back();
    bucket.index = static_cast<std::int64_t>(b);
    bucket.kind = "ddp_bucket";
    bucket.bytes = buckets[b].bytes;
    bucket.dtype = torch_word(buckets[b].dtype);
    bucket.extra = "issue_order=" + std::to_string(b) + " is_last=" + (b + 1 == buckets.size() ? "1" : "0");
    for (const std::int32_t p : buckets[b].parameters) bucket.parameters.push_back(name_of(p));
  }
  return list;
}

// Storage behind the gradients after backward: their own, or every bucket that one is a view of.
std::int64_t Ddp::gradient_bytes(bool rebuilt) const {
  std::int64_t bytes = 0;
  for (const DdpBucket& bucket : buckets_of(rebuilt)) {
    std::int64_t used = 0;
    for (const std::int32_t p : bucket.parameters) used += parameter(p).used ? parameter(p).bytes() : 0;
    bytes += is_view() && used > 0 ? bucket.bytes : used;
  }
  return bytes;
}

std::int64_t Ddp::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const Parameter& p : parameters()) bytes += p.bytes();
  return bytes;
}

std::int64_t Ddp::unused_bytes() const {
  std::int64_t bytes = 0;
  for (const std::int32_t p : unused_) bytes += parameter(p).bytes();
  return bytes;
}

// The second instance that a recording lists buckets of runs three steps of one micro-batch.
LibraryRun record_ddp(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch) {
  LibraryRun run;
  DdpState state{0, false, false, true};
  for (std::int32_t step = 1; step <= watch.steps; ++step) {
    Ddp ddp(model, plan, programs, {}, GradientHooks::Log::kKept);
    if (step == 1) {
      run.construction = ddp.construction();
      for (std::int32_t listed = 1; listed <= 3; ++listed) {
        const std::int32_t rebuilt = plan.ddp.static_graph ? 3 : 2;
        if (listed == 3 && rebuilt != 3) break;
        std::vector<LibraryBucket> buckets = ddp.list_buckets(ddp.rebuilds() && listed >= rebuilt);
        for (LibraryBucket& bucket : buckets) {
          bucket.phase = "step" + std::to_string(listed);
          // delay_all_reduce does not count the buckets it reduces.
          if (plan.ddp.static_graph && listed == 1) {
            bucket.extra.replace(
                bucket.extra.find("is_last="), std::string::npos, buckets.size() == 1 ? "is_last=1" : "is_last=0");
            bucket.index = 0;
          }
          run.buckets.push_back(std::move(bucket));
        }
      }
      run.facts["logging.bucket_cap_bytes"] = ddp.bucket_cap();
      run.facts["logging.unused_parameter_size"] = ddp.unused_bytes();
    }
    run.steps.push_back(ddp.build(state));
    const std::string name = "step" + std::to_string(step);
    run.facts[name + ".param_bytes"] = ddp.parameter_bytes();
    run.facts[name + ".grad_storage_bytes"] = ddp.gradient_bytes(state.rebuilt);
  }
  return run;
}

}
