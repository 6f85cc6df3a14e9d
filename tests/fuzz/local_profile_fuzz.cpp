// Profiles of measured machines: any bytes give the machine of --cluster local, for any number of
// ranks, or an Error for bad input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "calibration/local_profile.h"
#include "sim/base/error.h"
#include "sim/cost/cost_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const LocalProfile profile = parse_local_profile(text, "profile.json");
    for (const std::int64_t ranks : {1, 2, 64}) {
      LocalMachine machine = local_machine(profile, ranks);
      CostModel(machine.cluster, machine.calibration);
    }
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) std::abort();
  }
  return 0;
}
