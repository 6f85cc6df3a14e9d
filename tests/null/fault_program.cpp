// A program with a fault planted, for the null GPU's race detector: `fault_program NAME right`
// orders its streams as it must, `wrong` leaves one thing out. `list` names them.
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "tests/null/cuda_calls.h"

namespace {

using namespace foreshard::null_test;

// Two streams, blocks in one piece of memory, and what a step of training does with them.
struct Bench {
  Bench() {
    register_kernel();
    UniqueId id;
    ncclGetUniqueId(&id);
    ncclCommInitRank(&communicator, 8, id, 0);
    cublasCreate_v2(&blas);
    cudaStreamCreateWithPriority(&main, 1, 0);
    cudaStreamCreateWithPriority(&side, 1, 0);
    cudaEventCreateWithFlags(&event, 2);
    void* at = nullptr;
    cudaMalloc(&at, 16 * kBytes);
    memory = static_cast<char*>(at);
  }
  // The block with this number; one more `bytes` for larger ones.
  void* block(int number, std::size_t bytes = kBytes) {
    void* const at = memory + static_cast<std::size_t>(number) * kBytes;
    allocator.hold(at, bytes);
    return at;
  }
  void free(void* at, std::size_t bytes = kBytes) { allocator.leave(at, bytes); }
  // `later` waits for what `earlier` was given, unless the fault is that it does not.
  void order(void* earlier, void* later) {
    if (!is_right) return;
    cudaEventRecord(event, earlier);
    cudaStreamWaitEvent(later, event, 0);
  }
  void product(void* a, void* out, void* stream) {
    cublasSetStream_v2(blas, stream);
    cublasGemmEx(blas, 0, 0, 512, 512, 512, nullptr, a, kBf16, 512, a, kBf16, 512, nullptr, out, kBf16, 512, 68, 0);
  }
  void gather(void* from, void* to, void* stream) {
    ncclAllGather(from, to, kElements / 8, kNcclBf16, communicator, stream);
  }
  void reduce(void* from, void* to, void* stream) {
    ncclReduceScatter(from, to, kElements / 8, kNcclBf16, 0, communicator, stream);
  }

