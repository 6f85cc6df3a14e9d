// What lives between steps, and what happens to it at the end of one: clipping, the optimizer's
// step, zero_grad. Parameters come in the order of Module.parameters(), whatever their units.
#include <algorithm>
#include <utility>

#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/optimizer_state.h"

namespace foreshard {

// Layers of one kind that are trained alike differ in their units only.
void Fsdp2::list_trained() {
  std::size_t all = sum_of<std::size_t>(
      model_.order, [&](const LayerInstance& instance) { return model_.kinds[at(instance.kind)].parameters.size(); });
  trained_.reserve(all);
  std::size_t begin = 0;  // of the layer before
  std::int32_t like = -1;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    const LayerInstance& instance = model_.order[at(l)];
    if (instance.same_as >= 0) continue;
    const bool repeats = like >= 0 && plan_.ignored == Ignored::kNone && model_.order[at(like)].kind == instance.kind &&
                         plan_.frozen.blocks.ranges.empty() && spec_of(l).role == LayerRole::kBlock;
    const std::size_t end = trained_.size();
    like = l;
    if (repeats) {
      for (std::size_t i = begin; i < end; ++i) {
        Trained copy = trained_[i];
        copy.unit = unit_of_part(l, copy.part);
        trained_.push_back(copy);
      }
      begin = end;
      continue;
    }
    begin = end;
    const LayerExecution& first = graph().executions[at(l)];
    const std::vector<ParameterSpec>& parameters = spec_of(l).parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const UnitParameter p = sharded(l, parameters[i]);
      if (parameters[i].tied || !p.trainable) continue;
      Trained& trained = trained_.emplace_back();
      trained.state_bytes = p.local_numel * size_of(plan_.optimizer.state);
      trained.part = parameters[i].part;
      trained.replicated = p.replicated;
      trained.stepped = p.stepped;
      if (const auto& shape = parameters[i].shape; is_of_muon(plan_.optimizer, parameters[i], spec_of(l).role))
        trained.rows = shape[0], trained.columns = shape[1];
      if (is_ignored(parameters[i]))
        trained.ignored_gradient = first.first_buffer + graph().program(first).weight_gradients[i];
      else trained.unit = unit_of_part(l, parameters[i].part);
    }
  }
}

// Parameters outside FSDP have no unit.
void Fsdp2::persistent_memory(StepNumber step) {
  hold_reference();
  if (is_pipelined()) hold_received(step);
  const bool on_host = plan_.offload != Offload::kNone;
  const bool fused = plan_.optimizer.implementation == Optimizer::Implementation::kFused;
  const auto hold = [&](MemoryCategory category, std::int32_t unit, std::int32_t parts) {
    allocate_persistent_parts(category, unit, parts);
    graph().buffers.back().on_host = on_host;
  };
  std::vector<Bytes> ignored, ignored_states;
  if (plan_.ignored != Ignored::kNone) {
    for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
      if (model_.order[at(l)].same_as >= 0) continue;
      for (const ParameterSpec& parameter : spec_of(l).parameters) {
        if (!is_ignored(parameter) || parameter.tied) continue;
        const UnitParameter p = sharded(l, parameter);
        ignored.push_back(allocated_size(p.numel * p.stored_size));
      }
    }
    for (const Trained& p : trained_)
      if (p.unit < 0) ignored_states.push_back(allocated_size(p.state_bytes));
  }
  for (const std::int64_t bytes : resident_bytes()) ignored.push_back(allocated_size(bytes));
  if (!ignored.empty()) hold(MemoryCategory::kShardedParam, -1, add_part_list(std::move(ignored)));
  for (std::int32_t u = 0; u < count(); ++u) {
    const auto padded = [](const UnitParameter& p) { return p.local_numel != p.shard_numel; };
    const std::vector<UnitParameter>& list = shape(u).list;
    if (!logging_ || std::ranges::none_of(list, padded)) {
      hold(MemoryCategory::kShardedParam, u, shape(u).sharded_parts);
      continue;
    }
    for (const UnitParameter& p : list) {
      // torchtitan's recorder counts shards that were padded among what the model holds besides.
      if (framed() && padded(p)) continue;
      const std::int32_t shard =
          allocate_persistent(MemoryCategory::kShardedParam, u, Bytes(p.shard_numel * p.stored_size));
      graph().buffers.back().on_host = on_host;
      if (!padded(p)) continue;
      (step == StepNumber::kFirst ? unpadded_ : padded_again_).push_back(shard);
    }
  }
  if (step == StepNumber::kFirst) return;
  if (steps_by_adamw()) {
    // Unless it is fused, AdamW keeps the number of steps on the host.
    const auto counters = std::ranges::count_if(trained_, &Trained::is_listed);
    hold(MemoryCategory::kOptimizerState, -1, add_part_list(std::vector<Bytes>(at(counters), allocated_size(4))));
    graph().buffers.back().on_host = on_host || !fused;
  }
  for (int moment = 0; moment < moments(); ++moment) {
    if (!ignored_states.empty()) hold(MemoryCategory::kOptimizerState, -1, add_part_list(ignored_states));
    for (std::int32_t u = 0; u < count(); ++u) {
      std::int32_t parts = shape(u).state_parts;
      if (plan_.optimizer.kind == Optimizer::Kind::kMuon && moment > 0) {
        std::vector<Bytes> rest;
        for (const Trained& p : trained_)
          if (p.unit == u && p.is_listed()) rest.push_back(allocated_size(p.state_bytes));
        if (rest.empty()) continue;
        parts = add_part_list(std::move(rest));
      }
      hold(MemoryCategory::kOptimizerState, u, parts);
    }
  }
}

