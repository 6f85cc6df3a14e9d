// What a memory snapshot of PyTorch says (torch.cuda.memory._dump_snapshot): which tensors are
// there, how much of them at most, and whether it grows.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

// Tensors of one size that one line of Python made.
struct SnapshotTensors {
  std::string where;  // "train.py:42 loss"; "" where no stacks were recorded
  Bytes each;         // asked for
  std::int64_t count = 0;
  Bytes total() const { return each * count; }
};

struct SnapshotMemory {
  Bytes allocated, reserved;          // when it was taken, of the device that holds most
  Bytes peak;                         // the most of its trace; `allocated` without
  Bytes growth;                       // of the least, from the first third of the trace to the last
  std::vector<SnapshotTensors> live;  // the largest in all first
};

// Throws Error(kInvalidInput) for what is no such file.
SnapshotMemory read_snapshot(std::string_view bytes, std::string_view file);

// Sizes of the buffers that the forecast has, as the allocator rounds them.
std::set<std::int64_t> forecast_sizes(const Forecast& forecast);

// The largest tensors of which the forecast has none of that size; growth over the trace, or from
// the first to the last of several snapshots of one run, with what grew.
std::vector<std::string> snapshot_findings(const std::vector<SnapshotMemory>& snapshots, const Forecast& forecast);

// Whether it grows by more than what comes and goes.
bool grows(const std::vector<SnapshotMemory>& snapshots);

}
