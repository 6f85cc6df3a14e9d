// What is computed: an ordered list of layers, each with its parameters and its operations.
//
// A ModelSpec knows neither batch nor sharding. Sizes are element counts per token, per sequence position or fixed; a
// micro-batch of B sequences of S positions has T = B*S tokens, so a tensor holds per_token*T + per_position*S + fixed
// elements. Identical layers share one LayerSpec ("kind"); `order` names the kind of every layer of the step.
//
// A layer may run on another sequence than the plan's (Domain): the patches of an image. The layers are a chain, each
// reading the one before it, with one exception: an embedding in the middle reads a part of the batch instead and
// begins a chain of its own. The output of the layer before it waits until a later layer takes it as its second input
// (LayerSpec::joins): a vision tower's features join the words, two towers meet in their loss. Chains nest.
//
// A layer is written as the list of operations that the forward executes, in order. Which tensors live until backward
// is not decided here by formula: every operation names what its gradient needs (`saved`), and
// sim/graph/layers/layer_program.h derives allocations, frees and the backward pass from that, as autograd does.
//
// Sources: operation order and saved tensors of a Llama block as recorded from PyTorch 2.11 (tests/recordings); FLOPs
// are 2*m*n*k for a matrix product and 2*B*h*S^2*(head_dim + value_dim) for full attention, half of it when causal.
// Invariant: the number of parameters equals the published count (tests/models/zoo_test.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"
#include "sim/spec/mesh.h"

