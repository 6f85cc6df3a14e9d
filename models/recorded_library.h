// The small models of the recordings of DDP, FSDP1 and DeepSpeed (tests/recordings/ddp_zero): the
// layouts of GPT-2 and Llama with the recorder's names.
#pragma once

#include <cstdint>
#include <string>

#include "sim/spec/model_spec.h"

namespace foreshard {

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

}  // namespace foreshard
