#include "calibration/prices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "calibration/machines.h"
#include "calibration/published.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/text_file.h"

namespace foreshard {

namespace {

constexpr double kMostUsdPerHour = 1e6;
constexpr std::string_view kExample = "machine,usd_per_gpu_hour,date with rows such as h100,2.95,2026-06";

// Catalogue keys by every name of a machine.
const std::map<std::string, std::string, std::less<>>& keys_by_name() {
  static const auto names = [] {
    std::map<std::string, std::string, std::less<>> map;
    for (const Machine& machine : list_machines()) {
      map[machine.key] = machine.key;
      for (const std::string& alias : machine.aliases) map[alias] = machine.key;
    }
    return map;
  }();
  return names;
}

void check_columns(std::string_view csv, const CsvTable& table) {
  static constexpr std::array<std::string_view, 6> kColumns = {
      "machine", "usd_per_gpu_hour", "low", "high", "date", "source"};
  const Location header{table.file_name(), 1, 1, ""};
  for (std::size_t c = 0; c < 2; ++c)
    if (!table.has(kColumns[c]))
      throw ConfigError(header, fmt::format("has no column {}", kColumns[c]), std::string(kExample));
  if (csv.starts_with("\xEF\xBB\xBF")) csv.remove_prefix(3);
  std::string_view line = csv.substr(0, csv.find_first_of("\r\n"));
  while (true) {
    const std::size_t comma = line.find(',');
    const std::string_view name = line.substr(0, comma);
    if (!contains(kColumns, name)) {
      const std::vector<std::string> known(kColumns.begin(), kColumns.end());
      throw ConfigError(header, fmt::format("unknown column {}", quote(name)),
          fmt::format("{}", fmt::join(kColumns, ", ")), nearest_spelling(name, known));
    }
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
}

double read_usd(const CsvTable& table, std::size_t row, std::string_view column) {
  const Location where{table.file_name(), table.line(row), 1, std::string(column)};
  if (table.empty(row, column)) throw ConfigError(where, "is empty", "USD of one GPU and hour such as 2.95");
  const double usd = table.number(row, column);
  if (!(usd > 0 && usd <= kMostUsdPerHour)) {
    throw ConfigError(where, fmt::format("{} is no price", quote(table.text(row, column))),
        "USD of one GPU and hour, above 0, such as 2.95");
  }
  return usd;
}

}

PriceList parse_prices(std::string_view csv, const std::string& file_name) {
  const CsvTable table(csv, file_name);
  check_columns(csv, table);
  const auto& names = keys_by_name();
  PriceList list;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const std::string& name = table.text(row, "machine");
    const Location where{file_name, table.line(row), 1, "machine"};
    const auto known = names.find(name);
    if (known == names.end()) {
      auto words = list_of<std::string>(names, [&](const auto& each) { return each.first; });
      throw ConfigError(where, fmt::format("unknown machine {}", quote(name)), "a key of foreshard machines",
          nearest_spelling(name, words));
    }
    const auto given = [&](std::string_view column) { return table.has(column) && !table.empty(row, column); };
    Price price;
    price.usd_per_hour = price.low = price.high = read_usd(table, row, "usd_per_gpu_hour");
    price.evidence = Evidence::kDatasheet;
    if (given("low")) price.low = read_usd(table, row, "low");
    if (given("high")) price.high = read_usd(table, row, "high");
    if (price.low > price.usd_per_hour || price.high < price.usd_per_hour) {
      throw ConfigError(where,
          fmt::format("{} is not between low {} and high {}", price.usd_per_hour, price.low, price.high),
          "low <= usd_per_gpu_hour <= high");
    }
    if (given("date")) price.date = table.text(row, "date");
    price.source = given("source") ? table.text(row, "source") : fmt::format("{}:{}", file_name, table.line(row));
    if (!list.emplace(known->second, price).second)
      throw ConfigError(where, fmt::format("a second price of {}", known->second), "each machine once");
  }
  if (list.empty()) throw ConfigError({file_name, 1, 1, ""}, "has no prices", std::string(kExample));
  return list;
}

PriceList read_prices(const std::string& path) { return parse_prices(read_text_file(path, kMaxTableBytes), path); }

Price listed_price(const Cluster& cluster) {
  Price price;
  price.usd_per_hour = price.low = price.high = cluster.gpu.price_per_hour;
  for (const auto& [path, source] : cluster.sources)
    if (path == "gpu.price_per_hour") price.source = source;
  if (!price.source.starts_with("assumed")) price.evidence = Evidence::kDatasheet;
  const CsvTable table = published_table("price_ranges.csv");
  for (std::size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "machine") != cluster.gpu.key) continue;
    // Another price than the catalogue's is the user's own.
    if (table.number(row, "usd_per_gpu_hour") != price.usd_per_hour) continue;
    price.low = table.number(row, "low");
    price.high = table.number(row, "high");
    price.date = table.text(row, "date");
  }
  return price;
}

}
