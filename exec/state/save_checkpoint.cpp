// Three times the ranks do something and tell each other how it went: rank 0 makes a working folder
// and all compare their layouts; replica 0 of every shard writes and syncs its file; rank 0 writes
// and syncs the index and gives the folder its name. After a failure rank 0 removes the working
// folder before anyone leaves, since the launcher may end all ranks as soon as one has left.

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <set>

#include "exec/state/checkpoint.h"
#include "exec/state/checkpoint_index.h"
#include "exec/state/safetensors.h"
#include "exec/state/together.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// What must be equal on all ranks, and then what must not be. (Metadata is rank 0's.)
std::string describe(const TrainingState& state, const RunProgress& progress) {
  Fingerprint hash;
  hash.add(static_cast<std::int64_t>(layout_fingerprint(state)));
  hash.add(progress.step).add(progress.next_sample).add(progress.seed);
  return fmt::format("{}/{}.{}", hash.hex(), state.file_index(), state.replica_index);
}

void check_ranks_agree(const std::vector<RankOutcome>& ranks, std::int64_t shards) {
  std::set<std::string> places;
  std::int64_t writers = 0;
  for (const RankOutcome& rank : ranks) {
    const std::string text = rank.text.substr(0, rank.text.find('\n'));
    const std::size_t slash = text.find('/');
    FORESHARD_CHECK(text.substr(0, slash) == ranks[0].text.substr(0, slash), "the ranks do not save the same run");
    FORESHARD_CHECK(places.insert(text).second, "two ranks save the same shard and replica");
    if (text.ends_with(".0")) ++writers;
  }
  FORESHARD_CHECK(writers == shards, "a checkpoint needs every shard of replica 0 once");
}

std::string file_name(std::int64_t shard, std::int64_t shards) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", shard, shards);
}

WrittenFile write_shard(const fs::path& path, const TrainingState& state) {
  std::vector<SafetensorsTensor> tensors;
  for (const StateUnit& unit : state.units)
    for (const StateArray& array : unit.arrays)
      tensors.push_back({tensor_name(unit, array), array.dtype, {unit.shard_numel}, array.data});
  const std::string front = safetensors_front(tensors, {{"format", "foreshard.checkpoint/1"}});
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(front))};
  for (const SafetensorsTensor& tensor : tensors) pieces.push_back(tensor.bytes);
  return write_durable_file(path, pieces);
}

// "SHARD BYTES CHECKSUM CHECKSUM ...": what a writing rank tells rank 0; numbers in hexadecimal.
std::string to_message(std::int64_t shard, const WrittenFile& file) {
  std::string text = fmt::format("{:x} {:x}", shard, file.bytes);
  for (const std::uint64_t checksum : file.checksums) text += fmt::format(" {:x}", checksum);
  return text;
}

std::vector<CheckpointFile> files_of(const std::vector<RankOutcome>& ranks, std::int64_t shards) {
  std::vector<CheckpointFile> files(at(shards));
  for (const RankOutcome& rank : ranks) {
    std::vector<std::uint64_t> numbers;
    for (std::size_t at = 0; at < rank.text.size();) {
      const std::size_t end = std::min(rank.text.find(' ', at), rank.text.size());
      std::from_chars(rank.text.data() + at, rank.text.data() + end, numbers.emplace_back(), 16);
      at = end + 1;
    }
    if (numbers.size() < 2) continue;  // a replica that does not write
    CheckpointFile& file = files.at(numbers[0]);
    file.name = file_name(static_cast<std::int64_t>(numbers[0]), shards);
    file.written.bytes = static_cast<std::int64_t>(numbers[1]);
    file.written.checksums.assign(numbers.begin() + 2, numbers.end());
  }
  return files;
}

std::int64_t next_saved_number(const fs::path& folder) {
  std::int64_t next = 1;
  for (const CheckpointEntry& entry : list_checkpoints(folder))
    next = std::max(next, checked_add(entry.saved.value_or(0), 1));
  return next;
}

