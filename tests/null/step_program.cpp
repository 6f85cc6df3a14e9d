// A program as the null GPU's tests run it: it makes the CUDA calls of three small training steps, as PyTorch would,
// and checks the answers. Its argument says which part. Exit status 0: as expected.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tests/null/cuda_calls.h"

namespace {

using namespace foreshard::null_test;

int failures = 0;
void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("expected: %s\n", what);
  ++failures;
}

// The shard is gathered on a stream of its own, two products use it, a gradient is reduced.
void train() {
  register_kernel();
  UniqueId id;
  void *communicator = nullptr, *blas = nullptr, *side = nullptr, *gathered = nullptr, *ready = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&communicator, 8, id, 0);
  cublasCreate_v2(&blas);
  cublasSetStream_v2(blas, nullptr);
  cudaStreamCreateWithPriority(&side, 1, 0);
  cudaEventCreateWithFlags(&gathered, 2);
  cudaEventCreateWithFlags(&ready, 2);
  Allocator allocator;
  void* const shard = allocator.take(kBytes / 8);
  for (int step = 0; step < 3; ++step) {
    void* const whole = allocator.take(kBytes);
    cudaEventRecord(ready, nullptr);
    cudaStreamWaitEvent(side, ready, 0);
    ncclAllGather(shard, whole, kElements / 8, kNcclBf16, communicator, side);
    cudaEventRecord(gathered, side);
    void* const out = allocator.take(kBytes);
    cudaStreamWaitEvent(nullptr, gathered, 0);
    cublasGemmEx(
        blas, 0, 0, 1024, 512, 2048, nullptr, whole, kBf16, 1024, whole, kBf16, 1024, nullptr, out, kBf16, 1024, 68, 0);
    add(out, whole, out, nullptr);
    ncclReduceScatter(out, shard, kElements / 8, kNcclBf16, 0, communicator, nullptr);
    allocator.give(whole, kBytes);
    allocator.give(out, kBytes);
    float loss = 1;
    cudaMemcpyAsync(&loss, shard, sizeof loss, kDeviceToHost, nullptr);
    cudaStreamSynchronize(nullptr);
    expect(loss == 0, "zeros where a kernel wrote");
    foreshard_null_mark("step 0 SGD");
  }
}

void memory() {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  void *all = nullptr, *more = nullptr;
  expect(cudaMalloc(&all, free) == 0, "all of the memory");
  expect(cudaMalloc(&more, 1) == 2 && more == nullptr, "out of memory behind it");
  cudaFree(all);
  expect(cudaMalloc(&more, 1) == 0, "memory again");
  // Host memory is pinned from its first to its last byte (Tensor.is_pinned).
  void* pinned = nullptr;
  expect(cudaHostAlloc(&pinned, kBytes, 0) == 0, "pinned memory");
  const auto type = [](const void* at) {
    struct {
      PointerAttributes said{};
      long behind = -1;  // CUDA 12's callers have no room for more
    } room;
    cudaPointerGetAttributes(&room.said, at);
    expect(room.behind == -1, "what the caller has behind the attributes");
    return room.said.type;
  };
  const char* const last = static_cast<char*>(pinned) + kBytes - 1;
  expect(type(pinned) == 1 && type(last) == 1 && type(last + 1) == 0, "where it is pinned");
  expect(type(more) == 2 && type(&total) == 0, "what is not");
  cudaFreeHost(pinned);
  expect(type(last) == 0, "nothing is pinned any more");
  const std::vector<int> sent = {1, 2, 3};
  std::vector<int> read(3);
  cudaMemcpyAsync(more, sent.data(), 12, kHostToDevice, nullptr);
  cudaMemcpyAsync(read.data(), more, 12, kDeviceToHost, nullptr);
  expect(read == sent, "what the host wrote");
  // A kernel wrote there since: an answer, once, or zeros; memory whose values are told is known.
  register_kernel();
  add(more, more, more, nullptr);
  expect(foreshard_null_known(more, read.data(), 12) == 0, "nobody knows");
  int number = -1;
  const auto look = [&] { cudaMemcpyAsync(&number, more, 4, kDeviceToHost, nullptr); };
  foreshard_null_answer(7);
  look();
  expect(number == 7, "the answer");
  look();
  expect(number == 0, "zeros behind it");
  foreshard_null_answer(7);
  foreshard_null_end_operation(0);
  look();
  expect(number == 0, "an answer that was not asked for is dropped");
  foreshard_null_know(more, sent.data(), 12);
  expect(foreshard_null_known(more, read.data(), 12) == 1 && read == sent, "what was told");
}