namespace foreshard {

// The number of a tensor, or of a parameter, of a layer.
using Index = std::int16_t;
using Indices = std::vector<Index>;

// Element type of a tensor inside a layer. kCompute is the plan's parameter dtype.
enum class ElementType : std::uint8_t { kCompute, kFp32, kBf16, kInt64, kByte };

struct TensorSpec {
  std::string name;
  std::int64_t per_token = 0;     // elements per token
  std::int64_t per_position = 0;  // elements per sequence position, whatever the batch (rotary tables)
  std::int64_t fixed = 0;         // elements
  ElementType type = ElementType::kCompute;
  std::int64_t per_sequence = 0;  // elements per sequence
  // Elements per image of a sample, of a layer whose sequences are samples: what a tower hands to
  // the text. with_images makes per_sequence of it.
  std::int64_t per_image = 0;
  bool in_registers = false;  // between operations of one kernel (Operation::region): no buffer
  bool held = false;          // beyond its layer, by who made it: its name does not end
  std::int64_t split = 1;     // ranks that hold a part of it each: elements are divided by it
  bool by_pairs = false;      // per_token and per_position are once more per position (scores)
  bool by_samples = false;    // per_token and per_sequence are once more per sample (contrasts)
  bool operator==(const TensorSpec&) const = default;
};

struct ParameterSpec {
  std::string name;                 // within the layer, e.g. "self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // dim 0 is the sharded one
  // The embedding's weight, used again by a tied head: its gradient arises here too, but it is counted, gathered and
  // reduced in the embedding's layer (LayerSpec::numel and ModelSpec::parameters leave it out).
  bool tied = false;
  // A tied table that the first and the last stage of a pipeline have each (part_of_pipeline).
  bool in_two_stages = false;
  // Normalisation weights, which some plans leave to plain replication (`ignored: norms`).
  bool is_norm = false;
  // false: frozen whatever the plan says (the base under adapters): no gradient, no optimizer state.
  bool trainable = true;
  // Not trainable, for what reads it leads to no loss; requires_grad, so that DDP's buckets have it.
  bool unused = false;
  // Stored in the compute dtype, not in the plan's master dtype: no cast precedes its gather.
  bool stored_as_computed = false;
  bool gathered_in_fp8 = false;  // Plan::float8_all_gather
  std::int64_t unpacked = 0;     // elements that packed blocks stand for; 0: not packed
  // 0: of the layer's own unit; k > 0: of LayerSpec::nested[k - 1] where the plan makes that a unit.
  std::int8_t part = 0;
  // On the ranks of mesh.tp: each has all of it (replicated), and a part of the sum that its
  // gradient is; backward makes the gradient of so many elements, of which the rank keeps its own
  // (0: of its own alone); and it is one of the experts', sharded over efsdp.
  bool replicated = false;
  bool partial = false;
  std::int64_t gradient_numel = 0;
  bool is_expert = false;
  std::int64_t numel() const;  // of the shape, tied or not
  std::int64_t count() const { return unpacked > 0 ? unpacked : numel(); }
  bool operator==(const ParameterSpec&) const = default;
};

// What a kernel of the operation is limited by, and with which curve it is priced.
enum class OperationKind : std::uint8_t {
  kGemm,         // [T, k] x [k, n]; weight is a parameter, of 3 dimensions if each expert has one
  kAttention,    // fused scaled dot product attention, forward or backward
  kNorm,         // fused RMSNorm / LayerNorm
  kElementwise,  // one read/write pass: casts, residual adds, activations, rotary products
  kEmbedding,    // gather of rows; backward is a dense scatter-add
  kSoftmaxLoss,  // log-softmax or negative log likelihood over the vocabulary
  kScan,         // a recurrence by chunks, one function for autograd (Function says which)
};

// Which arithmetic it is: what the engine executes, and what a measured curve is about. The later
// ones occur only as kernels, not as operations of a layer.
enum class Function : std::uint8_t {
  kMatrixProduct,
  kAttention,
  kRmsNorm,
  kLayerNorm,
  kAdd,
  kCast,
  kRotary,
  kSilu,
  kMultiply,
  kSiluMultiply,  // silu(a) * b in one pass
  kGelu,
  kRelu,
  kEmbedding,
  kArange,
  kLogSoftmax,
  kNegativeLogLikelihood,
  kCrossEntropy,  // loss and, in place of the logits, their gradient
  kColumnSum,     // gradient of a bias
  kCopy,
  kAdamW,
  kSgd,
  kSumOfSquares,
  kScale,
  kSoftmax,
  kSigmoid,
  kTanh,
  kDropout,
  kTopK,
  kSort,
  kGather,      // rows by index; its gradient is a scatter-add
  kScatterAdd,  // rows added at indices; its gradient is a gather
  kDequantize,  // packed 4-bit blocks to the compute dtype
  kScan,        // what Mamba-2's mixer does between its projections
  kConvolve,    // each channel along the positions, causal
  kDeltaRule,   // linear attention whose state is corrected by what it predicts of each value
};
inline constexpr std::size_t kFunctions = 35;
constexpr const char* to_string(Function function) {
  return word_at(function, "matrix_product", "attention", "rms_norm", "layer_norm", "add", "cast", "rotary", "silu",
      "multiply", "silu_multiply", "gelu", "relu", "embedding", "arange", "log_softmax", "negative_log_likelihood",
      "cross_entropy", "column_sum", "copy", "adamw", "sgd", "sum_of_squares", "scale", "softmax", "sigmoid", "tanh",
      "dropout", "top_k", "sort", "gather", "scatter_add", "dequantize", "scan", "convolve", "delta_rule");
}

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool causal = true;
  std::int64_t value_dim = 0;  // of each head's values; 0: head_dim
  std::int64_t documents = 1;  // packed into a sequence, equally long; none attends to another
  bool dropout = false;        // of the probabilities
  bool softcap = false;        // scores are capped: cap * tanh(score / cap)
  bool masked = false;         // a tensor of pairs is added to the scores
  bool broadcasts = false;     // fewer kv_heads are broadcast to the heads, not given as groups of them
  std::int64_t window = 0;     // > 0: of positions that each attends to, where a sequence is longer
  // Context parallel: times as many positions as the layer's own, of queries, of keys and values.
  std::int64_t query_ranks = 1, key_ranks = 1;
  std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  bool operator==(const AttentionShape&) const = default;
};

