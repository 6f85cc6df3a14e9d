// Micro-measurements of this machine with the engine's own code: what `foreshard calibrate` fits.
//
// Run by every rank of a world at the same time, because ranks share caches and memory bandwidth.
// Rows are those of calibration/README.md ("foreshard.measurements/1"). Google Benchmark repeats
// and times; before every repeat the ranks meet.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibration/measure/bench.h"
#include "exec/comm/world.h"
#include "sim/base/json.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// One model at one batch shape, its layers cut over mesh.tp.
struct MeasuredJob {
  ModelSpec model;  // Stack::kNative
  std::int64_t sequence = 0;
  std::int64_t micro_batch = 1;
  std::int64_t tp = 1;
};

struct MeasureRequest {
  std::vector<MeasuredJob> jobs;  // CPU ranks measure them over every legal tp besides
  DType dtype = DType::kFp32;
  double seconds = 0.15;          // per benchmark and repeat
  std::size_t largest_bytes = 0;  // of a collective; 0: the largest unit of the jobs
  std::function<void(const std::string&)> progress;  // rank 0
};

// Rows of this number of ranks; the same on all ranks but for the figures.
Json measure_machine(World& world, const MeasureRequest& request);

// Kernels where they stand: each is timed inside its layer, so that caches hold what they hold in a
// step.

// How ranks share cores. Ranks that share one have it in turns of some milliseconds, and the median
// of a kernel that is shorter would be its time on a core of its own. So no more ranks compute at
// once than have cores, and what they take is multiplied by the ranks that share one.
struct Turns {
  int at_once = 1;
  double of_core = 1;
  bool operator==(const Turns&) const = default;
};
Turns turns_of(int ranks, int threads, int cores);

// The job over every mesh.tp of so many ranks that its model can be cut by, 1 first.
std::vector<MeasuredJob> over_tp(const MeasuredJob& job, DType dtype, int ranks);

// Rows of kinds gemm, attention, memory and host.
void measure_kernels(const MeasuredJob& job, const MeasureRequest& request, Bench& bench,
                     const World& world, Json& rows);

}  // namespace foreshard
