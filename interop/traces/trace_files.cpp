#include "interop/traces/trace_files.h"

#include <algorithm>

#include "interop/traces/trace_bytes.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> list_traces(const fs::path& folder) {
  std::vector<fs::path> named, others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.ends_with(".timed.json")) continue;
    if (name.ends_with(".trace.json") || name.ends_with(".trace.json.gz")) named.push_back(entry.path());
    else if (name.ends_with(".json") || name.ends_with(".json.gz")) others.push_back(entry.path());
  }
  std::vector<fs::path>& list = named.empty() ? others : named;
  std::ranges::sort(list);
  return list;
}

fs::path beside(const fs::path& trace) {
  std::string name = trace.filename().string();
  for (const char* ending : {".gz", ".json", ".trace"})
    if (name.ends_with(ending)) name.resize(name.size() - std::string_view(ending).size());
  return trace.parent_path() / (name + ".timed.json");
}

void read_beside(const fs::path& path, FsdpTrace& trace) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  TimedFile file = read_timed_file(path);
  trace.host = std::move(file.host);
  trace.created = std::move(file.created);
  trace.rank = file.rank;
  trace.world = file.world;
  trace.versions = std::move(file.versions);
  if (file.lists_collectives) trace.collectives = std::move(file.collectives);
  trace.retries = file.retries;
  trace.grown = file.grown;
  trace.without_profiler = std::move(file.steps);
  if (file.peak_allocated <= Bytes()) return;
  trace.peak_allocated = file.peak_allocated;
  trace.peak_reserved = file.peak_reserved;
}

}

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && fs::exists(path / "run.json", ignored);
}

std::vector<FsdpTrace> read_job_traces(const fs::path& path) {
  std::error_code ignored;
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path, ignored)) {
    files = list_traces(path);
    if (files.empty())
      throw invalid_input("{}: is neither a run folder nor has it traces (*.trace.json.gz)", path.string());
  }
  std::vector<FsdpTrace> traces;
  for (const fs::path& file : files) {
    traces.push_back(read_fsdp_steps(read_kineto(file)));
    read_beside(beside(file), traces.back());
    if (traces.back().rank < 0) traces.back().rank = std::ssize(traces) - 1;
  }
  std::ranges::stable_sort(traces, {}, &FsdpTrace::rank);
  for (std::size_t i = 1; i < traces.size(); ++i) {
    if (traces[i].rank != traces[i - 1].rank) continue;
    throw invalid_input("{} and {} are both of rank {}", traces[i - 1].file, traces[i].file, traces[i].rank);
  }
  return traces;
}

}