void events(bool are_pending) {
  void *stream = nullptr, *first = nullptr, *second = nullptr, *on_other = nullptr, *other = nullptr;
  cudaStreamCreateWithPriority(&stream, 1, 0);
  cudaStreamCreateWithPriority(&other, 1, 0);
  cudaEventCreateWithFlags(&first, 0);
  cudaEventCreateWithFlags(&second, 0);
  cudaEventCreateWithFlags(&on_other, 0);
  expect(cudaEventQuery(first) == 0, "an event that was never recorded is done");
  add(nullptr, nullptr, nullptr, other);
  cudaEventRecord(on_other, other);
  add(nullptr, nullptr, nullptr, stream);
  cudaEventRecord(first, stream);
  cudaStreamWaitEvent(stream, on_other, 0);
  add(nullptr, nullptr, nullptr, stream);
  cudaEventRecord(second, stream);
  constexpr int kNotReady = 600;
  const int expected = are_pending ? kNotReady : 0;
  expect(cudaEventQuery(first) == expected, "as asked before the host waits");
  cudaEventSynchronize(first);
  expect(cudaEventQuery(first) == 0, "done after a wait");
  expect(cudaEventQuery(on_other) == expected, "the other stream has not been waited for");
  expect(cudaEventQuery(second) == expected, "later work is not done");
  cudaEventSynchronize(second);
  expect(cudaEventQuery(on_other) == 0, "what a stream waited for is done with it");
  float ms = 0;
  cudaEventElapsedTime(&ms, first, second);
  expect(ms > 0, "later events are later");
}

// A list gathered by a group of broadcasts: the other ranks' parts are as this rank's.
void list() {
  UniqueId id;
  void* communicator = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&communicator, 2, id, 0);
  void *own = nullptr, *part[2] = {};
  cudaMalloc(&own, 8);
  const std::int64_t given = 50;
  cudaMemcpyAsync(own, &given, sizeof given, kHostToDevice, nullptr);
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) {
    cudaMalloc(&part[rank], 8);
    ncclBroadcast(rank == 0 ? own : part[rank], part[rank], 1, kNcclInt64, rank, communicator, nullptr);
  }
  ncclGroupEnd();
  for (void* const each : part) {
    std::int64_t read = 0;
    cudaMemcpyAsync(&read, each, sizeof read, kDeviceToHost, nullptr);
    expect(read == given, "what each rank gave");
  }
  // gather(): this rank copies its part, the other's arrives.
  for (void* const each : part) cudaMemsetAsync(each, 0, 8, nullptr);
  ncclGroupStart();
  cudaMemcpyAsync(part[0], own, 8, 3, nullptr);
  ncclRecv(part[1], 1, kNcclInt64, 1, communicator, nullptr);
  ncclGroupEnd();
  std::int64_t gathered = 0;
  cudaMemcpyAsync(&gathered, part[1], sizeof gathered, kDeviceToHost, nullptr);
  expect(gathered == given, "what the other rank gives as this one does");
  const std::int64_t sent[2] = {60, 70};
  std::int64_t arrived[2] = {};
  void *from = nullptr, *to = nullptr;
  cudaMalloc(&from, sizeof sent);
  cudaMalloc(&to, sizeof sent);
  cudaMemcpyAsync(from, sent, sizeof sent, kHostToDevice, nullptr);
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) {
    ncclSend(static_cast<char*>(from) + 8 * rank, 1, kNcclInt64, rank, communicator, nullptr);
    ncclRecv(static_cast<char*>(to) + 8 * rank, 1, kNcclInt64, rank, communicator, nullptr);
  }
  ncclGroupEnd();
  cudaMemcpyAsync(arrived, to, sizeof arrived, kDeviceToHost, nullptr);
  expect(arrived[0] == sent[0] && arrived[1] == sent[0], "ranks send this one what it sends itself");
}

