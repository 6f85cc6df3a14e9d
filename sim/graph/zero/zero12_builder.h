// The builder of runtimes zero1 and zero2: DeepSpeed's stage_1_and_2.py (0.19.8).
//
// Every rank holds the whole model in the compute dtype, flat by groups of parameters (mostly one), and of the fp32
// copy and the optimizer's states its partitions. Gradients are copied into a bucket, which is reduced before the
// parameter that would overflow it: whole, by an all-reduce, whatever reduce_scatter says, or by a reduce per owner.
// Each rank then copies its part; the step updates the partition and gathers each flat group in place.
//
// With overlap_comm buckets and the gradients that are reduced where they are, are recorded on the
// reduction stream (record_stream), so that their blocks come back only when that stream is done.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "sim/graph/ddp/gradient_hooks.h"
#include "sim/graph/zero/zero_partition.h"

namespace foreshard {

class Zero12 final : public GradientHooks {
 public:
  Zero12(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Log keep);
  LibraryStep build(bool stepped);
  std::vector<LibraryBucket> take_buckets() { return std::move(listed_); }
  std::vector<LibraryEvent> construction();
  void list_facts(LibraryRun& run) const;

 private:
  const ZeroOptions& options() const { return plan_.zero; }
  bool partitions_gradients() const { return plan_.runtime.kind == RuntimeKind::kZero2; }
  bool overlaps() const { return options().overlap_comm.value_or(false) && !is_pipeline(); }
  bool offloads() const { return options().offload_optimizer != ZeroOffload::kNone; }
  bool is_contiguous() const { return options().contiguous_gradients || offloads(); }
  // Gradients summed in fp32 beside 16-bit ones: a flat partition that reductions are added to, and
  // in stage 1 an attribute of each parameter.
  bool sums_in_fp32() const { return options().fp32_gradient_accumulation && plan_.param_dtype != DType::kFp32; }
  bool accumulates_fp32() const { return sums_in_fp32() && !partitions_gradients(); }
  bool is_bf16_optimizer() const {
    const bool sums = accumulates_fp32() || (options().bf16_optimizer && is_pipeline());
    return sums && plan_.param_dtype == DType::kBf16 && !offloads();
  }
  bool has_hooks() const { return partitions_gradients() || overlaps() || is_contiguous(); }
  bool reduces_in_hooks() const { return partitions_gradients() || overlaps(); }
  StreamSet recorded() const { return overlaps() ? only(Stream::kReduceScatter) : StreamSet{0}; }
  Stream reducing() const { return overlaps() ? Stream::kReduceScatter : Stream::kCompute; }
  std::int64_t gradient_size() const { return accumulates_fp32() ? 4 : param_size(); }
  DType wire_dtype() const { return plan_.reduce_dtype; }
  std::vector<std::int32_t> in_order() const;
  void lay_out_groups();
  std::int64_t total(std::int64_t ZeroPartition::*of) const;  // over the groups
  std::int64_t own_numel(std::int32_t parameter) const;       // in this rank's partition
  bool is_own(std::int32_t parameter) const { return own_numel(parameter) > 0; }
  std::int64_t own_elements() const;  // of parameters of which some elements are the rank's

  // --- zero12.cpp: the micro-batch ---
  void gradient_ready(std::int32_t parameter) override;
  void backward_ended(std::int32_t layer) override;
  void set_up_buckets();
  void add_to_bucket(std::int32_t parameter);
  void copy_in();
  void free_gradient(std::int32_t parameter);
  void reduce_ipg_grads();
  void epilogue();
  void keep_own_gradients();

  // --- zero12_pipeline.cpp ---
  bool is_pipeline() const { return plan_.mesh.pp > 1; }
  bool has_loss() const { return spec_of(end_layer() - 1).role == LayerRole::kLoss; }
  void hold_pipe_buffers();
  void run_pipeline();
  void exchange(const PipelineTransfer& transfer);
  void copy_boundary() { add_copy(EventKind::kGradientCopyOut, Stream::kCompute, 2 * boundary_bytes_.count(), 1); }
  void act(const PipelineAction& action);
  void loss_begins() override;
  void reduce_pipeline();
  void sum_losses();

  // --- zero12_reduce.cpp: one bucket ---
  struct Slices {            // of one collective
    std::int64_t rank = -1;  // of a reduce
    std::int64_t numel = 0;
    std::int64_t count = 0;
    std::int64_t own = 0;  // elements of this rank's partition
  };
  void find_collectives();
  bool add_slice(const ZeroSlice& slice, Slices& open) const;
  void average_tensor();
  void reduce(const Slices& slices);
  EventId collective(EventKind kind, std::int64_t bytes, Stream stream);
  void take_own_parts();
  void list_bucket();

  // --- zero12_bf16.cpp: BF16_Optimizer ---
  void add_to_flat_gradient();
  void reduce_flat_gradient();
  void step_of_bf16(bool stepped);

  // --- zero12_step.cpp: step(), memory ---
  void persistent_memory(bool stepped);
  void step(bool stepped);
  void step_on_device(std::size_t group, bool stepped);
  // One flat tensor, and its cast into the flat group.
  void step_partition(const ZeroPartition& group, bool stepped);
  void gather();
  void step_on_host(const ZeroPartition& group);
  EventId step_row(EventKind kind, const ZeroPartition& group);
  void all_reduce_result(std::int64_t bytes, const char* dtype, const char* note);
  UnitWork step_work(EventKind kind) const override;
  std::int64_t averaged_gradient_bytes() const;
  std::int64_t largest_own_slice(const ZeroPartition& group) const;

  struct Bucket {  // IPGBucket
    std::vector<std::int32_t> parameters;
    std::int64_t elements = 0;
    std::int32_t slot = 0;
  };
  std::vector<ZeroPartition> groups_;
  const ZeroPartition* stepped_ = nullptr;  // whose rows step_work prices
  std::int64_t rank_ = 0;                   // of this rank among those of its partition
  std::uint8_t world_ = kShard;             // communicator of all ranks
  Bucket bucket_;
  std::vector<Slices> collectives_;  // of the bucket that is reduced
  bool ready_for_gradients_ = false;
  std::vector<std::int32_t> bucket_buffers_;
  std::vector<std::int32_t> to_copy_;
  std::vector<bool> alive_;                 // gradients that have memory of their own
  std::int32_t own_gradients_ = kNoBuffer;  // grads_in_partition of this micro-batch
  std::int32_t averaged_ = kNoBuffer;       // what the step reads
  std::vector<std::int32_t> kept_;          // ... or gradients that it reads where they are
  bool boundary_ = true;
  std::vector<LibraryBucket> listed_;
  Bytes boundary_bytes_;                            // of a micro-batch between stages
  std::map<std::int32_t, std::int32_t> received_;   // copies of what arrived, by micro-batch
  std::deque<std::vector<std::int32_t>> returned_;  // that pipe_buffers hold
};

}
