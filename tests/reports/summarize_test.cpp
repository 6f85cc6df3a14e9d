#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/accuracy/evidence.h"
#include "reports/view/views.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/reports/random_plans.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Forecast tiny_forecast() { return forecast(tiny_model(2), tiny_plan(), round_costs(8)); }

TEST(Summarize, MfuIsModelFlopsOverStepTimesPeakOfTheParameterDtype) {
  const Forecast f = tiny_forecast();
  const Report r = summarize(f, round_costs(8), 0);
  // 8 ranks x 2 sequences; the round GPU has 100 TFLOP/s in bf16.
  const double flops = f.model.training_flops_per_sequence(128).count() * 16;
  EXPECT_DOUBLE_EQ(r.mfu.value, flops / (f.timeline.period.seconds() * 8 * 100e12));
  EXPECT_DOUBLE_EQ(r.tokens_per_s_per_gpu.value, 2 * 128 / f.timeline.period.seconds());
  EXPECT_DOUBLE_EQ(r.hfu.value, r.mfu.value);
}

TEST(Summarize, HfuAddsWhatIsRecomputed) {
  Plan plan = tiny_plan();
  plan.recompute.value = Recompute::kFull;
  const Forecast f = forecast(tiny_model(2), plan, round_costs(8));
  const Report r = summarize(f, round_costs(8), 0);
  double recomputed = 0;  // of one rank
  for (const Row& row : f.graph.rows) {
    if (row.kind == EventKind::kRecompute) recomputed += f.graph.works[row.work].flops.count();
  }
  ASSERT_GT(recomputed, 0);
  EXPECT_NEAR(r.hfu.value - r.mfu.value, recomputed / (f.timeline.period.seconds() * 100e12), 1e-12);
}

TEST(Summarize, WithoutDrawsThereIsNoIntervalAndWithThemItHoldsTheValue) {
  const Forecast f = tiny_forecast();
  const Report none = summarize(f, round_costs(8), 0);
  EXPECT_EQ(none.seconds.low, none.seconds.value);
  EXPECT_EQ(none.seconds.high, none.seconds.value);
  Calibration calibration = round_calibration();
  for (FactorSpread& spread : calibration.spread) spread.log_sd = 0.1;
  const CostModel costs(round_cluster(8), calibration);
  const Report some = summarize(f, costs, 64);
  EXPECT_LT(some.seconds.low, some.seconds.value);
  EXPECT_GT(some.seconds.high, some.seconds.value);
  EXPECT_LE(some.mfu.low, some.mfu.value);
  EXPECT_GE(some.mfu.high, some.mfu.value);
  // Throughput is slowest where the step is longest.
  EXPECT_DOUBLE_EQ(some.tokens_per_s_per_gpu.low, 2 * 128 / some.seconds.high);
}

TEST(Summarize, MemoryKeepsItsDeclaredMarginsAndSaysWhatIsAssumed) {
  const Forecast f = tiny_forecast();
  const Report r = summarize(f, round_costs(8), 0);
  const auto peak = static_cast<double>(f.memory.peak.count());
  EXPECT_EQ(r.peak_allocated.value, peak);
  EXPECT_EQ(r.peak_allocated.high, std::round(peak * 1.02));
  EXPECT_GE(r.peak_reserved.low, peak);
  EXPECT_EQ(r.peak_reserved.value, static_cast<double>(f.reserved.peak.count()));
  EXPECT_GE(r.peak_reserved.value, peak);
  // 4.8 % are one standard deviation, 1.645 of them the border of 90 %.
  EXPECT_NEAR(r.peak_reserved.high / r.peak_reserved.value, std::exp(1.645 * 0.048), 1e-6);
  EXPECT_NEAR(r.peak_reserved.low, std::max(peak, r.peak_reserved.value / std::exp(1.645 * 0.048)), 1);
  Bytes sum;
  for (const auto& [category, bytes] : r.at_peak) sum += bytes;
  EXPECT_EQ(sum, f.memory.peak);
}

// With no room to spare it is a toss-up; near the border time is doubted, far from it neither is.
TEST(Summarize, NearCapacity) {
  const Forecast f = tiny_forecast();
  const Bytes needed = [&] {
    const Fit fit = summarize(f, round_costs(8), 0).fit;
    return fit.outside + fit.reserved;
  }();
  const auto with_memory = [&](double factor) {
    Cluster cluster = round_cluster(8);
    cluster.gpu.memory = Bytes(static_cast<std::int64_t>(factor * static_cast<double>(needed.count())));
    return summarize(f, CostModel(cluster, round_calibration()), 0);
  };
  const auto doubted = [](const Report& r) {
    return std::ranges::any_of(
        r.warnings, [](const std::string& warning) { return contains(warning, "time is unreliable"); });
  };
  EXPECT_NEAR(with_memory(1).fit_probability, 0.5, 1e-3);
  EXPECT_TRUE(doubted(with_memory(1.05)));
  EXPECT_FALSE(doubted(with_memory(1.2)));
  EXPECT_FALSE(doubted(with_memory(0.9)));  // it does not fit
  EXPECT_GT(with_memory(2).fit_probability, 0.99);
  EXPECT_LT(with_memory(0.5).fit_probability, 0.01);
}

