// FSDPParamGroup.post_backward, foreach_reduce and finalize_backward.
//
// post_backward: what is not to be reduced yet is kept, unsharded (cast to the reduce dtype if that
// is wider; from 2.15 autograd does that). Else: reshard, give back the reduce-scatter input that
// is still held, pack the gradients (cast and padding), reduce-scatter on its own stream, with
// replicas all-reduce behind it, cast to the stored dtype or add to the gradient that is there. The
// gradient of the unit's last parameter lives until all of that was issued (2.6 to 2.14).
#include <algorithm>
#include <utility>

#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_scope.h"

namespace foreshard {
namespace {

// A gradient that backward makes whole is kept so, and cut when it is reduced
// (FSDPParam._get_grad_inner_tensor, to_accumulated_grad_if_needed).
std::int64_t made_numel(const UnitParameter& p) { return p.gradient_numel > 0 ? p.gradient_numel : p.numel; }

}

void Fsdp2::post_backward(std::int32_t unit, std::string_view cause) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  hook();
  Scope scope(*this, "post_backward", unit);
  see_state(unit);
  if (logging_) log_here("backward_end", {.cause = cause});
  g.state = Training::kPostBackward;
  accumulate_unsharded_grads(unit);
  if (!g.reduces) {
    if (reshards_after_backward_) reshard(unit);
    keep_unsharded_grads(unit);
    g.fresh_gradients = false;
    return;
  }
  const bool any = s.trained > 0 && (g.gradient_pass >= 0 || !g.accumulated.empty());
  if (any && s.makes_whole_gradients) g.whole = complete_gradients(unit);
  if (reshards_after_backward_) reshard(unit);
  // (Of a block's groups the first to be reduced releases, for all.)
  if (version_.input_release != InputRelease::kAtReduction && groups_beside(unit).empty()) release_inputs();
  if (any) {
    if (version_.input_release == InputRelease::kAtReduction) release_inputs();
    if (version_.waits_own_reduction) wait_for_post_backward(unit);
    foreach_reduce(unit);
    g.gradient_pass = -1;
  }
  g.fresh_gradients = false;
  for (HeldInput& late : late_inputs_) free_input(late);
  late_inputs_.clear();
}

// The compute stream waits for reduce-scatters whose inputs are still held, oldest first, until one
// more input may be allocated; then their memory may be used again.
void Fsdp2::release_inputs() {
  if (version_.packs_on_reduce_stream) return;
  while (std::ssize(held_inputs_) >= plan_.reduce_scatter_buffers) {
    HeldInput held = held_inputs_.front();
    held_inputs_.pop_front();
    wait_event(Stream::kCompute, held.event);
    if (version_.input_release == InputRelease::kAfterPostBackward) late_inputs_.push_back(held);
    else free_input(held);
  }
}

void Fsdp2::free_input(HeldInput& held) {
  StepBuilder::free(held.buffer);
  if (logging_)
    log("free_reduce_scatter_input", {.unit = held.event.unit, .bytes_in = held.bytes, .cause = log_where_});
}

// Gradients of this micro-batch are added to those kept in the reduce dtype.
void Fsdp2::accumulate_unsharded_grads(std::int32_t unit) {
  Group& g = group(unit);
  if (version_.autograd_accumulates || g.accumulated.empty() || g.gradient_pass < 0) return;
  end_unsharded_grads(unit, [&](const UnitParameter& p) {
    log_operator("add_", Stream::kCompute, made_numel(p) * reduce_size(), plan_.reduce_dtype);
  });
}

void Fsdp2::end_unsharded_grads(std::int32_t unit, const std::function<void(const UnitParameter&)>& each) {
  add_unit_row(EventKind::kAccumulate, Stream::kCompute, unit, kUnsharded);
  std::vector<std::int32_t> gradients = gradient_buffers(unit, group(unit).gradient_pass);
  std::size_t i = 0;
  for (const UnitParameter& p : shape(unit).list) {
    if (!p.trainable) continue;
    each(p);
    StepBuilder::free(gradients[i++]);
  }
  group(unit).gradient_pass = -1;
}

