// The device that is not there: properties, memory, streams and events.
//
// Device memory is ranges of addresses that nobody maps; a request beyond the GPU's memory fails as
// cudaMalloc does. What the host wrote last (copies up to kKnownBytes) is remembered and can be
// read back, until a kernel is given the memory's address; all else reads as zeros.
#pragma once

#include <cstdint>
#include <string>

#include "exec/null/abi.h"

namespace foreshard::null {

// Of FORESHARD_NULL_GPU, "key=value;..." as foreshard-null makes it of the catalogue; an H100 without it.
struct Properties {
  std::string name = "NVIDIA H100 80GB HBM3";
  int major = 9, minor = 0;
  int devices = 8;
  int multiprocessors = 132;
  std::uint64_t memory = 84932978278;
  int l2_bytes = 52428800;
  int shared_per_multiprocessor = 233472;
  int shared_per_block = 232448;  // what a kernel can opt in to
  int threads_per_multiprocessor = 2048;
  int blocks_per_multiprocessor = 32;
};
const Properties& properties();
// cudaDevAttr and CU_DEVICE_ATTRIBUTE agree on their numbers.
int attribute(int which);
void fill_properties(void* structure, const PropertyLayout& layout);

int current_device();
bool set_current_device(int device);

// nullptr where memory is out.
void* allocate(std::uint64_t bytes);
void release(const void* pointer);
struct FreeMemory {
  std::uint64_t free, total;
};
FreeMemory memory_left();
bool is_device(const void* pointer);
// Of expandable segments: addresses without memory, and memory without addresses.
void* reserve_addresses(std::uint64_t bytes);
bool take_memory(std::uint64_t bytes);
void give_memory(std::uint64_t bytes);

inline constexpr std::uint64_t kKnownBytes = std::uint64_t{1} << 20;
// A copy as it would have been done; true where the host read device memory that nobody knows.
bool copy_bytes(void* to, const void* from, std::uint64_t bytes);
void copied_on_device(const void* from, std::uint64_t bytes);  // NCCL's group of calls, where one is open, has it so
// False: not known, and nothing is written.
bool known_bytes(void* to, const void* device, std::uint64_t bytes);
// Numbers that this thread's next blind reads of up to 8 bytes are told, in order, instead of zeros.
void answer_next_read(std::int64_t value);
void set_bytes(void* to, int value, std::uint64_t bytes);
void forget(const void* pointer, std::uint64_t bytes);  // somebody else wrote there
// Between these, what this thread's kernels are given is not forgotten for it: Python says what
// they write. Answers that nobody read are dropped behind it.
void begin_told_operation();
void end_told_operation();

// Live blocks of PyTorch's allocator, for what kernels are given.
void add_block(const void* pointer, std::uint64_t bytes);
void remove_block(const void* pointer);
// The different live blocks that the pointers among `words` lie in, which are forgotten. Of one that
// is given from its middle on (a weight in a buffer of all) as much as of the largest whole one.
struct Touched {
  std::uint64_t bytes = 0;
  std::uint64_t largest = 0;
  int blocks = 0;
};
Touched touch(const std::uint64_t* words, std::size_t count);

// Streams and events in order. How far the device is, is FORESHARD_NULL_EVENTS: `done` (default:
// everything is done at once), `pending` (nothing is done before the host waits for it) or `paced`
// (kernels take their nominal time on a clock of their own).
StreamHandle new_stream();
// A number of its own for each stream, the default stream of each device included.
std::uint64_t stream_key(StreamHandle stream);
void delete_stream(StreamHandle stream);
void enqueue(StreamHandle stream, double nominal_seconds);
EventHandle new_event();
void delete_event(EventHandle event);
void record_event(EventHandle event, StreamHandle stream);
void wait_event(StreamHandle stream, EventHandle event);
bool is_recorded(EventHandle event);
bool is_done(EventHandle event);
bool is_idle(StreamHandle stream);
void await(EventHandle event);
void await_stream(StreamHandle stream);
void await_device();
double elapsed_ms(EventHandle from, EventHandle to);

void* new_handle();  // never the same twice, nothing behind it

}
