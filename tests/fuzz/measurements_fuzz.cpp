// Raw measurements, as foreshard calibrate takes them: any bytes give a profile that reads back as
// itself, or an Error for bad input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "calibration/fit/fit_local.h"
#include "calibration/local_profile.h"
#include "sim/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  LocalProfile profile;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    profile = fit_local(parse_measurements(text, "raw.json")).profile;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
    return 0;
  }
  const Json written = to_json(profile);
  if (to_json(parse_local_profile(to_text(written), "profile.json")) != written) std::abort();
  return 0;
}
