// validate and accuracy --history, as a user calls them. The runs are forecasts written down as if
// they had been measured.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "planner/job.h"
#include "reports/validate/run_record.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/plan_config.h"
#include "tests/cli/program.h"

namespace foreshard::validate_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlan = "model: gpt2\ncluster: 2xh100\nruntime: native\nbatch: {sequence: 128}\n";

// Where this test's files are, with an empty data folder of its own.
struct Place {
  Place() { fs::remove_all(folder / "data"); }
  std::string plan = write_temporary("plan.yaml", kPlan);
  fs::path folder = fs::path(plan).parent_path();
};

// The forecast of the plan with every time stretched, as a run of 8 steps on its ranks.
RunRecord run_of(const std::string& plan_file, double stretch, const std::string& set = "") {
  JobOptions options = {.plan = plan_file};
  if (!set.empty()) options.assignments = {{set}};
  const Job job = load_job(options);
  const Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
  const auto stretched = [&](Time time) { return Time::seconds(time.seconds() * stretch); };
  MeasuredStep step = {.duration = stretched(made.timeline.period)};
  for (const Span& s : made.timeline.spans) {
    step.spans.push_back({stretched(s.issue), stretched(s.start), stretched(s.arrive), stretched(s.end)});
  }
  RunRecord record = {.created = "2026-01-02T03:04:05Z",
      .host = "node-7",
      .cpu = "a CPU",
      .versions = {{"foreshard", FORESHARD_VERSION}},
      .fingerprint = made.graph.fingerprint(),
      .plan_yaml = to_yaml(job.resolved.plan),
      .launcher = "spawn",
      .world = static_cast<int>(job.resolved.plan.mesh.world())};
  record.losses.assign(8, 5.0);
  record.parameter_hash = "ab";
  record.tokens_per_step = 256;
  for (int r = 0; r < record.world; ++r) {
    RankRecord rank = {.rank = r};
    rank.step_durations.assign(8, step.duration);
    for (int s = 1; s <= 8; ++s) {
      rank.timelines.push_back(step);
      rank.timelines.back().step = s;
      rank.timelines.back().begin = step.duration * s;
    }
    rank.arena = made.memory.at_start;
    rank.activations_peak = made.memory.peak - made.memory.at_start;
    record.ranks.push_back(rank);
  }
  return record;
}

Outcome with_data(const std::string& arguments) {
  return shell("export XDG_DATA_HOME=\"$PWD/data\"; \"$F\" " + arguments);
}

TEST(ValidateVerb, WritesAPageWithForecastRunAndEveryEvent) {
  const Place place;
  write_run_folder(place.folder / "good", run_of(place.plan, 1.04));
  const Outcome outcome = with_data("validate --plan plan.yaml --run good --json --html both.html");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto said = json_of(outcome);
  const std::string page = read_temporary("both.html");
  const std::string open = "id=\"document\">";
  const std::size_t begin = page.find(open) + open.size();
  const auto shown = nlohmann::ordered_json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const auto& validation = shown.at("validation");
  for (const char* key : {"step", "step_error", "by_kind", "worst", "memory", "passed"}) {
    EXPECT_EQ(validation.at(key), said.at(key)) << key;
  }
  ASSERT_EQ(shown.at("views").size(), 2U);
  EXPECT_EQ(shown["views"][0]["report"]["step"], said["predicted"]["step"]);
  EXPECT_EQ(shown["views"][1]["report"]["step"], said["measured"]["step"]);
  const auto& scatter = validation.at("scatter");
  const std::size_t events = shown["timelines"][0]["events"];
  ASSERT_EQ(scatter.at("kind").size(), events);
  for (std::size_t i = 0; i < events; ++i) {
    EXPECT_NEAR(scatter["measured_s"][i], 1.04 * scatter["predicted_s"][i].get<double>(), 2e-9);
  }
  // A run folder has its plan in it, so that it is enough to name it.
  const auto report = json_of(with_data("report good --json"));
  EXPECT_EQ(report.at("validation").at("scatter"), scatter);
  EXPECT_EQ(report.at("views")[0].at("report").at("fingerprint"), said.at("fingerprint"));
  EXPECT_TRUE(report.contains("search"));
}

TEST(ValidateVerb, PassesARunThatDidWhatWasForecast) {
  const Place place;
  write_run_folder(place.folder / "good", run_of(place.plan, 1.0));
  const Outcome text = with_data("validate --plan plan.yaml --run good --trace both.json");
  EXPECT_EQ(text.exit_code, 0) << text.err << text.out;
  // Nothing is written outside the working folder without being said.
  EXPECT_EQ(lines_of(text.err), 1U);
  expect_says(text.err, "history.sqlite (accuracy --history reads it; --no-history leaves it)");
  EXPECT_TRUE(text.out.starts_with("passed: step time ")) << text.out;
  for (const char* part : {"step time", "by kind", "passed", "node-7"}) expect_says(text.out, part);
  EXPECT_FALSE(nlohmann::json::parse(read_temporary("both.json"), nullptr, false).is_discarded());
  const auto json = json_of(with_data("validate --plan plan.yaml --run good --json --no-history"));
  EXPECT_EQ(json.at("schema"), "foreshard.validation/1");
  expect_follows_its_schema(json);
  EXPECT_EQ(json.at("passed"), true);
  EXPECT_NEAR(json.at("step_error").get<double>(), 0, 1e-6);
  EXPECT_NEAR(json.at("memory_error").get<double>(), 0, 1e-9);
  EXPECT_EQ(json.at("measured").at("origin"), "measured");
  EXPECT_EQ(json.at("measured").at("run").at("losses").size(), 8U);
}

