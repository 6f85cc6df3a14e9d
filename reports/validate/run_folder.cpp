// The data files first, run.json with their lengths and hashes last: a folder whose run.json does not fit its files was
// torn or altered. Losses are in a CSV file because JSON has no NaN, which is what a diverging run ends with.
#include "reports/validate/run_folder.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "reports/view/exact_seconds.h"
#include "sim/base/fields.h"
#include "sim/base/hash.h"
#include "sim/base/json.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

void add(fmt::memory_buffer& out, std::string_view text) { out.append(text); }

std::string timeline_csv(const RankRecord& rank) {
  fmt::memory_buffer out;
  add(out, kTimelineHeader);
  for (const MeasuredStep& step : rank.timelines) {
    for (std::size_t id = 0; id < step.spans.size(); ++id) {
      const Span& span = step.spans[id];
      fmt::format_to(std::back_inserter(out), "\n{},{},{},{},{},{}", step.step, id, exact_seconds(span.issue),
          exact_seconds(span.start), rank.clocks_shared ? exact_seconds(span.arrive) : "", exact_seconds(span.end));
    }
  }
  add(out, "\n");
  return fmt::to_string(out);
}

std::string steps_csv(const RunRecord& record) {
  fmt::memory_buffer out;
  add(out, steps_header(record));
  std::size_t steps = record.losses.size();
  for (const RankRecord& rank : record.ranks) steps = std::max(steps, rank.step_durations.size());
  for (std::size_t i = 0; i < steps; ++i) {
    fmt::format_to(std::back_inserter(out), "\n{},", record.first_step + static_cast<std::int64_t>(i));
    if (i < record.losses.size()) add(out, fmt::format("{}", record.losses[i]));
    for (const RankRecord& rank : record.ranks) {
      add(out, ",");
      if (i < rank.step_durations.size()) add(out, exact_seconds(rank.step_durations[i]));
    }
  }
  add(out, "\n");
  return fmt::to_string(out);
}

// null where it is none.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json rank_json(const RankRecord& rank) {
  Json timelines = json_list(rank.timelines, [&](const MeasuredStep& step) -> Json {
    return {{"step", step.step}, {"begin_s", step.begin.seconds()}, {"seconds", step.duration.seconds()},
        {"events", step.spans.size()}};
  });
  FieldWriter writer;
  rank_fields(writer, rank);
  writer.out["timelines"] = std::move(timelines);
  return std::move(writer.out);
}

Json run_json(const RunRecord& record) {
  FieldWriter writer;
  writer.schema(kRunSchema);
  run_fields(writer, record);
  Json& evaluations = writer.out["evaluations"] = Json::array();
  for (const auto& [step, loss] : record.evaluations) evaluations.push_back({{"step", step}, {"loss", number(loss)}});
  writer.out["ranks"] = json_list(record.ranks, [&](const RankRecord& rank) -> Json { return rank_json(rank); });
  return std::move(writer.out);
}

// Timelines of an older run with more ranks. What cannot be removed does no harm.
void remove_others(const fs::path& folder, const std::set<std::string>& written) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = (name.starts_with("timeline-rank-") && name.ends_with(".csv")) || name == kModelFile;
    if (ours && !written.contains(name)) fs::remove(entry.path(), ignored);
  }
}

}

std::string timeline_file(int rank) { return fmt::format("timeline-rank-{}.csv", rank); }

std::string steps_header(const RunRecord& record) {
  std::string header = "step,loss";
  for (const RankRecord& rank : record.ranks) header += fmt::format(",rank_{}_s", rank.rank);
  return header;
}

std::string hash_of(std::string_view text) { return Fingerprint().add(text).hex(); }

void write_run_folder(const fs::path& folder, const RunRecord& record) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw invalid_input("{}: cannot be made: {}", folder.string(), error.message());
  Json files = Json::array();
  std::set<std::string> written;
  const auto write = [&](const std::string& name, const std::string& text) {
    write_whole_file(folder / name, text);
    files.push_back({{"name", name}, {"bytes", text.size()}, {"hash", hash_of(text)}});
    written.insert(name);
  };
  write(kPlanFile, record.plan_yaml);
  if (!record.model_json.empty()) write(kModelFile, record.model_json);
  write(kStepsFile, steps_csv(record));
  for (const RankRecord& rank : record.ranks) write(timeline_file(rank.rank), timeline_csv(rank));
  Json json = run_json(record);
  json["files"] = std::move(files);
  write_whole_file(folder / kRunFile, to_text(json));
  remove_others(folder, written);
}

}
