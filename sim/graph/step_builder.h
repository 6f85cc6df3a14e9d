// Bookkeeping that every builder of sim/graph/ shares: rows, stream waits, host hooks, buffers, layer executions, and
// the Work table. Builders decide *when* something is issued; this class decides how it is written down.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/graph/pipeline/stages.h"
#include "sim/graph/training_step.h"
#include "sim/graph/work_index.h"

namespace foreshard {

// A parameter of a unit, sharded along one dimension and padded there.
struct UnitParameter {
  std::int64_t numel = 0;
  std::int64_t shard_numel = 0;  // of each rank, padded
  std::int64_t local_numel = 0;  // of Plan::rank, without padding
  std::int64_t shard_dim = 0;
  std::int64_t stored_size = 4;  // bytes of an element of the shard
  std::int64_t gathered_size = 2;
  bool casts = true;  // to the compute dtype, before its gather
  bool trainable = true;
  bool stepped = true;                       // by the optimizer, if it is trainable
  bool shares_storage = false;               // with another parameter of the unit
  bool replicated = false, partial = false;  // ParameterSpec
  std::int64_t gradient_numel = 0;           // as backward makes it; 0: numel
};

// What a unit's rows cost and its buffers weigh. Units of the same layers share one.
struct UnitShape {
  std::vector<UnitParameter> list;
  std::int64_t numel = 0;
  std::int64_t shard_numel = 0;      // padded elements of one rank
  std::int64_t shard_bytes = 0;      // of shard_numel, as stored
  std::int64_t gather_bytes = 0;     // of shard_numel, as gathered
  std::int64_t cast_bytes = 0;       // read and written by the casts before the gather
  std::int64_t fp8_shard_numel = 0;  // of what is gathered in fp8
  std::int64_t trained_numel = 0;    // of the parameters that are trained
  std::int64_t trained_shard_numel = 0;
  std::int64_t trained_local_numel = 0;
  std::int64_t cut_numel = 0;  // unpadded, of parameters sharded along another dim than 0
  std::int64_t trained_cut_numel = 0;
  std::int64_t parameters = 0;
  std::int64_t trained = 0;
  std::int64_t unstepped = 0;  // UnitParameter::stepped: how many are not, and their elements
  std::int64_t unstepped_local_numel = 0;
  std::int64_t reshard_group = 0;         // ranks of the small group after forward; 0: none
  std::int64_t shards = 1;                // ranks that it is sharded over
  MeshDim sharded_over = MeshDim::kFsdp;  // or kEfsdp: experts
  bool makes_whole_gradients = false;     // ParameterSpec::partial or gradient_numel of some
  // Into EventGraph::parts: unsharded parameters in the compute dtype, shards and (trained) moments in the stored ones.
  std::int32_t unsharded_parts = -1;
  std::int32_t sharded_parts = -1;
  std::int32_t state_parts = -1;
};

class StepBuilder {
 public:
  static constexpr std::int32_t kNoBuffer = -1;

  StepBuilder(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled);

