// What one layer does in one micro-batch: its allocations in host order and its kernels, for
// forward, recompute, backward.
//
// Derived from the LayerSpec as autograd would (see layer_program.cpp); shared by all layers of a
// kind. Slots are the layer's buffers: slot 0 is its input activation (allocated by the layer
// before), slot 1 the gradient of that input; slots `slots.size()` and `slots.size() + 1` are slots
// 0 and 1 of the next layer, that is this layer's output and the gradient that arrives there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/spec/calibration.h"
#include "sim/spec/gpu_generation.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

enum class MemoryCategory : std::uint8_t {
  kShardedParam,
  kUnshardedParam,
  kPostForwardShard,
  kShardedGrad,
  kUnshardedGrad,
  kAccumulatedGrad,
  kActivation,
  kRecomputedActivation,
  kBackwardTemp,
  kOptimizerState,
  kOptimizerTemp,
  kCastTemp,
  kAllGatherOutput,
  kReduceScatterInput,
  kReduceScatterOutput,
  kCommTemp,  // copies of parameters and gradients that are sharded along another dimension
  kInput,
  kOther,  // what a training loop counts and averages
};
inline constexpr std::size_t kMemoryCategories = 18;
constexpr const char* to_string(MemoryCategory category) {
  return word_at(category,
      {"sharded_param", "unsharded_param", "post_forward_shard", "sharded_grad", "unsharded_grad", "accumulated_grad",
          "activation", "recomputed_activation", "backward_temp", "optimizer_state", "optimizer_temp", "cast_temp",
          "all_gather_output", "reduce_scatter_input", "reduce_scatter_output", "comm_temp", "input", "other"});
}

// The caching allocator hands out multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
inline constexpr std::int64_t kAllocationGranularity = 512;
inline Bytes allocated_size(std::int64_t bytes) {
  constexpr std::int64_t kMask = kAllocationGranularity - 1;
  return Bytes(checked_add(bytes, kMask) & ~kMask);
}

// Element of a tensor in one program. `dtype` says nothing where `is_float` is false.
struct TensorElement {
  ElementType type = ElementType::kCompute;  // kCompute: of `dtype`
  DType dtype = DType::kFp32;
  std::int64_t size() const;
  bool operator==(const TensorElement&) const = default;
};

enum class KernelKind : std::uint8_t { kGemm, kAttention, kMemory };

// One kernel in counts. GEMM: m x k times k x n, `groups` times in one launch. Attention: m = batch, n = sequence (of
// packed documents: m = documents, n = their length), k = head_dim, heads in `heads`.
struct Kernel {
  KernelKind kind = KernelKind::kMemory;
  Function function = Function::kCopy;
  MemoryClass memory_class = MemoryClass::kElementwise;
  Pass pass = Pass::kForward;
  bool causal = true;
  bool fp32 = false;
  bool fp8 = false;                             // GEMM: both operands in fp8
  bool fp4 = false;                             // ... in NVFP4
  bool masked = false, dropout = false;         // attention, as AttentionShape
  bool in_tiles = false;                        // attention: `flops` are of whole tiles, `bytes` take time of their own
  std::int64_t m = 0, n = 0, k = 0, heads = 0;  // (norms: m rows)
  std::int64_t groups = 1;
  std::int64_t kernels = 1;  // of one call to a library, one behind the other
  std::int64_t threads = 0;  // kMemory: that it starts, where too few may bind; 0: enough
  Bytes bytes;               // read plus written
  Flops flops;
  bool operator==(const Kernel&) const = default;
};

struct Slot {
  MemoryCategory category = MemoryCategory::kActivation;
  Bytes bytes;
  std::string name;
  // What it counts as once a store action named it: a weight gradient is a temporary of backward
  // until autograd has stored it in the parameter.
  MemoryCategory stored = MemoryCategory::kActivation;
};

// Allocated bytes of a run of actions relative to its start.
struct MemorySwing {
  std::int64_t peak = 0;  // >= 0
  std::int64_t net = 0;
};

// One operation's turn in a phase, for who executes the layer: which slots it works on. The actions
// up to `actions_end` are its own allocations and what is freed once it is done. An in-place
// operation's output stands in the slot that was freed for it.
struct LayerStep {
  enum class Kind : std::uint8_t {
    kForward,   // inputs and outputs as the operation lists them
    kBackward,  // inputs: the output's gradient, then the saved tensors as listed, then what the
                // gradient is added to (ProgramOptions::adds_gradients); outputs: the gradient of each input, in order
    kSum,       // outputs[0] = inputs[0] + inputs[1]; in place where outputs[0] is one of them
  };
  static constexpr std::int32_t kNothing = -1;  // no such tensor: token ids, a dead output
  Kind kind = Kind::kForward;
  std::int16_t operation = -1;  // index into LayerSpec::operations
  std::uint32_t actions_end = 0;
  std::uint32_t kernels_end = 0;              // of the phase's kernels: those up to here and past the last step's
  std::vector<std::int32_t> inputs, outputs;  // slots
};

