// Every rule compares the report with what follows without any price: figures of the plan, the
// model, the graph's products and the cluster's data sheet.
#include "reports/sanity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "sim/base/unit_strings.h"
#include "sim/search/judge.h"

namespace foreshard {
namespace {

constexpr double kSpanRounding = 1e-3;  // spans are whole nanoseconds

struct Figure {
  const char* name;
  const Quantity& is;
};

// What no price changes, of a step or of its beginning.
struct Bounded {
  const Forecast& forecast;
  const Plan& plan;
  const Cluster& cluster;
  const Quantity& seconds;
  const Quantity& mfu;
  Bytes allocated;
};

bool is_ordered(const Quantity& q) {
  return std::isfinite(q.low) && std::isfinite(q.value) && std::isfinite(q.high) && q.low <= q.value &&
         q.value <= q.high;
}

double peak_of(const Kernel& kernel, const Gpu& gpu) {
  if (kernel.fp4 && gpu.peak_fp4.value() > 0) return gpu.peak_fp4.value();
  if (kernel.fp8) return gpu.peak_fp8.value();
  return kernel.fp32 ? gpu.peak_fp32.value() : gpu.peak_bf16.value();
}

// Seconds of one rank's products and attention at the peaks; all ranks do the same.
double roofline(const EventGraph& graph, const Gpu& gpu) {
  std::vector<double> of_work(graph.works.size());
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    for (std::size_t k = graph.works[w].kernels_begin; k < graph.works[w].kernels_end; ++k) {
      const Kernel& kernel = graph.kernels[k];
      const double peak = peak_of(kernel, gpu);
      if (peak > 0) of_work[w] += kernel.flops.count() / peak;
    }
  }
  return sum_of<double>(graph.rows, [&](const Row& row) { return of_work[row.work]; });
}

// Seconds of one rank's kernels as they are priced, without what a code adds to them.
double priced(const Forecast& forecast) {
  double sum = 0;
  for (const Row& row : forecast.graph.rows)
    if (row.stream == Stream::kCompute) sum += forecast.costs.works[row.work].duration.seconds();
  return sum;
}

// MFU counts products at the peak of the compute dtype, which those in fp8 may exceed.
double most_mfu(const Plan& plan, const Gpu& gpu) {
  if (plan.float8 == Float8::kNone || gpu.peak_bf16.value() <= 0) return 1;
  const double peak = std::max(gpu.peak_fp8.value(), gpu.peak_fp4.value());
  return std::max(1.0, peak / gpu.peak_bf16.value());
}

std::string unordered(std::span<const Figure> figures) {
  for (const auto& [name, is] : figures) {
    if (is_ordered(is) && is.low >= 0) continue;
    return fmt::format("{} is {} between {} and {}", name, is.value, is.low, is.high);
  }
  return "";
}

std::string nonsense_of_figures(const Report& report) {
  const Figure figures[] = {
      {"step_time", report.seconds},
      {"tokens_per_s_per_gpu", report.tokens_per_s_per_gpu},
      {"mfu", report.mfu},
      {"hfu", report.hfu},
      {"communication", report.communication},
      {"exposed_communication", report.exposed_communication},
      {"peak_allocated", report.peak_allocated},
      {"peak_reserved", report.peak_reserved},
      {"outside_allocator", report.outside_allocator},
  };
  if (std::string text = unordered(figures); !text.empty()) return text;
  if (report.seconds.low <= 0) return fmt::format("a step of {} s", report.seconds.low);
  if (report.peak_allocated.value <= 0) return "a step without memory";
  if (!(report.fit_probability >= 0 && report.fit_probability <= 1))
    return fmt::format("fits with a probability of {}", report.fit_probability);
  return "";
}

std::string beyond_bounds(const Bounded& is) {
  const Bytes states = state_floor(is.plan, is.forecast.model);
  if (is.allocated < states) {
    return fmt::format(
        "{} of memory, less than the {} of the states between steps", format_bytes(is.allocated), format_bytes(states));
  }
  const Cluster& cluster = is.cluster;
  if (cluster.host_computes) return "";
  const double most = most_mfu(is.plan, cluster.gpu);
  if (is.mfu.value > most * (1 + kSpanRounding))
    return fmt::format("MFU {:.1f} %, above {:.0f} %", 100 * is.mfu.value, 100 * most);
  const double least = roofline(is.forecast.graph, cluster.gpu);
  const double step = std::min(is.seconds.value, priced(is.forecast));
  if (step < least * (1 - kSpanRounding)) {
    return fmt::format("a step of {}, though its products take {} at the GPU's peaks", format_time(Time::seconds(step)),
        format_time(Time::seconds(least)));
  }
  return "";
}

}

std::string find_nonsense(const Report& report, const Forecast& forecast) {
  if (std::string text = nonsense_of_figures(report); !text.empty()) return text;
  return beyond_bounds({forecast, forecast.plan, report.cluster, report.seconds, report.mfu, report.fit.allocated});
}

std::string find_nonsense(const SizedPlan& sized, const Forecast& shown) {
  const Figure figures[] = {{"step_time", sized.step}, {"mfu", sized.mfu}, {"tokens_per_s", sized.tokens_per_s}};
  if (std::string text = unordered(figures); !text.empty()) return text;
  if (sized.step.low <= 0) return fmt::format("a step of {} s", sized.step.low);
  if (!(sized.fit_probability >= 0 && sized.fit_probability <= 1))
    return fmt::format("fits with a probability of {}", sized.fit_probability);
  return beyond_bounds({shown, sized.plan, sized.cluster, sized.step, sized.mfu, sized.fit.allocated});
}

NonsenseError::NonsenseError(std::string nonsense)
    : Error(ExitCode::kInternal,
          "internal error: the forecast says what cannot be: {}; please report it with the command and its files",
          nonsense),
      nonsense_(std::move(nonsense)) {}

}
