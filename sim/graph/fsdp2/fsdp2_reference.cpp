// Plan::reference beside fully_shard: another root with streams and states of its own, of which
// nothing is left when its forward has returned.
#include <utility>

#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_repeat.h"

namespace foreshard {

void Fsdp2::hold_reference() {
  if (!is_held(plan_.reference)) return;
  const bool whole = plan_.reference == Reference::kWhole;
  // Never resharded, what was gathered once serves every step.
  const bool keeps = !whole && plan_.reshard_after_forward.value.kind == Reshard::Kind::kNever;
  for (std::int32_t u = 0; u < count(); ++u) {
    const UnitShape& s = shape(u);
    if (!whole) allocate_persistent_parts(MemoryCategory::kShardedParam, u, s.sharded_parts);
    if (!whole && plan_.offload != Offload::kNone) graph().buffers.back().on_host = true;
    if (!whole && !keeps) continue;
    allocate_persistent_parts(MemoryCategory::kUnshardedParam, u, s.unsharded_parts);
  }
}

void Fsdp2::run_reference() {
  if (plan_.reference == Reference::kNone) return;
  const std::int32_t trained_pass = pass();
  const std::string_view where = log_where_;
  const bool is_inside = loss_is_inside_;
  begin_pass(reference_pass(), microbatch());
  Repeat repeat(*this, Repeat::Groups::kUsed);
  Repeat* const trained_repeat = std::exchange(repeat_, &repeat);
  const bool shares = plan_.reference == Reference::kBase;
  const bool keeps = plan_.reshard_after_forward.value.kind == Reshard::Kind::kNever;
  std::vector<std::int32_t> parameters;
  std::int32_t gathered = kNoBuffer;
  if (shares || (plan_.reference == Reference::kUnits && !keeps)) {
    std::vector<Group> trained;
    std::vector<PostForward> order;
    if (!shares) {
      trained = std::exchange(groups_, std::vector<Group>(groups_.size()));
      order = std::exchange(post_forward_order_, {});
    }
    run_forward(false);
    if (!shares) {
      for (Group& g : groups_) {  // a root that forward leaves whole
        StepBuilder::free(g.parameters);
        free_all(g.single_parameters);
        free_all(g.slices);
      }
      groups_ = std::move(trained);
      post_forward_order_ = std::move(order);
    }
  } else {
    if (plan_.reference == Reference::kUnit && !keeps) gathered = gather_reference(parameters);
    has_no_hooks_ = true;
    run_forward(false);
    has_no_hooks_ = false;
    free_all(parameters);
    StepBuilder::free(gathered);
  }
  repeat_ = trained_repeat;
  loss_is_inside_ = is_inside;
  log_where_ = where;
  begin_pass(trained_pass, microbatch());
}

// unshard and wait_for_unshard of one group that has all parameters.
std::int32_t Fsdp2::gather_reference(std::vector<std::int32_t>& parameters) {
  std::int64_t own = 0, whole = 0;
  for (std::int32_t u = 0; u < count(); ++u) {
    own += shape(u).gather_bytes;
    whole += shape(u).gather_bytes * shape(u).shards;
  }
  wait(Stream::kCopyIn, tail(Stream::kCompute));
  wait(Stream::kAllGather, tail(Stream::kCompute));
  const EventId copy_in =
      add_row(EventKind::kAllGatherCopyIn, Stream::kCopyIn, work_of_all(EventKind::kAllGatherCopyIn), -1);
  std::int32_t cast = kNoBuffer;
  if (casts_parameters()) cast = allocate(MemoryCategory::kCastTemp, Stream::kCopyIn, -1, Bytes(own));
  const std::int32_t gathered = allocate(MemoryCategory::kAllGatherOutput, Stream::kCopyIn, -1, Bytes(whole));
  wait(Stream::kAllGather, copy_in);
  const EventId arrived = add_row(EventKind::kAllGather, Stream::kAllGather, work_of_all(EventKind::kAllGather), -1);
  if (logging_) {
    log("all_gather", {.stream = name(Stream::kAllGather),
                          .bytes_in = own,
                          .bytes_out = whole,
                          .dtype = to_string(plan_.param_dtype),
                          .group = "shard",
                          .group_size = whole / own,
                          .cause = "demand",
                          .communicator = kShard,
                          .issue = "c10d"});
  }
  StepBuilder::free(cast);
  wait(Stream::kCompute, arrived);
  add_row(EventKind::kAllGatherCopyOut, Stream::kCompute, work_of_all(EventKind::kAllGatherCopyOut), -1);
  for (std::int32_t u = 0; u < count(); ++u)
    parameters.push_back(allocate_parts(MemoryCategory::kUnshardedParam, u, shape(u).unsharded_parts));
  return gathered;
}

// Of all units at once: as many kernels as for one.
std::uint16_t Fsdp2::work_of_all(EventKind kind) {
  const auto [it, is_new] = works_of_all_.try_emplace(kind);
  if (!is_new) return it->second;
  UnitWork all;
  for (std::int32_t u = 0; u < count(); ++u) {
    const UnitWork one = unit_work(kind, shape(u), kWholeGroup);
    all.tensors += shape(u).parameters;
    all.bytes += one.bytes;
    all.communicator = one.communicator;
    if (one.kernels.size() > all.kernels.size()) all.kernels.resize(one.kernels.size());
    for (std::size_t k = 0; k < one.kernels.size(); ++k) {
      const Bytes before = all.kernels[k].bytes;
      all.kernels[k] = one.kernels[k];
      all.kernels[k].bytes += before;
    }
  }
  return it->second = new_work(kind, all);
}

}