  bool is_right = true;
  void *communicator = nullptr, *blas = nullptr, *main = nullptr, *side = nullptr, *event = nullptr;
  char* memory = nullptr;
  Allocator allocator;
};

// ---- waits that are missing ----

void batch_copied_late(Bench& b) {
  static char batch[kBytes];
  void *const on_device = b.block(0), *const out = b.block(1);
  cudaMemcpyAsync(on_device, batch, kBytes, kHostToDevice, b.side);
  b.order(b.side, b.main);
  b.product(on_device, out, b.main);
}

void parameters_not_gathered(Bench& b) {
  void *const shard = b.block(0), *const whole = b.block(1), *const out = b.block(2);
  cudaMemsetAsync(shard, 0, kBytes, b.side);
  b.gather(shard, whole, b.side);
  b.order(b.side, b.main);
  b.product(whole, out, b.main);
}

void gradient_not_computed(Bench& b) {
  void *const input = b.block(0), *const gradient = b.block(1), *const shard = b.block(2);
  cudaMemsetAsync(input, 0, kBytes, b.main);
  b.product(input, gradient, b.main);
  b.order(b.main, b.side);
  b.reduce(gradient, shard, b.side);
}

void result_read_early(Bench& b) {
  static char on_host[kBytes];
  void *const x = b.block(0), *const y = b.block(1), *const sum = b.block(2);
  cudaMemsetAsync(x, 0, kBytes, b.main);
  cudaMemsetAsync(y, 0, kBytes, b.main);
  add(x, y, sum, b.main);
  b.order(b.main, b.side);
  cudaMemcpyAsync(on_host, sum, kBytes, kDeviceToHost, b.side);
}

void buffer_written_again(Bench& b) {
  void *const bucket = b.block(0), *const shard = b.block(1);
  cudaMemsetAsync(bucket, 0, kBytes, b.main);
  cudaEventRecord(b.event, b.main);
  cudaStreamWaitEvent(b.side, b.event, 0);
  b.reduce(bucket, shard, b.side);
  b.order(b.side, b.main);
  cudaMemsetAsync(bucket, 0, kBytes, b.main);
}

void host_waits_for_another_stream(Bench& b) {
  void *const x = b.block(0), *const out = b.block(1);
  cudaMemsetAsync(x, 0, kBytes, b.side);
  cudaStreamSynchronize(b.is_right ? b.side : b.main);
  b.product(x, out, b.main);
}

// ---- memory that is handed out too early ----

void bucket_freed_early(Bench& b) {
  void *const bucket = b.block(0), *const shard = b.block(1);
  cudaMemsetAsync(bucket, 0, kBytes, b.side);
  b.reduce(bucket, shard, b.side);
  b.free(bucket);
  void* const next = b.block(0);
  b.order(b.side, b.main);
  cudaMemsetAsync(next, 0, kBytes, b.main);
}

void parameters_freed_early(Bench& b) {
  void *const shard = b.block(0), *const whole = b.block(1), *const out = b.block(2);
  cudaMemsetAsync(shard, 0, kBytes, b.main);
  b.gather(shard, whole, b.main);
  b.product(whole, out, b.main);
  b.free(whole);
  void* const next = b.block(1);
  b.order(b.main, b.side);
  b.gather(shard, next, b.side);
}

void source_freed_early(Bench& b) {
  static char on_host[kBytes];
  void* const x = b.block(0);
  cudaMemsetAsync(x, 0, kBytes, b.side);
  cudaMemcpyAsync(on_host, x, kBytes, kDeviceToHost, b.side);
  b.free(x);
  void *const y = b.block(0), *const z = b.block(1);
  b.order(b.side, b.main);
  b.product(z, y, b.main);
}

void part_of_a_freed_block(Bench& b) {
  void* const large = b.block(0, 4 * kBytes);
  cudaMemsetAsync(large, 0, 4 * kBytes, b.side);
  b.free(large, 4 * kBytes);
  void* const part = b.block(2);
  b.order(b.side, b.main);
  cudaMemsetAsync(part, 0, kBytes, b.main);
}

void freed_blocks_joined(Bench& b) {
  void *const first = b.block(0), *const second = b.block(1);
  cudaMemsetAsync(first, 0, kBytes, b.main);
  cudaMemsetAsync(second, 0, kBytes, b.side);
  b.free(first);
  b.free(second);
  void* const both = b.block(0, 2 * kBytes);
  b.order(b.side, b.main);
  cudaMemsetAsync(both, 0, 2 * kBytes, b.main);
}

// Handed out and given back without use, in pieces and whole: each access is remembered once.
void freed_block_cut_again(Bench& b) {
  void* const all = b.block(0, 2 * kBytes);
  cudaMemsetAsync(all, 0, 2 * kBytes, b.side);
  b.free(all, 2 * kBytes);
  for (int i = 0; i < 64; ++i) {
    b.free(b.block(0));
    b.free(b.block(1));
    b.free(b.block(0, 2 * kBytes), 2 * kBytes);
  }
  void* const part = b.block(1);
  b.order(b.side, b.main);
  cudaMemsetAsync(part, 0, kBytes, b.main);
}

// ---- what a stream that is captured forbids ----

constexpr int kGlobal = 0, kRelaxed = 2;

void captured(Bench& b, int (*call)(Bench&)) {
  void* graph = nullptr;
  void* const x = b.block(0);
  cudaStreamBeginCapture(b.main, kGlobal);
  cudaMemsetAsync(x, 0, kBytes, b.main);
  if (!b.is_right) call(b);
  cudaStreamEndCapture(b.main, &graph);
}

void allocation_in_capture(Bench& b) {
  void* graph = nullptr;
  cudaStreamBeginCapture(b.main, kGlobal);
  // PyTorch's allocator says that it knows what it does.
  int mode = kRelaxed;
  if (b.is_right) cudaThreadExchangeStreamCaptureMode(&mode);
  void* more = nullptr;
  cudaMalloc(&more, kBytes);
  if (b.is_right) cudaThreadExchangeStreamCaptureMode(&mode);
  cudaStreamEndCapture(b.main, &graph);
}
void stream_awaited_in_capture(Bench& b) {
  captured(b, [](Bench& of) { return cudaStreamSynchronize(of.main); });
}
void device_awaited_in_capture(Bench& b) {
  captured(b, [](Bench&) { return cudaDeviceSynchronize(); });
}
void event_asked_in_capture(Bench& b) {
  captured(b, [](Bench& of) {
    cudaEventRecord(of.event, of.main);
    return cudaEventQuery(of.event);
  });
}
void loss_read_in_capture(Bench& b) {
  captured(b, [](Bench& of) {
    float loss = 0;
    return cudaMemcpy(&loss, of.memory, sizeof loss, kDeviceToHost);
  });
}
void waits_for_outside(Bench& b) {
  void* graph = nullptr;
  if (!b.is_right) cudaEventRecord(b.event, b.side);
  cudaStreamBeginCapture(b.main, kGlobal);
  if (b.is_right) cudaEventRecord(b.event, b.main);
  cudaStreamWaitEvent(b.main, b.event, 0);
  cudaStreamEndCapture(b.main, &graph);
}
void side_stream_not_joined(Bench& b) {
  void* graph = nullptr;
  void* const x = b.block(0);
  cudaStreamBeginCapture(b.main, kGlobal);
  cudaEventRecord(b.event, b.main);
  cudaStreamWaitEvent(b.side, b.event, 0);
  cudaMemsetAsync(x, 0, kBytes, b.side);
  b.order(b.side, b.main);
  cudaStreamEndCapture(b.main, &graph);
}

constexpr std::pair<const char*, void (*)(Bench&)> kFaults[] = {
    {"batch_copied_late", batch_copied_late},
    {"parameters_not_gathered", parameters_not_gathered},
    {"gradient_not_computed", gradient_not_computed},
    {"result_read_early", result_read_early},
    {"buffer_written_again", buffer_written_again},
    {"host_waits_for_another_stream", host_waits_for_another_stream},
    {"bucket_freed_early", bucket_freed_early},
    {"parameters_freed_early", parameters_freed_early},
    {"source_freed_early", source_freed_early},
    {"part_of_a_freed_block", part_of_a_freed_block},
    {"freed_blocks_joined", freed_blocks_joined},
    {"freed_block_cut_again", freed_block_cut_again},
    {"allocation_in_capture", allocation_in_capture},
    {"stream_awaited_in_capture", stream_awaited_in_capture},
    {"device_awaited_in_capture", device_awaited_in_capture},
    {"event_asked_in_capture", event_asked_in_capture},
    {"loss_read_in_capture", loss_read_in_capture},
    {"waits_for_outside", waits_for_outside},
    {"side_stream_not_joined", side_stream_not_joined},
};

}

int main(int count, char** words) {
  for (const auto& [name, plant] : kFaults) {
    if (std::string_view(words[1]) == "list") std::printf("%s\n", name);
    if (count < 3 || std::strcmp(words[1], name) != 0) continue;
    Bench bench;
    bench.is_right = std::string_view(words[2]) == "right";
    plant(bench);
  }
  return 0;
}
