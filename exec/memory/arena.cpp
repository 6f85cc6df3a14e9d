#include "exec/memory/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <exception>

#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::kInfeasible, what); }

class HostMemory final : public HostSideMemory {
 public:
  std::byte* allocate(std::size_t bytes) override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto available = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
    const auto physical = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    const auto words = [](std::size_t amount) { return format_bytes(Bytes(static_cast<std::int64_t>(amount))); };
    if (bytes > physical) {
      refuse(fmt::format("the plan needs {} for parameters and states on this rank; the machine has {} ({} free)",
          words(bytes), words(physical), words(available)));
    }
    if (bytes == 0) return nullptr;
    void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED) refuse(fmt::format("no {} of memory for parameters and states", words(bytes)));
    madvise(range, bytes, MADV_HUGEPAGE);  // a wish; nothing depends on it
    std::memset(range, 0, bytes);
    return static_cast<std::byte*>(range);
  }
  void release(std::byte* memory, std::size_t bytes) noexcept override { munmap(memory, bytes); }
};

}

RankMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

Arena::Arena(std::size_t bytes, RankMemory& memory) : memory_(memory), bytes_(bytes) {
  try {
    base_ = memory.allocate(bytes);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // the plugin's
    refuse(error.what());
  }
}

Arena::~Arena() {
  if (base_ != nullptr) memory_.release(base_, bytes_);
}

}
