#include "interop/recordings/pipeline_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "calibration/csv_file.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/pipeline/pipeline.h"

namespace foreshard {
namespace {

constexpr const char* kVersion = "2.11.0";  // of PyTorch, which all tables are of

// Rows of actions.csv by configuration, form and rank.
class Actions {
 public:
  explicit Actions(const std::filesystem::path& folder) : file_(read_csv_file(csv_path(folder, "actions"))) {
    const std::size_t id = file_.at("id"), form = file_.at("form"), rank = file_.at("rank"),
                      actions = file_.at("actions");
    for (std::size_t row = 0; row < file_.rows(); ++row) {
      auto& ranks = forms_[{file_.text(row, id), file_.text(row, form)}];
      const std::int64_t number = file_.integer(row, rank);
      if (number != std::ssize(ranks)) throw file_.error(row, rank, "a rank is missing before", "ranks from 0 on");
      ranks.push_back(file_.text(row, actions));
    }
  }

  const std::string& name() const { return file_.name(); }
  // By rank; empty where the form is not there.
  std::vector<std::string_view> of(std::string_view id, std::string_view form) const {
    const auto found = forms_.find({id, form});
    return found == forms_.end() ? std::vector<std::string_view>() : found->second;
  }

 private:
  CsvFile file_;
  std::map<std::pair<std::string_view, std::string_view>, std::vector<std::string_view>> forms_;
};

// A configuration of schedules.csv.
struct Case {
  std::string id, schedule;
  StagePipeline pipeline;
  std::vector<int> ranks;  // of stages
};

// Throws Error(kInvalidInput) for a stage that is not the rank's.
std::vector<PipelineOrder> read_orders(const Case& c, const std::vector<std::string_view>& texts) {
  std::vector<PipelineOrder> orders;
  for (const std::string_view text : texts) {
    const auto rank = static_cast<int>(orders.size());
    orders.push_back(read_pipeline_order(text));
    for (const PipelineAction& action : orders.back()) {
      if (action.stage < c.pipeline.stages() && c.ranks[at(action.stage)] == rank) continue;
      throw invalid_input("stage {} is not of rank {}; expected the rank's own stages", action.stage, rank);
    }
  }
  return orders;
}

// What the hosts do: by the schedule's rules, or of an order that a file gave, which the library
// lowers where it says what is computed alone.
std::vector<PipelineRows> rows_of(const Case& c, const Actions& actions) {
  if (c.pipeline.schedule != PipelineSchedule::kCustom) return pipeline_rows(c.pipeline);
  std::vector<PipelineOrder> orders = read_orders(c, actions.of(c.id, "compute"));
  orders =
      orders.empty() ? read_orders(c, actions.of(c.id, "comms")) : lowered(orders, c.ranks, c.pipeline.microbatches);
  std::vector<PipelineRows> rows;
  for (int rank = 0; rank < static_cast<int>(orders.size()); ++rank)
    rows.push_back(pipeline_rows(orders[at(rank)], c.ranks, rank));
  return rows;
}

// The words around the first that differs.
std::string first_difference(std::string_view recorded, std::string_view forecast) {
  constexpr std::size_t kShown = 60;
  const auto [a, b] = std::ranges::mismatch(recorded, forecast);
  const auto begin = at(a - recorded.begin());
  const std::size_t from = begin > kShown / 2 ? begin - kShown / 2 : 0;
  return fmt::format("recorded ...{}..., forecast ...{}...", recorded.substr(from, kShown),
      from < forecast.size() ? forecast.substr(from, kShown) : "");
}

Conformance compare(const Case& c, const Actions& actions) {
  Conformance row = {.id = c.id, .version = kVersion};
  row.bytes_identical = row.memory_identical = row.memory_within_tolerance = true;  // none recorded
  const std::vector<std::string_view> recorded = actions.of(c.id, "host");
  std::vector<PipelineRows> rows;
  try {
    rows = rows_of(c, actions);
  } catch (const Error& error) {
    row.state = Conformance::State::kNotForecast;
    row.reason = error.what();
    return row;
  }
  row.schedule_identical = rows.size() == recorded.size();
  for (std::size_t rank = 0; rank < std::min(rows.size(), recorded.size()); ++rank) {
    row.rows += std::ssize(rows[rank]);
    const std::string forecast = text_of(rows[rank]);
    if (forecast == recorded[rank]) continue;
    row.schedule_identical = false;
    if (row.differences.empty()) {
      row.differences.push_back({Difference::What::kSchedule,
          fmt::format("{}: rank {}: {}", actions.name(), rank, first_difference(recorded[rank], forecast))});
    }
  }
  return row;
}

std::vector<Case> cases_of(const CsvFile& file) {
  const std::size_t id = file.at("id"), schedule = file.at("schedule"), ranks = file.at("pp"),
                    microbatches = file.at("microbatches"), stages = file.at("stages_per_rank");
  const std::size_t places = file.at("stage_to_rank");
  std::vector<Case> cases;
  for (std::size_t row = 0; row < file.rows(); ++row) {
    const auto number = [&](std::size_t column) {
      constexpr std::int64_t kMost = 1 << 20;
      const std::int64_t value = file.integer(row, column);
      if (value < 1 || value > kMost) throw file.error(row, column, "out of range", "1 or more");
      return static_cast<int>(value);
    };
    Case c{std::string(file.text(row, id)), std::string(file.text(row, schedule)),
        {PipelineSchedule::k1F1B, number(ranks), number(microbatches), number(stages)}, {}};
    c.pipeline.schedule = pipeline_schedule_of(c.schedule).value_or(PipelineSchedule::kCustom);
    std::istringstream text{std::string(file.text(row, places))};
    for (int rank = 0; text >> rank;) c.ranks.push_back(rank);
    const bool are_ranks = std::ranges::all_of(c.ranks, [&](int rank) { return rank >= 0 && rank < c.pipeline.ranks; });
    if (!are_ranks || std::ssize(c.ranks) != c.pipeline.stages())
      throw file.error(row, places, "is not a rank for each stage", "ranks below pp");
    cases.push_back(std::move(c));
  }
  return cases;
}

bool has_tables(const std::filesystem::path& folder) {
  return !csv_path(folder, "schedules").empty() || !csv_path(folder, "ranks").empty();
}

}

std::vector<std::filesystem::path> find_pipeline_tables(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {};
  if (has_tables(path)) return {path};
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    const std::filesystem::path& folder = entry.path();
    if (entry.is_directory() && folder.filename() != "gloo" && has_tables(folder)) found.push_back(folder);
  }
  std::ranges::sort(found);
  return found;
}

ConformanceFolder conform_pipeline_tables(const std::filesystem::path& folder, const std::vector<std::string>& only) {
  ConformanceFolder result{folder.string(), {}};
  if (const auto schedules = csv_path(folder, "schedules"); !schedules.empty()) {
    const Actions actions(folder);
    for (const Case& c : cases_of(read_csv_file(schedules))) result.rows.push_back(compare(c, actions));
    if (const auto refused = csv_path(folder, "refused"); !refused.empty()) {
      const CsvFile file = read_csv_file(refused);
      for (std::size_t row = 0; row < file.rows(); ++row) {
        Conformance c;
        c.state = Conformance::State::kNotRecorded;
        c.id = file.text(row, file.at("id"));
        c.version = kVersion;
        c.reason = file.text(row, file.at("reason"));
        result.rows.push_back(std::move(c));
      }
    }
  } else {
    result.rows = conform_pipeline_ranks(folder);
  }
  if (!only.empty()) std::erase_if(result.rows, [&](const Conformance& row) { return !contains(only, row.id); });
  return result;
}

}
