// The model against recordings of PyTorch's own allocator, operation by operation: addresses,
// statistics and their peaks. tests/recordings/README.md says how they were made.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sim/memory/caching_allocator.h"

namespace foreshard::recorded_allocator_test {
namespace {

struct Recording {
  const char* name;
  std::int64_t megabytes;
  const char* conf;
};
void PrintTo(const Recording& r, std::ostream* out) { *out << r.name; }

constexpr Recording kRecordings[] = {
    {"default", 100000, ""},
    {"retries", 1500, ""},
    {"expandable", 100000, "expandable_segments:True"},
    {"expandable_retries", 1500, "expandable_segments:True"},
    {"max_split", 1500, "max_split_size_mb:40"},
    {"max_split_rounding", 1500, "max_split_size_mb:32,max_non_split_rounding_mb:64"},
    {"garbage", 2000, "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9"},
    {"roundup_list", 100000, "roundup_power2_divisions:[1:16,4:4,32:2,>:8]"},
    {"large_segment", 2500, "large_segment_size_mb:64"},
    {"expandable_large", 2500, "expandable_segments:True,large_segment_size_mb:64"},
    {"expandable_split", 3000, "expandable_segments:True,max_split_size_mb:40"},
};

// One row; numbers in the columns' order, from `block` on.
struct Row {
  std::string op;
  std::vector<std::int64_t> numbers;
};

std::vector<Row> read(const std::string& name) {
  std::ifstream file(std::string(FORESHARD_SOURCE_DIR) + "/tests/recordings/caching_allocator-2.11.0/" + name + ".csv");
  std::vector<Row> rows;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with('#') || line.starts_with("op,")) continue;
    std::istringstream cells(line);
    Row row;
    std::getline(cells, row.op, ',');
    for (std::string cell; std::getline(cells, cell, ',');) row.numbers.push_back(std::stoll(cell));
    rows.push_back(row);
  }
  return rows;
}

class RecordedAllocator : public testing::TestWithParam<Recording> {};

TEST_P(RecordedAllocator, TheModelDoesTheSame) {
  const Recording& recording = GetParam();
  const Bytes device(recording.megabytes * kMiB);
  CachingAllocator allocator(parse_alloc_conf(recording.conf), {device, device});
  constexpr std::int64_t kBase = std::int64_t{0x7f} << 40;
  std::vector<CachingAllocator::BlockId> blocks(400, CachingAllocator::kNoBlock);
  std::vector<std::int64_t> finished(3, 0);
  const std::vector<Row> rows = read(recording.name);
  ASSERT_GE(rows.size(), 200U);
  std::int64_t operation = 0;
  for (const Row& row : rows) {
    ++operation;
    const auto& n = row.numbers;
    const auto stream = static_cast<int>(n[2]);
    std::int64_t address = -1;
    if (row.op == "malloc") {
      allocator.process_events([&](int s, std::int64_t position) { return position <= finished[at(s)]; });
      const auto block = blocks[at(n[0])] = allocator.malloc(n[1], stream);
      if (block != CachingAllocator::kNoBlock) address = allocator.address_of(block) - kBase;
    } else if (row.op == "free") {
      allocator.free(blocks[at(n[0])], operation);
    } else if (row.op == "record_stream") {
      allocator.record_stream(blocks[at(n[0])], stream);
    } else if (row.op == "finish") {
      finished[at(stream)] = operation;
    } else {
      ASSERT_EQ(row.op, "empty_cache");
      allocator.empty_cache();
    }
    const AllocatorStats& s = allocator.stats();
    const std::vector<std::int64_t> done = {n[0], n[1], n[2], address, s.all.allocated_bytes.current,
        s.all.active_bytes.current, s.all.reserved_bytes.current, s.all.requested_bytes.current,
        s.all.inactive_split_bytes.current, s.all.segment.current, s.num_alloc_retries, s.num_ooms, s.num_device_alloc,
        s.num_device_free, s.all.allocated_bytes.peak, s.all.reserved_bytes.peak};
    ASSERT_EQ(done, n) << recording.name << ", operation " << operation << ": " << row.op;
  }
}

INSTANTIATE_TEST_SUITE_P(Torch211, RecordedAllocator, testing::ValuesIn(kRecordings),
    [](const auto& info) { return std::string(info.param.name); });

}
}
