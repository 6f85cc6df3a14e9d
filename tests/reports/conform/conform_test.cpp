// One small step by hand and the recording that equals it; then every kind of difference, one at a time, must be told.
//
//   actions           log                                       live after it
//                     1 step_begin                              D 512 (shard) + 1024 (rotary table)
//   gather +4096 CI   2 all_gather_copy_in  layers.0  CI        CI 4096
//                     3 wait                layers.0  AG
//   params +512+1024  4 all_gather_copy_out layers.0  D         D 3072
//   gather -4096      5 free_all_gather_output layers.0         CI 0
//   output +2048 RS   6 reduce_scatter      layers.0  RS        RS 2048
//   output is stored  7 reduce_end          layers.0            now a sharded gradient
//   params, output -  8 step_end                                D 1536
#include "reports/conform/conform.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reports/conform/conform_parts.h"

namespace foreshard {
namespace {

using What = Difference::What;

HostEvent event(const char* kind, std::int32_t unit, const char* stream, std::uint32_t actions) {
  return HostEvent{.kind = kind, .unit = unit, .stream = stream, .actions = actions};
}

RecordedStep hand_made_step() {
  RecordedStep step;
  EventGraph& graph = step.graph;
  Unit unit = {.name = "layers.0", .parameters = 2, .numel = 1000, .shard_numel = 128, .shards = 8};
  graph.units = {unit};
  const auto buffer = [&](MemoryCategory category, Stream pool, std::int64_t bytes) {
    Buffer b = {.category = category, .pool = pool, .unit = 0, .bytes = Bytes(bytes)};
    graph.buffers.push_back(b);
  };
  buffer(MemoryCategory::kShardedParam, Stream::kCompute, 512);
  buffer(MemoryCategory::kAllGatherOutput, Stream::kCopyIn, 4096);
  buffer(MemoryCategory::kUnshardedParam, Stream::kCompute, 1536);
  graph.parts = {{Bytes(512), Bytes(0), Bytes(1024)}};
  graph.buffers.back().parts = 0;
  buffer(MemoryCategory::kReduceScatterOutput, Stream::kReduceScatter, 2048);
  graph.persistent = {0};
  using Kind = MemoryAction::Kind;
  graph.actions = {{Kind::kAllocate, 1}, {Kind::kAllocate, 2}, {Kind::kFree, 1}, {Kind::kAllocate, 3},
      {Kind::kStore, 3}, {Kind::kFree, 2}, {Kind::kFree, 3}};
  step.log = {event("step_begin", HostEvent::kNobody, "D", 0), event("all_gather_copy_in", 0, "CI", 1),
      event("wait", 0, "AG", 1), event("all_gather_copy_out", 0, "D", 2), event("free_all_gather_output", 0, "D", 3),
      event("reduce_scatter", 0, "RS", 4), event("reduce_end", 0, "D", 5),
      event("step_end", HostEvent::kNobody, "D", 7)};
  for (std::size_t outside : {0U, 7U}) step.log[outside].microbatch = -1;
  step.log[2].on = "all_gather";
  step.log[2].on_unit = 0;
  step.log[4].bytes_in = 4096;
  HostEvent& reduce = step.log[5];
  reduce.bytes_in = 4096;
  reduce.bytes_out = 512;
  reduce.dtype = "fp32";
  reduce.group = "shard";
  reduce.group_size = 8;
  reduce.on = "AVG";
  return step;
}

ForecastSteps hand_made_forecast() { return {hand_made_step(), hand_made_step(), {"layers.0"}, 1024}; }

RecordedEvent row(std::int64_t seq, const char* kind, const char* unit, const char* stream, PoolBytes pools) {
  return RecordedEvent{
      .step = 2, .seq = seq, .microbatch = 0, .kind = kind, .unit = unit, .stream = stream, .pools = pools};
}

Recording hand_made_recording() {
  Recording r = {.id = "tiny",
      .version = "2.11.0",
      .index_file = "index.csv",
      .events_file = "events.csv",
      .memory_file = "memory.csv",
      .peaks_file = "peaks.csv",
      .units_file = "units.csv",
      .allocations_file = "allocations.csv",
      .events = {row(1, "step_begin", "", "D", {1536, 0, 0, 0, 0}),
          row(2, "all_gather_copy_in", "layers.0", "CI", {1536, 4096, 0, 0, 0}),
          row(3, "wait", "layers.0", "AG", {1536, 4096, 0, 0, 0}),
          row(4, "all_gather_copy_out", "layers.0", "D", {3072, 4096, 0, 0, 0}),
          row(5, "free_all_gather_output", "layers.0", "D", {3072, 0, 0, 0, 0}),
          row(6, "reduce_scatter", "layers.0", "RS", {3072, 0, 2048, 0, 0}),
          row(7, "reduce_end", "layers.0", "D", {3072, 0, 2048, 0, 0}),
          row(8, "step_end", "", "D", {1536, 0, 0, 0, 0})}};
  r.events[0].microbatch = r.events[7].microbatch = -1;
  r.events[2].on = "all_gather layers.0";
  r.events[4].bytes_in = 4096;
  r.events[5].bytes_in = 4096;
  r.events[5].bytes_out = 512;
  r.events[5].dtype = "fp32";
  r.events[5].group = "shard:8";
  r.events[5].on = "AVG";
  r.categories = {
      "sharded_param", "unsharded_param", "sharded_grad", "all_gather_output", "reduce_scatter_output", "other"};
  const auto boundary = [&](std::int64_t step, std::int64_t seq, const char* kind, const char* unit, std::int64_t total,
                            std::int64_t peak, std::vector<std::int64_t> categories) {
    r.memory.push_back(
        {step, seq, kind == std::string("reduce_end") ? 0 : -1, kind, unit, total, peak, std::move(categories)});
  };
  for (std::int64_t step : {1, 2}) {
    boundary(step, 1, "step_begin", "", 1536, 1536, {512, 0, 0, 0, 0, 1024});
    // 1536 + 4096 + 1536 while the gather's output and the parameters lived.
    boundary(step, 7, "reduce_end", "layers.0", 5120, 7168, {512, 1536, 2048, 0, 0, 1024});
    boundary(step, 8, "step_end", "", 1536, 5120, {512, 0, 0, 0, 0, 1024});
    r.peaks.push_back({step, "sharded_param", 512, 512});
    r.peaks.push_back({step, "unsharded_param", 1536, 1536});
    r.peaks.push_back({step, "all_gather_output", 4096, 4096});
    r.peaks.push_back({step, "reduce_scatter_output", 0, 2048});
    r.peaks.push_back({step, "sharded_grad", 0, 2048});
    r.peaks.push_back({step, "other", 1024, 1024});
    r.steps[static_cast<std::size_t>(step - 1)].total = 7168;
    r.steps[static_cast<std::size_t>(step - 1)].end = 1536;
    r.steps[static_cast<std::size_t>(step - 1)].pools = {3072, 4096, 2048, 0, 0};
    const auto allocation = [&](std::int64_t after, bool freed, std::int64_t bytes, const char* pool,
                                const char* category, const char* unit) {
      r.allocations.push_back({step, after, freed, bytes, pool, category, unit});
    };
    allocation(1, false, 4096, "CI", "all_gather_output", "layers.0");
    allocation(3, false, 512, "D", "unsharded_param", "layers.0");
    allocation(3, false, 1024, "D", "unsharded_param", "layers.0");
    allocation(4, true, 4096, "CI", "all_gather_output", "layers.1");
    allocation(5, false, 2048, "RS", "reduce_scatter_output", "layers.0");
    allocation(7, true, 512, "D", "unsharded_param", "layers.0");
    allocation(7, true, 1024, "D", "unsharded_param", "layers.0");
    allocation(7, true, 2048, "RS", "sharded_grad", "");
  }
  r.units = {{"layers.0", 2, 1000, 125, 128}};
  return r;
}

Conformance conform_tiny(const Recording& recording) { return conform(recording, hand_made_forecast()); }

bool has(const Conformance& c, What what) {
  return std::ranges::any_of(c.differences, [&](const Difference& d) { return d.what == what; });
}

void expect_says(const Conformance& c, std::string_view part) {
  std::string all;
  for (const Difference& d : c.differences) all += d.text;
  EXPECT_NE(all.find(part), std::string::npos) << part << " is not in:\n" << all;
}

TEST(LoggedMemory, CountsAsTheRecorderDoes) {
  const LoggedMemory memory = log_memory(hand_made_step(), 1024);
  ASSERT_EQ(memory.levels.size(), 8U);
  EXPECT_EQ(memory.peak, 512 + 1024 + 4096 + 1536);
  EXPECT_EQ(memory.levels[3].highest, 7168);
  EXPECT_EQ(memory.levels[4].highest, 7168);  // where it began
  EXPECT_EQ(memory.levels[4].total, 3072);
  EXPECT_EQ(memory.end, 1536);
  EXPECT_EQ(memory.allocations.size(), 8U);  // the part without bytes is none
}

TEST(LoggedMemory, HostMemoryIsInNoTotal) {
  RecordedStep step = hand_made_step();
  step.graph.buffers[0].on_host = true;
  const LoggedMemory memory = log_memory(step, 0);
  EXPECT_EQ(memory.levels[0].total, 0);
  EXPECT_EQ(memory.levels[0].pools[kHostPool], 512);
  EXPECT_EQ(memory.levels[0].categories[0], 512);
  EXPECT_EQ(memory.peak, 4096 + 1536);
}

TEST(Conform, EqualIsIdenticalInEverything) {
  const Conformance c = conform_tiny(hand_made_recording());
  for (const Difference& d : c.differences) ADD_FAILURE() << d.text;
  EXPECT_EQ(c.state, Conformance::State::kCompared);
  EXPECT_TRUE(c.identical());
  EXPECT_TRUE(c.passed());
  EXPECT_TRUE(c.memory_within_tolerance);
  EXPECT_EQ(c.allocations_identical, true);
  EXPECT_TRUE(c.free_order_identical);
  EXPECT_EQ(c.peak_measured_bytes, 7168);
  EXPECT_EQ(c.peak_predicted_bytes, 7168);
  EXPECT_EQ(c.rows, 16);  // step 1 has the order of step 2
}

TEST(Conform, SwappedRows) {
  Recording r = hand_made_recording();
  std::swap(r.events[1].kind, r.events[3].kind);
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.schedule_identical);
  EXPECT_FALSE(c.passed());
  ASSERT_TRUE(has(c, What::kSchedule));
  expect_says(c, "events.csv, tiny, step 2, seq 2");
  expect_says(c, "! seq 2  all_gather_copy_out layers.0 CI mb0");
}

// Each column of the schedule by itself.
TEST(Conform, EveryColumnOfTheScheduleCounts) {
  const std::vector<void (*)(RecordedEvent&)> changes = {
      [](RecordedEvent& e) { e.kind = "all_reduce"; },
      [](RecordedEvent& e) { e.unit = "layers.1"; },
      [](RecordedEvent& e) { e.stream = "AR"; },
      [](RecordedEvent& e) { e.dtype = "bf16"; },
      [](RecordedEvent& e) { e.group = "shard:4"; },
      [](RecordedEvent& e) { e.cause = "demand"; },
      [](RecordedEvent& e) { e.state = "forward"; },
      [](RecordedEvent& e) { e.on = "SUM"; },
      [](RecordedEvent& e) { e.microbatch = 1; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    Recording r = hand_made_recording();
    changes[i](r.events[5]);
    const Conformance c = conform_tiny(r);
    EXPECT_FALSE(c.schedule_identical);
    EXPECT_FALSE(c.passed());
    EXPECT_EQ(c.bytes_identical, i > 1);  // rows that carry bytes are known by kind and unit
  }
}

TEST(Conform, WrongWait) {
  Recording r = hand_made_recording();
  r.events[2].on = "all_gather layers.1";
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.schedule_identical);
  EXPECT_TRUE(c.bytes_identical);
  EXPECT_TRUE(c.memory_identical);
  expect_says(c, "[all_gather layers.1]");
  expect_says(c, "[all_gather layers.0]");
}

TEST(Conform, MissingWaitLeavesBytesComparable) {
  Recording r = hand_made_recording();
  r.events.erase(r.events.begin() + 2);
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.schedule_identical);
  EXPECT_TRUE(c.bytes_identical);
}

