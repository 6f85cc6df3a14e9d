#include "interop/traces/trace_bytes.h"
#include "sim/base/config.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr const char* kTimedSchema = "foreshard.timed/1";
constexpr std::int64_t kMostMemory = std::int64_t{1} << 56;
constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

}  // namespace

TimedFile read_timed_file(const std::filesystem::path& path) {
  TimedFile file;
  const ConfigNode root = read_json_file(path);
  const std::string schema = root.at("schema").as_string();
  if (schema != kTimedSchema) {
    throw root.at("schema").error("unknown " + quote(schema), kTimedSchema);
  }
  file.host = root.at("host").as_string();
  file.created = root.at("created").as_string();
  file.rank = root.at("rank").as_int(0, kMostRanks);
  file.world = root.at("world").as_int(1, kMostRanks);
  const ConfigNode versions = root.at("versions");
  for (const ConfigItem& item : versions.items()) {
    file.versions.emplace_back(item.key, item.value.as_string());
  }
  if (const ConfigNode* calls = root.find("collectives"); calls != nullptr && !calls->is_null()) {
    file.lists_collectives = true;
    for (const ConfigNode& call : calls->elements()) {
      const ConfigNode* stride = call.find("stride");
      file.collectives.push_back({call.at("kind").as_string(),
                                  call.at("bytes").as_int(0, kMostMemory),
                                  call.at("ranks").as_int(1, kMostRanks),
                                  stride == nullptr ? 0 : stride->as_int(1, kMostRanks)});
    }
  }
  const ConfigNode memory = root.at("memory");
  if (memory.is_null()) return file;
  file.peak_allocated = Bytes(memory.at("peak_allocated_bytes").as_int(0, kMostMemory));
  file.peak_reserved = Bytes(memory.at("peak_reserved_bytes").as_int(0, kMostMemory));
  return file;
}

}  // namespace foreshard