class Save {
 public:
  Save(const CheckpointTarget& target, const TrainingState& state, const RunProgress& progress, World& world)
      : target_(target), state_(state), progress_(progress), world_(world) {}
  ~Save() { remove_working_folder(); }  // where the ranks lost each other
  Save& operator=(Save&&) = delete;     // nor is it copied

  SavedCheckpoint run() {
    const std::vector<RankOutcome> begun = do_step("checkpoint.begin", [this] { return begin(); });
    const std::string& of_first = begun[0].text;
    const fs::path working = target_.folder / of_first.substr(of_first.find('\n') + 1);
    const std::vector<RankOutcome> written = do_step("checkpoint.write", [&] {
      check_ranks_agree(begun, state_.files());
      if (state_.replica_index != 0) return std::string();
      const fs::path path = working / file_name(state_.file_index(), state_.files());
      return to_message(state_.file_index(), write_shard(path, state_));
    });
    do_step("checkpoint.commit", [&] {
      if (world_.rank() == 0) commit(files_of(written, state_.files()));
      return std::string();
    });
    return {target_.folder / checkpoint_name(progress_.step), std::move(warnings_)};
  }

 private:
  std::string begin() {
    FORESHARD_CHECK(
        state_.shards > 0 && state_.shard_index >= 0 && state_.shard_index < state_.shards, "a shard outside the mesh");
    check_layout(state_);
    FORESHARD_CHECK(progress_.step >= 0 && progress_.next_sample >= 0, "a run begins at 0");
    FORESHARD_CHECK(target_.keep >= 0, "a negative number of checkpoints to keep");
    std::string description = describe(state_, progress_);
    if (world_.rank() != 0) return description;
    std::error_code error;
    const bool is_new = fs::create_directories(target_.folder, error);
    if (error || !fs::is_directory(target_.folder, error)) {
      throw invalid_input(
          "cannot write checkpoints to {}: {}", target_.folder.string(), error ? error.message() : "it is no folder");
    }
    if (is_new) sync_folder(fs::absolute(target_.folder).parent_path());
    lock_.emplace(target_.folder);
    remove_leftovers(target_.folder);
    saved_ = next_saved_number(target_.folder);
    working_ = make_working_folder(target_.folder, progress_.step);
    return description.append("\n").append(working_.filename().string());
  }

  void commit(std::vector<CheckpointFile> files) {
    CheckpointIndex index;
    index.progress = progress_;
    index.saved = saved_;
    index.shards = state_.shards;
    index.replicas = state_.replicas;
    index.parts = state_.parts;
    index.units = state_.units;
    index.files = std::move(files);
    const std::string text = index_text(index);
    const fs::path path = working_ / kIndexName;
    parse_index(text, path.string());  // never leave one that no reader takes
    write_durable_file(path, text);
    sync_folder(working_);
    put_in_place(working_, progress_.step);
    working_.clear();
    if (target_.keep > 0) warnings_ = remove_oldest(target_.folder, target_.keep, target_.spared_from);
  }

  std::vector<RankOutcome> do_step(const std::string& topic, const std::function<std::string()>& work) {
    std::vector<RankOutcome> outcomes = do_together(world_, topic, work);
    const RankOutcome* const failure = first_failure(outcomes);
    if (failure == nullptr) return outcomes;
    remove_working_folder();
    world_.gather("checkpoint.removed", "");
    throw Error(failure->exit_code, failure->text);
  }

  void remove_working_folder() {
    if (working_.empty()) return;
    std::error_code ignored;  // the next save tries again
    fs::remove_all(working_, ignored);
    working_.clear();
  }

  const CheckpointTarget& target_;
  const TrainingState& state_;
  const RunProgress& progress_;
  World& world_;
  std::optional<FolderLock> lock_;  // rank 0
  fs::path working_;                // rank 0
  std::int64_t saved_ = 0;          // rank 0
  std::vector<std::string> warnings_;
};

}

SavedCheckpoint save_checkpoint(
    const CheckpointTarget& target, const TrainingState& state, const RunProgress& progress, World& world) {
  return Save(target, state, progress, world).run();
}

}
