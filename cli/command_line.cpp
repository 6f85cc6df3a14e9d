// The tree of verbs, which CLI11 holds; what it says of them is options.txt. The value of an option is described by its
// type name: FILE completes to files, a|b to these words, MODEL and KEY=VALUE to what the program knows.
#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <utility>

#include "calibration/machines.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "models/zoo.h"
#include "sim/base/lookup.h"
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

CLI::Option* option(CLI::App* verb, const char* name, auto& value) {
  return add(verb, name, value)->allow_extra_args(false);
}
// Several: a name and a value each.
template <typename Value, typename... Others>
void options(CLI::App* verb, const char* name, Value& value, Others&&... others) {
  option(verb, name, value);
  if constexpr (sizeof...(others) > 0) options(verb, others...);
}

class Tree {
 public:
  // `line` is what the user typed.
  explicit Tree(std::string line = "") : app_(kDescription, "foreshard"), line_(std::move(line)) {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.footer(kFooter);
    app_.set_version_flag("--version", std::string("foreshard ") + FORESHARD_VERSION, "Print the version and exit");
    choice(add(&app_, "--color", color_));
    add_forecasts();
    add_choices();
    add_files();
    add_measured();
    add_known();
  }

  CLI::App& app() { return app_; }
  std::function<ExitCode()> verb() const { return verb_; }
  const std::string& shell() const { return shell_; }  // of completion

 private:
  // A verb, and with `add_options` its options, which are filled when it is parsed.
  template <typename Options, typename AddOptions>
  void add_verb(const char* name, ExitCode (*run)(const Options&), AddOptions add_options) {
    auto options = std::make_shared<Options>();
    CLI::App* verb = add_subcommand(app_, name);
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
    add_options(verb, options);
  }

  // The value is one of the words of its type, which are separated by |.
  static CLI::Option* choice(CLI::Option* option) {
    const auto refusal = [words = option->get_type_name()](std::string& text) {
      const std::vector<std::string> known = parts_of(words, "|");
      if (contains(known, text)) return std::string();
      const std::string near = nearest_spelling(text, known);
      return fmt::format("{} is not known; expected {}{}", quote(text), fmt::join(known, ", "),
          near.empty() ? "" : fmt::format("; did you mean {}?", near));
    };
    return option->check(CLI::Validator(refusal, ""));
  }

  static void add_json(CLI::App* verb, OutputOptions& output) {
    flag(
        verb, "--json", [&output] { output.form = Form::kJson; });
  }

  static void add_threads(CLI::App* verb, auto& threads) {
    option(verb, "--threads", threads)->check(CLI::Range(1, 4096));
  }

  static void add_confidence(CLI::App* verb, double& confidence) {
    option(verb, "--confidence", confidence)->check(CLI::Range(0.01, 0.9999))->capture_default_str();
  }

  static void add_launcher(CLI::App* verb, ExportOptions& o) {
    o.launcher = "torchrun";
    choice(add(verb, "--launcher", o.launcher)->capture_default_str());
    option(verb, "--program", o.program);
  }

