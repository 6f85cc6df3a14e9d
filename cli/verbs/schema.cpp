// schema: the JSON Schemas of cli/schemas, which are built into the program, and that of plans,
// which the table of their keys makes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "sim/base/embedded.h"
#include "sim/base/json.h"
#include "sim/spec/keys/plan_schema.h"

namespace foreshard {

std::span<const EmbeddedFile> schema_files();

ExitCode run_schema(const SchemaOptions& options) {
  if (options.name == "plan") {
    write_answer(to_text(plan_schema()));
    return ExitCode::kOk;
  }
  const std::string path = fmt::format("cli/schemas/{}.schema.json", options.name);
  write_answer(file_named(path, schema_files()).content);
  return ExitCode::kOk;
}

}  // namespace foreshard
