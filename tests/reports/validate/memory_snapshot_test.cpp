// The bytes of small pickles, derived from the opcodes' descriptions, and a step's snapshot read
// back by Python's own pickle module.
#include "reports/validate/memory_snapshot.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "sim/memory/reserved.h"
#include "sim/memory/reserved_forecast.h"
#include "tests/reports/random_plans.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

using namespace std::string_literals;

TEST(Pickle, EveryKindOfValueAsItsOpcodesSay) {
  PickleWriter p;
  p.begin_list();
  p.none();
  p.pair(1, 2);
  p.boolean(true);
  p.boolean(false);
  p.integer(7);    // one byte
  p.integer(258);  // two, low first
  p.integer(-2);   // four, two's complement
  p.integer(std::int64_t{1} << 40);
  p.text("ab");  // remembered as 0
  p.text("ab");  // and fetched
  p.begin_dict();
  p.entry("k", 1);
  p.end_dict();
  p.end_list();
  EXPECT_EQ(p.finish(),
      "\x80\x02](NK\x01K\x02\x86\x88\x89K\x07M\x02\x01J\xfe\xff\xff\xff"
      "\x8a\x08\0\0\0\0\0\x01\0\0X\x02\0\0\0abq\0h\0}(X\x01\0\0\0kq\x01K\x01ue."s);
}

// Beyond 255 texts the memo's index takes four bytes.
TEST(Pickle, ManyTexts) {
  PickleWriter p;
  for (int i = 0; i < 257; ++i) p.text(std::to_string(i));
  p.text("256");
  EXPECT_TRUE(p.finish().ends_with("X\x03\0\0\0"s + "256r\0\x01\0\0j\0\x01\0\0."s));
}

// Python adds up what the snapshot says and prints it.
constexpr const char* kReader = R"(
import pickle, sys
d = pickle.load(open(sys.argv[1], 'rb'))
live = {b['address']: b['requested_size'] for s in d['segments'] for b in s['blocks'] if b['state'] == 'active_allocated'}
for e in reversed(d['device_traces'][0]):  # back to the step's begin
    if e['action'] == 'alloc': live.pop(e['addr'], None)
    if e['action'] == 'free_completed': live[e['addr']] = e['size']
now = peak = sum(live.values())
for e in d['device_traces'][0]:
    if e['action'] == 'alloc': now += e['size']
    if e['action'] == 'free_completed': now -= e['size']
    peak = max(peak, now)
    assert e['frames'][0]['name'] and e['frames'][-1]['filename'] == 'step', e
for s in d['segments']:
    assert sum(b['size'] for b in s['blocks']) == s['total_size'], s
    assert s['stream'] >= 0 and s['segment_type'] in ('small', 'large')
print(peak, sum(s['total_size'] for s in d['segments']), len(d['segments']))
)";

TEST(MemorySnapshot, PythonReadsThePeakAndTheSegmentsBack) {
  if (std::system("python3 -c 'import pickle' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no python3 here";
  }
  RandomPlans plans(11);
  const TemporaryFolder folder;
  for (int i = 0; i < 4; ++i) {
    const Forecast forecast = plans.next_forecast();
    const Buckets buckets = buckets_of(forecast.plan);
    const ReservedProfile profile =
        replay_reserved(forecast.graph, {}, DeviceMemory::unlimited(), {{}, nullptr, buckets});
    const std::filesystem::path file = folder / "snapshot.pickle";
    const std::filesystem::path script = folder / "read_snapshot.py";
    std::ofstream(file, std::ios::binary) << memory_snapshot(forecast, {}, DeviceMemory::unlimited());
    std::ofstream(script) << kReader;
    FILE* pipe = popen(("python3 " + script.string() + " " + file.string()).c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    long long peak = 0, reserved = 0, segments = 0;
    EXPECT_EQ(fscanf(pipe, "%lld %lld %lld", &peak, &reserved, &segments), 3);
    EXPECT_EQ(pclose(pipe), 0);
    // The engine's arena is not the allocator's.
    const Bytes outside = buckets == Buckets::kInArena ? forecast.memory.at_start : Bytes(0);
    EXPECT_EQ(peak, (forecast.memory.peak - outside).count());
    EXPECT_EQ(reserved, profile.steady.reserved_after.count());
    EXPECT_EQ(segments, static_cast<long long>(profile.segments.size()));
  }
}

}
}
