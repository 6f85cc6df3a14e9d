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
  std::int64_t repeat = 1;          // times the stack of blocks runs in one forward, with the same weights
  bool tied = false;                // the head's weight is the token table
  std::string attention = "flash";  // flash | efficient
  std::string norm = "fused";       // fused
  bool operator==(const RecordedSettings&) const = default;
};

// Throws Error(kMissingCapability) for a word it does not know (a model, an attention, a norm).
ModelSpec build_recorded_model(const RecordedSettings& settings);

// The small models of the recordings of DDP, FSDP1 and DeepSpeed (tests/recordings/ddp_zero): the
// layouts of GPT-2 and Llama with the recorder's names.

// Keys of "models" in the recorder's configs.json.
struct LibraryModel {
  std::string arch = "llama";  // llama | gpt
  std::int64_t layers = 1;     // L
  std::int64_t dim = 1;        // d
  std::int64_t heads = 1;      // h
  std::int64_t kv_heads = 1;   // kv; gpt: as heads
  std::int64_t ffn = 1;        // f
  std::int64_t vocab = 1;      // V
  std::int64_t positions = 1;  // P: rows of gpt's table
  bool tied = false;
  bool unused = false;      // a linear layer that no forward reaches (llama)
  std::int64_t buffer = 0;  // elements of a registered buffer
  // Modules that FSDP1's policy wraps: blocks | blocks+emb | sub | flat.
  std::string wrap = "blocks";
  bool operator==(const LibraryModel&) const = default;
};

// Throws Error(kMissingCapability) for an architecture it does not know, Error(kInvalidInput) for
// sizes that make no model.
ModelSpec build_library_model(const LibraryModel& settings);

}