  void add_forecasts() {
    add_verb("predict", run_predict, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "--capture", o->job.capture);
      add_json(verb, o->output);
      flag(verb, "--paced", o->job.paced);
      flag(verb, "--ask", o->asks);
      options(verb, "--trace", o->trace, "--csv", o->csv, "--memory-snapshot", o->memory_snapshot, "--html", o->html);
    });
    add_verb("schedule", run_schedule, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "--capture", o->job.capture);
      o->job.profile_need = ProfileNeed::kOptional;
      flag(verb, "--csv", [] {});
      option(verb, "--out", o->out);
    });
    add_verb("explain", run_explain, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "--capture", o->job.capture);
      option(verb, "--run", o->run);
      add_json(verb, o->output);
    });
    add_verb("compare", run_compare, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "plans", o->plans)->expected(0, 2);
      option(verb, "--with", o->with);
      add(verb, "--runtimes", o->runtimes)->delimiter(',');
      add_json(verb, o->output);
      verb->parse_complete_callback([o] {
        if (!o->runtimes.empty()) {
          if (o->plans.empty() && o->with.empty()) return;
          throw CLI::ValidationError("--runtimes", "does not go together with --with or plan files");
        }
        for (const std::string& plan : o->plans) {
          if (!contains(plan, '=') || std::filesystem::exists(plan)) continue;
          throw CLI::ValidationError(
              fmt::format("no plan file '{}'", plan), fmt::format("did you mean --with {0} or --set {0}?", plan));
        }
        if (o->plans.size() == 1)
          throw CLI::ValidationError("one plan file is there", "expected two, or --with KEY=VALUE");
        if (o->plans.empty() && o->with.empty())
          throw CLI::ValidationError(
              "nothing to compare", "expected two plan files, --with KEY=VALUE or --runtimes LIST");
        if (!o->plans.empty() && (o->job.plan || !o->with.empty()))
          throw CLI::ValidationError(o->job.plan ? "--plan" : "--with", "does not go together with two plan files");
      });
    });
  }

  void add_choices() {
    add_verb("search", run_search, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      options(verb, "--fix", o->fix, "--global-batch", o->global_batch);
      option(verb, "--max-memory", o->max_memory)->check(CLI::Range(0.01, 1.0))->capture_default_str();
      add_confidence(verb, o->confidence);
      choice(add(verb, "--objective", o->objective));
      flag(verb, "--robust", o->robust);
      flag(verb, "--deep", o->deep);
      option(verb, "--vary", o->vary);
      option(verb, "--resume", o->resume);
      add_threads(verb, o->threads);
      options(verb, "--out", o->out, "--html", o->html);
      add_json(verb, o->output);
    });
    add_verb("fit", run_fit, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      option(verb, "--budget", o->budget)->required();
      add_confidence(verb, o->confidence);
      add_threads(verb, o->threads);
      option(verb, "--out", o->out);
      add_json(verb, o->output);
    });
    add_verb("recommend", run_recommend, [](CLI::App* verb, const auto& o) {
      add_model_flags(verb, o->job);
      options(verb, "--cluster", o->clusters, "--gpus", o->gpus);
      option(verb, "--tokens", o->tokens)->required();
      options(verb, "--deadline", o->deadline, "--budget", o->budget);
      CLI::Option* sequences = option(verb, "--global-batch", o->global_batch);
      option(verb, "--batch-tokens", o->batch_tokens)->excludes(sequences);
      option(verb, "--vary", o->vary);
      option(verb, "--prices", o->prices);
      option(verb, "--failures", o->failures_per_gpu_day)->check(CLI::Range(0.0, 1000.0));
      options(verb, "--restart", o->restart, "--checkpoint-rate", o->checkpoint_rate);
      option(verb, "--evaluate-every", o->evaluate_every)->check(CLI::Range(1, 1'000'000'000));
      option(verb, "--evaluate-sequences", o->evaluate_sequences)->check(CLI::Range(1, 1'000'000'000));
      option(verb, "--pue", o->pue)->check(CLI::Range(1.0, 10.0));
      add_confidence(verb, o->confidence);
      flag(verb, "--what-if", o->what_if);
      add_threads(verb, o->threads);
      option(verb, "--html", o->html);
      add_json(verb, o->output);
    });
    add_verb("scale", run_scale, [](CLI::App* verb, const auto& o) {
      add_model_flags(verb, o->job);
      option(verb, "--cluster", o->cluster)->required();
      option(verb, "--gpus", o->gpus);
      CLI::Option* sequences = option(verb, "--global-batch", o->global_batch);
      CLI::Option* tokens = option(verb, "--batch-tokens", o->batch_tokens)->excludes(sequences);
      option(verb, "--weak", o->weak)->check(CLI::Range(1, 1 << 20))->excludes(sequences)->excludes(tokens);
      option(verb, "--vary", o->vary);
      option(verb, "--prices", o->prices);
      add_confidence(verb, o->confidence);
      flag(verb, "--csv", o->csv);
      add_threads(verb, o->threads);
      option(verb, "--html", o->html);
      add_json(verb, o->output);
    });
  }

  void add_files() {
    add_verb("calibrate", run_calibrate, [](CLI::App* verb, const auto& o) {
      add(verb, "raw", o->files)->required();
      options(verb, "--machine", o->machine, "--out", o->out);
      add_json(verb, o->output);
    });
    add_verb("import", run_any_import, [](CLI::App* verb, const auto& o) {
      add(verb, "files", o->files)->required();
      option(verb, "--machine", o->machine);
      option(verb, "--nodes", o->nodes)->check(CLI::Range(1, 262144));
      options(verb, "--nodelist", o->nodelist, "--model", o->model, "--stage", o->stage, "--cluster", o->cluster,
          "--out", o->out, "--plan", o->plan);
      add_json(verb, o->output);
    });
    add_verb("export", run_export, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      o->job.profile_need = ProfileNeed::kOptional;
      choice(option(verb, "--to", o->to)->required());
      options(verb, "--out", o->out, "--ledger", o->ledger);
      add_launcher(verb, *o);
      add_json(verb, o->output);
    });
    add_verb("launch", run_launch, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      o->job.profile_need = ProfileNeed::kOptional;
      add_launcher(verb, *o);
      add_json(verb, o->output);
    });
  }

  void add_measured() {
    add_verb("validate", run_validate, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      option(verb, "--run", o->run);
      const auto tolerance = [verb](const char* name, double& value) {
        option(verb, name, value)->check(CLI::Range(0.0, 1e6))->capture_default_str();
      };
      tolerance("--max-step-error", o->max_step_error);
      tolerance("--max-exposed-error", o->max_exposed_error);
      tolerance("--max-memory-error", o->max_memory_error);
      option(verb, "--trace", o->trace);
      flag(verb, "--no-history", [o] { o->history = false; });
      option(verb, "--html", o->html);
      add_json(verb, o->output);
    });
    add_verb("report", run_report, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "--capture", o->job.capture);
      add(verb, "answer", o->answer);
      options(verb, "--run", o->run, "--html", o->html);
      add_threads(verb, o->threads);
      add_json(verb, o->output);
    });
    add_verb("serve", run_serve, [](CLI::App* verb, const auto& o) {
      option(verb, "--port", o->port)->check(CLI::Range(0, 65535))->capture_default_str();
      option(verb, "--address", o->address)->capture_default_str();
      option(verb, "--host", o->hosts);
      flag(verb, "--no-token", o->no_token);
      add_threads(verb, o->threads);
    });
    add_verb("accuracy", run_accuracy, [](CLI::App* verb, const auto& o) {
      CLI::Option* files = add(verb, "files", o->files);
      flag(verb, "--history", o->history)->excludes(files);
      option(verb, "--blank", o->blank)->delimiter(',');
      option(verb, "--anchor", o->anchor)->check(CLI::Range(0, 1000));
      options(verb, "--evidence", o->evidence, "--freeze", o->freeze, "--frozen", o->frozen);
      option(verb, "--max-median-error", o->max_median_error)->check(CLI::NonNegativeNumber);
      option(verb, "--max-p90-error", o->max_p90_error)->check(CLI::NonNegativeNumber);
      option(verb, "--html", o->html);
      add_json(verb, o->output);
    });
    add_verb("ask", run_ask, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      add(verb, "file", o->job.plan);
      add_json(verb, o->output);
    });
    add_verb("diagnose", run_diagnose, [](CLI::App* verb, const auto& o) {
      add_job_flags(verb, o->job);
      options(verb, "--measured", o->measured, "--said", o->said, "--log", o->log, "--run", o->run, "--snapshot",
          o->snapshots, "--threads", o->threads);
      add_json(verb, o->output);
    });
    add_verb("conform", run_conform, [](CLI::App* verb, const auto& o) {
      add(verb, "folders", o->folders)->required();
      option(verb, "--only", o->only);
      option(verb, "--verbose", o->verbose)->check(CLI::Range(0, 1'000'000))->capture_default_str();
      add_json(verb, o->output);
    });
  }

  void add_known() {
    add_verb("models", run_models, [](CLI::App* verb, const auto& o) {
      CLI::Option* name = add(verb, "model", o->name);
      flag(verb, "--yaml", o->as_yaml)->needs(name);
      add_json(verb, o->output);
    });
    add_verb(
        "machines", run_machines,
        [](CLI::App* verb, const auto& o) {
          add(verb, "machine", o->name);
          flag(verb, "--dot", o->dot);
          option(verb, "--topology", o->topology);
          add_json(verb, o->output);
        });
    add_verb(
        "schema", run_schema, [](CLI::App* verb, const auto& o) { choice(add(verb, "kind", o->name)->required()); });
    add_verb("doctor", run_doctor, [](CLI::App* verb, const auto& o) { add_json(verb, o->output); });
    CLI::App* verb = add_subcommand(app_, "completion");
    choice(add(verb, "shell", shell_)->required());
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
  append(words, versions);
  return words;
}

}

