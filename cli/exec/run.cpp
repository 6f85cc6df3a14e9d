// foreshard-exec run: the same files, the same graph as predict; then the engine walks it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "cli/exec/exec_options.h"
#include "cli/exec/ranks.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "exec/comm/process_world.h"
#include "exec/device/accelerator.h"
#include "exec/device/host_accelerator.h"
#include "exec/device/load_accelerator.h"
#include "exec/engine/backend.h"
#include "exec/engine/engine.h"
#include "exec/launch/launch.h"
#include "exec/run/checkpoint_claim.h"
#include "exec/run/train.h"
#include "exec/state/together.h"
#include "planner/job.h"
#include "reports/validate/measured.h"
#include "reports/validate/run_record.h"
#include "reports/view/views.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/forecast.h"

namespace foreshard {
namespace {

// --device of a job on this cluster: auto is a GPU where the cluster is of GPUs; cpu needs cluster
// `local`; standin runs plans of GPUs on the CPU, in order and without overlap, to try things out.
// nullptr: a CPU rank. Throws Error(kMissingCapability), Error(kUsage).
std::unique_ptr<Accelerator> open_device(const std::string& choice, const Cluster& cluster, const Launch& launch) {
  if (choice == "standin") {
    if (!cluster.host_computes) return host_accelerator();
    throw Error(ExitCode::kUsage, "--device standin stands for a GPU; name a cluster of GPUs, for example 8xh100");
  }
  const DeviceChoice wanted = parse_device_choice(choice);
  if (cluster.host_computes) {
    if (wanted != DeviceChoice::kCuda) return nullptr;
    throw Error(ExitCode::kMissingCapability,
        "the plan's cluster is local (CPU ranks); nearest plan: the same with a cluster of GPUs, for example cluster: "
        "1xh100");
  }
  if (wanted == DeviceChoice::kCpu) {
    throw Error(ExitCode::kMissingCapability,
        "the plan is for GPUs ({}), CPU ranks run plans of this machine; nearest plan: the same with cluster: local",
        cluster.spec);
  }
  try {
    return load_accelerator(launch.local_rank);
  } catch (const Error& error) {
    throw Error(
        error.exit_code(), fmt::format("{}; nearest plan for CPU ranks: the same with cluster: local", error.what()));
  }
}

// Of the plan's forecast: how long every collective takes, and the multiprocessors that NCCL's kernel would hold.
Pacing pacing_of(const Job& job, const EventGraph& graph) {
  const CostModel costs = cost_model(job);
  const Forecast predicted = forecast(job.model, job.resolved.plan, costs);
  FORESHARD_CHECK(predicted.graph.fingerprint() == graph.fingerprint(), "the forecast is of another step");
  Pacing pacing;
  pacing.durations.resize(graph.rows.size());
  pacing.ctas.assign(graph.rows.size(), 1);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Work& work = graph.works[graph.rows[i].work];
    if (!is_collective(work.kind) || work.communicator == kNoCommunicator) continue;
    const Span& span = predicted.timeline.spans[i];
    pacing.durations[i] = span.end - span.arrive;
    const auto price = costs.collective(work.kind, work.bytes, graph.communicators[work.communicator].group);
    if (price) pacing.ctas[i] = std::max(1, price->ctas);
  }
  return pacing;
}

// "step 12/100  loss 2.3456  12,345 tokens/s  0:32 left": one line that is written over on a
// terminal, else about twenty lines.
class ProgressLine {
 public:
  ProgressLine() : is_terminal_(::isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { end(); }

  void show(const StepReport& report) {
    if (first_ == 0) first_ = report.step;
    seconds_ += report.seconds;
    const std::int64_t done = report.step - first_ + 1;
    const std::int64_t left = report.last_step - report.step;
    const std::int64_t stride = std::max<std::int64_t>(1, (report.last_step - first_ + 1) / 20);
    if (!is_terminal_ && left != 0 && done % stride != 0 && done != 1) return;
    const auto eta = static_cast<std::int64_t>(std::llround(seconds_ / as_double(done) * as_double(left)));
    const std::string line =
        fmt::format("step {}/{}  loss {:.4f}  {} tokens/s  {}:{:02}:{:02} left", report.step, report.last_step,
            report.loss, format_count(std::llround(report.tokens_per_s)), eta / 3600, eta / 60 % 60, eta % 60);
    write_error(is_terminal_ ? "\r\x1b[K" + line : line + "\n");
    open_ = is_terminal_;
  }
  void end() {
    if (open_) write_error("\n");
    open_ = false;
  }

 private:
  bool is_terminal_;
  bool open_ = false;
  std::int64_t first_ = 0;
  double seconds_ = 0;
};

// The plan must have as many ranks as were started.
void check_world(const Plan& plan, const Launch& launch) {
  const std::int64_t ranks = plan.mesh.world();
  if (ranks == launch.size) return;
  const std::string started = launch.launcher == "none"
                                  ? "one was started; start them with --spawn " + std::to_string(ranks)
                                  : fmt::format("{} started {}", launch.launcher, launch.size);
  throw Error(ExitCode::kLaunchFailure,
      fmt::format("the plan has shard {} x replicate {}{} = {} ranks, but {}", plan.mesh.shard, plan.mesh.replicate,
          plan.mesh.tp > 1 ? fmt::format(" x tp {}", plan.mesh.tp) : "", ranks, started) +
          (plan.host == HostKind::kFeedsDevice && launch.size == 1
                  ? "; --paced runs rank 0 alone, its collectives as long as forecast"
                  : ""));
}

// The host has nothing to do beside the optimizer of a plan that offloads: it takes its share of
// the cores for that, unless something else is asked for.
std::optional<int> compute_threads(const RunCommandOptions& options, const Plan& plan, const Launch& launch) {
  if (options.threads || plan.offload == Offload::kNone) return options.threads;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return std::nullopt;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / std::max(1, launch.local_size), 1, 1024);
}

std::string run_folder(const RunCommandOptions& options, const ModelSpec& model, const std::string& created) {
  if (!options.out.empty()) return options.out;
  std::string stamp;
  for (const char c : created)
    if (c != ':') stamp.push_back(c);
  return fmt::format("runs/{}-{}", model.name, stamp);
}

ExitCode exit_code_of(const RunRecord& record) {
  if (!record.not_finite.empty()) return ExitCode::kNotFinite;
  return record.complete ? ExitCode::kOk : ExitCode::kInterrupted;
}

// Why a run ended before its steps were done.
void tell_end(const RunRecord& record, const RunCommandOptions& options) {
  if (record.complete) return;
  if (record.not_finite.empty())
    return note(fmt::format("interrupted after step {}", record.first_step + std::ssize(record.losses) - 1));
  write_error(fmt::format(
      "error: {}; {}try a lower optimizer.learning_rate, more optimizer.warmup_steps, or an optimizer.clip_norm\n",
      record.not_finite,
      options.checkpoint.empty() ? ""
                                 : "no checkpoint was saved since, those in " + options.checkpoint + " are finite; "));
}

std::chrono::seconds grace_of(const std::string& text) {
  try {
    const std::chrono::nanoseconds grace(parse_time(text).nanoseconds());
    return std::max(std::chrono::seconds(1), std::chrono::ceil<std::chrono::seconds>(grace));
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::kUsage, "--grace: {}", error.what());
  }
}