  // --- units ---
  std::int32_t unit_count() const { return static_cast<std::int32_t>(graph_.units.size()); }
  const Unit& unit(std::int32_t u) const { return graph_.units[at(u)]; }
  // Its layers, as indices into ModelSpec::order, in forward order; a layer that is called twice
  // once. Empty for modules inside a block.
  std::span<const std::int32_t> layers_of(std::int32_t u) const {
    const auto i = at(u);
    return {unit_layers_.data() + first_layer_[i], unit_layers_.data() + first_layer_[i + 1]};
  }
  // A module of a unit: a layer, or a part inside of one.
  struct Module {
    std::int32_t layer = 0;
    std::int8_t part = 0;
    bool operator==(const Module&) const = default;
  };
  // In forward order; a module that is called twice once.
  std::span<const Module> modules_of(std::int32_t unit) const {
    const auto i = at(unit);
    return {modules_.data() + first_module_[i], modules_.data() + first_module_[i + 1]};
  }
  const UnitShape& shape(std::int32_t unit) const { return shapes_[at(shape_of_unit_[at(unit)])]; }
  std::int32_t unit_of_layer(std::int32_t layer) const { return unit_of_layer_[at(layer)]; }
  std::int32_t root() const { return root_; }  // -1: every parameter is in a unit of its own
  // The unit of a module inside the layer (ParameterSpec::part > 0); the layer's own where that is none.
  std::int32_t unit_of_part(std::int32_t layer, std::int8_t part) const {
    const std::int32_t first = first_nested_[at(layer)];
    return part <= 0 || first < 0 ? unit_of_layer(layer) : first + part - 1;
  }
  // The layer's number among the blocks, -1 for others; the same for every call of a block.
  std::int32_t block_of(std::int32_t layer) const { return block_of_layer_[at(layer)]; }
  bool is_trained(std::int32_t layer, const ParameterSpec& parameter) const;
  bool is_ignored(const ParameterSpec& parameter) const {
    return (parameter.is_norm && plan_.ignored == Ignored::kNorms) ||
           (parameter.unpacked > 0 && plan_.ignored == Ignored::kPacked);
  }
  // Experts of a mesh with axes of their own.
  bool is_over_experts(const ParameterSpec& parameter) const {
    return parameter.is_expert && (plan_.mesh.ep > 1 || plan_.mesh.etp > 1);
  }
  UnitParameter sharded(std::int32_t layer, const ParameterSpec& parameter) const;
  // What layers keep whole on every rank beside their parameters (LayerSpec::resident_bytes).
  std::vector<std::int64_t> resident_bytes() const;
  const LayerSpec& spec_of(std::int32_t layer) const { return model_.kinds[at(model_.order[at(layer)].kind)]; }

  // --- rows ---
  // `variant` tells rows of one kind and unit apart that cost different amounts.
  EventId add_unit_row(EventKind kind, Stream stream, std::int32_t unit, std::int32_t variant = 0);
  EventId add_layer_row(EventKind kind, std::int32_t layer, std::uint16_t segment = MemoryAction::kWhole);
  EventId add_step_row(EventKind kind, Stream stream);
  // A run of `count` segments of a layer's phase, from segment `first` on.
  EventId add_layer_run(EventKind kind, std::int32_t layer, std::size_t first, std::size_t count);
  bool is_captured(EventKind kind, std::int32_t layer, std::size_t begin, std::size_t end) const;
  // What such a run costs behind `hooks` hook calls.
  std::uint16_t layer_run_work(
      EventKind kind, std::int32_t layer, std::size_t first, std::size_t count, std::int32_t hooks);
  struct UnitWork;
  // A row whose cost depends on no unit's shape (a bucket's): priced once by new_work(), then
  // named. The work carries the hooks that are pending when it is made.
  std::uint16_t new_work(EventKind kind, const UnitWork& work) {
    return static_cast<std::uint16_t>(add_work(kind, work, Flops()));
  }
  EventId add_row(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit) {
    return push(kind, stream, work, unit, -1);
  }
  // A collective inside a layer or outside of all units. `bytes`: of the whole buffer.
  EventId add_collective(EventKind kind, Stream stream, std::uint8_t communicator, Bytes bytes, std::int32_t unit);
  // A collective between the parts of a layer, on its axis' stream, behind what is computed.
  EventId add_collective(const LayerCollective& collective, Bytes bytes, std::int32_t unit);
  // A batch of transfers with another rank of the pipeline, behind what is computed. `bytes`: that move each way.
  EventId add_exchange(std::int32_t peer, Bytes bytes, Exchange::Side side);
  EventId launch_call(const LayerCall& call, std::int32_t unit) {
    const Bytes whole(std::max(call.bytes_in, call.bytes_out));
    return add_collective(call.collective, whole, unit);
  }
  // All of the phase at one segment: launches, of no unit, whose rows `flights` has by call, and compute's waits for
  // them; not those for rows of experts that travel beside another micro-batch's compute.
  void launch_and_wait(
      EventKind kind, const LayerPhaseProgram& phase, std::size_t segment, std::vector<EventId>& flights);
  // Memory of one more phase of a layer, in the row added last. kExit: what ends with the hooks'
  // last segment; kInside: all else.
  enum class Segments : std::uint8_t { kInside, kExit };
  void add_phase(EventKind kind, std::int32_t layer, Segments segments);
  void add_segment(EventKind kind, std::int32_t layer, std::uint16_t segment, std::uint8_t count = 1);
  // A segment outside of modules: a row, or nothing but references that end.
  void run_border_segment(EventKind kind, std::int32_t layer, std::size_t segment);
  // Those of `part` (LayerSegment::kBefore, kAfter), if there are any.
  void run_border(EventKind kind, std::int32_t layer, std::int8_t part);
  // The stream's next row waits for `event`. Only the latest event of each source stream counts.
  void wait(Stream stream, EventId event) {
    if (event == kNoEvent) return;
    const Stream source = graph_.rows[at(event)].stream;
    if (source == stream) return;  // stream order
    const auto s = at(stream);
    const auto from = at(source);
    const auto bit = static_cast<StreamSet>(1U << from);
    EventId& pending = pending_waits_[s][from];
    if ((pending_sources_[s] & bit) == 0 || pending < event) pending = event;
    pending_sources_[s] |= bit;
  }
  void hook() { ++pending_hooks_; }  // the next row is issued one hook call later
  // The host waits for `event` before it issues the next row, or ends the step. What it awaits
  // last decides.
  void host_wait(EventId event) { pending_host_wait_ = std::max(pending_host_wait_, event); }
  EventId tail(Stream stream) const { return tails_[at(stream)]; }

