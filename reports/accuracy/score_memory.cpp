// t = bytes/(f*BW) + t0 (or one rate for all sizes, where rows are few), from the first that has
// rows: the same operation on the same GPU of another source; its own source without the row's
// size; the same operation on another GPU; the shipped curve of its class, with the fixed time of
// a kernel that is timed by itself. Periods of empty kernels are what a launch costs.
#include <fmt/format.h>

#include <algorithm>

#include "calibration/fit/fit.h"
#include "calibration/gpu_names.h"
#include "calibration/profile_store.h"
#include "calibration/published.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

// A timed kernel's floor where a profile has none: 5 to 10 us (published fits of norms and SwiGLU).
constexpr double kTimedOverhead = 7e-6;
// Back to back kernels: 2.4 to 2.6 us on a stream, 1.3 us in a CUDA graph (H200, A100).
constexpr double kLaunchPeriod = 2.5e-6, kGraphPeriod = 1.3e-6;
constexpr double kOwnSpread = 0.09, kOtherSource = 0.13, kOtherGpu = 0.15, kClass = 0.35, kPeriod = 0.25;

struct MemoryRead {
  std::string gpu, source, operation;
  double bytes = 0, seconds = 0;
  std::string problem;
};

bool is_period(const MemoryRead& row) { return contains(row.operation, "period"); }

std::vector<MemoryRead> read_rows(const CsvTable& table, const std::vector<Machine>& machines) {
  constexpr double kGiga = 1e9;
  std::vector<MemoryRead> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    MemoryRead row;
    const Machine* machine = match_gpu(cell_of(table, i, "gpu"), machines);
    row.gpu = machine == nullptr ? "" : machine->key;
    row.source = cell_of(table, i, "source");
    row.operation = lower(cell_of(table, i, "op"));
    row.bytes = positive_of(table, i, "bytes_counted");
    row.seconds = positive_of(table, i, "latency_us") * 1e-6;
    const double rate = positive_of(table, i, "gbs") * kGiga;
    if (row.seconds == 0 && row.bytes > 0 && rate > 0) row.seconds = row.bytes / rate;
    if (row.gpu.empty()) row.problem = fmt::format("the catalogue has no GPU '{}'", cell_of(table, i, "gpu"));
    else if (contains(row.operation, "step time")) row.problem = "a whole step, not one operation";
    else if (row.seconds == 0) row.problem = "no latency_us above zero, and no bytes_counted with a rate";
    else if (row.bytes == 0 && !is_period(row)) row.problem = "bytes_counted is no number above zero";
    rows.push_back(std::move(row));
  }
  return rows;
}

MemoryClass class_of(std::string_view operation) {
  const auto has = [&](std::string_view word) { return contains(operation, word); };
  if (has("norm")) return has("back") || has("bwd") ? MemoryClass::kNormBackward : MemoryClass::kNormForward;
  if (has("entropy") || has("loss") || has("softmax")) return MemoryClass::kLoss;
  if (has("adam") || has("optim") || has("sgd")) return MemoryClass::kOptimizer;
  if (has("rotate") || has("strided") || has("transpose")) return MemoryClass::kStrided;
  if (has("copy") || has("cast") || has("stream") || has("memcpy")) return MemoryClass::kCopy;
  return MemoryClass::kElementwise;
}

struct Rate {
  MemoryCurve curve;
  double spread = kOwnSpread;
};

// Two constants from three rows on; one rate beyond the usual fixed time from fewer.
MemoryCurve fit_rows(const std::vector<MemoryRead>& rows, const Gpu& gpu) {
  constexpr std::size_t kTwoConstants = 2;
  if (rows.size() >= kTwoConstants) {
    auto fitted = list_of<MemoryRow>(rows, [&](const MemoryRead& row) {
      return MemoryRow{row.source, row.operation, row.bytes, row.seconds};
    });
    return fit_memory(fitted, gpu);
  }
  MemoryCurve curve = {.overhead = std::min(kTimedOverhead, rows.front().seconds / 2)};
  curve.fraction = rows.front().bytes / gpu.memory_bandwidth.value() / (rows.front().seconds - curve.overhead);
  return curve;
}

class MemoryJudge {
 public:
  MemoryJudge() {
    for (MemoryRead& row : read_rows(published_table("membound_measured.csv"), machines_))
      if (row.problem.empty() && !is_period(row)) published_.push_back(std::move(row));
  }
  const std::vector<Machine>& machines() const { return machines_; }

  AccuracyRow score(AccuracyRow out, const MemoryRead& row) {
    if (is_period(row)) {
      const bool graph = contains(row.operation, "graph");
      out.groups.emplace_back("rule", "launch");
      return with_forecast(std::move(out), row.seconds, graph ? kGraphPeriod : kLaunchPeriod, kNinetyPercent * kPeriod);
    }
    const Gpu& gpu = machine_of(row.gpu, machines_)->node.gpu;
    const auto same = [&](const MemoryRead& each) { return each.operation == row.operation; };
    const auto forecast = [&](const MemoryCurve& curve, double spread, const char* rule) {
      const double seconds = memory_seconds(curve, row.bytes, gpu);
      std::string absurd = absurdity(row.seconds, seconds, 0, gpu.peak_bf16);
      if (!absurd.empty()) return set_aside(std::move(out), std::move(absurd));
      out.groups.emplace_back("rule", rule);
      return with_forecast(std::move(out), row.seconds, seconds, kNinetyPercent * spread);
    };
    const auto others =
        pick([&](const MemoryRead& each) { return same(each) && each.gpu == row.gpu && each.source != row.source; });
    if (!others.empty()) return forecast(fit_rows(others, gpu), kOtherSource, "source left out");
    const auto own = pick([&](const MemoryRead& each) {
      return same(each) && each.gpu == row.gpu && each.source == row.source && each.bytes != row.bytes;
    });
    if (own.size() > 1) return forecast(fit_rows(own, gpu), kOwnSpread, "size left out");
    const Machine* nearest = nullptr;
    for (const Machine& other : machines_) {
      const bool has = std::ranges::any_of(
          published_, [&](const auto& each) { return same(each) && each.gpu == other.key && each.gpu != row.gpu; });
      if (has && (nearest == nullptr || distance(gpu, other.node.gpu) < distance(gpu, nearest->node.gpu)))
        nearest = &other;
    }
    if (nearest != nullptr) {
      const auto there = pick([&](const MemoryRead& each) { return same(each) && each.gpu == nearest->key; });
      return forecast(fit_rows(there, nearest->node.gpu), kOtherGpu, "another GPU");
    }
    MemoryCurve curve = load_profile(row.gpu).memory_curve(class_of(row.operation));
    if (curve.timed_overhead == 0) curve.timed_overhead = kTimedOverhead;
    return forecast(curve, kClass, "class");
  }

 private:
  std::vector<MemoryRead> pick(const auto& wanted) const { return list_where<MemoryRead>(published_, wanted); }

  std::vector<Machine> machines_ = list_machines();
  std::vector<MemoryRead> published_;
};

}

std::vector<AccuracyRow> score_memory_bound(const CsvTable& table) {
  MemoryJudge judge;
  const std::vector<MemoryRead> read = read_rows(table, judge.machines());
  return judged(table, std::move(judge), read, [](const MemoryRead& row) {
    return AccuracyGroups{{"gpu", row.gpu}, {"source", row.source}, {"kernel", row.operation}};
  });
}

}
