// What the page says about prices: the operations of the step against the GPU's two roofs, and how
// far the step moves when one latent factor of the machine does. A factor goes to the ends of its
// own 90 % interval while the others stay where they are best known, and the step is simulated
// again; so bars of correlated factors do not add up to the step's interval.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reports/page/page.h"
#include "reports/sizing/machine_changes.h"
#include "reports/view/layout.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

constexpr double kNormal95 = 1.6448536269514722;  // standard normal's 95 % quantile
constexpr std::size_t kMostOperations = 40;
constexpr std::array<Factor, kFactors> kAllFactors = {Factor::kGemm, Factor::kAttention, Factor::kMemoryBound,
    Factor::kIntraNode, Factor::kInterNode, Factor::kHost, Factor::kOverlap};
constexpr std::array<const char*, kFactors> kFactorNames = {"matrix products", "attention", "memory-bound kernels",
    "collectives inside a node", "collectives between nodes", "host", "slowdown when overlapped"};

struct PricedOperation {
  std::int64_t count = 0;
  double seconds = 0;  // of all: kernels of one name differ a little
  double bytes = 0, flops = 0;
  Evidence evidence = Evidence::kAssumed;
  std::string what;
};

std::string words_of(const Kernel& kernel) {
  const char* pass = kernel.pass == Pass::kForward ? "forward" : "backward";
  switch (kernel.kind) {
    case KernelKind::kGemm: {
      const std::string groups = kernel.groups > 1 ? fmt::format("{} x ", kernel.groups) : "";
      const char* dtype = kernel.fp8 ? " fp8" : kernel.fp32 ? " fp32" : "";
      return fmt::format("product {}{} x {} x {}{}, {}", groups, kernel.m, kernel.k, kernel.n, dtype, pass);
    }
    case KernelKind::kAttention:
      return fmt::format("attention {} x {}, {} heads of {}{}, {}", kernel.m, kernel.n, kernel.heads, kernel.k,
          kernel.causal ? " causal" : "", pass);
    case KernelKind::kMemory: break;
  }
  return fmt::format("{}, {}, {}", to_string(kernel.function), bytes_text(as_double(kernel.bytes.count())), pass);
}

double log_sd(const Calibration& calibration, std::size_t factor) {
  if (!calibration.knowledge) return calibration.spread[factor].log_sd;
  double variance = sum_of<double>(calibration.knowledge->mixing[factor], [&](double m) { return m * m; });
  return std::sqrt(variance);
}

}

Json operations_json(const Forecast& forecast, const CostModel& costs) {
  const EventGraph& graph = forecast.graph;
  std::vector<std::int64_t> rows_of_work(graph.works.size());
  for (const Row& row : graph.rows) ++rows_of_work[row.work];
  std::map<std::string, PricedOperation> by_name;
  const FactorDraw center = costs.center();
  std::vector<KernelPrice> prices;
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    const std::span kernels = graph.kernels_of(graph.works[w]);
    costs.price_row(kernels, center, prices);
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const Kernel& kernel = kernels[k];
      const KernelPrice& price = prices[k];
      PricedOperation& operation = by_name[words_of(kernel)];
      operation.count += rows_of_work[w];
      operation.seconds += price.seconds * as_double(rows_of_work[w]);
      operation.bytes = as_double(kernel.bytes.count());
      operation.flops = kernel.flops.count();
      operation.evidence = price.evidence;
      if (operation.what.empty()) operation.what = kFactorNames[at(price.factor)];
    }
  }
  std::vector<std::pair<std::string, PricedOperation>> list(by_name.begin(), by_name.end());
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  Json operations = Json::array();
  double rest = 0, all = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [name, o] = list[i];
    all += o.seconds;
    if (i >= kMostOperations) {
      rest += o.seconds;
      continue;
    }
    operations.push_back(
        {{"name", name}, {"class", o.what}, {"count", o.count}, {"seconds", o.seconds / as_double(o.count)},
            {"total_s", o.seconds}, {"flops", o.flops}, {"bytes", o.bytes}, {"evidence", to_string(o.evidence)}});
  }
  const Gpu& gpu = costs.cluster().gpu;
  const bool fp32 = forecast.plan.compute_dtype() == DType::kFp32;
  return {{"peak_flops_per_s", fp32 ? gpu.peak_fp32.value() : gpu.peak_bf16.value()},
      {"peak_dtype", to_string(forecast.plan.compute_dtype())}, {"bandwidth_bytes_per_s", gpu.memory_bandwidth.value()},
      {"total_s", all}, {"others_s", rest}, {"operations", std::move(operations)}};
}

namespace {

// Seconds of the step under drawn factors.
class FactorStep {
 public:
  FactorStep(const Forecast& forecast, const CostModel& costs) : forecast_(forecast), costs_(costs) {}
  double at(const FactorDraw& draw) {
    CostTable table = costs_.price(forecast_.graph, draw);
    table.delays = forecast_.costs.delays;
    return simulator_.period(forecast_.graph, table).seconds();
  }
  // With one factor times `by`, the others at their centers.
  double with(Factor factor, double by) {
    FactorDraw draw = costs_.center();
    draw[static_cast<std::size_t>(factor)] *= by;
    return at(draw);
  }

 private:
  const Forecast& forecast_;
  const CostModel& costs_;
  Simulator simulator_;
};

}

const char* factor_words(Factor factor) { return kFactorNames[at(factor)]; }

std::vector<FactorMove> factor_moves(const Forecast& forecast, const CostModel& costs) {
  FactorStep step(forecast, costs);
  std::vector<FactorMove> moves;
  for (const Factor factor : kAllFactors) {
    const double sd = log_sd(costs.calibration(), at(factor));
    const double high = std::exp(kNormal95 * sd);
    moves.push_back({factor, high, step.with(factor, 1 / high), step.with(factor, high)});
  }
  return moves;
}

Json sensitivity_json(const Forecast& forecast, const CostModel& costs) {
  const Calibration& calibration = costs.calibration();
  FactorStep drawn(forecast, costs);
  Json factors = Json::array(), halves = Json::array();
  for (const FactorMove& move : factor_moves(forecast, costs)) {
    factors.push_back(
        {{"factor", factor_words(move.factor)}, {"low_factor", 1 / move.high_factor}, {"high_factor", move.high_factor},
            {"low_s", move.low}, {"high_s", move.high}, {"source", calibration.spread[at(move.factor)].source}});
    if (move.factor != Factor::kOverlap)
      halves.push_back({{"factor", factor_words(move.factor)}, {"seconds", drawn.with(move.factor, 0.5)}});
  }
  const double step = drawn.at(costs.center());
  if (const double log_sd = costs.plan_log_sd(mfu_of(forecast, costs.cluster())); log_sd > 0) {
    const double high = std::exp(kNormal95 * log_sd);
    factors.push_back(
        {{"factor", "this plan's own shape"}, {"low_factor", 1 / high}, {"high_factor", high}, {"low_s", step / high},
            {"high_s", step * high}, {"source", "what no factor of the machine explained in published steps"}});
  }
  return {{"step_s", step}, {"factors", std::move(factors)}, {"halved", std::move(halves)},
      {"changed", changes_json(forecast, costs)}};
}

}