// A run of a phase between two borders of units: `part` is whose module runs (Operation::part). A
// phase without nested units and without casts is one segment.
struct LayerSegment {
  // Outside of the hooks of the layer's unit: before its pre-forward (pre-backward) hook or after its post-forward
  // (post-backward) one. Where a unit begins or ends, its module's inputs and outputs are cast there; and only there
  // does the caller let go of the layer's input. The loss' backward ends with kAfter once the root's final callback is
  // done. (A final norm's input is let go of with the head's: both are names in one function.)
  static constexpr std::int8_t kBefore = -1;
  static constexpr std::int8_t kAfter = -2;
  // Of a backward in two halves (ProgramOptions::splits_backward), which go behind the first one's
  // segments: gradients of weights, and what autograd's graph held up to then.
  static constexpr std::int8_t kWeights = -3;
  static constexpr std::int8_t kGraph = -4;
  std::int8_t part = 0;
  bool host_waits = false;   // the host reads what it computed before it issues anything more
  bool host_copies = false;  // what it computed goes to the host
  std::uint32_t actions_end = 0;
  std::uint32_t kernels_end = 0;
  MemorySwing swing;
  Flops flops;
};

// A place between two segments where the hooks of a runtime run (ProgramOptions::hooks).
struct LayerHook {
  enum class Kind : std::uint8_t {
    kEnter,     // forward: the module begins; backward: its output's gradient is there
    kExit,      // forward: the module ends; backward: its last node has run
    kGradient,  // autograd has stored the parameter's gradient
  };
  Kind kind = Kind::kEnter;
  std::int16_t index = 0;     // into modules_of(layer) (layer_modules.h); kGradient: parameter
  std::uint16_t segment = 0;  // the first one that runs after it
  bool operator==(const LayerHook&) const = default;
};

// What happens between two segments: a collective of the layer is launched or waited for, or the
// layer is run again before the rest of its backward.
struct LayerCall {
  enum class Kind : std::uint8_t { kLaunch, kWait, kRecompute };
  static constexpr std::int16_t kOfLayerBefore = -1;
  Kind kind = Kind::kLaunch;
  LayerCollective collective;  // that is launched or waited for
  std::uint16_t segment = 0;   // the first one that runs after it
  std::int16_t launch = 0;     // kWait: into calls; kOfLayerBefore: what that one left open
  std::int64_t bytes_in = 0;   // tensors of this rank
  std::int64_t bytes_out = 0;
  TensorElement element;  // of both
  bool operator==(const LayerCall&) const = default;
};

struct LayerPhaseProgram {
  // slot + 1: allocate, -(slot + 1): free, kStore + slot: from now on counted as Slot::stored.
  // -(kEarlierGradient + p + 1) frees weight_gradients[p] of another execution: of the call of the
  // same module that ran backward just before (Sharing); for a token table, the head's.
  static constexpr std::int32_t kStore = 1 << 29;
  static constexpr std::int32_t kEarlierGradient = 1 << 27;
  // kWaiting and kWaiting + 1 are slots 0 and 1 of the embedding whose chain ends with this layer:
  // the output that waited for it (LayerSpec::joins) and that one's gradient.
  static constexpr std::int32_t kWaiting = 1 << 26;
  std::vector<std::int32_t> actions;
  std::vector<LayerSegment> segments;  // at least one unless the phase is empty
  std::vector<LayerHook> hooks;        // in the order in which they run
  std::vector<LayerCall> calls;        // in the order in which they are made
  // A call whose result the next layer waits for, and the slot that is freed then; -1: none.
  std::int16_t open_launch = -1;
  std::int32_t open_slot = -1;
  std::vector<LayerStep> steps;  // in order; what follows the last one belongs to the phase's end
  std::vector<Kernel> kernels;
  MemorySwing swing;
  Flops flops;
};

struct LayerProgram {
  std::vector<Slot> slots;  // of this layer only; bytes of slot 0 included
  Bytes output_bytes, output_grad_bytes;
  LayerPhaseProgram forward;
  LayerPhaseProgram recompute;  // empty unless the layer recomputes
  LayerPhaseProgram backward;
  // Per part: the stored gradients of its parameters, last parameter first, as a Python list drops
  // them. Those of a unit of several layers begin with its last layer.
  std::vector<LayerPhaseProgram> free_gradients;      // of all parameters but the last
  std::vector<LayerPhaseProgram> free_last_gradient;  // which FSDP2 holds until the reduction
  LayerPhaseProgram free_ignored_gradients;           // zero_grad: of norms outside FSDP
  std::vector<std::int32_t> weight_gradients;         // slot of each parameter's gradient, parameter
                                                      // order; -1: none, or added to an earlier one's
  std::vector<std::int32_t> saved;                    // slots alive between forward and backward, for reports
  Bytes saved_bytes() const;
};

// Where backward puts weight gradients: a tensor each, as autograd does, or straight into the
// unit's flat buffer. With kFlat, gradients that meet at a tensor are also added in place instead
// of into a new buffer: autograd must not assume that it owns them, the engine knows.
enum class GradientStorage : std::uint8_t { kPerParameter, kFlat };

