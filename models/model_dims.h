// The dimensions that tell one transformer from another, and the one function that turns them into a ModelSpec.
//
// Every family (Llama, Mixtral, DeepSeek, GPT-2, Falcon, BERT, ...) is a point in this space: there is no builder per
// family, so a Hugging Face config.json and a line of the zoo end in the same place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Whose parameter names the model carries (those of the Hugging Face implementation): a row of
// parameter_names.txt. Those that code asks for have a name here.
enum class Naming : std::uint8_t {
  kLlama,
  kGpt2,
  kOpt,
  kBloom,
  kMixtral,
  kNeoX,
  kFalcon,
  kBert,
  kRoberta,
  kGptOss,
  kData2VecText,
  kNemotronH,
  kXlmRobertaXl,
  kRobertaPreLayerNorm,
  kDebertaV2
};

// RoBERTa's, whose positions begin behind that of padding.
constexpr bool starts_behind_padding(Naming naming) {
  return naming == Naming::kRoberta || naming == Naming::kData2VecText || naming == Naming::kXlmRobertaXl ||
         naming == Naming::kRobertaPreLayerNorm;
}

enum class NormKind : std::uint8_t {
  kRms,               // weight; keeps 1/rms in fp32
  kLayer,             // weight and bias; keeps mean and 1/std in fp32
  kLayerWithoutBias,  // weight; keeps mean and 1/std in fp32
  kLayerUnweighted,   // no parameters; keeps mean and 1/std in fp32 (OLMo 1)
  kRmsUnweighted      // no parameters; keeps 1/rms in fp32 (nanochat)
};

enum class Activation : std::uint8_t {
  kSwiGlu,  // silu(gate) * up: three matrices
  kGeGlu,   // gelu(gate) * up: three matrices
  kGelu,    // two matrices; the input of gelu is kept
  kRelu,    // two matrices; the output of relu is kept
  kRelu2,   // ... and its square
  kXielu,   // two matrices; an operation each, with two numbers that are trained (Apertus)
  kReGlu2   // relu(gate)^2 * up: three matrices (BitNet)
};

// How positions enter the model. A learned table adds `position_rows` rows of parameters. ALiBi is a bias that the
// attention kernel computes itself, as flash attention's alibi_slopes do: it costs neither memory nor a kernel.
// Sinusoids are a table in fp32 that nobody trains: what they are added to becomes fp32.
enum class Positions : std::uint8_t { kRotary, kLearned, kAlibi, kNone, kSinusoidal };

// Whose kernels execute the model: PyTorch's eager modules, or the engine of exec/.
enum class Stack : std::uint8_t { kEager, kNative };
inline Stack stack_of(RuntimeKind runtime) { return runtime == RuntimeKind::kNative ? Stack::kNative : Stack::kEager; }

// How the branches of a block meet the residual stream.
enum class Residual : std::uint8_t {
  kPreNorm,           // x += attention(norm(x)); x += mlp(norm(x))
  kSandwich,          // a norm behind each branch too (Gemma 2)
  kPostBranch,        // x += norm(attention(x)); x += norm(mlp(x)) (OLMo 2)
  kPostNorm,          // x = norm(x + attention(x)); x = norm(x + mlp(x)) (BERT)
  kParallel,          // x + attention(norm(x)) + mlp(norm'(x)) (GPT-NeoX)
  kParallelOfOneNorm  // x + attention(norm(x)) + mlp(norm(x)) (Falcon-7B)
};

// What is normed of q and k before they meet: nothing; each head (Qwen3); all heads as one vector
// (OLMo 2); each head by a norm without weights (Llama 4).
enum class HeadNorm : std::uint8_t { kNone, kEach, kWhole, kUnweighted };

