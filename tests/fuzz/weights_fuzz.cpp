// Headers of safetensors files and their indices, as import checks them against a model: any bytes
// give a ledger, or an Error for bad input.
#include <cstddef>
#include <cstdint>

#include "interop/hf/safetensors.h"
#include "models/zoo.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  static const ModelSpec kModel = load_zoo_model("gpt2");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The length of the header, which is the file's first eight bytes, is put on here.
  std::string stored(8, '\0');
  for (int i = 0; i < 8; ++i) stored[i] = static_cast<char>(size >> (8 * i) & 0xff);
  stored += text;
  for (const auto& path : {in_scratch("model.safetensors", stored), in_scratch("cut.safetensors", text),
           in_scratch("model.safetensors.index.json", text)}) {
    expect_answer_or_refusal([&] { check_stored(read_safetensors(path), kModel); });
  }
  return 0;
}