// Mamba-2's mixer (arXiv 2405.21060): heads share B and C by groups, a state of [head_dim, state]
// of each head is handed from chunk to chunk. The delta rule's (arXiv 2412.06464): heads of values,
// the width of a value, of a key, heads of keys.
struct ScanShape {
  std::int64_t heads = 0;  // 0: no such operation
  std::int64_t head_dim = 0;
  std::int64_t state = 0;
  std::int64_t groups = 1;
  std::int64_t chunk = 256;  // positions
  std::int64_t inner() const { return checked_multiply(heads, head_dim); }
  std::int64_t shared() const { return checked_multiply(groups, state); }  // width of B, of C
  std::int64_t convolved() const { return checked_add(inner(), checked_multiply(2, shared())); }
  bool operator==(const ScanShape&) const = default;
};

// How the gradient of an input comes about.
enum class GradientRule : std::uint8_t {
  kOwn,         // backward allocates a gradient for every differentiable input
  kAlias,       // the output's gradient *is* the input's gradient (residual add)
  kAliasFirst,  // ... the first input's; the others get their own (scatter-add)
  kNone,        // no input needs a gradient (token ids)
};

// A linear layer whose products run in fp8, by how it scales its operands: with one factor per
// tensor or per row (torchao.float8; rowwise_gw_hp: the weight's gradient in the compute dtype), or
// with factors of earlier steps, of this one, or of every 32 elements (TransformerEngine's delayed
// and current scaling, and MXFP8), in four bits with those of every 16 (NVFP4).
enum class Float8 : std::uint8_t {
  kNone,
  kTensorwise,
  kRowwise,
  kRowwiseGwHp,
  kDelayed,
  kCurrent,
  kMxfp8,
  kNvfp4,
};
constexpr const char* to_string(Float8 recipe) {
  return word_at(recipe, {"none", "tensorwise", "rowwise", "rowwise_gw_hp", "delayed", "current", "mxfp8", "nvfp4"});
}
// Of elements cast by it: a byte each, and one for the scale of 32; or four bits and half of one.
constexpr std::int64_t narrow_bytes(Float8 recipe, std::int64_t elements) {
  if (recipe == Float8::kNvfp4) return elements * 9 / 16;
  return recipe == Float8::kMxfp8 ? elements * 33 / 32 : elements;
}
constexpr bool has_block_scales(Float8 recipe) { return recipe == Float8::kMxfp8 || recipe == Float8::kNvfp4; }

enum class CollectiveKind : std::uint8_t { kNone, kAllGather, kReduceScatter, kAllReduce, kAllToAll };

// A collective inside a layer. It runs on its communicator's own stream, behind what was computed
// before; compute waits for it where its result is first read, or at once.
struct LayerCollective {
  CollectiveKind kind = CollectiveKind::kNone;
  MeshDim dim = MeshDim::kTp;
  // Copies around those along another dimension than a tensor's first: chunks are put together
  // before a reduce-scatter, and behind an all-gather (a view where there is one sequence).
  bool packs = false;
  bool unpacks = false;
  bool reorders = false;  // copied behind even then: another one than the second
  bool waits = false;     // at once
  bool maximum = false;   // all-reduce: of the greatest value, not of the sum
  // All-to-all: round a ring, all of it to one neighbour.
  bool to_neighbour = false;
  // All-to-all of rows: how many of one token, of which each rank and each node gets one; 1: all of them travel.
  std::int64_t copies = 1;
  bool beside = false;      // of Operation::gathers and reduces: its overlap is written as it is
  bool in_fp8 = false;      // what a product reads was cast before it travels
  bool finds_amax = false;  // by the greatest value of all ranks' parts: 4 bytes all-reduced first
  bool operator==(const LayerCollective&) const = default;
};

