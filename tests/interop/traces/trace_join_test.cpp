// Timelines written down as CUDA traces come back event by event; a real CPU trace has what its job did.
#include "interop/traces/trace_join.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "interop/hf/hf_config.h"
#include "interop/traces/trace_files.h"
#include "reports/validate/measured.h"
#include "reports/validate/slower.h"
#include "reports/validate/validate.h"
#include "tests/support/cuda_trace.h"
#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

const fs::path kTraces = fs::path(FORESHARD_SOURCE_DIR) / "tests/interop/traces";

// A file that is gone with the test.
struct File {
  explicit File(std::string_view text, const char* name = "rank-0.trace.json", bool zip = false) : path(folder / name) {
    if (zip) {
      gzFile out = gzopen(path.c_str(), "wb");
      gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
      gzclose(out);
    } else {
      std::ofstream(path) << text;
    }
  }
  TemporaryFolder folder;
  fs::path path;
};

Forecast forecast_of(const Plan& plan, int blocks = 3) {
  const CostModel costs(round_cluster(plan.mesh.world()), round_calibration());
  return forecast(tiny_model(blocks), plan, costs);
}

FsdpTrace traced(const Forecast& made, const Timeline& timeline, const CudaTraceOptions& options = {}) {
  const File file(cuda_trace(made, timeline, options));
  return read_fsdp_steps(read_kineto(file.path));
}

