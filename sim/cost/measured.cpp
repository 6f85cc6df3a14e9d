// Correction of shapes, after Shepard: the weighted mean of log(measured / curve) with weights
// 1/d^4, d the distance in (log m, log n, log k) or (log heads, log sequence, log head size). The
// exponent is above the number of dimensions, so that many far points do not outvote a near one.
// One more point with ratio 1 at distance log 4 from everywhere makes the correction fade.
#include "sim/cost/measured.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

// Tile of the wave term in the GEMM form.
constexpr double kTile = 128;
// Rows of queries per thread block in FlashAttention.
constexpr std::int64_t kQueryBlock = 128;
// Attention backward: five products of the size that forward has two of.
constexpr double kBackwardProducts = 2.5;

constexpr double kSame = 1e-9;
constexpr double kReach = 1.3862943611198906;  // log 4

double peak_of(const Kernel& kernel, const Gpu& gpu) {
  if (kernel.fp4 && gpu.peak_fp4.value() > 0) return gpu.peak_fp4.value();
  if (kernel.fp8 && gpu.peak_fp8.value() > 0) return gpu.peak_fp8.value();
  return kernel.fp32 ? gpu.peak_fp32.value() : gpu.peak_bf16.value();
}

// Whole waves of tiles over those that are needed. Libraries split the inner width where tiles are
// few, so that no more than a few times the needed waves are lost.
double wave_waste(const Kernel& kernel, const Gpu& gpu) {
  // hipBLASLt's large tiles are square: MT256x256x64 in the names of its kernels.
  constexpr std::int64_t kColumns = 256;
  const std::int64_t kRows = generation_of(gpu).is_amd() ? 256 : 128;
  constexpr double kMost = 4;
  const std::int64_t tiles = kernel.groups * ((kernel.m + kRows - 1) / kRows) * ((kernel.n + kColumns - 1) / kColumns);
  const double waves = static_cast<double>(tiles) / static_cast<double>(std::max<std::int64_t>(gpu.multiprocessors, 1));
  return std::min(kMost, std::ceil(waves - 1e-9) / waves);
}

// Halvings below 16 bytes of what the contiguous rows of the operands are multiples of: rows of
// n and k elements; in backward also of m (the weight's gradient). Without tensor cores any will do.
int halvings(const Kernel& kernel) {
  if (kernel.fp32) return 0;
  constexpr int kAligned = 4;  // 2^4 bytes
  const int element = kernel.fp8 ? 0 : 1;
  const auto of = [&](std::int64_t row) {
    const int zeros = row > 0 ? std::countr_zero(static_cast<std::uint64_t>(row)) : kAligned;
    return kAligned - std::min(kAligned, zeros + element);
  };
  if (kernel.pass == Pass::kForward) return std::max(of(kernel.n), of(kernel.k));
  // Of a group's own rows, m or k, there is no saying: they lie between features.
  const int other = kernel.groups > 1 ? std::min(of(kernel.m), of(kernel.k)) : std::max(of(kernel.m), of(kernel.k));
  return std::max(of(kernel.n), other);
}

double gemm_seconds(const GemmCurve& curve, const Kernel& kernel, const Gpu& gpu, double rate) {
  const double m = as_double(kernel.m), n = as_double(kernel.n), k = as_double(kernel.k);
  const double groups = as_double(kernel.groups);
  double compute = groups * 2 * m * n * k / (rate * peak_of(kernel, gpu)) * (1 + curve.k_half / k) *
                   (1 + curve.m_half / m) * (1 + curve.n_half / n);
  if (curve.tail > 0) compute *= 1 + curve.tail * as_double(gpu.multiprocessors) * kTile * kTile / (groups * m * n);
  if (curve.wave > 0) compute *= 1 + curve.wave * (wave_waste(kernel, gpu) - 1);
  if (const int h = halvings(kernel); h > 0)
    compute *= 1 + curve.misaligned[static_cast<std::size_t>(std::min(h, 3) - 1)];
  const double memory = as_double(kernel.bytes.count()) / (curve.hbm_fraction * gpu.memory_bandwidth.value());
  double both = std::max(compute, memory);
  // Beyond the rounding of the larger one there is nothing to add.
  if (const double less = std::min(compute, memory) / both; curve.blend > 0 && less > 0.05)
    both *= std::pow(1 + std::pow(less, curve.blend), 1 / curve.blend);
  return both + curve.overhead;
}

double weight_at(double distance) { return std::pow(distance, -4); }

}

