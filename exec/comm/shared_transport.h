// Messages between processes of one host through memory that they share: several times faster than
// TCP over the loopback, and no thread of its own.
//
// The memory is anonymous (memfd): nothing is left behind however the processes end. A peer that
// ends is noticed through its pidfd within 50 ms, one that hangs through the timeout.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "exec/comm/transport.h"

namespace foreshard {

// Which processes can share memory: equal strings. Empty when this system cannot (it takes
// Linux 5.3).
std::string shared_memory_domain();

// The memory of one group: one member makes it, the others open it.
class SharedMemory {
 public:
  static std::shared_ptr<SharedMemory> create(int members);
  // `ticket` is the maker's. The maker must still hold its object.
  static std::shared_ptr<SharedMemory> open(const std::string& ticket, int members);
  ~SharedMemory();
  SharedMemory& operator=(SharedMemory&&) = delete;  // nor is it copied

  const std::string& ticket() const { return ticket_; }
  std::byte* data() const { return data_; }

 private:
  SharedMemory() = default;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::string ticket_;
};

struct SharedGroup {
  std::vector<int> ranks;      // of the world
  std::vector<int> processes;  // their process ids
  int index = 0;
  std::chrono::milliseconds timeout{};  // without any byte moving
};

std::unique_ptr<Transport> shared_transport(std::shared_ptr<SharedMemory> memory, const SharedGroup& group);

}
