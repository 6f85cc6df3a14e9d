// foreshard-exec run: the same files, the same graph as predict; then the engine walks it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cli/exec/device.h"
#include "cli/exec/exec_options.h"
#include "cli/exec/ranks.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/output.h"
#include "exec/comm/process_world.h"
#include "exec/engine/engine.h"
#include "exec/run/train.h"
#include "reports/measured.h"
#include "reports/run_record.h"
#include "reports/views.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

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
    const auto eta = static_cast<std::int64_t>(
        std::llround(seconds_ / static_cast<double>(done) * static_cast<double>(left)));
    const std::string line =
        fmt::format("step {}/{}  loss {:.4f}  {} tokens/s  {}:{:02}:{:02} left", report.step,
                    report.last_step, report.loss, format_count(std::llround(report.tokens_per_s)),
                    eta / 3600, eta / 60 % 60, eta % 60);
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
  const std::string started =
      launch.launcher == "none"
          ? "one was started; start them with --spawn " + std::to_string(ranks)
          : fmt::format("{} started {}", launch.launcher, launch.size);
  throw Error(ExitCode::kLaunchFailure,
              fmt::format("the plan has shard {} x replicate {} = {} ranks, but {}",
                          plan.mesh.shard, plan.mesh.replicate, ranks, started) +
                  (plan.host == HostKind::kFeedsDevice && launch.size == 1
                       ? "; --paced runs rank 0 alone, its collectives as long as forecast"
                       : ""));
}

// The host has nothing to do beside the optimizer of a plan that offloads: it takes its share of
// the cores for that, unless something else is asked for.
std::optional<int> compute_threads(const RunCommandOptions& options, const Plan& plan,
                                   const Launch& launch) {
  if (options.threads || plan.offload == Offload::kNone) return options.threads;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return std::nullopt;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / std::max(1, launch.local_size), 1, 1024);
}

std::string run_folder(const RunCommandOptions& options, const ModelSpec& model,
                       const std::string& created) {
  if (!options.out.empty()) return options.out;
  std::string stamp;
  for (const char c : created) {
    if (c != ':') stamp.push_back(c);
  }
  return fmt::format("runs/{}-{}", model.name, stamp);
}

}  // namespace

ExitCode run_run(const RunCommandOptions& options) {
  if (const auto code = spawn_if_asked(options.spawn)) return *code;
  const Launch launch = resolve_launch(process_environment());

  JobOptions named = options.job;
  named.profile_need = ProfileNeed::kOptional;
  named.ranks = launch.size;
  if (!named.plan && !named.cluster) named.cluster = "local";
  if (!named.plan && !named.runtime) named.runtime = "native";
  const Job job = load_job(named);
  const Plan& plan = job.resolved.plan;
  if (const auto problem = find_engine_problem(job.model, plan)) {
    throw Error(ExitCode::kMissingCapability, *problem);
  }
  if (!job.cluster.host_computes) {
    if (const auto problem = find_device_problem(job.model, plan, options.paced)) {
      throw Error(ExitCode::kMissingCapability, *problem);
    }
  }
  if (options.paced && launch.size > 1) {
    throw Error(ExitCode::kUsage, "--paced runs one rank; leave the launcher or --spawn out");
  }
  if (options.graph && options.debug) {
    throw Error(ExitCode::kUsage,
                "--debug checks every row from the host; leave it or --graph out");
  }
  // Arenas stay where they are, so replayed collectives need no buffers registered for them; NCCL's
  // doing so has slowed captured steps down (pytorch/torchtitan#2444).
  if (options.graph) ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
  const std::unique_ptr<Accelerator> device = open_device(options.device, job.cluster, launch);
  if (!options.paced) check_world(plan, launch);
  const int threads = set_threads(compute_threads(options, plan, launch));

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
  train_options.metadata = {{"plan", record.plan_yaml}, {"foreshard", FORESHARD_VERSION}};
  ProgressLine line;
  train_options.progress = [&](const StepReport& report) { line.show(report); };
  train_options.note = [&](const std::string& sentence) {
    line.end();
    note(sentence);
  };
  const InterruptGuard guard;
  train_options.stop = [] { return InterruptGuard::interrupted(); };

  const EventGraph graph = build_training_step(job.model, plan);
  train_options.device = device.get();
  train_options.graph = options.graph;
  train_options.kineto = options.kineto;
  std::optional<Pacing> pacing;
  if (options.paced) {
    pacing = pacing_of(job, graph);
    for (Time& duration : pacing->durations) {
      duration = Time::seconds(duration.seconds() * options.pace);
    }
    if (options.pace != 1) {
      record.notes.push_back(
          fmt::format("collectives were given {} times their forecast time", options.pace));
    }
    train_options.pacing = &*pacing;
  }
  if (device) {
    for (const auto& version : device->info().versions) record.versions.push_back(version);
  }
  const auto world = options.paced
                         ? paced_world(static_cast<int>(plan.mesh.world()))
                         : connect_processes(launch, connect_options(process_environment()));
  const bool first = launch.rank == 0;
  try {
    record = train(job.model, plan, graph, *world, train_options, &record);
  } catch (const PeerFailure& failure) {
    line.end();
    if (first && !record.ranks.empty()) write_run_folder(folder, record);
    // Where this rank was belongs to the answer, even if another one was nearer to the cause.
    std::string said = explain(*world, failure);
    if (said.find(failure.what()) == std::string::npos) said += fmt::format("; {}", failure.what());
    throw Error(ExitCode::kLaunchFailure, said);
  } catch (const Error& error) {
    line.end();
    world->announce_failure(fmt::format("rank {}: {}", launch.rank, error.what()));
    throw;
  }
  line.end();
  const ExitCode code = record.complete ? ExitCode::kOk : ExitCode::kInterrupted;
  if (!first) return code;
  write_run_folder(folder, record);
  if (!record.complete)
    note(fmt::format("interrupted after step {}",
                     record.first_step + static_cast<std::int64_t>(record.losses.size()) - 1));
  if (record.losses.empty() || record.ranks.front().timelines.empty()) return code;
  const Forecast view = measured_view(job.model, plan, graph, record);
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(view));
  Cluster machine = job.cluster;
  // Without a measured profile nobody knows the machine's peak: no MFU rather than a made-up one.
  if (machine.host_computes && job.profile_file.empty())
    machine.gpu.peak_bf16 = machine.gpu.peak_fp32 = FlopsPerSecond();
  const Report report = summarize_run(view, machine, record);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.report/1", to_json(report)));
  } else {
    write_answer(to_text(report, view, color_of(options.output.color)));
  }
  note(fmt::format("run folder {}", folder));
  return code;
}

}  // namespace foreshard
