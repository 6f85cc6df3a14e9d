// A folder is tried with a file in it, since rights, quotas and read-only mounts all show there.
#include "exec/run/checkpoint_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "exec/state/checkpoint_index.h"
#include "exec/state/durable_file.h"
#include "sim/base/error.h"
#include "sim/base/held_size_signal.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// Makes the folder; returns those that were not there, the innermost first.
std::vector<fs::path> make_folder(const fs::path& folder) {
  std::vector<fs::path> made;
  std::error_code error;
  for (fs::path p = fs::absolute(folder); !p.empty() && !fs::exists(p, error); p = p.parent_path()) made.push_back(p);
  error.clear();
  fs::create_directories(folder, error);
  if (!error && fs::is_directory(folder, error)) return made;
  throw invalid_input("cannot write to {}: {}", folder.string(), error ? error.message() : "it is no folder");
}

void remove_made(const std::vector<fs::path>& made) {
  std::error_code ignored;
  for (const fs::path& path : made) fs::remove(path, ignored);
}

// A file that the disk took a block of.
void write_probe(const fs::path& file) {
  const HeldSizeSignal held;
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw invalid_input("{}", "cannot write " + file_error(file, errno));
  const std::string block(512, ' ');
  const bool written = ::write(descriptor, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  const int error = errno;
  ::close(descriptor);
  ::unlink(file.c_str());
  if (!written) throw invalid_input("{}", "cannot write " + file_error(file, error));
}

std::string probe_name() { return fmt::format(".writing-probe-{}", ::getpid()); }

void check_space(const ClaimOptions& options, std::int64_t checkpoints) {
  std::error_code error;
  const fs::space_info space = fs::space(options.folder, error);
  if (error) return;
  const std::int64_t wanted = checkpoints > 0 ? 1 : 2;
  const std::int64_t bytes = options.checkpoint_bytes * wanted;
  if (space.available >= static_cast<std::uintmax_t>(bytes)) return;
  throw invalid_input("{}: the disk has {} free, but {} of {} need {}; free some, or name another folder",
      options.folder.string(), format_bytes(Bytes(static_cast<std::int64_t>(space.available))),
      wanted == 1 ? "another checkpoint" : "two checkpoints", format_bytes(Bytes(options.checkpoint_bytes)),
      format_bytes(Bytes(bytes)));
}

}

FolderLock CheckpointClaim::make_and_lock(const fs::path& folder) {
  make_folder(folder);
  return FolderLock(folder, FolderLock::Held::kWhileTraining);
}

CheckpointClaim::CheckpointClaim(const ClaimOptions& options) : lock_(make_and_lock(options.folder)) {
  write_probe(options.folder / probe_name());
  std::vector<CheckpointEntry> there = list_checkpoints(options.folder);
  std::erase_if(there, [](const CheckpointEntry& entry) { return !entry.saved; });
  check_space(options, std::ssize(there));
  if (there.empty()) return;
  const fs::path newest = there.back().path;
  const RunProgress progress = read_index(newest).progress;
  const auto job = progress.metadata.find(kJobKey);
  if (job != progress.metadata.end()) {
    const std::vector<FactChange> changes = unaccepted(
        changes_of(job_identity_of(job->second, newest.string()).values, options.job.values), options.accepted);
    if (!changes.empty()) {
      throw invalid_input("{} holds checkpoints of another job: {}; give each job a folder of its own",
          options.folder.string(), in_words(changes));
    }
  }
  std::int64_t furthest = 0;
  for (const CheckpointEntry& entry : there) furthest = std::max(furthest, entry.step);
  if (furthest >= options.first_step) {
    note_ = fmt::format(
        "{} holds step {} of this job already, which stays until this run comes to it; --resume {} would go on from it",
        options.folder.string(), furthest, options.folder.string());
  }
}

std::vector<FactChange> unaccepted(std::vector<FactChange> changes, const std::vector<std::string>& accepted) {
  std::erase_if(changes, [&](const FactChange& change) { return contains(accepted, change.key); });
  return changes;
}

void try_folder(const fs::path& folder) {
  const std::vector<fs::path> made = make_folder(folder);
  try {
    write_probe(folder / probe_name());
  } catch (const Error&) {
    remove_made(made);
    throw;
  }
  remove_made(made);
}

void try_file(const fs::path& file) {
  const int there = ::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (there >= 0) {
    ::close(there);
    return;
  }
  if (errno != ENOENT) throw invalid_input("{}", "cannot write " + file_error(file, errno));
  write_probe(file);
}

}
