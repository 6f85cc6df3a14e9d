// CLI11 parses. A rank of --spawn gets the same words without --spawn and its number.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/exec/exec_options.h"

namespace foreshard {
namespace {

constexpr const char* kDescription =
    "foreshard-exec runs a plan for real and measures this machine: the engine of Foreshard.";
constexpr const char* kFooter =
    "Ranks are found in the environment of torchrun, Slurm, Open MPI or PMI; --spawn N starts "
    "them.\n"
    "Exit codes: 0 ok, 1 internal error, 2 usage, 3 invalid input, 4 does not fit, "
    "6 missing capability, 7 launch or lost rank, 8 no longer finite, 130 interrupted.\n"
    "Example:\n  foreshard-exec run --model models/examples/llama-5m.json --spawn 2 --data "
    "README.md "
    "--steps 20";

std::vector<std::string> without_spawn(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--spawn") {
      ++i;
    } else if (!arguments[i].starts_with("--spawn=")) {
      rest.push_back(arguments[i]);
    }
  }
  return rest;
}

class ExecTree {
 public:
  explicit ExecTree(const std::vector<std::string>& arguments)
      : app_(kDescription, "foreshard-exec"), arguments_(arguments) {
    app_.require_subcommand(1);
    app_.footer(kFooter);
    app_.set_version_flag("--version", std::string("foreshard-exec ") + FORESHARD_VERSION,
                          "Print the version and exit");
    add_run();
    add_measure();
    add_self_check();
  }

  CLI::App& app() { return app_; }
  std::function<ExitCode()> verb() const { return verb_; }

 private:
  template <typename Options>
  CLI::App* add_verb(const char* name, const char* help, const char* example,
                     ExitCode (*run)(const Options&), const std::shared_ptr<Options>& options) {
    CLI::App* verb = app_.add_subcommand(name, help);
    verb->footer(std::string("Example:\n  foreshard-exec ") + example);
    verb->add_option("--spawn", options->spawn.ranks, "Start so many ranks on this machine")
        ->check(CLI::Range(1, 1024));
    verb->add_option("--threads", options->threads,
                     "Compute threads of a rank; default: OMP_NUM_THREADS, else 1")
        ->check(CLI::Range(1, 1024));
    verb->add_flag_callback(
        "--json", [options] { options->output.form = Form::kJson; },
        "One JSON document instead of text");
    options->spawn.arguments = without_spawn(arguments_);
    options->command = fmt::format("foreshard-exec {}", fmt::join(arguments_, " "));
    verb->callback([this, run, options] { verb_ = [run, options] { return run(*options); }; });
    return verb;
  }