  // --- memory (belongs to the row added last) ---
  std::int32_t allocate(MemoryCategory category, Stream pool, std::int32_t unit, Bytes bytes) {
    const std::int32_t id = graph_.buffer_count();
    graph_.buffers.push_back({category, pool, unit, allocated_size(bytes.count())});
    graph_.actions.push_back({MemoryAction::Kind::kAllocate, id});
    return id;
  }
  // A tensor per parameter, sizes from EventGraph::parts.
  std::int32_t allocate_parts(MemoryCategory category, std::int32_t unit, std::int32_t parts) {
    const std::int32_t id = add_parts(category, unit, parts);
    graph_.actions.push_back({MemoryAction::Kind::kAllocate, id});
    return id;
  }
  std::int32_t add_parts(MemoryCategory category, std::int32_t unit, std::int32_t parts);
  std::int32_t add_part_list(std::vector<Bytes> sizes);
  // Leaves kNoBuffer behind; freeing that is no action.
  void free(std::int32_t& buffer) {
    if (buffer == kNoBuffer) return;
    graph_.actions.push_back({MemoryAction::Kind::kFree, buffer});
    buffer = kNoBuffer;
  }
  // The same where the library recorded streams that use it (Tensor.record_stream).
  void free(std::int32_t& buffer, StreamSet recorded) {
    if (buffer == kNoBuffer) return;
    graph_.actions.push_back({MemoryAction::Kind::kFree, buffer,
        recorded == 0 ? MemoryAction::kWhole : static_cast<std::uint16_t>(recorded)});
    buffer = kNoBuffer;
  }
  // zero_grad's: freed, or (Optimizer::leaves_gradients) left to the next step, which frees it
  // where first_forward_ends() was called.
  void drop_gradient(std::int32_t& buffer) {
    if (!plan_.optimizer.leaves_gradients()) return free(buffer);
    if (buffer != kNoBuffer) left_gradients_.push_back(std::exchange(buffer, kNoBuffer));
  }
  void first_forward_ends() {
    if (microbatch_ == 0) forward_end_ = {graph_.details.size(), graph_.actions.size()};
  }
  void free_all(std::vector<std::int32_t>& buffers) {
    for (std::int32_t& buffer : buffers) free(buffer);
    buffers.clear();
  }
  // torch.optim, _single_tensor_adamw: of each parameter a root as large as its moment, and what it
  // is divided to, which lives until the next parameter's is there.
  void step_one_by_one(const std::vector<Bytes>& moments, bool on_host);
  // torch.optim.Muon's step of one matrix (muon.cpp), cut by rows over `ranks`.
  void step_by_muon(std::int64_t rows, std::int64_t columns, std::int64_t ranks, std::uint8_t communicator);
  // Of all parameters, or of those that Muon leaves.
  bool steps_by_adamw() const {
    return plan_.optimizer.kind == Optimizer::Kind::kAdamW || plan_.optimizer.kind == Optimizer::Kind::kMuon;
  }
  std::int32_t allocate_persistent(MemoryCategory category, std::int32_t unit, Bytes bytes);
  std::int32_t allocate_persistent_parts(MemoryCategory category, std::int32_t unit, std::int32_t parts);
  // Unsharded gradients of the unit, made in pass `pass`: all but the last one, then that one.
  void free_gradients(std::int32_t unit, std::int32_t pass);
  // Which of a unit's gradients count: a head that is run in chunks is reduced apart.
  enum class Gradients : std::uint8_t { kOfAll, kOfHead, kOfRest };
  bool counts(Gradients which, std::int32_t layer) const {
    return which == Gradients::kOfAll || (layer == chunked_head_) == (which == Gradients::kOfHead);
  }
  void take_gradients(Gradients which);
  std::int32_t chunked_unit_ = -1;  // that such a head shares with others
  Gradients gradients_ = Gradients::kOfAll;
  void free_last_gradient(std::int32_t unit, std::int32_t pass);
  // The same gradients as buffers, in the order of the unit's trained parameters.
  std::vector<std::int32_t> gradient_buffers(std::int32_t unit, std::int32_t pass) const;
  void allocate_given_masks();  // what blocks keep of them (sim/graph/layers/given_mask.h)
  // A micro-batch as the loop gives it (but where it came with the step's first: Batch::prefetched) and those masks.
  void give_batch(std::int64_t sequence);
  void drop_batch();
  std::int32_t input_tokens_ = kNoBuffer, input_labels_ = kNoBuffer;
  // The loop's name for what the model returned: it ends when the next forward has returned, or
  // with the step (Logits::kHeld; kKept: not with the step).
  void hold_logits();
  void drop_logits();
  // What a program compiled as a whole returns beside its loss has zeros for a gradient while its
  // backward runs (AOTAutograd makes them).
  void make_zeros();
  void drop_zeros() { free(zeros_); }

