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

#include "reports/layout.h"
#include "reports/page.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

constexpr double kNinetyPercent = 1.6448536269514722;  // standard normal's 95 % quantile
constexpr std::size_t kMostOperations = 40;
constexpr std::array<Factor, kFactors> kAllFactors = {
    Factor::kGemm,      Factor::kAttention, Factor::kMemoryBound, Factor::kIntraNode,
    Factor::kInterNode, Factor::kHost,      Factor::kOverlap};
constexpr std::array<const char*, kFactors> kFactorNames = {
    "matrix products",           "attention",
    "memory-bound kernels",      "collectives inside a node",
    "collectives between nodes", "host",
    "slowdown when overlapped"};

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
      return fmt::format("product {}{} x {} x {}{}, {}", groups, kernel.m, kernel.k, kernel.n,
                         dtype, pass);
    }
    case KernelKind::kAttention:
      return fmt::format("attention {} x {}, {} heads of {}{}, {}", kernel.m, kernel.n,
                         kernel.heads, kernel.k, kernel.causal ? " causal" : "", pass);
    case KernelKind::kMemory:
      break;
  }
  return fmt::format("{}, {}, {}", to_string(kernel.function),
                     bytes_text(static_cast<double>(kernel.bytes.count())), pass);
}

double log_sd(const Calibration& calibration, std::size_t factor) {
  if (!calibration.knowledge) return calibration.spread[factor].log_sd;
  double variance = 0;
  for (double m : calibration.knowledge->mixing[factor]) variance += m * m;
  return std::sqrt(variance);
}

}  // namespace

Json operations_json(const Forecast& forecast, const CostModel& costs) {
  const EventGraph& graph = forecast.graph;
  std::vector<std::int64_t> rows_of_work(graph.works.size());
  for (const Row& row : graph.rows) ++rows_of_work[row.work];
  std::map<std::string, PricedOperation> by_name;
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    const Work& work = graph.works[w];
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
      const Kernel& kernel = graph.kernels[k];
      const KernelPrice price = costs.price(kernel);
      PricedOperation& operation = by_name[words_of(kernel)];
      operation.count += rows_of_work[w];
      operation.seconds += price.seconds * static_cast<double>(rows_of_work[w]);
      operation.bytes = static_cast<double>(kernel.bytes.count());
      operation.flops = kernel.flops.count();
      operation.evidence = price.evidence;
      if (operation.what.empty())
        operation.what = kFactorNames[static_cast<std::size_t>(price.factor)];
    }
  }
  std::vector<std::pair<std::string, PricedOperation>> list(by_name.begin(), by_name.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return a.second.seconds > b.second.seconds;
  });
  Json operations = Json::array();
  double rest = 0, all = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [name, o] = list[i];
    all += o.seconds;
    if (i >= kMostOperations) {
      rest += o.seconds;
      continue;
    }
    operations.push_back({{"name", name},
                          {"class", o.what},
                          {"count", o.count},
                          {"seconds", o.seconds / static_cast<double>(o.count)},
                          {"total_s", o.seconds},
                          {"flops", o.flops},
                          {"bytes", o.bytes},
                          {"evidence", to_string(o.evidence)}});
  }
  const Gpu& gpu = costs.cluster().gpu;
  const bool fp32 = forecast.plan.compute_dtype() == DType::kFp32;
  return {{"peak_flops_per_s", fp32 ? gpu.peak_fp32.value() : gpu.peak_bf16.value()},
          {"peak_dtype", to_string(forecast.plan.compute_dtype())},
          {"bandwidth_bytes_per_s", gpu.memory_bandwidth.value()},
          {"total_s", all},
          {"others_s", rest},
          {"operations", std::move(operations)}};
}

Json sensitivity_json(const Forecast& forecast, const CostModel& costs) {
  Simulator simulator;
  const auto step_at = [&](const FactorDraw& draw) {
    CostTable table = costs.price(forecast.graph, draw);
    table.delays = forecast.costs.delays;
    return simulator.period(forecast.graph, table).seconds();
  };
  const Calibration& calibration = costs.calibration();
  const FactorDraw center = costs.center();
  Json factors = Json::array(), halves = Json::array();
  for (Factor factor : kAllFactors) {
    const auto f = static_cast<std::size_t>(factor);
    const double sd = log_sd(calibration, f);
    const auto scaled = [&](double by) {
      FactorDraw draw = center;
      draw[f] *= by;
      return step_at(draw);
    };
    const double factor_high = std::exp(kNinetyPercent * sd);
    factors.push_back({{"factor", kFactorNames[f]},
                       {"low_factor", 1 / factor_high},
                       {"high_factor", factor_high},
                       {"low_s", scaled(1 / factor_high)},
                       {"high_s", scaled(factor_high)},
                       {"source", calibration.spread[f].source}});
    if (factor != Factor::kOverlap) {
      halves.push_back({{"factor", kFactorNames[f]}, {"seconds", scaled(0.5)}});
    }
  }
  const double step = step_at(center);
  if (calibration.knowledge && calibration.knowledge->plan_log_sd > 0) {
    const double high = std::exp(kNinetyPercent * calibration.knowledge->plan_log_sd);
    factors.push_back({{"factor", "this plan's own shape"},
                       {"low_factor", 1 / high},
                       {"high_factor", high},
                       {"low_s", step / high},
                       {"high_s", step * high},
                       {"source", "what no factor of the machine explained in published steps"}});
  }
  return {{"step_s", step}, {"factors", std::move(factors)}, {"halved", std::move(halves)}};
}

}  // namespace foreshard
