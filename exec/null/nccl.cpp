// NCCL with one process for all ranks of a communicator: everything is done at once, and the other
// ranks say what this one says. So what was known of a buffer is known of all ranks' copies after a
// broadcast or a gather, and of integers after a sum.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

struct Communicator {
  int size = 1, rank = 0;
  std::int64_t id = 0;
};

// The process group that the next communicator of this thread belongs to, by its name.
thread_local std::string next_group;
thread_local int next_size = 0, next_rank = 0;

// ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8 (two kinds).
std::uint64_t size_of(int type) {
  constexpr std::uint64_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? kSizes[type] : 1;
}

Communicator* make(int size, int rank) {
  static std::mutex mutex;
  static std::int64_t count = 0;
  auto* const made = new Communicator{size, rank, 0};
  {
    const std::lock_guard lock(mutex);
    made->id = ++count;
  }
  const std::int64_t name = name_id(next_group);
  Line('K') << made->id << size << rank << name;
  return made;
}

// What this rank sends and receives, in elements.
struct Buffers {
  const void* from = nullptr;
  std::uint64_t sent = 0;
  void* to = nullptr;
  std::uint64_t received = 0;
};

Status collective(const char* name, const void* communicator, StreamHandle stream, std::uint64_t count, int type,
    const Buffers& buffers, int peer = -1) {
  enqueue(stream, 1e-5);
  const std::int64_t id = static_cast<const Communicator*>(communicator)->id;
  const std::int64_t named = name_id(name);
  check_work(stream, named,
      {reads(buffers.from, buffers.sent * size_of(type)), writes(buffers.to, buffers.received * size_of(type))});
  Line line('X');
  line << handle_id(stream) << id << named << count * size_of(type) << type;
  if (peer >= 0) line << peer + 1;  // 0 is what files without it read as
  return kSuccess;
}

// `parts` copies of what is known of `from`, one after the other.
void repeat(const void* from, void* to, std::uint64_t bytes, int parts) {
  if (bytes * static_cast<std::uint64_t>(parts) > kKnownBytes) {
    forget(to, bytes * static_cast<std::uint64_t>(parts));
    return;
  }
  std::string copy(bytes, '\0');
  if (copy_bytes(copy.data(), from, bytes)) {
    forget(to, bytes * static_cast<std::uint64_t>(parts));
    return;
  }
  std::string all;
  for (int part = 0; part < parts; ++part) all += copy;
  copy_bytes(to, all.data(), all.size());
}

// As many times what is known of `from` as there are ranks.
template <typename Number>
void sum(const void* from, void* to, std::size_t count, int ranks) {
  std::vector<Number> all(count);
  const std::size_t bytes = count * sizeof(Number);
  if (bytes > kKnownBytes || copy_bytes(all.data(), from, bytes)) return forget(to, bytes);
  for (Number& each : all) each *= static_cast<Number>(ranks);
  copy_bytes(to, all.data(), bytes);
}

// A group of broadcasts from every rank gathers a list (PyTorch from 2.15 on): the other ranks'
// parts are what this rank gives.
struct GroupBroadcast {
  bool is_root;
  void* at;
  std::uint64_t bytes;
};
thread_local int group_depth = 0;
thread_local std::vector<GroupBroadcast> group_broadcasts;

// A group of sends to every rank exchanges parts, one of receives beside a copy of one's own gathers
// them: the others send this rank what it sends or copies itself.
struct Part {
  void* at;
  std::uint64_t bytes;
};
thread_local Part own_part{};
thread_local std::vector<Part> received_parts;

void exchange_parts() {
  const Part own = std::exchange(own_part, {});
  const std::vector<Part> parts = std::exchange(received_parts, {});
  const auto is_like_own = [&](const Part& part) { return part.bytes == own.bytes; };
  if (own.at == nullptr || !std::all_of(parts.begin(), parts.end(), is_like_own)) return;
  for (std::size_t i = 0, end = 0; i < parts.size(); i = end) {  // those that lie together are read together
    char* const at = static_cast<char*>(parts[i].at);
    for (end = i + 1; end < parts.size() && parts[end].at == at + (end - i) * own.bytes;) ++end;
    repeat(own.at, at, own.bytes, static_cast<int>(end - i));
  }
}

