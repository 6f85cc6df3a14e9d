// Micro-measurements of this machine with the engine's own code: what `foreshard calibrate` fits.
//
// Run by every rank of a world at the same time, because ranks share caches and memory bandwidth.
// Rows are those of calibration/README.md ("foreshard.measurements/1"). Google Benchmark repeats
// and times; before every repeat the ranks meet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "calibration/measure/bench.h"
#include "exec/comm/world.h"
#include "exec/compute/operations.h"
#include "exec/device/accelerator.h"
#include "sim/base/json.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct EventGraph;
struct MeasuredStep;

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
  double seconds = 0.15;                             // per benchmark and repeat
  std::size_t largest_bytes = 0;                     // of a collective; 0: the largest unit of the jobs
  std::function<void(const std::string&)> progress;  // rank 0
};

// Rows of this number of ranks; the same on all ranks but for the figures.
Json measure_machine(World& world, const MeasureRequest& request);

// Kernels where they stand: each is timed inside its layer, so that caches hold what they hold in a step.

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
void measure_kernels(
    const MeasuredJob& job, const MeasureRequest& request, Bench& bench, const World& world, Json& rows);

// What measuring kernels on CPU ranks and on a device has in common: which kernels count as equal,
// the model they are measured with, and their rows.

// What a kernel is, for collecting equal ones.
using KernelKey = std::tuple<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
KernelKey key_of(const Kernel& kernel);

struct KernelSamples {
  Kernel kernel;
  std::vector<double> seconds;
};

class KernelTimes {
 public:
  void add(const Kernel& kernel, double seconds);
  // Of one step of a layer: `stamps` seconds between its marks, one per kernel where the operation
  // tells its kernels apart; else their sum counts as the one that computes.
  void add_step(std::span<const Kernel> kernels, const std::vector<double>& stamps);
  void forget() { samples_.clear(); }
  const std::map<KernelKey, KernelSamples>& samples() const { return samples_; }

 private:
  std::map<KernelKey, KernelSamples> samples_;
};

// Kernels of rows that are no layer's, each alone in its row: the optimizer's pass, clipping, accumulation.
void add_row_kernels(const EventGraph& graph, const MeasuredStep& step, KernelTimes& times);

// A micro-batch of random tokens.
MicroBatch random_batch(const MeasuredJob& job);

// A row of kind host, where there are seconds of it.
void add_host_row(Json& rows, const char* what, int ranks, std::vector<double> seconds);

// Only the first `blocks` of its blocks.
ModelSpec few_blocks(ModelSpec model, std::int64_t blocks);

// A row of kind gemm, attention or memory.
Json kernel_row(const KernelSamples& samples, int ranks, DType dtype, const MeasuredJob& job);

// Micro-measurements of one GPU with the engine's own code.
//
// Kernels are timed inside a few blocks of each model, step after step, so on a chip as hot as
// training makes it: events between the kernels of an operation. Further rows (copies, contention,
// fixed memory, clocks) are `extra`: kept with the raw file, not fitted yet.
struct DeviceMeasureRequest {
  std::vector<MeasuredJob> jobs;
  DType dtype = DType::kBf16;
  double seconds = 300;  // of everything; what does not fit in is left out, in order
  std::function<void(const std::string&)> progress;
  // Told after every part, so that what was measured is kept whatever happens next.
  std::function<void(const Json& rows, const Json& extra)> keep;
};

struct DeviceMeasurements {
  Json rows;   // as calibration/README.md describes them, ranks = 1
  Json extra;  // {kind, ...}, free
};

DeviceMeasurements measure_device(Accelerator& accelerator, const DeviceMeasureRequest& request);

// Curves of collectives between GPUs, with the engine's own communicators: what a machine of
// several GPUs tells beside what one of them does.
struct DeviceCollectivesRequest {
  std::size_t smallest = std::size_t{1} << 16;  // bytes of the whole unsharded buffer
  std::size_t largest = std::size_t{1} << 30;
  int repeats = 7;
  int ranks_per_node = 0;                            // 0: all are on one
  std::function<void(const std::string&)> progress;  // rank 0
};

// Sizes of groups of consecutive ranks: the powers of two below the world's that divide it, and the world itself.
std::vector<int> measured_groups(int ranks);

// Rows of kind `collective` (calibration/README.md), the same on all ranks: all_gather and reduce_scatter in bf16,
// all_reduce in fp32, for every group size, each size four times the one before. Seconds are the mean over the ranks,
// as in nccl-tests. All ranks call it at the same time.
Json measure_device_collectives(Accelerator& accelerator, World& world, const DeviceCollectivesRequest& request);

}