TEST(ValidateVerb, ExitsWith5OutsideTheTolerances) {
  const Place place;
  write_run_folder(place.folder / "slow", run_of(place.plan, 1.25));
  const Outcome outside = with_data("validate --plan plan.yaml --run slow");
  EXPECT_EQ(outside.exit_code, 5);
  expect_says(outside.out, "-20.0 %");
  expect_says(outside.out, "duration differs");
  EXPECT_EQ(with_data("validate --plan plan.yaml --run slow --max-step-error 0.21").exit_code, 0);
  EXPECT_EQ(with_data("validate --plan plan.yaml --run slow --max-step-error -1").exit_code, 2);
}

TEST(ValidateVerb, RefusesARunOfAnotherPlan) {
  const Place place;
  write_run_folder(place.folder / "other", run_of(place.plan, 1.0, "recompute=full"));
  const Outcome refused = with_data("validate --plan plan.yaml --run other");
  EXPECT_EQ(refused.exit_code, 3);
  expect_says(refused.err, "recompute (plan none, run full)");
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(with_data("validate --plan plan.yaml --run other --set recompute=full").exit_code, 0);
}

TEST(ValidateVerb, RefusesWhatIsNoRun) {
  const Place place;
  const Outcome nothing = with_data("validate --plan plan.yaml --run nowhere");
  EXPECT_EQ(nothing.exit_code, 3);
  expect_says(nothing.err, "nowhere: is not a run folder");
  EXPECT_EQ(with_data("validate --plan plan.yaml").exit_code, 2);
  write_run_folder(place.folder / "torn", run_of(place.plan, 1.0));
  fs::resize_file(place.folder / "torn" / "timeline-rank-0.csv", 1000);
  const Outcome torn = with_data("validate --plan plan.yaml --run torn");
  EXPECT_EQ(torn.exit_code, 3);
  expect_says(torn.err, "timeline-rank-0.csv: the file is damaged");
  expect_no_crash(torn);
}

// A real FSDP2 job on CPU ranks (tests/interop/traces) against a made-up profile of another machine.
std::string traced_job() {
  const std::string tests = std::string(FORESHARD_SOURCE_DIR) + "/tests/";
  return " --plan " + tests + "interop/traces/plan.yaml --profile " + tests +
         "fuzz/corpus/local_profile/two_ranks.json ";
}
const std::string kTraceFolder = std::string(FORESHARD_SOURCE_DIR) + "/tests/interop/traces/fsdp2_cpu";

TEST(ValidateVerb, ComparesATraceOfFsdp2ByUnitAndKind) {
  const Outcome text = with_data("validate --run " + kTraceFolder + traced_job());
  EXPECT_EQ(text.exit_code, 5) << text.err;
  for (const char* part : {"trace of 2 ranks on laptop", "reduce_scatter", "in the trace, not in", "not measured"}) {
    expect_says(text.out, part);
  }
  EXPECT_TRUE(text.out.starts_with("not passed: step time -")) << text.out;
  EXPECT_EQ(text.out.find(" 0 B"), std::string::npos) << text.out;
  const Outcome outcome = with_data("validate --json --trace " + kTraceFolder + "/rank-0.trace.json" + traced_job());
  EXPECT_EQ(outcome.exit_code, 5);
  const auto json = json_of(outcome);
  EXPECT_TRUE(json.at("memory_error").is_null());
  EXPECT_TRUE(json.at("memory").at(0).at("measured_bytes").is_null());
  EXPECT_EQ(json.at("passed"), false);
  EXPECT_EQ(json.at("trace").at("missing").size(), 0U);
  EXPECT_EQ(json.at("trace").at("units").at(1).at("module"), "blocks.0");
  EXPECT_EQ(json.at("trace").at("units").at(1).at("unit"), "layers.0");
  // What has no memory error is not remembered.
  EXPECT_EQ(json_of(with_data("accuracy --history --json")).at("summary").at("rows"), 0);
}

TEST(ExplainVerb, TakesTheDifferenceOfARunApartExactly) {
  const auto json = json_of(with_data("explain --json --run " + kTraceFolder + traced_job()));
  std::int64_t sum = 0;
  for (const auto& part : json.at("parts")) sum += part.at("difference_ns").get<std::int64_t>();
  EXPECT_EQ(sum, json.at("difference_ns").get<std::int64_t>());
  EXPECT_GT(sum, 0);
  expect_follows_its_schema(json);
  const Outcome other = with_data("explain --run " + kTraceFolder + traced_job() + "--set units.head=own");
  EXPECT_EQ(other.exit_code, 3);
  expect_says(other.err, "the job shards 4 units");
}

