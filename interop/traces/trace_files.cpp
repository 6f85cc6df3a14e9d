#include "interop/traces/trace_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTimedSchema = "foreshard.timed/1";
constexpr std::int64_t kMostMemory = std::int64_t{1} << 56;

std::vector<fs::path> list_traces(const fs::path& folder) {
  std::vector<fs::path> named, others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.ends_with(".timed.json")) continue;
    if (name.ends_with(".trace.json") || name.ends_with(".trace.json.gz")) {
      named.push_back(entry.path());
    } else if (name.ends_with(".json") || name.ends_with(".json.gz")) {
      others.push_back(entry.path());
    }
  }
  std::vector<fs::path>& list = named.empty() ? others : named;
  std::sort(list.begin(), list.end());
  return list;
}

fs::path beside(const fs::path& trace) {
  std::string name = trace.filename().string();
  for (const char* ending : {".gz", ".json", ".trace"}) {
    if (name.ends_with(ending)) name.resize(name.size() - std::string_view(ending).size());
  }
  return trace.parent_path() / (name + ".timed.json");
}

void read_beside(const fs::path& path, FsdpTrace& trace) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  const ConfigNode root = read_json_file(path);
  const std::string schema = root.at("schema").as_string();
  if (schema != kTimedSchema) {
    throw root.at("schema").error("unknown " + quote(schema), kTimedSchema);
  }
  trace.host = root.at("host").as_string();
  trace.created = root.at("created").as_string();
  trace.rank = root.at("rank").as_int(0, std::int64_t{1} << 20);
  trace.world = root.at("world").as_int(1, std::int64_t{1} << 20);
  const ConfigNode versions = root.at("versions");
  for (const ConfigItem& item : versions.items()) {
    trace.versions.emplace_back(item.key, item.value.as_string());
  }
  if (const ConfigNode* calls = root.find("collectives"); calls != nullptr && !calls->is_null()) {
    trace.collectives.clear();
    for (const ConfigNode& call : calls->elements()) {
      trace.collectives.push_back({call.at("kind").as_string(),
                                   call.at("bytes").as_int(0, kMostMemory),
                                   call.at("ranks").as_int(1, std::int64_t{1} << 20)});
    }
  }
  const ConfigNode memory = root.at("memory");
  if (memory.is_null()) return;
  trace.peak_allocated = Bytes(memory.at("peak_allocated_bytes").as_int(0, kMostMemory));
  trace.peak_reserved = Bytes(memory.at("peak_reserved_bytes").as_int(0, kMostMemory));
}

}  // namespace

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && fs::exists(path / "run.json", ignored);
}

std::vector<FsdpTrace> read_job_traces(const fs::path& path) {
  std::error_code ignored;
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path, ignored)) {
    files = list_traces(path);
    if (files.empty()) {
      throw Error(ExitCode::kInvalidInput,
                  fmt::format("{}: is neither a run folder nor has it traces (*.trace.json.gz)",
                              path.string()));
    }
  }
  std::vector<FsdpTrace> traces;
  for (const fs::path& file : files) {
    traces.push_back(read_fsdp_steps(read_kineto(file)));
    read_beside(beside(file), traces.back());
    if (traces.back().rank < 0) traces.back().rank = static_cast<std::int64_t>(traces.size()) - 1;
  }
  std::stable_sort(traces.begin(), traces.end(),
                   [](const FsdpTrace& a, const FsdpTrace& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < traces.size(); ++i) {
    if (traces[i].rank != traces[i - 1].rank) continue;
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{} and {} are both of rank {}", traces[i - 1].file, traces[i].file,
                            traces[i].rank));
  }
  return traces;
}

}  // namespace foreshard
