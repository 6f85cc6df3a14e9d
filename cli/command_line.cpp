// The tree of verbs, which CLI11 holds. The value of an option is described by its type name: FILE
// completes to files, a|b to these words, MODEL and KEY=VALUE to what the program knows.
#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "models/zoo.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr const char* kDescription =
    "Foreshard forecasts step time and memory of FSDP training, and finds the plan to run.";
constexpr const char* kFooter =
    "A job is named by --plan FILE, or by --model, --cluster and --runtime; flags override the "
    "file.\n"
    "Exit codes: 0 ok, 1 internal error, 2 usage, 3 invalid input, 4 does not fit, "
    "5 outside tolerance, 6 missing capability, 130 interrupted.\n"
    "Example:\n  foreshard predict --model llama-3.1-8b --cluster 64xh100";

constexpr const char* kExportFormats = "fsdp2|accelerate|deepspeed|torchtitan|launch";

template <typename Value>
CLI::Option* option(CLI::App* verb, const char* name, Value& value, const char* type,
                    const char* help) {
  return verb->add_option(name, value, help)->type_name(type)->allow_extra_args(false);
}

class Tree {
 public:
  // `line` is what the user typed.
  explicit Tree(std::string line = "") : app_(kDescription, "foreshard"), line_(std::move(line)) {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.footer(kFooter);
    app_.set_version_flag("--version", std::string("foreshard ") + FORESHARD_VERSION,
                          "Print the version and exit");
    choice(app_.add_option("--color", color_, "Colours: on a terminal that takes them, or as said"),
           "auto|always|never");
    add_predict();
    add_schedule();
    add_explain();
    add_compare();
    add_search();
    add_fit();
    add_recommend();
    add_scale();
    add_calibrate();
    add_import();
    add_export();
    add_launch();
    add_validate();
    add_report();
    add_serve();
    add_accuracy();
    add_ask();
    add_diagnose();
    add_conform();
    add_models();
    add_machines();
    add_schema();
    add_doctor();
    add_completion();
  }

  CLI::App& app() { return app_; }
  std::function<ExitCode()> verb() const { return verb_; }
  const std::string& shell() const { return shell_; }  // of completion

 private:
  // The verb and its options, which are filled when it is parsed.
  template <typename Options>
  std::pair<CLI::App*, std::shared_ptr<Options>> add_verb(const char* name, const char* help,
                                                          const char* example,
                                                          ExitCode (*run)(const Options&)) {
    auto options = std::make_shared<Options>();
    CLI::App* verb = app_.add_subcommand(name, help);
    verb->footer(std::string("Example:\n  foreshard ") + example);
    verb->callback([this, run, options] {
      verb_ = [run, options, color = color_, line = line_] {
        if constexpr (requires { options->output; }) {
          options->output.color = color == "always"  ? ColorChoice::kAlways
                                  : color == "never" ? ColorChoice::kNever
                                                     : ColorChoice::kAuto;
          options->output.command = line;
        }
        return run(*options);
      };
    });
    return {verb, options};
  }

  // The value is one of the words, which are separated by |.
  static CLI::Option* choice(CLI::Option* option, const char* words) {
    const auto refusal = [words](std::string& text) {
      const std::vector<std::string> known = parts_of(words, "|");
      if (std::ranges::find(known, text) != known.end()) return std::string();
      const std::string near = nearest_spelling(text, known);
      return fmt::format("{} is not known; expected {}{}", quote(text), fmt::join(known, ", "),
                         near.empty() ? "" : fmt::format("; did you mean {}?", near));
    };
    return option->type_name(words)->check(CLI::Validator(refusal, ""));
  }

  static constexpr const char* kSetHelp = "Any key of the plan; may be repeated";

  static void add_json(CLI::App* verb, OutputOptions& output) {
    verb->add_flag_callback(
        "--json", [&output] { output.form = Form::kJson; }, "One JSON document instead of text");
  }

  static void add_capture(CLI::App* verb, JobOptions& job) {
    option(verb, "--capture", job.capture, "DIR",
           "Instead of a model and a plan: what foreshard-null wrote of a program");
  }

