// import: settings of trainers are cli/verbs/import_plan.cpp's. Of machines: tell what each file
// is, join what they say, check that the result reads as a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/capture/capture_import.h"
#include "interop/network/nccl_log.h"
#include "interop/network/topology_import.h"
#include "planner/job.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/text_file.h"
#include "sim/graph/capture/capture_graph.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
ExitCode run_import(const ImportOptions& options) {
  if (std::ranges::any_of(options.files, is_training_file)) return import_training_files(options);
  auto parts = list_of<TopologyImport>(options.files, [&](const std::string& file) { return read_topology(file); });
  TopologyImport all = joined(parts);
  if (!options.nodelist.empty()) all = allocated(std::move(all), options.nodelist);
  const std::string yaml = cluster_file(all, options.machine, options.nodes);
  parse_cluster(yaml, "the imported cluster");  // throws where the figures do not fit together
  if (!options.out.empty()) write_file(options.out, yaml);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.import/1", {{"cluster", yaml}, {"ledger", ledger_json(all.ledger)}}));
    return ExitCode::kOk;
  }
  std::string text = options.out.empty() ? yaml : fmt::format("# written to {}\n", options.out);
  text += "\n";
  write_text(text + ledger_comments(all.ledger));
  return ExitCode::kOk;
}

namespace fs = std::filesystem;

namespace {

// What no plan has shows in the whole: the plan, lowered again, beside the step that was captured.
void compare_steps(const Capture& capture, const std::string& file, ImportLedger& ledger) {
  constexpr double kMost = 0.03;
  const auto differs = [&](const std::string& why) {
    ledger.push_back({Mapping::kUnsupported, "the whole step", "", why, file, 0});
  };
  try {
    JobOptions options;
    options.plan = file;
    const Job job = load_job(options);
    const Plan& plan = job.resolved.plan;
    const EventGraph graph = build_training_step(job.model, plan);
    std::int64_t held = capture_graph(capture).peak_allocated.count();
    if (capture.told_allocated == held) held = capture.told_requested;
    held -= sum_of<Bytes>(library_buffers(graph, job.cluster, plan.runtime), &LibraryBuffer::bytes).count();
    const double off = as_double(peak_allocated(graph).count()) / as_double(held) - 1;
    if (held <= 0 || std::abs(off) <= kMost) return;
    differs(
        fmt::format("the plan holds {:.0f} % {} at its peak than the program, whose step has what no line above "
                    "names: foreshard predict --capture forecasts it as it is",
            100 * std::abs(off), off > 0 ? "more" : "less"));
  } catch (const Error& error) {
    differs(error.what());
  }
}

}

bool is_capture_folder(const std::string& path) { return fs::exists(fs::path(path) / "capture.json"); }

ExitCode import_capture(const CaptureImportOptions& options) {
  if (!std::ranges::all_of(options.files, is_capture_folder))
    throw Error(ExitCode::kUsage, "import: expected captures alone: one, or several of a program at other sizes");
  auto captures = list_of<Capture>(options.files, [&](const std::string& file) { return read_capture(file); });
  const Capture first = std::move(captures.front());
  captures.erase(captures.begin());
  // A plan names files as seen from its own folder.
  const std::string model = options.out.empty() ? "model.json" : options.out;
  const fs::path seen_from = fs::path(options.plan).parent_path();
  const fs::path named = fs::relative(fs::absolute(model), seen_from.empty() ? "." : seen_from);
  const std::string name = !contains(named.string(), '/') ? "./" + named.string() : named.string();
  CapturedPlan made = plan_of_capture(first, name, captures);
  if (!options.cluster.empty()) {
    made.ledger.push_back({Mapping::kIgnored, "--cluster " + options.cluster, "",
        "the plan is as it ran; foreshard search --plan FILE --cluster " + options.cluster + " cuts it for others",
        "capture", 0});
  }
  read_plan(parse_yaml(made.plan, "the imported plan"));  // throws where a key has no such value
  if (!options.out.empty()) write_file(options.out, made.model);
  if (!options.plan.empty()) write_file(options.plan, made.plan);
  if (!options.out.empty() && !options.plan.empty()) compare_steps(first, options.plan, made.ledger);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.import/1",
        {{"format", "capture"}, {"model", made.model}, {"plan", made.plan}, {"ledger", ledger_json(made.ledger)}}));
    return ExitCode::kOk;
  }
  std::string text = options.plan.empty() ? made.plan : "# written to " + options.plan + "\n";
  if (!options.out.empty()) text += "# the model: " + options.out + "\n";
  text += "\n";
  write_text(text + ledger_comments(made.ledger));
  return ExitCode::kOk;
}

ExitCode run_any_import(const CaptureImportOptions& options) {
  if (std::ranges::any_of(options.files, is_capture_folder)) return import_capture(options);
  ImportOptions plain = options;
  if (plain.out.empty()) plain.out = options.plan;
  return run_import(plain);
}

TopologyImport read_topology(const std::string& file) {
  const std::string head = read_text_start(file, kNcclTestsHead);
  const TopologyFormat format = topology_format(head);
  if (format == TopologyFormat::kNone && looks_like_nccl_tests(head)) {
    throw ConfigError(
        {file, 1, 0, ""}, "is a log of nccl-tests", fmt::format("a machine; of this: foreshard calibrate {}", file));
  }
  const bool is_fabric = format == TopologyFormat::kIbnetdiscover || format == TopologyFormat::kNodeLabels;
  const std::string text =
      format == TopologyFormat::kNone ? "" : read_text_file(file, is_fabric ? kMaxFabricBytes : kMaxTopologyBytes);
  return parse_topology(format, text, file);
}

Cluster cluster_of_file(const std::string& file, const std::string& machine) {
  if (topology_format(read_text_start(file, kNcclTestsHead)) == TopologyFormat::kNone) return load_cluster(file);
  return parse_cluster(cluster_file(joined({read_topology(file)}), machine, 0), file);
}

}