// What is the same for every rank, and how a difference in it ends.
void agree_on_start(const RunCommandOptions& o, World& world) {
  Facts facts;
  for (const auto& [name, version] : engine_versions()) facts.push_back({"version of " + name, version});
  const auto flag = [&](const char* name, const auto& value) { facts.push_back({name, fmt::format("{}", value)}); };
  flag("--steps", o.steps);
  flag("--tokens", o.tokens);
  flag("--checkpoint", o.checkpoint);
  flag("--checkpoint-every", o.checkpoint_every);
  flag("--checkpoint-keep", o.checkpoint_keep);
  flag("--resume", o.resume);
  flag("--accept-changes", o.accept_changes);
  flag("--record", o.recorded_steps);
  flag("--debug", o.debug);
  flag("--device", o.device);
  flag("--graph", o.graph);
  const char* const transport = std::getenv("FORESHARD_TRANSPORT");
  flag("FORESHARD_TRANSPORT", transport == nullptr ? "auto" : transport);
  agree(world, "start", facts, ExitCode::kLaunchFailure);
}

// What the job is made of, and what its numbers' last bits depend on.
Facts job_facts(const Job& job, int threads) {
  Facts facts = facts_of(job.model);
  for (Fact& fact : facts_of(job.resolved.plan)) facts.push_back(std::move(fact));
  for (const auto& [name, version] : engine_versions()) {
    if (name == "foreshard") continue;
    facts.push_back({"version of " + name, version, Fact::Changes::kLastBits});
  }
  const bool host = job.cluster.host_computes;
  facts.push_back({"device", host ? "cpu" : "gpu", Fact::Changes::kLastBits});
  // With offload each rank takes what its machine has.
  if (job.resolved.plan.offload == Offload::kNone)
    facts.push_back({"threads", std::to_string(threads), Fact::Changes::kLastBits});
  return facts;
}

