// The dimensions that tell one dense decoder from another, and the one function that turns them
// into a ModelSpec.
//
// Every family (Llama, Mistral, Qwen2/3, GPT-2/3, OPT, MPT, BLOOM) is a point in this space: there
// is no builder per family, so a Hugging Face config.json and a line of the zoo end in the same
// place.
#pragma once

#include <cstdint>
#include <string>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Whose parameter names the model carries (those of the Hugging Face implementation).
enum class Naming : std::uint8_t { kLlama, kGpt2, kOpt, kMpt, kBloom };

enum class NormKind : std::uint8_t {
  kRms,              // weight; keeps 1/rms in fp32
  kLayer,            // weight and bias; keeps mean and 1/std in fp32
  kLayerWithoutBias  // weight; keeps mean and 1/std in fp32
};

enum class Activation : std::uint8_t {
  kSwiGlu,  // silu(gate) * up: three matrices
  kGelu,    // two matrices; the input of gelu is kept
  kRelu     // two matrices; the output of relu is kept
};

// How positions enter the model. A learned table adds `position_rows` rows of parameters. ALiBi is
// a bias that the attention kernel computes itself, as flash attention's alibi_slopes do: it costs
// neither memory nor a kernel.
enum class Positions : std::uint8_t { kRotary, kLearned, kAlibi };

// Whose kernels execute the model: PyTorch's eager modules, or the engine of exec/.
enum class Stack : std::uint8_t { kEager, kNative };
inline Stack stack_of(RuntimeKind runtime) {
  return runtime == RuntimeKind::kNative ? Stack::kNative : Stack::kEager;
}

struct ModelDims {
  std::string name;
  std::string family;  // Hugging Face's model_type: "llama", "qwen2", "gpt2", ...
  std::string source;  // where the numbers come from

  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // heads * head_dim may differ from hidden (Qwen3)
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;  // longest sequence
  std::int64_t position_rows =
      0;  // of the learned table (OPT: two more than positions); 0 without one

  Naming naming = Naming::kLlama;
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSwiGlu;
  Positions positions = Positions::kRotary;
  bool tied = false;
  bool fused_qkv = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;         // RMSNorm over each head of q and k (Qwen3)
  bool embedding_norm = false;  // a norm right after the embedding (BLOOM)
  bool conv1d = false;          // weights of the blocks are stored [in, out] (Hugging Face's GPT-2)
  Numerics numerics;

  bool operator==(const ModelDims&) const = default;
};

// Throws Error(kInvalidInput), naming the model and the size, where a size is not positive,
// kv_heads does not divide heads, or the number of parameters overflows 64 bits.
ModelSpec build_model(const ModelDims& dims, Stack stack = Stack::kEager);

}  // namespace foreshard
