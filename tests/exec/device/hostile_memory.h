// The memory of a HostileGpu: mapped twice, once without access, which is what the host is given,
// and once for the work that lanes do. First fit, 512 bytes aligned.
#pragma once

#include <cstddef>
#include <map>

namespace foreshard {

class HostileMemory {
 public:
  explicit HostileMemory(std::size_t bytes);  // of addresses; pages come when they are touched
  ~HostileMemory();
  HostileMemory& operator=(HostileMemory&&) = delete;  // nor is it copied

  bool holds(const void* memory) const;
  // Where work finds what is at `memory`: there itself for the host's.
  std::byte* body(const void* memory) const;

  // Throws std::runtime_error where there is not that much.
  std::byte* take(std::size_t bytes);
  void put(std::byte* memory);
  // Between the end of who had it and put(): nobody may use it.
  void mark_freed(std::byte* memory, std::size_t bytes) { freed_[memory] = bytes; }
  void unmark_freed(std::byte* memory) { freed_.erase(memory); }
  // Whether any of these bytes is nobody's.
  bool is_freed(const std::byte* begin, std::size_t bytes) const;

 private:
  using Blocks = std::map<const std::byte*, std::size_t>;
  static bool overlaps(const Blocks& blocks, const std::byte* begin, std::size_t bytes);

  std::byte* face_ = nullptr;  // without access
  std::byte* body_ = nullptr;
  std::size_t bytes_ = 0;
  Blocks free_, taken_, freed_;
};

}