std::vector<std::string> accepted_changes(const std::string& text, const Facts& facts) {
  std::vector<std::string> keys = {"data"};
  for (const Fact& fact : facts)
    if (fact.changes == Fact::Changes::kNumbers) keys.push_back(fact.key);
  std::vector<std::string> accepted;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    accepted.push_back(text.substr(at, end - at));
    at = end + 1;
    if (contains(keys, accepted.back())) continue;
    const std::string nearest = nearest_spelling(accepted.back(), keys);
    throw Error(ExitCode::kUsage,
        "--accept-changes: {} is no key that changes the numbers; expected keys with commas between them, for example "
        "data,seed{}",
        quote(accepted.back()), nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
  return accepted;
}

void try_destinations(const RunCommandOptions& options, const std::string& folder, World& world) {
  succeed_together(
      world, "destinations",
      [&] {
        if (world.rank() != 0) return std::string();
        try_folder(folder);
        for (const std::string& file : {options.trace, options.kineto})
          if (!file.empty()) try_file(file);
        return std::string();
      });
}

// The run folder, and the report of what was done.
void answer(const RunCommandOptions& options, const Job& job, const EventGraph& graph, const RunRecord& record,
    const std::string& folder) {
  write_run_folder(folder, record);
  tell_end(record, options);
  if (record.losses.empty() || record.ranks.front().timelines.empty()) return;
  const Forecast view = measured_view(job.model, job.resolved.plan, graph, record);
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(view));
  Cluster machine = job.cluster;
  // Without a measured profile nobody knows the machine's peak: no MFU rather than a made-up one.
  if (machine.host_computes && job.profile_file.empty())
    machine.gpu.peak_bf16 = machine.gpu.peak_fp32 = FlopsPerSecond();
  const Report report = summarize_run(view, machine, record);
  if (options.output.form == Form::kJson) write_answer(document("foreshard.report/1", to_json(report)));
  else write_text(to_text(report, view, color_of(options.output.color)));
  note(fmt::format("run folder {}", folder));
}

