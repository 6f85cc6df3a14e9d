#include "tests/exec/device/hostile_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <stdexcept>
#include <string>

namespace foreshard {
namespace {

constexpr std::size_t kGranularity = 512;

[[noreturn]] void memory_fault(const std::string& what) { throw std::runtime_error(what); }

}

HostileMemory::HostileMemory(std::size_t bytes) : bytes_(bytes) {
  const int file = ::memfd_create("hostile-gpu", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) memory_fault("no memory for a GPU");
  void* body = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* face = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (body == MAP_FAILED || face == MAP_FAILED) memory_fault("no addresses for a GPU");
  body_ = static_cast<std::byte*>(body);
  face_ = static_cast<std::byte*>(face);
  free_[face_] = bytes;
}

HostileMemory::~HostileMemory() {
  ::munmap(body_, bytes_);
  ::munmap(face_, bytes_);
}

bool HostileMemory::holds(const void* memory) const {
  const auto* at = static_cast<const std::byte*>(memory);
  return at >= face_ && at < face_ + bytes_;
}

std::byte* HostileMemory::body(const void* memory) const {
  auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(memory));
  return holds(memory) ? body_ + (at - face_) : at;
}

std::byte* HostileMemory::take(std::size_t bytes) {
  const std::size_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    std::byte* const memory = const_cast<std::byte*>(it->first);
    const std::size_t rest = it->second - size;
    free_.erase(it);
    if (rest > 0) free_[memory + size] = rest;
    taken_[memory] = size;
    return memory;
  }
  memory_fault("out of memory");
}

void HostileMemory::put(std::byte* memory) {
  const auto it = taken_.find(memory);
  if (it == taken_.end()) return;
  auto own = free_.emplace(memory, it->second).first;
  taken_.erase(it);
  if (const auto next = std::next(own); next != free_.end() && own->first + own->second == next->first) {
    own->second += next->second;
    free_.erase(next);
  }
  if (own != free_.begin()) {
    const auto before = std::prev(own);
    if (before->first + before->second == own->first) {
      before->second += own->second;
      free_.erase(own);
    }
  }
}

bool HostileMemory::overlaps(const Blocks& blocks, const std::byte* begin, std::size_t bytes) {
  const auto after = blocks.lower_bound(begin + bytes);
  return after != blocks.begin() && std::prev(after)->first + std::prev(after)->second > begin;
}

bool HostileMemory::is_freed(const std::byte* begin, std::size_t bytes) const {
  return holds(begin) && (overlaps(freed_, begin, bytes) || overlaps(free_, begin, bytes));
}

}