  void add_predict() {
    auto [verb, o] =
        add_verb("predict", "Step time and memory of a job",
                 "predict --model llama-3.1-8b --cluster 64xh100 --set mesh.shard=8", run_predict);
    add_job_flags(verb, o->job, kSetHelp);
    add_capture(verb, o->job);
    add_json(verb, o->output);
    verb->add_flag("--paced", o->job.paced,
                   "Of one GPU that runs rank 0 by itself (foreshard-exec run --paced): it waits "
                   "for no slower one");
    verb->add_flag("--ask", o->asks,
                   "Instead: which fact narrows this forecast most (foreshard ask)");
    option(verb, "--trace", o->trace, "FILE", "Also write a Chrome trace, for ui.perfetto.dev");
    option(verb, "--csv", o->csv, "FILE", "Also write every event with its times");
    option(verb, "--memory-snapshot", o->memory_snapshot, "FILE",
           "Also write the allocator's blocks, for pytorch.org/memory_viz");
    option(verb, "--html", o->html, "FILE", "Also write a report for browsers, in one file");
  }

  void add_schedule() {
    auto [verb, o] = add_verb("schedule", "Every event of the step in the order the host issues it",
                              "schedule --model gpt2 --cluster 8xa100 --csv", run_schedule);
    add_job_flags(verb, o->job, kSetHelp);
    add_capture(verb, o->job);
    o->job.profile_need = ProfileNeed::kOptional;
    verb->add_flag_callback(
        "--csv", [] {}, "As CSV, which is also the default");
    option(verb, "--out", o->out, "FILE", "Write there instead of to standard output");
  }

  void add_explain() {
    auto [verb, o] = add_verb("explain", "Where the time and the memory of a step go, and why",
                              "explain --model llama-3.1-8b --cluster 64xh100\n"
                              "  foreshard explain --run rank-0.trace.json.gz",
                              run_explain);
    add_job_flags(verb, o->job, kSetHelp);
    add_capture(verb, o->job);
    option(verb, "--run", o->run, "DIR|TRACE",
           "Why this run is slower than forecast: as for validate. Of a trace of torch.profiler "
           "alone, the job is inferred, and three settings to change are named");
    add_json(verb, o->output);
  }

  void add_compare() {
    auto [verb, o] =
        add_verb("compare", "Two plans side by side: two files, or one job and what changes in it",
                 "compare --model llama-3.1-8b --cluster 64xh100 --with mesh.shard=8", run_compare);
    add_job_flags(verb, o->job, "Any key of both plans; may be repeated");
    verb->add_option("plans", o->plans, "Two plan files")->type_name("FILE")->expected(0, 2);
    option(verb, "--with", o->with, "KEY=VALUE",
           "What the second plan has instead; may be repeated");
    verb->add_option("--runtimes", o->runtimes,
                     "The job under several runtimes: fsdp2,fsdp1,zero3,ddp")
        ->type_name("LIST")
        ->delimiter(',');
    add_json(verb, o->output);
    verb->parse_complete_callback([o = o] {
      if (!o->runtimes.empty()) {
        if (o->plans.empty() && o->with.empty()) return;
        throw CLI::ValidationError("--runtimes", "does not go together with --with or plan files");
      }
      if (o->plans.size() == 1) {
        throw CLI::ValidationError("one plan file is there", "expected two, or --with KEY=VALUE");
      }
      if (o->plans.empty() && o->with.empty()) {
        throw CLI::ValidationError("nothing to compare",
                                   "expected two plan files, --with KEY=VALUE or --runtimes LIST");
      }
      if (!o->plans.empty() && (o->job.plan || !o->with.empty())) {
        throw CLI::ValidationError(o->job.plan ? "--plan" : "--with",
                                   "does not go together with two plan files");
      }
    });
  }

