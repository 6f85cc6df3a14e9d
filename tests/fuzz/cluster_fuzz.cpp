// Cluster files and cluster specs: any bytes end in a Cluster or an Error, never in a crash.
// seeds: calibration/machines/hopper
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    foreshard::parse_cluster(text, "fuzz.yaml");
  } catch (const foreshard::Error&) {  // what a bad file is for
  }
  // A spec that is no path: those would read files.
  if (size < 64 && !contains(text, '/') && !contains(text, '.')) {
    try {
      foreshard::load_cluster(text);
    } catch (const foreshard::Error&) {
    }
  }
  return 0;
}
