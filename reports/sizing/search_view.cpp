#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "reports/view/views.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostPareto = 10;
constexpr std::size_t kMostNeighbours = 14;
constexpr std::size_t kMostPrefetches = 7;
constexpr std::size_t kCell = 12;
constexpr double kSmallestChange = 5e-5;  // of the step time; less reads 0.0 %

// --- heatmap ---

// Darker is faster: a step time's place between the fastest and the slowest of the map.
std::string shade(double seconds, double fastest, double slowest) {
  static constexpr const char* kShades[] = {"█", "▓", "▒", "░", " "};
  const double place = slowest > fastest ? (seconds - fastest) / (slowest - fastest) : 0;
  return kShades[std::min<std::size_t>(static_cast<std::size_t>(place * 5), 4)];
}

class Heatmap {
 public:
  explicit Heatmap(const SearchResult& result) : result_(result) {
    for (const HeatmapCell& cell : result.heatmap) {
      remember(shards_, cell.shard);
      remember(prefetches_, cell.prefetch);
      if (!cell.seconds) continue;
      fastest_ = std::min(fastest_, *cell.seconds);
      slowest_ = std::max(slowest_, *cell.seconds);
    }
  }

  Lines lines(const Paint& paint) const {
    if (shards_.empty()) return {};
    const bool is_idle = prefetch_is_idle(result_);
    const std::size_t columns = is_idle ? 1 : std::min(prefetches_.size(), kMostPrefetches);
    Lines lines = {paint.bold(is_idle ? "best step time by shard group; prefetch depth does not matter here"
                                      : "best step time by shard group and prefetch (forward/backward)"),
        "  darker is faster, - does not hold; everything else as it is best"};
    std::string head = left("  shard", 10);
    for (std::size_t p = 0; p < columns && !is_idle; ++p) head += right(words_of(prefetches_[p]), kCell);
    lines.push_back(head);
    for (std::int64_t shard : shards_) {
      std::string line = left("  " + std::to_string(shard), 10);
      for (std::size_t p = 0; p < columns; ++p)
        line += cell(is_idle ? fastest_of(shard) : find(shard, prefetches_[p]), paint);
      lines.push_back(line);
    }
    if (columns < prefetches_.size() && !is_idle)
      lines.push_back(fmt::format("  ({} more prefetch settings in the JSON)", prefetches_.size() - columns));
    return lines;
  }

 private:
  template <typename T>
  static void remember(std::vector<T>& list, const T& value) {
    if (!contains(list, value)) list.push_back(value);
  }

  const HeatmapCell* find(std::int64_t shard, const Prefetch& prefetch) const {
    const auto found = std::ranges::find_if(
        result_.heatmap, [&](const HeatmapCell& c) { return c.shard == shard && c.prefetch == prefetch; });
    return found == result_.heatmap.end() ? nullptr : &*found;
  }

  // Of the shard group's cells; one that does not hold where none does.
  const HeatmapCell* fastest_of(std::int64_t shard) const {
    const HeatmapCell* fastest = nullptr;
    for (const HeatmapCell& c : result_.heatmap) {
      if (c.shard != shard || (fastest != nullptr && !c.seconds)) continue;
      if (fastest == nullptr || !fastest->seconds || *c.seconds < *fastest->seconds) fastest = &c;
    }
    return fastest;
  }

  std::string cell(const HeatmapCell* cell, const Paint& paint) const {
    if (cell == nullptr) return right("", kCell);
    if (!cell->seconds) return right("-", kCell);
    const std::string tile = shade(*cell->seconds, fastest_, slowest_);
    const std::string text = right(tile + tile + " " + seconds_text(*cell->seconds), kCell);
    return *cell->seconds == fastest_ ? paint.green(text) : text;
  }

  const SearchResult& result_;
  std::vector<std::int64_t> shards_;
  std::vector<Prefetch> prefetches_;
  double fastest_ = std::numeric_limits<double>::infinity();
  double slowest_ = 0;
};

// --- the answer ---

