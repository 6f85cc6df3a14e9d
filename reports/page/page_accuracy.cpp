// Rows in columns, words by their number in a table and figures to six digits, so that 10,000 of them take less than a
// megabyte. Of more rows every so many are left out, which says `stride`; summary and groups are of all.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reports/page/page.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostRows = 12'000;

// A column of words, each word once.
class WordColumn {
 public:
  void add(const std::string& word) {
    const auto [at, is_new] = numbers_.try_emplace(word, words_.size());
    if (is_new) words_.push_back(word);
    column_.push_back(at->second);
  }
  Json json() const { return {{"words", words_}, {"column", column_}}; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> words_;
  std::vector<std::size_t> column_;
};

double six_digits(double value) { return std::isfinite(value) ? std::stod(fmt::format("{:.6g}", value)) : 0; }

}

Json accuracy_page_json(const std::vector<AccuracyRow>& rows) {
  Json json = accuracy_json(rows);
  json.erase("rows");
  const std::size_t stride = std::max<std::size_t>(1, (rows.size() + kMostRows - 1) / kMostRows);
  std::vector<std::string> ids;
  std::vector<double> measured, predicted, low, high;
  WordColumn quantity, reason;
  std::vector<std::string> kinds;  // of groups, in the order of their first rows
  for (const AccuracyRow& row : rows) {
    for (const auto& [by, value] : row.groups)
      if (!contains(kinds, by)) kinds.push_back(by);
  }
  std::vector<WordColumn> groups(kinds.size());
  for (std::size_t i = 0; i < rows.size(); i += stride) {
    const AccuracyRow& row = rows[i];
    ids.push_back(row.id);
    measured.push_back(six_digits(row.measured));
    predicted.push_back(six_digits(row.predicted));
    low.push_back(six_digits(row.low));
    high.push_back(six_digits(row.high));
    quantity.add(row.quantity);
    reason.add(row.scored ? "" : row.reason.empty() ? "not scored" : row.reason);
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      std::string value;
      for (const auto& [by, group] : row.groups)
        if (by == kinds[k]) value = group;
      groups[k].add(value);
    }
  }
  Json group_columns = Json::object();
  for (std::size_t k = 0; k < kinds.size(); ++k) group_columns[kinds[k]] = groups[k].json();
  json["columns"] = {{"stride", stride}, {"id", ids}, {"measured", measured}, {"predicted", predicted}, {"low", low},
      {"high", high}, {"quantity", quantity.json()}, {"reason", reason.json()},  // "": the row is scored
      {"groups", std::move(group_columns)}};
  return json;
}

}
