// Which parameters are gathered, kept and let go: PartitionedParameterCoordinator of DeepSpeed
// 0.19.8 (deepspeed/runtime/zero/partitioned_param_coordinator.py), without time, without rows.
//
// The first forward and backward record the order of modules; from then on every entry of a module
// fetches what it needs and prefetches along the recorded order. A call sequence per entry: fetch,
// wait for each parameter, prefetch. State lives on from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/zero/zero3_script.h"

namespace foreshard {

class Zero3Coordinator {
 public:
  enum class Trace : std::uint8_t { kInvalid, kRecord, kComplete };

  // ends_early: another forward begins in front of backward, and the order with it.
  Zero3Coordinator(const Zero3Script& script, const Plan& plan, bool ends_early = false);

  Trace trace() const { return trace_; }
  // Start of a forward. What is still in flight arrives and is let go.
  std::span<const std::int32_t> reset_step();
  // As after a step: persistent parameters are there, others are not.
  void start(Trace trace);
  // The module is entered. Where the recorded order has another or none, it is forgotten, and what
  // is still in flight arrives and is let go.
  std::span<const std::int32_t> expect(std::int32_t module);
  // Step 1 of several micro-batches, for the sake of what it decides.
  void rehearse();

  // Parameters of the module that nobody has asked for yet; now in flight.
  std::span<const std::int32_t> fetch(std::int32_t module);
  // The module uses it from now on. Whether it was in flight until now. What is frozen and used in
  // a checkpoint's recomputation stays till backward has ended (ds_recompute_parameters, of a
  // module whose hook after backward never runs).
  bool use(std::int32_t module, std::int32_t parameter, bool recomputes = false);
  // What the entry asks for ahead of time, by ascending id; now in flight.
  std::span<const std::int32_t> prefetch(std::int32_t module);
  // Partitions that are read from NVMe behind it, for later entries (__prefetch_nvme_param_partitions).
  std::span<const std::int32_t> read_ahead();
  enum class Pass : std::uint8_t { kForward, kBackward };
  // Entered in backward: let go of at its end, unless release() comes first.
  void begin_backward(std::int32_t module) { open_.push_back(module); }
  // The module is done. What is let go of, by ascending id.
  std::span<const std::int32_t> release(std::int32_t module, Pass pass);
  std::span<const std::int32_t> release_backward_leftovers();
  std::span<const std::int32_t> release_all();  // before the optimizer
  // Persistent parameters, gathered again after the optimizer.
  std::span<const std::int32_t> after_step();

  bool is_gone(std::int32_t p) const { return status_[static_cast<std::size_t>(p)] == Status::kGone; }
  bool is_in_flight(std::int32_t p) const { return status_[static_cast<std::size_t>(p)] == Status::kInFlight; }
  // ZeRO++ hpZ: a shard of it inside the small group exists.
  bool has_secondary(std::int32_t p) const { return !secondary_.empty() && secondary_[static_cast<std::size_t>(p)]; }
  void make_secondaries();                     // those of construction
  std::int64_t live() const { return live_; }  // elements that are gathered or in flight
  std::size_t modules_in_trace() const { return order_.size(); }
  std::size_t parameters_in_trace() const { return entries_.size(); }

 private:
  enum class Status : std::uint8_t { kGone, kInFlight, kHere };
  struct Entry {  // of the recorded order of parameters
    std::int32_t parameter;
    std::int32_t position;  // of its module in the order of modules
    std::int32_t next;      // position of its next use, or kNever
  };
  static constexpr std::int32_t kNever = 1 << 30;
  static constexpr std::uint8_t kRecomputed = 4;  // of active_

  template <typename T>
  static typename std::vector<T>::value_type at(const std::vector<T>& list, std::int32_t i) {
    return list[static_cast<std::size_t>(i)];
  }
  void record_order(bool ends_early);
  std::span<const std::int32_t> drop_in_flight();
  bool is_reused_soon(std::int32_t module, std::int32_t parameter) const;
  void let_go(std::int32_t parameter);
  void take(std::int32_t parameter);
  std::uint8_t bit(std::int32_t module, std::int32_t parameter) const {
    return script_.owner(parameter) == module ? 1 : 2;
  }
  std::span<const std::int32_t> sorted_list();
  // On the drive and in no buffer of the host.
  bool is_on_drive(std::int32_t p) const {
    return !swaps_.empty() && swaps_[static_cast<std::size_t>(p)] && !buffered_[static_cast<std::size_t>(p)];
  }
  void release_buffer(std::int32_t parameter);

  const Zero3Script& script_;
  const std::int64_t prefetch_bucket_, max_live_, max_reuse_;
  const bool hpz_;

  // The recorded order.
  std::vector<std::int32_t> order_;        // modules
  std::vector<std::int32_t> first_entry_;  // of each position
  std::vector<Entry> entries_;
  std::vector<std::int64_t> traversed_;        // elements of the modules before a position
  std::vector<std::int64_t> traversed_below_;  // ... with all that is below them
  std::vector<std::int32_t> containers_;       // positions of modules that others are below

  Trace trace_ = Trace::kInvalid;
  std::vector<Status> status_;
  std::vector<std::uint8_t> active_;       // which of its modules use it now
  std::vector<std::int32_t> fetched_for_;  // latest position that the queue has handed it out for
  std::vector<std::int32_t> next_use_;     // position, behind the latest entry
  std::vector<bool> secondary_;
  std::vector<std::int32_t> open_;  // modules in backward
  std::vector<std::int32_t> recomputed_;
  // What each call of release() decided the first time (functools.lru_cache), one per owned parameter.
  std::vector<std::uint8_t> decided_;
  std::size_t decision_ = 0;
  bool has_decided_ = false;
  std::size_t queue_ = 0;  // next of entries_
  std::int32_t step_id_ = 0;
  std::int64_t available_ = 0;  // DeepSpeed's counter, which a forward sets back
  std::int64_t live_ = 0;
  std::vector<std::int32_t> list_;  // what the last call returned
  // NVMe: partitions that go there, those of them in a buffer of the host, buffers that are free.
  std::vector<bool> swaps_, buffered_;
  std::int64_t buffers_ = 5;  // OffloadParam's buffer_count (deepspeed/runtime/zero/offload_config.py)
};

}
