// Any bytes as a plan file, and their first line as an assignment: either is refused with an Error
// of the user's, or a plan that check() accepts and that reads back as itself. Run: plan_fuzz
// -max_total_time=60
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace {

using namespace foreshard;

void require(bool holds) {
  if (!holds) std::abort();
}

void judge(auto read) {
  static const ModelSpec model = small_model();
  static const Cluster cluster = cluster_of_gpus(64);
  try {
    const ResolvedPlan resolved = resolve(read(), model, cluster);
    warnings(resolved.plan, model, cluster);
    check(resolved, model, cluster);
    PlanDocument again = document_of(to_yaml(resolved.plan));
    require(resolve(again, model, cluster).plan == resolved.plan);
  } catch (const Error& error) {
    require(error.exit_code() == ExitCode::kInvalidInput || error.exit_code() == ExitCode::kMissingCapability);
  }
}

}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // A model and a cluster, so that what is written can be read again.
  const PlanDocument base = document_of("{model: small, cluster: 64xh100}");
  judge([&] { return apply_set(apply_set(read_plan(parse_yaml(text, "fuzz.yaml")), "model=m"), "cluster=c"); });
  judge([&] { return apply_set(base, text.substr(0, text.find('\n'))); });
  return 0;
}