  // Pass m is micro-batch m; an evaluation forward is the pass behind the last one, the forwards of
  // Plan::reference those behind that.
  // A pass may be gone on with after others.
  void begin_pass(std::int32_t pass, std::int32_t microbatch);
  // Buffers of the pass: what is handed to the layer, that one's gradient; and the same of what a
  // stage's last layer hands on.
  std::int32_t input_buffer(std::int32_t layer) const {
    return graph_.executions[at(first_execution_ + layer)].first_buffer;
  }
  std::int32_t input_gradient(std::int32_t layer) const { return input_buffer(layer) + 1; }
  std::int32_t output_buffer(std::int32_t layer) const {
    const LayerExecution& execution = graph_.executions[at(first_execution_ + layer)];
    const auto slots = static_cast<std::int32_t>(graph_.program(execution).slots.size());
    return execution.first_buffer + slots - 2;
  }
  std::int32_t pass() const { return pass_; }
  std::int32_t evaluation_pass() const { return static_cast<std::int32_t>(plan_.batch.accumulation); }
  std::int32_t reference_pass() const { return evaluation_pass() + (plan_.evaluation.in_step ? 1 : 0) + microbatch_; }
  std::int32_t microbatch() const { return microbatch_; }
  std::uint32_t action_count() const { return static_cast<std::uint32_t>(graph_.actions.size()); }
  // The phase that rows of `kind` replay in the current pass.
  const LayerPhaseProgram& phase(EventKind kind, std::int32_t layer) const;
  Recompute recompute_of(std::int32_t layer) const;

