// A checkpoint appears by one rename and disappears by one rename, to a name that begins with
// ".writing-", before its files go. Where there is one of the same step already, the two exchange
// their names in one system call; a file system that cannot do that keeps the old one as
// ".replaced-<name>" until the new one is in place, and readers take that name for the real one.

#include "exec/state/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "exec/state/checkpoint_index.h"
#include "exec/state/durable_file.h"
#include "sim/base/error.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kReplaced = ".replaced-";
constexpr auto kPatience = std::chrono::seconds(30);
constexpr auto kPatienceAtStart = std::chrono::seconds(5);

[[noreturn]] void fail(const fs::path& path, const std::error_code& error) {
  throw invalid_input("{}: {}", path.string(), error.message());
}

void move_name(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(from, error);
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory) fail(folder, error);
  std::ranges::sort(names);
  return names;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Takes the checkpoint out of the readers' sight first: a removal that is cut off must not leave half of one.
void remove_checkpoint(const fs::path& path) {
  const fs::path out_of_sight = path.parent_path() / fmt::format("{}removed-{}", kWriting, path.filename().string());
  move_name(path, out_of_sight);
  std::error_code error;
  fs::remove_all(out_of_sight, error);
  if (error) fail(out_of_sight, error);
}

std::string text_of(int file) {
  char text[256];
  const ssize_t count = ::pread(file, text, sizeof text, 0);
  return count > 0 ? std::string(text, at(count)) : std::string();
}

// Who holds it. Shows a full or read-only disk, too.
void sign(const fs::path& path, int file) {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '?';
  const std::string text = fmt::format("process {} on {}", ::getpid(), host);
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw Error(ExitCode::kInvalidInput, "cannot write " + file_error(path, errno));
}

std::optional<std::int64_t> saved_number(const fs::path& checkpoint) {
  try {
    return read_index(checkpoint).saved;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kStep, step); }

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto step = leading_number<std::int64_t>(std::string_view(name).substr(kStep.size()), -1);
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> readable;
  std::vector<CheckpointEntry> unreadable;
  for (const fs::path& path : names_in(folder)) {
    std::string name = path.filename().string();
    if (name.starts_with(kReplaced)) {
      name = name.substr(kReplaced.size());
      if (is_there(folder / name)) continue;
    }
    const std::optional<std::int64_t> step = step_of_name(name);
    if (!step) continue;
    const std::optional<std::int64_t> saved = saved_number(path);
    (saved ? readable : unreadable).push_back({path, *step, saved});
  }
  const auto key = [](const CheckpointEntry& entry) { return std::pair(entry.saved, entry.step); };
  const auto by_step = [](const auto& a, const auto& b) { return a.step < b.step; };
  std::ranges::sort(readable, [&](const auto& a, const auto& b) { return key(a) < key(b); });
  std::ranges::sort(unreadable, by_step);
  for (CheckpointEntry& entry : unreadable) {
    const auto before =
        std::find_if(readable.rbegin(), readable.rend(), [&](const auto& other) { return other.step < entry.step; });
    readable.insert(before.base(), std::move(entry));
  }
  return readable;
}

FolderLock::FolderLock(const fs::path& folder, Held held) {
  const bool training = held == Held::kWhileTraining;
  const fs::path path = folder / (training ? ".training" : ".lock");
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw Error(ExitCode::kInvalidInput, "cannot write " + file_error(path, errno));
  const auto give_up = std::chrono::steady_clock::now() + (training ? kPatienceAtStart : kPatience);
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;
    if (std::chrono::steady_clock::now() > give_up) {
      const std::string holder = text_of(descriptor_);
      ::close(descriptor_);
      throw invalid_input("{}: another run{} is saving its checkpoints here; give each run a folder of its own",
          folder.string(), holder.empty() ? "" : " (" + holder + ")");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (training) sign(path, descriptor_);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& path : names_in(folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kReplaced) && step_of_name(name.substr(kReplaced.size()))) {
      const fs::path original = folder / name.substr(kReplaced.size());
      if (!is_there(original)) {
        move_name(path, original);
        continue;
      }
    } else if (!name.starts_with(kWriting)) {
      continue;
    }
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail(path, error);
  }
}

fs::path make_working_folder(const fs::path& folder, std::int64_t step) {
  fs::path working = folder / fmt::format("{}{}-{}", kWriting, checkpoint_name(step), ::getpid());
  std::error_code error;
  fs::create_directory(working, error);
  if (error) fail(working, error);
  return working;
}

fs::path put_in_place(const fs::path& working, std::int64_t step) {
  const fs::path folder = working.parent_path();
  fs::path target = folder / checkpoint_name(step);
  const fs::path aside = folder / fmt::format("{}{}", kReplaced, checkpoint_name(step));
  fs::path old;
  if (!is_there(target)) {
    move_name(working, target);
  } else if (::renameat2(AT_FDCWD, working.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    old = working;
  } else {
    move_name(target, aside);
    move_name(working, target);
    old = aside;
  }
  sync_folder(folder);
  if (!old.empty()) {
    // The next save tries again.
    std::error_code ignored;
    fs::remove_all(old, ignored);
  }
  return target;
}

std::vector<std::string> remove_oldest(const fs::path& folder, std::int64_t keep, std::int64_t spared_from) {
  std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  std::erase_if(
      entries, [spared_from](const CheckpointEntry& entry) { return !entry.saved || entry.step >= spared_from; });
  std::vector<std::string> failures;
  const std::int64_t excess = std::ssize(entries) - keep;
  for (std::int64_t i = 0; i < excess; ++i) {
    try {
      remove_checkpoint(entries[at(i)].path);
    } catch (const Error& error) {
      failures.push_back(std::string("an old checkpoint could not be removed: ") + error.what());
    }
  }
  return failures;
}

}
