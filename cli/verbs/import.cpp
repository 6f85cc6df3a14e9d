// import: settings of trainers are cli/verbs/import_plan.cpp's. Of machines: tell what each file
// is, join what they say, check that the result reads as a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/verbs/import_plan.h"
#include "cli/verbs/verbs.h"
#include "interop/network/nccl_log.h"
#include "interop/network/topology_import.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

TopologyImport read_topology(const std::string& file) {
  const std::string head = read_text_start(file, kNcclTestsHead);
  const TopologyFormat format = topology_format(head);
  const std::string text =
      format == TopologyFormat::kNone ? "" : read_text_file(file, kMaxTopologyBytes);
  switch (format) {
    case TopologyFormat::kNvidiaSmi:
      return parse_nvidia_smi_topo(text, file);
    case TopologyFormat::kNcclXml:
      return parse_nccl_topology(text, file);
    case TopologyFormat::kSlurm:
      return parse_slurm_topology(text, file);
    case TopologyFormat::kNone:
      break;
  }
  if (looks_like_nccl_tests(head)) {
    throw ConfigError({file, 1, 0, ""}, "is a log of nccl-tests",
                      fmt::format("a machine; of this: foreshard calibrate {}", file));
  }
  throw ConfigError(
      {file, 1, 0, ""}, "is of no known form",
      "nvidia-smi topo -m, NCCL's topology XML, Slurm's topology.conf, or settings of "
      "TorchTitan, Accelerate or DeepSpeed, config.json, safetensors");
}

}  // namespace

ExitCode run_import(const ImportOptions& options) {
  if (std::any_of(options.files.begin(), options.files.end(), is_training_file)) {
    return import_training_files(options);
  }
  std::vector<TopologyImport> parts;
  for (const std::string& file : options.files) parts.push_back(read_topology(file));
  const TopologyImport all = joined(parts);
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
  const std::string ledger = ledger_text(all.ledger);
  for (std::size_t at = 0; at < ledger.size();) {  // comments, so that the answer is the file
    const std::size_t end = ledger.find('\n', at);
    text += "# " + ledger.substr(at, end - at) + "\n";
    at = end + 1;
  }
  write_text(text);
  return ExitCode::kOk;
}

}  // namespace foreshard
