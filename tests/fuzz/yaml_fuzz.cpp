// Reads any bytes as a YAML file and asks every node for everything: nothing but a ConfigError may
// come out. Run: yaml_fuzz -max_total_time=60

#include "tests/fuzz/walk.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    foreshard::walk(foreshard::parse_yaml(text, "fuzz.yaml"));
  } catch (const foreshard::ConfigError&) {
  }
  return 0;
}
