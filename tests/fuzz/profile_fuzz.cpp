// Calibration profiles: any bytes end in a Calibration or an Error, never in a crash.
#include <cstddef>
#include <cstdint>

#include "calibration/profile.h"
#include "sim/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    foreshard::parse_calibration({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  } catch (const foreshard::Error&) {  // what a bad file is for
  }
  return 0;
}