Lines best_lines(const SearchStory& story, const Report* report, const Paint& paint) {
  const SearchResult& result = story.result;
  const std::string sure = chance_text(story.confidence);
  if (!result.best) {
    Lines lines = {paint.red(fmt::format("no plan fits {} with {}", cluster_words(story.cluster), sure))};
    if (!result.smallest || result.riskier) return lines;
    const Fit fit = fit_in(story.cluster, result.smallest->peak_allocated, result.smallest->peak_reserved,
        result.smallest->outside_allocator);
    append(lines, wrapped(fmt::format("  the smallest {}: {}", fit_words(fit, result.smallest->fit_probability),
                              plan_in_words(result.smallest->plan, result.smallest->plan)),
                      kTextWidth, 2));
    return lines;
  }
  const Candidate& best = *result.best;
  Lines lines = {paint.bold(fmt::format("best plan: fits with {}", chance_text(best.fit_probability))),
      "  " + plan_in_words(best.plan, best.plan)};
  const std::string settings = settings_words(story.base, best.plan);
  if (!settings.empty()) append(lines, indented("with" + settings));
  std::string figures = fmt::format("  {} per step, {} tokens/s per GPU, peak {} allocated", seconds_text(best.seconds),
      cardinal(best.tokens_per_s_per_gpu), format_bytes(best.peak_allocated));
  if (report != nullptr) {
    figures +=
        fmt::format(", MFU {}, {} to spare", percent_text(report->mfu.value), format_bytes(report->fit.margin()));
  }
  lines.push_back(paint.green(figures));
  return lines;
}

Lines pareto_lines(const SearchResult& result, const Paint& paint) {
  if (result.pareto.empty()) return {};
  Lines lines = {"", paint.bold("time against memory: no plan is better in both than these")};
  std::vector<std::vector<std::string>> table = {
      {"  step", "tokens/s/GPU", "peak", "shard", "reshard", "prefetch", "recompute", "micro-batch"}};
  for (std::size_t i = 0; i < std::min(result.pareto.size(), kMostPareto); ++i) {
    const Candidate& c = result.pareto[i];
    table.push_back({"  " + seconds_text(c.seconds), cardinal(c.tokens_per_s_per_gpu), format_bytes(c.peak_allocated),
        std::to_string(c.plan.mesh.shard), reshard_words(c.plan), words_of(c.plan.prefetch), recompute_words(c.plan),
        fmt::format("{} x {}", c.plan.batch.micro_batch, c.plan.batch.accumulation)});
  }
  append(lines, aligned(table));
  if (result.pareto.size() > kMostPareto)
    lines.push_back(fmt::format("  ({} more in the JSON)", result.pareto.size() - kMostPareto));
  return lines;
}

// The keys in which a neighbour differs, with its values. Keys that follow from others stay out; a
// key of the same mapping as the one before is written without it.
std::string changes(const Plan& best, const Plan& other) {
  std::string text;
  std::string mapping;
  for (const PlanDifference& d : plan_differences(best, other)) {
    const bool follows = d.key == "mesh.replicate" || d.key == "batch.accumulation" || d.key == "allocator";
    if (follows && !text.empty()) continue;
    const std::string own = d.key.substr(0, d.key.find('.') + 1);
    const bool joins = !own.empty() && own == mapping;
    text += (text.empty() ? "" : ", ") + (joins ? d.key.substr(own.size()) : d.key) + " " + d.b;
    mapping = own;
  }
  return text;
}

// What a neighbour does to the step: the change, and as a ratio.
std::vector<std::string> step_cells(const Candidate& best, const Candidate& other) {
  if (other.verdict == Verdict::kDoesNotFit) return {"does not fit", ""};
  if (other.verdict == Verdict::kNotDivisible) return {"not divisible", ""};
  if (other.verdict == Verdict::kPruned) return {"slower by its bound", ""};
  const double change = best.seconds > 0 ? other.seconds / best.seconds - 1 : 0;
  if (std::abs(change) < kSmallestChange) return {"as fast", ""};
  return {signed_seconds(other.seconds - best.seconds), signed_percent(change)};
}

Lines neighbour_lines(const SearchResult& result, double confidence, const Paint& paint) {
  if (!result.best || result.neighbours.empty()) return {};
  const Candidate& best = *result.best;
  Lines lines = {"", paint.bold("why it won: the same plan with one thing changed")};
  std::vector<std::vector<std::string>> table = {{"  instead", "step", "", "peak", ""}};
  std::size_t left_out = 0;
  for (const Candidate& n : result.neighbours) {
    if (table.size() > kMostNeighbours) {
      ++left_out;
      continue;
    }
    std::vector<std::string> cells = {"  " + changes(best.plan, n.plan)};
    for (std::string& cell : step_cells(best, n)) cells.push_back(std::move(cell));
    const auto bytes = [](const Candidate& c) { return as_double(c.peak_allocated.count()); };
    cells.push_back(n.verdict == Verdict::kNotDivisible ? "" : signed_bytes(bytes(n) - bytes(best)));
    const bool is_asked = n.verdict == Verdict::kSimulated && n.peak_reserved > Bytes();
    cells.push_back(
        is_asked && n.fit_probability < confidence ? fmt::format("fits with {}", chance_text(n.fit_probability)) : "");
    table.push_back(std::move(cells));
  }
  append(lines, aligned(table));
  if (left_out > 0) lines.push_back(fmt::format("  ({} more in the JSON)", left_out));
  return lines;
}

