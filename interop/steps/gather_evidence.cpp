// Sensitivities are central differences of the logarithm of the step time over a factor's, 5 % to
// either side. Large residuals count less (Huber): a row at capacity must not move a machine.
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "interop/steps/measured_tables.h"
#include "interop/steps/step_forecaster.h"
#include "interop/steps/training_job.h"
#include "interop/steps/training_rows.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostRows = 24;
constexpr double kIndependent = 4;
// Same job on another host or in another week: 5 to 7 % (calibration/README.md).
constexpr double kPlanLogSd = 0.06;
constexpr double kHuber = 3;  // in units of the residual's expected size
constexpr double kStep = 1.05;

struct Observation {
  std::string family, group;
  FactorCauses causes;
  std::array<double, kFactors> sensitivity{};
  double residual = 0;  // log(measured / forecast)
  bool is_set = false;
};

Observation observe(const TrainingRow& row) {
  Observation seen = {.family = family_of(row.id)};
  seen.group = seen.family + " " + std::string(row.word("gpu"));
  try {
    const TrainingJob job = training_job(row);
    const StepForecaster forecaster(job, std::nullopt);
    seen.causes = forecaster.causes();
    for (std::size_t f = 0; f < kFactors; ++f) {
      FactorDraw up = central_draw(), down = central_draw();
      up[f] = kStep;
      down[f] = 1 / kStep;
      seen.sensitivity[f] = std::log(forecaster.seconds(up) / forecaster.seconds(down)) / (2 * std::log(kStep));
    }
    seen.residual = std::log(*row.number("step_time_s") / forecaster.seconds(central_draw()));
    seen.is_set = std::isfinite(seen.residual);
  } catch (const Error&) {  // rows that cannot be forecast say nothing
  }
  return seen;
}

// Rows that count, at most kMostRows of a group.
std::vector<TrainingRow> chosen(const CsvTable& table) {
  std::map<std::string, std::vector<std::pair<std::uint64_t, TrainingRow>>> groups;
  for (TrainingRow& row : read_training_rows(table)) {
    const std::string_view verdict = row.word("score");
    if (!row.problem.empty() || !row.has("step_time_s")) continue;
    if (!verdict.empty() && verdict != "yes") continue;
    const std::string group = family_of(row.id) + " " + std::string(row.word("gpu"));
    groups[group].emplace_back(Fingerprint().add(row.id).value(), std::move(row));
  }
  std::vector<TrainingRow> rows;
  for (auto& [name, members] : groups) {
    std::ranges::stable_sort(members, [](const auto& a, const auto& b) { return a.first < b.first; });
    members.resize(std::min(members.size(), kMostRows));
    for (auto& [hash, row] : members) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Observation> observe_all(const std::vector<TrainingRow>& rows) {
  std::vector<Observation> all(rows.size());
  oneapi::tbb::parallel_for(
      std::size_t{0}, rows.size(), [&](std::size_t i) { all[i] = observe(rows[i]); });
  std::erase_if(all, [](const Observation& each) { return !each.is_set; });
  return all;
}

// Six significant digits: the same file on every machine.
double rounded(double value) {
  if (value == 0) return 0;
  const double scale = std::pow(10, 6 - std::ceil(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

struct Prior {
  double log_sd = 0, log_mean = 0;
};

// Of each cause, what the best known card leaves of its factor to it; those that leave nothing are
// left out. A cause has one mean.
std::map<std::string, Prior> priors_of(const std::vector<Observation>& all) {
  std::map<std::string, Prior> priors;
  const auto keep_least = [&](const FactorCause& cause, double log_sd) {
    const auto [place, is_new] = priors.emplace(cause.name, Prior{log_sd, cause.log_mean});
    if (!is_new) place->second.log_sd = std::min(place->second.log_sd, log_sd);
  };
  for (const Observation& each : all)
    for (const auto& causes : each.causes) keep_least(causes.front(), std::max(causes.front().log_sd, 1e-6));
  for (const Observation& each : all) {
    for (const auto& causes : each.causes) {
      double before = priors.at(causes.front().name).log_sd;
      for (std::size_t i = 1; i < causes.size(); ++i) {
        const double rest = remaining_log_sd(causes[i].log_sd, before);
        if (rest > 0) keep_least(causes[i], rest);
        before = std::max(before, causes[i].log_sd);
      }
    }
  }
  return priors;
}

}

TrainingEvidence gather_evidence(const CsvTable& table) {
  const std::vector<Observation> all = observe_all(chosen(table));
  TrainingEvidence evidence = {.plan_log_sd = kPlanLogSd};
  std::map<std::string, int> group_rows;
  std::set<std::string> families;
  for (const Observation& each : all) {
    ++group_rows[each.group];
    families.insert(each.family);
  }
  for (const auto& [name, prior] : priors_of(all)) {
    evidence.names.push_back(name);
    evidence.prior_log_sd.push_back(rounded(prior.log_sd));
    evidence.prior_log_mean.push_back(prior.log_mean);
  }
  const std::size_t size = evidence.names.size();
  for (const std::string& name : families) {
    FamilyEvidence family = {.family = name};
    for (std::size_t row = 1; row <= size; ++row) family.precision.emplace_back(row);
    family.information.assign(size, 0);
    for (const Observation& each : all) {
      if (each.family != name) continue;
      ++family.rows;
      double expected = kPlanLogSd * kPlanLogSd;
      for (std::size_t f = 0; f < kFactors; ++f)
        expected += std::pow(each.sensitivity[f] * each.causes[f].back().log_sd, 2);
      const double excess = std::abs(each.residual) / (kHuber * std::sqrt(expected));
      const double weight =
          std::min(1.0, kIndependent / group_rows.at(each.group)) / (kPlanLogSd * kPlanLogSd) / std::max(1.0, excess);
      std::vector<std::pair<std::size_t, double>> causes;  // place in names, sensitivity
      for (std::size_t f = 0; f < kFactors; ++f) {
        for (const FactorCause& cause : each.causes[f]) {
          const auto place = std::ranges::lower_bound(evidence.names, cause.name);
          if (place == evidence.names.end() || *place != cause.name) continue;
          causes.emplace_back(place - evidence.names.begin(), each.sensitivity[f]);
        }
      }
      for (const auto& [a, of_a] : causes) {
        family.information[a] += weight * of_a * each.residual;
        for (const auto& [b, of_b] : causes)
          if (b <= a) family.precision[a][b] += weight * of_a * of_b;
      }
    }
    for (double& value : family.information) value = rounded(value);
    for (auto& row : family.precision)
      for (double& value : row) value = rounded(value);
    evidence.families.push_back(std::move(family));
  }
  return evidence;
}

}
