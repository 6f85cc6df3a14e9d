// export, launch: the job's plan in somebody else's words. The file is the answer; what became of
// every key goes to standard error, so that a pipe holds the file and nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/job.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "interop/export_fsdp2.h"
#include "interop/hf_config.h"
#include "models/zoo.h"

namespace foreshard {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// What the model's Python is written from; none for models that are no decoder of words.
std::optional<ModelDims> dims_of(const Job& job) {
  if (job.model_file.empty()) {
    const std::string name = lower(job.document.plan.model);
    for (const ZooEntry& entry : zoo()) {
      if (lower(entry.dims.name) == name) return entry.dims;
    }
    return std::nullopt;
  }
  if (is_model_yaml(job.model_file)) return std::nullopt;
  HfConfig config = read_hf_config(job.model_file);
  if (config.vision) return std::nullopt;
  return std::move(config.dims);
}

Exported exported(const ExportOptions& options, const Job& job) {
  const Plan& plan = job.resolved.plan;
  const std::optional<ModelDims> dims = dims_of(job);
  if (!dims) {
    throw Error(ExitCode::kMissingCapability,
                fmt::format("export --to {}: unsupported: {} is not a decoder that is built in: "
                            "the script needs one of foreshard models, or a config.json",
                            options.to, job.model.name));
  }
  return export_fsdp2(plan, job.model, *dims);
}

}  // namespace

ExitCode run_export(const ExportOptions& options) {
  const Job job = load_job(options.job);
  const Exported file = exported(options, job);
  if (!options.ledger.empty()) write_file(options.ledger, ledger_text(file.ledger));
  if (!options.out.empty()) write_file(options.out, file.text);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.export/1", {{"to", options.to},
                                                 {"out", options.out},
                                                 {"text", file.text},
                                                 {"ledger", ledger_json(file.ledger)}}));
    return ExitCode::kOk;
  }
  if (options.ledger.empty()) write_error(ledger_text(file.ledger));
  write_answer(options.out.empty() ? file.text : fmt::format("written to {}\n", options.out));
  return ExitCode::kOk;
}

ExitCode run_launch(const ExportOptions& options) {
  const Job job = load_job(options.job);
  return ExitCode::kOk;
}

}  // namespace foreshard