  EventGraph& graph() { return graph_; }
  const EventGraph& graph() const { return graph_; }
  EventGraph finish();

  // What a row costs, in counts; asked once per (kind, shape, variant).
  struct UnitWork {
    std::uint8_t communicator = kNoCommunicator;
    Bytes bytes;
    std::vector<Kernel> kernels;
    std::int64_t launches = 0;  // 0: one per kernel
    std::int64_t tensors = 0;   // parameters that the host goes through one by one
    bool queues = true;         // false: a communicator of the unit's own, nothing queues on it
    bool to_neighbour = false;  // these as Work's
    Caller caller = Caller::kRuntime;
    std::uint16_t copies = 1;
  };
  virtual ~StepBuilder() = default;

 protected:
  std::int64_t param_size() const { return size_of(plan_.param_dtype); }
  std::int64_t reduce_size() const { return size_of(plan_.reduce_dtype); }
  std::int64_t master_size() const { return size_of(plan_.master_dtype); }
  // Numbers of the communicators that every step has.
  static constexpr std::uint8_t kShard = 0;
  static constexpr std::uint8_t kReplicate = 1;
  // Whether the small groups that units are resharded to have communicators of their own per unit
  // (FSDP2 makes a mesh for each) or share one.
  enum class PostForwardGroups : std::uint8_t { kOfEachUnit, kShared };
  void add_communicators(PostForwardGroups groups);
  // Of a pipeline's rank.
  const std::vector<StageLayers>& stages() const { return stages_; }
  const PipelineRows& pipeline_rows() const { return pipeline_rows_; }
  // Whose gradients of the layer later passes add to, where nobody takes them away.
  std::int32_t storing_pass(std::int32_t layer) const;
  std::uint8_t reduce_scatter_communicator() const { return reduce_scatter_communicator_; }
  // Of a group of the mesh. All that are as large as the world share one: PyTorch's DeviceMesh
  // takes the world's process group for them (device_mesh.py, _init_one_process_group).
  std::uint8_t communicator_of(MeshDim dim) const { return communicator_of_dim_[at(dim)]; }
  std::uint8_t post_forward_communicator(std::int64_t size) const;

  virtual UnitWork unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const = 0;
  virtual UnitWork step_work(EventKind kind) const = 0;

  static Kernel copy_kernel(std::int64_t bytes_moved);
  static Kernel memory_kernel(MemoryClass memory_class, std::int64_t bytes_moved);
  std::vector<Kernel> optimizer_kernels(std::int64_t elements) const;
  // Of an optimizer that Python steps parameter by parameter, for each; else 0.
  std::int64_t looped_operations() const;
  // Of a parameter's size, while a step over lists of tensors runs.
  std::int64_t listed_temporaries() const;
  void hold_temporaries(std::int64_t count, std::int32_t parts, bool on_host);
  // States that the optimizer keeps for each element of a shard.
  int moments() const;
  // Clipping and the step over so many elements of the stored dtype on each rank of the shard group.
  UnitWork step_work_of(EventKind kind, std::int64_t elements) const;
  // The same of fp32 copies of so many parameters, which are cast back behind the optimizer.
  UnitWork master_step_work(EventKind kind, std::int64_t own) const;

