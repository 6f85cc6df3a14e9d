// Any bytes give a model or an Error for bad input: no crash, no overflow, no other exception.
// seeds: tests/interop/configs
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "interop/hf/hf_config.h"
#include "sim/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  try {
    const ConfigNode root = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    HfConfig config = parse_hf_config(root, "fuzz");
    if (config.dims.layers > 1000) config.dims.layers = 1000;  // keeps memory small
    const ModelSpec model = build_model(config.dims);
    if (model.parameters() < 1) std::abort();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
  }
  return 0;
}
