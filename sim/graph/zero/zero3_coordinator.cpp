// Status in flight means registered: a coalesced gather makes all of its parameters available when the first of them is
// waited for, but only what its own module waited for is ever let go of, so the difference decides nothing.
//
// A module releases a parameter unless it persists, or the prefetch queue has passed a later use of
// it (then nobody would fetch it again), or it is used again within max_reuse_distance elements of
// the recorded order. Whatever was decided at a place stays decided.
#include "sim/graph/zero/zero3_coordinator.h"

#include <algorithm>
#include <utility>

namespace foreshard {

Zero3Coordinator::Zero3Coordinator(const Zero3Script& script, const Plan& plan, bool ends_early)
    : script_(script),
      prefetch_bucket_(plan.zero.stage3_prefetch_bucket_size),
      max_live_(plan.zero.stage3_max_live_parameters),
      max_reuse_(plan.zero.stage3_max_reuse_distance),
      hpz_(plan.zero.zero_hpz_partition_size > 1) {
  const std::size_t count = script.parameters.size();
  status_.assign(count, Status::kGone);
  active_.assign(count, 0);
  next_use_.assign(count, kNever);
  fetched_for_.assign(count, -1);
  if (hpz_) secondary_.assign(count, false);
  if (plan.zero.offload_param == ZeroOffload::kNvme) {
    buffered_.assign(count, false);
    for (const Zero3Parameter& p : script.parameters)
      swaps_.push_back(goes_to_nvme(partition_of(p.numel, plan.mesh.fsdp()) * size_of(plan.param_dtype)));
  }
  list_.reserve(count);
  record_order(ends_early);
}

void Zero3Coordinator::record_order(bool ends_early) {
  std::int64_t elements = 0, below = 0;
  order_.reserve(script_.modules.size() * 3);
  entries_.reserve(script_.owned.size() * 3);
  const auto record = [&](const std::vector<Zero3Place>& places) {
    for (const Zero3Place& place : places) {
      if (place.kind != Zero3Place::Kind::kEnter) continue;
      const auto position = static_cast<std::int32_t>(order_.size());
      const Zero3Module& module = script_.modules[static_cast<std::size_t>(place.id)];
      order_.push_back(place.id);
      first_entry_.push_back(static_cast<std::int32_t>(entries_.size()));
      traversed_.push_back(elements);
      traversed_below_.push_back(below);
      if (module.is_container && !module.is_leaf) containers_.push_back(position);
      for (const std::int32_t p : script_.owned_of(place.id)) {
        entries_.push_back({p, position, kNever});
        if (!module.is_leaf) elements += script_.parameter(p).numel;
      }
      below += script_.numel_below(place.id);
    }
  };
  record(script_.forward);
  if (!ends_early) record(script_.backward);
  for (std::size_t e = entries_.size(); e-- > 0;) {
    std::int32_t& later = next_use_[static_cast<std::size_t>(entries_[e].parameter)];
    entries_[e].next = later;
    later = entries_[e].position;
  }
}

// --- in and out ---

void Zero3Coordinator::take(std::int32_t p) {
  status_[static_cast<std::size_t>(p)] = Status::kInFlight;
  live_ += script_.parameter(p).numel;
  available_ += script_.parameter(p).numel;
  list_.push_back(p);
  if (script_.parameter(p).persists) {  // its partition is never asked for again
    release_buffer(p);
  } else if (is_on_drive(p)) {
    buffered_[static_cast<std::size_t>(p)] = true;
    --buffers_;
  }
}

// Of what a parameter is gathered from.
void Zero3Coordinator::release_buffer(std::int32_t p) {
  if (swaps_.empty() || !buffered_[static_cast<std::size_t>(p)]) return;
  buffered_[static_cast<std::size_t>(p)] = false;
  ++buffers_;
}

void Zero3Coordinator::let_go(std::int32_t p) {
  const auto i = static_cast<std::size_t>(p);
  if (status_[i] == Status::kGone || active_[i] != 0) return;
  status_[i] = Status::kGone;
  live_ -= script_.parameter(p).numel;
  available_ -= script_.parameter(p).numel;
  if (hpz_) secondary_[i] = true;
  list_.push_back(p);
  release_buffer(p);
}

std::span<const std::int32_t> Zero3Coordinator::sorted_list() {
  std::ranges::sort(list_);
  return list_;
}

// --- steps ---

std::span<const std::int32_t> Zero3Coordinator::drop_in_flight() {
  list_.clear();
  for (std::int32_t p = 0; p < script_.parameter_count(); ++p) {
    if (!is_in_flight(p)) continue;
    status_[static_cast<std::size_t>(p)] = Status::kHere;
    let_go(p);
  }
  return list_;
}

std::span<const std::int32_t> Zero3Coordinator::expect(std::int32_t module) {
  list_.clear();
  const bool is_next = step_id_ < std::ssize(order_) && at(order_, step_id_) == module;
  if (trace_ != Trace::kComplete || is_next) return list_;
  trace_ = Trace::kInvalid;
  return drop_in_flight();
}

std::span<const std::int32_t> Zero3Coordinator::reset_step() {
  drop_in_flight();
  if (trace_ == Trace::kComplete && decision_ > 0) has_decided_ = true;
  trace_ = trace_ == Trace::kInvalid ? Trace::kRecord : Trace::kComplete;
  decision_ = queue_ = 0;
  step_id_ = 0;
  available_ = 0;
  std::ranges::fill(fetched_for_, -1);
  return list_;
}

void Zero3Coordinator::start(Trace trace) {
  trace_ = trace;
  after_step();
}

// A forward and backward that records, and one that decides.
void Zero3Coordinator::rehearse() {
  const auto run = [&](const std::vector<Zero3Place>& places) {
    for (const Zero3Place& place : places) {
      const bool backward = place.phase == EventKind::kBackward;
      if (place.kind == Zero3Place::Kind::kEnter) {
        if (backward) begin_backward(place.id);
        fetch(place.id);
        for (const std::int32_t p : script_.owned_of(place.id)) use(place.id, p, place.phase == EventKind::kRecompute);
        prefetch(place.id);
        read_ahead();
      } else if (place.kind == Zero3Place::Kind::kExit) {
        release(place.id, backward ? Pass::kBackward : Pass::kForward);
      }
    }
  };
  while (!has_decided_) {
    reset_step();
    run(script_.forward);
    run(script_.backward);
    release_backward_leftovers();
    has_decided_ = trace_ == Trace::kComplete;
  }
  release_all();
}

void Zero3Coordinator::make_secondaries() {
  if (hpz_) secondary_.assign(secondary_.size(), true);
}

// --- entry ---

std::span<const std::int32_t> Zero3Coordinator::fetch(std::int32_t module) {
  list_.clear();
  for (const std::int32_t p : script_.owned_of(module))
    if (is_gone(p)) take(p);
  return list_;
}

bool Zero3Coordinator::use(std::int32_t module, std::int32_t p, bool recomputes) {
  const auto i = static_cast<std::size_t>(p);
  if (recomputes && !script_.parameter(p).trained) {
    active_[i] |= kRecomputed;
    recomputed_.push_back(p);
  }
  active_[i] = static_cast<std::uint8_t>(active_[i] | bit(module, p));
  const bool waits = status_[i] == Status::kInFlight;
  status_[i] = Status::kHere;
  return waits;
}

// The queue is cut where the module's own parameters are; then as many elements are taken from it
// as fit, the last parameter in full. What is available already is passed over for good.
std::span<const std::int32_t> Zero3Coordinator::prefetch(std::int32_t module) {
  list_.clear();
  const std::int32_t step = step_id_++;
  if (trace_ != Trace::kComplete) return list_;
  const auto own = script_.owned_of(module);
  std::int32_t missing = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto p = static_cast<std::size_t>(own[i]);
    const auto entry = static_cast<std::size_t>(at(first_entry_, step)) + i;
    next_use_[p] = entries_[entry].next;
    missing += fetched_for_[p] < step ? 1 : 0;
  }
  for (; queue_ < entries_.size() && missing > 0; ++queue_, --missing)
    fetched_for_[static_cast<std::size_t>(entries_[queue_].parameter)] = entries_[queue_].position;
  if (prefetch_bucket_ == 0) return list_;
  const std::int64_t most = std::min(max_live_ - available_, prefetch_bucket_);
  std::int64_t elements = 0;
  for (; queue_ < entries_.size() && elements < most; ++queue_) {
    const Entry& entry = entries_[queue_];
    if (is_on_drive(entry.parameter)) break;  // in the order of the queue
    std::int32_t& latest = fetched_for_[static_cast<std::size_t>(entry.parameter)];
    latest = std::max(latest, entry.position);
    if (!is_gone(entry.parameter)) continue;
    take(entry.parameter);
    elements += script_.parameter(entry.parameter).numel;
  }
  return sorted_list();
}

