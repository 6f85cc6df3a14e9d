// The step of DeepSpeed 0.19.8 under ZeRO stage 3, as rows. The parts of the class are in
// zero3.cpp (the walk over a step), zero3_gather.cpp (fetch, prefetch, wait, release),
// zero3_reduce.cpp (gradients), zero3_optimizer.cpp (states and the step) and zero3_log.cpp.
//
// Streams of a row:
//   kCompute        the default stream
//   kCopyIn         allgather_stream: copies into and out of gather buffers
//   kAllGather      the communicator's own stream, where NCCL runs what is called async_op=True
//   kReduceScatter  reduce_and_partition_stream: copies into the bucket and, not being async, the
//                   reduce-scatter itself
//   kAllReduce      no stream of the device: the queue of reads from NVMe (aio_read_handle)
// With overlap_comm off, the second and the last are the default stream.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/graph/runtimes.h"
#include "sim/graph/step_builder.h"
#include "sim/graph/zero/zero3_coordinator.h"
#include "sim/graph/zero/zero3_script.h"
#include "sim/graph/zero/zero3_trace.h"

namespace foreshard {

// What lives on between the steps of a recorded run.
struct Zero3Run {
  const Zero3Script* script = nullptr;
  Zero3Coordinator* coordinator = nullptr;
  LibraryRun* record = nullptr;                  // null: nothing is logged
  std::int32_t steps = 1;                        // of the record; the last one's buckets are listed
  std::vector<std::string> parameters, modules;  // names
};

class Zero3 final : public StepBuilder {
 public:
  Zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);

  EventGraph build(const LayerPrograms& programs);       // the steady step
  LibraryStep record(Zero3Run& run, std::int32_t step);  // steps from 1 on, in order
  static void record_construction(Zero3Run& run, const Plan& plan);

 private:
  using Pass = Zero3Coordinator::Pass;
  // Elements that share a scale when weights are quantised (CUDAQuantizer.target_group_size).
  static constexpr std::int64_t kQuantizedGroup = 8000;
  using Parameters = std::span<const std::int32_t>;
  static constexpr Stream kDrive = Stream::kAllReduce;
  enum class Cause : std::uint8_t { kFetch, kPrefetch };

  // A gather whose parameters are not all waited for.
  struct Handle {
    EventId gathered = kNoEvent;    // the collective
    std::int32_t flat = kNoBuffer;  // coalesced: what it gathers into
    std::int64_t flat_bytes = 0;
    std::uint32_t first_member = 0;
    std::int32_t members = 0;
    std::int32_t registered = 0;  // members that nobody waited for
    std::int32_t views = 0;       // all-reduce: members that still live in `flat`
    bool coalesced = false;
    bool copied = false;  // its members are where their modules look for them
    bool by_all_reduce = false;
  };

  // --- zero3.cpp ---
  void run_step();
  // A step asks the coordinator, or follows what it once decided.
  void arrive(Zero3Trace::Range range);
  void follow(const Zero3Trace::Pass& pass);
  void follow(const std::vector<Zero3Trace::Stop>& stops);
  void ask();
  void walk(const std::vector<Zero3Place>& places);
  void enter(const Zero3Place& place);
  void leave(const Zero3Place& place);
  void visit(const Zero3Place& place);  // all but modules
  void end_gradients();
  void end_backward();
  // Plan::reference: an engine without an optimizer, with a trace and partitions of its own.
  void make_reference();
  void hold_reference();
  std::int64_t partition_bytes() const;  // of all parameters, of the rank
  void hold_gathered(std::int32_t p);
  void run_reference();
  void swap_models();
  // The phase of a layer runs in rows that are opened late and cut where something else is issued.
  void move_to(const Zero3Place& place);
  void catch_up() {  // memory of the segments up to where the walk is
    if (target_ > done_ && layer_ >= 0) run_segments();
  }
  void run_segments();
  void run_to(std::uint16_t end);
  void close_run() {
    if (run_row_ != kNoEvent) price_run();
  }
  void price_run();
  EventId add(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit);
  void settle(EventId id);
  EventId add_bytes(EventKind kind, Stream stream, std::int64_t bytes, std::int32_t unit);
  void host_awaits(EventId event) {
    if (event > awaited_) awaited_ = event;
  }
  std::uint16_t work_of(EventKind kind, std::int64_t bytes, std::uint8_t communicator);
  std::int32_t unit_of(std::int32_t p) const { return unit_of_layer(parameter(p).layer); }

  // --- zero3_gather.cpp ---
  void gather(Parameters list);
  void gather_group(Parameters group, bool small_group, bool coalesced);
  std::int64_t shard_numel(Parameters group, bool small_group) const;
  void fetch_from_host(Parameters group);
  void read_from_drive(Parameters group);
  void read_ahead(Parameters group);
  void await(std::int32_t parameter);
  void copy_out(Handle& handle);
  void let_go(Parameters list);
  void keep_secondary(std::int32_t parameter);
  void gather_persistent();
  void wait_for_gathers() {  // the default stream waits for allgather_stream
    if (gather_copies_ != Stream::kCompute && tail(gather_copies_) != seen_copies_) see_gathers();
  }
  void see_gathers();
  std::int64_t group_size(bool small_group) const { return small_group ? small_group_ : plan_.mesh.fsdp(); }

  // --- zero3_reduce.cpp ---
  void gradient(const Zero3Place& place);
  void reduce(std::int32_t parameter);
  void copy_gradients();
  void flush();
  void quantized_reduce(std::span<const std::int32_t> bucket);
  void store_partitions(std::int64_t elements);
  std::int32_t gradient_buffer(std::int32_t parameter);

