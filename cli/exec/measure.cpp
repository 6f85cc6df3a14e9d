// foreshard-exec measure: this process starts one world after the other, of one rank and of as many
// ranks as there are cores (or those of --spawn), and puts their rows into one document. With
// --device cuda it measures one GPU itself and writes what it has after every part; with --device
// cuda and several ranks, the collectives between their GPUs.
#include "calibration/measure/measure.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "cli/exec/exec_options.h"
#include "cli/exec/ranks.h"
#include "cli/output.h"
#include "exec/comm/process_world.h"
#include "exec/comm/rank_threads.h"
#include "exec/device/host_accelerator.h"
#include "exec/device/load_accelerator.h"
#include "exec/launch/spawn.h"
#include "models/zoo.h"
#include "planner/model_name.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// Where a world's rank 0 leaves its rows.
constexpr const char* kRowsVariable = "FORESHARD_MEASURE_ROWS";

// A small decoder, where the user names no model: shapes to interpolate between.
ModelSpec usual_model(std::int64_t hidden) {
  ModelDims dims;
  dims.name = fmt::format("llama of width {}", hidden);
  dims.family = "llama";
  dims.source = "foreshard-exec measure";
  dims.layers = 4;
  dims.hidden = hidden;
  dims.heads = hidden / 64;
  dims.kv_heads = std::max<std::int64_t>(1, dims.heads / 2);
  dims.head_dim = 64;
  dims.ffn = 3 * hidden;
  dims.vocabulary = 256;
  dims.max_positions = 2048;
  return build_model(dims, Stack::kNative);
}

std::vector<MeasuredJob> jobs_of(const MeasureOptions& options) {
  std::vector<ModelSpec> models;
  for (const std::string& name : options.models)
    models.push_back(load_model(find_model(name, name), Stack::kNative).model);
  if (models.empty() && options.device == "cuda")
    for (const char* name : {"llama-3.2-1b", "llama-3.1-8b"}) models.push_back(load_zoo_model(name, Stack::kNative));
  else if (models.empty())
    for (const std::int64_t hidden : {256, 512}) models.push_back(usual_model(hidden));
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const std::string& text : options.sequences) {
    long long sequence = 0, batch = 0;
    char rest = 0;
    if (std::sscanf(text.c_str(), "%lldx%lld%c", &sequence, &batch, &rest) != 2 || sequence < 1 || batch < 1)
      throw Error(ExitCode::kUsage, "--tokens {}: expected SEQUENCExMICRO_BATCH, such as 256x4", text);
    shapes.emplace_back(sequence, batch);
  }
  if (shapes.empty() && options.device == "cuda") shapes = {{8192, 1}, {4096, 1}, {2048, 1}};
  if (shapes.empty()) shapes = {{256, 1}, {256, 4}};
  std::vector<MeasuredJob> jobs;
  for (const ModelSpec& model : models)
    for (const auto& [sequence, batch] : shapes) jobs.push_back({model, sequence, batch});
  return jobs;
}

// As a rank of one world.
ExitCode measure_as_rank(const MeasureOptions& options, const std::string& rows_file) {
  set_threads(options.threads);
  MeasureRequest request;
  request.jobs = jobs_of(options);
  request.dtype = options.dtype == "bf16" ? DType::kBf16 : DType::kFp32;
  request.seconds = options.seconds;
  request.progress = [](const std::string& what) { note(what); };
  const Launch launch = resolve_launch(process_environment());
  const auto world = connect_processes(launch, connect_options(process_environment()));
  const Json rows = measure_machine(*world, request);
  if (world->rank() == 0) write_file(rows_file, to_text(rows));
  return ExitCode::kOk;
}

Json host_json() {
  utsname system = {};
  ::uname(&system);
  return {{"name", system.nodename}, {"cpu", cpu_name()}, {"cores", std::thread::hardware_concurrency()},
      {"memory_bytes",
          static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE))},
      {"kernel", std::string(system.release)}};
}

Json read_rows(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return Json::parse(text.str());
}

void write_measurements(const MeasureOptions& options, const Json& document) {
  if (options.out.empty()) return write_answer(to_text(document));
  write_file(options.out, to_text(document));
  note(fmt::format("wrote {}", options.out));
}

