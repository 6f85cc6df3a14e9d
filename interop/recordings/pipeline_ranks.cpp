// Settings are those of record/pp.py (defaults.yaml). Every stage is split off as
// torchtitan does and keeps a rotary table of its own. The recorder's categories beside FSDP2's
// count among ours: what is received among inputs, what stages return among activations, the
// gradients of their inputs among temporaries of backward.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "calibration/csv_file.h"
#include "interop/recordings/pipeline_tables.h"
#include "interop/recordings/recorded_job.h"
#include "interop/recordings/recorded_settings.h"
#include "interop/recordings/recordings.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/pipeline/pipeline.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr const char* kRecordedVersion = "2.11.0";  // of torch

std::map<std::string, SettingWords> read_settings(const std::filesystem::path& file) {
  std::map<std::string, SettingWords> all;
  const SettingWords defaults = recorder_defaults("stages");
  const ConfigNode root = read_json_file(file);
  for (const ConfigNode& config : root.elements()) {
    SettingWords& settings = all[config.at("id").as_string()] = defaults;
    for (const ConfigItem& item : config.items())
      if (item.value.is_null()) settings[item.key] = "none";
      else if (item.value.is_scalar()) settings[item.key] = item.value.text();
  }
  return all;
}

// A row of a table for each rank: "0F0,0F1,,0B0|1F0,...".
std::vector<std::string> orders_of(const std::string& table) {
  std::vector<std::string> rows(1);
  for (const char c : table)
    if (c == '|') rows.emplace_back();
    else rows.back() += c == ',' ? ' ' : c;
  return rows;
}

RecordedJob job_of_rank(const SettingWords& settings, std::int64_t rank) {
  const SettingsReader s(nullptr, 0, settings);
  RecordedJob job = {.settings = s.model()};
  RecordedSettings& m = job.settings;
  m.batch = s.number("microbatch_size");
  job.model = build_recorded_model(m);
  job.constant_bytes = rotary_table_bytes(m.seq, m.dim / m.heads) * s.number("stages_per_rank");
  Plan& plan = job.plan;
  plan.model = job.model.name;
  plan.runtime.version = "2.11";
  plan.batch = {m.seq, m.batch, s.number("microbatches")};
  if (!s.text("dp").empty()) plan.mesh = s.mesh("dp");  // else stages without fully_shard
  plan.mesh.pp = s.number("pp");
  plan.pipeline.stages_per_rank = s.number("stages_per_rank");
  plan.pipeline.first_less = s.number("input_weight");
  plan.pipeline.last_less = s.number("output_weight");
  const auto schedule = pipeline_schedule_of(s.text("schedule"));
  if (!schedule) s.unknown("schedule");
  plan.pipeline.schedule = *schedule;
  plan.named_rank = rank * plan.mesh.stage_ranks();
  plan.units.head = UnitPlacement::kWithNorm;
  plan.master_dtype = plan.param_dtype = plan.reduce_dtype = s.dtype("orig_dtype").value_or(DType::kFp32);
  if (plan.mesh.is_wrapped()) {
    plan.param_dtype = s.dtype("param_dtype").value_or(DType::kFp32);
    plan.reduce_dtype = s.dtype("reduce_dtype").value_or(plan.param_dtype);
  }
  plan.reshard_after_forward.value = {
      s.text("reshard") == "always" ? Reshard::Kind::kAlways : Reshard::Kind::kNever, 0};
  if (s.text("recompute") == "full") plan.recompute.value = Recompute::kFull;
  if (s.text("recompute") == "selective") plan.recompute.value = Recompute::kSelective;
  if (s.text("divide_factor") != "none") plan.gradient_divide_factor = 1;
  plan.pipeline.scale_grads = s.flag("scale_grads");
  plan.pipeline.return_outputs = s.flag("return_outputs");
  if (const std::int64_t calls = s.number("accumulation"); calls > 1) {
    plan.pipeline.microbatches = plan.batch.accumulation;
    plan.batch.accumulation *= calls;
  }
  if (*schedule == PipelineSchedule::kCustom) plan.pipeline.orders = orders_of(s.text("csv"));
  plan.optimizer.state = plan.master_dtype;
  if (!s.flag("clip")) plan.optimizer.clip_norm.reset();
  if (s.text("optimizer") == "adamw_fused") plan.optimizer.implementation = Optimizer::Implementation::kFused;
  else if (s.text("optimizer") != "adamw_foreach") s.unknown("optimizer");
  return job;
}

// The rows of each configuration and rank.
class RankRows {
 public:
  explicit RankRows(CsvFile file) : file_(std::move(file)) {
    const std::size_t config = file_.at("config"), rank = file_.at("rank");
    for (std::size_t row = 0; row < file_.rows(); ++row)
      rows_[{std::string(file_.text(row, config)), file_.integer(row, rank)}].push_back(row);
  }
  const CsvFile& file() const { return file_; }
  const std::vector<std::size_t>& of(const std::string& config, std::int64_t rank) const {
    static const std::vector<std::size_t> kNone;
    const auto found = rows_.find({config, rank});
    return found == rows_.end() ? kNone : found->second;
  }

 private:
  CsvFile file_;
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::size_t>> rows_;
};

