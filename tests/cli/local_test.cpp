// --cluster local: calibrate, which profile is taken, how many ranks there are, and what works without a profile.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "tests/calibration/synthetic.h"
#include "tests/cli/program.h"

namespace foreshard::local_test {
namespace {

constexpr const char* kJob = "--model gpt2 --cluster local --runtime native --sequence 128 ";

// With the folder of the test as the user's data folder.
Outcome at_home(const std::string& arguments) { return shell("XDG_DATA_HOME=\"$PWD/data\" \"$F\" " + arguments); }

void calibrate(const SyntheticRaw& raw, const std::string& more = "") {
  write_temporary("raw.json", raw.text());
  const Outcome outcome = at_home("calibrate raw.json " + more);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Local, WithoutAProfileTheCommandsAreNamed) {
  for (const char* verb : {"predict", "explain", "search", "compare --with recompute=full"}) {
    const Outcome outcome = at_home(std::string(verb) + " " + kJob);
    EXPECT_EQ(outcome.exit_code, 6) << verb;
    EXPECT_EQ(outcome.out, "");
    expect_says(outcome.err, "foreshard-exec measure --out raw.json");
    expect_says(outcome.err, "foreshard calibrate raw.json");
    expect_no_crash(outcome);
  }
}

TEST(Local, AScheduleNeedsNoProfile) {
  const Outcome one = at_home(std::string("schedule ") + kJob);
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out.find("all_gather"), std::string::npos);
  const Outcome two = at_home(std::string("schedule ") + kJob + "--set mesh.shard=2");
  EXPECT_EQ(two.exit_code, 0) << two.err;
  expect_says(two.out, "all_gather");
}

TEST(Local, CalibrateThenPredict) {
  write_temporary("raw.json", SyntheticRaw().text());
  const Outcome calibrated = at_home("calibrate raw.json");
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  for (const char* part : {"Example CPU @ 3.0GHz, 2 cores", "2 ranks at once", "GEMM fp32",
           "all_gather of 2 (microbatch)", "left out", "data/foreshard/profiles/box-2026-01-31T12-00-00Z.json"}) {
    expect_says(calibrated.out, part);
  }
  const Outcome predicted = at_home(std::string("predict ") + kJob + "--set mesh.shard=2");
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  expect_says(predicted.out, "2 x Example CPU @ 3.0GHz, one node (2 cores, 8.00 GiB shared)");
  // The same file by name, from a place without profiles.
  const Outcome named =
      run(std::string("predict --json ") + kJob + "--set mesh.shard=2 --profile data/foreshard/profiles/*.json");
  ASSERT_EQ(named.exit_code, 0) << named.err;
  const auto report = json_of(named);
  EXPECT_EQ(report.at("plan").at("mesh").at("shard"), 2);
  EXPECT_EQ(report.at("plan").at("dtype").at("param"), "fp32");
  EXPECT_EQ(report.at("plan").at("reduction_order"), "microbatch");
  EXPECT_EQ(report.at("memory").at("capacity_bytes"), std::int64_t{4} << 30);
  EXPECT_GT(report.at("step").at("mfu").at("value"), 0.3);
  EXPECT_LT(report.at("step").at("mfu").at("value"), 1.0);
  EXPECT_EQ(report.at("warnings").size(), 0U) << report.at("warnings");
}

TEST(Local, CalibrateAsJson) {
  write_temporary("raw.json", SyntheticRaw().text());
  const Outcome outcome = run("calibrate raw.json --out p.json --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json.at("schema"), "foreshard.calibrate/1");
  expect_follows_its_schema(json);
  EXPECT_EQ(json.at("profile"), "p.json");
  ASSERT_EQ(json.at("variants").size(), 2U);
  const auto& curve = json.at("variants")[1].at("curves")[0];
  EXPECT_EQ(curve.at("curve"), "GEMM fp32");
  EXPECT_LT(curve.at("own").at("median_abs_error"), 1e-6);
  EXPECT_LT(curve.at("left_out").at("median_abs_error"), 0.02);
  // The same measurements give the same profile.
  const std::string first = read_temporary("p.json");
  run("calibrate raw.json --out p.json");
  EXPECT_EQ(read_temporary("p.json"), first);
}

TEST(Local, TheNewestProfileIsTaken) {
  calibrate(SyntheticRaw().created("2026-03-01T00:00:00Z").cpu("Newer CPU"));
  calibrate(SyntheticRaw().created("2025-12-31T00:00:00Z").cpu("Older CPU"));
  write_temporary("data/foreshard/profiles/zzz-without-a-time.json", "{}");
  const Outcome outcome = at_home(std::string("predict ") + kJob);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_says(outcome.out, "1 x Newer CPU");
  expect_says(outcome.out, "the newest profile is of Newer CPU, this machine is");
  // A broken newest one is named, not passed over.
  write_temporary("data/foreshard/profiles/box-2026-04-01T00-00-00Z.json", "{\n  \"schema\": 1}");
  const Outcome broken = at_home(std::string("predict ") + kJob);
  EXPECT_EQ(broken.exit_code, 3);
  expect_says(broken.err, "box-2026-04-01T00-00-00Z.json:2:");
}

TEST(Local, RanksAreThoseOfTheMesh) {
  calibrate(SyntheticRaw(), "--out p.json");
  const auto ranks = [](const std::string& more) {
    const Outcome outcome = run(std::string("predict --json --profile p.json ") + kJob + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto mesh = json_of(outcome).at("plan").at("mesh");
    return std::pair(mesh.at("shard").get<int>(), mesh.at("replicate").get<int>());
  };
  EXPECT_EQ(ranks(""), std::pair(1, 1));
  EXPECT_EQ(ranks("--set mesh.shard=2"), std::pair(2, 1));
  EXPECT_EQ(ranks("--set mesh.replicate=2"), std::pair(1, 2));
  EXPECT_EQ(ranks("--set mesh.shard=2 --set mesh.replicate=2"), std::pair(2, 2));
  const Outcome many = run(std::string("predict --profile p.json ") + kJob + "--set mesh.shard=4");
  EXPECT_EQ(many.exit_code, 0) << many.err;
  expect_says(many.out, "warning: 4 ranks on 2 cores");
  const Outcome absurd = run(std::string("predict --profile p.json ") + kJob + "--set mesh.shard=8192");
  EXPECT_EQ(absurd.exit_code, 3);
  expect_says(absurd.err, "expected 1 to 4096");
}

TEST(Local, WrongFilesAreRefusedWithTheirPlace) {
  write_temporary("raw.json", "{\n  \"schema\": \"foreshard.profile/1\"}");
  Outcome outcome = run("calibrate raw.json --out p.json");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "raw.json:2:");
  outcome = run("calibrate absent.json");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "absent.json");
  EXPECT_EQ(run("calibrate").exit_code, 2);
  // Raw measurements are no profile.
  write_temporary("raw.json", SyntheticRaw().text());
  outcome = run(std::string("predict ") + kJob + "--profile raw.json");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "foreshard.local_profile/1, as foreshard calibrate writes it");
  outcome = run("calibrate raw.json --out no/such/folder/p.json");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "no/such/folder/p.json");
}

TEST(Local, AProfileOfAGpuIsReadForItsCluster) {
  const std::string shipped = write_temporary("h100-sxm.json", to_text(to_json(load_profile("h100-sxm"))));
  const std::string job = "predict --json --model gpt2 --cluster 8xh100 ";
  const Outcome named = run(job + "--profile " + shipped);
  ASSERT_EQ(named.exit_code, 0) << named.err;
  // A profile that is named stands alone; the shipped one comes with what published steps say.
  const auto alone = json_of(named);
  const auto informed = json_of(run(job));
  EXPECT_EQ(alone["fingerprint"], informed["fingerprint"]);
  EXPECT_EQ(alone["memory"]["peak_allocated_bytes"], informed["memory"]["peak_allocated_bytes"]);
  const double seconds = alone["step"]["seconds"]["value"];
  EXPECT_NEAR(seconds / informed["step"]["seconds"]["value"].get<double>(), 1, 0.1);
}

}
}