// A step in a CUDA graph, its memory and optimizer within: captured once, launched three times.
void graph() {
  register_kernel();
  void *side = nullptr, *blas = nullptr, *made = nullptr, *step = nullptr;
  cudaStreamCreateWithPriority(&side, 1, 0);
  cublasCreate_v2(&blas);
  cublasSetStream_v2(blas, side);
  Allocator allocator;
  void* const whole = allocator.take(2 * kBytes);
  cudaStreamBeginCapture(side, 2);
  allocator.hold(whole, kBytes);  // of memory that was reserved
  cublasGemmEx(
      blas, 0, 0, 1024, 512, 2048, nullptr, whole, kBf16, 1024, whole, kBf16, 1024, nullptr, whole, kBf16, 1024, 68, 0);
  add(whole, whole, whole, side);
  foreshard_null_mark("step 0 AdamW");
  cudaStreamEndCapture(side, &made);
  cudaGraphInstantiateWithFlags(&step, made, 0);
  for (int launch = 0; launch < 3; ++launch) cudaGraphLaunch(step, nullptr);
}

// A convolution forward, 3 x 3, of 64 to 32 channels of two images of 8 x 8 in bf16, as PyTorch's
// plans are made; attributes and their types by cudnn_graph.h. `innermost`: where channels are.
void convolution(void* dnn, bool innermost, std::int64_t workspace) {
  constexpr int kConvolution = 10, kTensor = 17, kInt64 = 3, kDataType = 1, kDescriptor = 15;
  const auto made = [](int type) {
    void* descriptor = nullptr;
    cudnnBackendCreateDescriptor(type, &descriptor);
    return descriptor;
  };
  const auto tensor = [&](std::int64_t images, std::int64_t channels, std::int64_t side) {
    constexpr int kBf16 = 9;
    const std::int64_t sizes[] = {images, channels, side, side}, pixels = side * side;
    const std::int64_t planes[] = {channels * pixels, pixels, side, 1};
    const std::int64_t points[] = {channels * pixels, 1, side * channels, channels};
    void* const of = made(kTensor);
    cudnnBackendSetAttribute(of, 901, kDataType, 1, &kBf16);
    cudnnBackendSetAttribute(of, 902, kInt64, 4, sizes);
    cudnnBackendSetAttribute(of, 903, kInt64, 4, innermost ? points : planes);
    return of;
  };
  void* const operation = made(kConvolution);
  void* const operands[] = {tensor(32, 64, 3), tensor(2, 64, 8), tensor(2, 32, 8)};
  for (int i = 0; i < 3; ++i) cudnnBackendSetAttribute(operation, 703 + i, kDescriptor, 1, &operands[i]);
  void* held = operation;  // by a graph, that by an engine, its configuration, a plan
  for (const int attribute : {801, 1300, 300, 401}) {
    void* const holder = made(0);
    cudnnBackendSetAttribute(holder, attribute, kDescriptor, 1, &held);
    held = holder;
  }
  std::int64_t bytes = -1;
  cudnnBackendGetAttribute(held, 402, kInt64, 1, nullptr, &bytes);
  expect(bytes == workspace, "a workspace for what is laid out anew");
  cudnnBackendExecute(dnn, held, made(0));
}

void convolutions() {
  void* dnn = nullptr;
  cudnnCreate(&dnn);
  // Input, filter and output, each in bf16.
  convolution(dnn, false, 2 * (2 * 64 * 64 + 32 * 64 * 9 + 2 * 32 * 64));
  convolution(dnn, true, 0);
}

