#include "reports/sizing/search_depth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostReasons = 3;
constexpr double kSmallest = 1e-4;  // of the step

std::vector<std::pair<std::string, double>> differences(const Forecast& best, const Forecast& other) {
  std::vector<std::pair<std::string, double>> list;
  const auto add = [&](const std::string& what, double seconds) {
    for (auto& [name, sum] : list) {
      if (name == what) {
        sum += seconds;
        return;
      }
    }
    list.emplace_back(what, seconds);
  };
  for (const WaterfallBar& bar : waterfall(other.graph, other.timeline)) add(bar.what, bar.time.seconds());
  for (const WaterfallBar& bar : waterfall(best.graph, best.timeline)) add(bar.what, -bar.time.seconds());
  std::erase_if(
      list, [&](const auto& entry) { return std::abs(entry.second) < kSmallest * best.timeline.period.seconds(); });
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  if (list.size() > kMostReasons) list.resize(kMostReasons);
  return list;
}

// The first key in which two neighbours differ says which axis they are on.
std::string key_of(const Plan& best, const Plan& other) {
  const auto all = plan_differences(best, other);
  return all.empty() ? "" : all.front().key;
}

std::string changes_text(const Plan& best, const Plan& other) {
  std::vector<std::string> words;
  for (const PlanDifference& d : plan_differences(best, other)) {
    if (d.key == "mesh.replicate" || d.key == "batch.accumulation") continue;
    words.push_back(fmt::format("{} {}", d.key, d.b));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

Json plan_and_time(const Candidate& candidate) {
  return {{"plan", to_json(candidate.plan)}, {"seconds", candidate.seconds},
      {"peak_allocated_bytes", candidate.peak_allocated.count()}};
}

}

std::vector<WhySlower> why_slower(const Forecast& best, const SearchResult& result, const CostModel& costs) {
  std::map<std::string, const Candidate*> fastest;  // by key
  for (const Candidate& n : result.neighbours) {
    if (n.verdict != Verdict::kSimulated) continue;
    const Candidate*& known = fastest[key_of(best.plan, n.plan)];
    if (known == nullptr || n.seconds < known->seconds) known = &n;
  }
  auto list = list_of<WhySlower>(
      fastest,
      [&](const auto& each) {
        return WhySlower{*each.second, differences(best, forecast(best.model, each.second->plan, costs))};
      });
  std::ranges::stable_sort(
      list, [](const WhySlower& a, const WhySlower& b) { return a.candidate.seconds > b.candidate.seconds; });
  return list;
}

std::optional<RobustChoice> choose_robust(
    const SearchResult& result, const ModelSpec& model, const CostModel& costs, const StackSet& stacks, int draws) {
  ReservedMemory replays;
  std::optional<RobustChoice> choice;
  std::int64_t considered = 0;
  for (const Candidate& candidate : result.close) {
    // The high end is never below the central forecast, so the rest cannot be better.
    if (choice && candidate.seconds > choice->sized.step.high) break;
    SizedPlan sized = size_up(model, candidate.plan, costs, {draws, stacks.of(candidate.plan), &replays});
    if (!sized.fit.fits()) continue;
    ++considered;
    if (!choice) {
      const Quantity fastest = sized.step;
      choice = RobustChoice{std::move(sized), fastest, 0};
    } else if (sized.step.high < choice->sized.step.high) {
      choice->sized = std::move(sized);
    }
  }
  if (choice) choice->considered = considered;
  return choice;
}

std::string why_text(const std::vector<WhySlower>& list, const Plan& best, Color color) {
  if (list.empty()) return "";
  const Paint paint(color);
  Lines lines = {"", paint.bold("where the time goes instead: the next best of each key")};
  for (const WhySlower& why : list) {
    auto reasons = list_of<std::string>(
        why.because, [&](const auto& each) { return fmt::format("{} {}", each.first, signed_seconds(each.second)); });
    lines.push_back(fmt::format("  {}: {}", changes_text(best, why.candidate.plan),
        reasons.empty() ? "the same" : fmt::format("{}", fmt::join(reasons, ", "))));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const std::vector<WhySlower>& list) {
  return json_list(
      list,
      [&](const WhySlower& why) -> Json {
        Json because = Json::array();
        for (const auto& [what, seconds] : why.because) because.push_back({{"what", what}, {"difference_s", seconds}});
        Json entry = plan_and_time(why.candidate);
        entry["because"] = because;
        return entry;
      });
}

std::string robust_text(const RobustChoice& choice, const Candidate& fastest, Color color) {
  const Paint paint(color);
  const Quantity& step = choice.sized.step;
  const std::string differs = changes_text(fastest.plan, choice.sized.plan);
  return fmt::format("\n{}\n  {}: {} ({} .. {}); the fastest: {} ({} .. {}); {} plans considered\n",
      paint.bold("robust over the interval"), differs.empty() ? "the fastest plan is it" : differs,
      seconds_text(step.value), seconds_text(step.low), seconds_text(step.high), seconds_text(choice.fastest.value),
      seconds_text(choice.fastest.low), seconds_text(choice.fastest.high), choice.considered);
}

Json to_json(const RobustChoice& choice) {
  return {{"plan", to_json(choice.sized.plan)}, {"step_s", to_json(choice.sized.step)},
      {"fastest_step_s", to_json(choice.fastest)}, {"considered", choice.considered}};
}

std::string deep_text(const DeepResult& deep, const Candidate* grid_best, double seconds, Color color) {
  const Paint paint(color);
  const auto gain = [&](double step) {
    return grid_best == nullptr ? std::string("-") : signed_percent(step / grid_best->seconds - 1);
  };
  const SearchResult& k = deep.knobs;
  Lines lines = {"", paint.bold(fmt::format("beyond the grid, in {}", seconds_text(seconds)))};
  lines.push_back(fmt::format("  knobs: {} plans, {} pruned by their bound, {} do not fit, {} simulated",
      format_count(k.enumerated), format_count(k.pruned), format_count(k.rejected_memory), format_count(k.simulated)));
  if (k.best) {
    lines.push_back(fmt::format("    {} ({}){}", seconds_text(k.best->seconds), gain(k.best->seconds),
        grid_best == nullptr ? "" : ": " + changes_text(grid_best->plan, k.best->plan)));
  }
  if (deep.written) {
    lines.push_back(fmt::format(
        "  the plan as written: {} ({})", seconds_text(deep.written->seconds), gain(deep.written->seconds)));
  }
  if (deep.layers) {
    const Candidate& c = deep.layers->candidate;
    lines.push_back(fmt::format("  per unit and layer: {} plans judged{}", format_count(deep.judged),
        deep.layers->is_optimum ? ", all there are on its mesh" : ""));
    lines.push_back(fmt::format("    {} ({}): {}, micro-batch {} x {}, reshard {}, recompute {}",
        seconds_text(c.seconds), gain(c.seconds), words_of(c.plan.mesh), c.plan.batch.micro_batch,
        c.plan.batch.accumulation, reshard_words(c.plan), recompute_words(c.plan)));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const DeepResult& deep) {
  const SearchResult& k = deep.knobs;
  Json json = {{"knobs", {{"enumerated", k.enumerated}, {"pruned", k.pruned}, {"rejected_memory", k.rejected_memory},
                             {"simulated", k.simulated}, {"best", k.best ? plan_and_time(*k.best) : Json()}}},
      {"layers", nullptr}, {"written", deep.written ? plan_and_time(*deep.written) : Json()}};
  if (deep.layers) {
    json["layers"] = plan_and_time(deep.layers->candidate);
    json["layers"]["judged"] = deep.judged;
    json["layers"]["is_optimum"] = deep.layers->is_optimum;
  }
  return json;
}

}