double curve_seconds(const GemmCurve& curve, const Kernel& kernel, const Gpu& gpu, double grouped) {
  const double efficiency = curve.efficiency * (kernel.groups > 1 ? grouped : 1);
  return gemm_seconds(curve, kernel, gpu, efficiency * curve.sustained);
}

double burst_seconds(const GemmCurve& curve, const Kernel& kernel, const Gpu& gpu) {
  constexpr double kLong = 1e12;
  const double efficiency = curve.efficiency * (kernel.groups > 1 ? kGroupedFraction : 1);
  const double doublings = std::max(0.0, std::log2(kernel.flops.count() / kLong));
  return gemm_seconds(curve, kernel, gpu, efficiency / (1 + curve.slowdown * doublings));
}

namespace {

// Seconds of so many cycles of a multiprocessor, over all; 0 where the clock is not known.
double cycles(double count, const Gpu& gpu) {
  const double rate = as_double(gpu.multiprocessors) * gpu.clock;
  return rate > 0 ? count / rate : 0;
}

// cuDNN's kernels of codes on an H100 and an H200 (reports/validation): a mask of every pair makes
// forward 1.5 to 1.6 times as long, backward 1.3 to 1.6 (Granite with padding, windows of Cohere 2
// and OLMo 3 against shapes without); dropout draws a number for each pair, 0.9 to 1.1 ps and 0.7
// to 0.8 of an H100 (GPT-2 medium against large, Seed-OSS against StarCoder 2).
double beside_scores(const Kernel& kernel, const Gpu& gpu) {
  if (!kernel.dropout) return 0;
  const bool forward = kernel.pass == Pass::kForward;
  const double products = forward ? 4 : 4 * kBackwardProducts;
  const double pairs = kernel.flops.count() / (products * as_double(kernel.k));
  return cycles(pairs * (forward ? 0.23 : 0.17), gpu);
}
double of_masked(const Kernel& kernel) {
  if (!kernel.masked) return 1;
  return kernel.pass == Pass::kForward ? 1.6 : 1.5;
}

}

double curve_seconds(const AttentionCurve& curve, const Kernel& kernel, const Gpu& gpu) {
  const double sequence = as_double(kernel.n);
  const bool full = !kernel.causal && curve.full_efficiency > 0;
  const double efficiency = full ? curve.full_efficiency : curve.efficiency;
  const double s_half = full ? curve.full_s_half : curve.s_half;
  const double blocks = as_double(kernel.m * kernel.heads * ((kernel.n + kQueryBlock - 1) / kQueryBlock));
  const double waves = blocks / as_double(gpu.multiprocessors);
  return kernel.flops.count() / (efficiency * peak_of(kernel, gpu)) * (1 + s_half / sequence) *
             (1 + curve.c_half / waves) * of_masked(kernel) +
         beside_scores(kernel, gpu) + curve.overhead;
}

// A block of threads for each row of a norm, however short (vectorized_layer_norm_kernel,
// layer_norm_grad_input_kernel_vectorized): 1.47 and 0.79 ns of an H200 for rows of 64. Then the gradients of its
// weights: a block for each 32 columns goes down all rows (GammaBetaBackwardCUDAKernelTemplate), 4.8 ns a row of 1,024
// columns on an H200, 4.5 of 768 on an H100 (codes of reports/validation); narrow sums of more than 65,536 rows share
// them (layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel).
double row_seconds(const Kernel& kernel, const MemoryCurve& streams, const Gpu& gpu) {
  const double rows = as_double(kernel.m);
  if (kernel.memory_class == MemoryClass::kNormForward) return cycles(rows * 355, gpu);
  if (kernel.memory_class != MemoryClass::kNormBackward) return 0;
  const double row_by_row = cycles(rows * 190, gpu);
  constexpr double kShares = 64 * 1024, kColumns = 32, kCycles = 8.5;
  constexpr double kTensors = 3, kBytes = 2;  // read twice and written, in 16 bits
  const double moved = as_double(kernel.bytes.count());
  const double columns = rows > 0 ? moved / rows / kTensors / kBytes : 0;
  const bool is_shared = rows > kShares && columns / kColumns < as_double(gpu.multiprocessors) / 2;
  if (rows == 0 || gpu.clock <= 0 || is_shared) return row_by_row;
  return std::max(row_by_row, curve_seconds(streams, kernel.bytes, gpu) + rows * kCycles / gpu.clock);
}

double curve_seconds(const MemoryCurve& curve, Bytes bytes, const Gpu& gpu) {
  return as_double(bytes.count()) / (curve.fraction * gpu.memory_bandwidth.value()) + curve.overhead;
}