void Fsdp2::keep_unsharded_grads(std::int32_t unit) {
  Group& g = group(unit);
  if (plan_.reduce_dtype == plan_.param_dtype || g.gradient_pass < 0) return;
  if (version_.autograd_accumulates) {
    if (reduce_size() <= param_size()) return;
    for (std::int32_t buffer : gradient_buffers(unit, g.gradient_pass))
      graph().actions.push_back({MemoryAction::Kind::kKeep, buffer});
    return;
  }
  sum_in_reduce_dtype(unit);
}

void Fsdp2::sum_in_reduce_dtype(std::int32_t unit) {
  Group& g = group(unit);
  end_unsharded_grads(unit, [&](const UnitParameter& p) {
    g.accumulated.push_back(
        allocate(MemoryCategory::kAccumulatedGrad, Stream::kCompute, unit, Bytes(made_numel(p) * reduce_size())));
    log_operator("_to_copy", Stream::kCompute, made_numel(p) * param_size(), plan_.param_dtype);
  });
}

// Gradients of parameters sharded along another dimension are replaced by copies in the order of ranks, one after the
// other. What was replaced dies when its last name lets go of it: the chunks of the next one replaced, and the tuples
// of the loop over enumerate(zip(...)), of which zip keeps every second for one round more.
void Fsdp2::rearrange_gradients(
    const UnitShape& shape, std::vector<std::int32_t>& gradients, std::vector<std::int32_t>& kept_names, DType dtype) {
  struct Replaced {
    std::int32_t buffer = kNoBuffer;
    std::size_t tuple_until = 0;  // round of the loop
  };
  std::vector<Replaced> replaced;
  std::size_t round = 0;
  for (const UnitParameter& p : shape.list) {
    if (!p.trainable) continue;
    for (std::size_t r = 0; r + (p.shard_dim > 0 ? 0 : 1) < replaced.size(); ++r)
      if (replaced[r].tuple_until <= round) StepBuilder::free(replaced[r].buffer);
    if (p.shard_dim > 0) {
      std::int32_t& gradient = gradients[round];
      const std::size_t until = round % 2 == 0 ? round + 2 : round + 1;
      replaced.push_back({gradient, until});
      gradient = allocate(MemoryCategory::kCommTemp, Stream::kCompute, -1, Bytes(p.numel * size_of(dtype)));
      log_operator("cat", Stream::kCompute, p.numel * size_of(dtype), dtype);
    }
    ++round;
  }
  for (std::size_t r = 0; r + 1 < replaced.size(); ++r) StepBuilder::free(replaced[r].buffer);
  if (version_.keeps_last_gradient) kept_names.push_back(replaced.back().buffer);
  else StepBuilder::free(replaced.back().buffer);
}

// As they are when they are reduced.
DType Fsdp2::gradients_dtype(const Group& g) const {
  const bool wide = !g.accumulated.empty() || version_.autograd_accumulates;
  const bool kept = !g.accumulated.empty() || g.gradient_pass != pass();
  const bool narrowed = version_.autograd_accumulates && reduce_size() < param_size();
  return (wide && kept) || narrowed ? plan_.reduce_dtype : plan_.param_dtype;
}

// One unit's gradients on their way through foreach_reduce.
struct Fsdp2::Reduction {
  std::int32_t unit;
  const UnitShape& shape;
  Division divide;
  std::int32_t gradient_pass;
  bool exchanges;   // by a reduce-scatter; else one rank copies
  bool rearranges;  // what lies along another dimension
  bool keeps_last = false;
  bool is_named = false;  // each gradient is a buffer of its own
  HeldInput input = {};   // of the reduce-scatter
  std::int32_t output = kNoBuffer;
  std::int64_t output_bytes = 0;
  std::vector<std::int32_t> kept_names = {};  // gradients that local names hold to the end
};