  // --- units that repeat (step_repeat.cpp) ---
  // Whether this unit and the next one are alike in all that rows are made of: whole blocks, those
  // of the one behind those of the other, of the same kinds, shapes, programs and policies.
  bool is_like_next(std::int32_t unit) const;
  static constexpr std::size_t kPlaceCommunicators = 14;
  struct Place {
    std::size_t rows = 0, waits = 0, actions = 0, buffers = 0, works = 0;  // written so far
    std::int32_t hooks = 0;
    // Tails and what is pending; kNoEvent: nothing.
    std::array<EventId, kStreams + kStreams * kStreams + 3 + kPlaceCommunicators> ids;
  };
  Place place() const;
  // Whether every number grows from list to list by an amount of its own. Negative ones are names of nothing and stay.
  static bool advances(
      std::span<const std::int32_t> a, std::span<const std::int32_t> b, std::span<const std::int32_t> c);
  // Whether what was written from `a` to `b` and from `b` to `c`, the present place, is one pattern.
  bool is_pattern(const Place& a, const Place& b, const Place& c) const;
  // Continues the pattern whose last unit lies between these.
  void write_again(const Place& b, const Place& c, std::int32_t times);

  const ModelSpec& model_;
  const Plan& plan_;

 private:
  void find_gradients();
  void add_axes();
  void lower_units(const LayerPrograms& programs);
  struct OpenUnits;
  void assign_layers(const LayerPrograms& programs);
  std::int32_t new_unit(std::string name);
  std::int32_t unit_of_block(std::int32_t layer, OpenUnits& open);
  std::int32_t unit_of_end(std::int32_t layer, OpenUnits& open);
  void assign_programs(std::int32_t layer, const LayerPrograms& programs);
  void list_units(const OpenUnits& open);
  std::uint32_t program_of(std::int32_t layer, std::int32_t pass) const;
  // Which of a layer's programs a pass runs.
  enum class PassKind : std::uint8_t { kFirst, kLater, kLast, kSplit, kSplitLater, kEvaluation };
  static constexpr std::size_t kPassKinds = 6;
  PassKind pass_kind(std::int32_t layer, std::int32_t pass) const;
  void find_stage_passes();
  std::int32_t earlier_of(std::int32_t layer, std::int32_t pass) const;
  std::int32_t joined_by(std::int32_t layer, std::int32_t pass) const;
  void size_units();
  UnitShape shape_of(std::int32_t unit, Gradients which = Gradients::kOfAll);
  void size_reductions();
  bool is_in(const ParameterSpec& parameter, const Module& module) const;
  // Calls visit(execution, part, program) for modules of the unit until it returns false.
  void visit_gradients(std::int32_t unit, std::int32_t pass, const auto& visit) const;
  bool are_alike(std::int32_t unit, std::int32_t other) const;
  std::uint16_t work_index(EventKind kind, std::int32_t group, std::int32_t variant) {
    const std::int32_t hooks = pending_hooks_ < kHookSteps ? pending_hooks_ : kHookSteps - 1;
    const auto kinds = static_cast<std::int32_t>(kEventKinds);
    const std::int32_t place = (group * kinds + static_cast<std::int32_t>(kind)) * variants_ + variant;
    std::int32_t& known = works_[at(place)];
    if (known < 0) known = new_hook_works();
    const auto at = static_cast<std::size_t>(known) + static_cast<std::size_t>(hooks);
    if (hook_works_[at] < 0) {
      const std::int32_t added = add_work(kind, group, variant);
      hook_works_[at] = added;
    }
    return static_cast<std::uint16_t>(hook_works_[at]);
  }
  std::int32_t new_hook_works() {
    const auto begin = static_cast<std::int32_t>(hook_works_.size());
    hook_works_.resize(hook_works_.size() + kHookSteps, -1);
    return begin;
  }
  std::int32_t add_work(EventKind kind, std::int32_t group, std::int32_t variant);
  EventId push(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit, std::int32_t layer);
  std::int32_t add_work(EventKind kind, const UnitWork& work, Flops flops);
  std::uint16_t collective_work(EventKind kind, const UnitWork& work);