TEST(Conform, MissingFree) {
  Recording r = hand_made_recording();
  r.events.erase(r.events.begin() + 4);
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.schedule_identical);
  EXPECT_FALSE(c.bytes_identical);
  expect_says(c, "free_all_gather_output");
}

TEST(Conform, RowAfterTheEnd) {
  Recording r = hand_made_recording();
  r.events.push_back(row(9, "wait", "", "D", {1536, 0, 0, 0, 0}));
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.schedule_identical);
  expect_says(c, "(no row)");
}

TEST(Conform, OneWrongByte) {
  for (std::int64_t RecordedEvent::*side : {&RecordedEvent::bytes_in, &RecordedEvent::bytes_out}) {
    Recording r = hand_made_recording();
    r.events[5].*side += 1;
    const Conformance c = conform_tiny(r);
    EXPECT_TRUE(c.schedule_identical);
    EXPECT_FALSE(c.bytes_identical);
    EXPECT_FALSE(c.passed());
    EXPECT_EQ(c.differences.front().what, What::kBytes);
  }
}

TEST(Conform, WrongUnitSizes) {
  for (std::int64_t RecordedUnit::*column :
      {&RecordedUnit::params, &RecordedUnit::numel, &RecordedUnit::shard_numel_padded}) {
    Recording r = hand_made_recording();
    r.units[0].*column += 1;
    const Conformance c = conform_tiny(r);
    EXPECT_FALSE(c.bytes_identical);
    EXPECT_TRUE(has(c, What::kUnits));
  }
  Recording r = hand_made_recording();
  r.units[0].unit = "layers.7";
  const Conformance c = conform_tiny(r);
  expect_says(c, "layers.7 is not predicted");
  expect_says(c, "layers.0 was not recorded");
}

