#include "reports/sizing/search_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "reports/view/plan_words.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

// What printed steps differ by at the least.
constexpr double kToldApart = 0.002;

std::string gain_words(const std::optional<Candidate>& best, const Candidate& other) {
  const std::string step = seconds_text(other.seconds);
  if (!best) return step;
  return fmt::format("{} ({})", step, signed_percent(other.seconds / best->seconds - 1));
}

}

std::string fit_words(const Fit& fit, double probability) {
  if (fit.fits()) return fmt::format("fits with {}", chance_text(probability));
  return fmt::format("does not fit: {} more than there is", format_bytes(Bytes() - fit.margin()));
}

std::string settings_words(const Plan& base, const Plan& plan) {
  static constexpr const char* kGrid[] = {"mesh.shard", "mesh.replicate", "reshard_after_forward", "prefetch.forward",
      "prefetch.backward", "recompute", "batch.micro_batch", "batch.accumulation"};
  std::string words;
  for (const PlanDifference& d : plan_differences(base, plan)) {
    if (contains(kGrid, d.key)) continue;
    words += fmt::format(" --set {}={}", d.key, d.b);
  }
  return words;
}

std::string plan_in_words(const Plan& base, const Plan& plan) {
  return fmt::format("{}, reshard {}, prefetch {}, recompute {}, micro-batch {} x {}{}", words_of(plan.mesh),
      reshard_words(plan), words_of(plan.prefetch), recompute_words(plan), plan.batch.micro_batch,
      plan.batch.accumulation, settings_words(base, plan));
}

std::vector<std::string> advice_lines(
    const SearchResult& result, const std::vector<Alternative>& alternatives, const Plan& base, const Paint& paint) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& text) {
    for (const std::string& line : indented(text)) lines.push_back(line);
  };
  if (result.riskier) {
    const Candidate& c = *result.riskier;
    add(paint.yellow(fmt::format("riskier: {}, fits with {}: {}", gain_words(result.best, c),
        chance_text(c.fit_probability), plan_in_words(base, c.plan))));
  }
  for (const Alternative& a : alternatives) {
    std::string flags;
    for (const std::string& change : a.changes) flags += "--set " + change + " ";
    add(fmt::format("with {}{}: {}, fits with {}", flags, result.best ? "also" : "it holds",
        gain_words(result.best, a.candidate), chance_text(a.candidate.fit_probability)));
  }
  return lines;
}

Json set_json(const std::vector<std::string>& changes) {
  Json set = Json::object();
  for (const std::string& change : changes) {
    const std::size_t equals = change.find('=');
    set[change.substr(0, equals)] = change.substr(equals + 1);
  }
  return set;
}

Json to_json(const std::vector<Alternative>& alternatives) {
  return json_list(
      alternatives,
      [&](const Alternative& a) -> Json {
        return {{"set", set_json(a.changes)}, {"plan", to_json(a.candidate.plan)}, {"seconds", a.candidate.seconds},
            {"peak_allocated_bytes", a.candidate.peak_allocated.count()},
            {"fit_probability", a.candidate.fit_probability}};
      });
}

std::vector<std::string> pipeline_lines(const std::vector<PipelineStep>& steps) {
  if (steps.size() < 2) return {};
  std::vector<std::string> words;
  for (const PipelineStep& step : steps) {
    const std::string of = step.pp == 1 ? "none" : fmt::format("pp {}", step.pp);
    if (step.seconds) words.push_back(fmt::format("{} {}", of, seconds_text(*step.seconds)));
    else if (step.at_least > 0)
      words.push_back(fmt::format("{} no faster (layers and bubble alone {})", of, seconds_text(step.at_least)));
    else words.push_back(of + " no faster");
  }
  return indented(fmt::format("stages of a pipeline: {}", fmt::join(words, ", ")));
}

Json to_json(const std::vector<PipelineStep>& steps) {
  return json_list(
      steps,
      [&](const PipelineStep& step) -> Json {
        return {{"pp", step.pp}, {"seconds", step.seconds ? Json(*step.seconds) : Json(nullptr)},
            {"at_least_seconds", step.at_least}};
      });
}

bool prefetch_is_idle(const SearchResult& result) {
  std::map<std::int64_t, std::pair<double, double>> span;  // by shard group: fastest, slowest
  bool differs = false;
  for (const HeatmapCell& cell : result.heatmap) {
    if (!cell.seconds) continue;
    const auto [known, is_new] = span.try_emplace(cell.shard, *cell.seconds, *cell.seconds);
    auto& [fastest, slowest] = known->second;
    fastest = std::min(fastest, *cell.seconds);
    slowest = std::max(slowest, *cell.seconds);
    differs |= slowest > fastest * (1 + kToldApart);
  }
  return !differs && !span.empty();
}

}
