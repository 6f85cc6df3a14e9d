#include "reports/validate/run_folder.h"

#include <sys/resource.h>

#include <cmath>

#include "reports/view/exact_seconds.h"
#include "sim/base/error.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/recorded.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// One compute row and a gather on two ranks, three steps.
RunRecord small_run() {
  HandMade step;
  step.gather(-5, 10, 60);
  step.compute(EventKind::kForward, 60, 100, {0});
  RunRecord record = steady_run(2, 3, step.graph, step.timeline);
  record.evaluations = {{2, 4.5}};
  record.ranks[1].arena = Bytes(1 << 20);
  record.ranks[1].activations_peak = Bytes(12345);
  record.ranks[0].rss_before_init = Bytes(111);
  record.ranks[0].rss_after_init = Bytes(222);
  record.ranks[0].peak_rss = Bytes(333);
  return record;
}

// What the reader says; "" where it says nothing.
std::string refusal(const fs::path& folder) {
  try {
    read_run_folder(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "";
}

void expect_refused(const fs::path& folder, const std::string& part) {
  EXPECT_NE(refusal(folder).find(part), std::string::npos) << refusal(folder);
}

// Writes a file and what run.json says about it, as a forger would.
void forge(const fs::path& folder, const std::string& name, const std::string& text) {
  const std::string old = content_of(folder / name);
  std::string run = content_of(folder / kRunFile);
  const auto swap = [&](const std::string& from, const std::string& to) {
    const std::size_t at = run.find(from, run.find("\"" + name + "\""));
    ASSERT_NE(at, std::string::npos);
    run.replace(at, from.size(), to);
  };
  swap(std::to_string(old.size()), std::to_string(text.size()));
  swap(hash_of(old), hash_of(text));
  std::ofstream(folder / kRunFile) << run;
  std::ofstream(folder / name) << text;
}

TEST(ExactSeconds, AreWholeNanosecondsBothWays) {
  for (std::int64_t ns : {0LL, 1LL, -1LL, 999999999LL, 1000000000LL, -1500000001LL}) {
    EXPECT_EQ(parse_exact_seconds(exact_seconds(Time::ns(ns))), Time::ns(ns));
  }
  EXPECT_EQ(parse_exact_seconds("2"), Time::ns(2'000'000'000));
  for (const char* bad : {"", "-", "1.", ".5", "1e3", "0x1", " 1", "1.0000000001", "nan", "--1", "99999999999",
           "99999999999999999999999"}) {
    EXPECT_FALSE(parse_exact_seconds(bad)) << bad;
  }
}

TEST(RunFolder, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const RunRecord written = small_run();
  write_run_folder(folder.path() / "run", written);
  const RunRecord read = read_run_folder(folder.path() / "run");
  EXPECT_EQ(read.created, written.created);
  EXPECT_EQ(read.host, written.host);
  EXPECT_EQ(read.cpu, written.cpu);
  EXPECT_EQ(read.versions, written.versions);
  EXPECT_EQ(read.command, written.command);
  EXPECT_EQ(read.fingerprint, written.fingerprint);
  EXPECT_EQ(read.plan_yaml, written.plan_yaml);
  EXPECT_EQ(read.launcher, written.launcher);
  EXPECT_EQ(read.world, 2);
  EXPECT_TRUE(read.complete);
  EXPECT_EQ(read.losses, written.losses);
  EXPECT_EQ(read.evaluations, written.evaluations);
  EXPECT_EQ(read.parameter_hash, written.parameter_hash);
  EXPECT_EQ(read.tokens_per_step, 1000);
  ASSERT_EQ(read.ranks.size(), 2U);
  for (std::size_t r = 0; r < 2; ++r) {
    const RankRecord& a = read.ranks[r];
    const RankRecord& b = written.ranks[r];
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(a.step_durations, b.step_durations);
    EXPECT_EQ(a.rss_before_init, b.rss_before_init);
    EXPECT_EQ(a.rss_after_init, b.rss_after_init);
    EXPECT_EQ(a.peak_rss, b.peak_rss);
    EXPECT_EQ(a.arena, b.arena);
    EXPECT_EQ(a.activations_peak, b.activations_peak);
    ASSERT_EQ(a.timelines.size(), b.timelines.size());
    for (std::size_t s = 0; s < a.timelines.size(); ++s) {
      EXPECT_EQ(a.timelines[s].step, b.timelines[s].step);
      EXPECT_EQ(a.timelines[s].begin, b.timelines[s].begin);
      EXPECT_EQ(a.timelines[s].duration, b.timelines[s].duration);
      EXPECT_EQ(a.timelines[s].spans, b.timelines[s].spans);
    }
  }
}

TEST(RunFolder, KeepsDivergedAndInterruptedRuns) {
  const TemporaryFolder folder;
  RunRecord run = small_run();
  run.complete = false;
  run.first_step = 41;
  run.losses = {1.5, std::nan("")};
  run.evaluations = {{41, INFINITY}};
  run.ranks[1].step_durations.pop_back();  // rank 1 was not as far
  run.ranks[1].timelines.clear();
  run.ranks[0].clocks_shared = false;
  run.model_json = "{}";
  write_run_folder(folder.path(), run);
  const RunRecord read = read_run_folder(folder.path());
  EXPECT_FALSE(read.complete);
  EXPECT_EQ(read.first_step, 41);
  ASSERT_EQ(read.losses.size(), 2U);
  EXPECT_TRUE(std::isnan(read.losses[1]));
  EXPECT_TRUE(std::isnan(read.evaluations[0].second));
  EXPECT_EQ(read.ranks[0].step_durations.size(), 3U);
  EXPECT_EQ(read.ranks[1].step_durations.size(), 2U);
  EXPECT_EQ(read.model_json, "{}");
  EXPECT_FALSE(read.ranks[0].clocks_shared);
  // Without a shared clock nobody knows when a collective's group was there.
  EXPECT_EQ(read.ranks[0].timelines[0].spans[0].arrive, Time::ns(-5));
}

TEST(RunFolder, LeavesNothingOfAnOlderRun) {
  const TemporaryFolder folder;
  RunRecord run = small_run();
  run.model_json = "{}";
  write_run_folder(folder.path(), run);
  run.world = 1;
  run.ranks.pop_back();
  run.model_json = "";
  write_run_folder(folder.path(), run);
  EXPECT_EQ(read_run_folder(folder.path()).ranks.size(), 1U);
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    (void)entry;
    ++files;
  }
  EXPECT_EQ(files, 4U);  // plan.yaml, steps.csv, timeline-rank-0.csv, run.json
}

TEST(RunFolder, RefusesEveryTruncatedOrAlteredFile) {
  const TemporaryFolder folder;
  for (const char* name : {"plan.yaml", "steps.csv", "timeline-rank-1.csv", "run.json"}) {
    write_run_folder(folder.path(), small_run());
    ASSERT_EQ(refusal(folder.path()), "");
    const fs::path path = folder.path() / name;
    const std::string whole = content_of(path);
    for (std::size_t size : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
      fs::resize_file(path, size);
      if (name != std::string("run.json") || size + 1 < whole.size()) expect_refused(folder.path(), name);
      std::ofstream(path, std::ios::binary) << whole;
    }
    if (name == std::string("run.json")) continue;
    std::string altered = whole;
    altered[altered.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << altered;
    expect_refused(folder.path(), "damaged");
    fs::remove(path);
    expect_refused(folder.path(), "No such file");
  }
}

TEST(RunFolder, RefusesHostileContentWithFileAndLine) {
  const TemporaryFolder folder;
  const fs::path& path = folder.path();
  const std::string head = std::string(kTimelineHeader) + "\n";
  const auto expect = [&](const char* name, const std::string& text, const std::string& part) {
    write_run_folder(path, small_run());
    forge(path, name, text);
    expect_refused(path, part);
    expect_refused(path, name);
  };
  const char* timeline = "timeline-rank-0.csv";
  expect(timeline, "", "wrong header");
  expect(timeline, head, "the file ends in step 1");
  expect(timeline, head + "1,0,0,0,0\n", ":2: 5 fields; expected 6");
  expect(timeline, head + "1,1,0,0,0,0\n", ":2: step 1, event 1; expected step 1, event 0");
  expect(timeline, head + "1,99999999999999999999,0,0,0,0\n", "is not a whole number");
  expect(timeline, head + "1,0,0,0,0,1e308\n", "is not a time");
  expect(timeline, head + "1,0,0,5,5,4\n", "ends before it starts");
  expect(timeline, head + "1,0,0,0,0,0", "cut off");
  expect("steps.csv", "step,loss,rank_0_s,rank_1_s\n2,1,1,1\n", ":2: step 2; expected step 1");
  expect("steps.csv", "step,loss,rank_0_s,rank_1_s\n1,,1,1\n2,5,1,1\n", "follows an empty one");
  expect("steps.csv", "step,loss,rank_0_s,rank_1_s\n1,x,1,1\n", "is not a number");
  expect("steps.csv", "step,loss,rank_0_s,rank_1_s\n1,1,-1,1\n", "less than no time");
}

TEST(RunFolder, RefusesHostileHeads) {
  const TemporaryFolder folder;
  const auto expect = [&](const std::string& from, const std::string& to, const char* part) {
    write_run_folder(folder.path(), small_run());
    std::string run = content_of(folder.path() / kRunFile);
    const std::size_t at = run.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    run.replace(at, from.size(), to);
    std::ofstream(folder.path() / kRunFile) << run;
    expect_refused(folder.path(), part);
  };
  expect("foreshard.run/1", "foreshard.run/9", "unknown 'foreshard.run/9'");
  expect("\"world\": 2", "\"world\": 1", "ranks do not ascend below world");
  expect("\"world\": 2", "\"world\": 1e30", "world");
  expect("\"rank\": 1", "\"rank\": 0", "ranks do not ascend");
  expect("\"events\": 2", "\"events\": 1000000000", ":4: step 2, event 0; expected step 1, event 2");
  expect("\"events\": 2", "\"events\": -1", "events");
  expect("\"step\": 3,", "\"step\": 2,", "the steps do not ascend");
  expect("\"arena_bytes\": 1048576", "\"arena_bytes\": 1e300", "arena_bytes");
  expect("\"tokens_per_step\": 1000.0", "\"tokens_per_step\": \"many\"", "tokens_per_step");
  expect("timeline-rank-1.csv", "../timeline-rank-1.csv", "is not among them");
}

TEST(RunFolder, SaysWhichFileCannotBeWritten) {
  const TemporaryFolder folder;
  const auto expect = [&](const fs::path& where, const std::string& part) {
    try {
      write_run_folder(where, small_run());
      ADD_FAILURE() << "written";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  std::ofstream(folder.path() / "file") << "x";
  expect(folder.path() / "file" / "run", "file");
  fs::create_directories(folder.path() / "taken" / kRunFile / "x");
  expect(folder.path() / "taken", "run.json: cannot be written: Is a directory");
}

TEST(RunFolder, OnAFullDiskTheOldRunStays) {
  const TemporaryFolder folder;
  RunRecord run = small_run();
  write_run_folder(folder.path(), run);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 4096;
  run.plan_yaml = std::string(100'000, '#') + "\n";
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::string said;
  try {
    write_run_folder(folder.path(), run);
  } catch (const Error& error) {
    said = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(said.find("plan.yaml: cannot be written: File too large"), std::string::npos) << said;
  EXPECT_EQ(refusal(folder.path()), "");
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().string().find("writing"), std::string::npos) << entry.path();
  }
}

TEST(RunRecord, TokensPerSecondLeavesOutThreeStepsOfTheSlowestRank) {
  RunRecord run = small_run();
  const auto seconds = [](std::initializer_list<double> list) {
    std::vector<Time> times;
    for (double s : list) times.push_back(Time::seconds(s));
    return times;
  };
  run.ranks[0].step_durations = seconds({9, 9, 9, 1, 2, 1});
  run.ranks[1].step_durations = seconds({9, 9, 9, 4, 1, 1});
  // The slowest: 4, 2, 1; their median 2.
  EXPECT_DOUBLE_EQ(tokens_per_second(run), 500);
  run.ranks[0].step_durations = run.ranks[1].step_durations = seconds({1, 4});
  EXPECT_DOUBLE_EQ(tokens_per_second(run), 400);
  run.ranks[0].step_durations.clear();
  EXPECT_EQ(tokens_per_second(run), 0);
}

}
}