TEST(Summarize, OneTinyAssumedKernelDoesNotTaintTheStep) {
  Calibration calibration = round_calibration();
  calibration.gemm_bf16.evidence = Evidence::kMeasured;
  calibration.gemm_fp32.evidence = Evidence::kMeasured;
  for (AttentionCurve& curve : calibration.attention) curve.evidence = Evidence::kMeasured;
  for (MemoryCurve& curve : calibration.memory) curve.evidence = Evidence::kMeasured;
  calibration.intra_node.evidence = Evidence::kMeasured;
  calibration.host.evidence = Evidence::kMeasured;
  calibration.contention.evidence = Evidence::kMeasured;
  const auto evidence_with = [&](MemoryClass assumed) {
    calibration.memory[at(assumed)].evidence = Evidence::kAssumed;
    const CostModel costs(round_cluster(8), calibration);
    Plan plan = tiny_plan();
    plan.batch = {1024, 16, 1};  // enough work per row for the host not to be the bottleneck
    return weigh_evidence(forecast(tiny_model(2), plan, costs), costs).seconds;
  };
  // The norms' share of the step is below a tenth; all elementwise work is above it. A forecast is never measured.
  EXPECT_EQ(evidence_with(MemoryClass::kNormForward), Evidence::kInterpolated);
  EXPECT_EQ(evidence_with(MemoryClass::kElementwise), Evidence::kAssumed);
}

TEST(Summarize, GivesTheSameBytesTwice) {
  RandomPlans plans(7);
  for (int i = 0; i < 5; ++i) {
    const Forecast f = plans.next_forecast();
    EXPECT_EQ(to_text(to_json(summarize(f, round_costs(), 16))), to_text(to_json(summarize(f, round_costs(), 16))));
  }
}

// Holds a value against the parts of JSON Schema that the report's schema uses.
class SchemaJudge {
 public:
  explicit SchemaJudge(Json schema) : root_(std::move(schema)) {}

  void judge(const Json& value, const Json& schema, const std::string& where) const {
    if (schema.contains("$ref")) {
      const std::string path = schema["$ref"].get<std::string>().substr(1);
      judge(value, root_.at(Json::json_pointer(path)), where);
    }
    if (schema.contains("allOf")) {
      for (const Json& part : schema["allOf"]) judge(value, part, where);
    }
    if (schema.contains("const")) {
      EXPECT_EQ(value, schema["const"]) << where;
    }
    if (schema.contains("enum")) {
      const Json& words = schema["enum"];
      EXPECT_NE(std::find(words.begin(), words.end(), value), words.end()) << where << value;
    }
    if (schema.contains("required")) {
      for (const Json& key : schema["required"]) EXPECT_TRUE(value.contains(key.get<std::string>())) << where << key;
    }
    if (schema.contains("type")) judge_type(value, schema["type"], where);
    if (!schema.contains("properties")) return;
    for (const auto& [key, child] : schema["properties"].items()) {
      if (value.contains(key)) judge(value[key], child, std::string(where).append(".").append(key));
    }
  }

 private:
  static void judge_type(const Json& value, const Json& types, const std::string& where) {
    const auto is = [&](const std::string& type) {
      return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
             (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
             (type == "integer" && value.is_number_integer()) || (type == "boolean" && value.is_boolean()) ||
             (type == "null" && value.is_null());
    };
    bool fits = false;
    if (types.is_string()) fits = is(types.get<std::string>());
    for (const Json& type : types) fits |= types.is_array() && is(type.get<std::string>());
    EXPECT_TRUE(fits) << where << " is " << value.type_name();
  }

  Json root_;
};

TEST(ReportJson, HasEveryKeyOfItsSchema) {
  const std::string_view text = file_named("report.schema.json", schema_files()).content;
  const Json schema = Json::parse(text);
  RandomPlans plans(8);
  for (int i = 0; i < 10; ++i) {
    const Json report = to_json(summarize(plans.next_forecast(), round_costs(), 4));
    SchemaJudge(schema).judge(report, schema, "report");
  }
}

TEST(ReportJson, HasTheKeysThatScriptsCountOn) {
  const Json json = to_json(summarize(tiny_forecast(), round_costs(8), 4));
  EXPECT_EQ(json["schema"], "foreshard.report/1");
  EXPECT_EQ(json["origin"], "predicted");
  for (const char* key :
      {"seconds", "tokens_per_s_per_gpu", "mfu", "hfu", "communication_s", "exposed_communication_s"}) {
    for (const char* part : {"value", "low", "high", "evidence"}) EXPECT_TRUE(json["step"][key].contains(part)) << key;
  }
  for (const char* key : {"capacity_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes",
           "fits", "margin_bytes", "peak_event", "at_peak"}) {
    EXPECT_TRUE(json["memory"].contains(key)) << key;
  }
  EXPECT_EQ(json["plan"]["mesh"]["shard"], 8);
}

}
}
