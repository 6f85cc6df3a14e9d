// Blocks that are allocated are grouped by size and by the innermost frame that is not PyTorch's
// own. The trace is a list of allocations and frees up to the moment of the snapshot: the level at
// its begin is the level now less what came and plus what went.
#include "reports/diagnose/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reports/validate/pickle_read.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRounding = 512;  // of the caching allocator (c10/cuda, kMinBlockSize)
constexpr std::size_t kMostFindings = 5;

std::int64_t rounded(std::int64_t bytes) { return (bytes + kRounding - 1) / kRounding * kRounding; }

std::string where_of(const PickleValue* frames) {
  if (frames == nullptr || frames->list().empty()) return "";
  const auto file = [](const PickleValue* frame) {
    const PickleValue* name = frame->find("filename");
    return name == nullptr ? std::string_view() : name->text();
  };
  const auto is_own = [&](const PickleValue* frame) {
    const std::string_view name = file(frame);
    return name.ends_with(".py") && !contains(name, "/torch/");
  };
  const PickleValue::List& list = frames->list();
  auto own = std::ranges::find_if(list, is_own);
  if (own == list.end()) own = list.begin();
  const std::string_view path = file(*own);
  const PickleValue* line = (*own)->find("line");
  const PickleValue* name = (*own)->find("name");
  return fmt::format("{}:{} {}", path.substr(path.rfind('/') + 1), line == nullptr ? 0 : line->integer(),
      name == nullptr ? std::string_view() : name->text());
}

std::int64_t bytes_of(const PickleValue& value, std::string_view key) {
  const PickleValue* found = value.find(key);
  const std::int64_t bytes = found == nullptr ? 0 : found->integer();
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  if (bytes < 0 || bytes > kMost)
    throw Error(ExitCode::kInvalidInput, fmt::format("snapshot: {}: {} is no size", key, bytes));
  return bytes;
}

std::int64_t device_of(const PickleValue& segment) { return bytes_of(segment, "device"); }

// The device that reserved most.
std::int64_t busiest(const PickleValue::List& segments) {
  std::map<std::int64_t, std::int64_t> reserved;
  for (const PickleValue* segment : segments) reserved[device_of(*segment)] += bytes_of(*segment, "total_size");
  const auto most =
      std::ranges::max_element(reserved, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == reserved.end() ? 0 : most->first;
}

// Signed bytes of every allocation and free, in order.
std::vector<std::int64_t> changes_of(const PickleValue& root, std::int64_t device) {
  std::vector<std::int64_t> changes;
  const PickleValue* traces = root.find("device_traces");
  if (traces == nullptr || traces->list().size() <= at(device)) return {};
  for (const PickleValue* event : traces->list()[at(device)]->list()) {
    const PickleValue* action = event->find("action");
    if (action == nullptr) continue;
    const std::int64_t size = bytes_of(*event, "size");
    if (action->text() == "alloc") changes.push_back(size);
    if (action->text() == "free_completed") changes.push_back(-size);
  }
  return changes;
}

void follow_trace(const std::vector<std::int64_t>& changes, SnapshotMemory& memory) {
  constexpr std::size_t kParts = 3;
  std::int64_t level = memory.allocated.count();
  for (const std::int64_t change : changes) level -= change;
  std::vector<std::int64_t> least(kParts, level);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const std::size_t part = i * kParts / changes.size();
    const bool is_new = i > 0 && (i - 1) * kParts / changes.size() != part;
    level += changes[i];
    least[part] = is_new ? level : std::min(least[part], level);
    memory.peak = std::max(memory.peak, Bytes(level));
  }
  memory.growth = Bytes(std::max<std::int64_t>(0, least.back() - least.front()));
}

bool is_much(Bytes growth, const SnapshotMemory& of) {
  constexpr std::int64_t kLeast = std::int64_t{32} << 20;
  return growth.count() > std::max(kLeast, of.allocated.count() / 100);
}

std::string in_words(const SnapshotTensors& tensors) {
  return fmt::format(
      "{} of {}{}{}", tensors.count, format_bytes(tensors.each), tensors.where.empty() ? "" : " from ", tensors.where);
}

