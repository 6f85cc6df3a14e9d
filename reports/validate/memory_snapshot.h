// The predicted step as a PyTorch memory snapshot, the pickle that torch.cuda.memory._dump_snapshot
// writes: drop it on pytorch.org/memory_viz, or read it with torch.cuda._memory_viz.
//
// It shows the steady step: every allocation and free in host order, what they ask of the driver,
// and all segments after it. Frames name the tensor, then the event that the host was issuing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "sim/memory/caching_allocator.h"
#include "sim/memory/outside_allocator.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

std::string memory_snapshot(const Forecast& forecast, const AllocatorSettings& settings, const DeviceMemory& memory,
    const LibraryBuffers& library = {});

// Writes the subset of Python's pickle protocol 2 that data files need: None, booleans, integers, text, pairs, lists
// and dictionaries (docs.python.org/3/library/pickletools.html lists the opcodes).
//
// Containers are opened and closed like brackets; a dictionary takes keys and values in turn. Equal
// texts are written once and referred to afterwards.

class PickleWriter {
 public:
  PickleWriter();
  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void text(std::string_view value);                   // UTF-8, below 2^32 bytes
  void pair(std::int64_t first, std::int64_t second);  // a tuple
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();

  // Shorthands for an entry of a dictionary.
  void entry(std::string_view key, std::int64_t value) {
    text(key);
    integer(value);
  }
  void entry(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }
  // A dictionary's key whose value follows.
  void key(std::string_view name) { text(name); }

  // Ends the pickle; the writer is used up.
  std::string finish();

 private:
  void bytes(std::uint64_t value, int count);  // little endian

  std::string out_;
  std::unordered_map<std::string, std::uint32_t> memo_;  // looked up only, never iterated
};

}
