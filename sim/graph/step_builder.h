// Bookkeeping that every builder of sim/graph/ shares: rows, stream waits, host hooks, buffers,
// layer executions, and the Work table. Builders decide *when* something is issued; this class
// decides how it is written down.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/graph/training_step.h"

namespace foreshard {

// What a unit's rows cost and its buffers weigh. Units of the same layers share a class.
struct UnitShape {
  std::int64_t shard_numel = 0;  // padded elements of one rank
  std::int64_t local_numel = 0;  // without padding, rank 0
  std::int64_t numel = 0;
  Bytes unsharded;          // parameters in the compute dtype, allocated one by one (FSDP2)
  Bytes sharded;            // in the stored dtype, one by one
  Bytes optimizer_state;    // one moment
  Bytes largest_parameter;  // in the compute dtype
  std::int64_t parameters = 0;
  std::int64_t reshard_group = 0;  // ranks of the small group after forward; 0: none
  bool operator==(const UnitShape&) const = default;
};

class StepBuilder {
 public:
  static constexpr std::int32_t kNoBuffer = -1;

  StepBuilder(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
              EventGraph recycled);

  // --- units ---
  std::int32_t unit_count() const { return static_cast<std::int32_t>(graph_.units.size()); }
  const Unit& unit(std::int32_t u) const { return graph_.units[static_cast<std::size_t>(u)]; }
  // Its layers, as indices into ModelSpec::order, in forward order.
  std::span<const std::int32_t> layers_of(std::int32_t u) const {
    const auto i = static_cast<std::size_t>(u);
    return {unit_layers_.data() + first_layer_[i], unit_layers_.data() + first_layer_[i + 1]};
  }
  const UnitShape& shape(std::int32_t unit) const {
    return shapes_[static_cast<std::size_t>(shape_of_unit_[static_cast<std::size_t>(unit)])];
  }
  std::int32_t unit_of_layer(std::int32_t layer) const {
    return unit_of_layer_[static_cast<std::size_t>(layer)];
  }
  std::int32_t root() const { return root_; }  // -1: every parameter is in a unit of its own

  // --- rows ---
  // `variant` tells rows of one kind and unit apart that cost different amounts.
  EventId add_unit_row(EventKind kind, Stream stream, std::int32_t unit, std::int32_t variant = 0);
  EventId add_layer_row(EventKind kind, std::int32_t layer);
  EventId add_step_row(EventKind kind, Stream stream);
  // The stream's next row waits for `event`. Only the latest event of each source stream counts.
  void wait(Stream stream, EventId event) {
    if (event == kNoEvent) return;
    const Stream source = graph_.rows[static_cast<std::size_t>(event)].stream;
    if (source == stream) return;  // stream order
    const auto s = static_cast<std::size_t>(stream);
    const auto from = static_cast<std::size_t>(source);
    const auto bit = static_cast<std::uint8_t>(1U << from);
    EventId& pending = pending_waits_[s][from];
    if ((pending_sources_[s] & bit) == 0 || pending < event) pending = event;
    pending_sources_[s] |= bit;
  }
  void hook() { ++pending_hooks_; }  // the next row is issued one hook call later
  EventId tail(Stream stream) const { return tails_[static_cast<std::size_t>(stream)]; }

  // --- memory (belongs to the row added last) ---
  std::int32_t allocate(MemoryCategory category, Stream pool, std::int32_t unit, Bytes bytes) {
    const std::int32_t id = graph_.buffer_count();
    graph_.buffers.push_back({category, pool, unit, allocated_size(bytes.count())});
    graph_.actions.push_back({MemoryAction::Kind::kAllocate, id});
    return id;
  }
  // Leaves kNoBuffer behind; freeing that is no action.
  void free(std::int32_t& buffer) {
    if (buffer == kNoBuffer) return;
    graph_.actions.push_back({MemoryAction::Kind::kFree, buffer});
    buffer = kNoBuffer;
  }
  std::int32_t allocate_persistent(MemoryCategory category, std::int32_t unit, Bytes bytes);
  void free_gradients(std::int32_t unit);  // of the current micro-batch
  void free_last_gradient(std::int32_t unit);

