// The small models of the recordings of real libraries (tests/recordings): plain PyTorch modules,
// as layers and operations.
//
// "llama": the layout of Llama 3 and torchtitan (RoPE in complex arithmetic, SwiGLU, RMSNorm, no
// biases). "moe": the same with a top-k router and grouped experts that receive the same number of
// rows each. "gpt2": learned positions, biases, LayerNorm, tanh-GELU.
#pragma once

#include <cstdint>
#include <string>

#include "sim/spec/model_spec.h"

namespace foreshard {

// Columns of a recording's index that say what is computed; the defaults are the recorder's.
struct RecordedSettings {
  std::string model = "llama";  // llama | moe | gpt2
  std::int64_t layers = 4;
  std::int64_t dim = 512;
  std::int64_t ffn = 1536;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;
  std::int64_t vocab = 4096;
  std::int64_t seq = 128;
  std::int64_t batch = 2;    // sequences per rank and micro-batch
  std::int64_t experts = 8;  // moe
  std::int64_t top_k = 2;
  std::int64_t repeat = 1;  // times the stack of blocks runs in one forward, with the same weights
  bool tied = false;        // the head's weight is the token table
  std::string attention = "flash";  // flash | efficient
  std::string norm = "fused";       // fused
  bool operator==(const RecordedSettings&) const = default;
};

// Throws Error(kMissingCapability) for a word it does not know (a model, an attention, a norm).
ModelSpec build_recorded_model(const RecordedSettings& settings);

}  // namespace foreshard