// A mixture of experts in place of the feed-forward layer: a router sends every token to `top_k` of
// `experts` gated networks of width `ffn`, and perhaps all tokens through a shared one. Assumed:
// balanced routing, tokens * top_k / experts rows for each.
struct Experts {
  std::int64_t experts = 0;  // 0: the model is dense
  std::int64_t top_k = 0;
  std::int64_t ffn = 0;                         // of one expert
  std::int64_t shared_ffn = 0;                  // of all shared experts together; 0: none
  bool shared_gate = false;                     // the shared expert is weighed by a sigmoid (Qwen2-MoE)
  bool sigmoid = false;                         // scores: sigmoid instead of softmax (DeepSeek-V3)
  bool normalized = false;                      // the chosen scores are divided by their sum
  bool scaled = false;                          // ... and multiplied by a factor
  bool corrected = false;                       // chosen by score plus a bias that balances the load
  bool bias = false;                            // in the router and in every expert (gpt-oss)
  bool score_first = false;                     // rows are weighed before the experts, not behind them
  bool fused_gate_up = false;                   // one tensor of gate and up for all experts (gpt-oss, Llama 4)
  std::int64_t latent = 0;                      // > 0: experts read and make a projection of this width (Nemotron 3)
  std::vector<std::int64_t> dense_layers = {};  // ascending; their width is ModelDims::ffn
  bool operator==(const Experts&) const = default;
};

// What attention's output is multiplied by: nothing, sigmoid(Wx) of each element (AFMoE), or
// softplus(Wx) in fp32, of each head or element (Laguna).
enum class OutputGate : std::uint8_t { kNone, kSigmoid, kSoftplus };

// What some blocks have beside Llama's. The engine has a kernel for none of it.
struct BlockParts {
  OutputGate gate = OutputGate::kNone;
  bool gate_beside_queries = false;  // a part of what makes them (Qwen3-Next)
  bool gate_of_heads = false;        // one number for each head
  bool attention_norm = false;       // of what attention's output projection reads (BitNet)
  bool ffn_norm = false;             // of what the feed-forward layer's second product reads (BitNet)
  bool mixture_norm = false;         // behind the experts (A.X-K1)
  bool experts_beside = false;       // ... stand beside a feed-forward layer, with norms of their own
  bool value_norm = false;           // of each head of v, without weights (Gemma 4)
  bool layer_scale = false;          // a block's output times a buffer's number (Gemma 4)
  bool plain_head = false;           // an encoder's head multiplies what its last norm makes (EuroBERT)
  bool causal = false;               // an encoder's attention (BertLMHeadModel with is_decoder)
  bool transforms = false;           // a product and a norm in front of the head, as encoders have
  bool every_bias = false;           // every block has a table of positions of its own (umT5)
  bool fixed_positions = false;      // nobody trains the tables of positions (Pegasus)
  bool branch_weights = false;       // both branches times a vector that is trained (DINOv2)
  // Each layer's own part of a second embedding of the tokens, so wide, of a table of so many rows
  // (Gemma 4 E2B); 0: none.
  std::int64_t layer_input = 0, layer_input_rows = 0;
  // The last layers, which take keys and values of earlier ones, and how many times as wide their
  // feed-forward layers are.
  std::int64_t shared_layers = 0, shared_ffn_factor = 1;
  bool shares_keys = false;  // ... of one of them
  // Scores have those of queries and rows of distances, of keys and rows, or both, by projections
  // of their own or those of keys and queries (DeBERTa); 0 rows: none.
  std::int64_t distances = 0;
  bool distance_keys = false, distance_queries = false, distance_products = false, distance_norm = false;
  // Of layers that attend to all, where the others attend within a window (Gemma 4); 0: as those.
  std::int64_t full_head_dim = 0, full_kv_heads = 0;
  bool keys_are_values = false;          // ... which project keys alone, and take them as values
  std::int64_t windowed_rotary_dim = 0;  // of layers within a window; 0: as the others (Laguna)
  // Latent attention to the best positions by scores of these heads, which nothing learns
  // (DeepSeek-V3.2); 0: to all. (How many are best costs nothing: a mask has every pair.)
  std::int64_t index_heads = 0, index_dim = 0;
  bool operator==(const BlockParts&) const = default;
};

