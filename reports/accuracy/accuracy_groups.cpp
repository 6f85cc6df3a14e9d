// Summaries over groups, anchors, and forecasts that were frozen before measurements were seen.
#include <algorithm>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "reports/accuracy/accuracy.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {
namespace {

std::string group_of(const AccuracyRow& row) {
  return row.groups.empty() ? std::string() : row.groups.front().second;
}

struct Weighted {
  double value = 0;
  double weight = 0;
};

// The least value that at least the share `p` of the weight does not exceed.
double weighted_quantile(std::vector<Weighted> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double total = 0;
  for (const Weighted& each : values) total += each.weight;
  double below = 0;
  for (const Weighted& each : values) {
    below += each.weight;
    if (below >= p * total * (1 - 1e-12)) return each.value;
  }
  return values.back().value;
}

std::uint64_t order_of(const AccuracyRow& row) { return Fingerprint().add(row.id).value(); }

Json forecast_json(const AccuracyRow& row) {
  return {{"id", row.id},
          {"line", row.line},
          {"quantity", row.quantity},
          {"predicted", row.predicted},
          {"low", row.low},
          {"high", row.high}};
}

// A version 5 UUID (RFC 4122): 122 bits of the SHA-1 of the text.
std::string hash_of(const Json& forecasts) {
  const boost::uuids::name_generator_sha1 generator(boost::uuids::ns::oid());
  return boost::uuids::to_string(generator(forecasts.dump()));
}

// What a run of one's own leaves of the interval's logarithm: half. So 88 % of the 710 published
// steps that have an anchor lie in it (`accuracy calibration/published/training_steps.csv --anchor
// 1`), of 85 to 97 that should.
void narrow(AccuracyRow& row) {
  for (double* end : {&row.low, &row.high}) {
    if (*end > 0 && row.predicted > 0) *end = std::sqrt(*end * row.predicted);
  }
}

}  // namespace

BalancedSummary summarize_balanced(const std::vector<AccuracyRow>& rows) {
  std::map<std::string, int> counts;
  BalancedSummary summary;
  for (const AccuracyRow& row : rows) {
    if (!row.scored) continue;
    ++counts[group_of(row)];
    if (summary.by.empty() && !row.groups.empty()) summary.by = row.groups.front().first;
  }
  summary.groups = static_cast<int>(counts.size());
  std::vector<Weighted> sizes, errors;
  for (const AccuracyRow& row : rows) {
    if (!row.scored) continue;
    const double weight = 1.0 / counts[group_of(row)];
    sizes.push_back({std::abs(row.error()), weight});
    errors.push_back({row.error(), weight});
  }
  summary.median_abs_error = weighted_quantile(sizes, 0.5);
  summary.p90_abs_error = weighted_quantile(std::move(sizes), 0.9);
  summary.bias = weighted_quantile(std::move(errors), 0.5);
  return summary;
}

RankCorrelation rank_correlation(const std::vector<AccuracyRow>& rows, double difference) {
  std::map<std::pair<std::string, std::string>, std::vector<const AccuracyRow*>> groups;
  for (const AccuracyRow& row : rows) {
    if (row.scored) groups[{row.quantity, group_of(row)}].push_back(&row);
  }
  RankCorrelation result;
  std::int64_t balance = 0;
  for (const auto& [key, members] : groups) {
    for (std::size_t a = 0; a < members.size(); ++a) {
      for (std::size_t b = a + 1; b < members.size(); ++b) {
        const double measured = members[a]->measured / members[b]->measured;
        if (std::max(measured, 1 / measured) <= 1 + difference) continue;
        ++result.pairs;
        const double predicted = members[a]->predicted / members[b]->predicted;
        if (predicted != 1) balance += (predicted > 1) == (measured > 1) ? 1 : -1;
      }
    }
  }
  if (result.pairs > 0) {
    result.tau = static_cast<double>(balance) / static_cast<double>(result.pairs);
  }
  return result;
}

std::vector<AccuracyRow> anchored(std::vector<AccuracyRow> rows, int count) {
  std::map<std::pair<std::string, std::string>, std::vector<AccuracyRow*>> groups;
  for (AccuracyRow& row : rows) {
    if (row.scored) groups[{row.quantity, group_of(row)}].push_back(&row);
  }
  for (auto& [key, members] : groups) {
    std::vector<AccuracyRow*> order = members;
    std::stable_sort(order.begin(), order.end(), [](const AccuracyRow* a, const AccuracyRow* b) {
      return std::make_tuple(a->predicted, order_of(*a), a->line) <
             std::make_tuple(b->predicted, order_of(*b), b->line);
    });
    const std::size_t anchors = std::min(order.size(), static_cast<std::size_t>(count));
    if (anchors == 0) continue;
    double sum = 0;
    for (std::size_t i = 0; i < anchors; ++i) {
      AccuracyRow& anchor = *order[(2 * i + 1) * order.size() / (2 * anchors)];
      const double likely = std::clamp(anchor.measured, anchor.low, anchor.high);
      sum += std::log(likely / anchor.predicted);
      anchor.scored = false;
      anchor.reason = "anchor of its group";
    }
    const double scale = std::exp(sum / static_cast<double>(anchors) / 2);
    for (AccuracyRow* row : order) {
      if (!row->scored) continue;
      for (double* value : {&row->predicted, &row->low, &row->high}) *value *= scale;
      narrow(*row);
    }
  }
  return rows;
}

Json frozen_forecasts(const std::vector<AccuracyRow>& rows) {
  Json forecasts = Json::array();
  for (const AccuracyRow& row : rows) forecasts.push_back(forecast_json(row));
  Json json;
  json["hash"] = hash_of(forecasts);
  json["forecasts"] = std::move(forecasts);
  return json;
}

std::vector<AccuracyRow> with_frozen(std::vector<AccuracyRow> rows, const Json& frozen) {
  const auto wrong = [](const std::string& what) { return Error(ExitCode::kInvalidInput, what); };
  if (!frozen.is_object() || !frozen.contains("hash") || !frozen.contains("forecasts")) {
    throw wrong("no frozen forecasts: expected the file of accuracy --freeze");
  }
  if (frozen["hash"] != hash_of(frozen["forecasts"])) {
    throw wrong("the frozen forecasts were changed: their hash does not fit");
  }
  std::map<std::tuple<std::string, std::int64_t, std::string>, const Json*> by_row;
  for (const Json& each : frozen["forecasts"]) {
    by_row[{each["id"], each["line"], each["quantity"]}] = &each;
  }
  bool any = false;
  for (AccuracyRow& row : rows) {
    const auto found = by_row.find({row.id, row.line, row.quantity});
    if (found == by_row.end()) {
      row.scored = false;
      row.reason = "was not frozen";
      continue;
    }
    any = true;
    row.predicted = (*found->second)["predicted"];
    row.low = (*found->second)["low"];
    row.high = (*found->second)["high"];
    if (row.predicted <= 0 && row.scored) {
      row.scored = false;
      row.reason = "could not be forecast when it was frozen";
    }
  }
  if (!any) throw wrong("none of the rows was frozen");
  return rows;
}

}  // namespace foreshard