  void add_run() {
    auto o = std::make_shared<RunCommandOptions>();
    CLI::App* verb =
        add_verb("run", "Train with a plan and record every event",
                 "run --plan plan.yaml --spawn 2 --data texts/ --steps 100", run_run, o);
    add_job_flags(verb, o->job, "Any key of the plan; may be repeated");
    verb->add_option("--data", o->data, "Text file, folder of texts, or .bin of token ids")
        ->type_name("PATH")
        ->required();
    verb->add_option("--tokens", o->tokens, "How the data is read: auto, bytes, u16 or u32");
    verb->add_option("--steps", o->steps, "Steps in all; a resumed run goes on to it")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))
        ->required();
    verb->add_option("--checkpoint", o->checkpoint, "Save checkpoints there, one at the end")
        ->type_name("DIR");
    verb->add_option("--checkpoint-every", o->checkpoint_every, "Also every N steps")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
    verb->add_option("--checkpoint-keep", o->checkpoint_keep,
                     "Newest checkpoints that stay; 0: all")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
        ->capture_default_str();
    verb->add_option("--resume", o->resume,
                     "Go on from a checkpoint, or from the newest of a folder")
        ->type_name("DIR");
    verb->add_option("--accept-changes", o->accept_changes,
                     "Go on although these change the numbers: data,seed,optimizer.epsilon")
        ->type_name("KEYS");
    verb->add_option("--grace", o->grace,
                     "Time to save and end after SIGINT, SIGTERM or SIGHUP; then at once")
        ->type_name("TIME")
        ->capture_default_str();
    verb->add_option("--out", o->out, "Run folder; default: runs/<model>-<time>")->type_name("DIR");
    verb->add_option("--record", o->recorded_steps, "Steps whose events are kept, the last ones")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000}))
        ->capture_default_str();
    verb->add_option("--trace", o->trace, "Write the events of a measured step (Chrome trace)")
        ->type_name("FILE");
    verb->add_option("--kineto", o->kineto,
                     "Write the last two steps as LibTorch's profiler sees them: every kernel")
        ->type_name("FILE");
    verb->add_option("--device", o->device,
                     "auto, cuda, cpu, or standin (a GPU's plan on the CPU, to try things out)")
        ->check(CLI::IsMember({"auto", "cuda", "cpu", "standin"}))
        ->capture_default_str();
    verb->add_flag("--paced", o->paced,
                   "Run rank 0 alone: collectives move its bytes and last as long as forecast");
    verb->add_option("--pace", o->pace,
                     "Factor on those times; 0: collectives are as fast as their bytes move")
        ->check(CLI::Range(0.0, 1000.0))
        ->capture_default_str();
    verb->add_flag("--graph", o->graph,
                   "Record a step on the GPU and replay it (a CUDA graph): no host time per event");
    verb->add_flag("--debug", o->debug, "Fill free gradient memory with NaN and check for it");
  }

  void add_measure() {
    auto o = std::make_shared<MeasureOptions>();
    CLI::App* verb =
        add_verb("measure", "Measure this machine, for foreshard calibrate",
                 "measure --model models/examples/llama-5m.json --out raw.json", run_measure, o);
    verb->add_option("--model", o->models, "Whose shapes are measured; may be repeated")
        ->type_name("MODEL");
    verb->add_option("--tokens", o->sequences,
                     "SEQUENCExMICRO_BATCH, such as 256x4; may be repeated");
    verb->add_option("--dtype", o->dtype, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
    verb->add_option("--seconds", o->seconds, "Time per measurement and repeat")
        ->check(CLI::Range(0.001, 60.0))
        ->capture_default_str();
    verb->add_option("--device", o->device,
                     "cpu, cuda (the GPU instead of CPU ranks), or standin (its stand-in)")
        ->check(CLI::IsMember({"cpu", "cuda", "standin"}))
        ->capture_default_str();
    verb->add_option("--budget", o->budget_s, "Seconds for all measurements of a GPU")
        ->check(CLI::Range(1.0, 36000.0))
        ->capture_default_str();
    verb->add_option("--out", o->out, "Write there instead of to standard output")
        ->type_name("FILE");
  }

  void add_self_check() {
    auto o = std::make_shared<SelfCheckOptions>();
    CLI::App* verb = app_.add_subcommand("self-check", "What of the engine works on this GPU");
    verb->footer("Example:\n  foreshard-exec self-check --out self_check.json");
    verb->add_option("--device", o->device, "cuda, or standin (the CPU in its place)")
        ->check(CLI::IsMember({"cuda", "standin"}))
        ->capture_default_str();
    verb->add_option("--gpu", o->index, "Number of the GPU")->check(CLI::Range(0, 63));
    verb->add_option("--skip", o->skip, "Leave a check out; may be repeated")->type_name("NAME");
    verb->add_option("--out", o->out, "Write one JSON document there")->type_name("FILE");
    verb->add_flag_callback(
        "--json", [o] { o->output.form = Form::kJson; }, "The same on standard output");
    o->command = fmt::format("foreshard-exec {}", fmt::join(arguments_, " "));
    verb->callback([this, o] { verb_ = [o] { return run_self_check(*o); }; });
  }

  CLI::App app_;
  const std::vector<std::string>& arguments_;
  std::function<ExitCode()> verb_;
};

}  // namespace

CommandLine parse_exec_command_line(const std::vector<std::string>& arguments) {
  ExecTree tree(arguments);
  CommandLine result = parse(tree.app(), arguments);
  if (result.text.empty() && result.usage_error.empty()) result.verb = tree.verb();
  return result;
}

}  // namespace foreshard