TEST(Conform, LevelOfAPoolAfterARow) {
  for (std::size_t pool = 0; pool < kPools.size(); ++pool) {
    Recording r = hand_made_recording();
    r.events[3].pools[pool] += 512;
    const Conformance c = conform_tiny(r);
    EXPECT_TRUE(c.schedule_identical && c.bytes_identical);
    EXPECT_FALSE(c.memory_identical);
    EXPECT_TRUE(c.memory_within_tolerance);  // no peak says so
    EXPECT_TRUE(c.passed());
    expect_says(c, "seq 4: live bytes by pool");
  }
}

TEST(Conform, BoundaryOfEitherStep) {
  for (const std::size_t at : {1U, 4U}) {
    Recording r = hand_made_recording();
    r.memory[at].peak_since_previous_row += 512;
    EXPECT_FALSE(conform_tiny(r).memory_identical);
    r = hand_made_recording();
    r.memory[at].total += 512;
    EXPECT_FALSE(conform_tiny(r).memory_identical);
    r = hand_made_recording();
    r.memory[at].seq += 1;
    EXPECT_FALSE(conform_tiny(r).memory_identical);
    r.memory_has_own_seq = false;  // another version's rows
    EXPECT_TRUE(conform_tiny(r).memory_identical);
    r = hand_made_recording();
    r.memory.erase(r.memory.begin() + at);
    EXPECT_FALSE(conform_tiny(r).memory_identical);
  }
}

