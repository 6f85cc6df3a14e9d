// Safetensors files: an 8-byte little-endian header length, a JSON header, the tensors' bytes. Source:
// https://huggingface.co/docs/safetensors (format) and safetensors/src/tensor.rs (its rules).
//
// What the format's own reader refuses is refused here: offsets that overlap, leave holes or end
// elsewhere than the file, and sizes that are not shape times dtype. Headers are limited to 16 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/plan.h"

namespace foreshard {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // as in the header: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;  // row-major
  std::int64_t begin = 0;           // bytes from the start of the file
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by begin
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // bytes from the start of the file
  // nullptr where there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
};

const char* safetensors_dtype(DType dtype);  // "BF16", "F16", "F32"

// The length of the header from the file's first 8 bytes (as many as the file has).
// Throws Error(kInvalidInput) where they are too few or the header would not fit the file.
std::int64_t safetensors_header_bytes(
    std::string_view first_bytes, std::int64_t file_bytes, const std::string& file_name);
// Throws ConfigError or Error(kInvalidInput), naming the file and the tensor.
SafetensorsHeader parse_safetensors_header(
    std::string_view json, std::int64_t file_bytes, const std::string& file_name);
// Both of the above on a file.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

// What goes into a file; `bytes` has shape times dtype bytes and belongs to the caller.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kFp32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// The file up to the tensors' data: length and header, padded with blanks so that the data begins
// at a multiple of 64 bytes.
std::string safetensors_front(
    std::span<const SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata);

}
