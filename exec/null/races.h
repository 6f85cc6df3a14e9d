// A race detector over streams, events and memory, for any program (foreshard-null --check).
//
// Work of two streams is ordered by events, by the host's waits, or not at all. Memory that one
// work writes and another one uses must be ordered; so must what the memory's holder before did,
// when an allocator hands it out again. Which stream is ahead in this run does not matter.
//
// Without --check none of these functions does anything.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "exec/null/abi.h"

namespace foreshard::null {

bool checks_races();

// A range that a work reads or writes; which of them is not known of kernels whose arguments do not
// say so: those write memory that nobody used before, and read all else.
struct Use {
  enum class Kind : std::uint8_t { kReads, kWrites, kUnknown };
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;  // 0: not known
  Kind kind = Kind::kUnknown;
  bool is_sure = true;  // false: a word within a structure, which may be what lay there before
};
Use reads(const void* at, std::uint64_t bytes);
Use writes(const void* at, std::uint64_t bytes);

// Work given to a stream now; `name` as of name_id.
void check_work(StreamHandle stream, std::int64_t name, const std::vector<Use>& uses);
// What was captured since the last one is this graph; its work is given to a stream now.
void check_captured(std::int64_t graph);
void check_graph(std::int64_t graph, StreamHandle stream);

// ---- what orders work ----
void order_stream(StreamHandle stream, unsigned flags);  // as created
void order_record(EventHandle event, StreamHandle stream);
void order_wait(StreamHandle stream, EventHandle event);
// A node of the graph that is captured: an event that others know (cudaEventRecordExternal, cudaEventWaitExternal).
enum class Outside : std::uint8_t { kWaits, kRecords };
void order_outside(StreamHandle stream, EventHandle event, Outside what);
// The host knows that it is done: it waited, or asked and was told so.
void order_host_event(EventHandle event);
void order_host_stream(StreamHandle stream);
void order_host_all();

// ---- whose memory it is ----
enum class Holder : std::uint8_t { kProgram, kAllocator };
void hand_out(const void* at, std::uint64_t bytes, Holder holder);
void take_back(const void* at);

// Notes a fault with the place in the program: a line V, and one on standard error.
void report_fault(std::string_view what);

}