TEST(Conform, WrongCategory) {
  Recording r = hand_made_recording();
  std::swap(r.memory[1].categories[2], r.memory[1].categories[4]);  // not yet stored
  const Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.memory_identical);
  expect_says(c, "sharded_grad");
  expect_says(c, "reduce_scatter_output");
}

// 0.2 % of 7168 is 14.3.
TEST(Conform, PeaksWithinTolerance) {
  Recording r = hand_made_recording();
  r.steps[0].total = 7168 + 14;
  Conformance c = conform_tiny(r);
  EXPECT_FALSE(c.memory_identical);
  EXPECT_TRUE(c.memory_within_tolerance);
  EXPECT_TRUE(c.passed());

  r.steps[0].total = 7168 + 15;
  c = conform_tiny(r);
  EXPECT_FALSE(c.memory_within_tolerance);
  EXPECT_FALSE(c.passed());
  EXPECT_EQ(c.worst_peak, "step 1 peak");

  r = hand_made_recording();
  r.steps[1].pools[2] = 2048 + 15;
  c = conform_tiny(r);
  EXPECT_FALSE(c.memory_within_tolerance);
  EXPECT_EQ(c.worst_peak, "step 2 peak_RS");

  r = hand_made_recording();
  r.peaks[4].own_peak = 0;  // sharded_grad of step 1
  c = conform_tiny(r);
  EXPECT_FALSE(c.memory_within_tolerance);
  EXPECT_NEAR(c.worst_peak_error, 2048.0 / 7168, 1e-12);
  EXPECT_EQ(c.worst_peak, "step 1 own_peak of sharded_grad");

  r = hand_made_recording();
  r.peaks.erase(r.peaks.begin() + 4);  // no row is nothing
  EXPECT_FALSE(conform_tiny(r).memory_within_tolerance);

  r = hand_made_recording();
  r.peaks.push_back({2, "something_else", 0, 512});
  EXPECT_FALSE(conform_tiny(r).memory_within_tolerance);

  r = hand_made_recording();
  r.peaks[0].at_total_peak += 512;  // what lay there at the peak is no peak itself
  c = conform_tiny(r);
  EXPECT_FALSE(c.memory_identical);
  EXPECT_TRUE(c.memory_within_tolerance);
}

