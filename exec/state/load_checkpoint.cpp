// Rank 0 lists the candidates, newest first. For each, the ranks read the index, compare it with their layout, and read
// what falls into their shards; after each of these they tell each other how it went. Damage found by any rank sends
// all of them to the next candidate; another model ends the search, since an older checkpoint would not fit either.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "exec/memory/parameter_cut.h"
#include "exec/state/checkpoint.h"
#include "exec/state/checkpoint_reader.h"
#include "exec/state/durable_file.h"
#include "exec/state/together.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// The names of the candidates in the folder, newest first, one per line; "" where `path` is a checkpoint itself.
std::string list_candidates(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw invalid_input("checkpoint {}: {}", path.string(), error ? error.message() : "no such folder");
  const fs::path normal = fs::weakly_canonical(path, error);
  if (fs::exists(path / kIndexName, error) || step_of_name(normal.filename().string())) return "";
  std::vector<CheckpointEntry> entries = list_checkpoints(path);
  std::ranges::reverse(entries);
  std::string names;
  for (const CheckpointEntry& entry : entries) names += entry.path.filename().string() + "\n";
  if (names.empty()) throw invalid_input("{}: there is no checkpoint in this folder", path.string());
  return names;
}

void check_same_model(const CheckpointReader& reader, const TrainingState& state) {
  std::set<std::string> wanted;
  for (const StateUnit& unit : state.units) {
    for (const StateParameter& parameter : unit.parameters) {
      wanted.insert(parameter.name);
      const StateParameter* const stored = reader.find(parameter.name);
      if (stored == nullptr) throw invalid_input("it has no parameter {}", quote(parameter.name));
      if (stored->shape != parameter.shape) {
        throw invalid_input("its parameter {} has the shape {}, but the model's has {}", quote(parameter.name),
            shape_text(stored->shape), shape_text(parameter.shape));
      }
      for (const StateArray& array : unit.arrays)
        if (!reader.has_array(parameter.name, array.name))
          throw invalid_input("it has no array {} for parameter {}", quote(array.name), quote(parameter.name));
    }
  }
  for (const StateUnit& unit : reader.index().units) {
    for (const StateParameter& parameter : unit.parameters)
      if (!wanted.contains(parameter.name))
        throw invalid_input("its parameter {} is not in the model", quote(parameter.name));
  }
}

std::vector<StateRange> ranges_of(const TrainingState& state) {
  std::vector<StateRange> ranges;
  for (const StateUnit& unit : state.units) {
    const std::int64_t begin = state.shard_index * unit.shard_numel;
    for (const StateParameter& parameter : unit.parameters) {
      const std::int64_t from = std::max(begin, parameter.offset);
      const std::int64_t to = std::min(begin + unit.shard_numel, parameter.offset + parameter.numel);
      if (from >= to) continue;
      const ParameterCut part = cut_of(parameter.shape, parameter.cut, parameter.parts, state.part_index);
      for (const StateArray& array : unit.arrays) {
        const std::int64_t size = size_of(array.dtype);
        for (std::int64_t at = from; at < to;) {
          const std::int64_t own = at - parameter.offset;
          const std::int64_t run = part.run(own, to - at);
          ranges.push_back({parameter.name, array.name, part.whole(own), array.dtype,
              array.data.subspan(static_cast<std::size_t>((at - begin) * size), static_cast<std::size_t>(run * size))});
          at += run;
        }
      }
    }
  }
  return ranges;
}

void clear(const TrainingState& state) {
  for (const StateUnit& unit : state.units)
    for (const StateArray& array : unit.arrays) std::ranges::fill(array.data, std::byte{0});
}

class Load {
 public:
  Load(const TrainingState& state, World& world) : state_(state), world_(world) {}

  // The loaded checkpoint, or what is damaged about this one. Throws where it is another model's.
  std::optional<LoadedCheckpoint> try_one(const fs::path& path) {
    std::optional<CheckpointReader> reader;
    const std::vector<RankOutcome> opened = do_together(world_, "checkpoint.open", [&] {
      reader.emplace(path);
      return std::to_string(reader->index().checksum);
    });
    if (is_damaged(opened)) return std::nullopt;
    succeed_together(world_, "checkpoint.match", [&] {
      if (opened[at(world_.rank())].text != opened[0].text)
        throw invalid_input(
            "checkpoint {}: the ranks read different ones; use a folder that all ranks see", path.string());
      try {
        check_same_model(*reader, state_);
      } catch (const Error& error) {
        throw invalid_input("checkpoint {} is of another model: {}", path.string(), error.what());
      }
      return std::string();
    });
    const std::vector<RankOutcome> read = do_together(world_, "checkpoint.read", [&] {
      clear(state_);
      reader->read(ranges_of(state_));
      return std::string();
    });
    if (is_damaged(read)) return std::nullopt;
    return LoadedCheckpoint{path, reader->index().progress, {}, reader->bytes_read()};
  }

  const std::string& damage() const { return damage_; }

 private:
  bool is_damaged(const std::vector<RankOutcome>& outcomes) {
    const RankOutcome* const failure = first_failure(outcomes);
    if (failure == nullptr) return false;
    if (failure->exit_code != ExitCode::kInvalidInput) throw Error(failure->exit_code, failure->text);
    damage_ = failure->text;
    return true;
  }

  const TrainingState& state_;
  World& world_;
  std::string damage_;
};

}

LoadedCheckpoint load_checkpoint(const fs::path& path, const TrainingState& state, World& world) {
  const std::vector<RankOutcome> listed = succeed_together(world, "checkpoint.list", [&] {
    check_layout(state);
    return world.rank() == 0 ? list_candidates(path) : std::string();
  });
  Load load(state, world);
  std::string_view names = listed[0].text;
  if (names.empty()) {
    std::optional<LoadedCheckpoint> loaded = load.try_one(path);
    if (!loaded) throw invalid_input("checkpoint {} cannot be used: {}", path.string(), load.damage());
    return *std::move(loaded);
  }
  std::vector<std::string> passed_over;
  while (!names.empty()) {
    const fs::path candidate = path / names.substr(0, names.find('\n'));
    names.remove_prefix(names.find('\n') + 1);
    if (std::optional<LoadedCheckpoint> loaded = load.try_one(candidate)) {
      loaded->passed_over = std::move(passed_over);
      return *std::move(loaded);
    }
    passed_over.push_back(fmt::format("checkpoint {} is not used: {}", candidate.string(), load.damage()));
  }
  throw invalid_input("{}: no checkpoint in this folder can be used: {}", path.string(), fmt::join(passed_over, "; "));
}

}