void add_job_flags(CLI::App* verb, JobOptions& job) {
  add_model_flags(verb, job);
  option(verb, "--cluster", job.cluster);
}

void add_model_flags(CLI::App* verb, JobOptions& job) {
  options(verb, "--plan", job.plan, "--model", job.model);
  CLI::Option* runtime = option(verb, "--runtime", job.runtime);
  std::vector<std::string> words = runtime_words();
  words.resize(words.size() / 2);
  runtime->description(fmt::format(fmt::runtime(runtime->get_description()), fmt::join(words, ", ")));
  options(verb, "--sequence", job.sequence, "--micro-batch", job.micro_batch, "--accumulation", job.accumulation);
  job.assignments.resize(1);
  option(verb, "--set", job.assignments[0]);
  option(verb, "--profile", job.profile);
  flag(verb, "--accept-profile", job.accept_profile);
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
  } else if (contains(type, '|')) {
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
    options.push_back({names_of(*option), option->get_description(), hint, is_switch ? "" : option->get_type_name()});
  }
  return options;
}

}

CommandTree command_tree() {
  Tree tree;
  CommandTree data{options_of(tree.app()), {}};
  for (CLI::App* verb : verbs_of(tree.app())) {
    Command command{verb->get_name(), verb->get_description(), options_of(*verb), {}};
    for (const CLI::Option* option : verb->get_options())
      if (option->get_positional()) command.argument = hint_of(*option);
    data.commands.push_back(std::move(command));
  }
  return data;
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
  Tree tree(command_text(arguments));
  CommandLine result = parse(tree.app(), std::move(arguments));
  if (!result.text.empty() || !result.usage_error.empty()) return result;
  if (!tree.shell().empty()) result.text = completion_script(command_tree(), tree.shell());
  else result.verb = tree.verb();
  return result;
}

int run_program(CommandLine (*parse)(std::vector<std::string>), int argc, char** argv) {
  handle_signals();
  try {
    const CommandLine line = parse({argv + 1, argv + argc});
    if (!line.usage_error.empty()) {
      write_error(line.usage_error);
      return static_cast<int>(ExitCode::kUsage);
    }
    if (line.verb) return static_cast<int>(line.verb());
    write_answer(line.text);
    return static_cast<int>(ExitCode::kOk);
  } catch (...) {
    return static_cast<int>(report_failure());
  }
}

}
