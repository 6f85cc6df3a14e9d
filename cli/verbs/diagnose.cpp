// The verb that says why a measured job is not as forecast.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/output.h"
#include "cli/recording.h"
#include "cli/verbs/verbs.h"
#include "interop/logs/training_log.h"
#include "planner/diagnose_job.h"
#include "planner/job.h"
#include "reports/diagnose/diagnosis.h"
#include "reports/diagnose/snapshot.h"
#include "reports/diagnose/threads.h"
#include "reports/validate/measured.h"
#include "reports/view/attribution.h"
#include "reports/view/layout.h"
#include "sim/base/config.h"
#include "sim/base/lookup.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

MessageFacts facts_of(const OutOfMemory& message) {
  return {message.tried, message.allocated.value_or(0), message.reserved_unallocated.value_or(0),
      message.free.value_or(0), message.capacity.value_or(0), message.others};
}

std::string words_of(const MessageFacts& message) {
  std::string words = is_fragmented(message) ? "\nfragmented\n" : "";
  if (message.others > 0) words += "\nanother process holds memory of the gpu\n";
  return words;
}

// --- published threads ---

struct Thread {
  std::string source, cause;
  std::size_t place = 0;  // of the cause among those that are named; from 1
};

std::vector<Thread> score_threads(const std::string& file) {
  std::vector<Thread> threads;
  for (const PublishedThread& published : read_threads(read_yaml_file(file))) {
    Thread& thread = threads.emplace_back(Thread{.source = published.source, .cause = published.cause.as_string()});
    const TrainingLog log = read_training_log(published.said);
    const std::string message = log.out_of_memory ? words_of(facts_of(*log.out_of_memory)) : "";
    const Diagnosis named = diagnose({.words = message, .said = log.words, .thread = thread.source}, {}, 0.1);
    const auto found =
        std::ranges::find_if(named.causes, [&](const DiagnosedCause& cause) { return cause.name == thread.cause; });
    if (found == named.causes.end()) throw published.cause.error("is no cause that is known");
    thread.place = at(found - named.causes.begin()) + 1;
  }
  return threads;
}

ExitCode score(const DiagnoseOptions& options) {
  constexpr double kEnough = 0.75;
  const std::vector<Thread> threads = score_threads(options.threads);
  const auto within = [&](std::size_t places) {
    const auto count = std::ranges::count_if(threads, [&](const Thread& each) { return each.place <= places; });
    return threads.empty() ? 0.0 : as_double(count) / as_double(threads.size());
  };
  if (options.output.form == Form::kJson) {
    Json list = json_list(threads, [&](const Thread& each) -> Json {
      return {{"source", each.source}, {"cause", each.cause}, {"place", each.place}};
    });
    write_answer(document("foreshard.diagnosis_score/1",
        {{"threads", std::move(list)}, {"first", within(1)}, {"among_three", within(3)}}));
  } else {
    std::string text;
    for (const Thread& each : threads) text += fmt::format("  {:>2}  {}  {}\n", each.place, each.cause, each.source);
    write_text(text + fmt::format("{} threads: the cause is first in {}, among three in {}\n", threads.size(),
                          percent_text(within(1)), percent_text(within(3))));
  }
  return within(3) >= kEnough ? ExitCode::kOk : ExitCode::kOutsideTolerance;
}

// --- a job ---

constexpr double kLeastGrowth = 0.002;  // of what is held between alike steps

// `share`: of the memory, that has to be new.
void note_growth(double bytes, double share, Measured& measured) {
  if (measured.signals.reserved && bytes > share * *measured.signals.reserved)
    measured.words += "\nmemory grows from the first steps to the last\n";
}

void take_log(const TrainingLog& log, const Plan& plan, Measured& measured) {
  const auto tokens = as_double(plan.batch.sequence * plan.batch.micro_batch * plan.batch.accumulation);
  Signals& signals = measured.signals;
  const auto fill = [](std::optional<double>& signal, std::optional<double> value) {
    if (!signal && value) signal = value;
  };
  fill(signals.step, log.step_s);
  if (log.tokens_per_s_per_gpu) fill(signals.step, tokens / *log.tokens_per_s_per_gpu);
  fill(signals.memory, log.memory_bytes);
  fill(signals.reserved, log.reserved_bytes);
  fill(signals.data, log.data_s);
  if (log.retries && log.steps > 0) fill(signals.retries, *log.retries / log.steps);
  measured.words += log.words;
  // Between steps of which some have more tokens than others.
  note_growth(log.memory_growth_bytes.value_or(0), 0.02, measured);
}

// What was there and what was asked for besides was needed at the least, and more than there is.
void take_message(const MessageFacts& message, Bytes capacity, Measured& measured) {
  measured.ran_out = true;
  Signals& signals = measured.signals;
  if (message.allocated > 0) signals.memory = std::max(signals.memory.value_or(0), message.allocated + message.tried);
  signals.in_use = message.capacity > 0 ? message.capacity : as_double(capacity.count());
  measured.words += words_of(message);
}

