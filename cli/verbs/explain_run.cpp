// Inferred keys stand below everything that the user says: model, cluster, batch as flags that were
// not given, the rest as the first group of assignments.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/recording.h"
#include "cli/verbs/verbs.h"
#include "interop/traces/infer_job.h"
#include "interop/traces/trace_files.h"
#include "planner/job.h"
#include "planner/model_name.h"
#include "planner/try_settings.h"
#include "reports/validate/measured.h"
#include "reports/validate/slower.h"
#include "reports/view/layout.h"

namespace foreshard {
namespace {

constexpr std::size_t kSuggestions = 3;

// --- the inferred job ---

struct TracedJob {
  JobOptions options;  // with what was inferred
  InferredJob inferred;
  std::vector<FsdpTrace> traces;

  Job load(const JobOptions& with) const {
    return inferred.model ? load_job_of(with, *inferred.model) : load_job(with);
  }
};

std::optional<ModelSpec> named_model(const JobOptions& options) {
  if (!options.model) return std::nullopt;
  return load_model(find_model(*options.model, *options.model)).model;
}

// The flags that stand for keys of their own.
std::optional<std::string>* flag_of(JobOptions& options, const std::string& key) {
  if (key == "model") return &options.model;
  if (key == "cluster") return &options.cluster;
  if (key == "runtime") return &options.runtime;
  if (key == "batch.sequence") return &options.sequence;
  if (key == "batch.micro_batch") return &options.micro_batch;
  if (key == "batch.accumulation") return &options.accumulation;
  return nullptr;
}

bool is_set(const JobOptions& options, const std::string& key) {
  for (const auto& group : options.assignments) {
    for (const std::string& assignment : group)
      if (assignment.starts_with(key + "=")) return true;
  }
  return false;
}

TracedJob trace_job(const ExplainOptions& asked) {
  TracedJob traced = {.options = asked.job, .traces = read_job_traces(asked.run)};
  traced.inferred = infer_job(traced.traces.front(), named_model(asked.job));
  std::vector<std::string> assignments;
  for (const InferredKey& key : traced.inferred.keys) {
    std::optional<std::string>* flag = flag_of(traced.options, key.key);
    if (flag == nullptr) assignments.push_back(fmt::format("{}={}", key.key, key.value));
    else if (!*flag && !is_set(asked.job, key.key)) *flag = key.value;
  }
  traced.options.assignments.insert(traced.options.assignments.begin(), assignments);
  std::erase_if(traced.inferred.asked, [&](const AskedKey& key) {
    const std::optional<std::string>* flag = flag_of(traced.options, key.key);
    return (flag != nullptr && *flag) || is_set(asked.job, key.key);
  });
  return traced;
}

// --- what is said ---

std::string inferred_text(const InferredJob& job, const Paint& paint) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> lines = {paint.bold("the job, as the trace shows it")};
  for (const InferredKey& key : job.keys) rows.push_back({"  " + key.key, key.value, key.how});
  for (std::string& line : aligned(rows, 3)) lines.push_back(std::move(line));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

std::string asked_text(const std::vector<AskedKey>& asked) {
  std::string text = "the trace does not tell all of the job; add\n";
  for (const AskedKey& key : asked) {
    const std::string line = fmt::format("{}: {}", key.flag, key.why);
    text += fmt::format("  {}\n", fmt::join(wrapped(line, kTextWidth - 2, 4), "\n  "));
  }
  return text;
}

std::string suggestions_text(const std::vector<TriedSetting>& tried, const TriedSetting& now, const Paint& paint) {
  std::string text = paint.bold("settings to change, by the forecast") + "\n";
  if (tried.empty()) return text + "  none of those that were tried makes the step shorter or smaller, and fits\n";
  for (std::size_t i = 0; i < std::min(tried.size(), kSuggestions); ++i) {
    const TriedSetting& setting = tried[i];
    const Bytes freed = setting.fit.margin() - now.fit.margin();
    const std::string line = fmt::format("{}. set {}: {} ({}), {}{}; {}", i + 1, fmt::join(setting.changes, ", "),
        signed_seconds(setting.seconds - now.seconds), signed_percent(setting.seconds / now.seconds - 1),
        freed == Bytes() ? "the same memory" : "memory " + signed_bytes(-as_double(freed.count())),
        setting.price == SettingPrice::kFree   ? ""
        : setting.price == SettingPrice::kCode ? "; other kernels"
                                               : "; other roundings",
        setting.why);
    text += fmt::format("  {}\n", fmt::join(wrapped(line, kTextWidth - 2, 5), "\n  "));
  }
  return text;
}

Json inferred_json(const InferredJob& job) {
  Json keys = json_list(job.keys, [&](const InferredKey& key) -> Json {
    return {{"key", key.key}, {"value", key.value}, {"how", key.how}};
  });
  return {{"keys", keys}, {"order_likeness", job.order}};
}

Json asked_json(const std::vector<AskedKey>& asked) {
  return json_list(
      asked,
      [&](const AskedKey& key) -> Json {
        return {{"key", key.key}, {"flag", key.flag}, {"why", key.why}};
      });
}

Json suggestions_json(const std::vector<TriedSetting>& tried, const TriedSetting& now) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(tried.size(), kSuggestions); ++i) {
    const TriedSetting& setting = tried[i];
    list.push_back({{"set", setting.changes}, {"step_s", setting.seconds}, {"gain_s", now.seconds - setting.seconds},
        {"margin_bytes", setting.fit.margin().count()}, {"fit_probability", fit_probability(setting.fit)},
        {"freed_bytes", (setting.fit.margin() - now.fit.margin()).count()}, {"price", to_string(setting.price)},
        {"why", setting.why}});
  }
  return list;
}