// Accelerate's GradScaler: outputs are fp16 in its policy (set_mixed_precision), and the check of
// DTensors is a partial result.
void Fsdp2::reduce_found_infinite() {
  if (!is_wrapped()) return;
  wait(Stream::kAllReduce, tail(Stream::kCompute));
  wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
  log_norm(master_size());
}

void Fsdp2::log_norm(std::int64_t bytes) {
  if (!logging_) return;
  log("all_reduce", {.bytes_in = bytes,
                        .bytes_out = bytes,
                        .dtype = to_string(plan_.master_dtype),
                        .group = "clip",
                        .cause = "clip"});
}

// clip_grad_norm_: a norm for each gradient, stacked; what the shard group sums is the row of them
// (before 2.9 the norm of the rank's part alone); one factor for all.
void Fsdp2::clip() {
  log_where_ = "clip";
  if (logging_) log("clip_begin");
  if (has_axes() || framed()) return clip_over_axes();
  const auto parameters = std::ssize(trained_);
  const Bytes scalar(master_size());
  const Bytes row(parameters * master_size());
  const Bytes sent = version_.clips_one_norm ? scalar : row;
  const auto temporary = [&](Bytes bytes) {
    return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, bytes);
  };
  add_step_row(EventKind::kGradNorm, Stream::kCompute);
  std::int32_t norms = allocate_parts(MemoryCategory::kOptimizerTemp, -1,
      add_part_list(std::vector<Bytes>(at(parameters), allocated_size(master_size()))));
  std::int32_t stacked = temporary(row);
  std::int32_t total = kNoBuffer, sum = kNoBuffer;
  if (version_.clips_one_norm) {
    total = temporary(scalar);
    StepBuilder::free(stacked);
    StepBuilder::free(norms);
    sum = temporary(scalar);
  }
  std::int32_t roots = kNoBuffer;
  if (is_wrapped()) {
    std::int32_t powers = temporary(sent);
    wait(Stream::kAllReduce, tail(Stream::kCompute));
    wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
    std::int32_t reduced = temporary(sent);
    log_norm(sent.count());
    roots = temporary(sent);
    StepBuilder::free(powers);
    StepBuilder::free(reduced);
  }
  if (!version_.clips_one_norm) {
    total = temporary(scalar);
    StepBuilder::free(stacked);
    StepBuilder::free(roots);
    StepBuilder::free(norms);
    sum = temporary(scalar);
  }
  std::int32_t reciprocal = temporary(scalar);
  StepBuilder::free(roots);
  std::int32_t factor = temporary(scalar);
  StepBuilder::free(sum);
  StepBuilder::free(reciprocal);
  std::int32_t clamped = temporary(scalar);
  StepBuilder::free(factor);
  sum_over_stages();
  add_step_row(EventKind::kGradScale, Stream::kCompute);
  StepBuilder::free(clamped);
  StepBuilder::free(total);
  if (logging_) log("clip_end");
}

// torchtitan's clip_grad_norm_: stages sum the powers of their norms in place.
void Fsdp2::sum_over_stages() {
  if (!is_pipelined()) return;
  const std::int64_t bytes = master_size();
  wait(Stream::kAllReduce, tail(Stream::kCompute));
  wait(Stream::kCompute,
      add_collective(EventKind::kAllReduce, Stream::kAllReduce, communicator_of(MeshDim::kPp), Bytes(bytes), -1));
  if (!logging_) return;
  log("all_reduce", {.bytes_in = bytes,
                        .bytes_out = bytes,
                        .dtype = to_string(plan_.master_dtype),
                        .group = "pp",
                        .group_size = plan_.mesh.pp,
                        .on = "SUM"});
}

