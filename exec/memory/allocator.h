// The allocator behind every CPU tensor of the engine: blocks of a reserved address range, best
// fit, neighbours merged, nothing ever given back. A step that repeats then touches the same pages
// again, without page faults, and its highest use is known to the byte.
//
// Sizes are rounded up to 512 bytes as the forecast counts them (sim/graph/layers/layer_program.h).
#pragma once

#include <cstdint>

namespace foreshard {

// Counts the bytes that one rank's tensors hold. Blocks remember whose they are, so that a thread
// may free what another allocated.
struct MemoryAccount {
  std::int64_t now = 0;
  std::int64_t peak = 0;
};

// Makes it the allocator of CPU tensors of the whole process, once; later calls do nothing.
void install_allocator();

// Whose account this thread's tensors count towards; nullptr: nobody's.
MemoryAccount* current_account();

// Tensors that this thread makes count towards `account` (nullptr: nobody's) while this lives.
class AccountScope {
 public:
  explicit AccountScope(MemoryAccount* account);
  ~AccountScope();
  AccountScope& operator=(AccountScope&&) = delete;  // nor is it copied

 private:
  MemoryAccount* before_;
};

}