// Attention over the ranks of mesh.cp: keys and values of every rank come round.
struct RingAttention {
  std::int64_t ranks = 1;
  std::int64_t rank = 0;
  bool exchanges = false;  // from neighbour to neighbour; else all are gathered at once
  bool balanced = true;    // each rank has a chunk from the front and one from the back
  // Gradients of keys and values go round in the compute dtype (TransformerEngine), not in fp32.
  bool narrow = false;
  // Steps in which the rank computes (of the others only the exchange is left) with a part of its
  // queries; balanced causal steps all cost the same.
  bool computes(std::int64_t step) const { return balanced || step <= rank; }
  bool halves(std::int64_t step) const { return balanced && step > rank; }
  bool operator==(const RingAttention&) const = default;
};

// A product beside those of an operation's own kernel, one for each of `steps` behind the other, of
// `rows` in all; without n: passes over so many bytes. Both are tensors of bytes that nobody holds.
struct SideProduct {
  std::int64_t n = 0, k = 0;
  Index rows = 0, steps = 0;
  bool backward = false;
  bool operator==(const SideProduct&) const = default;
};

// One operation of the forward pass. Tensor and parameter numbers index the layer's tables.
struct Operation {
  std::string name;
  OperationKind kind = OperationKind::kElementwise;
  Function function = Function::kAdd;
  Indices inputs;      // activations read; gradients flow to them in reverse order of this list
  Indices outputs;     // activations written; the first one carries the gradient
  Indices saved;       // kept for backward
  Indices parameters;  // weights read; each receives a gradient, allocated before the input's
  Indices released;    // dropped once this operation was issued (Python's references end here)
  // Allocated in backward just before the last input's gradient and freed right after it; one extra
  // kernel reads and writes them once (the cloned conjugate of a rotary table; dq, dk, dv before
  // they are concatenated for a fused projection; the zeros that an index's gradient is put into).
  Indices backward_temporaries;
  // What the kernels need for themselves: allocated behind the outputs (backward: behind the
  // inputs' gradients) and freed with the operation. Its time is the kernels'.
  Indices forward_workspace, backward_workspace;
  std::vector<SideProduct> products;
  std::int64_t n = 0, k = 0;      // GEMM: output and inner width; m is the number of tokens
  std::int64_t rows = 1;          // GEMM: times as many rows (a token goes to several experts)
  std::int64_t split = 1;         // GEMM: of as many ranks, each multiplies its part of the rows
  std::int64_t groups = 1;        // GEMM: so many weights share the rows evenly, in one kernel
  bool one_by_one = false;        // a kernel for each group instead of one for all
  Float8 fp8 = Float8::kNone;     // GEMM
  bool fp8_weight = false;        // GEMM: the weight arrives in fp8
  bool shares_fp8_input = false;  // GEMM: an earlier one has quantised the same input
  bool amax_in_producer = false;  // GEMM: what makes the input finds its greatest value too
  // GEMM: of so many ranks each casts its part to fp8, before all is gathered.
  std::int64_t fp8_inputs = 1, fp8_gradients = 1;
  // >= 0: one kernel runs this and the other operations of that number, forward and backward.
  std::int16_t region = -1;
  bool pads = false;          // GEMM: widths that are no multiple of 16 bytes are padded to one
  bool packed = false;        // GEMM: parameter 0 holds 4-bit blocks, written out before each product
  bool casts_weight = false;  // GEMM: its parameters are cast from fp32 first (the last output)
  // The host waits for the outputs' values before it issues anything more (rows per expert).
  bool host_reads = false;
  bool host_copies = false;  // the outputs' values go there, and nobody waits yet
  // The outputs are views of the first input. The gradients of several are concatenated; that of
  // one that is wider than the input (expanded) is summed.
  bool view = false;
  // Outer product with one value per row: the last input's gradient is first made in the width of
  // the output and then summed.
  bool sums_last = false;
  // GEMM of Megatron-Core's ColumnParallelLinear: the first input is gathered before the product
  // and nothing of that kept, so that it is gathered again beside the product that makes the
  // input's gradient; that one is reduced beside the product that makes the weight's. Attention of
  // Megatron-Core's cp by all-gather: keys and values are gathered again in backward.
  LayerCollective gathers, reduces;
  // What moves the first input to make the first output, and the output's gradient to make the
  // input's; without a kind the one is a view of the other.
  LayerCollective collective, collective_backward;
  RingAttention ring;
  AttentionShape attention;
  ScanShape scan;  // kScan, and the norm by groups behind it
  GradientRule gradient = GradientRule::kOwn;
  // The first output takes the first input's buffer, and that input's gradient the buffer of the
  // output's gradient (of the input itself for a loss). Nothing else may read the input.
  bool in_place = false;
  bool makes_all = false;          // gradients of inputs and weights, whichever are asked for
  bool eager_norm = false;         // one of the several kernels of a norm that is not fused
  bool transposed_weight = false;  // GEMM: parameter 0 is stored [k, n] instead of [n, k]
  bool continues_node = false;     // autograd's, of the collective in front of it
  bool kept_by_selective = false;  // output survives the forward under selective recompute
  std::int8_t part = 0;            // module it belongs to, as ParameterSpec::part
  bool is_collective() const {
    return collective.kind != CollectiveKind::kNone || collective_backward.kind != CollectiveKind::kNone;
  }
  bool operator==(const Operation&) const = default;
};

