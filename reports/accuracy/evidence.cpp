#include "reports/accuracy/evidence.h"

#include <array>
#include <optional>

#include "reports/view/attribution.h"

namespace foreshard {
namespace {

constexpr std::size_t kLevels = at(Evidence::kAssumed) + 1;
constexpr double kCoverage = 0.9;

// Seconds by evidence.
class Weights {
 public:
  void add(Evidence evidence, double seconds) { seconds_[at(evidence)] += seconds; }
  void add(const Weights& shares, double seconds) {
    for (std::size_t level = 0; level < kLevels; ++level) seconds_[level] += shares.seconds_[level] * seconds;
  }
  double total() const { return sum_of<double>(seconds_, std::identity()); }
  // nullopt where there is no time to weigh. Never measured: a forecast reads a curve, however well that was measured.
  std::optional<Evidence> weakest() const {
    const double whole = total();
    if (whole <= 0) return std::nullopt;
    double sum = 0;
    std::size_t level = at(Evidence::kInterpolated);
    sum += seconds_[at(Evidence::kMeasured)];
    for (; level + 1 < kLevels; ++level) {
      sum += seconds_[level];
      if (sum >= kCoverage * whole) break;
    }
    return static_cast<Evidence>(level);
  }

 private:
  std::array<double, kLevels> seconds_{};
};

// Shares of a work's own duration, which sum to 1; all on `otherwise` where it has none.
Weights shares_of(const EventGraph& graph, const Work& work, const CostModel& costs, Evidence otherwise) {
  Weights seconds;
  if (is_collective(work.kind) && work.communicator != kNoCommunicator) {
    const GroupShape& group = graph.communicators[work.communicator].group;
    seconds.add(costs.price(work.kind, work.bytes, group).evidence, 1);
  }
  for (const Kernel& kernel : graph.kernels_of(work)) {
    const KernelPrice price = costs.price(kernel);
    seconds.add(price.evidence, price.seconds);
  }
  Weights shares;
  const double total = seconds.total();
  if (total > 0) shares.add(seconds, 1 / total);
  else shares.add(otherwise, 1);
  return shares;
}

}

StepEvidence weigh_evidence(const Forecast& forecast, const CostModel& costs) {
  const EventGraph& graph = forecast.graph;
  const Evidence host = costs.calibration().host.evidence;
  const Evidence contention = costs.calibration().contention.evidence;
  auto shares = list_of<Weights>(
      graph.works, [&](const Work& work) { return shares_of(graph, work, costs, host); });

  const auto row_work = [&](EventId event) { return graph.rows[at(event)].work; };
  Weights step, communication, exposed;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Row& row = graph.rows[i];
    const Span& span = forecast.timeline.spans[i];
    Weights* of = computes(row) ? &step : is_collective(row.kind) ? &communication : nullptr;
    if (of == nullptr) continue;
    const Excess excess = excess_of(span, forecast.costs.works[row.work]);
    const Time own = span.end - span.arrive - excess.overlap - excess.launches;
    of->add(shares[row.work], own.seconds());
    of->add(contention, excess.overlap.seconds());
    of->add(host, excess.launches.seconds());
  }
  for (const Gap& gap : compute_gaps(graph, forecast.timeline)) {
    const double seconds = (gap.end - gap.begin).seconds();
    if (gap.collective != kNoEvent) {
      exposed.add(shares[row_work(gap.collective)], seconds);
      step.add(shares[row_work(gap.collective)], seconds);
    } else if (gap.otherwise == Cause::kHost) {
      step.add(host, seconds);
    }
  }
  StepEvidence result = {.seconds = step.weakest().value_or(Evidence::kAssumed)};
  result.communication = communication.weakest().value_or(result.seconds);
  result.exposed_communication = exposed.weakest().value_or(result.communication);
  return result;
}

}
