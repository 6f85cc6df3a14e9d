#include "reports/accuracy/accuracy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/view/layout.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/memory/capacity.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostTextRows = 20;
constexpr double kRankedDifference = 0.05;

struct Group {
  std::string by;
  std::string value;
  std::vector<const AccuracyRow*> rows;
};

// In the order in which they are first met, kind after kind.
std::vector<Group> groups_of(const std::vector<AccuracyRow>& rows) {
  std::vector<Group> groups;
  for (const AccuracyRow& row : rows) {
    for (const auto& group : row.groups) {
      const std::string& by = group.first;
      const std::string& value = group.second;
      const auto found = std::ranges::find_if(groups, [&](const Group& g) { return g.by == by && g.value == value; });
      if (found == groups.end()) groups.push_back({by, value, {&row}});
      else found->rows.push_back(&row);
    }
  }
  std::ranges::stable_sort(groups, {}, &Group::by);
  return groups;
}

void add_summary(const AccuracySummary& s, Json& json) {
  json["rows"] = s.rows;
  json["scored"] = s.scored;
  json["median_abs_error"] = s.median_abs_error;
  json["p90_abs_error"] = s.p90_abs_error;
  json["bias"] = s.bias;
  json["coverage"] = s.coverage;
  json["half_width"] = s.half_width;
  json["coverage_50"] = s.coverage_50;
  json["coverage_80"] = s.coverage_80;
  json["coverage_90"] = s.coverage;
  json["crps"] = s.crps;
}

std::vector<std::string> cells_of(const std::string& name, const AccuracySummary& s) {
  return {name, std::to_string(s.rows), std::to_string(s.scored), percent_text(s.median_abs_error),
      percent_text(s.p90_abs_error), signed_percent(s.bias), percent_text(s.coverage_50), percent_text(s.coverage_80),
      percent_text(s.coverage), percent_text(s.half_width), percent_text(s.crps)};
}

std::string quantity_text(const AccuracyRow& row, double value) {
  if (row.quantity.ends_with("GiB")) return fmt::format("{:.2f} GiB", value);
  return seconds_text(!contains(row.quantity, "_us") ? value : value * 1e-6);
}

std::vector<const AccuracyRow*> shown_rows(const std::vector<AccuracyRow>& rows, ShownRows shown) {
  std::vector<const AccuracyRow*> all;
  if (shown == ShownRows::kNewest) {
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) all.push_back(&*row);
  } else {
    for (const AccuracyRow& row : rows)
      if (row.scored) all.push_back(&row);
    std::ranges::stable_sort(
        all, [](const AccuracyRow* a, const AccuracyRow* b) { return std::abs(a->error()) > std::abs(b->error()); });
  }
  all.resize(std::min(all.size(), kMostTextRows));
  return all;
}