// Small sequences leave tensor units idle in two ways that the curve, of calls timed by themselves,
// has in its overhead and s_half: tiles that reach beyond the sequence, and blocks that load before
// they multiply. What is left is the rate of a sequence too long for either.
double tiled_seconds(const AttentionCurve& curve, const MemoryCurve& memory, const Kernel& kernel, const Gpu& gpu) {
  constexpr double kLong = 4096;
  const bool full = curve.full_efficiency > 0;
  const double efficiency = full ? curve.full_efficiency : curve.efficiency;
  const double s_half = full ? curve.full_s_half : curve.s_half;
  return kernel.flops.count() / (efficiency * peak_of(kernel, gpu)) * (1 + s_half / kLong) +
         as_double(kernel.bytes.count()) / (memory.fraction * gpu.memory_bandwidth.value()) +
         as_double(kernel.kernels) * memory.overhead;
}

Kernel kernel_of(const GemmPoint& point) {
  Kernel kernel;
  kernel.kind = KernelKind::kGemm;
  kernel.function = Function::kMatrixProduct;
  kernel.pass = point.pass;
  kernel.fp32 = point.fp32;
  kernel.m = point.m;
  kernel.n = point.n;
  kernel.k = point.k;
  kernel.bytes = Bytes(
      (point.m * point.k + point.n * point.k + point.m * point.n) * size_of(point.fp32 ? DType::kFp32 : DType::kBf16));
  kernel.flops = Flops(2 * as_double(point.m) * as_double(point.n) * as_double(point.k));
  return kernel;
}

Kernel kernel_of(const AttentionPoint& point) {
  Kernel kernel;
  kernel.kind = KernelKind::kAttention;
  kernel.function = Function::kAttention;
  kernel.pass = point.pass;
  kernel.causal = point.causal;
  kernel.fp32 = point.fp32;
  kernel.m = point.batch;
  kernel.n = point.sequence;
  kernel.k = point.head_dim;
  kernel.heads = point.heads;
  Operation operation;
  operation.kind = OperationKind::kAttention;
  operation.attention = {point.heads, point.kv_heads, point.head_dim, point.causal};
  kernel.flops =
      forward_flops(operation, point.batch, point.sequence) * (point.pass == Pass::kForward ? 1.0 : kBackwardProducts);
  return kernel;
}

ShapeCorrection::Point ShapeCorrection::place_of(const Kernel& kernel) {
  Point point;
  const auto first = kernel.kind == KernelKind::kAttention ? kernel.m * kernel.heads : kernel.m;
  const std::array<std::int64_t, 3> sizes = {first, kernel.n, kernel.k};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    point.place[i] = std::log(as_double(std::max<std::int64_t>(sizes[i], 1)));
  point.group = static_cast<int>(kernel.pass) + (kernel.fp32 ? 2 : 0);
  if (kernel.kind == KernelKind::kAttention && kernel.causal) point.group += 4;
  return point;
}

void ShapeCorrection::add(const Kernel& kernel, double ratio) {
  Point point = place_of(kernel);
  point.log_ratio = std::log(ratio);
  points_.push_back(point);
}

ShapeCorrection ShapeCorrection::without(std::size_t index) const {
  ShapeCorrection rest = *this;
  rest.points_.erase(rest.points_.begin() + index);
  return rest;
}

Estimate ShapeCorrection::at(const Kernel& kernel) const {
  const Point wanted = place_of(kernel);
  std::array<double, 3> low{}, high{};
  low.fill(std::numeric_limits<double>::infinity());
  high.fill(-std::numeric_limits<double>::infinity());
  double nearest = std::numeric_limits<double>::infinity();
  double weights = weight_at(kReach);
  double sum = 0;
  for (const Point& point : points_) {
    if (point.group != wanted.group) continue;
    double square = 0;
    for (std::size_t i = 0; i < low.size(); ++i) {
      const double difference = point.place[i] - wanted.place[i];
      square += difference * difference;
      low[i] = std::min(low[i], point.place[i]);
      high[i] = std::max(high[i], point.place[i]);
    }
    const double distance = std::sqrt(square);
    if (distance < kSame) return {std::exp(point.log_ratio), Evidence::kMeasured};
    nearest = std::min(nearest, distance);
    const double weight = weight_at(distance);
    weights += weight;
    sum += weight * point.log_ratio;
  }
  bool is_inside = nearest <= kReach;
  for (std::size_t i = 0; i < low.size(); ++i)
    is_inside = is_inside && wanted.place[i] >= low[i] - kSame && wanted.place[i] <= high[i] + kSame;
  return {std::exp(sum / weights), is_inside ? Evidence::kInterpolated : Evidence::kExtrapolated};
}

