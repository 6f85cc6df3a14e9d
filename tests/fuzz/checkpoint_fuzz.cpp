// A checkpoint's index: any bytes, with the checksum that fits them, give an index that reads back
// as itself, or an Error for bad input. The seal is put on here: no mutation would find it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "exec/state/checkpoint_index.h"
#include "sim/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  std::string text(reinterpret_cast<const char*>(data), size);
  text += "  \"checksum\": \"0000000000000000\"\n}\n";
  std::string written;
  try {
    written = index_text(parse_index(seal_index(std::move(text)), "index.json"));
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
    return 0;
  }
  if (index_text(parse_index(written, "again.json")) != written) std::abort();
  return 0;
}