  // --- zero3_optimizer.cpp ---
  void persistent_memory();
  void list_sub_groups();
  void release_all();
  void optimizer();
  void check_overflow();
  void gradient_norm();
  void update(std::size_t sub_group);
  void update_on_host(std::size_t sub_group);

  // --- zero3_log.cpp ---
  bool logs() const { return run_ != nullptr; }
  LibraryEvent& log(std::string_view kind, std::string unit, std::string note);
  void log_collective(std::string_view kind, std::int64_t bytes_in, std::int64_t bytes_out, const std::string& note);
  void log_boundary(std::string_view kind, std::int32_t module, std::string_view note);
  void log_gradient(std::int32_t parameter);
  void log_release(std::string unit, Parameters list);
  void log_trace_reset();
  void log_gather(Parameters list, Cause cause, std::int32_t module, Pass pass);
  void log_reduction(std::string_view kind, std::int64_t bytes_in, std::int64_t bytes_out, std::string note);
  void log_bucket(std::span<const std::int32_t> bucket);
  void add_bucket(
      std::span<const std::int32_t> list, std::string_view kind, DType dtype, std::int64_t element, std::string extra);
  std::string span_of(Parameters list) const;
  std::string group_of(bool small_group) const;

  UnitWork unit_work(EventKind, const UnitShape&, std::int32_t) const override { return {}; }
  UnitWork step_work(EventKind) const override { return {}; }

  std::int64_t param_size() const { return param_size_; }
  std::int64_t comm_size() const { return comm_size_; }
  // Of the gradient partitions (data_types.grad_accum_dtype).
  DType accumulation_dtype() const { return plan_.zero.fp32_gradient_accumulation ? DType::kFp32 : plan_.param_dtype; }
  const Zero3Parameter& parameter(std::int32_t p) const { return script_->parameter(p); }
  std::int64_t partition_of(const Zero3Parameter& each) const {
    return partitions_[static_cast<std::size_t>(each.size)];
  }
  std::int64_t partition_of(std::int32_t p) const { return partition_of(parameter(p)); }
  std::int64_t element_size(const Zero3Parameter& each) const { return each.is_wide ? 4 : param_size(); }
  std::int64_t element_size(std::int32_t p) const { return element_size(parameter(p)); }
  bool optimizes_on_host() const { return plan_.zero.offload_optimizer != ZeroOffload::kNone; }
  bool overlaps() const { return plan_.zero.overlap_comm.value_or(true); }
  template <typename T>
  static auto& at(std::vector<T>& list, std::int32_t i) {
    return list[static_cast<std::size_t>(i)];
  }

  std::unique_ptr<Zero3Script> own_script_;
  std::unique_ptr<Zero3Coordinator> own_coordinator_;
  std::shared_ptr<const Zero3Trace> trace_;
  const Zero3Script* script_ = nullptr;
  Zero3Coordinator* coordinator_ = nullptr;  // null: `trace_` says what it decides
  std::vector<std::int64_t> partitions_;     // by Zero3Script::sizes
  Stream gather_copies_ = Stream::kCopyIn, reduces_ = Stream::kReduceScatter;
  std::int64_t param_size_ = 2, comm_size_ = 2;  // bytes of an element
  std::int64_t small_group_ = 1;                 // ranks of a secondary partition
  std::uint8_t small_communicator_ = kShard;

  // The open run of a layer's phase.
  EventKind phase_ = EventKind::kForward;
  std::int32_t layer_ = -1;
  std::uint16_t done_ = 0, target_ = 0, run_first_ = 0;
  std::vector<EventId> flights_;  // of the calls of the phase that runs
  EventId run_row_ = kNoEvent;
  std::int32_t run_hooks_ = 0;
  std::uint16_t placeholder_ = 0;
  std::int32_t hooks_ = 0;  // of modules since the last row
  EventId awaited_ = kNoEvent;
  WorkIndex work_indices_;

  std::vector<Handle> handles_;
  std::vector<std::int32_t> members_;                             // of handles
  std::vector<std::int32_t> handle_of_;                           // of parameters
  std::vector<std::int32_t> gathered_;                            // buffers of parameters
  std::vector<std::int32_t> persistent_;                          // those that the step begins with; empty in step 1
  std::vector<bool> is_read_;                                     // NVMe: read ahead, and not gathered yet
  std::vector<std::int32_t> secondary_;                           // hpZ: their shards inside the small group
  std::array<EventId, 3> fetches_{kNoEvent, kNoEvent, kNoEvent};  // events of the last waits
  std::array<EventId, 3> reductions_{kNoEvent, kNoEvent, kNoEvent};
  EventId seen_copies_ = kNoEvent;         // latest event of allgather_stream that compute waits for
  std::vector<std::int32_t> fetched_now_;  // scratch

  std::vector<std::int32_t> bucket_;  // parameters
  std::int64_t bucket_elements_ = 0, uncopied_ = 0;
  std::vector<std::int32_t> held_gradients_;  // too large for the bucket, or not copied into it

  std::vector<std::int64_t> sub_groups_;  // partitioned elements of each
  std::int64_t partitioned_ = 0;          // of trained parameters

  // Of the model that does not run: the reference, and while it runs the trained one.
  struct Other {
    std::shared_ptr<const Zero3Trace> trace;
    std::vector<std::int64_t> partitions;
    std::vector<std::int32_t> gathered, handle_of;
  } other_;
  bool refers_ = false;

  Zero3Run* run_ = nullptr;
  std::int32_t step_ = 0;
  std::vector<LibraryEvent> log_;
  std::string unit_, note_;  // of collectives
  std::int64_t flat_bytes_ = 0;
  std::int64_t buckets_ = 0;  // listed
};

}
