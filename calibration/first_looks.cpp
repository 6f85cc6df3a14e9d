#include "calibration/first_looks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/fields.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr const char* kFirstLooksFile = "calibration/evidence/first_looks.json";
// The 95 % quantile of Student's t with 4 degrees of freedom, the shape that was fitted.
constexpr double kNinetyFive = 2.131847;

double slope_of(const std::vector<std::pair<std::string, double>>& slopes, const CodeFacts& facts) {
  double sum = 0;
  for (const auto& [name, slope] : slopes)
    for (const auto& [fact, size] : facts) sum += fact == name ? slope * size : 0;
  return sum;
}

const FirstLookFit& fit_for(const FirstLooks& looks, const std::vector<FirstLookFit>& fits, std::string_view family) {
  const auto own =
      std::ranges::find_if(looks.sets, [&](const FirstLookSet& set) { return contains(set.families, family); });
  const std::string without = own == looks.sets.end() ? "" : own->name;
  const auto fit = std::ranges::find(fits, without, &FirstLookFit::without);
  FORESHARD_CHECK(fit != fits.end(), "first looks without a fit");
  return *fit;
}

}

void fields(auto& io, FirstLookFit& fit) {
  io("without", fit.without);
  io("base", fit.base, -10, 10);
  io("skew", fit.skew, -10, 10);
  io("slopes", fit.slopes, -10, 10);
  io("shifts", fit.shifts, -10, 10);
}

void fields(auto& io, FirstLookSet& set) {
  io("set", set.name);
  io("families", set.families);
}

FirstLooks read_first_looks(const ConfigNode& root) {
  FirstLooks looks;
  read_fields(root, [&](auto& io) {
    io.ignore("schema");
    io.ignore("source");
    io("sets", looks.sets);
    io("time", looks.time);
    io("memory", looks.memory);
  });
  return looks;
}

const FirstLooks& first_looks() {
  static const FirstLooks looks = [] {
    const EmbeddedFile& file = file_named(kFirstLooksFile, calibration_files());
    return read_first_looks(parse_json(file.content, kFirstLooksFile));
  }();
  return looks;
}

CodeFacts code_facts(const Plan& plan, const Cluster& cluster, std::string_view stack) {
  CodeFacts facts;
  facts.emplace_back(stack.empty() ? "no_preset" : fmt::format("stack {}", stack), 1);
  if (cluster.gpu.architecture == "hopper" && plan.compile != Compile::kNone) facts.emplace_back("hopper_compiled", 1);
  if (plan.float8 != Float8::kNone) facts.emplace_back("fp8", 1);
  if (plan.runtime.kind == RuntimeKind::kZero3) facts.emplace_back("zero3", 1);
  return facts;
}

double code_shift(
    const FirstLooks& looks, const std::vector<FirstLookFit>& fits, const CodeFacts& facts, std::string_view family) {
  return slope_of(fit_for(looks, fits, family).shifts, facts);
}

LogReach code_reach(
    const FirstLooks& looks, const std::vector<FirstLookFit>& fits, const CodeFacts& facts, std::string_view family) {
  const FirstLookFit& fit = fit_for(looks, fits, family);
  const double scale = std::exp(fit.base + slope_of(fit.slopes, facts));
  const double skew = std::exp(fit.skew);
  return {kNinetyFive * scale / skew, kNinetyFive * scale * skew};
}

}