ExitCode run_rank(const RunCommandOptions& options, const Launch& launch, World& met) {
  JobOptions named = options.job;
  named.profile_need = ProfileNeed::kOptional;
  named.ranks = launch.size;
  if (!named.plan && !named.cluster) named.cluster = "local";
  if (!named.plan && !named.runtime) named.runtime = "native";
  const Job job = load_job(named);
  const Plan& plan = job.resolved.plan;
  const int threads = set_threads(compute_threads(options, plan, launch));
  agree_on_start(options, met);
  const Facts facts = job_facts(job, threads);
  agree(met, "job", facts, ExitCode::kInvalidInput);
  if (const auto problem = find_engine_problem(job.model, plan)) throw Error(ExitCode::kMissingCapability, *problem);
  if (!job.cluster.host_computes) {
    if (const auto problem = find_device_problem(job.model, plan, options.paced))
      throw Error(ExitCode::kMissingCapability, *problem);
  }
  // Arenas stay where they are, so replayed collectives need no buffers registered for them; NCCL's
  // doing so has slowed captured steps down (pytorch/torchtitan#2444).
  if (options.graph) ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
  const std::unique_ptr<Accelerator> device = open_device(options.device, job.cluster, launch);
  if (!options.paced) check_world(plan, launch);

  RunRecord record;
  record.created = utc_now();
  record.host = launch.launcher;
  record.cpu = cpu_name();
  record.versions = engine_versions();
  record.command = options.command;
  record.launcher = launch.launcher;
  record.threads = threads;
  const std::string folder = run_folder(options, job.model, record.created);
  record.plan_yaml = plan_file_text(job, plan, folder);
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) record.host = host;

  TrainOptions train_options;
  train_options.data = options.data;
  train_options.format = parse_token_format(options.tokens);
  train_options.steps = options.steps;
  train_options.checkpoint = options.checkpoint;
  train_options.checkpoint_every = options.checkpoint_every;
  train_options.checkpoint_keep = options.checkpoint_keep;
  train_options.resume = options.resume;
  train_options.recorded_steps = options.recorded_steps;
  train_options.debug = options.debug;
  train_options.facts = facts;
  train_options.accept_changes = accepted_changes(options.accept_changes, facts);
  train_options.metadata = {{"plan", record.plan_yaml}, {"foreshard", FORESHARD_VERSION}};
  ProgressLine line;
  train_options.progress = [&](const StepReport& report) { line.show(report); };
  train_options.note = [&](const std::string& sentence) {
    line.end();
    note(sentence);
  };
  const InterruptGuard guard(grace_of(options.grace));
  train_options.stop = [] { return InterruptGuard::interrupted(); };

  const EventGraph graph = build_training_step(job.model, plan);
  train_options.device = device.get();
  train_options.graph = options.graph;
  train_options.kineto = options.kineto;
  std::optional<Pacing> pacing;
  if (options.paced) {
    pacing = pacing_of(job, graph);
    for (Time& duration : pacing->durations) duration = Time::seconds(duration.seconds() * options.pace);
    if (options.pace != 1)
      record.notes.push_back(fmt::format("collectives were given {} times their forecast time", options.pace));
    train_options.pacing = &*pacing;
  }
  if (device)
    for (const auto& version : device->info().versions) record.versions.push_back(version);
  const auto paced = options.paced ? paced_world(static_cast<int>(plan.mesh.world())) : nullptr;
  World& world = options.paced ? *paced : met;
  try_destinations(options, folder, world);
  const bool first = launch.rank == 0;
  try {
    record = train(job.model, plan, graph, world, train_options, &record);
  } catch (const PeerFailure& failure) {
    line.end();
    if (first && !record.ranks.empty()) write_run_folder(folder, record);
    // Where this rank was belongs to the answer, even if another one was nearer to the cause.
    std::string said = explain(world, failure);
    if (!contains(said, failure.what())) said += fmt::format("; {}", failure.what());
    throw Error(ExitCode::kLaunchFailure, said);
  }
  line.end();
  const ExitCode code = exit_code_of(record);
  if (first) answer(options, job, graph, record, folder);
  // A launcher ends the others as soon as one has failed: rank 0 is through by then.
  if (code != ExitCode::kOk) world.gather("ended", "");
  return code;
}
}

ExitCode run_run(const RunCommandOptions& options) {
  if (options.graph && options.debug)
    throw Error(ExitCode::kUsage, "--debug checks every row from the host; leave it or --graph out");
  SpawnRequest spawn = options.spawn;
  spawn.grace = grace_of(options.grace) + std::chrono::seconds(1);  // the ranks' own word first
  if (const auto code = spawn_if_asked(spawn)) return *code;
  handle_termination();
  const Launch launch = resolve_launch(process_environment());
  if (options.paced && launch.size > 1)
    throw Error(ExitCode::kUsage, "--paced runs one rank; leave the launcher or --spawn out");
  // The ranks meet first: what goes wrong on one of them from here on, the others are told.
  const auto world = connect_processes(launch, connect_options(process_environment()));
  try {
    return run_rank(options, launch, *world);
  } catch (const PeerFailure& failure) {
    throw Error(ExitCode::kLaunchFailure, explain(*world, failure));
  } catch (const Error& error) {
    world->announce_failure(fmt::format("rank {}: {}", launch.rank, error.what()));
    throw;
  }
}

}
