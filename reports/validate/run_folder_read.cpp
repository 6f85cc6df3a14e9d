// run.json first: it names the ranks and their steps, and the length and hash of every other file,
// so that a torn or altered file is refused before its content is believed. The content is judged
// all the same: whoever writes a file can write its hash.
#include <fmt/format.h>

#include <limits>
#include <map>

#include "reports/validate/run_folder.h"
#include "reports/view/exact_seconds.h"
#include "sim/base/config.h"
#include "sim/base/fields.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one file
constexpr std::int64_t kMostEvents = std::int64_t{1} << 30;

// Lines of comma-separated fields without quotes; a last line without its end was cut off.
class CsvLines {
 public:
  CsvLines(std::string file, std::string_view text) : file_(std::move(file)), rest_(text) {}

  // False at the end of the file.
  bool next() {
    if (rest_.empty()) return false;
    ++line_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail("the line is cut off", "");
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    fields_.clear();
    for (std::size_t comma = 0; comma != std::string_view::npos;) {
      comma = line.find(',');
      fields_.push_back(line.substr(0, comma));
      if (comma != std::string_view::npos) line.remove_prefix(comma + 1);
    }
    return true;
  }
  void expect_header(const std::string& header) {
    if (rest_.substr(0, rest_.find('\n')) != header) {
      line_ = 1;
      fail("wrong header", header);
    }
    next();
  }
  const std::vector<std::string_view>& fields() const { return fields_; }
  void expect_fields(std::size_t count) const {
    if (fields_.size() == count) return;
    fail(fmt::format("{} fields", fields_.size()), fmt::format("{}", count));
  }
  std::int64_t whole(std::size_t field) const {
    const auto value = parse_number<std::int64_t>(fields_[field]);
    if (!value) fail(quote(fields_[field]) + " is not a whole number", "for example 12");
    return *value;
  }
  Time time(std::size_t field) const {
    const std::optional<Time> time = parse_exact_seconds(fields_[field]);
    if (!time) fail(quote(fields_[field]) + " is not a time", "seconds, for example 0.012345678");
    return *time;
  }
  double real(std::size_t field) const {
    const auto value = parse_number<double>(fields_[field]);
    if (!value) fail(quote(fields_[field]) + " is not a number", "for example 5.25 or nan");
    return *value;
  }
  [[noreturn]] void fail(const std::string& what, const std::string& expected) const {
    throw ConfigError({file_, line_, 0, ""}, what, expected);
  }

 private:
  std::string file_;
  std::string_view rest_;
  std::vector<std::string_view> fields_;
  int line_ = 0;
};

// Texts of the other files, held against what run.json says about them.
class Files {
 public:
  Files(const fs::path& folder, const ConfigNode& list) : folder_(folder) {
    for (const ConfigNode& file : list.elements()) entries_.emplace(file.at("name").as_string(), file);
  }
  bool has(const std::string& name) const { return entries_.contains(name); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    const auto entry = entries_.find(name);
    if (entry == entries_.end())
      throw invalid_input("{}: files: {} is not among them", (folder_ / kRunFile).string(), name);
    std::string text = read_whole_file(folder_ / name, kMostBytes);
    const auto bytes = at(entry->second.at("bytes").as_int(0, std::numeric_limits<std::int64_t>::max()));
    const auto refuse = [&](const std::string& what) {
      throw invalid_input(
          "{}: the file is damaged: {}; it was altered, or the run was cut off while writing it", path(name), what);
    };
    if (text.size() != bytes) refuse(fmt::format("it has {} bytes, {} says {}", text.size(), kRunFile, bytes));
    if (hash_of(text) != entry->second.at("hash").as_string())
      refuse(fmt::format("its content is not what {} says", kRunFile));
    return text;
  }

 private:
  fs::path folder_;
  std::map<std::string, ConfigNode> entries_;
};

double real_or_nan(const ConfigNode& node) {
  return node.is_null() ? std::numeric_limits<double>::quiet_NaN() : node.as_double();
}

// The timelines come without spans; `events` says how many each has.
struct RankHead {
  RankRecord record;
  std::vector<std::int64_t> events;
};

