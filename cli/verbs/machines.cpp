// machines: the catalogue as a table, or one machine or cluster with the source of every figure, or as a graph.
#include "calibration/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "calibration/clusters/cluster_names.h"
#include "calibration/machine_figures.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "reports/view/views.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

std::string source_of(const Cluster& cluster, std::string_view path) {
  const auto found = std::ranges::find_if(cluster.sources, [&](const auto& source) { return source.first == path; });
  return found == cluster.sources.end() ? "" : found->second;
}

Json to_json(const Cluster& cluster) {
  Json json = {{"machine", cluster.gpu.key}, {"gpus", cluster.gpus}, {"nodes", cluster.nodes()}};
  Json sources = Json::object();
  for (const ShownFigure& figure : shown_figures(cluster)) {
    const std::size_t dot = figure.path.find('.');
    Json& section = dot == std::string::npos ? json : json[figure.path.substr(0, dot)];
    section[figure.json_key] = figure.value;
    sources[figure.path] = source_of(cluster, figure.path);
  }
  json["sources"] = sources;
  return json;
}

std::string cluster_text(const Cluster& cluster) {
  std::string text = fmt::format("{}: {} GPUs in {} nodes; rates are per direction\n\n", cluster.spec,
      format_count(cluster.gpus), format_count(cluster.nodes()));
  for (const ShownFigure& figure : shown_figures(cluster))
    text += fmt::format("{:<26} {:<22} {}\n", figure.path, figure.text, source_of(cluster, figure.path));
  return text;
}

// The first: the list of all would fill the line.
std::string shown_alias(const Machine& machine) {
  if (machine.aliases.empty()) return "";
  return machine.aliases.front() + (machine.aliases.size() > 1 ? ", ..." : "");
}

std::string machines_text(const std::vector<Machine>& machines) {
  std::string text =
      fmt::format("{:<16} {:<16} {:>9} {:>14} {:>14} {:>10} {:>7} {:>10} {:>5} {:>10} {:>15}\n", "machine", "also",
          "memory", "bf16 dense", "fp8 dense", "bandwidth", "power", "USD/hour", "GPUs", "link", "network");
  for (const Machine& machine : machines) {
    const Cluster& c = machine.node;
    text += fmt::format("{:<16} {:<16} {:>9} {:>14} {:>14} {:>10} {:>7} {:>10} {:>5} {:>10} {:>15}\n", machine.key,
        shown_alias(machine), format_bytes(c.gpu.memory), format_flop_rate(c.gpu.peak_bf16),
        c.gpu.peak_fp8.value() > 0 ? format_flop_rate(c.gpu.peak_fp8) : "-", format_bandwidth(c.gpu.memory_bandwidth),
        fmt::format("{:g} W", c.gpu.power_limit), fmt::format("{:.2f}", c.gpu.price_per_hour), c.node.gpus,
        format_bandwidth(c.node.gpu_link), fmt::format("{} x {}", c.node.nics, format_bandwidth(c.node.nic_rate)));
  }
  return text;
}

// One full node of a machine, or any cluster that --cluster takes.
Cluster machine_or_cluster(const std::string& name) {
  if (const auto machine = machine_named(name)) return machine->node;
  return load_cluster(name);
}

std::string instances_text(const std::vector<Instance>& instances) {
  std::string text =
      fmt::format("\n{:<30} {:<14} {:>5} {:>17}  {}\n", "instance type", "machine", "GPUs", "network", "");
  for (const Instance& i : instances) {
    text += fmt::format("{:<30} {:<14} {:>5} {:>17}  {}\n", i.name, i.machine, i.gpus,
        fmt::format("{} x {}", i.nics, format_bandwidth(i.nic_rate)), i.nic_name);
  }
  return text;
}

Json to_json(const Instance& instance) {
  return {{"name", instance.name}, {"also", instance.also}, {"machine", instance.machine}, {"gpus", instance.gpus},
      {"nics", instance.nics}, {"nic_rate_bytes_per_s", instance.nic_rate.value()}, {"nic_name", instance.nic_name},
      {"source", instance.source}};
}

constexpr const char* kHowToName =
    "\nGPUs and network per node, rates per direction; prices are lists of a date, yours to replace "
    "(gpu.price_per_hour).\nA cluster: --cluster 64xh100, --cluster \"8 nodes of p5.48xlarge\", or a file (foreshard "
    "schema cluster).\nEvery figure with its source: foreshard machines h100-sxm\n";

}

ExitCode run_machines(const MachinesOptions& options) {
  const bool is_json = options.output.form == Form::kJson;
  if (!options.topology.empty()) {
    const Cluster cluster = cluster_of_file(options.topology, options.name);
    const std::vector<Communicator> communicators = usual_communicators(cluster);
    if (is_json) {
      Json json = network_json(cluster, communicators);
      json["spec"] = cluster.spec;
      json["gpus"] = cluster.gpus;
      write_answer(document("foreshard.topology/1", json));
    } else {
      std::string text;
      for (const std::string& line : network_lines(cluster, communicators)) text += "// " + line + "\n";
      write_answer(text + network_dot(cluster, communicators));
    }
    return ExitCode::kOk;
  }
  if (options.dot && options.name.empty())
    throw Error(ExitCode::kUsage, "--dot needs a machine or a cluster: foreshard machines 16xh100 --dot");
  if (!options.name.empty()) {
    const Cluster cluster = machine_or_cluster(options.name);
    if (options.dot) write_answer(network_dot(cluster, {}));
    else is_json ? write_answer(document("foreshard.machine/1", to_json(cluster))) : write_text(cluster_text(cluster));
    return ExitCode::kOk;
  }
  const std::vector<Machine> machines = list_machines();
  if (!is_json) {
    write_text(machines_text(machines) + instances_text(list_instances()) + kHowToName);
    return ExitCode::kOk;
  }
  Json list = json_list(
      machines,
      [&](const Machine& machine) -> Json {
        Json json = to_json(machine.node);
        json["aliases"] = machine.aliases;
        return json;
      });
  Json instances = json_list(list_instances(), [&](const Instance& instance) -> Json { return to_json(instance); });
  write_answer(document("foreshard.machines/1", {{"machines", list}, {"instances", instances}}));
  return ExitCode::kOk;
}

}
