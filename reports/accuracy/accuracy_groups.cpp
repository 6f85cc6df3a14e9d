// Summaries over groups, anchors, and forecasts that were frozen before measurements were seen.
#include <algorithm>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "reports/accuracy/accuracy.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {
namespace {

std::string group_of(const AccuracyRow& row) { return row.groups.empty() ? std::string() : row.groups.front().second; }

struct Weighted {
  double value = 0;
  double weight = 0;
};

// The least value that at least the share `p` of the weight does not exceed.
double weighted_quantile(std::vector<Weighted> values, double p) {
  if (values.empty()) return 0;
  std::ranges::sort(values, {}, &Weighted::value);
  double total = sum_of<double>(values, &Weighted::weight);
  double below = 0;
  for (const Weighted& each : values) {
    below += each.weight;
    if (below >= p * total * (1 - 1e-12)) return each.value;
  }
  return values.back().value;
}

std::uint64_t order_of(const AccuracyRow& row) { return Fingerprint().add(row.id).value(); }

Json forecast_json(const AccuracyRow& row) {
  return {{"id", row.id}, {"line", row.line}, {"quantity", row.quantity}, {"predicted", row.predicted},
      {"low", row.low}, {"high", row.high}};
}

// A version 5 UUID (RFC 4122): 122 bits of the SHA-1 of the text.
std::string hash_of(const Json& forecasts) {
  const boost::uuids::name_generator_sha1 generator(boost::uuids::ns::oid());
  return boost::uuids::to_string(generator(forecasts.dump()));
}

// What an anchor says of a run whose forecast is the same, and over which logarithm of their
// forecasts' ratio that falls to 1/e. Of the 732 published steps, each family by the least mean
// error of the others (0.8 and 0.5 for four of the five, 0.7 and 1 for one): balanced 1.6 and
// 6.7 %.
constexpr double kShared = 0.8;
constexpr double kShareLength = 0.5;
// Intervals this much wider than the narrowest are as narrow.
constexpr double kAsNarrow = 1.02;

struct Anchor {
  double predicted = 0;  // before it ran
  double log_off = 0;    // measured over forecast, inside the interval
};

double width_of(const AccuracyRow& row) {
  return row.low > 0 ? row.high / row.low : std::numeric_limits<double>::infinity();
}

// Of rows in the order of their forecasts, not empty: it is no longer scored.
Anchor anchor_of(const std::vector<AccuracyRow*>& rows) {
  double narrowest = std::numeric_limits<double>::infinity();
  for (const AccuracyRow* row : rows) narrowest = std::min(narrowest, width_of(*row));
  std::vector<AccuracyRow*> sure;
  std::ranges::copy_if(
      rows, std::back_inserter(sure), [&](const AccuracyRow* row) { return width_of(*row) <= kAsNarrow * narrowest; });
  AccuracyRow& anchor = *sure[sure.size() / 2];
  anchor.scored = false;
  anchor.reason = "anchor of its group";
  const double likely = std::clamp(anchor.measured, anchor.low, anchor.high);
  return {anchor.predicted, std::log(likely / anchor.predicted)};
}

// The logarithm that the anchor nearest by forecast moves a row by.
double said_of(const std::vector<Anchor>& anchors, const AccuracyRow& row) {
  const auto distance = [&](const Anchor& anchor) { return std::abs(std::log(row.predicted / anchor.predicted)); };
  const Anchor& nearest =
      *std::ranges::min_element(anchors, [&](const Anchor& a, const Anchor& b) { return distance(a) < distance(b); });
  return kShared * std::exp(-distance(nearest) / kShareLength) * nearest.log_off;
}

// What a run of one's own leaves of the interval's logarithm: half. So 88 % of the 710 published
// steps that have an anchor lie in it (`accuracy calibration/published/training_steps.csv --anchor
// 1`), of 85 to 97 that should.
void narrow(AccuracyRow& row) {
  for (double* end : {&row.low, &row.high})
    if (*end > 0 && row.predicted > 0) *end = std::sqrt(*end * row.predicted);
}

}

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
  for (const AccuracyRow& row : rows)
    if (row.scored) groups[{row.quantity, group_of(row)}].push_back(&row);
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
  if (result.pairs > 0) result.tau = as_double(balance) / as_double(result.pairs);
  return result;
}

std::vector<AccuracyRow> anchored(std::vector<AccuracyRow> rows, int count) {
  std::map<std::pair<std::string, std::string>, std::vector<AccuracyRow*>> groups;
  for (AccuracyRow& row : rows)
    if (row.scored) groups[{row.quantity, group_of(row)}].push_back(&row);
  for (auto& [key, members] : groups) {
    std::vector<AccuracyRow*> order = members;
    std::ranges::stable_sort(order, [](const AccuracyRow* a, const AccuracyRow* b) {
      return std::make_tuple(a->predicted, order_of(*a), a->line) <
             std::make_tuple(b->predicted, order_of(*b), b->line);
    });
    const std::size_t anchors = std::min(order.size(), at(count));
    if (anchors == 0) continue;
    std::vector<Anchor> said;
    for (std::size_t i = 0; i < anchors; ++i) {
      const auto at = [&](std::size_t part) { return order.begin() + (part * order.size() / anchors); };
      said.push_back(anchor_of({at(i), at(i + 1)}));
    }
    for (AccuracyRow* row : order) {
      if (!row->scored) continue;
      const double scale = std::exp(said_of(said, *row));
      for (double* value : {&row->predicted, &row->low, &row->high}) *value *= scale;
      narrow(*row);
    }
  }
  return rows;
}

Json frozen_forecasts(const std::vector<AccuracyRow>& rows) {
  Json forecasts = json_list(rows, [&](const AccuracyRow& row) -> Json { return forecast_json(row); });
  Json json;
  json["hash"] = hash_of(forecasts);
  json["forecasts"] = std::move(forecasts);
  return json;
}

std::vector<AccuracyRow> with_frozen(std::vector<AccuracyRow> rows, const Json& frozen) {
  const auto wrong = [](const std::string& what) { return Error(ExitCode::kInvalidInput, what); };
  if (!frozen.is_object() || !frozen.contains("hash") || !frozen.contains("forecasts"))
    throw wrong("no frozen forecasts: expected the file of accuracy --freeze");
  if (frozen["hash"] != hash_of(frozen["forecasts"]))
    throw wrong("the frozen forecasts were changed: their hash does not fit");
  std::map<std::tuple<std::string, std::int64_t, std::string>, const Json*> by_row;
  for (const Json& each : frozen["forecasts"]) by_row[{each["id"], each["line"], each["quantity"]}] = &each;
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

}
