#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/capture/capture_import.h"
#include "sim/base/config.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

namespace fs = std::filesystem;

bool is_capture_folder(const std::string& path) {
  return fs::exists(fs::path(path) / "capture.json");
}

ExitCode import_capture(const CaptureImportOptions& options) {
  if (!std::ranges::all_of(options.files, is_capture_folder)) {
    throw Error(ExitCode::kUsage,
                "import: expected captures alone: one, or several of a program at other sizes");
  }
  std::vector<Capture> captures;
  for (const std::string& file : options.files) captures.push_back(read_capture(file));
  const Capture first = std::move(captures.front());
  captures.erase(captures.begin());
  // A plan names files as seen from its own folder.
  const std::string model = options.out.empty() ? "model.json" : options.out;
  const fs::path seen_from = fs::path(options.plan).parent_path();
  const fs::path named = fs::relative(fs::absolute(model), seen_from.empty() ? "." : seen_from);
  const std::string name =
      named.string().find('/') == std::string::npos ? "./" + named.string() : named.string();
  const CapturedPlan made = plan_of_capture(first, name, captures);
  read_plan(parse_yaml(made.plan, "the imported plan"));  // throws where a key has no such value
  if (!options.out.empty()) write_file(options.out, made.model);
  if (!options.plan.empty()) write_file(options.plan, made.plan);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.import/1", {{"format", "capture"},
                                                 {"model", made.model},
                                                 {"plan", made.plan},
                                                 {"ledger", ledger_json(made.ledger)}}));
    return ExitCode::kOk;
  }
  std::string text = options.plan.empty() ? made.plan : "# written to " + options.plan + "\n";
  if (!options.out.empty()) text += "# the model: " + options.out + "\n";
  text += "\n";
  write_text(text + ledger_comments(made.ledger));
  return ExitCode::kOk;
}

ExitCode run_any_import(const CaptureImportOptions& options) {
  const bool is_capture = std::ranges::any_of(options.files, is_capture_folder);
  return is_capture ? import_capture(options) : run_import(options);
}

}  // namespace foreshard