TEST(AccuracyVerb, TellsWhatValidateRemembered) {
  const Place place;
  const auto empty = json_of(with_data("accuracy --history --json"));
  EXPECT_EQ(empty.at("summary").at("rows"), 0);
  write_run_folder(place.folder / "good", run_of(place.plan, 1.0));
  write_run_folder(place.folder / "slow", run_of(place.plan, 1.25));
  for (const char* run : {"good", "slow", "slow"}) with_data(std::string("validate --plan plan.yaml --run ") + run);
  with_data("validate --plan plan.yaml --run slow --no-history");
  const auto json = json_of(with_data("accuracy --history --json"));
  EXPECT_EQ(json.at("summary").at("rows"), 3);
  EXPECT_NEAR(json.at("summary").at("median_abs_error").get<double>(), 0.2, 1e-6);
  EXPECT_NEAR(json.at("summary").at("bias").get<double>(), -0.2, 1e-6);
  EXPECT_EQ(json.at("rows")[2].at("line"), 3);
  const Outcome text = with_data("accuracy --history");
  EXPECT_EQ(text.exit_code, 0);
  expect_says(text.out, "host node-7");
  EXPECT_EQ(with_data("accuracy").exit_code, 2);
}

TEST(AccuracyVerb, AHistoryThatCannotBeWrittenIsANote) {
  const Place place;
  write_run_folder(place.folder / "good", run_of(place.plan, 1.0));
  const Outcome noted =
      shell("touch file; export XDG_DATA_HOME=\"$PWD/file\"; \"$F\" validate --plan plan.yaml --run good");
  EXPECT_EQ(noted.exit_code, 0);
  expect_says(noted.err, "not added to the history");
  const Outcome homeless = shell("unset XDG_DATA_HOME HOME; \"$F\" validate --plan plan.yaml --run good");
  EXPECT_EQ(homeless.exit_code, 0);
  expect_says(homeless.err, "not added to the history");
}

// What the exported script's --record writes of a run over axes, here of what the plan has.
Json listed_as_planned(const std::string& job) {
  Json calls = Json::array();
  std::istringstream rows(run("schedule " + job).out);
  for (std::string line; std::getline(rows, line);) {
    std::vector<std::string> fields(1);
    for (const char c : line) {
      if (c == ',') fields.emplace_back();
      if (c != ',') fields.back() += c;
    }
    const std::string& kind = fields.at(1);
    const bool is_collective =
        kind == "all_gather" || kind == "reduce_scatter" || kind == "all_reduce" || kind == "all_to_all";
    if (!is_collective) continue;
    const bool of_tp = fields.at(6) == "tp", of_cp = fields.at(6) == "cp";
    calls.push_back({{"kind", kind}, {"bytes", std::stoll(fields.at(7))}, {"ranks", of_tp || of_cp ? 2 : 4},
        {"stride", of_tp ? 1 : 2}});
  }
  return {{"schema", "foreshard.timed/1"}, {"created", ""}, {"host", ""}, {"rank", 0}, {"world", 8},
      {"versions", Json::object()}, {"collectives", calls}, {"memory", Json(nullptr)}};
}

TEST(ValidateVerb, ComparesCollectivesAndMemoryOverAxes) {
  const std::string job =
      "--model llama-3.1-8b --cluster 8xh100 --runtime fsdp2@2.11 --sequence 2048 --set mesh.tp=2 --set mesh.cp=2 ";
  Json listed = listed_as_planned(job);
  std::filesystem::create_directory("axes");
  write_temporary("axes/rank-0.timed.json", listed.dump());
  const std::string validate = "validate --no-history --run axes " + job;
  const Outcome same = run(validate);
  EXPECT_EQ(same.exit_code, 0) << same.err << same.out;
  expect_says(same.out, "in order, groups and bytes");
  expect_says(same.out, "memory was not recorded");

  listed["memory"] = {{"peak_allocated_bytes", 1 << 30}, {"peak_reserved_bytes", 1 << 30}};
  listed["collectives"][3]["ranks"] = 8;
  write_temporary("axes/rank-0.timed.json", listed.dump());
  const Outcome other = run(validate + "--json");
  EXPECT_EQ(other.exit_code, 5) << other.err;
  const Json json = json_of(other);
  EXPECT_EQ(json.at("schema"), "foreshard.collectives/1");
  expect_follows_its_schema(json);
  expect_says(json.at("collectives").at("differences").at(0).get<std::string>(), "collective 4 of the step");
  EXPECT_GT(json.at("memory").at("error"), 0);

  const Outcome absent = run(validate + "--set rank=1");
  EXPECT_EQ(absent.exit_code, 3);
  expect_says(absent.err, "rank-1.timed.json: is not there");
}

}
}