  void add_search() {
    auto [verb, o] = add_verb(
        "search", "The fastest plan that fits: shard group, prefetch, recompute, micro-batch, ...",
        "search --model llama-3.1-8b --cluster 64xh100 --global-batch 128 --fix recompute=none",
        run_search);
    add_job_flags(verb, o->job, "Any key of the plan, which then does not vary; may be repeated");
    option(verb, "--fix", o->fix, "KEY=VALUE", "The same as --set");
    option(verb, "--global-batch", o->global_batch, "N",
           "Sequences per step over all ranks; default: those of the plan");
    option(verb, "--max-memory", o->max_memory, "RATIO", "Of the GPU's that a plan may take")
        ->check(CLI::Range(0.01, 1.0))
        ->capture_default_str();
    add_confidence(verb, o->confidence, "That the plan fits, at the least");
    choice(verb->add_option("--objective", o->objective, "What is best; default: time"),
           "time|memory|cost");
    verb->add_flag("--robust", o->robust, "By the high end of the step's interval");
    verb->add_flag("--deep", o->deep,
                   "Further knobs, and reshard per unit and recompute per layer");
    add_vary(verb, o->vary);
    option(verb, "--resume", o->resume, "FILE",
           "Keep what was judged there, and go on where an earlier search was stopped");
    add_threads(verb, o->threads, "Default: all cores; the answer is the same");
    option(verb, "--out", o->out, "FILE", "Also write the best plan, as YAML");
    option(verb, "--html", o->html, "FILE",
           "Also write a report for browsers: every cell of the heatmap with its timeline");
    add_json(verb, o->output);
  }

  void add_fit() {
    auto [verb, o] = add_verb(
        "fit", "The fastest plan within a budget of memory, and what more or less of it would do",
        "fit --model llama-3.1-8b --cluster 8xh100 --budget 60GiB", run_fit);
    add_job_flags(verb, o->job, "Any key of the plan, which then does not vary; may be repeated");
    option(verb, "--budget", o->budget, "BYTES", "Of each GPU's memory, with its unit: 60GiB")
        ->required();
    add_confidence(verb, o->confidence, "That a plan fits, at the least");
    add_threads(verb, o->threads, "Default: all cores; the answer is the same");
    option(verb, "--out", o->out, "FILE", "Also write the best plan, as YAML");
    add_json(verb, o->output);
  }

