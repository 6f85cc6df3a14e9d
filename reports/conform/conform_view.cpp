// The answer of `foreshard conform`: sums, a line per folder, what differs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/conform/conform.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

using State = Conformance::State;

const char* word(State state) {
  return word_at(state, {"compared", "partly_stored", "not_recorded", "not_forecast"}, "");
}

const char* word(Difference::What what) {
  return word_at(what, {"schedule", "bytes", "memory", "units", "allocations"}, "");
}

std::string counts(const ConformanceSummary& s) {
  std::string text = fmt::format("{} configurations: schedule {}, bytes {}, memory {} identical and {} within {} %",
      s.configurations, s.schedule_identical, s.bytes_identical, s.memory_identical, s.memory_within_tolerance,
      Conformance::kMemoryTolerance * 100);
  if (s.allocations_recorded > 0)
    text += fmt::format(", allocations {} of {}", s.allocations_identical, s.allocations_recorded);
  if (s.partly_stored > 0) text += fmt::format("; {} stored in part", s.partly_stored);
  if (s.not_recorded > 0) text += fmt::format("; {} not recorded", s.not_recorded);
  return text;
}

std::string verdict(const Conformance& row) {
  if (row.state == State::kNotForecast) return "not forecast: " + row.reason;
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (!row.schedule_identical) add("schedule differs");
  if (!row.bytes_identical) add("bytes differ");
  if (!row.memory_within_tolerance)
    add(fmt::format("memory is off by {:.2f} % of the peak ({})", row.worst_peak_error * 100, row.worst_peak));
  else if (!row.memory_identical) add("memory within tolerance");
  if (row.allocations_identical == false) add("allocations differ");
  if (!row.free_order_identical) add("frees in another order");
  if (row.state == State::kPartlyStored) add("stored in part");
  return text;
}

std::string paint(Color color, const char* code, const std::string& text) {
  return color == Color::kAlways ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

std::string difference_text(const Conformance& row, const std::string& folder, Color color) {
  std::string text = fmt::format("\n{} ({}): {}\n", paint(color, row.passed() ? "33" : "31", row.id),
      row.version.empty() ? folder : row.version, verdict(row));
  if (!row.differences.empty()) text += "  " + row.differences.front().text;
  return text;
}

// By folder and reason, with the first ids of each.
std::string not_recorded_text(const std::vector<ConformanceFolder>& folders) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (const ConformanceFolder& folder : folders) {
    std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
    for (const Conformance& row : folder.rows) {
      if (row.state != State::kNotRecorded) continue;
      auto known = std::ranges::find_if(reasons, [&](const auto& entry) { return entry.first == row.reason; });
      if (known == reasons.end()) known = reasons.insert(known, {row.reason, {}});
      known->second.push_back(row.id);
    }
    for (const auto& [reason, ids] : reasons) {
      const std::size_t named = std::min(ids.size(), kNamed);
      text += fmt::format("  {}: {}: {}", folder.path, reason, fmt::join(ids.begin(), ids.begin() + named, ", "));
      if (ids.size() > named) text += fmt::format(" and {} more", ids.size() - named);
      text += '\n';
    }
  }
  return text.empty() ? text : "\nnot recorded, with the library's reason:\n" + text;
}

