// How the step runs: mesh, units, prefetch, reshard, recompute, dtypes, accumulation, optimizer.
//
// A Plan is data; what it means is written down once, in the builders of sim/graph/. Keys of the YAML form are the
// dotted paths of DESIGN section 11 (`foreshard schema plan` prints them all). Words are PyTorch's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/spec/allocator_settings.h"
#include "sim/spec/cluster.h"
#include "sim/spec/mesh.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/runtime_options.h"

namespace foreshard {

enum class DType : std::uint8_t { kBf16, kFp16, kFp32 };
std::int64_t size_of(DType dtype);
constexpr const char* to_string(DType dtype) { return word_at(dtype, {"bf16", "fp16", "fp32"}); }

enum class RuntimeKind : std::uint8_t { kFsdp2, kNative, kFsdp1, kDdp, kMegatron, kZero1, kZero2, kZero3 };
constexpr const char* to_string(RuntimeKind kind) {
  return word_at(kind, {"fsdp2", "native", "fsdp1", "ddp", "megatron", "zero1", "zero2", "zero3"});
}
constexpr bool is_zero(RuntimeKind kind) { return kind >= RuntimeKind::kZero1; }
// 1 to 3 of runtime zero1 to zero3, else 0.
constexpr int zero_stage(RuntimeKind kind) {
  return is_zero(kind) ? static_cast<int>(kind) - static_cast<int>(RuntimeKind::kZero1) + 1 : 0;
}

struct Runtime {
  RuntimeKind kind = RuntimeKind::kFsdp2;
  // Of PyTorch for fsdp2, fsdp1 and ddp, of DeepSpeed for zero1 to zero3, of Megatron-Core for
  // megatron; of the plan semantics for native ("1").
  std::string version = "2.15";
  std::string torch = "2.11";        // PyTorch's, where `version` is another library's
  std::int32_t torch_minor() const;  // of 2.x; of any other major number, more than there are
  bool operator==(const Runtime&) const = default;
};

struct Batch {
  std::int64_t sequence = 0;
  std::int64_t micro_batch = 1;   // sequences per rank and micro-batch
  std::int64_t accumulation = 1;  // micro-batches per step
  std::int64_t images = 0;        // per sample, of models whose samples have images
  std::int64_t documents = 1;     // packed into each sequence, equally long; none attends to another
  bool padded = false;            // sequences of a batch differ in length, and a mask says which positions count
  std::int64_t labelled = 0;      // tokens of each sequence whose label counts; 0: all
  // The batches of all micro-batches are there from the step's begin until the next one's are.
  bool prefetched = false;
  std::int64_t whole = 0;  // so many, of a plan that tells of fewer (shortened())
  std::int64_t tokens_with_labels() const { return labelled > 0 ? labelled : sequence; }
  bool operator==(const Batch&) const = default;
};

// How a layer runs on the ranks of mesh.tp, as torchtitan's parallelize functions lay it out:
// projections cut by columns, then by rows.
struct TensorParallel {
  bool sequence = true;  // norms and residuals on a part of the positions each (SequenceParallel)
  bool loss = true;      // logits stay cut by vocabulary (loss_parallel)
  // Collectives and the products beside them overlap chunk by chunk (torchtitan's
  // enable_async_tensor_parallel, Megatron-Core's tp_comm_overlap); with sequence.
  bool async = false;
  // What was gathered for a product is kept for its weight's gradient (nanotron's
  // tp_recompute_allgather: false); Megatron-Core gathers it again.
  bool keeps_gathered = false;
  // Which tables of tokens are cut by vocabulary: both, the head's, or none (transformers' plans).
  enum class Tables : std::uint8_t { kCut, kHead, kWhole };
  Tables tables = Tables::kCut;
  bool operator==(const TensorParallel&) const = default;
};
constexpr const char* to_string(TensorParallel::Tables tables) { return word_at(tables, {"cut", "head", "whole"}); }

// Attention over the ranks of mesh.cp (torch.distributed.tensor.experimental context_parallel;
// Megatron-Core's cp_comm_type).
struct ContextParallel {
  // How keys and values come round. kAllGather is what training in torchtitan 0.2.2 does whatever its option says.
  // kUlysses: none do; each rank attends with a part of the heads over all positions, and an all-to-all in front and
  // behind changes what is cut (DeepSpeed-Ulysses; Megatron-Core's a2a).
  enum class Rotate : std::uint8_t { kAllGather, kAllToAll, kUlysses };
  // kHeadTail: each rank has a chunk from the front and one from the back, so that causal attention
  // costs all of them the same.
  enum class Balance : std::uint8_t { kHeadTail, kNone };
  Rotate rotate = Rotate::kAllGather;
  Balance balance = Balance::kHeadTail;
  bool operator==(const ContextParallel&) const = default;
};
constexpr const char* to_string(ContextParallel::Rotate rotate) {
  return word_at(rotate, {"allgather", "alltoall", "ulysses"});
}
constexpr const char* to_string(ContextParallel::Balance balance) { return word_at(balance, {"headtail", "none"}); }

// Routing among the ranks of mesh.ep, rows (tokens times experts each goes to) of one rank and
// layer, to and from every rank of its group. Empty: as `zipf` and `counts` say.
struct ExpertParallel {
  std::vector<std::int64_t> sent, received;
  // How tokens choose: the i-th expert is chosen in proportion to i^-zipf (0: all alike), or to its count, one for each
  // expert. The plan's forecast is that of the rank whose experts receive most, for which all others wait.
  double zipf = 0;
  std::vector<std::int64_t> counts;
  // kAllToAll: a row for each expert that a token goes to. kDeepEp: a row goes once to each node and there once to each
  // rank, whatever experts it is for (deepseek-ai/DeepEP; Megatron-Core's flex dispatcher with deepep or hybridep);
  // what moves is priced so, all else is as with kAllToAll.
  enum class Dispatcher : std::uint8_t { kAllToAll, kDeepEp };
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  bool operator==(const ExpertParallel&) const = default;
};

constexpr const char* to_string(ExpertParallel::Dispatcher dispatcher) {
  return word_at(dispatcher, {"alltoall", "deepep"});
}

// How the ranks of mesh.pp run the stages of a pipeline (torch.distributed.pipelining; the rules
// are in sim/graph/pipeline/). Its micro-batches are those of Batch::accumulation.
enum class PipelineSchedule : std::uint8_t {
  kGPipe,
  k1F1B,
  kInterleaved1F1B,
  kLoopedBfs,
  kInterleavedZeroBubble,
  kZbvZeroBubble,
  kDualPipeV,
  kCustom,  // PipelineParallel::orders
};
constexpr const char* to_string(PipelineSchedule schedule) {
  return word_at(schedule, {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
                               "DualPipeV", "custom"});
}

// kParameters and kUniform are DeepSpeed's partition_method (PipelineModule): of all layers, the embedding, the norm
// and the head too, as many parameters, or as many of them, in each stage.
enum class PipelinePartition : std::uint8_t { kBlocks, kParameters, kUniform };
constexpr const char* to_string(PipelinePartition partition) {
  return word_at(partition, {"blocks", "parameters", "uniform"});
}

struct PipelineParallel {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int64_t stages_per_rank = 1;
  // Blocks are spread evenly; the first and the last stage have so many less, for the embedding and
  // the head (torchtitan's pipeline_parallel_first_stage_less_layers).
  std::int64_t first_less = 1, last_less = 1;
  PipelinePartition partition = PipelinePartition::kBlocks;
  // Options of the schedule, and of its step(): gradients are divided by the number of
  // micro-batches; the last stage keeps what each returned and hands on all as one.
  bool scale_grads = false, return_outputs = false;
  // Of each step() of the schedule, as often as Batch::accumulation has them; 0: all in one.
  std::int64_t microbatches = 0;
  // What each rank computes, in its order ("0F0 0F1 0B0 0B1"), of schedule custom: the rows of a
  // CSV file of PyTorch's (_load_csv, compute_only).
  std::vector<std::string> orders;
  // Micro-batches of the step that this one tells of (shortened()), all of which are received into
  // buffers of their own; 0: its own.
  std::int64_t stands_for = 0;
  bool splits_backward() const;  // gradients of inputs and of weights are made apart
  bool operator==(const PipelineParallel&) const = default;
};
struct Plan;
// Of each stage, in their order; what does not divide is the first ones'
// (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part).
std::vector<std::int64_t> blocks_of_stages(std::int64_t blocks, const Plan& plan);
std::vector<std::int64_t> blocks_of_stages(const ModelSpec& model, const Plan& plan);  // PipelineParallel::partition

// What stands around forward and backward in a step. kPlain: clipping, the optimizer, zero_grad. kTorchtitan: zero_grad
// first, then the tokens of the step are counted over all samples and read by the host, and biases of routers are
// balanced before the optimizer (train.py, train_step). kTorchtitanLog: such a step that logs its loss.
enum class StepFrame : std::uint8_t { kPlain, kTorchtitan, kTorchtitanLog };
constexpr const char* to_string(StepFrame frame) { return word_at(frame, {"plain", "torchtitan", "torchtitan_log"}); }

// Where the parameters outside the blocks go. kOwn: a unit of its own. kRoot: the unit of the whole
// model, gathered first. kWithNorm (head only): final norm and head form one unit, as torchtitan
// groups them; with kOwn the norm stays in the root. kNorm (head only): the norm alone is a unit,
// the head stays in the root. kWithHead (embedding only): embedding and head form one unit, with
// the final norm unless `head` is kOwn, which tied weights need outside the root.
enum class UnitPlacement : std::uint8_t { kOwn, kRoot, kWithNorm, kWithHead, kNorm };
constexpr const char* to_string(UnitPlacement placement) {
  return word_at(placement, {"own", "root", "with_norm", "with_head", "norm_only"});
}

struct Units {
  std::int64_t layers_per_unit = 1;
  UnitPlacement embedding = UnitPlacement::kOwn;
  UnitPlacement head = UnitPlacement::kOwn;
  UnitPlacement blocks = UnitPlacement::kOwn;    // or kRoot: the whole model is one unit
  UnitPlacement experts = UnitPlacement::kRoot;  // kOwn: modules inside a block that may be units
                                                 // are; kRoot: they belong to the block
  std::int64_t experts_every = 1;                // ... of every n-th block
  // Dimension that matrices are sharded along (shard_placement_fn): 0, 1, or kExpertsDim: 0 but for
  // the weights of experts fewer than the shards, of which most ranks would hold padding only.
  static constexpr std::int64_t kExpertsDim = -1;
  std::int64_t shard_dim = 0;
  // The embedding's unit holds the table of tokens (or the product that reads patches) alone; what
  // else the layer has (positions, types of tokens, a norm) stays in the root.
  bool table_alone = false;
  // size_based_auto_wrap_policy: modules with so many parameters that are in no unit inside of them
  // are units, whatever they are; 0: units are as said above.
  std::int64_t min_parameters = 0;
  // Modules of adapters inside a block, each by itself (PEFT's fsdp_auto_wrap_policy).
  bool adapters_alone = false;
  std::int64_t head_calls = 1;  // of the head's module in a forward, which gathers it for each
  bool operator==(const Units&) const = default;
};

// A policy with exceptions: `value` holds for all, later ranges win. `first`..`last` inclusive, block or unit numbers.
template <typename T>
struct RangedPolicy {
  struct Range {
    std::int64_t first = 0;
    std::int64_t last = 0;
    T value{};
    bool operator==(const Range&) const = default;
  };
  T value{};
  std::vector<Range> ranges;
  const T& at(std::int64_t index) const {
    for (auto it = ranges.rbegin(); it != ranges.rend(); ++it)
      if (index >= it->first && index <= it->last) return it->value;
    return value;
  }
  bool operator==(const RangedPolicy&) const = default;
};

// reshard_after_forward: kAlways frees the unsharded parameters after forward and gathers them again in backward,
// kNever keeps them, kGroup keeps 1/group of them and gathers inside a group of that many ranks.
struct Reshard {
  enum class Kind : std::uint8_t { kAlways, kNever, kGroup };
  Kind kind = Kind::kAlways;
  std::int64_t group = 0;  // kGroup: a proper divisor of mesh.shard
  bool operator==(const Reshard&) const = default;
};

// Units ahead; kImplicit (forward only): the host runs ahead and gathers a unit when it reaches it.
// Backward: 1 is PyTorch's default, the unit before this one in the order in which forward ended;
// more are lists of modules set beforehand, as is 1 with `backward_lists`; of blocks alone with `blocks_only`.
struct Prefetch {
  static constexpr std::int64_t kImplicit = -1;
  std::int64_t forward = kImplicit;
  std::int64_t backward = 1;
  bool backward_lists = false;
  bool blocks_only = false;
  bool async_unshard = false;  // _set_unshard_async_op: copy-in on the compute stream
  bool operator==(const Prefetch&) const = default;
};

// Activation checkpointing per block. kSelective keeps what SelectivePolicy says.
enum class Recompute : std::uint8_t { kNone, kFull, kSelective };
constexpr const char* to_string(Recompute recompute) { return word_at(recompute, {"none", "full", "selective"}); }

// What selective recompute keeps. kEverySecondMm: attention and every second matrix product (torchtitan's list). kDots:
// attention and every matrix product whose result backward needs, so that nothing but kernels bound by memory runs
// again. kDotsExceptMlp: the products that make attention's inputs and the first that reads its output, not attention
// itself (MaxText's remat_policy save_dot_except_mlp).
// kModules: what a block's modules (norms, attention, feed-forward) are given, each a checkpoint of its own.
enum class SelectivePolicy : std::uint8_t { kEverySecondMm, kDots, kDotsExceptMlp, kModules };
constexpr const char* to_string(SelectivePolicy policy) {
  return word_at(policy, {"every_second_mm", "dots", "dots_except_mlp", "modules"});
}

// torch.compile: of each block by itself, as torchtitan does, or of the whole model (FSDP's hooks
// split it at the same places).
enum class Compile : std::uint8_t { kNone, kBlocks, kModel };
constexpr const char* to_string(Compile compile) { return word_at(compile, {"none", "blocks", "model"}); }

// Which kernel computes attention. The first four are scaled_dot_product_attention's backends
// (kFlash: whichever flash kernel it picks); the others are named by training codes:
// FlashAttention 1 to 3, flash attention in Triton (2022-23), kEager: a model's own products and
// softmax (transformers' attn_implementation="eager"), FlexAttention, and kFlash behind keys and
// values that the code itself repeats for every head (LitGPT, torchtune).
enum class AttentionKernel : std::uint8_t {
  kFlash,
  kCudnn,
  kEfficient,
  kMath,
  kFa1,
  kFa2,
  kFa3,
  kTriton,
  kEager,
  kFlex,  // torch.nn.attention.flex_attention, compiled
  kFlashAllHeads
};
constexpr const char* to_string(AttentionKernel kernel) {
  return word_at(kernel,
      {"flash", "cudnn", "efficient", "math", "fa1", "fa2", "fa3", "triton", "eager", "flex", "flash-all-heads"});
}

// Which kernels the modules of a training code launch around its matrix products; models/kernels.h
// has what each makes of a layer.
struct ModuleKernels {
  // Arithmetic of norms. kCompute: one kernel on activations as they are (or cast to the compute
  // dtype first). kFp32: one kernel on fp32 (autocast's layer_norm; apex on a copy). kEager: a
  // kernel for each operation, on an fp32 copy; kEagerFp32: the weight, too, before the cast back.
  enum class Norm : std::uint8_t { kCompute, kFp32, kEager, kEagerFp32 };
  // Rotary embedding. kComplex: multiplication of complex numbers in fp32. kReal: a rotated half,
  // two products and a sum. kFused: one kernel.
  enum class Rope : std::uint8_t { kComplex, kReal, kFused };
  enum class Residual : std::uint8_t { kCompute, kFp32 };  // dtype of the stream between blocks
  // Activation functions: one kernel each, or as their modules are written (kEager: gelu_new is
  // seven operations; models/layers/module_kernels.cpp). kLiger: one kernel with the product, which keeps gate and up.
  enum class Activation : std::uint8_t { kFused, kEager, kLiger };
  Norm norm = Norm::kCompute;
  Rope rope = Rope::kComplex;
  Residual residual = Residual::kCompute;
  Activation activation = Activation::kFused;
  bool unpads = false;             // tokens are packed before attention and padded behind it
  std::int64_t train_metrics = 0;  // more passes of cross entropy over the logits, without gradient
  // Blocks are one loop over stacked tensors (jax.lax.scan): what backward needs of a block is copied into the stack
  // and out of it again, as products take no slices of it (openxla/xla#15265, NVIDIA/JAX-Toolbox#698).
  bool scan = false;
  // Every block's keys and values are kept for later tokens, which never come (transformers'
  // use_cache), until the model's outputs go.
  bool keeps_cache = false;
  // The bias of positions (T5) is given to attention as it was looked up, heads innermost.
  bool strided_bias = false;
  // Recurrent mixers run as transformers' own operations: none of their kernels is installed.
  bool torch_mixers = false;
  // Attention is given a mask of pairs although no batch is padded.
  bool given_mask = false;
  // Sines and cosines of all positions stay in fp32: of the model, with adapters of each block.
  bool rope_tables = false;
  bool operator==(const ModuleKernels&) const = default;
};
constexpr const char* to_string(ModuleKernels::Norm norm) {
  return word_at(norm, {"compute", "fp32", "eager", "eager-fp32"});
}
constexpr const char* to_string(ModuleKernels::Rope rope) { return word_at(rope, {"complex", "real", "fused"}); }
constexpr const char* to_string(ModuleKernels::Residual residual) { return word_at(residual, {"compute", "fp32"}); }
constexpr const char* to_string(ModuleKernels::Activation activation) {
  return word_at(activation, {"fused", "eager", "liger"});
}

// Cross entropy. kEager: cast to fp32, log_softmax, negative log likelihood, an operation each.
// kEagerCompute: the same without the cast, in the logits' dtype.
// kCompiled: one kernel forward and one backward over the logits as they are. kChunked: eager over
// `chunks` parts of the sequence. kFused: one kernel; the gradient takes the logits' place.
// kFusedLinear: the head's product is part of it, a tile of tokens at a time. kTiledLinear: tiles
// of tokens and words, made again in backward, which adds the gradients up in fp32. kSmoothed:
// transformers' LabelSmoother, behind the model. kLogProbabilities: those of all words but the
// last position's in fp32, of which the labels' are gathered, behind the model (preferences).
struct Loss {
  enum class Kind : std::uint8_t {
    kEager,
    kEagerCompute,
    kCompiled,
    kChunked,
    kFused,
    kFusedLinear,
    kTiledLinear,
    kSmoothed,
    kLogProbabilities,
    kChunkedHead
  };
  Kind kind = Kind::kEager;
  std::int64_t chunks = 0;  // kChunked, kChunkedHead: 2 or more
  // The head's product is part of it.
  bool has_product() const { return kind == Kind::kFusedLinear || kind == Kind::kTiledLinear; }
  bool operator==(const Loss&) const = default;
};

// kHeld: the training loop keeps the logits that the model returned while backward runs: in fp32,
// or with Plan::loss_in_forward as the head made them. kKept: until the next forward's are there.
enum class Logits : std::uint8_t { kReleased, kHeld, kKept };
constexpr const char* to_string(Logits logits) { return word_at(logits, {"released", "held", "kept"}); }

// A frozen second model of the same shape that runs a forward without gradients behind each one of the trained (the
// reference of DPO, a teacher). kBase: none, the trained one does, its adapters switched off. kWhole: every rank holds
// all of it. kUnit: fully_shard of it and of nothing inside (TRL, prepare_fsdp). kUnits: wrapped as the trained one.
enum class Reference : std::uint8_t { kNone, kBase, kWhole, kUnit, kUnits };
constexpr const char* to_string(Reference reference) {
  return word_at(reference, {"none", "base", "whole", "unit", "units"});
}
constexpr bool is_held(Reference reference) { return reference > Reference::kBase; }

// How the products of experts are launched. kGrouped: one grouped product for all. kLoop: one after
// the other, for which the host reads the rows of each expert (torchtitan without use_grouped_mm).
// kTransformers: grouped products as transformers.integrations.moe surrounds them. kTransformers4: modules of three
// linear layers each, over which a loop runs.
enum class ExpertKernels : std::uint8_t { kGrouped, kLoop, kTransformers, kTransformers4 };
constexpr const char* to_string(ExpertKernels kernels) {
  return word_at(kernels, {"grouped", "loop", "transformers", "transformers-4"});
}

enum class AccumulationMode : std::uint8_t { kReduceEach, kKeepUnsharded };
constexpr const char* to_string(AccumulationMode mode) { return word_at(mode, {"reduce_each", "keep_unsharded"}); }

// What is done in each micro-batch, or only in the last one of a step.
enum class When : std::uint8_t { kEach, kLast };
constexpr const char* to_string(When when) { return word_at(when, {"each", "last"}); }

// set_requires_all_reduce, set_reshard_after_backward and set_is_last_backward, called before each
// micro-batch. (The mode is set_requires_gradient_sync, which implies the first.)
struct AccumulationDetails {
  When all_reduce = When::kEach;
  When reshard_after_backward = When::kEach;
  When is_last_backward = When::kEach;
  bool operator==(const AccumulationDetails&) const = default;
};

// Parameters that are not trained: no gradient, no optimizer state.
struct Frozen {
  bool embedding = false;
  bool norm = false;  // the final one
  bool head = false;
  RangedPolicy<bool> blocks;
  bool tower = false;  // the vision tower (LayerSpec::tower)
  bool any() const { return *this != Frozen{}; }
  bool operator==(const Frozen&) const = default;
};

// Low-rank adapters on a frozen base, as PEFT adds them: y = W x + B A x, A [rank, in] and
// B [out, rank] for every target. Only they are trained, and stored in dtype.master.
struct Lora {
  // What the frozen parameters are stored in: dtype.master; dtype.param, as a checkpoint is loaded
  // (PEFT keeps adapters in fp32 beside it: autocast_adapter_dtype); or linear layers of the blocks
  // in 4-bit blocks (QLoRA), the rest in dtype.param; or the rest in dtype.master, the adapters
  // in dtype.param (TRL).
  enum class Base : std::uint8_t { kMaster, kParam, kNf4, kNf4Master };
  static constexpr const char* kAllLinear = "all-linear";  // but the head
  std::int64_t rank = 0;                                   // 0: none, everything is trained
  std::vector<std::string> targets = {kAllLinear};         // or names of linear modules: "q_proj"
  double dropout = 0;                                      // of the adapters' input
  Base base = Base::kParam;
  bool double_quant = true;            // kNf4: scales are in eight-bit blocks themselves
  bool autocast_adapter_dtype = true;  // PEFT's: adapters of a base in 16 bits are made fp32
  bool input_require_grads = false;    // transformers' enable_input_require_grads: of the embedding's output
  // Axolotl's kernels (kernels/lora.py): backward makes silu(gate) * up again; units inside are
  // gathered by hand and left so.
  bool fused = false;
  // modules_to_save: a copy of the module is trained whole, beside the frozen one.
  bool trains_embedding = false, trains_head = false;
  bool operator==(const Lora&) const = default;
};
constexpr const char* to_string(Lora::Base base) { return word_at(base, {"master", "param", "nf4", "nf4-master"}, ""); }

// Parameters left to plain replication (`ignored_params`): norms, or weights in 4-bit blocks.
enum class Ignored : std::uint8_t { kNone, kNorms, kPacked };
constexpr const char* to_string(Ignored ignored) { return word_at(ignored, {"none", "norms", "packed"}); }

// CPUOffloadPolicy: shards, gradients and optimizer state live on the host.
enum class Offload : std::uint8_t { kNone, kCpu, kCpuUnpinned };
constexpr const char* to_string(Offload offload) { return word_at(offload, {"none", "cpu", "cpu_unpinned"}); }

// Which kernels move the bytes of collectives inside one NVLink domain.
enum class CollectiveKernels : std::uint8_t {
  kDefault,
  kSymmetric,   // on windows of symmetric memory, since NCCL 2.27: few blocks
  kCopyEngine,  // gathers by copy engines, since NCCL 2.28: none
};
constexpr const char* to_string(CollectiveKernels kernels) {
  return word_at(kernels, {"default", "symmetric", "copy_engine"});
}

struct Collectives {
  CollectiveKernels kernels = CollectiveKernels::kDefault;
  std::int64_t max_ctas = 0;  // NCCL_MAX_CTAS, ncclConfig_t::maxCTAs; 0: NCCL's choice
  bool operator==(const Collectives&) const = default;
};

// Which module activation checkpointing wraps: the block inside its unit, or the unit.
enum class CheckpointWraps : std::uint8_t { kModule, kUnit };
constexpr const char* to_string(CheckpointWraps wraps) { return word_at(wraps, {"module", "unit"}); }

struct Optimizer {
  // kMomentum: SGD with a momentum buffer. kAdafactor: transformers' (two vectors for a matrix).
  // kAdamW8bit: bitsandbytes' blockwise states; kPagedAdamW, kPagedAdamW8bit: its states in managed
  // memory, which PyTorch's allocator never sees.
  enum class Kind : std::uint8_t {
    kAdamW,
    kSgd,
    kMomentum,
    kAdafactor,
    kAdamW8bit,
    kPagedAdamW,
    kPagedAdamW8bit,
    kTorchao8bit,  // its AdamW8bit
    kMuon          // torch.optim.Muon steps the matrices of blocks, AdamW the rest
  };
  // How AdamW is launched: foreach (PyTorch's default on GPUs; one temporary of the size of
  // exp_avg_sq), fused, or one tensor after the other.
  enum class Implementation : std::uint8_t { kForeach, kFused, kLoop };
  // Of parameters. kDecay: biases and norms, which do not decay, are a second one, as transformers'
  // Trainer has it (get_decay_parameter_names).
  enum class Groups : std::uint8_t { kOne, kDecay };
  // When the loop lets go of gradients. kAfterForward: between the first forward of a step and its
  // backward, so that those of the step before live through it.
  enum class ZeroGrad : std::uint8_t { kAfterStep, kAfterForward };
  Kind kind = Kind::kAdamW;
  Implementation implementation = Implementation::kForeach;
  Groups groups = Groups::kOne;
  DType state = DType::kFp32;
  std::optional<double> clip_norm = 1.0;
  bool in_backward = false;  // steps a parameter as soon as its gradient is there
  ZeroGrad zero_grad = ZeroGrad::kAfterStep;
  // Of another one than PyTorch's AdamW and plain SGD; 0: as `kind` and `implementation` say.
  std::int64_t temporaries = 0;  // of a parameter's size, which a step over lists holds at once
  std::int64_t passes = 0;       // tensors of a parameter's size that a step reads or writes
  std::int64_t operations = 0;   // launches for a parameter, of one that loops over them
  bool leaves_gradients() const { return zero_grad == ZeroGrad::kAfterForward && !in_backward; }
  // What follows changes numbers only, neither time nor memory.
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of parameters with two or more dimensions
  // The rate rises linearly over `warmup_steps`, then falls along half a cosine over `decay_steps`
  // to `min_learning_rate` and stays there; without decay_steps it stays at learning_rate.
  std::int64_t warmup_steps = 0;
  std::optional<std::int64_t> decay_steps;
  double min_learning_rate = 0;
  bool operator==(const Optimizer&) const = default;
};

// In which order a step's gradients are summed, which is what their last bits depend on. kMicrobatch: one after the
// other in global micro-batch order, continued across ranks, so that any number of ranks gives the same bits; a
// reduce-scatter adds to the gradient that is there. With replicas, every replica sums its own share so and the
// replicas are added in order; with keep_unsharded every rank does. kLibrary: each reduce-scatter makes a sum of its
// own, as NCCL does, and that is added to the gradient.
// kMicrobatch2, 4, 8: products, too, and sums over tokens are made in that many slices of features (of tokens), whose
// sums are added in pairs, ((0 + 1) + (2 + 3)), whatever mesh.tp: plans of one such order have equal bits for every
// mesh.tp that divides it. Gradients are summed as with kMicrobatch, which has as many slices as mesh.tp.
enum class ReductionOrder : std::uint8_t { kMicrobatch, kLibrary, kMicrobatch2, kMicrobatch4, kMicrobatch8 };
constexpr const char* to_string(ReductionOrder order) {
  return word_at(order, {"microbatch", "library", "microbatch_2", "microbatch_4", "microbatch_8"});
}
std::int64_t slices_of(ReductionOrder order);  // of those that name them; else 1
constexpr bool is_microbatch_order(ReductionOrder order) { return order != ReductionOrder::kLibrary; }

struct Evaluation {
  std::optional<std::int64_t> every;  // steps between evaluations; none: no evaluation
  std::int64_t sequences = 16;        // of the held-back data, over all ranks
  double held_back = 0.05;            // of the data
  bool in_step = false;               // a no_grad forward before each training step (fsdp2)
  bool operator==(const Evaluation&) const = default;
};

enum class Communicators : std::uint8_t {
  kShared,
  kSeparate
};  // reduce-scatter on the all-gather's communicator or not

// Where a model was made before it was sharded, which leaves memory behind in the caching
// allocator. kMeta: its shards are the first of it on the device.
enum class BuiltOn : std::uint8_t { kMeta, kHost, kDevice };
constexpr const char* to_string(BuiltOn place) { return word_at(place, {"meta", "host", "device"}); }

// Whether the host waits for the device once per step (loss.item(), logging).
enum class HostSync : std::uint8_t { kNone, kStep };

// Who computes: a device that the host feeds, or the host itself (CPU ranks), which then issues
// nothing while it computes. Follows from the cluster; not a key of the plan.
enum class HostKind : std::uint8_t { kFeedsDevice, kComputes };

struct Plan {
  std::string model;    // zoo name or path, as the user wrote it
  std::string cluster;  // "64xh100" or a path
  Runtime runtime;
  std::string stack;  // the training code that was told, from whose name more follows; "": none
  Batch batch;
  Mesh mesh;
  TensorParallel tensor_parallel;
  ContextParallel context_parallel;
  ExpertParallel expert_parallel;
  PipelineParallel pipeline;
  StepFrame step_frame = StepFrame::kPlain;
  RankPlacement placement = RankPlacement::kListed;  // ranks on the cluster's nodes
  Units units;
  RangedPolicy<Reshard> reshard_after_forward;  // per unit, in forward order
  Prefetch prefetch;
  RangedPolicy<Recompute> recompute;  // per block
  SelectivePolicy recompute_keeps = SelectivePolicy::kEverySecondMm;
  // What they make of the model: models/layers/variants.h.
  Compile compile = Compile::kNone;
  AttentionKernel attention = AttentionKernel::kFlash;
  ModuleKernels kernels;
  Loss loss;
  Logits logits = Logits::kReleased;
  Reference reference = Reference::kNone;
  // The model computes its loss itself (transformers' forward with labels): before the root's
  // post-forward hook, not behind it.
  bool loss_in_forward = false;
  Float8 float8 = Float8::kNone;
  std::int64_t float8_wide_blocks = 0;  // at the end, in the compute dtype
  // Their weights are gathered in fp8, a byte per element, cast from the shard with scales that
  // follow the optimizer's step: torchao's enable_fsdp_float8_all_gather with
  // precompute_float8_dynamic_scale_for_fsdp (tensorwise, fsdp2). false: in the param dtype.
  bool float8_all_gather = false;
  ExpertKernels experts = ExpertKernels::kGrouped;
  DType param_dtype = DType::kBf16;  // of parameters as they are gathered
  std::optional<DType> autocast;     // products and attention compute in it, not in param_dtype
  DType reduce_dtype = DType::kFp32;
  DType master_dtype = DType::kFp32;     // stored parameters
  std::optional<DType> output_dtype;     // the root's outputs are cast to it
  std::optional<DType> reference_dtype;  // ... a held reference is stored in; none: as the trained
  CheckpointWraps recompute_wraps = CheckpointWraps::kModule;
  // torch.utils.checkpoint.set_checkpoint_early_stop: a recomputation ends when all that backward
  // reads is there. False: the whole module runs again, as before 2.1.
  bool recompute_early_stop = true;
  // torch.utils.checkpoint(use_reentrant=True): the whole block runs again in front of its
  // gradient, which CheckpointFunction.backward computes with a call of its own.
  bool recompute_reentrant = false;
  RangedPolicy<bool> unshard_in_backward{true, {}};  // per unit
  AccumulationMode accumulation = AccumulationMode::kReduceEach;
  AccumulationDetails accumulation_details;
  Frozen frozen;
  Lora lora;  // what it makes of the model: models/layers/lora.h
  Ignored ignored = Ignored::kNone;
  Offload offload = Offload::kNone;
  std::optional<double> gradient_divide_factor;  // none: the number of ranks
  bool force_sum_reduction = false;              // sums with divisions before and after
  std::optional<std::int64_t> named_rank;        // whose memory is told; none: rank 0's, of a pipeline the fullest's
  Optimizer optimizer;
  std::int64_t reduce_scatter_buffers = 1;  // reduce-scatter inputs alive at once
  Communicators communicators = Communicators::kShared;
  Collectives collectives;
  HostSync host_sync = HostSync::kNone;
  ReductionOrder reduction_order = ReductionOrder::kLibrary;
  Evaluation evaluation;
  AllocatorSettings allocator;  // PYTORCH_ALLOC_CONF
  bool empties_cache = false;   // torch.cuda.empty_cache() between forward and backward
  BuiltOn built_on = BuiltOn::kMeta;
  Fsdp1Options fsdp1;
  DdpOptions ddp;
  ZeroOptions zero;
  MegatronOptions megatron;
  std::int64_t seed = 1;  // of the initial parameters and the order of the data
  HostKind host = HostKind::kFeedsDevice;
  int compute_capability = 0;  // of the cluster's GPUs, major; 0: none is known

  // Major version of transformers whose code the model is, as its experts tell; 0: another's code.
  int transformers() const {
    if (experts < ExpertKernels::kTransformers) return 0;
    return experts == ExpertKernels::kTransformers4 ? 4 : 5;
  }
  std::int64_t rank() const { return named_rank.value_or(0); }
  DType compute_dtype() const { return autocast.value_or(param_dtype); }
  // scaled_dot_product_attention may pick it on the cluster's GPUs.
  bool has_flash() const { return compute_capability == 0 || compute_capability >= 8; }
  bool operator==(const Plan&) const = default;
};

// The plan with at most so many micro-batches, as one that tells of it.
Plan shortened(Plan plan, std::int64_t most);

// What the plan cannot be, in the words of the user's keys. Throws ConfigError (exit 3: the values
// contradict each other) or Error(kMissingCapability) (exit 6: the runtime cannot express it; the
// message names the nearest plan that it can).
void check(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

}