// Without `extra`.
Json device_document(
    const MeasureOptions& options, const AcceleratorInfo& info, const std::string& created, const Json& rows) {
  Json versions;
  for (const auto& [name, version] : engine_versions()) versions[name] = version;
  for (const auto& [name, version] : info.versions) versions[name] = version;
  return {{"schema", "foreshard.measurements/1"}, {"created", created}, {"host", host_json()},
      {"device", {{"name", info.name}, {"capability", info.capability}, {"multiprocessors", info.multiprocessors},
                     {"memory_bytes", info.memory_bytes}}},
      {"versions", versions}, {"command", options.command}, {"threads", set_threads(options.threads)}, {"rows", rows}};
}

ExitCode measure_gpu(const MeasureOptions& options) {
  set_threads(options.threads);
  DeviceMeasureRequest request;
  request.jobs = jobs_of(options);
  request.dtype = options.dtype == "fp32" ? DType::kFp32 : DType::kBf16;
  request.seconds = options.budget_s;
  request.progress = [](const std::string& what) { note(what); };
  const auto accelerator = options.device == "standin" ? host_accelerator() : load_accelerator(0);
  const AcceleratorInfo info = accelerator->info();
  const std::string created = utc_now();
  const auto document_of = [&](const Json& rows, const Json& extra) {
    Json document = device_document(options, info, created, rows);
    document["extra"] = extra;
    return document;
  };
  if (!options.out.empty()) {
    request.keep = [&](const Json& rows, const Json& extra) {
      if (!rows.empty()) write_file(options.out, to_text(document_of(rows, extra)));
    };
  }
  const DeviceMeasurements all = measure_device(*accelerator, request);
  if (all.rows.empty()) {
    write_error(to_text(all.extra));
    throw Error(ExitCode::kInternal, "nothing could be measured; the reasons are above");
  }
  write_measurements(options, document_of(all.rows, all.extra));
  return ExitCode::kOk;
}

// Collectives between the GPUs of the ranks; the stand-in's ranks are threads.
ExitCode measure_gpus(const MeasureOptions& options) {
  DeviceCollectivesRequest request;
  request.progress = [](const std::string& what) { note(what); };
  const std::string created = utc_now();
  if (options.device == "standin") {
    request.largest = std::size_t{1} << 18;
    request.repeats = 3;
    Json document;
    for_each_rank(options.spawn.ranks, [&](World& world) {
      const auto accelerator = host_accelerator();
      const Json rows = measure_device_collectives(*accelerator, world, request);
      if (world.rank() == 0) document = device_document(options, accelerator->info(), created, rows);
    });
    write_measurements(options, document);
    return ExitCode::kOk;
  }
  if (const auto code = spawn_if_asked(options.spawn)) return *code;
  const Launch launch = resolve_launch(process_environment());
  const auto accelerator = load_accelerator(launch.local_rank);
  const auto world = connect_processes(launch, connect_options(process_environment()));
  request.ranks_per_node = launch.local_size;
  const Json rows = measure_device_collectives(*accelerator, *world, request);
  if (world->rank() == 0) write_measurements(options, device_document(options, accelerator->info(), created, rows));
  return ExitCode::kOk;
}

}

ExitCode run_measure(const MeasureOptions& options) {
  if (options.device != "cpu") {
    const bool several = options.spawn.ranks > 1 || resolve_launch(process_environment()).size > 1;
    return several ? measure_gpus(options) : measure_gpu(options);
  }
  if (const char* rows_file = std::getenv(kRowsVariable)) return measure_as_rank(options, rows_file);
  jobs_of(options);  // what is wrong with them should be said once
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::set<int> worlds = {1, options.spawn.ranks > 0 ? options.spawn.ranks : cores};
  Json rows = Json::array();
  for (const int ranks : worlds) {
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("foreshard-measure-{}-{}.json", ::getpid(), ranks);
    ::setenv(kRowsVariable, file.c_str(), 1);
    SpawnOptions spawn = {.arguments = {"foreshard-exec"}};
    append(spawn.arguments, options.spawn.arguments);
    const int code = spawn_ranks(ranks, spawn);
    std::error_code ignored;
    if (code != 0) {
      std::filesystem::remove(file, ignored);
      return static_cast<ExitCode>(code);
    }
    for (Json& row : read_rows(file)) rows.push_back(std::move(row));
    std::filesystem::remove(file, ignored);
  }
  Json versions;
  for (const auto& [name, version] : engine_versions()) versions[name] = version;
  const Json answer = {{"schema", "foreshard.measurements/1"}, {"created", utc_now()}, {"host", host_json()},
      {"versions", versions}, {"command", options.command}, {"threads", set_threads(options.threads)},
      {"rows", std::move(rows)}};
  write_measurements(options, answer);
  return ExitCode::kOk;
}

}
