// What the device says of itself: by FORESHARD_NULL_GPU, and numbers that all of CUDA's devices share.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "exec/null/device.h"

namespace foreshard::null {
namespace {

constexpr int kMostDevices = 16;

int read_int(std::string_view text) { return std::atoi(std::string(text).c_str()); }

}

const Properties& properties() {
  static const Properties p = [] {
    Properties made;
    const char* said = std::getenv("FORESHARD_NULL_GPU");
    std::string_view rest = said == nullptr ? "" : said;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
      const std::size_t equals = item.find('=');
      if (equals == std::string_view::npos) continue;
      const std::string_view name = item.substr(0, equals), value = item.substr(equals + 1);
      if (name == "name") made.name = value;
      if (name == "memory") made.memory = std::strtoull(std::string(value).c_str(), nullptr, 10);
      const std::pair<std::string_view, int*> numbers[] = {{"major", &made.major}, {"minor", &made.minor},
          {"devices", &made.devices}, {"multiprocessors", &made.multiprocessors}, {"l2", &made.l2_bytes},
          {"shared_per_multiprocessor", &made.shared_per_multiprocessor}, {"shared_per_block", &made.shared_per_block},
          {"threads_per_multiprocessor", &made.threads_per_multiprocessor},
          {"blocks_per_multiprocessor", &made.blocks_per_multiprocessor}};
      for (const auto& [known, place] : numbers)
        if (name == known) *place = read_int(value);
    }
    made.memory = made.memory / 512 * 512;
    made.devices = std::clamp(made.devices, 1, kMostDevices);
    return made;
  }();
  return p;
}

// Numbers: cudaDeviceAttr. Those of every compute capability: CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability". What is not listed is 1: supported.
int attribute(int which) {
  const Properties& p = properties();
  const std::pair<int, int> known[] = {{1, 1024},                     // threads per block
      {2, 1024},                                                      // block x, y, z
      {3, 1024}, {4, 64}, {5, 2147483647},                            // grid x, y, z
      {6, 65535}, {7, 65535}, {8, 49152},                             // shared memory per block without asking
      {9, 65536},                                                     // constant memory
      {10, 32},                                                       // warp
      {11, 2147483647},                                               // pitch
      {12, 65536},                                                    // registers per block
      {13, 1830000},                                                  // kHz
      {14, 512},                                                      // texture alignment
      {16, p.multiprocessors}, {33, 1 + current_device()},            // PCI bus
      {36, 2619000},                                                  // kHz, of the memory
      {37, 5120},                                                     // its bus
      {38, p.l2_bytes}, {39, p.threads_per_multiprocessor}, {40, 3},  // copy engines
      {75, p.major}, {76, p.minor}, {81, p.shared_per_multiprocessor}, {82, 65536},  // registers per multiprocessor
      {97, p.shared_per_block}, {106, p.blocks_per_multiprocessor},
      {111, p.major >= 8 ? 1024 : 0}};  // shared memory that is reserved for each block
  for (const auto& [number, value] : known)
    if (number == which) return value;
  // Not overlapping, no time limit, not integrated, default mode, no ECC, no PCI device and domain, no TCC, one GPU a
  // board, no host atomics, no pageable access, no multicast, no fabric handles, no GPUDirect storage.
  for (const int none : {15, 17, 18, 20, 32, 34, 35, 50, 84, 85, 86, 88, 89, 100, 101, 102, 103, 116, 128, 132})
    if (none == which) return 0;
  return 1;
}

void fill_properties(void* structure, const PropertyLayout& l) {
  const Properties& p = properties();
  auto* const base = static_cast<char*>(structure);
  std::memset(base, 0, l.size);
  std::strncpy(base, p.name.c_str(), 255);
  const auto put = [&](std::size_t at, auto value) { std::memcpy(base + at, &value, sizeof value); };
  put(256, std::uint64_t{0x466f726573686172});  // uuid: a device's own
  put(264, std::uint64_t{1} + static_cast<std::uint64_t>(current_device()));
  put(l.total_memory, p.memory);
  put(l.shared_per_block, std::uint64_t{49152});
  put(l.shared_per_multiprocessor, static_cast<std::uint64_t>(p.shared_per_multiprocessor));
  put(l.shared_optin, static_cast<std::uint64_t>(p.shared_per_block));
  put(l.reserved_shared, static_cast<std::uint64_t>(attribute(111)));
  put(l.const_memory, std::uint64_t{65536});
  put(l.pitch, std::uint64_t{2147483647});
  put(l.texture_alignment, std::uint64_t{512});
  const std::pair<std::size_t, int> of_attributes[] = {{l.registers_per_block, 12}, {l.warp, 10}, {l.max_threads, 1},
      {l.max_block, 2}, {l.max_block + 4, 3}, {l.max_block + 8, 4}, {l.max_grid, 5}, {l.max_grid + 4, 6},
      {l.max_grid + 8, 7}, {l.major, 75}, {l.minor, 76}, {l.multiprocessors, 16}, {l.concurrent, 31}, {l.bus, 33},
      {l.asynchronous, 40}, {l.unified, 41}, {l.l2, 38}, {l.threads_per_multiprocessor, 39},
      {l.registers_per_multiprocessor, 82}, {l.managed, 83}, {l.cooperative, 95}, {l.blocks_per_multiprocessor, 106}};
  for (const auto& [at, which] : of_attributes) put(at, attribute(which));
}

}