// kEmbedding reads a part of the batch (token ids, pixels) and so begins a chain. kInner is any
// other layer between: a projector, what joins two chains. Its parameters belong to the root.
enum class LayerRole : std::uint8_t { kEmbedding, kBlock, kFinalNorm, kHead, kLoss, kInner };

// Which sequences a layer runs on, of a micro-batch of samples of the plan's sequence.
struct Domain {
  std::int64_t positions = 0;  // of each sequence; 0: the plan's
  bool of_images = false;      // a sequence for each image of a sample, not for each sample
  std::int64_t images = 1;     // of a sample (with_images)
  // Sequences of `samples` samples, and positions of each where the plan's sequence is `sequence`.
  std::int64_t sequences(std::int64_t samples) const { return of_images ? checked_multiply(samples, images) : samples; }
  std::int64_t length(std::int64_t sequence) const { return positions > 0 ? positions : sequence; }
  bool operator==(const Domain&) const = default;
};

// Tensor 0 of every layer is its input, the previous layer's output (of an embedding: its part of
// the batch); `output` is this layer's result.
struct LayerSpec {
  std::string name;  // kind of layer: "llama block"
  LayerRole role = LayerRole::kBlock;
  std::vector<TensorSpec> tensors;
  std::vector<ParameterSpec> parameters;
  std::vector<Operation> operations;
  std::int16_t output = 0;
  std::vector<std::string> nested;  // modules inside that may be units: "feed_forward.experts"
  Domain domain;
  // >= 0: the tensor that is the output of the layer before the chain that ends here.
  std::int16_t joins = -1;
  bool tower = false;  // of the vision tower, which a plan may freeze
  bool wide = false;   // its products stay in the compute dtype (float8_wide_blocks)
  // Executed, but no result of it is read: it hands its input on (a copy of what is read of it),
  // and its parameters receive no gradient.
  bool unread = false;
  std::int64_t resident_bytes = 0;  // of buffers that every rank holds whole (scales of blocks)
  std::int64_t numel() const;       // own parameters: a tied head's weight is the embedding's
  bool has_trainable() const;       // some parameter may be trained
  bool operator==(const LayerSpec&) const = default;
};

struct LayerInstance {
  std::int32_t kind = 0;  // index into ModelSpec::kinds
  std::string name;       // "layers.17"
  // >= 0: runs the weights of that earlier layer of `order` once more (a module called twice).
  std::int32_t same_as = -1;
  // Of a rank's part of a pipeline (sim/graph/pipeline/stages.h): a stage begins here, and so many
  // blocks in front of it are other ranks'.
  bool begins_stage = false;
  std::int32_t blocks_before = 0;
  bool operator==(const LayerInstance&) const = default;
};

