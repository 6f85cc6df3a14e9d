// The header of a safetensors file: which tensors it holds, of which shape and type. Weights are not read, so the first
// kilobytes of a file do (`head -c`); and model.safetensors.index.json, which names the files of a model.
//
// Format: eight bytes, little-endian, the header's length; the header, a JSON object of name ->
// {dtype, shape, data_offsets}, and perhaps __metadata__ (github.com/huggingface/safetensors,
// README, whose reader takes headers up to 100,000,000 bytes).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "interop/frameworks/import_ledger.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "BF16"
  std::vector<std::int64_t> shape;
  std::int64_t numel() const;
};

struct StoredModel {
  std::string file;
  std::vector<StoredTensor> tensors;  // in the order of the files
};

bool looks_like_safetensors(const std::filesystem::path& path);

// A .safetensors file, or an index with the files beside it. Throws ConfigError.
StoredModel read_safetensors(const std::filesystem::path& path);

// Every parameter of the model against the stored tensors of its name: what is missing, of another
// shape, or beyond the model, one entry each (of many alike: the first and how many). Throws
// ConfigError where the number of elements differs by more than 0.5 %.
ImportLedger check_stored(const StoredModel& stored, const ModelSpec& model);

}
