// The builder of runtime megatron: Megatron-Core's DistributedDataParallel with its distributed
// optimizer (0.20, core/distributed/param_and_grad_buffer.py, core/optimizer/distrib_optimizer.py),
// or without it (optimizer.py, Float16OptimizerWithFloat16Params): gradients are then all-reduced,
// every rank steps all of its parameters, and nothing is gathered.
//
// Every rank holds its part of the model (tp, ep) in the compute dtype and one flat gradient of it in the dtype of the
// reduction, in a buffer each: of the dense parameters, which are sharded over shard x cp, and of experts, sharded over
// efsdp. Parameters lie in a buffer in the reverse of their order, cut into buckets. Backward's products add to the
// buffer themselves (gradient_accumulation_fusion); in the last micro-batch a bucket is scaled and reduce-scattered
// when all of it is there. Each rank steps its shard from fp32 copies; the next forward gathers parameters bucket by
// bucket, each while the one before it computes.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/ddp/gradient_hooks.h"
#include "sim/graph/pipeline/stages.h"

namespace foreshard {

class Megatron final : public GradientHooks {
 public:
  Megatron(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
  EventGraph build();

 private:
  struct Bucket {
    std::int64_t numel = 0;    // padded
    std::int64_t narrow = 0;   // of it in fp8
    std::int32_t missing = 0;  // without a gradient in this micro-batch
    EventId gathered = kNoEvent;
    bool dispatched = false;  // its gather
  };
  struct FlatBuffer {
    std::uint8_t shards = kNoCommunicator;    // what it is reduced and gathered over
    std::uint8_t replicas = kNoCommunicator;  // of the optimizer (num_distributed_optimizer_instances)
    std::int64_t ranks = 1;
    std::int64_t parts = 1;  // that the optimizer steps: a rank each, or all on every rank
    std::vector<Bucket> buckets;
    std::int64_t numel = 0;
    std::int64_t narrow = 0;
    std::int32_t narrow_weights = 0;
    std::int64_t own = 0;  // of numel this rank steps
  };
  struct Place {
    std::int32_t buffer = 0, bucket = 0, last_bucket = 0;
  };

  const MegatronOptions& options() const { return plan_.megatron; }
  std::int64_t gradient_size() const { return size_of(plan_.reduce_dtype); }
  std::int64_t bucket_size(const FlatBuffer& buffer) const;
  bool fuses() const { return options().gradients == MegatronOptions::Gradients::kFused; }
  bool gathers_beside() const { return fuses() && options().overlap_param_gather; }
  bool fills_buckets() const { return options().gradients == MegatronOptions::Gradients::kBucketed && last_; }
  // Beside gradients that are apart there is a flat one, and copies of parameters, where dtypes differ.
  bool is_flat() const { return fuses() || plan_.reduce_dtype != plan_.param_dtype; }
  std::int64_t param_bytes(std::int64_t numel, std::int64_t narrow) const {
    return numel * param_size() - narrow * (param_size() - 1);
  }
  bool is_expert(std::int32_t parameter) const;
  std::int64_t shard_numel() const;  // of this rank, all buffers

  // --- megatron_buffers.cpp ---
  void lay_out();
  void lay_out(FlatBuffer buffer, const StageLayers& stage, bool of_experts);
  void persistent_memory();
  void unread_gradients();
  void gather(FlatBuffer& buffer, Bucket& bucket);
  void finish_param_sync(const Place& place);
  void reduce(FlatBuffer& buffer, Bucket& bucket);

  // --- megatron_pipeline.cpp ---
  void run_pipeline();
  void run_interleaved(const StagePipeline& pipeline);
  void act(const PipelineAction& action);
  void exchange(const PipelineRow& row);
  void begin_action(std::int32_t stage, std::int32_t microbatch);
  void receive(const PipelineTransfer& transfer);
  void sent(const PipelineTransfer& transfer);

  // --- megatron.cpp ---
  void find_norm_ranks();
  void find_amaxes();
  std::uint8_t communicator_of_first(const char* name, std::int64_t ranks);
  bool is_block(std::int32_t layer) const;
  void cast_weights(std::int32_t layer);
  void forward_begins(std::int32_t layer) override;
  void gradient_ready(std::int32_t parameter) override;
  void backward_ended(std::int32_t layer) override;
  void keep_gradient(std::int32_t parameter);
  void add_gradients();
  void finalize_gradients();
  void reduce_replicated_gradients();
  void cast_shards();
  EventId gather_copies();
  void step();
  UnitWork step_work(EventKind kind) const override;

  std::vector<FlatBuffer> buffers_;              // dense parameters and experts, of each stage
  std::vector<Place> place_of_;                  // parameters
  std::vector<std::int32_t> ready_;              // gradients of the layer whose backward runs
  std::vector<std::int32_t> kept_, until_step_;  // that stand apart till backward ends
  std::vector<std::int32_t> first_of_layer_;
  std::uint8_t norm_ranks_ = kNoCommunicator;  // that sum the norm
  std::uint8_t amax_ranks_ = kNoCommunicator;  // of delayed scaling
  std::int64_t amax_bytes_forward_ = 0, amax_bytes_backward_ = 0;
  bool first_ = true, last_ = true;    // micro-batch
  Bytes boundary_;                     // of a micro-batch between stages
  std::vector<EventId> batches_sent_;  // of transfers, by number
};

}