// Mamba-2's mixer, in the layers that ModelDims::pattern says.
struct Mamba {
  ScanShape scan;
  std::int64_t convolution = 4;  // positions that each channel is convolved over
  bool bias = false;             // of its two projections
  bool operator==(const Mamba&) const = default;
};

// Linear attention by the gated delta rule, in the layers that ModelDims::pattern says.
struct DeltaRule {
  // Which products make what it reads: queries, keys, values and the gate of its result in one,
  // by heads of keys, beside one of both gates of the rule (Qwen3-Next); queries, keys and values
  // in one (Qwen3.5); each by itself (OLMo hybrid), both gates by two products around a narrow
  // width, the rule's for each channel of a key (Kimi Linear).
  enum class Projections : std::uint8_t { kByHead, kByUse, kApart, kLowRank };
  ScanShape scan;
  std::int64_t convolution = 4;  // positions that each channel is convolved over
  Projections projections = Projections::kByUse;
  bool doubled = false;   // how much is corrected is between 0 and 2
  bool pre_norm = false;  // its blocks have norms before their branches, whatever others have
  bool operator==(const DeltaRule&) const = default;
};

// LFM2's mixer, in the layers that ModelDims::pattern says.
struct ShortConvolution {
  std::int64_t positions = 3;
  bool bias = false;  // of it and of its two projections
  bool operator==(const ShortConvolution&) const = default;
};

// What a head of scores is for: whole sequences, each token, where an answer begins and ends, or
// each token beside logits that nobody reads (TRL's value head).
enum class ScoreOf : std::uint8_t { kSequence, kToken, kSpan, kValue };

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1): queries and keys/values come from low-rank
// latents; a part of each head is rotated, for keys one part shared by all heads.
struct Latent {
  std::int64_t q_rank = 0;   // 0: queries come from the hidden state
  std::int64_t kv_rank = 0;  // 0: the attention is an ordinary one
  std::int64_t nope = 0;     // of each head of q and k, not rotated
  std::int64_t rope = 0;     // rotated
  std::int64_t value = 0;    // of each head's values
  bool operator==(const Latent&) const = default;
};

struct ModelDims {
  std::string name;
  std::string family;  // Hugging Face's model_type: "llama", "qwen2", "gpt2", ...
  std::string source;  // where the numbers come from

  std::int64_t layers = 0;
  // Blocks of multi-token prediction behind them (num_nextn_predict_layers), each with logits and a loss of its own.
  std::int64_t prediction_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // heads * head_dim may differ from hidden (Qwen3)
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;
  // Of the table's rows and of what the head reads, where projections stand between them and the
  // blocks (opt-350m); 0: `hidden`, without projections.
  std::int64_t embedding_width = 0;
  // Of what an encoder's head reads, where it is neither (RemBERT); 0: as wide as a row of the table.
  std::int64_t output_width = 0;
  bool final_norm = true;          // a norm behind the last block
  std::int64_t max_positions = 0;  // longest sequence
  std::int64_t position_rows = 0;  // of the learned table (OPT: two more than positions); 0 without one

