// What a program asked of a GPU: every call in the order in which its process made them, as the null GPU writes it down
// (exec/null/, docs/capture.md). Counts and host times; what the GPU needs for it is not known.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/integers.h"

namespace foreshard {

struct CapturedCall {
  enum class Kind : std::uint8_t {
    kLaunch,       // values: grid x, y, z, block x, y, z, shared bytes, elements (-1: not known),
                   // bytes of the blocks that it is given, of the largest, their number; of strided tensors the bytes
                   // that they hold, those that warps ask for, dimensions (0: not said)
    kProduct,      // m, n, k (column-major), batch, type of the operands, of the result, transposed
    kLibrary,      // bytes, then the shape
    kCopy,         // kind ('h', 'd', 'D', 's'), bytes, whether the host waits
    kCollective,   // communicator, bytes of the whole buffer, NCCL's type; of a send or a receive one
                   // more than the other's rank in the communicator (0: not said)
    kRecordEvent,  // event
    kWaitEvent,    // event
    kHostWait,     // what ('s' stream, 'e' event, 'd' device), of which
    kMemory,       // address, bytes (negative: freed), allocated and reserved after it
    kMark,
    kBlindRead,     // bytes that the host read and nobody knows
    kGraphLaunch,   // graph, how many calls behind it are its own (0: not said)
    kCommunicator,  // number, ranks, own rank; the name is its process group's
    kDeviceMemory,  // address, bytes (0: given back)
    kFault,         // what a race detector or CUDA's rules object to, by name
  };
  static constexpr std::size_t kValues = 14;
  Kind kind = Kind::kLaunch;
  std::int32_t thread = 0;   // in order of appearance
  std::int64_t host_ns = 0;  // processor time of the thread since its call before
  std::int64_t stream = 0;   // 0: the default stream
  std::int32_t name = -1;    // into Capture::names
  std::int32_t place = -1;   // where Python was, into Capture::names; -1: not said
  std::array<std::int64_t, kValues> values{};
};

// Cut along dimension 0.
struct CapturedParameter {
  std::string name;
  std::int64_t rows = 1, row_elements = 1, shards = 1;
};

struct Capture {
  std::string path;  // the folder, for messages
  std::string gpu;   // catalogue key
  std::int64_t world = 1;
  std::int64_t rank = 0;
  std::string command;
  std::string model;            // class of the model where Python said it
  std::int64_t parameters = 0;  // of the whole model, 0: not said
  std::vector<CapturedParameter> parameter_list;
  std::vector<std::pair<std::string, std::string>> versions;  // of libraries
  // Peaks that the allocator told the last optimizer step: of blocks, and of what tensors asked for.
  std::int64_t told_allocated = 0, told_requested = 0;
  double processor = 1;            // how many times as long as the reference this host takes
  std::int64_t compiled = 0;       // graphs that torch.compile made within the last step
  std::vector<std::string> names;  // of kernels (readable), marks, groups, places
  std::vector<CapturedCall> calls;

  const std::string& name_of(const CapturedCall& call) const {
    static const std::string none;
    return call.name < 0 ? none : names[at(call.name)];
  }
  const std::string& place_of(const CapturedCall& call) const {
    static const std::string none;
    return call.place < 0 ? none : names[at(call.place)];
  }
};

// The calls of the steady step: from the end of the last optimizer step but one to that of the
// last one; without optimizers, the last stretch of calls that repeats the one before.
struct StepRange {
  std::size_t begin = 0, end = 0;  // into Capture::calls
  std::int64_t steps = 0;          // that the program took
};
// Throws Error(kInvalidInput) where there is none: fewer than two steps.
StepRange steady_step(const Capture& capture);

}
