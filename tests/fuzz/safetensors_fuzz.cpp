// Safetensors files: any bytes give a header whose tensors lie inside the file, or an Error for bad
// input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "exec/state/safetensors.h"
#include "sim/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto bytes = static_cast<std::int64_t>(size);
  const auto judge = [](const SafetensorsHeader& header, std::int64_t file_bytes) {
    std::int64_t at = header.data_begin;
    for (const SafetensorsEntry& tensor : header.tensors) {
      if (tensor.begin != at || tensor.end < tensor.begin) std::abort();
      if (header.find(tensor.name) == nullptr) std::abort();
      at = tensor.end;
    }
    if (at != file_bytes) std::abort();
  };
  try {
    const std::int64_t length = safetensors_header_bytes(file.substr(0, 8), bytes, "fuzz");
    const std::string_view json = file.substr(8, static_cast<std::size_t>(length));
    judge(parse_safetensors_header(json, bytes, "fuzz"), bytes);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
  }
  return 0;
}