void Fsdp2::foreach_reduce(std::int32_t unit) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  if (version_.partial_waits_before_pack && g.partial != kNoBuffer) {
    Scope scope(*this, "post_backward", unit);
    wait_stream(Stream::kReduceScatter, Stream::kCompute);
  }
  Scope scope(*this, "reduce", unit);
  const bool exchanges = s.shards > 1 || version_.reduces_alone;
  Reduction r = {unit, s, division(unit), g.gradient_pass, exchanges, s.trained_cut_numel > 0 && exchanges};
  r.keeps_last = version_.keeps_last_gradient && exchanges;
  r.output_bytes = s.trained_shard_numel * reduce_size();
  pack_gradients(r);
  reduce_scatter(r);

  Stream stream = Stream::kReduceScatter;
  std::int32_t finished_partial = kNoBuffer;
  const bool is_partial = replicated() && !all_reduces_;
  if (replicated() && g.partial != kNoBuffer) {
    add_unit_row(EventKind::kAccumulate, Stream::kReduceScatter, unit, kPartial);
    log_operator("add_", Stream::kReduceScatter, r.output_bytes, plan_.reduce_dtype);
    if (is_partial) StepBuilder::free(r.output);
    else finished_partial = std::exchange(g.partial, kNoBuffer);
  } else if (is_partial) {
    g.partial = r.output;
  }
  if (!is_partial) {
    if (replicated()) all_reduce(r);
    if (replicated()) stream = Stream::kAllReduce;
    if (r.divide.after > 1) {
      add_unit_row(EventKind::kAccumulate, stream, unit, kDivide);
      log_operator("div_", stream, r.output_bytes, plan_.reduce_dtype);
    }
    store_sharded_grads(unit, r.output, stream);
  }
  g.post_reduce = record(stream, "post_reduce", unit);
  note_last_reduction(stream, g.post_reduce);
  if (r.is_named) free_from_end(r.kept_names);
  else if (r.keeps_last) free_last_gradient(unit, r.gradient_pass);
  if (version_.packs_on_reduce_stream) free_input(r.input);
  if (logging_) log_here("reduce_end");
  scope.leave();
  if (finished_partial != kNoBuffer) {
    StepBuilder::free(finished_partial);
    if (logging_) log("free_partial_reduce_output", {.unit = unit, .bytes_in = r.output_bytes, .cause = log_where_});
  }
  if (!version_.packs_on_reduce_stream) held_inputs_.push_back(r.input);
}

void Fsdp2::pack_gradients(Reduction& r) {
  Group& g = group(r.unit);
  const bool wide = !g.accumulated.empty() || version_.autograd_accumulates;
  const bool kept = !g.accumulated.empty() || g.gradient_pass != pass();
  const DType gradient_dtype = gradients_dtype(g);
  const Stream packs = version_.packs_on_reduce_stream ? Stream::kReduceScatter : Stream::kCompute;
  const bool from_accumulated = !g.accumulated.empty();
  std::vector<std::int32_t> one_by_one = std::exchange(g.whole, {});
  const bool completed = !one_by_one.empty();
  r.is_named = from_accumulated || r.rearranges || completed;
  if (completed) g.accumulated.clear();
  else if (from_accumulated) one_by_one = std::exchange(g.accumulated, {});
  else if (r.rearranges) one_by_one = gradient_buffers(r.unit, r.gradient_pass);
  if (r.rearranges) rearrange_gradients(r.shape, one_by_one, r.kept_names, gradient_dtype);
  if (version_.packs_on_reduce_stream) wait_stream(Stream::kReduceScatter, Stream::kCompute);
  const EventId packed =
      add_unit_row(EventKind::kReduceScatterCopyIn, packs, r.unit, kept && wide ? kUnsharded : kWholeGroup);
  r.input.bytes = r.output_bytes * r.shape.shards;
  r.input.buffer = allocate(MemoryCategory::kReduceScatterInput, packs, r.unit, Bytes(r.input.bytes));
  if (logging_) {
    log_here("reduce_scatter_copy_in", {.stream = name(packs),
                                           .bytes_in = r.shape.trained_numel * size_of(gradient_dtype),
                                           .bytes_out = r.input.bytes,
                                           .dtype = to_string(gradient_dtype)});
  }
  if (version_.packs_on_reduce_stream) wait_stream(Stream::kCompute, Stream::kReduceScatter);
  if (!one_by_one.empty()) {
    // Of a last parameter that was replaced, the copy goes: its name holds what was there before.
    const auto& list = r.shape.list;
    const auto last = std::find_if(list.rbegin(), list.rend(), [](const UnitParameter& p) { return p.trainable; });
    if (r.keeps_last && !(r.rearranges && last->shard_dim > 0)) {
      r.kept_names.push_back(one_by_one.back());
      one_by_one.pop_back();
    }
    free_from_end(one_by_one);
    if (!r.keeps_last) free_all(r.kept_names);
  } else {
    free_gradients(r.unit, r.gradient_pass);
    if (!r.keeps_last) free_last_gradient(r.unit, r.gradient_pass);
  }
  if (!version_.packs_on_reduce_stream) {
    wait(Stream::kReduceScatter, packed);
    if (logging_) log_here("wait", {.stream = "RS", .on = "stream D"});
  }
}