struct Compared {
  Forecast made;
  RecordedRun recording;
  SlowStep step;
  std::int64_t number = 0;
};

// The median step of the first rank is what is explained.
Compared compare(Forecast made, RecordedRun recording, const std::string& run) {
  if (made.graph.fingerprint() != recording.record.fingerprint)
    throw invalid_input("{}: is of another step; foreshard validate says what differs", run);
  const Forecast measured = measured_view(made.model, made.plan, made.graph, recording.record);
  SlowStep step = why_slower(made.graph, made.timeline, measured.timeline);
  return {std::move(made), std::move(recording), std::move(step), measured.timeline.steady_step};
}

std::string text_of(const Compared& compared, Color color) {
  const std::string what =
      fmt::format("step {} of rank {}", compared.number, compared.recording.record.ranks.front().rank);
  const auto& trace = compared.recording.trace;
  return slower_text(compared.step, what, color) + (trace ? "\n" + trace_text(*trace) : "");
}

Json json_of(const Compared& compared) {
  Json body = to_json(compared.step);
  body["rank"] = compared.recording.record.ranks.front().rank;
  body["step"] = compared.number;
  if (compared.recording.trace) body["trace"] = to_json(*compared.recording.trace);
  return body;
}

// Times of CPU ranks say nothing of GPUs; said before anything is asked for.
void check_machine(const ExplainOptions& options, const FsdpTrace& trace) {
  const auto& cluster = options.job.cluster;
  if (!cluster || *cluster == "local" || trace.of_gpu || !trace.device.empty()) return;
  throw invalid_input(
      "{}: is of CPU ranks{}: their times and overlap say nothing of '{}'; record on the GPUs with "
      "ProfilerActivity.CUDA, or name --cluster local",
      trace.file, trace.facts.backend.empty() ? "" : " over " + trace.facts.backend, *cluster);
}

ExitCode explain_trace(const ExplainOptions& options) {
  const TracedJob traced = trace_job(options);
  const FsdpTrace& first = traced.traces.front();
  check_machine(options, first);
  const Color color = color_of(options.output.color);
  const Paint paint(color);
  const bool json = options.output.form == Form::kJson;
  Json body = {{"inferred", inferred_json(traced.inferred)}, {"asked", asked_json(traced.inferred.asked)}};
  std::string text = inferred_text(traced.inferred, paint);
  if (!traced.inferred.asked.empty()) {
    json ? write_answer(document("foreshard.inferred/1", body)) : write_text(text);
    write_error(asked_text(traced.inferred.asked));
    return ExitCode::kUsage;
  }
  const auto made_of = [&] {
    try {
      Job job = traced.load(traced.options);
      Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
      return std::pair(std::move(job), std::move(made));
    } catch (const Error&) {  // what was read stands all the same
      if (!json) write_text(text);
      throw;
    }
  };
  auto [job, made] = made_of();
  const std::vector<Machine> machines = list_machines();
  const Machine* machine = match_gpu(first.device, machines);
  if (machine != nullptr && machine->key != job.cluster.gpu.key)
    note(fmt::format("the trace is of {}, the forecast of {}", first.device, job.cluster.gpu.name));
  const char* schema = "foreshard.inferred/1";
  if (!first.of_gpu && !first.device.empty()) {
    // Only what the host did is in it.
    note(fmt::format("{}: has no kernels of {}: times are not compared (ProfilerActivity.CUDA records them)",
        first.file, first.device));
  } else {
    schema = "foreshard.slower/1";
    RecordedRun recording = joined(made, traced.traces);
    const Compared compared = compare(std::move(made), std::move(recording), options.run);
    body.update(json_of(compared));
    text += "\n" + text_of(compared, color);
  }
  const TriedSetting now = as_it_is(job);
  const std::vector<TriedSetting> tried =
      try_settings(traced.options, job, [&](const JobOptions& with) { return traced.load(with); });
  body["inferred"]["plan"] = to_json(job.resolved.plan);
  body["suggestions"] = suggestions_json(tried, now);
  text += "\n" + suggestions_text(tried, now, paint);
  json ? write_answer(document(schema, body)) : write_text(text);
  return ExitCode::kOk;
}

}

ExitCode explain_run(const ExplainOptions& options) {
  if (!options.job.plan && is_traced(options.run)) return explain_trace(options);
  const Job job = load_job(options.job);
  Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
  RecordedRun recording = read_recording(options.run, made);
  const Compared compared = compare(std::move(made), std::move(recording), options.run);
  write_answer(options.output.form == Form::kJson ? document("foreshard.slower/1", json_of(compared))
                                                  : text_of(compared, color_of(options.output.color)));
  return ExitCode::kOk;
}

}
