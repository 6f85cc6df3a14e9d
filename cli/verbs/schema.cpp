// schema: the JSON Schemas of cli/schemas, which are built into the program.
#include <fmt/format.h>

#include <span>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "sim/base/embedded.h"

namespace foreshard {

std::span<const EmbeddedFile> schema_files();

ExitCode run_schema(const SchemaOptions& options) {
  const std::string path = fmt::format("cli/schemas/{}.schema.json", options.name);
  for (const EmbeddedFile& file : schema_files()) {
    if (file.path != path) continue;
    write_answer(file.content);
    return ExitCode::kOk;
  }
  FORESHARD_CHECK(false, "no schema " + options.name);
}

}  // namespace foreshard
