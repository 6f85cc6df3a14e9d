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
    "Example:\n  foreshard-exec run --model models/examples/llama-5m.json --spawn 2 --data README.md --steps 20";

std::vector<std::string> without_spawn(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i] == "--spawn") ++i;
    else if (!arguments[i].starts_with("--spawn=")) rest.push_back(arguments[i]);
  return rest;
}

class ExecTree {
 public:
  explicit ExecTree(const std::vector<std::string>& arguments)
      : app_(kDescription, "foreshard-exec"), arguments_(arguments) {
    app_.require_subcommand(1);
    app_.footer(kFooter);
    app_.set_version_flag(
        "--version", std::string("foreshard-exec ") + FORESHARD_VERSION, "Print the version and exit");
    add_run();
    add_measure();
    add_self_check();
  }

  CLI::App& app() { return app_; }
  std::function<ExitCode()> verb() const { return verb_; }

 private:
  template <typename Options>
  CLI::App* add_verb(const char* name, ExitCode (*run)(const Options&), const std::shared_ptr<Options>& options) {
    CLI::App* verb = add_subcommand(app_, name);
    add(verb, "--spawn", options->spawn.ranks)->check(CLI::Range(1, 1024));
    add(verb, "--threads", options->threads)->check(CLI::Range(1, 1024));
    options->spawn.arguments = without_spawn(arguments_);
    options->command = fmt::format("foreshard-exec {}", fmt::join(arguments_, " "));
    verb->callback([this, run, options] { verb_ = [run, options] { return run(*options); }; });
    return verb;
  }

  void add_run() {
    auto o = std::make_shared<RunCommandOptions>();
    CLI::App* verb = add_verb("run", run_run, o);
    add_job_flags(verb, o->job);
    add(verb, "--data", o->data)->required();
    add(verb, "--tokens", o->tokens);
    add(verb, "--steps", o->steps)->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))->required();
    add(verb, "--checkpoint", o->checkpoint);
    add(verb, "--checkpoint-every", o->checkpoint_every)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
    add(verb, "--checkpoint-keep", o->checkpoint_keep)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
        ->capture_default_str();
    add(verb, "--resume", o->resume);
    add(verb, "--accept-changes", o->accept_changes);
    add(verb, "--grace", o->grace)->capture_default_str();
    add(verb, "--out", o->out);
    add(verb, "--record", o->recorded_steps)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000}))
        ->capture_default_str();
    add(verb, "--trace", o->trace);
    add(verb, "--kineto", o->kineto);
    add(verb, "--device", o->device)->check(CLI::IsMember({"auto", "cuda", "cpu", "standin"}))->capture_default_str();
    flag(verb, "--paced", o->paced);
    add(verb, "--pace", o->pace)->check(CLI::Range(0.0, 1000.0))->capture_default_str();
    flag(verb, "--graph", o->graph);
    flag(verb, "--debug", o->debug);
    flag(verb, "--json", [o] { o->output.form = Form::kJson; });
  }

  void add_measure() {
    auto o = std::make_shared<MeasureOptions>();
    CLI::App* verb = add_verb("measure", run_measure, o);
    add(verb, "--model", o->models);
    add(verb, "--tokens", o->sequences);
    add(verb, "--dtype", o->dtype)->check(CLI::IsMember({"fp32", "bf16"}));
    add(verb, "--seconds", o->seconds)->check(CLI::Range(0.001, 60.0))->capture_default_str();
    add(verb, "--device", o->device)->check(CLI::IsMember({"cpu", "cuda", "standin"}))->capture_default_str();
    add(verb, "--budget", o->budget_s)->check(CLI::Range(1.0, 36000.0))->capture_default_str();
    add(verb, "--out", o->out);
  }

  void add_self_check() {
    auto o = std::make_shared<SelfCheckOptions>();
    CLI::App* verb = add_subcommand(app_, "self-check");
    add(verb, "--device", o->device)->check(CLI::IsMember({"cuda", "standin"}))->capture_default_str();
    add(verb, "--gpu", o->index)->check(CLI::Range(0, 63));
    add(verb, "--skip", o->skip);
    add(verb, "--out", o->out);
    flag(verb, "--json", [o] { o->output.form = Form::kJson; });
    o->command = fmt::format("foreshard-exec {}", fmt::join(arguments_, " "));
    verb->callback([this, o] { verb_ = [o] { return run_self_check(*o); }; });
  }

  CLI::App app_;
  const std::vector<std::string>& arguments_;
  std::function<ExitCode()> verb_;
};

}

CommandLine parse_exec_command_line(std::vector<std::string> arguments) {
  ExecTree tree(arguments);
  CommandLine result = parse(tree.app(), arguments);
  if (result.text.empty() && result.usage_error.empty()) result.verb = tree.verb();
  return result;
}

}
