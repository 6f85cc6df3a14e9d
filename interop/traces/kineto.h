// Reads a trace of torch.profiler (Kineto's Chrome trace JSON), plain or gzipped.
//
// Parsed as a stream: what is kept of an event is a row of numbers and the number of its name, so a
// trace of hundreds of megabytes costs a fraction of its size. Events of other categories
// (python_function, flows, overhead) are skipped, unknown keys ignored.
//
// Fields are those that torch.profiler writes (libkineto's output_json.cpp, and
// torch/csrc/profiler/kineto_shim.cpp): `ts` and `dur` in microseconds with three decimals, counted
// from `baseTimeNanoseconds`; `correlation` joins a kernel to the runtime call that launched it;
// `External id` joins it to the operator; `[memory]` events (profile_memory=True) carry
// `Total Allocated` and `Total Reserved`. Collectives carry `Collective name`, `dtype`,
// `In msg nelems`, `Out msg nelems`, `Group size` and `Process Group Ranks`: NCCL's kernels, and the operator
// record_param_comms that launched them (torch/csrc/distributed/c10d/ParamCommsUtils.hpp). `Input Dims` and `Input
// type` are there with record_shapes=True.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/base/units.h"

namespace foreshard {

// What a collective was called with.
struct TracedMessage {
  std::string dtype;                               // as PyTorch prints it: "BFloat16", "Float", "Byte"
  std::int64_t in_elements = 0, out_elements = 0;  // of this rank's tensors
  std::int64_t group_size = 0;                     // 0: not told
  std::int64_t stride = 0;                         // from a rank of the group to the next; 0: not told, or not even
  std::string group;                               // the process group's name
  std::int64_t bytes() const;                      // of the larger tensor: the whole unsharded buffer
  bool operator==(const TracedMessage&) const = default;
};

// A process group of distributedInfo.
struct TracedGroup {
  std::string name, description;
  std::int64_t size = 0;
  std::vector<std::int64_t> ranks;
};

struct TraceEvent {
  enum class Category : std::uint8_t {
    kOperator,    // cpu_op
    kAnnotation,  // user_annotation: record_function
    kLaunch,      // cuda_runtime, cuda_driver
    kDevice,      // kernel, gpu_memcpy, gpu_memset
    kMemory,      // "[memory]"
  };
  Category category = Category::kOperator;
  std::uint32_t name = 0;        // index into KinetoTrace::names
  std::uint32_t collective = 0;  // of `Collective name`; 0: none
  std::uint32_t message = 0;     // index into KinetoTrace::messages; 0: none
  std::uint32_t shapes = 0;      // of `Input Dims`, index into KinetoTrace::names: "[[8,512],[]]"
  std::uint32_t types = 0;       // of `Input type`: "[\"float\",\"Scalar\"]"
  std::int64_t thread = 0;       // of the host; kDevice: the stream
  Time begin, end;               // on the trace's clock
  std::int64_t correlation = -1;
  std::int64_t external = -1;
  // Of operators: a number where autograd recorded it, and, inside backward, the thread whose
  // forward it belongs to (from 1).
  std::int64_t sequence = -1;
  std::int64_t forward_thread = 0;
  Bytes allocated, reserved;  // kMemory, of a GPU: totals after it
};

struct KinetoTrace {
  std::string file;
  std::int64_t rank = -1;  // -1: the trace does not say
  std::int64_t world = -1;
  std::string backend;
  std::string device;             // name of the first GPU; "" where there is none
  std::int64_t device_bytes = 0;  // memory of the first
  bool has_shapes = false;        // recorded with record_shapes=True
  std::vector<TracedGroup> groups;
  std::vector<TracedMessage> messages = {{}};
  std::int64_t base_nanoseconds = 0;
  std::vector<std::string> names = {""};
  std::vector<TraceEvent> events;  // in the order of the file

  const std::string& name(const TraceEvent& event) const { return names[event.name]; }
  bool of_gpu() const;  // some event ran on a device
};

// Throws Error(kInvalidInput) where the file is missing, is no trace, is cut off, or holds nothing
// that the profiler writes.
KinetoTrace read_kineto(const std::filesystem::path& path);

// The tensors that an operator of a trace was called with, where it was recorded with record_shapes=True.

using TensorShape = std::vector<std::int64_t>;

struct TracedTensor {
  std::string dtype;  // as collectives print it: "BFloat16", "Float"; "" in a list of tensors
  TensorShape shape;
  std::int64_t elements() const;
};

// Its tensors in the order of the arguments, lists of tensors in their place; without scalars. None without shapes.
std::vector<TracedTensor> tensors_of(const KinetoTrace& trace, const TraceEvent& event);

}