  void begin_microbatch(std::int32_t microbatch);
  std::int32_t microbatch() const { return microbatch_; }
  Recompute recompute_of(std::int32_t layer) const;

  EventGraph& graph() { return graph_; }
  EventGraph finish();

  // What a row costs, in counts; asked once per (kind, shape, variant).
  struct UnitWork {
    std::uint8_t communicator = kNoCommunicator;
    Bytes bytes;
    std::vector<Kernel> kernels;
    std::int64_t launches = 0;  // 0: one per kernel
    bool queues = true;         // false: a communicator of the unit's own, nothing queues on it
  };
  virtual ~StepBuilder() = default;

 protected:
  // Numbers of the communicators that every step has.
  static constexpr std::uint8_t kShard = 0;
  static constexpr std::uint8_t kReplicate = 1;
  // Whether the small groups that units are resharded to have communicators of their own per unit
  // (FSDP2 makes a mesh for each) or share one.
  enum class PostForwardGroups : std::uint8_t { kOfEachUnit, kShared };
  void add_communicators(PostForwardGroups groups);
  std::uint8_t reduce_scatter_communicator() const { return reduce_scatter_communicator_; }
  std::uint8_t post_forward_communicator(std::int64_t size) const;

  virtual UnitWork unit_work(EventKind kind, const UnitShape& shape,
                             std::int32_t variant) const = 0;
  virtual UnitWork step_work(EventKind kind) const = 0;

  static Kernel copy_kernel(std::int64_t bytes_moved);
  static Kernel memory_kernel(MemoryClass memory_class, std::int64_t bytes_moved);
  std::vector<Kernel> optimizer_kernels(std::int64_t elements) const;

  const ModelSpec& model_;
  const Plan& plan_;

 private:
  void lower_units(const LayerPrograms& programs);
  std::uint16_t work_index(EventKind kind, std::int32_t group, std::int32_t variant) {
    const std::int32_t hooks = pending_hooks_ < kHookSteps ? pending_hooks_ : kHookSteps - 1;
    const auto kinds = static_cast<std::int32_t>(kEventKinds);
    const std::int32_t place =
        ((group * kinds + static_cast<std::int32_t>(kind)) * kVariants + variant) * kHookSteps +
        hooks;
    std::int32_t& index = works_[static_cast<std::size_t>(place)];
    if (index < 0) index = add_work(kind, group, variant);
    return static_cast<std::uint16_t>(index);
  }
  std::int32_t add_work(EventKind kind, std::int32_t group, std::int32_t variant);
  EventId push(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit,
               std::int32_t layer);
  std::int32_t add_work(EventKind kind, const UnitWork& work, Flops flops);

  static constexpr std::int32_t kVariants = 4;
  static constexpr std::int32_t kHookSteps = 8;

  EventGraph graph_;
  std::vector<UnitShape> shapes_;
  std::vector<std::int32_t> shape_of_unit_;
  std::vector<std::int32_t> unit_layers_;  // layers_of() of all units, one after the other
  std::vector<std::int32_t> first_layer_;
  std::vector<std::int32_t> unit_of_layer_;
  std::int32_t root_ = -1;
  std::vector<std::int32_t> program_of_layer_;  // into graph_.programs
  std::vector<Recompute> recompute_of_layer_;
  std::vector<std::uint8_t> fifo_of_work_;  // communicator that rows of a Work queue on
  std::vector<std::int32_t> works_;         // [group][kind][variant][hooks] -> Work index or -1
  std::int32_t groups_ = 0;

  std::array<EventId, kStreams> tails_;
  std::array<std::array<EventId, kStreams>, kStreams> pending_waits_;  // [stream][source stream]
  std::array<std::uint8_t, kStreams> pending_sources_{};               // bits: which are set
  std::array<EventId, 256> communicator_tails_;
  std::uint8_t reduce_scatter_communicator_ = kShard;
  EventId unawaited_compute_ = kNoEvent;  // CPU ranks: a compute row the host has not waited for
  std::int32_t pending_hooks_ = 0;
  std::int32_t microbatch_ = 0;
  std::int32_t first_execution_ = 0;  // of the current micro-batch
};

}  // namespace foreshard