void gather_broadcasts() {
  const std::vector<GroupBroadcast> all = std::exchange(group_broadcasts, {});
  const auto own = std::find_if(all.begin(), all.end(), [](const auto& b) { return b.is_root; });
  if (own == all.end()) return;
  for (const GroupBroadcast& other : all)
    if (!other.is_root && other.bytes == own->bytes) repeat(own->at, other.at, own->bytes, 1);
}

}

void copied_on_device(const void* from, std::uint64_t bytes) {
  if (group_depth > 0) own_part = {const_cast<void*>(from), bytes};
}

}

using namespace foreshard::null;

using Comm = void*;
struct ncclUniqueId {
  char bytes[128];
};

// What the recorder of a process group says before it makes a communicator.
API void foreshard_null_group(const char* name, int size, int rank) {
  next_group = name;
  next_size = size;
  next_rank = rank;
}

ANSWERS(ncclGetVersion, *version = 22809, int* version)
API Status ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 7, sizeof *id);
  return kSuccess;
}
ANSWERS(ncclCommInitRankConfig, *c = make(size, rank), Comm* c, int size, ncclUniqueId, int rank, void*)
ANSWERS(ncclCommInitRank, *c = make(size, rank), Comm* c, int size, ncclUniqueId, int rank)
ANSWERS(ncclCommInitRankScalable, *c = make(size, rank), Comm* c, int size, int rank, int, void*, void*)
API Status ncclCommInitAll(Comm* c, int count, const int*) {
  for (int i = 0; i < count; ++i) c[i] = make(count, i);
  return kSuccess;
}
// The size of a part is not said here; who makes it says so before (foreshard_null_group).
API Status ncclCommSplit(Comm, int color, int, Comm* c, void*) {
  constexpr int kNoColor = -1;
  *c = color == kNoColor ? nullptr : make(next_size > 0 ? next_size : 1, next_rank);
  return kSuccess;
}
API Status ncclCommShrink(Comm parent, int*, int excluded, Comm* c, void*, int) {
  const auto* of = static_cast<const Communicator*>(parent);
  return *c = make(of->size - excluded, of->rank), kSuccess;
}
ANSWERS(ncclCommGetAsyncError, *error = 0, Comm, int* error)
ANSWERS(ncclCommCount, *count = static_cast<const Communicator*>(c)->size, Comm c, int* count)
ANSWERS(ncclCommUserRank, *rank = static_cast<const Communicator*>(c)->rank, Comm c, int* rank)
ANSWERS(ncclCommCuDevice, *device = current_device(), Comm, int* device)
DONE(ncclCommDestroy)
DONE(ncclCommAbort)
DONE(ncclCommRevoke)
DONE(ncclCommFinalize)
DONE(ncclCommRegister)
DONE(ncclCommDeregister)
DONE(ncclCommWindowRegister)
DONE(ncclCommWindowDeregister)
DONE(ncclCommDump)
DONE(ncclCommSuspend)
DONE(ncclCommResume)
API Status ncclMemAlloc(void**, std::size_t) { return 1; }
DONE(ncclMemFree)
API const char* ncclGetErrorString(Status) { return "the null GPU's NCCL"; }
API const char* ncclGetLastError(Comm) { return ""; }
API Status ncclGroupStart() { return ++group_depth, kSuccess; }
API Status ncclGroupEnd() {
  if (group_depth > 0 && --group_depth == 0) {
    gather_broadcasts();
    exchange_parts();
  }
  return kSuccess;
}
DONE(ncclGroupSimulateEnd)
ANSWERS(ncclRedOpCreatePreMulSum, *operation = 5, int* operation, void*, int, int, Comm)
DONE(ncclRedOpDestroy)