void Fsdp2::reduce_scatter(Reduction& r) {
  r.output = allocate(MemoryCategory::kReduceScatterOutput, Stream::kReduceScatter, r.unit, Bytes(r.output_bytes));
  if (r.divide.before > 1) {
    add_unit_row(EventKind::kAccumulate, Stream::kReduceScatter, r.unit, kDivideInput);
    log_operator("div_", Stream::kReduceScatter, r.input.bytes, plan_.reduce_dtype);
  }
  if (r.exchanges) {
    add_unit_row(EventKind::kReduceScatter, Stream::kReduceScatter, r.unit);
    if (logging_) {
      const bool separate = plan_.communicators == Communicators::kSeparate;
      log_here("reduce_scatter", {.stream = "RS",
                                     .bytes_in = r.input.bytes,
                                     .bytes_out = r.output_bytes,
                                     .dtype = to_string(plan_.reduce_dtype),
                                     .group = separate ? "reduce_scatter" : shard_group(r.unit),
                                     .group_size = r.shape.shards,
                                     .on = r.divide.reduce_scatter,
                                     .communicator = gathers_on(r.shape),
                                     .issue = "c10d"});
    }
  } else {
    add_unit_row(EventKind::kAccumulate, Stream::kReduceScatter, r.unit, kCopyAlone);
    std::int32_t divided = kNoBuffer;
    if (plan_.gradient_divide_factor && has_factor(r.unit)) {
      divided = allocate(MemoryCategory::kShardedGrad, Stream::kReduceScatter, r.unit, Bytes(r.input.bytes));
      log_operator("div", Stream::kReduceScatter, r.input.bytes, plan_.reduce_dtype);
    }
    log_operator("copy_", Stream::kReduceScatter, r.output_bytes, plan_.reduce_dtype);
    StepBuilder::free(divided);
  }
  r.input.event = record(Stream::kReduceScatter, "reduce_scatter", r.unit);
}

void Fsdp2::all_reduce(const Reduction& r) {
  Group& g = group(r.unit);
  wait_stream(Stream::kAllReduce, Stream::kReduceScatter);
  add_unit_row(EventKind::kAllReduce, Stream::kAllReduce, r.unit);
  if (logging_) {
    log_here("all_reduce", {.stream = "AR",
                               .bytes_in = r.output_bytes,
                               .bytes_out = r.output_bytes,
                               .dtype = to_string(plan_.reduce_dtype),
                               .group = of_experts(r.shape) ? "expert_replicate" : "replicate",
                               .group_size = plan_.mesh.replicate,
                               .on = r.divide.all_reduce,
                               .communicator = replicates_on(r.shape),
                               .issue = "c10d"});
  }
  g.all_reduce = record(Stream::kAllReduce, "all_reduce", r.unit);
  if (version_.holds_all_reduce_input) g.all_reduce_pending = true;
}