// As long as what was looked at is not more than twice what is in flight, and there are buffers.
std::span<const std::int32_t> Zero3Coordinator::read_ahead() {
  list_.clear();
  if (swaps_.empty() || trace_ != Trace::kComplete || prefetch_bucket_ == 0) return list_;
  std::int64_t in_flight = 0, considered = 0;
  for (std::int32_t p = 0; p < script_.parameter_count(); ++p)
    if (is_in_flight(p)) in_flight += script_.parameter(p).numel;
  for (std::size_t e = queue_; e < entries_.size() && buffers_ > 0; ++e) {
    if (considered > 2 * in_flight) break;
    const std::int32_t p = entries_[e].parameter;
    if (is_on_drive(p)) {
      buffered_[static_cast<std::size_t>(p)] = true;
      --buffers_;
      list_.push_back(p);
    }
    considered += script_.parameter(p).numel;
  }
  return list_;
}

// --- exit ---

bool Zero3Coordinator::is_reused_soon(std::int32_t module, std::int32_t p) const {
  if (step_id_ >= static_cast<std::int32_t>(order_.size())) return false;
  const bool leaf = script_.modules[static_cast<std::size_t>(module)].is_leaf;
  const std::vector<std::int64_t>& traversed = leaf ? traversed_below_ : traversed_;
  std::int32_t next = at(next_use_, p);
  if (leaf) {
    for (const std::int32_t position : containers_) {
      if (position < step_id_ || position >= next) continue;
      if (script_.is_above(at(order_, position), p)) next = position;
    }
  }
  return next < kNever && at(traversed, next) - at(traversed, step_id_) < max_reuse_;
}

