// How well forecasts were: rows of predicted against measured, summarised in all and by group.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reports/validate/history.h"
#include "reports/view/views.h"
#include "sim/base/json.h"

namespace foreshard {

using AccuracyGroups = std::vector<std::pair<std::string, std::string>>;
struct AccuracyRow {
  std::string id;
  std::int64_t line = 0;
  std::string quantity;  // "step_time_s"
  double measured = 0;
  double predicted = 0, low = 0, high = 0;
  AccuracyGroups groups;  // what it counts in: "host", its value
  // What its interval rests on beside the machine (calibration/first_looks.h); empty where it has no such part.
  std::vector<std::pair<std::string, double>> facts = {};
  bool scored = true;
  std::string reason;  // why it is not
  // Of a step that ran: how sure its forecast was that it would fit.
  std::optional<double> fit_probability = {};
  // Of measured reserved memory: whether the plan would have run on a GPU with just so much memory
  // that it is said to fit with kConfidence.
  std::optional<bool> ran_where_sure = {};
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

// Of the scored rows; 0 where there are none.
struct AccuracySummary {
  int rows = 0;
  int scored = 0;
  double median_abs_error = 0;
  double p90_abs_error = 0;
  double bias = 0;                          // median signed error
  double coverage = 0;                      // share of measurements within low .. high
  double coverage_50 = 0, coverage_80 = 0;  // within narrower intervals of the same forecasts
  double crps = 0;                          // mean of relative_crps()
  double half_width = 0;                    // median of (high - low) / 2 / predicted
};
AccuracySummary summarize_accuracy(const std::vector<const AccuracyRow*>& rows);
std::vector<const AccuracyRow*> pointers(const std::vector<AccuracyRow>& rows);

// What forecasts say of fitting against what did, scored or not: shares, 0 where there are no rows.
struct FitChecks {
  int ran = 0;                       // steps that ran
  double said_to_fit = 0;            // of these: with a half or more
  int sure = 0;                      // reserved memory measured, on the smallest GPU that is sure
  double would_not_have_fitted = 0;  // of these: should be 1 - kConfidence at the most
};
FitChecks fit_checks(const std::vector<AccuracyRow>& rows);

// Every group of the first kind of each row's groups counts the same, whatever its rows: quantiles
// of |error| and of the signed error with weights 1 / (scored rows of the group).
struct BalancedSummary {
  std::string by;  // "family x gpu"; "": rows without groups
  int groups = 0;  // with scored rows
  double median_abs_error = 0;
  double p90_abs_error = 0;
  double bias = 0;
};
BalancedSummary summarize_balanced(const std::vector<AccuracyRow>& rows);

// Kendall's tau of forecasts against measurements over the pairs of scored rows, of one quantity
// and one group of the first kind, whose measurements differ by more than `difference` (0.05: 5 %).
struct RankCorrelation {
  std::int64_t pairs = 0;
  double tau = 0;
};
RankCorrelation rank_correlation(const std::vector<AccuracyRow>& rows, double difference);

// Of each quantity and group of the first kind `count` scored rows become anchors, no longer scored: of equal parts of
// the group ordered by forecast, those with the narrowest interval, and of these the one in the middle, as somebody
// chooses a run who has the forecasts and no measurement; of equal forecasts by a hash of the id. The anchor nearest by
// forecast moves each of its group's other forecasts: four fifths of what it says, for a single run carries an error of
// its own, and less the less the two forecasts are alike. What lies outside the anchor's own interval is taken as that
// run's alone: an anchor counts as at most the interval's end. Intervals are half as wide, as logarithms.
std::vector<AccuracyRow> anchored(std::vector<AccuracyRow> rows, int count);

// Forecasts without measurements, and a hash over them, so that a later comparison with new rows is
// provably blind. Schema foreshard.forecasts/1.
Json frozen_forecasts(const std::vector<AccuracyRow>& rows);
// `rows` with the forecasts that were frozen, by id, line and quantity; rows that were not frozen
// are not scored. Throws Error(kInvalidInput) where the hash does not fit or no row was frozen.
std::vector<AccuracyRow> with_frozen(std::vector<AccuracyRow> rows, const Json& frozen);

// One row per validation; `line` is its id. Rows whose times are no positive finite numbers are not scored.
std::vector<AccuracyRow> accuracy_rows(const std::vector<HistoryRow>& history);

// DESIGN section 11: summary, groups, rows; and balanced, ranking.
Json accuracy_json(const std::vector<AccuracyRow>& rows);

// Which rows the text shows below the groups.
enum class ShownRows : std::uint8_t { kNewest, kWorst };
std::string accuracy_text(const std::vector<AccuracyRow>& rows, const std::string& title, ShownRows shown, Color color);

// The distribution that a forecast's 90 % interval stands for, so that it can be scored at other
// levels: on each side of the forecast, which is the median, the logarithm is that half of
// Student's t with 4 degrees of freedom whose 5 or 95 % quantile is the interval's end. Errors of
// forecasts have such tails: most are small, a few are of something nobody knew.

struct Spread {
  double value = 0, low = 0, high = 0;  // positive; low <= value <= high, else they are made so
};

// p within 0 and 1, both excluded.
double quantile(const Spread& spread, double p);
// Whether the central interval of that share holds `measured`.
bool covers(const Spread& spread, double level, double measured);
// How far the distribution is from what was measured (continuous ranked probability score, Gneiting
// and Raftery 2007), over what was measured: the mean absolute error of a forecast without
// interval, less where the interval says rightly how far off it may be.
double relative_crps(const Spread& spread, double measured);

// Levels that a reliability diagram shows.
inline constexpr std::array kReliabilityLevels = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95};

}
