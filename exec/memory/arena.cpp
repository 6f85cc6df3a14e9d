#include "exec/memory/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {

Arena::Arena(std::size_t bytes) : bytes_(bytes) {
  const auto available = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto physical = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > physical) {
    throw Error(ExitCode::kInfeasible,
                fmt::format("the plan needs {} for parameters and states on this rank; the machine "
                            "has {} ({} free)",
                            format_bytes(Bytes(static_cast<std::int64_t>(bytes))),
                            format_bytes(Bytes(static_cast<std::int64_t>(physical))),
                            format_bytes(Bytes(static_cast<std::int64_t>(available)))));
  }
  if (bytes == 0) return;
  void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) {
    throw Error(ExitCode::kInfeasible,
                fmt::format("no {} of memory for parameters and states",
                            format_bytes(Bytes(static_cast<std::int64_t>(bytes)))));
  }
  madvise(range, bytes, MADV_HUGEPAGE);  // a wish; nothing depends on it
  std::memset(range, 0, bytes);
  base_ = static_cast<std::byte*>(range);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace foreshard