// Two layers of an LSTM in both directions: where PyTorch looks for weights, and a step of it.
void recurrent() {
  constexpr int kStandard = 0, kLstm = 2, kBoth = 1, kFloat = 0;
  constexpr int kInput = 24, kHidden = 16, kGates = 4, kLength = 5, kBatch = 3;
  void *dnn = nullptr, *layers = nullptr, *data = nullptr, *matrix = nullptr, *bias = nullptr;
  cudnnCreate(&dnn);
  cudnnCreateRNNDescriptor(&layers);
  cudnnCreateRNNDataDescriptor(&data);
  cudnnCreateTensorDescriptor(&matrix);
  cudnnCreateTensorDescriptor(&bias);
  cudnnSetRNNDescriptor_v8(
      layers, kStandard, kLstm, 0, kBoth, 0, kFloat, kFloat, 0, kInput, kHidden, kHidden, 2, nullptr, 0);
  std::size_t bytes = 0;
  cudnnGetRNNWeightSpaceSize(dnn, layers, &bytes);
  const auto weights = [](int input) {  // of a layer in one direction
    return kGates * kHidden * (input + kHidden + 2);
  };
  expect(bytes == 4U * 2 * (weights(kInput) + weights(2 * kHidden)), "weights without gaps");
  char* const space = reinterpret_cast<char*>(std::size_t{1} << 20);
  std::size_t next = 0;
  for (int layer = 0; layer < 4; ++layer) {
    for (const bool is_bias : {false, true}) {
      for (int gate = 0; gate < 2 * kGates; ++gate) {
        void* at = nullptr;
        cudnnGetRNNWeightParams(
            dnn, layers, layer, bytes, space, gate, is_bias ? nullptr : matrix, &at, is_bias ? bias : nullptr, &at);
        expect(at == space + next, "weights one behind the other");
        int type = 0, count = 0, extents[3] = {}, strides[3] = {};
        cudnnGetTensorNdDescriptor(is_bias ? bias : matrix, 3, &type, &count, extents, strides);
        const int columns = is_bias ? 1 : gate >= kGates ? kHidden : layer < 2 ? kInput : 2 * kHidden;
        expect(extents[1] == kHidden && extents[2] == columns, "a gate's rows and columns");
        next += 4U * static_cast<std::size_t>(kHidden * columns);
      }
    }
  }
  const int lengths[kBatch] = {5, 4, 1};
  cudnnSetRNNDataDescriptor(data, kFloat, 1, kLength, kBatch, kInput, lengths, nullptr);
  Allocator allocator;
  allocator.take(kBytes);
  for (int step = 0; step < 3; ++step) {
    cudnnRNNForward(dnn, layers, 1, nullptr, data);
    cudnnRNNBackwardData_v8(dnn, layers, nullptr, data);
    cudnnRNNBackwardWeights_v8(dnn, layers, 0, nullptr, data);
    foreshard_null_mark("step 0 SGD");
  }
}

