// How well forecasts were: rows of predicted against measured, summarised in all and by group.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reports/history.h"
#include "reports/views.h"
#include "sim/base/json.h"

namespace foreshard {

struct AccuracyRow {
  std::string id;
  std::int64_t line = 0;
  std::string quantity;  // "step_time_s"
  double measured = 0;
  double predicted = 0, low = 0, high = 0;
  std::vector<std::pair<std::string, std::string>> groups;  // what it counts in: "host", its value
  bool scored = true;
  std::string reason;  // why it is not
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

// Of the scored rows; 0 where there are none.
struct AccuracySummary {
  int rows = 0;
  int scored = 0;
  double median_abs_error = 0;
  double p90_abs_error = 0;
  double bias = 0;        // median signed error
  double coverage = 0;    // share of measurements within low .. high
  double half_width = 0;  // median of (high - low) / 2 / predicted
};
AccuracySummary summarize_accuracy(const std::vector<const AccuracyRow*>& rows);

// One row per validation; `line` is its id. Rows whose times are no positive finite numbers are not
// scored.
std::vector<AccuracyRow> accuracy_rows(const std::vector<HistoryRow>& history);

// DESIGN section 11: summary, groups, rows.
Json accuracy_json(const std::vector<AccuracyRow>& rows);
std::string accuracy_text(const std::vector<AccuracyRow>& rows, const std::string& title,
                          Color color);

}  // namespace foreshard
