// import: settings of trainers are cli/verbs/import_plan.cpp's. Of machines: tell what each file
// is, join what they say, check that the result reads as a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/network/topology_import.h"

namespace foreshard {
ExitCode run_import(const ImportOptions& options) {
  if (std::ranges::any_of(options.files, is_training_file)) {
    return import_training_files(options);
  }
  std::vector<TopologyImport> parts;
  for (const std::string& file : options.files) parts.push_back(read_topology(file));
  TopologyImport all = joined(parts);
  if (!options.nodelist.empty()) all = allocated(std::move(all), options.nodelist);
  const std::string yaml = cluster_file(all, options.machine, options.nodes);
  parse_cluster(yaml, "the imported cluster");  // throws where the figures do not fit together
  if (!options.out.empty()) write_file(options.out, yaml);
  if (options.output.form == Form::kJson) {
    write_answer(
        document("foreshard.import/1", {{"cluster", yaml}, {"ledger", ledger_json(all.ledger)}}));
    return ExitCode::kOk;
  }
  std::string text = options.out.empty() ? yaml : fmt::format("# written to {}\n", options.out);
  text += "\n";
  write_text(text + ledger_comments(all.ledger));
  return ExitCode::kOk;
}

}  // namespace foreshard