// What a category of the recorder's is among ours.
std::string_view our_category(std::string_view name) {
  if (name == "recv_buffer") return "input";
  if (name == "stage_output") return "activation";
  if (name == "input_grad") return "backward_temp";
  return name;
}

class PipelineRecordings {
 public:
  explicit PipelineRecordings(const std::filesystem::path& folder)
      : settings_(read_settings(folder / "configs.json")),
        ranks_(read_csv_file(csv_path(folder, "ranks"))),
        events_(read_csv_file(csv_path(folder, "events"))),
        memory_(read_csv_file(csv_path(folder, "memory"))),
        units_(read_csv_file(csv_path(folder, "units"))) {}

  std::vector<Conformance> compare() const {
    std::vector<Conformance> rows;
    const std::size_t config = ranks_.at("config"), rank = ranks_.at("rank");
    for (std::size_t row = 0; row < ranks_.rows(); ++row)
      rows.push_back(compare(row, std::string(ranks_.text(row, config)), ranks_.integer(row, rank)));
    return rows;
  }

 private:
  Conformance compare(std::size_t row, const std::string& config, std::int64_t rank) const {
    const Recording recording = read(row, config, rank);
    try {
      const auto settings = settings_.find(config);
      if (settings == settings_.end())
        throw ranks_.error(row, ranks_.at("config"), "is no configuration of configs.json");
      return conform(recording, forecast_steps(job_of_rank(settings->second, rank)));
    } catch (const Error& error) {
      Conformance c;
      c.state = Conformance::State::kNotForecast;
      c.id = recording.id;
      c.version = kRecordedVersion;
      c.reason = error.what();
      c.peak_measured_bytes = recording.steps[1].total;
      return c;
    }
  }

  Recording read(std::size_t row, const std::string& config, std::int64_t rank) const {
    Recording r;
    r.id = fmt::format("{}/{}", config, rank);
    r.version = kRecordedVersion;
    r.index_file = ranks_.name();
    r.events_file = events_.file().name();
    r.memory_file = memory_.file().name();
    r.units_file = units_.file().name();
    r.events_have_pools = false;
    r.first_step_order_equal = false;  // shapes are exchanged first
    r.boundaries = {"step_begin", "action_end", "optimizer_begin", "optimizer_end", "step_end"};
    r.steps[1].total = ranks_.integer(row, ranks_.at("step2_peak"));
    r.steps[1].end = ranks_.integer(row, ranks_.at("step2_end"));
    read_events(config, rank, r);
    read_memory(config, rank, r);
    const auto settings = settings_.find(config);
    if (settings != settings_.end() && settings->second.at("dp").empty()) return r;  // no units
    r.units = read_units_of(units_.file(), units_.of(config, rank));
    return r;
  }

  void read_events(const std::string& config, std::int64_t rank, Recording& r) const {
    const CsvFile& file = events_.file();
    const auto text = [&](std::size_t row, const char* column) { return std::string(file.text(row, file.at(column))); };
    const CsvMembers<RecordedEvent> of_event = event_members(file);
    for (const std::size_t row : events_.of(config, rank)) {
      if (file.integer(row, file.at("step")) != 2) continue;
      RecordedEvent& event = r.events.emplace_back();
      of_event.read(row, event);
      if (event.kind == "send" || event.kind == "recv")
        event.on = fmt::format("peer {} batch {}", text(row, "peer"), text(row, "batch"));
      else if (event.kind == "p2p_wait") event.on = "batch " + text(row, "batch");
      else if (event.kind.starts_with("action_")) event.on = text(row, "action");
    }
  }

  void read_memory(const std::string& config, std::int64_t rank, Recording& r) const {
    const CsvFile& file = memory_.file();
    const std::size_t first = file.at("peak_since_previous_row") + 1;
    std::vector<std::size_t> place;  // of each column, among r.categories
    for (std::size_t c = first; c < file.columns(); ++c) {
      const std::string_view name = our_category(file.header(c));
      const auto known = std::ranges::find(r.categories, name);
      place.push_back(at(known - r.categories.begin()));
      if (known == r.categories.end()) r.categories.emplace_back(name);
    }
    std::int64_t highest = 0;
    for (const std::size_t row : memory_.of(config, rank)) {
      if (file.integer(row, file.at("step")) != 2) continue;
      const std::string kind(file.text(row, file.at("kind")));
      highest = std::max(highest, file.integer(row, file.at("peak_since_previous_row")));
      if (!contains(r.boundaries, kind)) continue;
      RecordedMemoryRow& m = r.memory.emplace_back();
      m.step = 2;
      m.seq = file.integer(row, file.at("seq"));
      m.kind = kind;
      m.total = file.integer(row, file.at("total"));
      m.peak_since_previous_row = std::exchange(highest, 0);
      m.categories.resize(r.categories.size());
      for (std::size_t c = 0; c < place.size(); ++c) m.categories[place[c]] += file.integer(row, first + c);
    }
  }

  std::map<std::string, SettingWords> settings_;
  CsvFile ranks_;
  RankRows events_, memory_, units_;
};

}

std::vector<Conformance> conform_pipeline_ranks(const std::filesystem::path& folder) {
  return PipelineRecordings(folder).compare();
}

}