std::string refusal(const Forecast& made, const FsdpTrace& trace) {
  try {
    join_traces(made, {trace});
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "";
}

// Every row of the graph has its span again; rows that share a range of the trace share its ends.
void expect_same(const Forecast& made, const Timeline& timeline, const TraceJoin& join) {
  EXPECT_EQ(join.missing, std::vector<std::string>());
  EXPECT_EQ(join.beyond, std::vector<std::string>());
  EXPECT_EQ(join.order, std::vector<std::string>());
  const MeasuredStep& step = join.record.ranks.front().timelines.front();
  EXPECT_EQ(step.duration, timeline.period);
  for (std::size_t i = 0; i < made.graph.rows.size(); ++i) {
    const Row& row = made.graph.rows[i];
    const bool flows = row.stream == Stream::kCompute && !is_collective(row.kind);
    const auto same_range = [&](std::size_t j) {
      return flows && j < made.graph.rows.size() && made.graph.rows[j].kind == row.kind &&
             made.graph.details[j].unit == made.graph.details[i].unit &&
             made.graph.details[j].microbatch == made.graph.details[i].microbatch;
    };
    SCOPED_TRACE(std::to_string(i) + " " + to_string(row.kind));
    if (i == 0 || !same_range(i - 1)) {
      EXPECT_EQ(step.spans[i].start, timeline.spans[i].start);
    }
    if (!same_range(i + 1)) {
      EXPECT_EQ(step.spans[i].end, timeline.spans[i].end);
    }
  }
}

struct Case {
  const char* name;
  void (*change)(Plan&);
};
class CudaTrace : public testing::TestWithParam<Case> {};

TEST_P(CudaTrace, GivesEveryEventOfThePlanItsTimesBack) {
  Plan plan = tiny_plan();
  GetParam().change(plan);
  const Forecast made = forecast_of(plan);
  const TraceJoin join = join_traces(made, {traced(made, made.timeline)});
  expect_same(made, made.timeline, join);
  EXPECT_EQ(join.record.ranks.front().timelines.size(), 2U);
  EXPECT_EQ(join.record.ranks.front().timelines.front().step, 11);
}

INSTANTIATE_TEST_SUITE_P(Plans, CudaTrace,
    testing::Values(Case{"titan", [](Plan&) {}}, Case{"clipping", [](Plan& p) { p.optimizer.clip_norm = 1.0; }},
        Case{"root",
            [](Plan& p) {
              p.units.embedding = UnitPlacement::kRoot;
              p.units.head = UnitPlacement::kRoot;
            }},
        Case{"head_of_its_own", [](Plan& p) { p.units.head = UnitPlacement::kOwn; }},
        Case{"two_layers_a_unit", [](Plan& p) { p.units.layers_per_unit = 2; }},
        Case{"recompute", [](Plan& p) { p.recompute.value = Recompute::kFull; }},
        Case{"explicit_prefetch",
            [](Plan& p) {
              p.prefetch.forward = 2;
              p.prefetch.backward = 2;
            }},
        Case{"never_reshard", [](Plan& p) { p.reshard_after_forward.value.kind = Reshard::Kind::kNever; }},
        Case{"replicas",
            [](Plan& p) {
              p.mesh = {4, 2};
            }},
        Case{"accumulation", [](Plan& p) { p.batch.accumulation = 3; }}),
    [](const auto& info) { return info.param.name; });

TEST(TraceJoin, TellsCollectivesByKernelNameWhereTheTraceHasNoArguments) {
  const Forecast made = forecast_of(tiny_plan());
  CudaTraceOptions options = {.named_collectives = false};
  expect_same(made, made.timeline, join_traces(made, {traced(made, made.timeline, options)}));
}

TEST(TraceJoin, EndsStepsWithTheProfilersMarksWhereNoOptimizerIsNamed) {
  const Forecast made = forecast_of(tiny_plan());
  CudaTraceOptions options = {.optimizer_range = false};
  const FsdpTrace trace = traced(made, made.timeline, options);
  ASSERT_FALSE(trace.notes.empty());
  EXPECT_NE(trace.notes.back().find("no Optimizer.step range"), std::string::npos);
  const TraceJoin join = join_traces(made, {trace});
  EXPECT_EQ(join.missing, std::vector<std::string>{"1 of the plan's 1 optimizer events: optimizer"});
}

TEST(TraceJoin, ValidatesTheJobThatDidAsForecast) {
  const Forecast made = forecast_of(tiny_plan());
  const CostModel costs(round_cluster(8), round_calibration());
  CudaTraceOptions options = {.peak_allocated = made.memory.peak.count()};
  const TraceJoin join = join_traces(made, {traced(made, made.timeline, options)});
  const Validation v = validate(made, summarize(made, costs, 0), join.record, {});
  EXPECT_TRUE(v.passed);
  EXPECT_NEAR(v.step_error, 0, 1e-9);
  EXPECT_TRUE(v.memory_known);
  EXPECT_NEAR(v.memory_error, 0, 1e-9);
}

TEST(TraceJoin, TakesTheStepThatNoProfilerSlowedDown) {
  const Forecast made = forecast_of(tiny_plan());
  const CostModel costs(round_cluster(8), round_calibration());
  const File file(cuda_trace(made, made.timeline));
  const double step = made.timeline.period.seconds() / 1.5;
  std::ofstream(file.folder / "rank-0.timed.json")
      << nlohmann::json{{"schema", "foreshard.timed/1"}, {"host", "node"}, {"created", ""}, {"rank", 0}, {"world", 8},
             {"memory", nullptr}, {"steps_s", {9 * step, step, step}}, {"versions", nlohmann::json::object()}};
  const TraceJoin join = join_traces(made, read_job_traces(file.path));
  const Validation v = validate(made, summarize(made, costs, 0), join.record, {});
  EXPECT_NEAR(v.step_error, 0.5, 1e-6);
  EXPECT_TRUE(std::ranges::any_of(
      v.notes, [](const std::string& note) { return note.starts_with("the profiler makes a step 50.0 % longer"); }));
  const Forecast view = measured_view(made.model, made.plan, made.graph, join.record);
  EXPECT_EQ(view.timeline.period, made.timeline.period);  // events as traced
}

// One unit's backward takes 300 us longer and pushes what follows back.
Timeline with_slow_backward(const Forecast& made, std::int32_t unit, Time more) {
  Timeline timeline = made.timeline;
  bool behind = false;
  for (std::size_t i = 0; i < made.graph.rows.size(); ++i) {
    Span& span = timeline.spans[i];
    if (behind) {
      span.start += more;
      span.arrive += more;
      span.end += more;
    } else if (made.graph.rows[i].kind == EventKind::kBackward && made.graph.details[i].unit == unit) {
      span.end += more;
      behind = true;
    }
  }
  timeline.period += more;
  return timeline;
}

TEST(TraceJoin, SaysWhichEventMadeTheStepSlower) {
  const Forecast made = forecast_of(tiny_plan());
  const CostModel costs(round_cluster(8), round_calibration());
  const Time more = Time::ns(300'000);
  const Timeline slow = with_slow_backward(made, 2, more);  // layers.1
  const TraceJoin join = join_traces(made, {traced(made, slow)});
  const Validation v = validate(made, summarize(made, costs, 0), join.record, {});
  EXPECT_LT(v.step_error, 0);
  EXPECT_FALSE(v.memory_known);
  EXPECT_TRUE(to_json(v).at("memory_error").is_null());
  ASSERT_FALSE(v.worst.empty());
  EXPECT_EQ(v.worst.front().name, "backward layers.1");

  const Forecast view = measured_view(made.model, made.plan, made.graph, join.record);
  const SlowStep step = why_slower(made.graph, made.timeline, view.timeline);
  EXPECT_EQ(step.measured - step.predicted, more);
  ASSERT_FALSE(step.parts.empty());
  EXPECT_EQ(step.parts.front().where, "layers.1");
  EXPECT_EQ(step.parts.front().kind, EventKind::kBackward);
  EXPECT_EQ(step.parts.front().cause, SlowCause::kCompute);
  EXPECT_EQ(step.parts.front().difference(), more);
  Time sum;
  for (const SlowPart& part : step.parts) sum += part.difference();
  EXPECT_EQ(sum, more);
}

TEST(TraceJoin, RefusesAnotherJobAndSaysWhatDiffers) {
  const Forecast made = forecast_of(tiny_plan());
  const FsdpTrace trace = traced(made, made.timeline);
  Plan plan = tiny_plan();
  plan.mesh.shard = 4;
  EXPECT_NE(refusal(forecast_of(plan), trace).find("the job has 8 ranks, the plan 4"), std::string::npos);
  EXPECT_NE(refusal(forecast_of(tiny_plan(), 4), trace).find("the job shards 5 units"), std::string::npos);
  plan = tiny_plan();
  plan.batch.accumulation = 2;
  EXPECT_NE(refusal(forecast_of(plan), trace).find("1 micro-batch, the plan's 2"), std::string::npos);
  // The embedding in the root instead of a unit of its own: as many units, other ones.
  plan = tiny_plan();
  plan.units.embedding = UnitPlacement::kRoot;
  EXPECT_NE(refusal(forecast_of(plan), trace).find("units.embedding"), std::string::npos);
}

TEST(TraceJoin, ListsWhatTheJobDoesOtherwise) {
  Plan plan = tiny_plan();
  const Forecast implicit = forecast_of(plan);
  plan.prefetch.forward = 1;
  const Forecast ahead = forecast_of(plan);
  const TraceJoin order = join_traces(ahead, {traced(implicit, implicit.timeline)});
  ASSERT_FALSE(order.order.empty());
  EXPECT_NE(order.order.front().find("prefetch"), std::string::npos);

  plan = tiny_plan();
  plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;
  const Forecast kept = forecast_of(plan);
  const TraceJoin beyond = join_traces(kept, {traced(implicit, implicit.timeline)});
  ASSERT_FALSE(beyond.beyond.empty());
  EXPECT_NE(beyond.beyond[1].find("all_gather of"), std::string::npos) << beyond.beyond[1];
  const TraceJoin missing = join_traces(implicit, {traced(kept, kept.timeline)});
  ASSERT_FALSE(missing.missing.empty());
  EXPECT_NE(missing.missing.front().find("all_gather"), std::string::npos);
}

TEST(Kineto, ReadsWhatIsCompressedAndRefusesWhatIsDamaged) {
  const Forecast made = forecast_of(tiny_plan());
  const std::string text = cuda_trace(made, made.timeline);
  const auto why = [](const fs::path& path) -> std::string {
    try {
      read_kineto(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      return error.what();
    }
    return "";
  };
  {
    const File zipped(text, "a.trace.json.gz", true);
    const KinetoTrace trace = read_kineto(zipped.path);
    EXPECT_EQ(trace.rank, 0);
    EXPECT_EQ(trace.world, 8);
    EXPECT_EQ(trace.device, "NVIDIA H100 80GB HBM3");
    EXPECT_TRUE(trace.of_gpu());
    fs::resize_file(zipped.path, fs::file_size(zipped.path) / 2);
    EXPECT_NE(why(zipped.path), "");
  }
  EXPECT_NE(why(File(text.substr(0, text.size() / 2)).path).find("not whole JSON"), std::string::npos);
  EXPECT_NE(why(File("{\"a\": 1}").path).find("no traceEvents"), std::string::npos);
  EXPECT_NE(why(File("{\"traceEvents\": []}").path).find("no events"), std::string::npos);
  EXPECT_NE(why("/nowhere.json").find("no such file"), std::string::npos);
  // Nanoseconds since 1970 as microseconds are more than a double holds.
  const File exact(R"([{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": 1700000000000000.123, "dur": 2.5}])");
  const KinetoTrace trace = read_kineto(exact.path);
  ASSERT_EQ(trace.events.size(), 1U);
  EXPECT_EQ(trace.events[0].begin, Time::ns(1'700'000'000'000'000'123));
  EXPECT_EQ(trace.events[0].end - trace.events[0].begin, Time::ns(2500));
  // 57 million years are no time.
  const File late(
      R"([{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": 1790857026000000000, "dur": 1},
          {"ph": "X", "cat": "cpu_op", "name": "b", "tid": 1, "ts": 17, "dur": 1}])");
  ASSERT_EQ(read_kineto(late.path).events.size(), 1U);
  EXPECT_EQ(read_kineto(late.path).events[0].begin, Time::ns(17'000));
}

// --- the recording of a real job ---

Plan recorded_plan() {
  Plan plan = {.model = "model.json", .batch = {64, 2, 1}, .mesh = {2, 1}};
  plan.units.head = UnitPlacement::kWithNorm;
  plan.reshard_after_forward.ranges = {{3, 3, {Reshard::Kind::kNever, 0}}};
  plan.param_dtype = plan.reduce_dtype = DType::kFp32;
  plan.optimizer.clip_norm = 1.0;
  plan.host = HostKind::kComputes;
  return plan;
}

Forecast recorded_forecast(const Plan& plan) {
  const CostModel costs(round_cluster(plan.mesh.world()), round_calibration());
  return forecast(build_hf_model(read_hf_config(kTraces / "model.json")), plan, costs);
}

TEST(RealTrace, HasEveryEventOfItsPlanInOrder) {
  const Forecast made = recorded_forecast(recorded_plan());
  const std::vector<FsdpTrace> traces = read_job_traces(kTraces / "fsdp2_cpu");
  ASSERT_EQ(traces.size(), 2U);
  EXPECT_EQ(traces[0].units, (std::vector<std::string>{"embed", "blocks.0", "blocks.1", "norm, head"}));
  EXPECT_FALSE(traces[0].of_gpu);
  EXPECT_EQ(traces[1].rank, 1);
  const TraceJoin join = join_traces(made, traces);
  EXPECT_EQ(join.missing, std::vector<std::string>());
  EXPECT_EQ(join.order, std::vector<std::string>());
  EXPECT_EQ(join.units[3], (std::pair<std::string, std::string>{"norm, head", "norm+head"}));
  EXPECT_TRUE(clocks_shared(join.record));
  // Events of a CPU rank follow one another: the host computes.
  const MeasuredStep& step = join.record.ranks[0].timelines.front();
  Time before;
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    EXPECT_GE(step.spans[i].start, before) << to_string(made.graph.rows[i].kind) << " " << i;
    EXPECT_GT(step.spans[i].end, step.spans[i].start);
    before = step.spans[i].start;
  }
  EXPECT_EQ(step.spans.back().end, step.duration);
  // The log's all-reduce and the barrier between steps are no part of the plan.
  EXPECT_FALSE(join.beyond.empty());
}

TEST(RealTrace, DiffersFromAPlanThatTheJobDidNotFollow) {
  Plan plan = recorded_plan();
  plan.reshard_after_forward.ranges.clear();
  const TraceJoin join = join_traces(recorded_forecast(plan), read_job_traces(kTraces / "fsdp2_cpu"));
  ASSERT_FALSE(join.missing.empty());
  EXPECT_NE(join.missing.front().find("all_gather_copy_in norm+head"), std::string::npos) << join.missing.front();
}

}
}