void check_same_job(const TrainingLog& log, const Job& job, const std::string& file) {
  if (!log.parameters) return;
  const auto own = as_double(job.model.parameters());
  if (std::abs(*log.parameters / own - 1) < 0.02) return;
  throw ConfigError({file, log.parameters_line, 0, ""},
      fmt::format("is of a model of {:.0f} parameters, the plan's has {:.0f}", *log.parameters, own),
      "the log of the plan's own job");
}

double first_kernel(const Forecast& made) {
  Time first = made.timeline.period;
  for (std::size_t i = 0; i < made.graph.rows.size(); ++i) {
    const Span& span = made.timeline.spans[i];
    if (computes(made.graph.rows[i]) && span.end > span.start) first = std::min(first, span.start);
  }
  return first.seconds();
}

void take_run(const std::string& run, const Forecast& right, const Cluster& cluster, Measured& measured) {
  const RunRecord record = read_recording(run, right).record;
  const RankRecord& rank = record.ranks.front();
  const Forecast view = measured_view(right.model, right.plan, right.graph, record);
  Signals& signals = measured.signals;
  signals.take(measure_step(view.graph, view.timeline));
  const MeasuredStep& median = median_step(record, rank);
  const double gaps = (median.gaps - median.beyond).seconds();
  signals.compute = *signals.compute - gaps;
  // What a profiler adds to a step is its host's, for which the GPU waits.
  const double step = summarize_run(view, cluster, record).seconds.value;
  signals.idle = std::max(0.0, *signals.idle + gaps - std::max(0.0, *signals.step - step));
  signals.step = step;
  signals.data = std::min(*signals.idle, std::max(0.0, first_kernel(view) - first_kernel(right)));
  signals.retries = rank.retries;
  const auto take = [&](std::optional<double>& signal, Bytes RankRecord::*peak) {
    const Bytes most = std::ranges::max(record.ranks, {}, peak).*peak;
    if (most > Bytes()) signal = std::max(signal.value_or(0), as_double(most.count()));
  };
  take(signals.memory, &RankRecord::peak_allocated);
  take(signals.reserved, &RankRecord::peak_reserved);
  note_growth(as_double(rank.grown.count()), kLeastGrowth, measured);
}

std::vector<SnapshotMemory> take_snapshots(const std::vector<std::string>& files, Measured& measured) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  std::vector<SnapshotMemory> snapshots;
  for (const std::string& file : files) {
    snapshots.push_back(read_snapshot(read_text_file(file, kMostBytes), file));
    Signals& signals = measured.signals;
    const auto take = [](std::optional<double>& signal, Bytes bytes) {
      signal = std::max(signal.value_or(0), as_double(bytes.count()));
    };
    take(signals.memory, snapshots.back().peak);
    take(signals.reserved, snapshots.back().reserved);
  }
  if (grows(snapshots)) measured.words += "\nmemory grows from snapshot to snapshot\n";
  return snapshots;
}

}

ExitCode run_diagnose(const DiagnoseOptions& options) {
  if (!options.threads.empty()) return score(options);
  if (options.measured.empty() && options.said.empty() && options.log.empty() && options.run.empty() &&
      options.snapshots.empty()) {
    throw Error(ExitCode::kUsage,
        "nothing was measured; expected --measured step=2.1s, tokens/s=99840 or memory=61GiB, --said TEXT, --log FILE, "
        "--run TRACE or --snapshot FILE");
  }
  const Job job = load_job(options.job);
  const Plan& plan = job.resolved.plan;
  const CostModel costs = cost_model(job);
  const Forecast right = forecast(job.model, plan, costs);
  Measured measured{.signals = read_measured(options.measured, plan, right.timeline.period)};
  for (const std::string& text : options.said) measured.said += text + '\n';
  std::optional<TrainingLog> log;
  if (!options.log.empty()) {
    log = read_training_log_file(options.log);
    check_same_job(*log, job, options.log);
    take_log(*log, plan, measured);
  }
  if (!options.run.empty()) take_run(options.run, right, job.cluster, measured);
  const std::vector<SnapshotMemory> snapshots = take_snapshots(options.snapshots, measured);
  const std::vector<CauseForecast> forecasts = cause_forecasts(job);
  const Report report = report_of(job, right, costs);
  std::optional<MessageFacts> message;
  if (log && log->out_of_memory) message = facts_of(*log->out_of_memory);
  if (message) take_message(*message, report.fit.capacity, measured);
  Diagnosis diagnosis =
      diagnose(measured, forecasts, log_sd(report.seconds, 0.03), log_sd(report.peak_allocated, 0.005));
  const auto add = [&](const std::vector<std::string>& found) { append(diagnosis.findings, found); };
  const bool has_rate =
      std::ranges::any_of(options.measured, [](const std::string& said) { return said.starts_with("tokens/s"); });
  if (has_rate) add(rate_findings(diagnosis, plan));
  if (message) add(memory_findings(job, report.fit, *message));
  add(snapshot_findings(snapshots, right));
  if (options.output.form == Form::kJson) {
    Json json = to_json(diagnosis);
    json["measured"] = measured_json(measured.signals);
    write_answer(document("foreshard.diagnosis/1", std::move(json)));
  } else {
    write_text(diagnosis_text(diagnosis, color_of(options.output.color)));
  }
  return ExitCode::kOk;
}

}
