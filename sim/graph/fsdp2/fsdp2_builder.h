// The builder of runtime fsdp2: PyTorch's fully_shard, method by method.
//
// Functions carry the names of torch/distributed/fsdp/_fully_shard/ and do what those do in the plan's version
// (fsdp2_version.h): fsdp2.cpp drives modules and autograd (FSDPState), fsdp2_unshard.cpp gathers
// (FSDPParamGroup.unshard to reshard), fsdp2_reduce.cpp reduces (post_backward, foreach_reduce, finalize_backward),
// fsdp2_optimizer.cpp ends the step, fsdp2_work.cpp says what rows cost.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "sim/graph/host_log.h"
#include "sim/graph/pipeline/stages.h"
#include "sim/graph/step_builder.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {

class Fsdp2Scope;

class Fsdp2 final : public StepBuilder {
 public:
  enum class Log : std::uint8_t { kNone, kKept };

  Fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);
  // `stale`: units whose gathers the step before left behind.
  RecordedStep build(StepNumber step, Log log, const std::vector<std::int32_t>& stale);
  std::vector<std::int32_t> pending_units() const;  // of the step that was built

 private:
  // Variants of unit rows that cost different amounts.
  static constexpr std::int32_t kWholeGroup = 0;
  static constexpr std::int32_t kSmallGroup = 1;   // the group the unit was resharded to
  static constexpr std::int32_t kSingleRank = 2;   // copied parameter by parameter
  static constexpr std::int32_t kCast = 0;         // accumulate: cast to the stored dtype
  static constexpr std::int32_t kAdd = 1;          // ... add to the gradient that is there
  static constexpr std::int32_t kDivide = 2;       // ... divide in place
  static constexpr std::int32_t kUnsharded = 3;    // ... cast or add the unsharded gradient
  static constexpr std::int32_t kPartial = 4;      // ... add the partial output of a replica
  static constexpr std::int32_t kDivideInput = 5;  // ... divide the reduce-scatter's input
  static constexpr std::int32_t kCopyAlone = 6;    // ... one rank: copy instead of reduce-scatter
  static constexpr std::int32_t kCastAdd = 7;      // ... cast and add
  static constexpr std::int32_t kSlice = 0;        // gradient copy-in: the rank's slice

  enum class Training : std::uint8_t { kIdle, kForward, kPreBackward, kPostBackward };
  static std::string_view word(Training training);

  // What another stream, or the host, can wait for.
  struct DeviceEvent {
    EventId row = kNoEvent;
    std::string_view label;  // "all_gather", "post_reduce", ...
    std::int32_t unit = HostEvent::kNobody;
    bool recorded = false;
  };

  struct Gather {  // AllGatherResult
    bool pending = false;
    bool async = false;
    DeviceEvent event;
    std::int32_t buffer = kNoBuffer;
    std::int64_t bytes = 0;
  };
  struct HeldGather {  // comm_ctx.all_gather_state
    Gather gather;
    std::int32_t unit = -1;
    DeviceEvent copy_out;
  };

  struct Group {                              // FSDPParamGroup, and the FSDPState around it
    Training state = Training::kIdle;         // of the group
    Training module_state = Training::kIdle;  // of its FSDPState
    std::string_view logged;                  // state that the recorder saw last
    bool unsharded = false;
    bool reduces = true;  // reduce_grads
    Gather gather;
    std::int32_t parameters = kNoBuffer;
    std::vector<std::int32_t> single_parameters;  // where they are not handled all at once
    std::vector<std::int32_t> slices;             // of the small group
    DeviceEvent reshard;                          // copies of the slices
    DeviceEvent post_reduce;
    DeviceEvent all_reduce;
    std::int32_t all_reduce_input = kNoBuffer;
    std::int64_t all_reduce_input_bytes = 0;
    bool all_reduce_pending = false;
    std::int32_t partial = kNoBuffer;
    std::int32_t post_forward = -1;  // its last position in post_forward_order_
    // Unsharded gradients: of which pass; casts of them, one per trained parameter.
    std::int32_t gradient_pass = -1;
    std::vector<std::int32_t> accumulated;
    std::vector<std::int32_t> whole;    // ... completed over the ranks of an axis
    std::int32_t gradient = kNoBuffer;  // sharded
    bool keeps_gradient = false;        // of earlier steps, which the optimizer does not drop
    std::vector<std::int32_t> host_gradients;
    bool has_gradient = false;
    std::vector<DeviceEvent> host_copies;  // device-to-host copies that the host awaits
    std::int32_t open_modules = 0;         // of a list that have run since its pre-forward
    bool fresh_gradients = false;          // autograd stored some since the last post_backward
  };

  struct Trained {                 // a parameter with a gradient
    std::int32_t unit = -1;        // -1: outside FSDP
    std::int64_t state_bytes = 0;  // of one moment
    std::int8_t part = 0;
    bool replicated = false;             // ParameterSpec::replicated
    std::int64_t rows = 0, columns = 0;  // of a matrix that Muon steps
    bool stepped = true;                 // UnitParameter::stepped
    std::int32_t ignored_gradient = kNoBuffer;
    bool is_listed() const { return stepped && rows == 0; }  // what Muon leaves
  };

  struct HeldInput {  // ReduceScatterState
    DeviceEvent event;
    std::int32_t buffer = kNoBuffer;
    std::int64_t bytes = 0;
  };

  struct PostForward {
    std::int32_t unit = -1;
    std::int32_t before = -1;  // the unit's position before this one
  };

  static constexpr std::int32_t kNoRoot = -3;     // nobody runs forward as root
  static constexpr std::int32_t kRootState = -2;  // the model's own FSDPState

  Group& group(std::int32_t unit) { return groups_[at(unit)]; }
  std::int32_t count() const { return static_cast<std::int32_t>(groups_.size()); }
  bool replicated() const { return plan_.mesh.replicate > 1; }
  // Experts of a mesh with axes of their own have groups of their own.
  static bool of_experts(const UnitShape& s) { return s.sharded_over == MeshDim::kEfsdp; }
  std::uint8_t gathers_on(const UnitShape& s) const {
    return of_experts(s) ? communicator_of(MeshDim::kEfsdp) : kShard;
  }
  std::uint8_t replicates_on(const UnitShape& s) const {
    return of_experts(s) ? communicator_of(MeshDim::kExpertReplicate) : kReplicate;
  }
  std::string_view shard_group(std::int32_t unit) const { return of_experts(shape(unit)) ? "expert_shard" : "shard"; }
  bool alone(std::int32_t unit) const { return shape(unit).shards == 1; }
  bool casts_parameters() const { return plan_.param_dtype != plan_.master_dtype; }
  bool casts_gradients() const { return plan_.reduce_dtype != plan_.master_dtype; }
  std::int32_t root_unit() const { return root() >= 0 ? root() : HostEvent::kRootModule; }

  // --- the log ---
  friend class Fsdp2Scope;  // fsdp2_scope.h: what the host is doing, for whom
  using Scope = Fsdp2Scope;
  void log(std::string_view kind, HostEvent event = {});
  void log_here(std::string_view kind, HostEvent event = {});  // for the unit the host works for
  void log_operator(std::string_view name, Stream stream, std::int64_t bytes, DType dtype);
  static std::string_view name(Stream stream);
  void see_state(std::int32_t unit) {
    if (logging_) group(unit).logged = word(group(unit).state);
  }
  DeviceEvent record(Stream stream, std::string_view label, std::int32_t unit) const;
  void wait_event(Stream stream, const DeviceEvent& event);
  void wait_stream(Stream stream, Stream other);
  void wait_gather_streams(const DeviceEvent& event);

  // --- fsdp2.cpp: FSDPState, the model, autograd ---
  void prepare();  // order of states, which layers need gradients
  void list_trained();
  void persistent_memory(StepNumber step);
  void set_flags(std::int32_t microbatch);
  void run_forward(bool training);
  void forward_layer(std::int32_t layer);
  void run_whole(std::int32_t layer);
  bool in_root_unit(std::int32_t layer) const { return unit_of_layer(layer) == root(); }
  // _set_unshard_async_op reaches the modules inside the one it is called for.
  bool is_async(std::int32_t unit) const {
    const Module& first = modules_of(unit).front();
    return plan_.prefetch.async_unshard &&
           (is_listed(unit) || (first.part > 0 && is_listed(unit_of_layer(first.layer))));
  }
  // Trainers set what goes beyond the defaults for the modules that they list.
  bool is_listed(std::int32_t unit) const { return prefetch_place_[at(unit)] >= 0; }
  bool is_on_lists(std::int32_t unit) const {
    return is_listed(unit) &&
           (!plan_.prefetch.blocks_only || spec_of(modules_of(unit).front().layer).role == LayerRole::kBlock);
  }
  // Trainers set a factor for the modules that they list, and for experts with a mesh of their own.
  bool has_factor(std::int32_t unit) const { return is_listed(unit) || of_experts(shape(unit)); }
  // A kernel reads the unit inside: FSDPModule.unshard() without the module's hooks.
  bool is_by_hand(std::int8_t part) const { return part > 0 && plan_.lora.fused && plan_.units.adapters_alone; }
  void enter_module(std::int32_t layer, std::int8_t part);
  void leave_module(std::int32_t layer, std::int8_t part, bool in_backward);
  void begin_backward(std::int32_t layer, std::int8_t part);
  std::int64_t calls_of(std::int32_t layer) const;
  bool is_called(std::int32_t layer) const;
  bool ends_module(std::int32_t layer) const;
  void end_backward(std::int32_t layer, std::int8_t part);
  void compute_loss(std::int32_t layer);
  void take_rest();
  bool in_chunks(std::int32_t layer) const;
  void run_in_chunks(std::int32_t head);
  void reduce_with_rest(std::int32_t unit);
  bool rest_travels() const;
  void add_loss_backward(std::int32_t layer);
  void drop_head_inputs();
  bool casts_logits(std::int32_t head) const;
  void run_backward();
  void run_layer(EventKind kind, std::int32_t layer);
  void run_part(EventKind kind, std::int32_t layer, std::size_t segment);
  bool begins_part(EventKind kind, std::int32_t layer, std::size_t segment) const;
  bool ends_part(EventKind kind, std::int32_t layer, std::size_t segment) const;
  void run_segment(EventKind kind, std::int32_t layer, std::size_t segment);

  // --- fsdp2_axes.cpp: collectives of layers, and what axes add to a step ---
  void run_calls(EventKind kind, std::int32_t layer, std::size_t segment);
  EventId launch(const LayerCall& call, std::int32_t unit);
  static bool brings_rows(const LayerCall& call);  // of experts, from or to other ranks
  void await(const LayerCall& call, std::int32_t unit);
  std::string splits_of(const LayerCall& call) const;
  void note_open(EventKind kind, std::int32_t layer);
  EventId communicate(
      const LayerCollective& collective, std::int64_t bytes_in, std::int64_t bytes_out, HostEvent event);
  void await_collective(EventId row, CollectiveKind kind, MeshDim dim, std::int32_t unit);
  std::vector<std::int32_t> complete_gradients(std::int32_t unit);
  DType gradients_dtype(const Group& g) const;
  void begin_step_frame();
  void end_step_frame();
  void log_step();
  std::int64_t fetched_samples() const;
  void cut_batch();
  std::vector<std::int32_t> block_mask(std::int64_t queries);
  void drop_batch_parts();
  void keep_loss(std::int32_t layer);
  bool notes_mesh();
  void hold_row_orders();
  void replace_row_order(EventKind kind, std::int32_t layer);
  std::int32_t slot_called(std::int32_t layer, std::string_view name) const;
  std::int64_t whole_labels() const;
  std::int32_t counted(std::int64_t bytes);
  std::int32_t fetched(std::int64_t bytes);
  void balance_routers();
  bool is_wrapped() const { return plan_.mesh.is_wrapped() && !has_no_hooks_; }
  void note_module(std::string_view kind, std::int32_t unit);
  void begin_plain_backward();
  void end_plain_backward(std::string_view cause);
  void leave_backward(std::int32_t loss);
  template <typename Visit>
  void visit_plain_gradients(const Visit& visit);
  void hold_plain_gradients();
  void drop_plain_gradients();
  std::vector<std::int32_t> sum_plain_gradients();
  void step_plain_gradients();
  void log_splits(std::int32_t layer, const LayerSegment& segment);
  std::vector<std::int32_t> experts_listed(std::int32_t unit, std::int32_t target) const;
  void hold_gradients();
  void hold_gradients_of(std::int32_t unit, Group& group);
  void hold_unstepped_gradients();
  bool recomputes_inside(std::int32_t layer) const;
  struct Scalar {
    std::int64_t bytes = 0;
    std::string_view dtype, reduction;
  };
  void sum_and_read(MeshDim dim, const Scalar& scalar);
  void read_on_host(const Scalar& scalar, EventId row);
  struct ClipGroup {
    std::int64_t parameters = 0;
    std::int64_t replicated = 0;  // of these, on every rank of tp
    std::vector<MeshDim> dims;    // that their gradients are cut by
  };
  std::vector<ClipGroup> clip_groups() const;
  void clip_over_axes();
  bool has_axes() const { return !plan_.mesh.is_plain(); }
  bool is_titan_3() const { return framed() && version_.minor >= 13; }  // plan_check.h
  bool groups_experts() const;
  bool in_group(std::int8_t part) const { return part > 0 && groups_experts(); }
  std::vector<std::int32_t> groups_beside(std::int32_t unit) const;
  bool framed() const { return plan_.step_frame != StepFrame::kPlain; }
  std::int32_t first_call(std::int32_t layer) const;
  void store_gradients(std::int32_t layer, std::int8_t part);
  void state_pre_forward(std::int32_t unit);
  void state_post_forward(std::int32_t unit, bool in_backward);
  void prefetch_forward(std::int32_t unit);
  void root_pre_forward(std::int32_t state);
  void end_root_forward(std::int32_t state);
  void cast_root_output();
  void state_pre_backward(std::int32_t unit);
  void root_post_backward_final_callback();
  void optimizer(StepNumber step);
  void create_optimizer_states();
  void pad_again();
  void zero_grad();
  void reduce_found_infinite();
  void log_norm(std::int64_t bytes);
  void clip();
  void sum_over_stages();

  // --- fsdp2_pipeline.cpp: stages of a pipeline, each its own root ---
  bool is_pipelined() const { return plan_.mesh.pp > 1; }
  void hold_buffers_ahead(StepNumber step);
  void hold_received(StepNumber step);
  void give(const PipelineAction& action);  // to a stage of this rank
  bool keeps_gradient(const PipelineAction& action) const;
  bool is_local(std::int32_t stage) const;  // of this rank
  void list_stages();
  void run_pipeline();
  void run_call();
  void run_rows();
  std::int64_t given_microbatches() const {
    return std::max<std::int64_t>(plan_.pipeline.stands_for, call_microbatches());
  }
  std::int32_t call_microbatches() const { return stage_pipeline(plan_).microbatches; }
  // `given`: what it hands to a stage of this rank; null: nothing.
  void act(const PipelineAction& action, const PipelineAction* given);
  void exchange(const PipelineRow& row);
  void await_batch(std::int32_t batch);
  void await_inputs();
  void log_action(std::string_view kind, const PipelineAction& action);
  void forward_stage(std::int32_t microbatch);
  void backward_stage(std::int32_t microbatch, bool is_half = false);
  void weights_of_stage(std::int32_t microbatch);
  void leave_output();
  std::int32_t returned_output() const;
  void name_output();
  void leave_loss(std::size_t part);
  void reduce_stage();
  void scale_gradients();
  bool returns_outputs() const;
  bool computes_loss() const;
  std::int64_t returned_bytes() const;
  void finish_unshards();
  void enter_stage(std::int32_t stage);
  // What another root would have: of the stage that runs, the builder's own members.
  struct Stage {
    std::int32_t stage = 0;
    std::int32_t begin = 0, end = 0;  // layers
    std::vector<std::int32_t> visits;
    std::vector<PostForward> post_forward_order;
    HeldGather held_gather;
    std::deque<HeldInput> held_inputs;
    std::vector<HeldInput> late_inputs;
    std::vector<std::pair<Stream, DeviceEvent>> last_reductions;
    bool unshards = false;  // gathered ahead, not yet waited for
  };
  void swap_members(Stage& stage);

  // --- fsdp2_repeat.h: units that are written from the pattern of those before ---
  class Repeat;
  void find_runs();
  template <typename Builder, typename Id, typename Fact>
  static void visit_step(Builder& builder, const Id& id, const Fact& fact);

  // --- fsdp2_unshard.cpp: FSDPParamGroup ---
  void unshard(std::int32_t unit);
  void all_gather(std::int32_t unit);
  void wait_for_unshard(std::int32_t unit);
  void copy_out(std::int32_t unit);
  std::int32_t copy_out_alone(std::int32_t unit);
  void keep_slices(std::int32_t unit);
  void free_from_end(std::vector<std::int32_t>& buffers);
  void reshard(std::int32_t unit);
  void pre_forward(std::int32_t unit);
  void post_forward(std::int32_t unit, bool in_backward);
  void pre_backward(std::int32_t unit, bool default_prefetch);
  void prefetch(std::int32_t unit, Training pass, std::string_view cause);
  void free_gather(std::int32_t unit, Gather& gather);

  // --- fsdp2_reference.cpp ---
  void hold_reference();
  void run_reference();
  std::uint16_t work_of_all(EventKind kind);
  std::int32_t gather_reference(std::vector<std::int32_t>& parameters);

  // --- fsdp2_reduce.cpp ---
  void post_backward(std::int32_t unit, std::string_view cause);
  void accumulate_unsharded_grads(std::int32_t unit);
  void end_unsharded_grads(std::int32_t unit, const std::function<void(const UnitParameter&)>& each);
  void keep_unsharded_grads(std::int32_t unit);
  void sum_in_reduce_dtype(std::int32_t unit);
  void release_inputs();
  void foreach_reduce(std::int32_t unit);
  struct Reduction;
  void pack_gradients(Reduction& reduction);
  void reduce_scatter(Reduction& reduction);
  void all_reduce(const Reduction& reduction);
  void rearrange_gradients(
      const UnitShape& shape, std::vector<std::int32_t>& gradients, std::vector<std::int32_t>& kept_names, DType dtype);
  void note_last_reduction(Stream stream, const DeviceEvent& event);
  void store_sharded_grads(std::int32_t unit, std::int32_t output, Stream stream);
  void wait_for_post_backward(std::int32_t unit);
  void finalize_backward(std::int32_t unit);
  void wait_last_reductions();
  void free_input(HeldInput& held);

  // --- fsdp2_work.cpp ---
  UnitWork unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const override;
  UnitWork step_work(EventKind kind) const override;
  struct Division {     // _get_gradient_divide_factors
    double before = 0;  // 0: none
    double after = 0;
    std::string_view reduce_scatter, all_reduce;  // reduction operators
  };
  Division division(std::int32_t unit) const;

  Fsdp2Version version_;
  std::vector<Group> groups_;
  Group apart_;                       // what a head in chunks has of its unit's
  std::vector<Trained> trained_;      // in the order of Module.parameters()
  std::int32_t begin_ = 0, end_ = 0;  // layers that run: all, or a stage's
  std::vector<Stage> stages_;
  std::size_t stage_ = 0;                                // of stages_: that runs
  std::vector<EventId> batches_sent_;                    // of transfers, by number
  std::vector<std::int32_t> sent_gradients_;             // that names of the schedule hold
  std::vector<std::int32_t> kept_;                       // of the call before: gradients of inputs, outputs
  std::int32_t first_microbatch_ = 0, first_batch_ = 0;  // of the call
  // What stages of this rank were given by each other in the call before, by stage, forward and micro-batch.
  std::map<std::tuple<std::int32_t, bool, std::int32_t>, std::int32_t> given_;
  std::map<std::int32_t, std::int32_t> outgoing_;  // outputs that batches send
  bool overlaps_ = false;                          // the action before is the first one of a pair
  bool is_half_ = false;                           // backward runs for gradients of inputs
  std::int32_t returned_ = kNoBuffer;              // ... what the last forward returned
  bool is_returned_done_ = false;                  // its backward has run
  Bytes boundary_;                                 // of a micro-batch between stages
  bool unshards_ahead_ = false;                    // actions of their own gather
  bool unshards_now_ = false;                      // one of them runs
  std::vector<std::int32_t> awaited_;              // batches that the next action waits for
  std::vector<std::int32_t> visits_;               // states in the order of named_modules, without the root
  bool loss_is_inside_ = false;                    // of the root's forward, which runs
  std::vector<std::int32_t> prefetch_order_;       // units as a trainer lists them
  std::vector<std::int32_t> prefetch_place_;       // of each unit: where it is in prefetch_order_, or -1
  std::vector<bool> input_needs_gradient_, output_needs_gradient_;  // of each layer
  std::vector<PostForward> post_forward_order_;
  std::int32_t forward_root_ = kNoRoot;  // iter_forward_root
  HeldGather held_gather_;
  std::deque<HeldInput> held_inputs_;                            // comm_ctx.reduce_scatter_state(s)
  std::vector<HeldInput> late_inputs_;                           // awaited, freed when post_backward returns
  std::vector<std::pair<Stream, DeviceEvent>> last_reductions_;  // since the last finalize
  bool in_finalize_ = false;
  bool has_no_hooks_ = false;  // inside of the model that runs: Plan::reference, as one
  std::map<EventKind, std::uint16_t> works_of_all_;
  // Of the step's frame: tokens and labels of all micro-batches, the rank's part of one's, losses.
  std::vector<std::int32_t> batches_, batch_parts_, losses_;
  // Without fully_shard: whose backward runs and is about to, and gradients of the step before.
  std::int32_t plain_unit_ = HostEvent::kNobody, plain_next_ = HostEvent::kNobody;
  std::vector<std::int32_t> plain_gradients_;
  std::vector<std::int32_t> row_orders_;  // of layers: what the experts' module holds
  bool mesh_noted_ = false;
  bool permutes_rows_ = false;  // the segment that comes does
  std::int32_t fetched_labels_ = kNoBuffer, token_count_ = kNoBuffer;
  std::int32_t loss_weight_ = kNoBuffer, gradient_norm_ = kNoBuffer;
  bool is_last_backward_ = true;
  bool all_reduces_ = true;
  bool reshards_after_backward_ = true;

  // Collectives of the phase that runs, by their place among its calls; what the layer before left
  // on its way: the row, the call, and the buffer that is freed once it is there.
  struct OpenCall {
    EventId row = kNoEvent;
    LayerCollective collective;
    std::int32_t buffer = kNoBuffer;
  };
  std::vector<EventId> flights_;
  OpenCall open_;
  Repeat* repeat_ = nullptr;                       // while a step is built
  std::vector<std::int32_t> run_begin_, run_end_;  // of each unit: of its run of like ones
  std::vector<std::int32_t> temporaries_;          // of all_gather; empty between two
  std::vector<std::int32_t> unpadded_, padded_again_;
  bool logging_ = false;
  std::vector<HostEvent> events_;
  std::int32_t log_unit_ = HostEvent::kNobody;
  std::string_view log_where_ = "forward";
  std::string_view log_cause_;
  std::int32_t log_microbatch_ = 0;
};

}
