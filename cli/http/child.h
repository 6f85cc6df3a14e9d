// Work in a process of its own, so that memory and CPU time can be bounded, and whoever no longer
// wants the answer can end it at once and whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace foreshard {

struct ChildBounds {
  std::int64_t cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  // more than there is when it begins
};

struct Child {
  pid_t pid = -1;
  int output = -1;  // to read from until its end; the caller's to close
};

// Runs `work` in a copy of this process, which must have one thread; what it returns is written to
// `output`. It works in `folder`, sees no descriptor and no standard stream of this process, and
// ends with it. Throws Error(kInternal) where the system gives no process.
Child start_child(
    const ChildBounds& bounds, const std::filesystem::path& folder, const std::function<std::string()>& work);

// How a child ended. Waits for it: its output has ended, or it was killed.
enum class ChildEnd : std::uint8_t { kDone, kOutOfTime, kOutOfMemory, kFailed };
ChildEnd end_of(const Child& child);

}
