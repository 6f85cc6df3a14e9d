// The builder of runtime ddp: DistributedDataParallel and the reducer behind it.
//
// Buckets exist from construction on. A step copies every gradient into its bucket as autograd
// stores it, divided by the number of ranks, and reduces buckets in their order; when backward is
// done the compute stream waits for each and copies it back. Sources:
// torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp of PyTorch 2.11.
//
// What is approximate: under autocast a layer's activations are those of a model in the compute
// dtype, where PyTorch keeps the residual stream and norms in fp32, so that memory is a lower
// bound; kernels.residual: fp32 says that it does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/ddp/gradient_hooks.h"

namespace foreshard {

// Which gradients DDP's reducer reduces together.
struct DdpBucket {
  std::vector<std::int32_t> parameters;  // in the order in which they lie in the bucket
  DType dtype = DType::kFp32;
  std::int64_t bytes = 0;
};

// _compute_bucket_assignment_by_size (reducer.cpp): a bucket of a dtype closes when its size reaches the limit, bytes;
// the last limit holds on. `order` numbers parameters. What is left comes last, the dtype that was met last first: the
// order of an unordered_map of few elements in libstdc++.
std::vector<DdpBucket> assign_buckets(std::span<const GradientHooks::Parameter> parameters,
    std::span<const std::int32_t> order, std::span<const std::int64_t> limits);

// The same for parameters in the order of registration, which the reducer is given in reverse: by
// the first parameter of each bucket.
std::vector<DdpBucket> assign_initial_buckets(std::span<const GradientHooks::Parameter> parameters,
    std::span<const std::int32_t> order, std::span<const std::int64_t> limits);

// Ranks of ZeroRedundancyOptimizer: parameters by falling size, each to the rank that has least.
std::vector<std::vector<std::int32_t>> partition_by_size(
    std::span<const GradientHooks::Parameter> parameters, std::int64_t ranks);

// What one step leaves to the next.
struct DdpState {
  std::int64_t reductions = 0;  // backward passes whose gradients were reduced
  bool rebuilt = false;         // buckets in the order of readiness
  bool stepped = false;         // the optimizer has its states
  bool synchronised = true;     // the last forward was: buffers are broadcast before the next
};

class Ddp final : public GradientHooks {
 public:
  Ddp(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Log keep);
  // In which step after the first a period repeats.
  DdpState steady() const;
  LibraryStep build(DdpState& state);

  // The buckets of a step that begins in `state`, as index.csv and buckets.csv list them.
  std::vector<LibraryBucket> list_buckets(bool rebuilt) const;
  std::int64_t gradient_bytes(bool rebuilt) const;
  std::int64_t parameter_bytes() const;
  std::vector<LibraryEvent> construction();
  bool rebuilds() const { return options().static_graph || !options().find_unused_parameters; }
  std::int64_t unused_bytes() const;
  std::int64_t bucket_cap() const;

 private:
  const DdpOptions& options() const { return plan_.ddp; }
  bool alone() const { return options().bucket_cap_mb == 0.0; }
  bool finds_unused() const { return options().find_unused_parameters && !options().static_graph; }
  // The compute dtype by autocast, or by copies of the parameters.
  bool casts() const { return plan_.param_dtype != plan_.master_dtype; }
  bool copies_parameters() const {
    return casts() && options().mixed_precision == DdpOptions::MixedPrecision::kParameters;
  }
  bool is_view() const { return options().gradient_as_bucket_view; }
  DType bucket_dtype(const DdpBucket& bucket) const { return copies_parameters() ? plan_.param_dtype : bucket.dtype; }
  DType wire_dtype(const DdpBucket& bucket) const;
  std::int64_t buffer_bytes(const DdpBucket& bucket) const;
  std::int64_t gradient_bytes(const Parameter& p) const {  // as autograd stores it
    return p.numel * size_of(copies_parameters() ? plan_.param_dtype : p.dtype);
  }

  std::vector<DdpBucket> buckets_of(bool rebuilt) const;
  std::vector<std::int32_t> trained() const;
  std::vector<std::int32_t> trained_as_defined() const;
  std::vector<std::int32_t> unused() const;
  void persistent_memory(bool stepped);
  void allocate_buckets(bool persistent);
  void prepare_reduction();
  void pre_forward(DdpState& state);
  void rebuild();
  void forward_begins(std::int32_t layer) override;
  void reference_begins() override;
  void reference_ended() override;
  void forward_ended() override;
  void recompute_begins(std::int32_t layer) override;
  void cast_weights(std::int32_t layer, bool is_read_again);
  void backward_ended(std::int32_t layer) override;
  void gradient_ready(std::int32_t parameter) override;
  void step_now(std::int32_t p);
  void mark_ready(std::int32_t parameter);
  void copy_in();
  void all_reduce(std::size_t bucket);
  void reduce_used_map();
  void reduce_delayed();
  void finalize_backward();
  void drop_copies();
  void optimizer(bool stepped);
  std::vector<std::int32_t> stepped() const;
  const ParameterSpec& specification(std::int32_t p) const;
  bool is_of_muon(std::int32_t p) const;
  std::vector<std::int32_t> listed() const;  // of stepped(), what Muon leaves
  std::vector<std::int32_t> state_parts();
  void adafactor();
  UnitWork step_work(EventKind kind) const override;
  bool is_cast(std::int32_t layer, std::size_t p) const;
  std::int64_t cast_elements(std::int32_t layer) const;

  struct Reduction {  // of one bucket in one backward
    std::int32_t pending = 0;
    EventId event = kNoEvent;
  };
  std::vector<DdpBucket> buckets_;
  std::vector<std::int32_t> bucket_buffers_;
  std::vector<std::int32_t> bucket_of_;  // of each parameter; -1: not trained
  std::vector<std::int32_t> unused_;
  std::vector<Reduction> reductions_;
  std::size_t next_bucket_ = 0;
  std::vector<std::int32_t> ready_;                   // to be copied into buckets
  std::vector<std::int32_t> cast_;                    // copies of each layer's parameters, buffers
  std::vector<std::int32_t> trained_cast_;            // ... while Plan::reference runs
  std::vector<std::int32_t> wide_gradients_;          // _MixedPrecision: in the stored dtype
  std::vector<bool> is_in_bucket_;                    // gradient_as_bucket_view: the gradient is a view
  std::vector<std::vector<std::int32_t>> partition_;  // ZeroRedundancyOptimizer, by rank
  EventId used_map_ = kNoEvent;
  bool synchronises_ = true;
  bool delays_ = false;  // static_graph, first iteration
  bool marked_unused_ = false;
};

}