  static constexpr std::int32_t kHookSteps = 8;

  EventGraph graph_;
  std::vector<StageLayers> stages_;
  PipelineRows pipeline_rows_;
  std::vector<UnitShape> shapes_;
  std::vector<std::int32_t> shape_of_unit_;
  std::int32_t whole_shape_ = -1, chunked_head_ = -1;  // of chunked_unit_; which layer
  std::vector<std::int32_t> unit_layers_;              // layers_of() of all units, one after the other
  std::vector<std::int32_t> first_layer_;
  std::vector<std::int32_t> unit_of_layer_;
  std::vector<std::int32_t> first_nested_;  // of each layer: its first unit inside, or -1
  std::vector<Module> modules_;             // modules_of() of all units, one after the other
  std::vector<std::int32_t> first_module_;
  std::vector<std::int32_t> block_of_layer_;
  std::vector<Bytes> part_sums_;
  std::vector<std::int32_t> given_masks_;
  std::int64_t logits_bytes() const;
  bool keeps_logits() const { return plan_.logits == Logits::kKept && plan_.loss.kind == Loss::Kind::kEager; }
  bool found_logits_ = false;
  std::int32_t held_logits_ = kNoBuffer, zeros_ = kNoBuffer;
  std::vector<std::int32_t> left_gradients_;
  std::pair<std::size_t, std::size_t> forward_end_;  // rows, actions
  std::int32_t root_ = -1;
  bool repeats_layers_ = false;  // some layer is called more than once
  // Of each layer, per kind of pass, into graph_.programs.
  std::vector<std::array<std::int32_t, kPassKinds>> programs_of_layer_;
  std::vector<Recompute> recompute_of_layer_;
  std::vector<std::size_t> stage_of_layer_;          // of a pipeline: into stage_passes_
  std::vector<std::vector<PassKind>> stage_passes_;  // of each of the rank's stages, by pass
  std::vector<std::uint8_t> fifo_of_work_;           // communicator that rows of a Work queue on
  std::vector<std::int32_t> works_;                  // [group][kind][variant] -> its first in hook_works_, or -1
  std::vector<std::int32_t> hook_works_;             // by hooks: Work index or -1
  WorkIndex run_works_;                              // of add_layer_run
  std::int32_t groups_ = 0;
  std::int32_t variants_ = 8;  // a unit's rows have fewer; a layer's: whole, or one of its segments

  std::array<EventId, kStreams> tails_;
  std::array<std::array<EventId, kStreams>, kStreams> pending_waits_;  // [stream][source stream]
  std::array<StreamSet, kStreams> pending_sources_{};                  // which are set
  std::array<EventId, 256> communicator_tails_;
  std::uint8_t reduce_scatter_communicator_ = kShard;
  std::array<std::uint8_t, kMeshDims> communicator_of_dim_{};
  // Works of add_collective, by kind, communicator, bytes, hooks, whether to a neighbour, caller, copies.
  std::map<std::tuple<EventKind, std::uint8_t, std::int64_t, std::int32_t, bool, Caller, std::uint16_t>, std::uint16_t>
      collective_works_;
  std::map<std::array<std::int64_t, 3>, std::uint16_t> muon_works_;  // by rows, columns, which of the step
  EventId host_reads_ = kNoEvent;         // a row whose results the next row's issue waits for
  EventId unawaited_compute_ = kNoEvent;  // CPU ranks: a compute row the host has not waited for
  std::int32_t pending_hooks_ = 0;
  EventId pending_host_wait_ = kNoEvent;
  std::int32_t microbatch_ = 0;
  std::int32_t pass_ = 0;
  std::int32_t first_execution_ = 0;  // of the current pass
};

}