// Constants of the arithmetic: nothing of cost or memory follows from them.
// How rotary frequencies are rescaled for contexts longer than those of the first training, as
// Hugging Face's rope_scaling says (transformers:src/transformers/modeling_rope_utils.py).
struct RopeScaling {
  enum class Kind : std::uint8_t {
    kNone,
    kLinear,  // every frequency divided by factor
    kLlama3,  // long wavelengths are, short ones are not, between them both in part
    kOther,   // dynamic, yarn, longrope, ...: known to be there, not computed
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // kLlama3
  std::int64_t original_positions = 8192;                      // kLlama3
  bool operator==(const RopeScaling&) const = default;
};

struct Numerics {
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool gelu_tanh = true;  // the tanh approximation; false: erf
  bool gelu_new = false;  // ... written as operations (transformers' NewGELUActivation)
  bool alibi = false;     // attention scores carry a linear bias of position
  bool operator==(const Numerics&) const = default;
};

struct ModelSpec {
  std::string name;
  std::string family;  // "llama", "gpt2", "mpt"
  std::string source;  // where the dimensions come from
  std::vector<LayerSpec> kinds;
  std::vector<LayerInstance> order;  // embedding, blocks, final norm, head, loss
  // "model.layers": block 17's parameter "mlp.up_proj.weight" is Hugging Face's block_prefix +
  // ".17.mlp.up_proj.weight". Parameters of the other layers carry their whole name.
  std::string block_prefix;
  std::int64_t buffer_elements = 0;  // of buffers that are no parameters, in the compute dtype
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  Numerics numerics;
  bool tied_embeddings = false;     // the head's weight is the embedding's: counted, gathered and reduced once
  bool head_first = false;          // the head is defined before all else: order of named_parameters()
  std::int64_t fixed_sequence = 0;  // > 0: no other sequence can be run (patches of an image)
  // > 0: samples come with batch.images images each, of which each takes so many positions of the sequence.
  std::int64_t image_tokens = 0;
  // Of the layers in one step (two views of a sample): they stand for all of them, and their tensors are those of all.
  std::int64_t calls = 1;

  std::int64_t parameters() const;            // tied weights once
  std::int64_t block_count() const;           // layers with role kBlock
  std::int64_t trainable_parameters() const;  // of them, those that may be trained
  // Without the experts that a token does not go to (Operation::rows of Operation::groups).
  std::int64_t active_parameters() const;
  // FLOPs of forward plus backward of one sequence of `sequence` tokens without recompute: the
  // matrix products and the attention of every layer (backward counts twice the products and 2.5
  // times the attention is NOT used here: MFU takes 2 x forward for both, the convention of the
  // PaLM paper, appendix B). A product whose weights are not trainable counts once in backward.
  Flops training_flops_per_sequence(std::int64_t sequence) const;
  bool operator==(const ModelSpec&) const = default;
};

// FLOPs of one operation's forward over `batch` sequences of `sequence` tokens: only matrix
// products and attention count.
Flops forward_flops(const Operation& operation, std::int64_t batch, std::int64_t sequence);

// `batch` sequences of `sequence` positions: of the layer's domain.
std::int64_t elements(const TensorSpec& tensor, std::int64_t batch, std::int64_t sequence);

// Samples of `images` >= 1 images each. Unchanged where the model's samples have no images.
ModelSpec with_images(ModelSpec model, std::int64_t images);

// The layer whose output waits for `layer` (LayerSpec::joins) is the one before the returned
// embedding; -1: `layer` joins nothing.
std::int32_t chain_joined_at(const ModelSpec& model, std::int32_t layer);

// Bytes of what `batch` samples of `sequence` positions consist of (inputs of all embeddings), and
// of their labels, an integer for each position of the loss.
std::int64_t input_bytes(const ModelSpec& model, std::int64_t batch, std::int64_t sequence);
std::int64_t label_bytes(const ModelSpec& model, std::int64_t batch, std::int64_t sequence);

}
