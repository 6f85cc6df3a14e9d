// export, launch: the job's plan in somebody else's words. The file is the answer; what became of
// every key goes to standard error, so that a pipe holds the file and nothing else.
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/export/export_fsdp2.h"
#include "interop/frameworks/frameworks.h"
#include "models/zoo.h"
#include "planner/job.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

// What the model's Python is written from; none for models that are no decoder of words.
std::optional<ModelDims> dims_of(const Job& job) {
  if (job.model_config) {
    if (job.model_config->vision) return std::nullopt;
    return job.model_config->dims;
  }
  for (const ZooEntry& entry : zoo())
    if (job.model_file.empty() && entry.dims.name == job.model.name) return entry.dims;
  return std::nullopt;
}

Launcher launcher_of(const ExportOptions& options) {
  return options.launcher == "slurm"     ? Launcher::kSlurm
         : options.launcher == "openmpi" ? Launcher::kOpenMpi
                                         : Launcher::kTorchrun;
}

Exported export_script(const Job& job) {
  if (is_of_modules(job.model)) return export_own(job.resolved.plan, job.model);
  const std::optional<ModelDims> dims = dims_of(job);
  if (!dims) {
    throw Error(ExitCode::kMissingCapability,
        "export --to fsdp2: unsupported: {} is not a decoder that is built in: the script needs one of foreshard "
        "models, a config.json, or a program's own model (foreshard import of a capture with --modules)",
        job.model.name);
  }
  return export_fsdp2(job.resolved.plan, job.model, *dims);
}

// The nearest job of a runtime that the trainer runs.
Exported export_nearest(const Job& job, const char* runtime, const std::function<Exported(const ExportJob&)>& write) {
  TranslatedJob other = translate_job(job, runtime);
  Exported file = write({other.job.resolved.plan, other.job.model, other.job.cluster});
  ImportLedger changed;
  for (const LedgerEntry& entry : other.ledger) {
    changed.push_back({Mapping::kUnsupported, fmt::format("{}: {}", entry.what, entry.from), entry.to,
        entry.why.empty() ? "the runtime's nature" : entry.why, "plan", 0});
  }
  file.ledger.insert(file.ledger.begin(), changed.begin(), changed.end());
  return file;
}

Exported exported(const ExportOptions& options, const Job& job) {
  const Plan& plan = job.resolved.plan;
  const ExportJob as_it_is{plan, job.model, job.cluster};
  const bool has_axes = !plan.mesh.is_plain() || plan.mesh.pp > 1;
  const bool is_titans = options.to.starts_with("torchtitan");
  if (has_axes && options.to != "fsdp2" && !is_titans) {
    throw Error(ExitCode::kMissingCapability,
        "export --to {}: unsupported: mesh.tp, mesh.cp, mesh.ep and mesh.pp are written for torchtitan, and all but "
        "mesh.pp for fsdp2; nearest: --to torchtitan",
        options.to);
  }
  if (options.to == "fsdp2") return export_script(job);
  if (options.to == "launch") return launch_file(plan, job.cluster, launcher_of(options), options.program);
  if (options.to == "accelerate") return export_accelerate(as_it_is);
  if (options.to == "deepspeed")
    return is_zero(plan.runtime.kind) ? export_deepspeed(as_it_is) : export_nearest(job, "zero3", export_deepspeed);
  const auto write = options.to == "torchtitan" ? export_torchtitan : export_torchtitan_registry;
  return plan.runtime.kind == RuntimeKind::kFsdp2 ? write(as_it_is) : export_nearest(job, "fsdp2", write);
}

}

ExitCode run_export(const ExportOptions& options) {
  const Job job = load_job(options.job);
  const Exported file = exported(options, job);
  if (!options.ledger.empty()) write_file(options.ledger, ledger_text(file.ledger));
  if (!options.out.empty()) write_file(options.out, file.text);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.export/1",
        {{"to", options.to}, {"out", options.out}, {"text", file.text}, {"ledger", ledger_json(file.ledger)}}));
    return ExitCode::kOk;
  }
  if (options.ledger.empty()) write_error(ledger_text(file.ledger));
  write_answer(options.out.empty() ? file.text : fmt::format("written to {}\n", options.out));
  return ExitCode::kOk;
}

ExitCode run_launch(const ExportOptions& options) {
  const Job job = load_job(options.job);
  const LaunchLine launch = launch_of(job.resolved.plan, job.cluster, launcher_of(options), options.program);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.launch/1",
        {{"launcher", options.launcher}, {"nodes", launch.nodes}, {"ranks_per_node", launch.ranks_per_node},
            {"ranks", job.resolved.plan.mesh.world()}, {"line", launch.line}}));
  } else {
    write_answer(launch.line + "\n");
  }
  return ExitCode::kOk;
}

}