// torch._grouped_mm of 96 rows in three groups by weights of 64 x 32: its shapes are told to the
// kernel before it. And a copy out of one buffer into two, whose addresses lie on the device.
void tables() {
  static const char shapes_function = 0, product_function = 0, copy_function = 0;
  const auto name = [](const char* function, const char* kernel) {
    __cudaRegisterFunction(nullptr, function, nullptr, kernel, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  };
  name(&shapes_function,
      "_ZN2at4cuda6detail25prepare_grouped_gemm_dataIN7cutlass10bfloat16_tES4_S4_fN4cute5tupleIJiiiEEENS6_IJlNS5_"
      "1CILi1EEENS8_ILi0EEEEEENS6_IJS9_lSA_EEESB_EEvPT_PT0_PT1_PT2_SK_PSE_PSG_PSI_PSK_SO_PT3_PT4_PT5_PT6_"
      "PKiiiiSt5arrayIlLm3EES10_S10_S10_S10_llbb");
  name(&product_function, "_Z13GroupProblemShapePv");
  name(&copy_function, "_ZN2at6native6detail51split_with_sizes_copy_out_contiguous_no_cast_kernelEPPcS3_PlS4_S4_ll");
  Allocator allocator;
  void *rows = allocator.take(kBytes), *weights = allocator.take(kBytes), *out = allocator.take(kBytes),
       *none = nullptr;
  int m = -1, n = 32, k = 64;
  std::int64_t extents[5][3] = {{}, {}, {}, {96, 64, 0}, {3, 64, 32}}, stride = 0;
  bool flag = false;
  void* told[] = {&rows, &weights, &out, &none, &none, &none, &none, &none, &none, &none, &none, &none, &none, &none,
      &none, &m, &n, &k, extents[0], extents[1], extents[2], extents[3], extents[4], &stride, &stride, &flag, &flag};
  void* buffer[] = {&out};
  void* const places[] = {weights, out, rows};
  void* table = allocator.take(kBytes);
  void *to = table, *from = static_cast<char*>(table) + 2 * sizeof(void*);
  void* copied[] = {&from, &to, &none, &none, &none, &stride, &stride};
  // at::native over strided tensors: their addresses lie behind extents and strides.
  static const char strided_function = 0, reduce_function = 0;
  name(&strided_function,
      "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_"
      "addIN3c108BFloat16EEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_");
  name(&reduce_function, "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfEEEEvT1_");
  struct {
    int dimensions = 2, extents[25][3] = {};
    unsigned strides[25][3] = {};
    void* addresses[3];
  } strided = {.addresses = {out, rows, weights}};
  // 1024 rows of 1024, and a number for each row.
  constexpr unsigned kStrides[2][3] = {{2, 2, 0}, {2048, 2048, 2}};
  for (int d = 0; d < 2; ++d) {
    strided.extents[d][0] = 1024;
    for (int t = 0; t < 3; ++t) strided.strides[d][t] = kStrides[d][t];
  }
  int elements = kElements;
  void* added[] = {&elements, &strided};
  struct {
    float operation = 0, identity = 0;
    // Bytes of an element, inputs, outputs, ..., width and height of a block.
    int configuration[16] = {4, 1024, 1024, 0, 0, 0, 0, 0, 0, 0, 0, 32, 16}, dimensions = 1, extents[25][3] = {};
    unsigned strides[25] = {};
    int of_results = 1, extents_of_results[25][3] = {};
    unsigned strides_of_results[25][2] = {};
    void *source, *result, *left_as_it_was;
  } reduction = {.source = rows, .result = out, .left_as_it_was = weights};
  void* reduced[] = {&reduction};
  for (int step = 0; step < 3; ++step) {
    cudaLaunchKernel(&shapes_function, {1, 1, 1}, {3, 1, 1}, told, 0, nullptr);
    cudaLaunchKernel(&product_function, {132, 1, 1}, {384, 1, 1}, buffer, 0, nullptr);
    cudaMemcpyAsync(table, places, sizeof places, kHostToDevice, nullptr);
    cudaLaunchKernel(&copy_function, {64, 1, 1}, {128, 1, 1}, copied, 0, nullptr);
    cudaLaunchKernel(&strided_function, {2048, 1, 1}, {128, 1, 1}, added, 0, nullptr);
    cudaLaunchKernel(&reduce_function, {8, 1, 1}, {32, 16, 1}, reduced, 0, nullptr);
    foreshard_null_mark("step 0 SGD");
  }
}

// How many of ten numbers that a kernel made fall into each of four bins, added up.
void counts() {
  static const char histogram_function = 0, scan_function = 0;
  const auto name = [](const char* function, const char* mangled) {
    __cudaRegisterFunction(nullptr, function, nullptr, mangled, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  };
  name(&histogram_function,
      "_ZN2at4cuda17kernelHistogram1DIiilLi1ELi2ELin1ELNS0_23CUDAHistogramMemoryTypeE0EZNS0_21CUDA_tensor_"
      "histogramIiiLb0EEEbNS_6TensorES4_S4_lNS_14AccumulateTypeIT0_Lb1EE4typeES8_NS0_13TensorArgTypeES9_S9_EUllE0_"
      "EEvNS0_6detail10TensorInfoIT_T1_EESF_NSC_IKS6_SE_EElS8_S8_SE_T6_");
  name(&scan_function,
      "_ZN14at_cuda_detail3cub6detail4scan16DeviceScanKernelINS2_10policy_hubIiiijSt4plusIiEE10Policy1000EPKiPiNS0_"
      "13ScanTileStateIiLb1EEES6_NS0_8NullTypeEjiLb0ESE_EEvT0_T1_T2_iT3_T4_T5_");
  Allocator allocator;
  void *numbers = allocator.take(kBytes), *counted = allocator.take(kBytes), *sums = allocator.take(kBytes);
  std::int64_t bins = 4, all = 10;
  int least = 0, most = 3;
  unsigned count = 4;
  void* histogram[] = {&counted, &counted, &numbers, &bins, &least, &most, &all, &least};
  void* scan[] = {&counted, &sums, &bins, &least, &least, &least, &count};
  cudaLaunchKernel(&histogram_function, {1, 1, 1}, {128, 1, 1}, histogram, 0, nullptr);
  cudaLaunchKernel(&scan_function, {1, 1, 1}, {128, 1, 1}, scan, 0, nullptr);
  int read[4] = {};
  cudaMemcpyAsync(read, sums, sizeof read, kDeviceToHost, nullptr);
  expect(read[0] == 2 && read[1] == 5 && read[2] == 7 && read[3] == 10, "level counts, added up");
}

// A fat binary for 8.0, 9.0 and 10.0: a GPU runs the newest of its own major version.
int architecture() {
  struct {
    std::uint32_t magic = 0xba55ed50;
    std::uint16_t version = 1, header = 16;
    std::uint64_t bytes = 0;
    struct Entry {
      std::uint16_t kind = 2, version = 1;
      std::uint32_t header = 64;
      std::uint64_t bytes = 0;
      std::uint32_t packed = 0, unknown = 0;
      std::uint16_t minor = 0, major = 1;
      std::uint32_t architecture = 0, rest[8] = {};
    } entries[3];
  } binary;
  binary.bytes = sizeof binary.entries;
  for (std::uint32_t i = 0; i < 3; ++i) binary.entries[i].architecture = 80 + 10 * i;
  struct {
    std::uint32_t magic = 0x466243b1, version = 1;
    void* data = nullptr;
    void* file = nullptr;
  } wrapper;
  wrapper.data = &binary;
  __cudaRegisterFunction(__cudaRegisterFatBinary(&wrapper), &kernel_function, nullptr, kKernel, -1, nullptr, nullptr,
      nullptr, nullptr, nullptr);
  struct {
    std::size_t bytes[3];
    int threads, registers, ptx, binary, rest[32];
  } said = {};
  cudaFuncGetAttributes(&said, &kernel_function);
  return said.ptx;
}

void unanswered() {
  void* function = nullptr;
  cudaGetDriverEntryPointByVersion("cuNobodyKnowsThis", &function, 12000, 0, nullptr);
  reinterpret_cast<int (*)()>(function)();
}

}

int main(int, char** argv) {
  const std::string_view part = argv[1];
  if (part == "train") train();
  if (part == "memory") memory();
  if (part == "done") events(false);
  if (part == "pending") events(true);
  if (part == "list") list();
  if (part == "graph") graph();
  if (part == "recurrent") recurrent();
  if (part == "convolutions") convolutions();
  if (part == "tables") tables();
  if (part == "counts") counts();
  if (part == "architecture") return architecture();
  if (part == "unanswered") unanswered();
  if (part == "capability") {
    int major = 0;
    cudaDeviceGetAttribute(&major, 75, 0);
    return major;
  }
  return failures == 0 ? 0 : 1;
}