  void add_recommend() {
    auto [verb, o] = add_verb(
        "recommend", "What to buy or rent: machine, GPUs and plan for so many tokens in time",
        "recommend --model llama-3.1-8b --tokens 1T --deadline 30d --budget 2M --cluster h100",
        run_recommend);
    add_model_flags(verb, o->job, "Any key of the plan, which then does not vary; may be repeated");
    option(verb, "--cluster", o->clusters, "CLUSTER",
           "A candidate: 64xh100, h100 in likely sizes, a cluster file; may be repeated; default: "
           "the whole catalogue");
    option(verb, "--gpus", o->gpus, "LIST", "Sizes to look at of machines without one: 64,128,256");
    option(verb, "--tokens", o->tokens, "AMOUNT", "To train on: 1T, 300B")->required();
    option(verb, "--deadline", o->deadline, "TIME",
           "Wall clock to finish in: 30d, 4w; a bare number is days");
    option(verb, "--budget", o->budget, "USD", "For all GPU-hours: 2M");
    CLI::Option* sequences = option(verb, "--global-batch", o->global_batch, "N",
                                    "Sequences per step over all ranks, at most");
    option(verb, "--batch-tokens", o->batch_tokens, "AMOUNT",
           "The same in tokens; default: 4 Mi tokens")
        ->excludes(sequences);
    add_vary(verb, o->vary);
    option(verb, "--prices", o->prices, "FILE",
           "CSV machine,usd_per_gpu_hour[,low,high,date,source] instead of the catalogue's prices");
    option(verb, "--failures", o->failures_per_gpu_day, "RATE",
           "Failures per GPU and day that stop the job; default: published, 4.7e-4")
        ->check(CLI::Range(0.0, 1000.0));
    option(verb, "--restart", o->restart, "TIME",
           "From a failure until the job runs again, with its unit; default: 10min");
    option(verb, "--checkpoint-rate", o->checkpoint_rate, "RATE",
           "Of one GPU to storage; default: 150MB/s");
    option(verb, "--evaluate-every", o->evaluate_every, "STEPS", "Default: no evaluation")
        ->check(CLI::Range(1, 1'000'000'000));
    option(verb, "--evaluate-sequences", o->evaluate_sequences, "N", "Of each; default: 1024")
        ->check(CLI::Range(1, 1'000'000'000));
    option(verb, "--pue", o->pue, "RATIO", "Power of the building over that of its servers")
        ->check(CLI::Range(1.0, 10.0));
    add_confidence(verb, o->confidence,
                   "That a choice fits, is in time and within the budget, at the least");
    verb->add_flag("--what-if", o->what_if,
                   "Also which property of the first choice is worth most");
    add_threads(verb, o->threads, "Default: all cores; the answer is the same");
    option(verb, "--html", o->html, "FILE",
           "Also write a report for browsers, in one file, with what --what-if says");
    add_json(verb, o->output);
  }

  void add_scale() {
    auto [verb, o] =
        add_verb("scale", "How a job scales with the number of GPUs, each size with its best plan",
                 "scale --model llama-3.1-8b --cluster h100 --gpus 8,64,512", run_scale);
    add_model_flags(verb, o->job, "Any key of the plan, which then does not vary; may be repeated");
    option(verb, "--cluster", o->cluster, "CLUSTER", "A machine such as h100")->required();
    option(verb, "--gpus", o->gpus, "LIST", "Sizes; default: eight, doubling from one node");
    CLI::Option* sequences = option(verb, "--global-batch", o->global_batch, "N",
                                    "Strong scaling: sequences per step over all ranks, at most");
    CLI::Option* tokens = option(verb, "--batch-tokens", o->batch_tokens, "AMOUNT",
                                 "The same in tokens; default: 4 Mi tokens")
                              ->excludes(sequences);
    option(verb, "--weak", o->weak, "N", "Weak scaling: N sequences of every GPU")
        ->check(CLI::Range(1, 1 << 20))
        ->excludes(sequences)
        ->excludes(tokens);
    add_vary(verb, o->vary);
    option(verb, "--prices", o->prices, "FILE", "As of recommend");
    add_confidence(verb, o->confidence, "That a plan fits, at the least");
    verb->add_flag("--csv", o->csv, "A table of the points instead of text");
    add_threads(verb, o->threads, "Default: all cores; the answer is the same");
    option(verb, "--html", o->html, "FILE", "Also write a report for browsers, in one file");
    add_json(verb, o->output);
  }

  void add_calibrate() {
    auto [verb, o] = add_verb(
        "calibrate",
        "A profile from measurements: of this machine, of a GPU from products, or of a cluster's "
        "collectives from logs of nccl-tests",
        "calibrate raw.json", run_calibrate);
    verb->add_option("raw", o->files,
                     "What foreshard-exec measure wrote, CSV of products, or logs of nccl-tests")
        ->type_name("FILE")
        ->required();
    option(verb, "--machine", o->machine, "KEY", "Of logs that do not name the GPU");
    option(verb, "--out", o->out, "FILE", "Write there instead of to the folder of profiles");
    add_json(verb, o->output);
  }

  void add_import() {
    auto [verb, o] = add_verb(
        "import",
        "A plan from settings of TorchTitan, Accelerate or DeepSpeed, config.json and "
        "weights; a cluster file from nvidia-smi (-q, topo -m), NCCL's topology or Slurm's",
        "import deepspeed.json --model llama-3.1-8b --cluster 64xh100 --out plan.yaml",
        run_any_import);
    verb->add_option("files", o->files, "Several of one job, or of one cluster, are joined")
        ->type_name("FILE")
        ->required();
    option(verb, "--machine", o->machine, "KEY",
           "Machine of the catalogue, for what they leave open");
    option(verb, "--nodes", o->nodes, "N", "How many nodes; default: as the files say, or one")
        ->check(CLI::Range(1, 262144));
    option(verb, "--nodelist", o->nodelist, "HOSTS",
           "Nodes of the allocation, as SLURM_JOB_NODELIST has them: \"n[1-5],m3\"");
    option(verb, "--model", o->model, "MODEL", "Of settings that do not name it");
    option(verb, "--cluster", o->cluster, "CLUSTER", "The plan's, which settings do not name");
    option(verb, "--out", o->out, "FILE",
           "Write the plan or cluster file there; of a capture, the model");
    option(verb, "--plan", o->plan, "FILE", "Of a capture (foreshard-null): write its plan there");
    add_json(verb, o->output);
  }

  void add_export() {
    auto [verb, o] = add_verb(
        "export", "The plan as a file that others run: a PyTorch script, a trainer's settings, ...",
        "export --plan plan.yaml --to fsdp2 --out train.py", run_export);
    add_job_flags(verb, o->job, kSetHelp);
    o->job.profile_need = ProfileNeed::kOptional;
    choice(verb->add_option("--to", o->to, "Whose file")->required(), kExportFormats);
    option(verb, "--out", o->out, "FILE", "Write there instead of to standard output");
    option(verb, "--ledger", o->ledger, "FILE",
           "What became of the plan's keys goes there instead of to standard error");
    add_launcher(verb, *o);
    add_json(verb, o->output);
  }

  void add_launch() {
    auto [verb, o] =
        add_verb("launch", "The line that starts the plan's ranks",
                 "launch --plan plan.yaml --launcher slurm --program train.py", run_launch);
    add_job_flags(verb, o->job, kSetHelp);
    o->job.profile_need = ProfileNeed::kOptional;
    add_launcher(verb, *o);
    add_json(verb, o->output);
  }

  template <typename Count>
  static void add_threads(CLI::App* verb, Count& threads, const char* help) {
    option(verb, "--threads", threads, "N", help)->check(CLI::Range(1, 4096));
  }

  static void add_confidence(CLI::App* verb, double& confidence, const char* help) {
    option(verb, "--confidence", confidence, "RATIO", help)
        ->check(CLI::Range(0.01, 0.9999))
        ->capture_default_str();
  }

  static void add_vary(CLI::App* verb, std::vector<std::string>& keys) {
    option(verb, "--vary", keys, "KEY",
           "A further key that varies, or axes: mesh.tp, mesh.cp, mesh.ep, mesh.etp; may be "
           "repeated; axes vary by themselves where no plan holds without, mesh.pp (with "
           "pipeline.schedule and .stages_per_rank) where it is named");
  }

  static void add_launcher(CLI::App* verb, ExportOptions& o) {
    o.launcher = "torchrun";
    choice(
        verb->add_option("--launcher", o.launcher, "Who starts the ranks")->capture_default_str(),
        "torchrun|slurm|openmpi");
    option(verb, "--program", o.program, "FILE",
           "What the ranks run: a Python script; default: train.py, or foreshard-exec for native");
  }

  void add_validate() {
    auto [verb, o] =
        add_verb("validate", "A forecast against a run of the same plan, event by event",
                 "validate --plan plan.yaml --run runs/first", run_validate);
    add_job_flags(verb, o->job, kSetHelp);
    option(verb, "--run", o->run, "DIR|TRACE",
           "What foreshard-exec run --out wrote, a trace of torch.profiler, or a folder of traces");
    const auto tolerance = [&](const char* name, double& value, const char* help) {
      option(verb, name, value, "RATIO", help)->check(CLI::Range(0.0, 1e6))->capture_default_str();
    };
    tolerance("--max-step-error", o->max_step_error, "Of step time, for exit code 0");
    tolerance("--max-exposed-error", o->max_exposed_error,
              "Of exposed communication, as a share of the step");
    tolerance("--max-memory-error", o->max_memory_error, "Of peak memory");
    option(verb, "--trace", o->trace, "FILE",
           "Beside --run: also write both timelines as one Chrome trace; alone: the trace to read");
    verb->add_flag_callback(
        "--no-history", [o = o] { o->history = false; },
        "Do not add it to the history file in the user's data folder (accuracy --history)");
    option(verb, "--html", o->html, "FILE",
           "Also write a report for browsers: forecast and run side by side");
    add_json(verb, o->output);
  }

  void add_report() {
    auto [verb, o] = add_verb(
        "report", "Forecast, search, scaling and what it rests on, for browsers, in one HTML file",
        "report --model llama-3.1-8b --cluster 64xh100 --html report.html", run_report);
    add_job_flags(verb, o->job, "Any key of the plan, which the search then does not vary");
    add_capture(verb, o->job);
    verb->add_option("answer", o->answer,
                     "Instead of a job: what a verb wrote with --json, or a run folder")
        ->type_name("FILE");
    option(verb, "--run", o->run, "DIR|TRACE", "A run of the plan, to stand beside: as validate");
    option(verb, "--html", o->html, "FILE", "Write there instead of to standard output");
    add_threads(verb, o->threads, "Of the search; default: all cores");
    verb->add_flag_callback(
        "--json", [o = o] { o->output.form = Form::kJson; },
        "The document that the page shows, instead of the page");
  }

  void add_serve() {
    auto [verb, o] = add_verb(
        "serve", "What to buy, how to plan, why it is slow: in a browser; and answers as JSON",
        "serve --port 8080", run_serve);
    option(verb, "--port", o->port, "N", "0: any that is free")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    option(verb, "--address", o->address, "ADDRESS",
           "To be asked from other machines: one of this machine's, or 0.0.0.0")
        ->capture_default_str();
    option(verb, "--host", o->hosts, "NAME",
           "A name of this machine to be asked by, beside localhost; may be repeated");
    verb->add_flag("--no-token", o->no_token, "Answer without the token of the printed link");
    add_threads(verb, o->threads, "Of a search; default: all cores");
  }

  void add_accuracy() {
    auto [verb, o] = add_verb("accuracy", "How far forecasts are from measurements",
                              "accuracy calibration/published/training_steps.csv", run_accuracy);
    CLI::Option* files =
        verb->add_option("files", o->files, "Tables of measurements; their columns decide the kind")
            ->type_name("FILE");
    verb->add_flag("--history", o->history, "Of every foreshard validate on this machine")
        ->excludes(files);
    option(verb, "--blank", o->blank, "COLUMNS",
           "Forecast as if these columns were not published; details: stack, attention_kernel, "
           "norm_impl, rope_impl, residual_dtype, loss_impl, train_metrics, optimizer_impl")
        ->delimiter(',');
    option(verb, "--anchor", o->anchor, "K",
           "K rows of each group, the surest forecasts, scale the others like them")
        ->check(CLI::Range(0, 1000));
    option(verb, "--evidence", o->evidence, "FILE",
           "Write what a table of steps says about latent factors, instead of scores");
    option(verb, "--freeze", o->freeze, "FILE",
           "Also write the forecasts without measurements, with a hash");
    option(verb, "--frozen", o->frozen, "FILE", "Compare with the forecasts of that file");
    option(verb, "--max-median-error", o->max_median_error, "RATIO", "For exit code 0")
        ->check(CLI::NonNegativeNumber);
    option(verb, "--max-p90-error", o->max_p90_error, "RATIO", "For exit code 0")
        ->check(CLI::NonNegativeNumber);
    option(verb, "--html", o->html, "FILE", "Also write a report for browsers");
    add_json(verb, o->output);
  }

  void add_ask() {
    auto [verb, o] =
        add_verb("ask", "Which fact narrows a forecast most per minute that it takes to find out",
                 "ask --model llama-3.1-8b --cluster 64xh100", run_ask);
    add_job_flags(verb, o->job, kSetHelp);
    verb->add_option("file", o->job.plan, "A plan: the same as --plan")->type_name("FILE");
    add_json(verb, o->output);
  }

  void add_diagnose() {
    auto [verb, o] = add_verb(
        "diagnose", "Why a job is slower than its forecast, or needs more memory: causes and tests",
        "diagnose --plan plan.yaml --measured tokens/s=3120 --log train.log", run_diagnose);
    add_job_flags(verb, o->job, kSetHelp);
    option(verb, "--measured", o->measured, "KEY=VALUE",
           "step=2.1s, tokens/s=99840 (of all GPUs), tokens/s/gpu=3120, memory=61GiB, "
           "reserved=70GiB, retries=4; of a trace compute, communication, exposed, waiting, idle, "
           "data; may be repeated");
    option(
        verb, "--log", o->log, "FILE",
        "Of torchtitan, transformers' Trainer, Accelerate, Megatron-LM or nanotron, or a message "
        "that memory is at an end");
    option(verb, "--run", o->run, "DIR|TRACE", "A trace or a run of the plan: as for validate");
    option(verb, "--snapshot", o->snapshots, "FILE",
           "A memory snapshot (torch.cuda.memory._dump_snapshot); may be repeated: of later steps");
    option(verb, "--threads", o->threads, "FILE",
           "Score the diagnosis on published threads whose cause was found");
    add_json(verb, o->output);
  }

  void add_conform() {
    auto [verb, o] = add_verb(
        "conform", "Order, bytes and memory of forecasts against recordings of the real library",
        "conform tests/recordings", run_conform);
    verb->add_option("folders", o->folders, "Folders with index.csv, or above such folders")
        ->type_name("DIR")
        ->required();
    option(verb, "--only", o->only, "ID", "This configuration alone; may be repeated");
    option(verb, "--verbose", o->verbose, "N", "Show the differences of so many configurations")
        ->check(CLI::Range(0, 1'000'000))
        ->capture_default_str();
    add_json(verb, o->output);
  }

  void add_models() {
    auto [verb, o] =
        add_verb("models", "The models known by name, those of a family, or one in full",
                 "models qwen3", run_models);
    CLI::Option* name =
        verb->add_option("model", o->name,
                         "Name or part of one, org/name, config.json or its folder, or model.yaml")
            ->type_name("MODEL");
    verb->add_flag("--yaml", o->as_yaml, "Write the model as YAML, to change and give to --model")
        ->needs(name);
    add_json(verb, o->output);
  }

  void add_machines() {
    auto [verb, o] =
        add_verb("machines", "The GPUs and nodes known by name, or one with its sources",
                 "machines h100-sxm", run_machines);
    verb->add_option("machine", o->name, "Name, cluster such as 16xh100, or cluster file")
        ->type_name("CLUSTER");
    verb->add_flag("--dot", o->dot, "The topology as Graphviz");
    option(verb, "--topology", o->topology, "FILE",
           "Draw a cluster file, or what other tools say of a cluster, with the load of its links");
    add_json(verb, o->output);
  }

  void add_schema() {
    auto [verb, o] =
        add_verb("schema", "The JSON Schema of a kind of file", "schema plan", run_schema);
    choice(verb->add_option("kind", o->name, "Which")->required(),
           "plan|cluster|model|report|explain|compare|page|search|fit|recommend|scale|calibrate|"
           "export|"
           "import|launch|validation|collectives|accuracy|diagnosis|questions|forecasts|"
           "conformance|models|"
           "machines|doctor");
  }

  void add_doctor() {
    auto [verb, o] = add_verb("doctor", "What this installation can do", "doctor", run_doctor);
    add_json(verb, o->output);
  }

  void add_completion() {
    CLI::App* verb = app_.add_subcommand("completion", "A completion script for a shell");
    verb->footer("Example:\n  source <(foreshard completion bash)");
    choice(verb->add_option("shell", shell_, "Which; json is the tree of verbs itself")->required(),
           "bash|zsh|fish|json");
  }

  CLI::App app_;
  std::string line_;
  std::string color_ = "auto";
  std::function<ExitCode()> verb_;
  std::string shell_;
};

// Every runtime, without and with its newest version.
std::vector<std::string> runtime_words() {
  std::vector<std::string> words, versions;
  for (int kind = 0; kind <= static_cast<int>(RuntimeKind::kZero3); ++kind) {
    const auto runtime = static_cast<RuntimeKind>(kind);
    words.emplace_back(to_string(runtime));
    versions.push_back(fmt::format("{}@{}", to_string(runtime), newest_version(runtime)));
  }
  words.insert(words.end(), versions.begin(), versions.end());
  return words;
}

std::string runtimes_help() {
  std::vector<std::string> words = runtime_words();
  words.resize(words.size() / 2);
  return fmt::format("Who runs the plan: {}; with a version: fsdp2@2.11", fmt::join(words, ", "));
}

}  // namespace

void add_job_flags(CLI::App* verb, JobOptions& job, const char* set_help) {
  add_model_flags(verb, job, set_help);
  option(verb, "--cluster", job.cluster, "CLUSTER",
         "GPUs and their kind, such as 64xh100 (foreshard machines), a cluster file, or local");
}

void add_model_flags(CLI::App* verb, JobOptions& job, const char* set_help) {
  option(verb, "--plan", job.plan, "FILE", "Plan as YAML (foreshard schema plan)");
  option(verb, "--model", job.model, "MODEL",
         "By name (foreshard models) or org/name, a Hugging Face config.json or its folder, or a "
         "model.yaml");
  option(verb, "--runtime", job.runtime, "RUNTIME", runtimes_help().c_str());
  option(verb, "--sequence", job.sequence, "N", "Tokens per sequence: 8192, 8k");
  option(verb, "--micro-batch", job.micro_batch, "N", "Sequences per rank and micro-batch");
  option(verb, "--accumulation", job.accumulation, "N", "Micro-batches per step");
  job.assignments.resize(1);
  option(verb, "--set", job.assignments[0], "KEY=VALUE", set_help);
  option(verb, "--profile", job.profile, "FILE",
         "Measured costs of the machine (foreshard calibrate); default: shipped, or the newest");
  verb->add_flag("--accept-profile", job.accept_profile,
                 "Take a --profile of another GPU than the cluster's; the report says so");
}

namespace {

ValueHint hint_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0 || option.get_type_size_max() == 0) return {};
  const bool files = type == "FILE" || type == "DIR" || type == "CLUSTER";
  ValueHint hint{ValueHint::Kind::kAny, files, {}};
  if (type == "MODEL") {
    hint.files = true;
    hint.words = zoo_names();
  } else if (type == "CLUSTER") {
    // Nodes of every machine and instance type, ready to be changed.
    for (const std::string& word : cluster_words()) hint.words.push_back("8x" + word);
    hint.words.emplace_back("local");
  } else if (type == "RUNTIME") {
    hint.words = runtime_words();
  } else if (type == "KEY=VALUE") {
    for (const std::string& key : plan_keys()) hint.words.push_back(key + "=");
  } else if (type.find('|') != std::string::npos) {
    hint.words = parts_of(type, "|");
  }
  if (!hint.words.empty()) hint.kind = ValueHint::Kind::kWords;
  return hint;
}

std::vector<CommandOption> options_of(CLI::App& app) {
  std::vector<CommandOption> options;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    const ValueHint hint = hint_of(*option);
    const bool is_switch = hint.kind == ValueHint::Kind::kNone;
    options.push_back({names_of(*option), option->get_description(), hint,
                       is_switch ? "" : option->get_type_name()});
  }
  return options;
}

}  // namespace

CommandTree command_tree() {
  Tree tree;
  CommandTree data{options_of(tree.app()), {}};
  for (CLI::App* verb : verbs_of(tree.app())) {
    Command command{verb->get_name(), verb->get_description(), options_of(*verb), {}};
    for (const CLI::Option* option : verb->get_options()) {
      if (option->get_positional()) command.argument = hint_of(*option);
    }
    data.commands.push_back(std::move(command));
  }
  return data;
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  Tree tree(command_text(arguments));
  CommandLine result = parse(tree.app(), std::move(arguments));
  if (!result.text.empty() || !result.usage_error.empty()) return result;
  if (!tree.shell().empty()) {
    result.text = completion_script(command_tree(), tree.shell());
  } else {
    result.verb = tree.verb();
  }
  return result;
}

}  // namespace foreshard