API Status ncclAllGather(const void* from, void* to, std::size_t count, int type, Comm c, StreamHandle stream) {
  const auto size = static_cast<std::size_t>(static_cast<const Communicator*>(c)->size);
  repeat(from, to, count * size_of(type), static_cast<int>(size));
  return collective("all_gather", c, stream, count * size, type, {from, count, to, count * size});
}
API Status ncclReduceScatter(
    const void* from, void* to, std::size_t count, int type, int, Comm c, StreamHandle stream) {
  forget(to, count * size_of(type));
  const auto size = static_cast<std::size_t>(static_cast<const Communicator*>(c)->size);
  return collective("reduce_scatter", c, stream, count * size, type, {from, count * size, to, count});
}
API Status ncclAllReduce(
    const void* from, void* to, std::size_t count, int type, int operation, Comm c, StreamHandle stream) {
  constexpr int kSum = 0, kMax = 2, kMin = 3, kAverage = 4;          // ncclRedOp_t
  constexpr int kInt32 = 2, kInt64 = 4, kFloat32 = 7, kFloat64 = 8;  // ncclDataType_t
  if (operation == kMax || operation == kMin || operation == kAverage) repeat(from, to, count * size_of(type), 1);
  else if (operation == kSum && type == kInt64)
    sum<std::int64_t>(from, to, count, static_cast<const Communicator*>(c)->size);
  else if (operation == kSum && type == kInt32)
    sum<std::int32_t>(from, to, count, static_cast<const Communicator*>(c)->size);
  else if (operation == kSum && type == kFloat32)
    sum<float>(from, to, count, static_cast<const Communicator*>(c)->size);
  else if (operation == kSum && type == kFloat64)
    sum<double>(from, to, count, static_cast<const Communicator*>(c)->size);
  else forget(to, count * size_of(type));
  return collective("all_reduce", c, stream, count, type, {from, count, to, count});
}
API Status ncclBroadcast(
    const void* from, void* to, std::size_t count, int type, int root, Comm c, StreamHandle stream) {
  const bool is_root = static_cast<const Communicator*>(c)->rank == root;
  const std::uint64_t bytes = count * size_of(type);
  if (is_root && from != to) repeat(from, to, bytes, 1);
  if (group_depth > 0) group_broadcasts.push_back({is_root, to, bytes});
  return collective("broadcast", c, stream, count, type, {is_root ? from : nullptr, count, to, count});
}
API Status ncclBcast(void* at, std::size_t count, int type, int root, Comm c, StreamHandle stream) {
  return ncclBroadcast(at, at, count, type, root, c, stream);
}
API Status ncclReduce(const void* from, void* to, std::size_t count, int type, int, int, Comm c, StreamHandle stream) {
  forget(to, count * size_of(type));
  return collective("reduce", c, stream, count, type, {from, count, to, count});
}
API Status ncclSend(const void* from, std::size_t count, int type, int peer, Comm c, StreamHandle stream) {
  const bool is_own = static_cast<const Communicator*>(c)->rank == peer;
  if (is_own) copied_on_device(from, count * size_of(type));
  return collective("send", c, stream, count, type, {from, count}, peer);
}
API Status ncclRecv(void* to, std::size_t count, int type, int peer, Comm c, StreamHandle stream) {
  forget(to, count * size_of(type));
  if (group_depth > 0) received_parts.push_back({to, count * size_of(type)});
  return collective("recv", c, stream, count, type, {nullptr, 0, to, count}, peer);
}
API Status ncclAlltoAll(const void* from, void* to, std::size_t count, int type, Comm c, StreamHandle stream) {
  const auto* of = static_cast<const Communicator*>(c);
  const auto size = static_cast<std::size_t>(of->size);
  const std::uint64_t bytes = count * size_of(type);
  repeat(static_cast<const char*>(from) + static_cast<std::size_t>(of->rank) * bytes, to, bytes, of->size);
  return collective("all_to_all", c, stream, count * size, type, {from, count * size, to, count * size});
}

// Of NCCL 2.29 and 2.30: PyTorch from 2.15 on links to them, and its own code for training does not call them.
#define FORESHARD_REFUSED(name) \
  API Status name() { refuse("unanswered call " #name ": exec/null/nccl.cpp"); }
FORESHARD_REFUSED(ncclCommGetUniqueId)
FORESHARD_REFUSED(ncclCommGrow)
FORESHARD_REFUSED(ncclCommMemStats)
FORESHARD_REFUSED(ncclGetLsaMultimemDevicePointer)
FORESHARD_REFUSED(ncclGetPeerDevicePointer)
FORESHARD_REFUSED(ncclPutSignal)
FORESHARD_REFUSED(ncclSignal)
FORESHARD_REFUSED(ncclWaitSignal)
FORESHARD_REFUSED(ncclWinGetUserPtr)
