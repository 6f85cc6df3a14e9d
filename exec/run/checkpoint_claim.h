// The folder that a run saves its checkpoints to: made, tried, and its own while it trains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "exec/run/facts.h"
#include "exec/state/checkpoint_folder.h"

namespace foreshard {

// Key of RunProgress::metadata: to_text(JobIdentity).
inline constexpr const char* kJobKey = "job";

struct ClaimOptions {
  std::filesystem::path folder;
  JobIdentity job;
  std::vector<std::string> accepted;  // keys of the job that may differ from what is there
  std::int64_t first_step = 1;        // of this run
  std::int64_t checkpoint_bytes = 0;  // of one checkpoint, all shards
};

// By rank 0, before the first step. Throws Error(kInvalidInput) where another run holds the folder,
// where the newest checkpoint in it is of another job, where it cannot be written, and where the
// disk has no room for two checkpoints (or for one, where one is there already).
class CheckpointClaim {
 public:
  explicit CheckpointClaim(const ClaimOptions& options);
  const std::string& note() const { return note_; }  // a sentence for the user, or ""

 private:
  FolderLock make_and_lock(const std::filesystem::path& folder);
  FolderLock lock_;
  std::string note_;
};

// The changes that are not accepted.
std::vector<FactChange> unaccepted(std::vector<FactChange> changes, const std::vector<std::string>& accepted);

// Throw Error(kInvalidInput), naming it, where a folder cannot be made and written to, or a file
// not be written. Neither leaves anything behind, nor alters a file that is there.
void try_folder(const std::filesystem::path& folder);
void try_file(const std::filesystem::path& file);

}