  Naming naming = Naming::kLlama;
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSwiGlu;
  Positions positions = Positions::kRotary;
  bool tied = false;
  bool fused_qkv = false;
  bool regroups_heads = false;  // ... whose parts lie in groups: heads are copied (CodeGen)
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  HeadNorm qk_norm = HeadNorm::kNone;
  NormKind head_norm = NormKind::kRms;  // the kind of qk_norm
  bool embedding_norm = false;          // a norm right after the embedding (BLOOM)
  bool conv1d = false;                  // weights of the blocks are stored [in, out] (Hugging Face's GPT-2)
  bool fused_gate_up = false;           // one matrix makes gate and up (Phi-3)
  bool embedding_scale = false;         // embeddings times a constant (Gemma: sqrt(hidden))
  bool logit_softcap = false;           // tanh(logits / cap) * cap (Gemma 2)
  bool branch_scale = false;            // both branches of a block times a constant (Granite)
  bool logit_scale = false;             // logits times a constant (Granite, Cohere)
  bool head_bias = false;               // of the language model's head (GPT-J, Phi-2)
  std::int64_t scores = 0;              // > 0: a head of so many beside none of words (rewards)
  ScoreOf score_of = ScoreOf::kSequence;
  bool score_dropout = false;          // of what a head of scores reads
  bool transform_bias = true;          // of the product in front of an encoder's head
  bool wide_loss = false;              // an encoder's loss reads an fp32 copy of its logits, too
  bool drops_attention_alone = false;  // dropout behind a block's attention, not its other branch
  // > 0: so many blocks, each of which is a run of layers (ALBERT's groups).
  std::int64_t block_groups = 0;
  bool buffered_bias = false;                      // an fp32 buffer is added to the logits (BART)
  bool plain_first = false;                        // no norm in front of the first block's attention (ModernBERT)
  bool head_first = false;                         // the head is defined before the model (XLM-RoBERTa)
  bool sinks = false;                              // a learned logit for each head beside its scores (gpt-oss)
  bool bidirectional = false;                      // an encoder: masked-language-model head, no causal mask
  bool dropout = false;                            // of branches, as BERT is trained
  bool drops_mlp_alone = false;                    // ... but not of attention's (DistilBERT, Persimmon)
  bool embedding_dropout = false;                  // of what the embedding layer makes
  bool attention_dropout = false;                  // of attention's probabilities
  bool attention_softcap = false;                  // scores are capped (Gemma 2)
  bool broadcast_kv = false;                       // one key head is broadcast to all (Falcon)
  std::int64_t window = 0;                         // > 0: positions that each attends to, in these layers:
  std::vector<std::int64_t> windowed_layers = {};  // ascending; empty: all
  // > 0: so many blocks of an encoder in front, whose result every block reads (T5), and rows of
  // the tables of relative positions that the first block of each stack has.
  std::int64_t encoder_layers = 0;
  std::int64_t position_buckets = 0;
  bool ffn_dropout = false;   // of what the feed-forward layer's second product reads
  bool output_scale = false;  // what the head reads is scaled (T5: hidden^-0.5)
  Residual residual = Residual::kPreNorm;
  std::int64_t rotary_dim = 0;   // rotated part of each head; 0: all of it
  std::int64_t token_types = 0;  // rows of the table of segments (BERT); 0: none
  // Ascending; their attention has no positions, whatever `positions` says (SmolLM3, Llama 4).
  std::vector<std::int64_t> unrotated_layers = {};
  // A letter for each layer, where they are of several kinds (Megatron-Core's hybrid layer pattern,
  // transformers' layers_block_type): M a Mamba-2 mixer alone, * attention, - the feed-forward
  // layer, E experts; m, d, c and a: a mixer, linear attention by the delta rule, LFM2's mixer or
  // attention with a feed-forward layer (or experts) behind it.
  std::string pattern;
  std::string prediction_pattern = {};  // of each block of multi-token prediction, then
  Mamba mamba;
  DeltaRule delta;
  ShortConvolution convolution;
  Experts moe;
  Latent latent;
  BlockParts parts;
  Numerics numerics;

  bool operator==(const ModelDims&) const = default;
};

// Whether block `layer` routes to experts.
bool has_experts(const ModelDims& dims, std::int64_t layer);

// Throws Error(kMissingCapability) where the engine's stack has no kernel for what the model does;
// Error(kInvalidInput), naming the model and the size, where a size is not positive,
// kv_heads does not divide heads, a token goes to more experts than there are, or the number of
// parameters overflows 64 bits.
ModelSpec build_model(const ModelDims& dims, Stack stack = Stack::kEager);

}