Estimate seconds_at(std::span<const SizePoint> points, double bytes) {
  FORESHARD_CHECK(!points.empty(), "a curve without points");
  const auto above = std::lower_bound(
      points.begin(), points.end(), bytes, [](const SizePoint& point, double value) { return point.bytes < value; });
  if (above != points.end() && above->bytes == bytes) return {above->seconds, Evidence::kMeasured};
  if (points.size() == 1) return {points[0].seconds * bytes / points[0].bytes, Evidence::kExtrapolated};
  const bool is_inside = above != points.begin() && above != points.end();
  const auto right = std::clamp(above, points.begin() + 1, points.end() - 1);
  const SizePoint& a = *(right - 1);
  const SizePoint& b = *right;
  const double slope = (b.seconds - a.seconds) / (b.bytes - a.bytes);
  double seconds = a.seconds + (bytes - a.bytes) * slope;
  if (is_inside) return {seconds, Evidence::kInterpolated};
  if (above == points.begin()) {
    // A line that starts below zero would give nothing for free: then in proportion.
    const double start = a.seconds - a.bytes * slope;
    if (start < 0) seconds = a.seconds * bytes / a.bytes;
  } else {
    // Noise in the last two points may make the line flat: never faster than all points say.
    seconds = std::max(
        seconds, b.seconds + (bytes - b.bytes) * (b.seconds - points[0].seconds) / (b.bytes - points[0].bytes));
  }
  return {seconds, Evidence::kExtrapolated};
}

const FunctionPoints* find_function(const MeasuredPoints& measured, Function function, Pass pass, bool fp32) {
  const FunctionPoints* found = nullptr;
  for (const FunctionPoints& candidate : measured.functions) {
    if (candidate.function != function || candidate.pass != pass) continue;
    if (candidate.fp32 == fp32) return &candidate;
    found = &candidate;
  }
  return found;
}

namespace {

// From a group of `from` ranks to one of `to`.
Estimate scaled(const CollectivePoints& points, std::int64_t to, double bytes) {
  const auto from = as_double(points.group);
  const auto wanted = as_double(to);
  const double latency = std::min(seconds_at(points.points, 0).value, points.points[0].seconds);
  const Estimate whole = seconds_at(points.points, bytes);
  const double hops = (wanted - 1) / (from - 1);
  const double share = (wanted - 1) / wanted / ((from - 1) / from);
  return {latency * hops + (whole.value - latency) * share, Evidence::kExtrapolated};
}

std::optional<Estimate> collective_of_order(const MeasuredPoints& measured, const CollectiveCall& call) {
  const CollectivePoints* below = nullptr;
  const CollectivePoints* above = nullptr;
  for (const CollectivePoints& candidate : measured.collectives) {
    if (candidate.operation != call.operation || candidate.order != call.order) continue;
    if (candidate.group == call.group) return seconds_at(candidate.points, call.bytes);
    const CollectivePoints*& side = candidate.group < call.group ? below : above;
    const bool is_nearer =
        side == nullptr || std::abs(candidate.group - call.group) < std::abs(side->group - call.group);
    if (is_nearer) side = &candidate;
  }
  if (below != nullptr && above != nullptr) {
    const Estimate low = seconds_at(below->points, call.bytes);
    const Estimate high = seconds_at(above->points, call.bytes);
    const double part = as_double(call.group - below->group) / as_double(above->group - below->group);
    return Estimate{low.value + part * (high.value - low.value),
        weaker(Evidence::kInterpolated, weaker(low.evidence, high.evidence))};
  }
  const CollectivePoints* nearest = below != nullptr ? below : above;
  if (nearest == nullptr) return std::nullopt;
  return scaled(*nearest, call.group, call.bytes);
}

}

std::optional<Estimate> collective_at(const MeasuredPoints& measured, const CollectiveCall& call) {
  if (std::optional<Estimate> found = collective_of_order(measured, call)) return found;
  CollectiveCall other = call;
  other.order = call.order == ReductionOrder::kMicrobatch ? ReductionOrder::kLibrary : ReductionOrder::kMicrobatch;
  std::optional<Estimate> found = collective_of_order(measured, other);
  if (found) found->evidence = Evidence::kExtrapolated;
  return found;
}

}