// The reduced gradients become the parameters' gradients, or are added to those there are.
void Fsdp2::store_sharded_grads(std::int32_t unit, std::int32_t output, Stream stream) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  const std::int64_t output_bytes = s.trained_shard_numel * reduce_size();
  const bool holds = replicated() && version_.holds_all_reduce_input;
  std::int32_t flat = output;
  if (casts_gradients()) {
    add_unit_row(EventKind::kAccumulate, stream, unit, g.has_gradient || g.keeps_gradient ? kCastAdd : kCast);
    flat = allocate(MemoryCategory::kShardedGrad, stream, unit, Bytes(s.trained_shard_numel * master_size()));
    log_operator("_to_copy", stream, output_bytes, plan_.reduce_dtype);
    if (holds) {
      g.all_reduce_input = output;
      g.all_reduce_input_bytes = output_bytes;
    } else {
      StepBuilder::free(output);
    }
  } else if (g.has_gradient || g.keeps_gradient) {
    add_unit_row(EventKind::kAccumulate, stream, unit, kAdd);
  }
  const bool offloaded = plan_.offload != Offload::kNone;
  if (offloaded) add_unit_row(EventKind::kDeviceToHost, stream, unit);
  for (const UnitParameter& p : s.list) {
    if (!p.trainable) continue;
    const std::int64_t local = p.local_numel * master_size();
    const bool adds = g.has_gradient || (g.keeps_gradient && !p.stepped);
    std::int32_t arrived = kNoBuffer;
    if (offloaded) {
      const bool blocking = plan_.offload == Offload::kCpuUnpinned || adds;
      if (logging_) {
        log_here("device_to_host", {.stream = name(stream),
                                       .bytes_in = local,
                                       .dtype = to_string(plan_.master_dtype),
                                       .on = blocking ? "blocking" : "non_blocking"});
      }
      arrived = allocate(MemoryCategory::kShardedGrad, stream, unit, Bytes(local));
      graph().buffers.back().on_host = true;
      log_operator("clone", stream, local, plan_.master_dtype);
      if (blocking) host_wait(tail(stream));
      else g.host_copies.push_back(record(stream, "post_reduce", unit));
    }
    if (adds) {
      log_operator("add_", stream, local, plan_.master_dtype);
      StepBuilder::free(arrived);
    } else if (offloaded) {
      g.host_gradients.push_back(arrived);
    }
  }
  if (offloaded) {
    if (holds && !casts_gradients()) {
      g.all_reduce_input = flat;
      g.all_reduce_input_bytes = output_bytes;
    } else {
      StepBuilder::free(flat);
    }
  } else if (!g.has_gradient) {
    g.gradient = flat;
    graph().actions.push_back({MemoryAction::Kind::kStore, flat});
  } else if (holds && !casts_gradients()) {
    g.all_reduce_input = flat;
    g.all_reduce_input_bytes = output_bytes;
  } else {
    StepBuilder::free(flat);
  }
  g.has_gradient = true;
}

// _wait_for_post_backward
void Fsdp2::wait_for_post_backward(std::int32_t unit) {
  Group& g = group(unit);
  if (version_.end_waits == EndWaits::kPerUnit || !in_finalize_) {
    if (g.post_reduce.recorded) wait_event(Stream::kCompute, g.post_reduce);
    if (g.all_reduce_pending) wait_event(Stream::kCompute, g.all_reduce);
  }
  g.post_reduce = {};
  g.all_reduce_pending = false;
  if (g.all_reduce_input == kNoBuffer) return;
  StepBuilder::free(g.all_reduce_input);
  if (logging_) log("free_all_reduce_input", {.unit = unit, .bytes_in = g.all_reduce_input_bytes, .cause = log_where_});
}

void Fsdp2::note_last_reduction(Stream stream, const DeviceEvent& event) {
  for (auto& [known, last] : last_reductions_) {
    if (known != stream) continue;
    last = event;
    return;
  }
  last_reductions_.emplace_back(stream, event);
}

void Fsdp2::wait_last_reductions() {
  for (const auto& [stream, event] : last_reductions_) wait_event(Stream::kCompute, event);
  last_reductions_.clear();
}

void Fsdp2::finalize_backward(std::int32_t unit) {
  Group& g = group(unit);
  Scope scope(*this, "finalize_backward", unit);
  if (logging_) log_here("finalize_backward");
  in_finalize_ = true;
  g.open_modules = 0;  // of modules that were not all called
  if (version_.end_waits == EndWaits::kLastPerStream) wait_last_reductions();
  wait_for_post_backward(unit);
  if (unit == chunked_unit_) {
    std::swap(g, apart_);
    wait_for_post_backward(unit);
    std::swap(g, apart_);
  }
  in_finalize_ = false;
  for (const DeviceEvent& copied : g.host_copies) {
    host_wait(copied.row);
    if (logging_) log_here("host_wait", {.on = copied.label, .on_unit = copied.unit});
  }
  g.host_copies.clear();
  if (g.gather.pending && version_.drops_stray_gathers) {
    // Gathered for nothing: nobody unsharded it in this backward.
    if (!alone(unit) || version_.gathers_alone) wait_event(Stream::kCompute, g.gather.event);
    free_gather(unit, g.gather);
    g.gather = {};
  }
  g.post_forward = -1;
}

}
