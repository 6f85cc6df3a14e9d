// Times from what was measured on the machine itself (MeasuredPoints of sim/spec/calibration.h).
//
// Shapes (matrix products, attention): a smooth curve times a correction. At a measured shape the
// correction makes the price the measurement; near measured shapes it is their mean weighted by
// inverse distance in the logarithms of the shape; far away it fades to 1.
// Sizes (memory-bound functions, collectives): straight lines in bytes between measured sizes, so
// that latency + bytes / rate is exact; the lines of the first and the last two points outside.
// Evidence: measured at a point, interpolated between points, extrapolated outside.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/graph/layers/layer_program.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Rate of a grouped product over a plain one's, for many rows in each group (sources: docs/axes.md); few
// cost on top what they cost a plain product.
inline constexpr double kGroupedFraction = 0.75;

// --- the smooth curves (forms in sim/spec/calibration.h), in seconds ---

double curve_seconds(const GemmCurve& curve, const Kernel& kernel, const Gpu& gpu, double grouped = kGroupedFraction);
// The same for a single product on a cool chip, as micro-benchmarks time it.
double burst_seconds(const GemmCurve& curve, const Kernel& kernel, const Gpu& gpu);
double curve_seconds(const AttentionCurve& curve, const Kernel& kernel, const Gpu& gpu);
double curve_seconds(const MemoryCurve& curve, Bytes bytes, const Gpu& gpu);
// Attention whose kernels are timed on a stream, by the tiles that they work on.
double tiled_seconds(const AttentionCurve& curve, const MemoryCurve& memory, const Kernel& kernel, const Gpu& gpu);
// The least that a norm takes for its rows, given the curve of what streams; 0 of other kernels.
double row_seconds(const Kernel& kernel, const MemoryCurve& streams, const Gpu& gpu);

// The kernel that a point measured.
Kernel kernel_of(const GemmPoint& point);
Kernel kernel_of(const AttentionPoint& point);

struct Estimate {
  double value = 0;
  Evidence evidence = Evidence::kAssumed;
};

// --- shapes ---

class ShapeCorrection {
 public:
  // Measured over curve at one kernel of kind kGemm or kAttention.
  void add(const Kernel& kernel, double ratio);
  // The factor on the curve. No point of this pass and dtype: 1, extrapolated.
  Estimate at(const Kernel& kernel) const;
  bool empty() const { return points_.empty(); }
  // All points but number `index`, in the order they were added.
  ShapeCorrection without(std::size_t index) const;

 private:
  struct Point {
    std::array<double, 3> place{};  // logarithms
    int group = 0;                  // pass, dtype, causal
    double log_ratio = 0;
  };
  static Point place_of(const Kernel& kernel);
  std::vector<Point> points_;
};

// --- sizes ---

// Precondition: at least one point, bytes ascending.
Estimate seconds_at(std::span<const SizePoint> points, double bytes);

// Points of this function and pass, of this dtype if there are any, else of the other. nullptr: none.
const FunctionPoints* find_function(const MeasuredPoints& measured, Function function, Pass pass, bool fp32);

// A collective over `group` ranks. Group sizes that were not measured: a straight line between the neighbours, else the
// nearest one scaled by hops (latency) and by the share of the buffer that travels (the rest). The other reduction
// order where this one was not measured, extrapolated. Nothing where the operation was not measured at all.
struct CollectiveCall {
  CollectiveOperation operation = CollectiveOperation::kAllGather;
  ReductionOrder order = ReductionOrder::kMicrobatch;
  std::int64_t group = 2;
  double bytes = 0;
};
std::optional<Estimate> collective_at(const MeasuredPoints& measured, const CollectiveCall& call);

}
