// The shipped profile of the GPU, the sweeps of the logs, and how far each was from what the
// profile alone says; every point is then left out once and interpolated between its neighbours.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/network/nccl_log.h"
#include "planner/local_profiles.h"
#include "reports/view/layout.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/base/text_file.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

struct Quality {
  double form = 0;      // median |predicted / measured - 1| without the sweep
  double left_out = 0;  // of points left out of it
  std::size_t points = 0;
};

FabricSystem system_of(const Cluster& machine, const CollectiveSweep& sweep, NcclVersion version) {
  Cluster cluster = machine;
  const std::int64_t per_node = std::max<std::int64_t>(1, sweep.ranks / sweep.nodes);
  cluster.node.gpus = std::max(cluster.node.gpus, per_node);
  GroupLink link;
  link.size = sweep.ranks;
  link.nodes = sweep.nodes;
  link.ranks_per_node = per_node;
  link.link = cluster.node.gpu_link;
  if (sweep.nodes > 1) {
    const double ports = as_double(cluster.node.nics * per_node) / as_double(cluster.node.gpus);
    link.network = BytesPerSecond(cluster.node.nic_rate.value() * ports);
  }
  return fabric_system(cluster, link, version);
}

Quality quality_of(const Cluster& machine, const Calibration& base, const CollectiveSweep& sweep, NcclVersion version) {
  const FabricSystem system = system_of(machine, sweep, version);
  const CollectiveSettings settings{version};
  Calibration bare = base;
  bare.sweeps.clear();
  const CollectiveModel form(system, settings, bare);
  std::vector<double> alone;
  std::vector<double> without;
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const SizePoint& point = sweep.points[i];
    alone.push_back(std::abs(form.price(sweep.operation, point.bytes).seconds / point.seconds - 1));
    if (i == 0 || i + 1 == sweep.points.size()) continue;
    Calibration rest = bare;
    rest.sweeps = {sweep};
    rest.sweeps[0].points.erase(rest.sweeps[0].points.begin() + i);
    const CollectiveModel model(system, settings, rest);
    without.push_back(std::abs(model.price(sweep.operation, point.bytes).seconds / point.seconds - 1));
  }
  Quality quality;
  quality.points = sweep.points.size();
  quality.form = quartiles(std::move(alone)).median;
  if (!without.empty()) quality.left_out = quartiles(std::move(without)).median;
  return quality;
}

// Bus bandwidths that no link has: NVLink SHARP adds up inside the switch and shows up to twice the
// link's rate; the slowest fabric of the published sweeps (TCP without RDMA) a hundredth.
constexpr double kAboveLink = 2.5;
constexpr double kLeastOfLink = 1e-3;

// Throws where the sweep is of another unit, or of another GPU than it says.
void check_sense(const Cluster& machine, const CollectiveSweep& sweep) {
  double best = 0;
  for (const SizePoint& point : sweep.points)
    best = std::max(best, busbw_factor(sweep.operation, as_double(sweep.ranks)) * point.bytes / point.seconds);
  const double link = machine.node.gpu_link.value();
  const bool is_small = sweep.points.back().bytes < 1e6;  // latencies alone
  if (best <= kAboveLink * link && (is_small || best >= kLeastOfLink * link)) return;
  throw invalid_input("{}: the best bus bandwidth of {} is {}, the link of {} has {}: another unit, or another GPU?",
      sweep.source, to_string(sweep.operation), format_bandwidth(BytesPerSecond(best)), machine.gpu.key,
      format_bandwidth(machine.node.gpu_link));
}

// The catalogue's machine of a device name.
std::string machine_of(const std::string& device, const std::string& asked) {
  if (!asked.empty()) return asked;
  const std::vector<Machine> machines = list_machines();
  if (const Machine* machine = match_gpu(device, machines)) return machine->key;
  throw invalid_input("the logs do not tell a GPU of the catalogue{}; name it with --machine KEY (foreshard machines)",
      device.empty() ? "" : fmt::format(" ('{}')", device));
}

}

bool are_nccl_tests(const std::vector<std::string>& files) {
  std::size_t logs = 0;
  for (const std::string& file : files) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;  // read_measurements says why
    logs += looks_like_nccl_tests(read_text_start(file, kNcclTestsHead)) ? 1 : 0;
  }
  if (logs != 0 && logs != files.size())
    throw invalid_input("logs of nccl-tests and measurements of a machine do not go into one profile");
  return logs != 0;
}

ExitCode calibrate_sweeps(const CalibrateOptions& options) {
  std::vector<CollectiveSweep> sweeps;
  ImportLedger ledger;
  std::string device;
  NcclVersion version;
  for (const std::string& file : options.files) {
    NcclTests tests = parse_nccl_tests(read_text_file(file, kMaxNcclTestsBytes), file);
    if (device.empty()) device = tests.gpu;
    version = tests.version;
    for (CollectiveSweep& sweep : tests.sweeps) sweeps.push_back(std::move(sweep));
    append(ledger, tests.ledger);
  }
  const std::string key = machine_of(device, options.machine);
  const Cluster machine = load_cluster("1x" + key);
  Calibration profile = load_profile(machine.gpu.key);
  std::vector<std::vector<std::string>> rows = {
      {"sweep", "ranks", "nodes", "sizes", "profile alone", "points left out"}};
  Json list = json_list(sweeps, [&](const CollectiveSweep& sweep) -> Json {
    check_sense(machine, sweep);
    const Quality quality = quality_of(machine, profile, sweep, version);
    rows.push_back({to_string(sweep.operation), std::to_string(sweep.ranks), std::to_string(sweep.nodes),
        std::to_string(quality.points), percent_text(quality.form), percent_text(quality.left_out)});
    return {{"operation", to_string(sweep.operation)}, {"ranks", sweep.ranks}, {"nodes", sweep.nodes},
        {"sizes", quality.points}, {"profile_median_abs_error", quality.form},
        {"left_out_median_abs_error", quality.left_out}};
  });
  profile.id = "nccl-tests";
  profile.sweeps = std::move(sweeps);
  const std::string path =
      !options.out.empty() ? options.out : (profile_folder().parent_path() / (machine.gpu.key + "-nccl.json")).string();
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  write_file(path, to_text(to_json(profile)));
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.calibrate/1",
        {{"profile", path}, {"machine", machine.gpu.key}, {"sweeps", list}, {"ledger", ledger_json(ledger)},
            {"next", next_json(next_measurements(path, machine.gpu.key))}}));
    return ExitCode::kOk;
  }
  std::string text = fmt::format("{}: median |predicted / measured - 1|\n", machine.gpu.name);
  for (const std::string& line : aligned(rows)) text += "  " + line + "\n";
  text += "\n" + ledger_text(ledger);
  text += fmt::format(
      "\nOther groups and operations take the ratio at the nearest size and are extrapolated; "
      "what\n"
      "would say more is the same sweep over the ranks and nodes of the plan's groups:\n"
      "  all_gather_perf -b 64K -e 4G -f 2      reduce_scatter_perf -b 64K -e 4G -f 2\n"
      "written to {}; use it with --profile {}\n\n",
      path, path);
  write_text(text + next_text(next_measurements(path, machine.gpu.key)));
  return ExitCode::kOk;
}

}
