// schema: the JSON Schemas of cli/schemas/, which are built into the program; that of plans is made
// by the table of their keys, and that of clusters completed by the table of their figures.
#include <nlohmann/json.hpp>
#include <string_view>

#include "calibration/machine_figures.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "sim/base/embedded.h"
#include "sim/base/json.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {

ExitCode run_schema(const SchemaOptions& options) {
  if (options.name == "plan") {
    write_answer(to_text(plan_schema()));
    return ExitCode::kOk;
  }
  const std::string_view text = file_named(options.name + ".schema.json", schema_files()).content;
  if (options.name == "cluster") {
    Json schema = Json::parse(text);
    add_figures(schema);
    write_answer(to_text(schema));
    return ExitCode::kOk;
  }
  write_answer(text);
  return ExitCode::kOk;
}

}