std::span<const std::int32_t> Zero3Coordinator::release(std::int32_t module, Pass pass) {
  list_.clear();
  const bool complete = trace_ == Trace::kComplete;
  for (const std::int32_t p : script_.owned_of(module)) {
    bool goes = true;
    if (complete && has_decided_) {
      goes = decided_[decision_++] != 0;
    } else if (complete) {
      goes = !script_.parameter(p).persists && at(fetched_for_, p) <= step_id_ && !is_reused_soon(module, p);
      decided_.push_back(goes ? 1 : 0);
      ++decision_;
    }
    const auto i = static_cast<std::size_t>(p);
    active_[i] = static_cast<std::uint8_t>(active_[i] & ~bit(module, p));
    if (goes) let_go(p);
  }
  if (pass == Pass::kBackward) {
    const auto found = std::find(open_.rbegin(), open_.rend(), module);
    if (found != open_.rend()) open_.erase(std::next(found).base());
  }
  return list_;
}

std::span<const std::int32_t> Zero3Coordinator::release_backward_leftovers() {
  list_.clear();
  for (; !open_.empty(); open_.pop_back()) {
    for (const std::int32_t p : script_.owned_of(open_.back())) {
      const auto i = static_cast<std::size_t>(p);
      active_[i] = static_cast<std::uint8_t>(active_[i] & ~bit(open_.back(), p));
      if (!script_.parameter(p).persists && status_[i] == Status::kHere) let_go(p);
    }
  }
  for (const std::int32_t p : std::exchange(recomputed_, {})) {
    const auto i = static_cast<std::size_t>(p);
    active_[i] = static_cast<std::uint8_t>(active_[i] & ~kRecomputed);
    if (!script_.parameter(p).persists && status_[i] == Status::kHere) let_go(p);
  }
  return sorted_list();
}

std::span<const std::int32_t> Zero3Coordinator::release_all() {
  list_.clear();
  std::ranges::fill(active_, std::uint8_t{0});
  for (std::int32_t p = 0; p < script_.parameter_count(); ++p) let_go(p);
  return list_;
}

std::span<const std::int32_t> Zero3Coordinator::after_step() {
  list_.clear();
  for (std::int32_t p = 0; p < script_.parameter_count(); ++p) {
    const Zero3Parameter& parameter = script_.parameter(p);
    if (parameter.persists) {
      status_[static_cast<std::size_t>(p)] = Status::kHere;
      live_ += parameter.numel;
      list_.push_back(p);
    }
    if (hpz_ && parameter.trained) secondary_[static_cast<std::size_t>(p)] = false;
  }
  return list_;
}

}
