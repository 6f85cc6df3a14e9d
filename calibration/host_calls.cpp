#include "calibration/host_calls.h"

#include <span>

#include "sim/base/config.h"
#include "sim/base/embedded.h"

namespace foreshard {
std::span<const EmbeddedFile> calibration_files();
namespace {

constexpr std::string_view kPath = "calibration/evidence/host_calls.json";
constexpr double kLongestCall = 1.0;  // s

bool is_of(const ConfigNode& processor, std::string_view machine) {
  const ConfigNode machines = processor.at("machines");
  if (machines.elements().empty()) return true;  // of every other one
  for (const ConfigNode& key : machines.elements()) {
    if (key.as_string() == machine) return true;
  }
  return false;
}

HostCurve read(const EmbeddedFile& file, std::string_view machine) {
  const ConfigNode root = parse_json(file.content, file.path);
  HostCurve curve;
  const ConfigNode calls = root.at("calls");
  for (std::size_t i = 0; i < kHostCalls; ++i) {
    curve.calls[i] = calls.at(to_string(static_cast<HostCall>(i))).as_double(0, kLongestCall);
  }
  const ConfigNode processors = root.at("processors");
  for (const ConfigNode& processor : processors.elements()) {
    if (!is_of(processor, machine)) continue;
    curve.processor = processor.at("ratio").as_double(0.01, 100);
    curve.per_driver_launch = processor.at("per_driver_launch_s").as_double(0, kLongestCall);
    curve.processor_evidence = processor.at("evidence").as_string() == "measured"
                                   ? Evidence::kMeasured
                                   : Evidence::kAssumed;
    curve.processor_source = processor.at("source").as_string();
    return curve;
  }
  throw processors.error("names no processor for other machines", "one with machines: []");
}

}  // namespace

HostCurve published_host_calls(std::string_view machine) {
  return read(file_named(kPath, calibration_files()), machine);
}

}  // namespace foreshard
