// Pins predictions: a golden that moves is a claim that changed, and its commit message says why.
// tests/golden/predictions.json names the jobs; UPDATE_GOLDEN=1 puts today's forecasts in.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "calibration/profile_store.h"
#include "models/zoo.h"
#include "reports/report.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

// The forecast of an entry's model, cluster and settings, with these.
Json predict(const Json& job) {
  const std::string name = job.at("model");
  const ModelSpec published = load_zoo_model(name);
  const Cluster cluster = load_cluster(job.at("cluster").get<std::string>());
  PlanDocument document;
  for (const std::string setting : job.at("settings")) document = apply_set(document, setting);
  Plan plan = resolve(document, published, cluster).plan;
  const ModelSpec model = load_zoo_model(name, stack_of(plan.runtime.kind));
  const CostModel costs(cluster, load_profile(cluster.gpu.key));
  const Forecast f = forecast(model, plan, costs);
  const StepMetrics metrics = measure_step(f.graph, f.timeline);
  return {{"model", name}, {"cluster", job.at("cluster")}, {"settings", job.at("settings")},
      {"fingerprint", f.graph.fingerprint()}, {"rows", f.graph.rows.size()},
      {"step_ns", f.timeline.period.nanoseconds()}, {"first_step_ns", f.timeline.first_step.nanoseconds()},
      {"exposed_communication_ns", std::llround(metrics.exposed_communication * 1e9)},
      {"peak_allocated_bytes", f.memory.peak.count()}, {"peak_reserved_bytes", f.reserved.peak.count()},
      {"peak_event", f.memory.peak_event}};
}

TEST(Golden, PredictionsAreThoseThatWerePinned) {
  const std::string path = std::string(FORESHARD_SOURCE_DIR) + "/tests/golden/predictions.json";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path << " is missing";
  const Json pinned = Json::parse(in);
  ASSERT_FALSE(pinned.empty());
  Json now = Json::array();
  for (const Json& job : pinned) now.push_back(predict(job));
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << to_text(now);
    GTEST_SKIP() << "rewrote " << path;
  }
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_EQ(now[i], pinned[i]);
}

}
}