Bytes growth_of(const std::vector<SnapshotMemory>& snapshots) {
  return snapshots.size() > 1 ? snapshots.back().allocated - snapshots.front().allocated : snapshots.front().growth;
}

}

SnapshotMemory read_snapshot(std::string_view bytes, std::string_view file) {
  const PickleDocument document = read_pickle(bytes, file);
  const PickleValue* segments = document.root->find("segments");
  if (segments == nullptr) {
    throw Error(ExitCode::kInvalidInput,
        fmt::format("{}: no 'segments'; expected what torch.cuda.memory._dump_snapshot writes", file));
  }
  const std::int64_t device = busiest(segments->list());
  SnapshotMemory memory;
  std::map<std::pair<std::int64_t, std::string>, std::int64_t> live;
  for (const PickleValue* segment : segments->list()) {
    if (device_of(*segment) != device) continue;
    memory.reserved = memory.reserved + Bytes(bytes_of(*segment, "total_size"));
    const PickleValue* blocks = segment->find("blocks");
    if (blocks == nullptr) continue;
    for (const PickleValue* block : blocks->list()) {
      const PickleValue* state = block->find("state");
      if (state == nullptr || state->text() != "active_allocated") continue;
      memory.allocated = memory.allocated + Bytes(bytes_of(*block, "size"));
      const std::int64_t asked = bytes_of(*block, "requested_size");
      ++live[{asked > 0 ? asked : bytes_of(*block, "size"), where_of(block->find("frames"))}];
    }
  }
  for (const auto& [what, count] : live) memory.live.push_back({what.second, Bytes(what.first), count});
  std::ranges::stable_sort(memory.live, [](const auto& a, const auto& b) { return a.total() > b.total(); });
  memory.peak = memory.allocated;
  follow_trace(changes_of(*document.root, device), memory);
  return memory;
}

std::set<std::int64_t> forecast_sizes(const Forecast& forecast) {
  std::set<std::int64_t> sizes;
  const EventGraph& graph = forecast.graph;
  for (std::int32_t id = 0; id < graph.buffer_count(); ++id) sizes.insert(rounded(graph.buffer(id).bytes.count()));
  return sizes;
}

bool grows(const std::vector<SnapshotMemory>& snapshots) {
  return !snapshots.empty() && is_much(growth_of(snapshots), snapshots.back());
}

std::vector<std::string> snapshot_findings(const std::vector<SnapshotMemory>& snapshots, const Forecast& forecast) {
  std::vector<std::string> findings;
  if (snapshots.empty()) return findings;
  const SnapshotMemory& last = snapshots.back();
  findings.push_back(fmt::format("the snapshot has {} allocated, {} at its peak; the forecast's peak is {}",
      format_bytes(last.allocated), format_bytes(last.peak), format_bytes(forecast.memory.peak)));
  if (grows(snapshots)) {
    findings.push_back(fmt::format("memory grew by {} {}", format_bytes(growth_of(snapshots)),
        snapshots.size() > 1 ? "from the first snapshot to the last" : "over the snapshot's trace"));
    std::map<std::pair<std::string, std::int64_t>, std::int64_t> before;
    for (const SnapshotTensors& each : snapshots.front().live) before[{each.where, each.each.count()}] = each.count;
    std::vector<SnapshotTensors> grown;
    for (SnapshotTensors each : last.live) {
      each.count -= before[{each.where, each.each.count()}];
      if (snapshots.size() > 1 && is_much(each.total(), last)) grown.push_back(each);
    }
    grown.resize(std::min(grown.size(), kMostFindings));
    for (const SnapshotTensors& each : grown) findings.push_back("more than before: " + in_words(each));
  }
  const std::set<std::int64_t> known = forecast_sizes(forecast);
  std::size_t shown = 0;
  for (const SnapshotTensors& each : last.live) {
    if (shown == kMostFindings || !is_much(each.total(), last)) break;
    if (known.contains(rounded(each.each.count()))) continue;
    findings.push_back("the forecast has none of that size: " + in_words(each));
    ++shown;
  }
  return findings;
}

}
