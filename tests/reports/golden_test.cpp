// Pins predictions: a golden that moves is a claim that changed, and its commit message says why.
// UPDATE_GOLDEN=1 rewrites tests/golden/predictions.json.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "calibration/machines.h"
#include "calibration/profile.h"
#include "models/zoo.h"
#include "reports/report.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

struct Job {
  const char* model;
  const char* cluster;
  std::vector<const char*> settings;
};

const std::vector<Job>& jobs() {
  static const std::vector<Job> kJobs = {
      {"llama-3.1-8b", "8xh100", {}},
      {"llama-3.1-8b", "64xh100", {"mesh.shard=8", "recompute=selective", "batch.micro_batch=2"}},
      {"llama-3.1-8b", "64xh100", {"runtime=native", "prefetch.forward=2", "recompute=full"}},
      {"llama-2-70b", "512xh100", {"recompute=full", "reshard_after_forward=8"}},
      {"llama-2-70b", "64xb200", {"recompute=every-2", "batch.accumulation=4"}},
      {"gpt3-175b", "1024xh100", {"recompute=full"}},
      {"mpt-7b",
       "16xa100",
       {"dtype.reduce=bf16", "accumulation.mode=keep_unsharded", "batch.accumulation=2",
        "recompute=full"}},
      {"gpt2-xl", "8xa100-40gb", {"batch.micro_batch=4", "optimizer.clip_norm=none"}},
      {"qwen3-8b", "32xh200", {"units.layers_per_unit=4", "prefetch.backward=2"}},
  };
  return kJobs;
}

Json predict(const Job& job) {
  const ModelSpec published = load_zoo_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  PlanDocument document;
  for (const char* setting : job.settings) document = apply_set(document, setting);
  Plan plan = resolve(document, published, cluster).plan;
  const ModelSpec model = load_zoo_model(job.model, stack_of(plan.runtime.kind));
  const CostModel costs(cluster, load_profile(cluster.gpu.key));
  const Forecast f = forecast(model, plan, costs);
  const StepMetrics metrics = measure_step(f.graph, f.timeline);
  return {{"model", job.model},
          {"cluster", job.cluster},
          {"settings", job.settings},
          {"fingerprint", f.graph.fingerprint()},
          {"rows", f.graph.rows.size()},
          {"step_ns", f.timeline.period.nanoseconds()},
          {"first_step_ns", f.timeline.first_step.nanoseconds()},
          {"exposed_communication_ns", std::llround(metrics.exposed_communication * 1e9)},
          {"peak_allocated_bytes", f.memory.peak.count()},
          {"peak_reserved_bytes", f.reserved.peak.count()},
          {"peak_event", f.memory.peak_event}};
}

TEST(Golden, PredictionsAreThoseThatWerePinned) {
  const std::string path = std::string(FORESHARD_SOURCE_DIR) + "/tests/golden/predictions.json";
  Json now = Json::array();
  for (const Job& job : jobs()) now.push_back(predict(job));
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << to_text(now);
    GTEST_SKIP() << "rewrote " << path;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in) << path << " is missing; UPDATE_GOLDEN=1 writes it";
  const Json pinned = Json::parse(in);
  ASSERT_EQ(pinned.size(), now.size());
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_EQ(now[i], pinned[i]);
}

}  // namespace
}  // namespace foreshard