TEST(Conform, WithoutMemoryItCountsAsWithin) {
  Recording r = hand_made_recording();
  r.memory.clear();
  r.peaks.clear();
  r.peaks_file.clear();
  r.steps = {};
  r.events_have_pools = false;
  const Conformance c = conform_tiny(r);
  EXPECT_TRUE(c.identical());
  EXPECT_TRUE(c.memory_within_tolerance);
  EXPECT_FALSE(c.peak_measured_bytes.has_value());
}

TEST(Conform, Allocations) {
  const std::vector<void (*)(std::vector<RecordedAllocation>&)> changes = {
      [](auto& a) { a[0].bytes += 512; },
      [](auto& a) { a[0].pool = "D"; },
      [](auto& a) { a[0].category = "cast_temp"; },
      [](auto& a) { a[0].unit = "layers.1"; },
      [](auto& a) { a[0].after_seq = 2; },
      [](auto& a) { a[0].freed = true; },
      [](auto& a) { a.erase(a.begin()); },
      [](auto& a) { std::swap(a[1].bytes, a[2].bytes); },
      [](auto& a) { a[7].category = "reduce_scatter_output"; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    Recording r = hand_made_recording();
    changes[i](r.allocations);
    const Conformance c = conform_tiny(r);
    EXPECT_EQ(c.allocations_identical, false);
    EXPECT_TRUE(c.identical());  // they are reported beside the three
    EXPECT_TRUE(c.passed());
    EXPECT_TRUE(has(c, What::kAllocations));
    EXPECT_EQ(c.first_difference(), nullptr);
  }
}

TEST(Conform, OrderOfFreesBetweenTwoEvents) {
  Recording r = hand_made_recording();
  std::swap(r.allocations[5], r.allocations[7]);
  const Conformance c = conform_tiny(r);
  EXPECT_EQ(c.allocations_identical, true);
  EXPECT_FALSE(c.free_order_identical);
}

TEST(Conform, FirstStepMustHaveTheOrderThatTheIndexSays) {
  ForecastSteps forecast = hand_made_forecast();
  forecast.first.log.erase(forecast.first.log.begin() + 2);
  Conformance c = conform(hand_made_recording(), forecast);
  EXPECT_FALSE(c.schedule_identical);
  expect_says(c, "step 1 (which has the order of step 2)");

  Recording r = hand_made_recording();
  r.first_step_order_equal = false;
  r.memory.erase(r.memory.begin(), r.memory.begin() + 3);
  r.allocations.clear();
  r.allocations_file.clear();
  std::vector<RecordedEvent> first = r.events;
  first.erase(first.begin() + 2);
  for (RecordedEvent& e : first) {
    e.step = 1;
    e.seq -= e.seq > 3 ? 1 : 0;
  }
  first[0].microbatch = 0;  // as the recorder numbers step 1
  r.events.insert(r.events.begin(), first.begin(), first.end());
  c = conform(r, forecast);
  for (const Difference& d : c.differences) ADD_FAILURE() << d.text;
  EXPECT_TRUE(c.identical());
}

TEST(Conform, PartlyStoredIsComparedButNotCounted) {
  Recording r = hand_made_recording();
  r.events.clear();
  r.events_file.clear();
  const Conformance c = conform_tiny(r);
  EXPECT_EQ(c.state, Conformance::State::kPartlyStored);
  EXPECT_TRUE(c.passed());
  r.steps[1].total = 9999;
  EXPECT_FALSE(conform_tiny(r).passed());
  const ConformanceSummary s = summarize({{"folder", {c, conform_tiny(hand_made_recording())}}});
  EXPECT_EQ(s.configurations, 1);
  EXPECT_EQ(s.partly_stored, 1);
}

TEST(ConformView, SumsAndKeys) {
  Recording different = hand_made_recording();
  different.id = "different";
  different.events[5].bytes_in = 1;
  Conformance skipped;
  skipped.id = "skipped";
  skipped.state = Conformance::State::kNotRecorded;
  skipped.counted = false;
  skipped.reason = "no such knob";
  Conformance refused;
  refused.id = "refused";
  refused.state = Conformance::State::kNotForecast;
  refused.reason = "no plan expresses frozen = 'half'";
  const std::vector<ConformanceFolder> folders = {
      {"there", {conform_tiny(hand_made_recording()), conform_tiny(different), skipped, refused}}};
  const Json json = conformance_json(folders);
  EXPECT_EQ(json["summary"]["configurations"], 3);
  EXPECT_EQ(json["summary"]["schedule_identical"], 2);
  EXPECT_EQ(json["summary"]["bytes_identical"], 1);
  EXPECT_EQ(json["summary"]["memory_within_tolerance"], 2);
  EXPECT_EQ(json["summary"]["passed"], false);
  ASSERT_EQ(json["rows"].size(), 4U);
  EXPECT_EQ(json["rows"][0]["schedule_identical"], true);
  EXPECT_TRUE(json["rows"][0]["first_difference"].is_null());
  EXPECT_EQ(json["rows"][0]["peak_measured_bytes"], 7168);
  EXPECT_EQ(json["rows"][0]["peak_predicted_bytes"], 7168);
  EXPECT_TRUE(json["rows"][1]["first_difference"].is_string());
  EXPECT_TRUE(json["rows"][2]["schedule_identical"].is_null());
  EXPECT_EQ(json["rows"][2]["reason"], "no such knob");
  EXPECT_EQ(json["rows"][3]["schedule_identical"], false);

  const std::string text = conformance_text(folders, 1, Color::kNever);
  EXPECT_NE(text.find("3 configurations"), std::string::npos) << text;
  EXPECT_NE(text.find("different (2.11.0): bytes differ"), std::string::npos) << text;
  EXPECT_NE(text.find("1 more"), std::string::npos) << text;
  EXPECT_NE(text.find("no such knob"), std::string::npos) << text;
}

}
}