Json candidate_json(const Candidate& c) {
  return {{"plan", to_json(c.plan)}, {"seconds", c.seconds}, {"tokens_per_s_per_gpu", c.tokens_per_s_per_gpu},
      {"peak_allocated_bytes", c.peak_allocated.count()}, {"verdict", to_string(c.verdict)}};
}

}

Json prefetch_json(const Prefetch& prefetch) {
  const Json forward = prefetch.forward == Prefetch::kImplicit ? Json("implicit") : Json(prefetch.forward);
  return {{"forward", forward}, {"backward", prefetch.backward}};
}

std::string search_text(const SearchStory& story, const Forecast* best, const Report* best_report, Color color) {
  const SearchResult& result = story.result;
  const Paint paint(color);
  std::string counts = fmt::format("{} plans: {} do not fit, {} simulated", format_count(result.enumerated),
      format_count(result.rejected_memory), format_count(result.simulated));
  if (result.pruned > 0) counts += fmt::format(", {} slower by their bounds", format_count(result.pruned));
  Lines lines = {paint.bold(story.model.name), cluster_words(story.cluster),
      fmt::format("{}, in {}", counts, seconds_text(story.seconds)), ""};
  append(lines, best_lines(story, best_report, paint));
  if (best != nullptr) {
    std::vector<WaterfallBar> bars = waterfall(best->graph, best->timeline);
    std::ranges::stable_sort(bars, std::greater(), &WaterfallBar::time);
    std::string where = "  its step:";
    for (std::size_t i = 0; i < std::min<std::size_t>(bars.size(), 4); ++i) {
      where += fmt::format("{} {} {}", i == 0 ? "" : ",", bars[i].what,
          percent_text(bars[i].time.seconds() / best->timeline.period.seconds()));
    }
    lines.push_back(where);
  }
  if (best_report != nullptr && !best_report->open_stack.outcomes.empty())
    append(lines, indented(open_stack_text(best_report->open_stack)));
  append(lines, pipeline_lines(story.pipelines));
  append(lines, advice_lines(result, story.alternatives, story.base, paint));
  const Lines map = Heatmap(result).lines(paint);
  if (!map.empty()) lines.emplace_back();
  append(lines, map);
  append(lines, neighbour_lines(result, story.confidence, paint));
  append(lines, pareto_lines(result, paint));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json search_json(const SearchStory& story, const std::vector<Report>& pareto_reports, const Report* best_report) {
  const SearchResult& result = story.result;
  Json json;
  json["schema"] = "foreshard.search/1";
  json["enumerated"] = result.enumerated;
  json["rejected_memory"] = result.rejected_memory;
  json["simulated"] = result.simulated;
  json["seconds"] = story.seconds;
  json["confidence"] = story.confidence;
  const auto named = [](const std::optional<Candidate>& candidate, const Report* report) -> Json {
    if (!candidate) return nullptr;
    return {{"plan", to_json(candidate->plan)}, {"report", report == nullptr ? Json(nullptr) : to_json(*report)}};
  };
  json["best"] = named(result.best, best_report);
  json["riskier"] = named(result.riskier, story.riskier ? &*story.riskier : nullptr);
  json["alternatives"] = to_json(story.alternatives);
  Json& pareto = json["pareto"] = Json::array();
  for (std::size_t i = 0; i < result.pareto.size(); ++i) {
    Json entry = {{"plan", to_json(result.pareto[i].plan)}, {"report", nullptr}};
    if (i < pareto_reports.size()) entry["report"] = to_json(pareto_reports[i]);
    pareto.push_back(std::move(entry));
  }
  json["heatmap"] = json_list(
      result.heatmap,
      [&](const HeatmapCell& cell) -> Json {
        return {{"shard", cell.shard}, {"prefetch", prefetch_json(cell.prefetch)},
            {"seconds", cell.seconds ? Json(*cell.seconds) : Json(nullptr)}};
      });
  json["neighbours"] = json_list(result.neighbours, [&](const Candidate& c) -> Json { return candidate_json(c); });
  if (story.pipelines.size() > 1) json["pipelines"] = to_json(story.pipelines);
  json["smallest"] = result.smallest ? candidate_json(*result.smallest) : Json(nullptr);
  return json;
}

}