RankHead read_rank(const ConfigNode& node) {
  RankHead head;
  RankRecord& rank = head.record;
  FieldReader reader(node);
  rank_fields(reader, rank);
  const double longest = kLongestTime.seconds();
  const ConfigNode timelines = node.at("timelines");
  for (const ConfigNode& entry : timelines.elements()) {
    MeasuredStep step;
    step.step = entry.at("step").as_int(1, kMostSteps);
    step.begin = Time::seconds(entry.at("begin_s").as_double(-longest, longest));
    step.duration = Time::seconds(entry.at("seconds").as_double(0, longest));
    if (!rank.timelines.empty() && step.step <= rank.timelines.back().step)
      throw entry.at("step").error("the steps do not ascend");
    rank.timelines.push_back(std::move(step));
    head.events.push_back(entry.at("events").as_int(0, kMostEvents));
  }
  return head;
}

void read_spans(CsvLines lines, RankHead& head) {
  constexpr std::size_t kStep = 0, kId = 1, kIssue = 2, kStart = 3, kArrive = 4, kEnd = 5;
  lines.expect_header(kTimelineHeader);
  for (std::size_t s = 0; s < head.events.size(); ++s) {
    MeasuredStep& step = head.record.timelines[s];
    for (std::int64_t id = 0; id < head.events[s]; ++id) {
      if (!lines.next())
        lines.fail(fmt::format("the file ends in step {}", step.step), fmt::format("{} events", head.events[s]));
      lines.expect_fields(kEnd + 1);
      if (lines.whole(kStep) != step.step || lines.whole(kId) != id) {
        lines.fail(fmt::format("step {}, event {}", lines.fields()[kStep], lines.fields()[kId]),
            fmt::format("step {}, event {}", step.step, id));
      }
      Span span{lines.time(kIssue), lines.time(kStart), lines.time(kStart), lines.time(kEnd)};
      if (!lines.fields()[kArrive].empty()) span.arrive = lines.time(kArrive);
      if (span.end < span.start) lines.fail("the event ends before it starts", "");
      step.spans.push_back(span);
    }
  }
  if (lines.next()) lines.fail("more events than run.json says", "");
}

void read_steps(CsvLines lines, RunRecord& record) {
  lines.expect_header(steps_header(record));
  for (std::int64_t step = record.first_step; lines.next(); ++step) {
    lines.expect_fields(record.ranks.size() + 2);
    if (lines.whole(0) != step) lines.fail(fmt::format("step {}", lines.fields()[0]), fmt::format("step {}", step));
    const auto index = at(step - record.first_step);
    const auto follows = [&](std::size_t count) {
      if (count != index) lines.fail("a value follows an empty one", "");
    };
    if (!lines.fields()[1].empty()) {
      follows(record.losses.size());
      record.losses.push_back(lines.real(1));
    }
    for (std::size_t r = 0; r < record.ranks.size(); ++r) {
      if (lines.fields()[r + 2].empty()) continue;
      follows(record.ranks[r].step_durations.size());
      const Time duration = lines.time(r + 2);
      if (duration < Time()) lines.fail("the step takes less than no time", "");
      record.ranks[r].step_durations.push_back(duration);
    }
  }
}

}

RunRecord read_run_folder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw invalid_input("{}: is not a run folder; foreshard-exec run --out writes one", folder.string());
  const ConfigNode root = read_json_file(folder / kRunFile);
  const std::string schema = root.at("schema").as_string();
  if (schema != kRunSchema) throw root.at("schema").error("unknown " + quote(schema), kRunSchema);
  const Files files(folder, root.at("files"));

  RunRecord record;
  FieldReader reader(root);
  run_fields(reader, record);
  const ConfigNode evaluations = root.at("evaluations");
  for (const ConfigNode& entry : evaluations.elements())
    record.evaluations.emplace_back(entry.at("step").as_int(0, kMostSteps), real_or_nan(entry.at("loss")));
  record.plan_yaml = files.text(kPlanFile);
  if (files.has(kModelFile)) record.model_json = files.text(kModelFile);
  const ConfigNode ranks = root.at("ranks");
  for (const ConfigNode& node : ranks.elements()) {
    RankHead head = read_rank(node);
    const int rank = head.record.rank;
    if (rank >= record.world || (!record.ranks.empty() && rank <= record.ranks.back().rank))
      throw node.at("rank").error("the ranks do not ascend below world");
    const std::string text = files.text(timeline_file(rank));
    read_spans(CsvLines(files.path(timeline_file(rank)), text), head);
    record.ranks.push_back(std::move(head.record));
  }
  const std::string steps = files.text(kStepsFile);
  read_steps(CsvLines(files.path(kStepsFile), steps), record);
  return record;
}

}
