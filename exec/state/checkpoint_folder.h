// The folder of a run's checkpoints: `step-00000010` and so on, each whole; names that begin with a
// dot are work in progress, what a killed run left of it, and the lock of whoever is saving.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace foreshard {

struct CheckpointEntry {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::optional<std::int64_t> saved;  // none: its index cannot be read
};

// Oldest first, in the order in which they were saved; one with an unreadable index is after those
// of smaller steps. Looks at the indices only, not at the data. No folder, no checkpoints.
// Throws Error(kInvalidInput) where the folder cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

std::string checkpoint_name(std::int64_t step);  // "step-00000010"
// The step of such a name; none for any other.
std::optional<std::int64_t> step_of_name(const std::string& name);

// Held by one rank of one run, while saving or for as long as it trains; goes with the process, however that ends.
class FolderLock {
 public:
  enum class Held : std::uint8_t { kWhileSaving, kWhileTraining };
  // Waits for another holder, up to 30 s while saving and 5 s while training (of a run that was killed just now), then
  // throws Error(kInvalidInput) with what the holder wrote. On a file system without locks it is no lock.
  explicit FolderLock(const std::filesystem::path& folder, Held held = Held::kWhileSaving);
  ~FolderLock();
  FolderLock& operator=(FolderLock&&) = delete;  // nor is it copied

 private:
  int descriptor_ = -1;
};

// The next four are for the holder of the lock; they throw Error(kInvalidInput).

// Removes what runs that died left behind; finishes a replacement that was cut off.
void remove_leftovers(const std::filesystem::path& folder);
// An empty folder to write a checkpoint in; its name begins with ".writing-".
std::filesystem::path make_working_folder(const std::filesystem::path& folder, std::int64_t step);
// Makes `working` the checkpoint of that step, durably; there is a whole one of that name at every
// moment if there was one before. Returns its path.
std::filesystem::path put_in_place(const std::filesystem::path& working, std::int64_t step);
// Removes the oldest that can be read until `keep` of those before step `spared_from` are left.
// Returns what could not be removed.
std::vector<std::string> remove_oldest(
    const std::filesystem::path& folder, std::int64_t keep, std::int64_t spared_from);

}
