#include "interop/traces/trace_bytes.h"

#include <fmt/format.h>

#include "reports/view/exact_seconds.h"
#include "sim/base/config.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

bool is_compared(const EventGraph& graph, std::size_t row, ComparedCollectives compared) {
  const EventKind kind = graph.rows[row].kind;
  const bool of_units =
      kind == EventKind::kAllGather || kind == EventKind::kReduceScatter || kind == EventKind::kAllReduce;
  if (compared == ComparedCollectives::kAll) return of_units || kind == EventKind::kAllToAll;
  return of_units && graph.details[row].unit >= 0;
}

// Whether the job named another group than the row's; false where either says nothing.
bool is_of_other_group(const EventGraph& graph, std::size_t row, const TracedCollectiveCall& call) {
  const std::uint8_t communicator = graph.rows[row].communicator;
  if (communicator == kNoCommunicator || call.stride == 0) return false;
  const GroupShape& group = graph.communicators[communicator].group;
  return group.size != call.ranks || (group.size > 1 && group.stride != call.stride);
}

// "4 ranks of cp"
std::string group_words(const EventGraph& graph, std::size_t row) {
  const std::uint8_t communicator = graph.rows[row].communicator;
  if (communicator == kNoCommunicator) return "a communicator of its own";
  const Communicator& of = graph.communicators[communicator];
  return fmt::format("{} ranks of {}", of.group.size, of.name);
}

}

std::vector<std::string> collective_differences(const EventGraph& graph, const EventNames& names,
    const std::vector<TracedCollectiveCall>& calls, ComparedCollectives compared) {
  std::vector<std::string> sentences;
  std::size_t next = 0, different = 0, rows = 0;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (!is_compared(graph, i, compared)) continue;
    ++rows;
    const std::string planned = fmt::format("{} of {} bytes ({})", to_string(graph.rows[i].kind),
        graph.works[graph.rows[i].work].bytes.count(), names.of(static_cast<EventId>(i)));
    if (next >= calls.size()) continue;
    const TracedCollectiveCall& call = calls[next++];
    const bool same = call.kind == to_string(graph.rows[i].kind) &&
                      call.bytes == graph.works[graph.rows[i].work].bytes.count() &&
                      (compared == ComparedCollectives::kOfUnits || !is_of_other_group(graph, i, call));
    if (same) continue;
    if (++different == 1) {
      const bool grouped = compared == ComparedCollectives::kAll;
      sentences.push_back(fmt::format("collective {} of the step is {} of {} bytes{}, the plan's {}{}", next, call.kind,
          call.bytes, grouped ? fmt::format(" over {} ranks", call.ranks) : "", planned,
          grouped ? fmt::format(" over {}", group_words(graph, i)) : ""));
    }
  }
  if (different > 1) sentences.push_back(fmt::format("{} collectives differ in all", different));
  if (rows != calls.size())
    sentences.push_back(fmt::format("the job issues {} collectives in a step, the plan {}", calls.size(), rows));
  return sentences;
}

namespace {

constexpr const char* kTimedSchema = "foreshard.timed/1";
constexpr std::int64_t kMostMemory = std::int64_t{1} << 56;
constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

}

TimedFile read_timed_file(const std::filesystem::path& path) {
  TimedFile file;
  const ConfigNode root = read_json_file(path);
  const std::string schema = root.at("schema").as_string();
  if (schema != kTimedSchema) throw root.at("schema").error("unknown " + quote(schema), kTimedSchema);
  file.host = root.at("host").as_string();
  file.created = root.at("created").as_string();
  file.rank = root.at("rank").as_int(0, kMostRanks);
  file.world = root.at("world").as_int(1, kMostRanks);
  const ConfigNode versions = root.at("versions");
  for (const ConfigItem& item : versions.items()) file.versions.emplace_back(item.key, item.value.as_string());
  if (const ConfigNode* calls = root.find("collectives"); calls != nullptr && !calls->is_null()) {
    file.lists_collectives = true;
    for (const ConfigNode& call : calls->elements()) {
      const ConfigNode* stride = call.find("stride");
      file.collectives.push_back({call.at("kind").as_string(), call.at("bytes").as_int(0, kMostMemory),
          call.at("ranks").as_int(1, kMostRanks), stride == nullptr ? 0 : stride->as_int(1, kMostRanks)});
    }
  }
  if (const ConfigNode* steps = root.find("steps_s"))
    for (const ConfigNode& step : steps->elements())
      file.steps.push_back(Time::seconds(step.as_double(0, kLongestTime.seconds())));
  const ConfigNode memory = root.at("memory");
  if (memory.is_null()) return file;
  file.peak_allocated = Bytes(memory.at("peak_allocated_bytes").as_int(0, kMostMemory));
  file.peak_reserved = Bytes(memory.at("peak_reserved_bytes").as_int(0, kMostMemory));
  if (const ConfigNode* grown = memory.find("grown_bytes"))
    file.grown = Bytes(grown->as_int(-kMostMemory, kMostMemory));
  if (const ConfigNode* retries = memory.find("retries")) file.retries = retries->as_double(0, 1e9);
  return file;
}

}