// How many rows each reason leaves out, the most frequent first.
void add_unscored(const std::vector<AccuracyRow>& rows, std::vector<std::string>& lines) {
  std::vector<std::pair<std::string, int>> reasons;
  for (const AccuracyRow& row : rows) {
    if (row.scored) continue;
    const auto found = std::ranges::find_if(reasons, [&](const auto& each) { return each.first == row.reason; });
    if (found == reasons.end()) reasons.emplace_back(row.reason, 1);
    else ++found->second;
  }
  std::ranges::stable_sort(reasons, [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t kMostReasons = 12;
  for (std::size_t i = 0; i < std::min(reasons.size(), kMostReasons); ++i)
    lines.push_back(fmt::format("  not scored: {} x {}", reasons[i].second, reasons[i].first));
}

// How many measurements lie in central intervals of each level: a forecast of honest intervals is on the diagonal.
Json reliability_json(const std::vector<AccuracyRow>& rows) {
  return json_list(
      kReliabilityLevels,
      [&](const double level) -> Json {
        int scored = 0, held = 0;
        for (const AccuracyRow& row : rows) {
          scored += row.scored;
          held += row.scored && covers({row.predicted, row.low, row.high}, level, row.measured);
        }
        return {{"level", level}, {"covered", scored > 0 ? as_double(held) / scored : 0.0}};
      });
}

bool is_time(double seconds) { return std::isfinite(seconds) && seconds > 0; }

}

std::vector<const AccuracyRow*> pointers(const std::vector<AccuracyRow>& rows) {
  return list_of<const AccuracyRow*>(
      rows, [&](const AccuracyRow& row) { return &row; });
}

AccuracySummary summarize_accuracy(const std::vector<const AccuracyRow*>& rows) {
  AccuracySummary s = {.rows = static_cast<int>(rows.size())};
  std::vector<double> errors, sizes, widths;
  int covered = 0, in_half = 0, in_80 = 0;
  double crps = 0;
  for (const AccuracyRow* row : rows) {
    if (!row->scored) continue;
    errors.push_back(row->error());
    sizes.push_back(std::abs(row->error()));
    widths.push_back((row->high - row->low) / 2 / row->predicted);
    covered += row->low <= row->measured && row->measured <= row->high;
    const Spread spread = {row->predicted, row->low, row->high};
    in_half += covers(spread, 0.5, row->measured);
    in_80 += covers(spread, 0.8, row->measured);
    crps += relative_crps(spread, row->measured);
  }
  if (errors.empty()) return s;
  s.scored = static_cast<int>(errors.size());
  std::ranges::sort(sizes);
  s.median_abs_error = quantile(sizes, 0.5);
  s.p90_abs_error = quantile(sizes, 0.9);
  s.bias = quartiles(std::move(errors)).median;
  s.coverage = as_double(covered) / s.scored;
  s.coverage_50 = as_double(in_half) / s.scored;
  s.coverage_80 = as_double(in_80) / s.scored;
  s.crps = crps / s.scored;
  s.half_width = quartiles(std::move(widths)).median;
  return s;
}

FitChecks fit_checks(const std::vector<AccuracyRow>& rows) {
  FitChecks checks;
  int said = 0, failed = 0;
  for (const AccuracyRow& row : rows) {
    checks.ran += row.fit_probability.has_value();
    said += row.fit_probability.value_or(0) >= 0.5;
    checks.sure += row.ran_where_sure.has_value();
    failed += !row.ran_where_sure.value_or(true);
  }
  if (checks.ran > 0) checks.said_to_fit = as_double(said) / checks.ran;
  if (checks.sure > 0) checks.would_not_have_fitted = as_double(failed) / checks.sure;
  return checks;
}

std::vector<AccuracyRow> accuracy_rows(const std::vector<HistoryRow>& history) {
  std::vector<AccuracyRow> rows;
  for (const HistoryRow& h : history) {
    AccuracyRow row;
    row.id = fmt::format("{} {} {}", h.created, h.model, h.fingerprint);
    row.line = h.id;
    row.quantity = "step_time_s";
    row.measured = h.measured_s;
    row.predicted = h.predicted_s;
    row.low = h.low_s;
    row.high = h.high_s;
    row.groups = {{"host", h.host}, {"model", h.model}, {"profile", h.profile}};
    if (!is_time(h.measured_s) || !is_time(h.predicted_s) || !is_time(h.low_s) || !is_time(h.high_s)) {
      row.scored = false;
      row.reason = "its times are not positive numbers";
      for (double* value : {&row.measured, &row.predicted, &row.low, &row.high}) *value = 0;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json accuracy_json(const std::vector<AccuracyRow>& rows) {
  Json summary;
  add_summary(summarize_accuracy(pointers(rows)), summary);
  Json groups = json_list(groups_of(rows), [&](const Group& group) -> Json {
    Json entry = {{"by", group.by}, {"group", group.value}};
    add_summary(summarize_accuracy(group.rows), entry);
    return entry;
  });
  Json list = Json::array();
  for (const AccuracyRow& row : rows) {
    list.push_back({{"id", row.id}, {"line", row.line}, {"quantity", row.quantity}, {"measured", row.measured},
        {"predicted", row.predicted}, {"low", row.low}, {"high", row.high}, {"error", row.error()},
        {"scored", row.scored}, {"reason", row.reason}});
    if (row.fit_probability) list.back()["fit_probability"] = *row.fit_probability;
    if (row.ran_where_sure) list.back()["ran_where_sure"] = *row.ran_where_sure;
    if (row.facts.empty()) continue;
    Json& facts = list.back()["facts"] = Json::object();
    for (const auto& [name, size] : row.facts) facts[name] = size;
  }
  const BalancedSummary balanced = summarize_balanced(rows);
  const RankCorrelation ranking = rank_correlation(rows, kRankedDifference);
  Json json;
  json["summary"] = std::move(summary);
  json["balanced"] = {{"by", balanced.by}, {"groups", balanced.groups}, {"median_abs_error", balanced.median_abs_error},
      {"p90_abs_error", balanced.p90_abs_error}, {"bias", balanced.bias}};
  json["ranking"] = {{"difference", kRankedDifference}, {"pairs", ranking.pairs}, {"tau", ranking.tau}};
  json["reliability"] = reliability_json(rows);
  const FitChecks fits = fit_checks(rows);
  json["fits"] = {{"ran", fits.ran}, {"said_to_fit", fits.said_to_fit}, {"sure", fits.sure},
      {"would_not_have_fitted", fits.would_not_have_fitted}};
  json["groups"] = std::move(groups);
  json["rows"] = std::move(list);
  return json;
}

std::string accuracy_text(
    const std::vector<AccuracyRow>& rows, const std::string& title, ShownRows shown, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines = {paint.bold(title)};
  if (rows.empty()) {
    lines.emplace_back("  no rows yet; every foreshard validate adds one");
    return fmt::format("{}\n", fmt::join(lines, "\n"));
  }
  std::vector<std::vector<std::string>> table = {
      {"", "rows", "scored", "median |e|", "p90 |e|", "bias", "in 50 %", "in 80 %", "coverage", "half width", "crps"},
      cells_of("all", summarize_accuracy(pointers(rows)))};
  if (const BalancedSummary b = summarize_balanced(rows); b.groups > 1) {
    table.push_back({fmt::format("balanced over {} groups", b.groups), "", "", percent_text(b.median_abs_error),
        percent_text(b.p90_abs_error), signed_percent(b.bias), "", "", "", "", ""});
  }
  for (const Group& group : groups_of(rows))
    table.push_back(cells_of(fmt::format("{} {}", group.by, group.value), summarize_accuracy(group.rows)));
  for (const std::string& line : aligned(table)) lines.push_back("  " + line);
  if (const RankCorrelation r = rank_correlation(rows, kRankedDifference); r.pairs > 0) {
    lines.push_back(fmt::format("  order of pairs that differ by more than {}: tau {:.3f} ({} pairs)",
        percent_text(kRankedDifference), r.tau, r.pairs));
  }
  if (const FitChecks fits = fit_checks(rows); fits.ran > 0) {
    lines.push_back(fmt::format(
        "  {} steps that ran: said to fit with a half or more: {}", fits.ran, percent_text(fits.said_to_fit)));
    if (fits.sure > 0) {
      lines.push_back(
          fmt::format("  {} measured peaks, on the smallest GPU that is said to hold them with {}: {} would not have "
                      "fitted",
              fits.sure, percent_text(kConfidence), percent_text(fits.would_not_have_fitted)));
    }
  }
  add_unscored(rows, lines);
  lines.emplace_back();
  const bool worst = shown == ShownRows::kWorst;
  table = {{worst ? "worst" : "newest", "forecast", "measured", "error"}};
  for (const AccuracyRow* row : shown_rows(rows, shown)) {
    table.push_back({worst ? row->id + " " + row->quantity : row->id, quantity_text(*row, row->predicted),
        quantity_text(*row, row->measured), row->scored ? signed_percent(row->error()) : row->reason});
  }
  for (const std::string& line : aligned(table)) lines.push_back("  " + line);
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

// Student's t with 4 degrees of freedom has quantiles in closed form (W. Shaw, Journal of
// Computational Finance 9(4), 2006): 2 * sqrt(cos(acos(sqrt(a)) / 3) / sqrt(a) - 1), a = 4 p (1 -
// p). The score is the mean of the pinball losses of evenly spaced quantiles, doubled.

namespace {

double student4(double p) {
  const double a = 4 * p * (1 - p);
  if (a >= 1) return 0;
  const double size = 2 * std::sqrt(std::cos(std::acos(std::sqrt(a)) / 3) / std::sqrt(a) - 1);
  return p < 0.5 ? -size : size;
}

}

double quantile(const Spread& spread, double p) {
  static const double kEnd = student4(0.95);
  if (spread.value <= 0) return spread.value;
  const double end =
      p < 0.5 ? std::clamp(spread.low, spread.value * 1e-9, spread.value) : std::max(spread.high, spread.value);
  const double scale = std::abs(std::log(end / spread.value)) / kEnd;
  return spread.value * std::exp(scale * student4(p));
}

bool covers(const Spread& spread, double level, double measured) {
  return quantile(spread, (1 - level) / 2) <= measured && measured <= quantile(spread, (1 + level) / 2);
}

double relative_crps(const Spread& spread, double measured) {
  constexpr int kQuantiles = 100;
  if (measured <= 0) return 0;
  double sum = 0;
  for (int i = 0; i < kQuantiles; ++i) {
    const double p = (i + 0.5) / kQuantiles;
    const double at = quantile(spread, p);
    sum += (measured < at ? 1 - p : p) * std::abs(measured - at);
  }
  return 2 * sum / kQuantiles / measured;
}

}