void Fsdp2::optimizer(StepNumber step) {
  log_where_ = "optimizer";
  if (logging_) log("optimizer_begin");
  balance_routers();
  const EventKind kind = plan_.offload == Offload::kNone ? EventKind::kOptimizer : EventKind::kHostOptimizer;
  const bool adam = steps_by_adamw();
  if (step == StepNumber::kFirst) create_optimizer_states();
  for (const Trained& p : trained_)
    if (p.rows > 0 && p.stepped) step_by_muon(p.rows, p.columns, plan_.mesh.shard, kShard);
  const EventId last = add_step_row(kind, Stream::kCompute);
  // torch.optim steps tensors and DTensors together only one by one.
  const bool loops =
      plan_.optimizer.implementation == Optimizer::Implementation::kLoop || plan_.ignored == Ignored::kNorms;
  if (adam && plan_.optimizer.implementation == Optimizer::Implementation::kFused) {
  } else if (adam && loops) {
    std::vector<Bytes> moments;
    for (const Trained& p : trained_)
      if (p.is_listed()) moments.emplace_back(p.state_bytes);
    step_one_by_one(moments, plan_.offload != Offload::kNone);
  } else if (listed_temporaries() > 0) {
    if (adam) {  // what the counters on the host are increased by
      std::int32_t one = allocate(MemoryCategory::kOptimizerState, Stream::kCompute, -1, Bytes(4));
      graph().buffers.back().on_host = true;
      StepBuilder::free(one);
    }
    std::vector<Bytes> sizes;
    sizes.reserve(trained_.size());
    const auto step_listed = [&] {
      const std::int32_t parts = add_part_list(std::exchange(sizes, {}));
      hold_temporaries(listed_temporaries(), parts, plan_.offload != Offload::kNone);
    };
    // A stage of a pipeline has an optimizer of its own.
    std::int32_t layer = 0;
    for (const Trained& p : trained_) {
      if (!p.is_listed()) continue;
      for (; is_pipelined() && layer <= modules_of(p.unit).front().layer; ++layer)
        if (model_.order[at(layer)].begins_stage && !sizes.empty()) step_listed();
      sizes.push_back(allocated_size(p.state_bytes));
    }
    step_listed();
  }
  step_plain_gradients();
  if (logging_) log("optimizer_end");
  if (plan_.float8_all_gather) {  // the scales: the greatest values of all shards (step_work)
    wait(Stream::kAllReduce, last);
    wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
  }
  if (!framed()) {
    if (!is_wrapped()) drop_plain_gradients();
    zero_grad();
  }
  if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
}

// Parameter by parameter, in the order of Module.parameters().
void Fsdp2::create_optimizer_states() {
  const bool on_host = plan_.offload != Offload::kNone;
  const bool fused = plan_.optimizer.implementation == Optimizer::Implementation::kFused;
  const auto create = [&](std::int64_t bytes, bool host) {
    allocate(MemoryCategory::kOptimizerState, Stream::kCompute, -1, Bytes(bytes));
    graph().buffers.back().on_host = host;
  };
  for (const Trained& p : trained_) {
    if (!p.stepped) continue;
    if (steps_by_adamw() && p.is_listed()) create(4, on_host || !fused);
    for (int moment = 0; moment < (p.rows > 0 ? 1 : moments()); ++moment) create(p.state_bytes, on_host);
  }
}

// The flat gradient of a unit goes with the last of its parameters.
void Fsdp2::zero_grad() {
  std::vector<std::int64_t> left;
  left.reserve(groups_.size());
  for (std::int32_t u = 0; u < count(); ++u) left.push_back(shape(u).trained);
  std::vector<std::size_t> next(groups_.size(), 0);
  for (std::size_t i = 0; i < trained_.size();) {
    const std::int32_t unit = trained_[i].unit;
    if (unit < 0) {
      std::int32_t gradient = trained_[i++].ignored_gradient;
      drop_gradient(gradient);
      continue;
    }
    Group& g = group(unit);
    const std::size_t first = i;
    while (i < trained_.size() && trained_[i].unit == unit) ++i;
    for (std::size_t k = first; k < i && !g.host_gradients.empty(); ++k)
      drop_gradient(g.host_gradients[next[at(unit)]++]);
    left[at(unit)] -= static_cast<std::int64_t>(i - first);
    if (left[at(unit)] == 0) drop_gradient(g.gradient);
    if (left[at(unit)] == 0 && unit == chunked_unit_) drop_gradient(apart_.gradient);
  }
  apart_.has_gradient = false;
  for (Group& g : groups_) {
    g.host_gradients.clear();
    g.has_gradient = false;
  }
}

}