// kTokenTable: parameter 0 of this layer also is the head's, whose gradient arrived first; from a function of Python's,
// which holds it (kHeld: nothing is added to it in place) or not (kOwned: DeepSpeed's F.linear of stage 3).
enum class Tying : std::uint8_t { kNone, kTokenTable, kHeld, kOwned };

// A layer whose weights run several times in one forward: autograd sums the gradients of its calls
// and stores the sum when the earliest call's backward is done. Named by backward's order.
enum class Sharing : std::uint8_t { kNone, kFirstOfBackward, kBetween, kLastOfBackward };

// Which gradients exist already when backward begins: autograd adds to them in place.
enum class ExistingGradients : std::uint8_t {
  kNone,
  kIgnored,  // later micro-batches: those of norms outside FSDP
  kAll,      // and those kept unsharded in the compute dtype
};

struct ProgramOptions {
  std::int64_t batch = 1;
  std::int64_t sequence = 1;
  DType compute = DType::kBf16;
  Recompute recompute = Recompute::kNone;
  GradientStorage gradients = GradientStorage::kPerParameter;
  // kFlat: dtype that a product leaves in the flat buffer by a cast. Where it differs from
  // `compute`, the gradient of a matrix exists in the compute dtype for a moment.
  DType flat_gradient = DType::kFp32;
  // A second gradient of a tensor is added by the product (in place) or RMS norm that makes it.
  bool adds_gradients = false;
  Tying tied = Tying::kNone;
  Sharing sharing = Sharing::kNone;
  ExistingGradients existing = ExistingGradients::kNone;
  // What autograd casts gradients to when it stores them (PyTorch's grad_dtype); none: as made.
  std::optional<DType> gradient_dtype = std::nullopt;
  // Parameters that receive no gradient (frozen), by index; empty: none.
  std::vector<bool> frozen = {};
  // Norm weights outside FSDP: in the stored dtype, gradients kept until zero_grad.
  bool ignores_norms = false;
  DType stored = DType::kFp32;
  bool input_needs_gradient = true;  // false: nothing before this layer is trained
  bool split_parts = false;          // cut the phases where the running module's unit changes
  bool hooks = false;                // cut the phases at modules and stored gradients
  bool grad_mode = true;             // false: a forward under no_grad, nothing is kept
  bool keeps_inputs = false;         // of frozen linear layers (deepspeed/runtime/zero/linear.py)
  bool early_stop = true;            // of a recomputation, when all that backward reads is there
  // Plan::recompute_reentrant: CheckpointFunction.backward holds the block's output and that one's
  // gradient while torch.autograd.backward runs inside of it (torch/utils/checkpoint.py).
  bool reentrant = false;
  bool stacked = false;  // ModuleKernels::scan
  // What arrives, if not `compute`; what units cast their outputs to (output_dtype); whether a unit
  // begins with this layer, which casts what arrives to `compute`, and whether one ends with it.
  std::optional<DType> arrives = {}, output_dtype = {};
  bool begins_unit = false, ends_unit = false;
  // Of an embedding in the middle: bytes of the layer before it, whose output waits meanwhile.
  std::int64_t waiting_bytes = 0;
  // Of what a layer joins: its dtype, if not `compute`, and whether it needs a gradient.
  std::optional<DType> joined_dtype = {};
  bool joined_needs_gradient = true;
  // Elements of the output's gradient where the next layer reads a narrower view of the output and
  // nothing else; 0: as many as it has.
  std::int64_t gradient_elements = 0;
  // The layer's input, or the gradient of its output, is still on its way when the layer before
  // has ended.
  bool input_in_flight = false, gradient_in_flight = false;
  // Parameters are DTensors while they are gathered: the recorder does not see which tensor becomes
  // a gradient, and counts it as what it was.
  bool wraps_gradients = false;
  bool pipelines_products = false;  // TensorParallel::async
  // Products add to the gradients of their weights where those are kept (Megatron-Core's
  // main_grad): no tensor of them comes and goes.
  bool fused_gradients = false;
  bool fuses_tied = false;  // of the head's product, too, whose weight is the only embedding's
  // A recomputation is over before backward begins (Megatron-Core's CheckpointFunction).
  bool recomputes_first = false;
  // Under selective recompute only what is read of kept operations' outputs is kept: they are
  // outside of what is checkpointed (Megatron-Core's modules), not in its cache.
  bool keeps_read = false;
  // Of a pipeline's stage: somebody else holds the layer's input (the first layer's, and the loss'); its output and
  // that one's gradient are slots of its own, behind all others, and somebody else's, too (the last layer).
  bool input_is_held = false, ends_stage = false;
  ProductWorkspaces workspaces;  // that are not kept
  // Backward in two halves: of inputs, which keeps what it read and the gradients of what products
  // and norms made, and of weights (torch/distributed/pipelining/_backward.py).
  bool splits_backward = false;
  bool operator==(const ProgramOptions&) const = default;
};

// Throws Error(kInvalidInput) when sizes overflow.
LayerProgram build_layer_program(const LayerSpec& layer, const ProgramOptions& options);

}
