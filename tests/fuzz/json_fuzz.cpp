// Reads any bytes as a JSON file and asks every node for everything: nothing but a ConfigError may
// come out. Run: json_fuzz -max_total_time=60

#include "tests/fuzz/walk.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    foreshard::walk(foreshard::parse_json(text, "fuzz.json"));
  } catch (const foreshard::ConfigError&) {
  }
  return 0;
}
