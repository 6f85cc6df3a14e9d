// One block of memory for everything that lives through the whole run: shards, states, parameter and gradient slots, at
// the offsets of sim/memory/arena.h. Zeroed, so that every page is there from the start and padding is zero.
#pragma once

#include <cstddef>

#include "exec/memory/rank_memory.h"

namespace foreshard {

class Arena {
 public:
  // Throws Error(kInfeasible) where there is not that much. A reference to `memory` is kept.
  explicit Arena(std::size_t bytes, RankMemory& memory = host_memory());
  ~Arena();
  Arena& operator=(Arena&&) = delete;  // nor is it copied

  std::byte* at(std::size_t offset) const { return base_ + offset; }
  std::size_t size() const { return bytes_; }

 private:
  RankMemory& memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}