Json to_json(const Conformance& row, const std::string& folder) {
  Json json = {{"id", row.id}, {"folder", folder}, {"version", row.version}};
  json["state"] = word(row.state);
  json["reason"] = row.reason.empty() ? Json() : Json(row.reason);
  const bool compared = row.state == State::kCompared;
  const bool partly = row.state == State::kPartlyStored;
  const auto when = [](bool known, bool value) { return known ? Json(value) : Json(); };
  const bool failed = row.state == State::kNotForecast;  // counts as different
  json["schedule_identical"] = when(compared || failed, row.schedule_identical);
  json["bytes_identical"] = when(compared || failed, row.bytes_identical);
  json["memory_identical"] = when(compared || partly || failed, row.memory_identical);
  json["memory_within_tolerance"] = when(compared || partly || failed, row.memory_within_tolerance);
  json["allocations_identical"] = row.allocations_identical ? Json(*row.allocations_identical) : Json();
  json["free_order_identical"] = row.allocations_identical ? Json(row.free_order_identical) : Json();
  const Difference* first = row.first_difference();
  json["first_difference"] = first != nullptr ? Json(first->text) : failed ? Json(row.reason) : Json();
  json["peak_measured_bytes"] = row.peak_measured_bytes ? Json(*row.peak_measured_bytes) : Json();
  json["peak_predicted_bytes"] = row.peak_predicted_bytes ? Json(*row.peak_predicted_bytes) : Json();
  json["worst_peak_error"] = when(compared || partly, false).is_null() ? Json() : Json(row.worst_peak_error);
  json["worst_peak"] = row.worst_peak.empty() ? Json() : Json(row.worst_peak);
  json["events"] = row.rows;
  json["differences"] = Json::array();
  for (const Difference& difference : row.differences)
    json["differences"].push_back({{"what", word(difference.what)}, {"text", difference.text}});
  return json;
}

}

ConformanceSummary summarize(const std::vector<ConformanceFolder>& folders) {
  ConformanceSummary s;
  for (const ConformanceFolder& folder : folders) {
    for (const Conformance& row : folder.rows) {
      s.passed = s.passed && row.passed();
      if (row.state == State::kNotRecorded) {
        ++s.not_recorded;
        continue;
      }
      if (!row.counted) {
        ++s.partly_stored;
        continue;
      }
      ++s.configurations;
      s.schedule_identical += row.schedule_identical ? 1 : 0;
      s.bytes_identical += row.bytes_identical ? 1 : 0;
      s.memory_identical += row.memory_identical ? 1 : 0;
      s.memory_within_tolerance += row.memory_within_tolerance ? 1 : 0;
      s.allocations_recorded += row.allocations_identical ? 1 : 0;
      s.allocations_identical += row.allocations_identical == true ? 1 : 0;
    }
  }
  return s;
}

std::string conformance_text(const std::vector<ConformanceFolder>& folders, std::int64_t shown, Color color) {
  std::string text;
  for (const ConformanceFolder& folder : folders)
    text += fmt::format("{}: {}\n", folder.path, counts(summarize({folder})));
  // What fails first, then what differs in a way that is allowed.
  std::int64_t differing = 0;
  for (const bool passed : {false, true}) {
    for (const ConformanceFolder& folder : folders) {
      for (const Conformance& row : folder.rows) {
        if (row.passed() != passed || (passed && row.differences.empty())) continue;
        if (++differing <= shown) text += difference_text(row, folder.path, color);
      }
    }
  }
  if (differing > shown) {
    text += fmt::format("\n{} more {}; --verbose {} shows them\n", differing - shown,
        differing - shown == 1 ? "differs" : "differ", differing);
  }
  text += not_recorded_text(folders);
  const ConformanceSummary sum = summarize(folders);
  text += fmt::format(
      "\n{}: {}\n", paint(color, sum.passed ? "32" : "31", sum.passed ? "conforms" : "differs"), counts(sum));
  return text;
}

Json conformance_json(const std::vector<ConformanceFolder>& folders) {
  const ConformanceSummary s = summarize(folders);
  Json json;
  json["summary"] = {{"configurations", s.configurations}, {"schedule_identical", s.schedule_identical},
      {"bytes_identical", s.bytes_identical}, {"memory_within_tolerance", s.memory_within_tolerance},
      {"memory_identical", s.memory_identical}, {"allocations_recorded", s.allocations_recorded},
      {"allocations_identical", s.allocations_identical}, {"partly_stored", s.partly_stored},
      {"not_recorded", s.not_recorded}, {"memory_tolerance", Conformance::kMemoryTolerance}, {"passed", s.passed}};
  json["rows"] = Json::array();
  for (const ConformanceFolder& folder : folders)
    for (const Conformance& row : folder.rows) json["rows"].push_back(to_json(row, folder.path));
  return json;
}

}
