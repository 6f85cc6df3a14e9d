// cuDNN's recurrent layers (RNN, GRU, LSTM; version 8's interface, which PyTorch uses since 2.4).
//
// The weight space is laid out as PyTorch demands of cuDNN: of each layer and direction the gates' input matrices,
// their recurrent ones, both biases of each, then a projection. A pass is written down as the products that it is: all
// steps with the layer's input at once; with the state step by step under the standard algorithm, in one kernel under
// persistent ones; and what is done to the gates, by its bytes. Sizes of cuDNN's own spaces are in no documentation:
// the reserve is taken to hold gates, cell and output of every step, the workspace the gates of one layer.
#include <cstdint>
#include <map>
#include <mutex>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"
#include "exec/null/state.h"

// exec/null/dnn.cpp
API foreshard::null::Status cudnnGetStream(void* handle, foreshard::null::StreamHandle* stream);
API foreshard::null::Status cudnnSetTensorNdDescriptor(
    void* tensor, int type, int count, const int* dimensions, const int* strides);

namespace foreshard::null {
namespace {

struct Recurrent {  // cudnnSetRNNDescriptor_v8's arguments
  int algorithm = 0, cell = 0, direction = 0, type = 0;
  std::int64_t input = 0, hidden = 0, projection = 0, layers = 0;

  // cudnnRNNMode_t: relu, tanh, LSTM, GRU.
  std::int64_t gates() const { return cell == 2 ? 4 : cell == 3 ? 3 : 1; }
  std::int64_t directions() const { return direction == 1 ? 2 : 1; }
  std::int64_t output() const { return is_projected() ? projection : hidden; }
  bool is_projected() const { return projection != 0 && projection != hidden; }
  std::int64_t input_of(std::int64_t layer) const { return layer == 0 ? input : output() * directions(); }
};
struct Sequences {  // cudnnSetRNNDataDescriptor's
  std::int64_t longest = 0, batch = 0, tokens = 0;
};

struct State {
  std::mutex mutex;
  std::map<const void*, Recurrent> layers;
  std::map<const void*, Sequences> sequences;
};
Recurrent layer_of(const void* descriptor) { return Held<State>()->layers[descriptor]; }
Sequences sequences_of(const void* descriptor) { return Held<State>()->sequences[descriptor]; }

// cudnnDataType_t: float 0, double 1, half 2, bfloat16 9; as cudaDataType_t.
int cuda_type(int type) { return type == 9 ? 14 : type; }
std::int64_t element(const Recurrent& r) { return bytes_of_type(cuda_type(r.type)); }

// Elements of a layer's matrices and biases, in order.
struct Block {
  std::int64_t input = 0, state = 0, bias = 0, projection = 0;
  std::int64_t whole() const { return input + state + bias + projection; }
};
Block block_of(const Recurrent& r, std::int64_t layer) {
  const std::int64_t rows = r.gates() * r.hidden;
  return {rows * r.input_of(layer), rows * r.output(), 2 * rows, r.is_projected() ? r.projection * r.hidden : 0};
}

std::int64_t weights(const Recurrent& r) {
  std::int64_t elements = 0;
  for (std::int64_t layer = 0; layer < r.layers; ++layer) elements += r.directions() * block_of(r, layer).whole();
  return elements;
}

struct Extents {
  std::int64_t m, n, k;
};
void product(const Recurrent& r, const char* name, StreamHandle stream, const Extents& e, std::int64_t batch) {
  const int type = cuda_type(r.type);
  record_product({name_id(name), stream, e.m, e.n, e.k, batch, type, type, false, false, nullptr});
}

enum class Part { kForward, kData, kWeights };

void run(const Recurrent& r, const Sequences& s, StreamHandle stream, Part part) {
  constexpr int kStandard = 0;  // cudnnRNNAlgo_t
  const std::int64_t rows = r.gates() * r.hidden;
  for (std::int64_t i = 0; i < r.layers * r.directions(); ++i) {
    const std::int64_t input = r.input_of(i / r.directions());
    if (part == Part::kWeights) {
      product(r, "cudnn rnn_backward_weights", stream, {rows, input, s.tokens}, 1);
      product(r, "cudnn rnn_backward_weights", stream, {rows, r.output(), s.tokens}, 1);
      continue;
    }
    const bool forward = part == Part::kForward;
    const char* const name = forward ? "cudnn rnn_forward" : "cudnn rnn_backward_data";
    product(r, name, stream, forward ? Extents{s.tokens, rows, input} : Extents{s.tokens, input, rows}, 1);
    const Extents step = forward ? Extents{s.batch, rows, r.output()} : Extents{s.batch, r.output(), rows};
    const bool is_persistent = r.algorithm != kStandard;
    for (std::int64_t at = 0; at < (is_persistent ? 1 : s.longest); ++at)
      product(r, name, stream, step, is_persistent ? s.longest : 1);
    // Gates are read and written, cell and output written; backward reads these and their gradients.
    const std::int64_t moved = s.tokens * (2 * rows + 2 * r.hidden) * element(r);
    record_library_call({forward ? "cudnn rnn_cells" : "cudnn rnn_cells_backward", stream,
        static_cast<std::uint64_t>(forward ? moved : 2 * moved), {is_persistent ? 1 : s.longest}});
  }
}

StreamHandle stream_of(void* handle) {
  StreamHandle stream = nullptr;
  cudnnGetStream(handle, &stream);
  return stream;
}

void describe(void* tensor, int type, std::int64_t rows, std::int64_t columns) {
  const int dimensions[] = {1, static_cast<int>(rows), static_cast<int>(columns)};
  const int strides[] = {dimensions[1] * dimensions[2], dimensions[2], 1};
  cudnnSetTensorNdDescriptor(tensor, type, 3, dimensions, strides);
}

}
}

using namespace foreshard::null;

CREATED(cudnnCreateRNNDescriptor)
ANSWERS(cudnnDestroyRNNDescriptor, Held<State>()->layers.erase(descriptor), void* descriptor)
CREATED(cudnnCreateRNNDataDescriptor)
ANSWERS(cudnnDestroyRNNDataDescriptor, Held<State>()->sequences.erase(descriptor), void* descriptor)
API Status cudnnSetRNNDescriptor_v8(void* descriptor, int algorithm, int cell, int, int direction, int, int type, int,
    int, std::int32_t input, std::int32_t hidden, std::int32_t projection, std::int32_t layers, void*, std::uint32_t) {
  Held<State>()->layers[descriptor] = {algorithm, cell, direction, type, input, hidden, projection, layers};
  return kSuccess;
}
API Status cudnnSetRNNDataDescriptor(
    void* descriptor, int, int, int longest, int batch, int, const int* lengths, void*) {
  Sequences s{longest, batch, 0};
  for (int i = 0; i < batch; ++i) s.tokens += lengths[i];
  Held<State>()->sequences[descriptor] = s;
  return kSuccess;
}
API Status cudnnGetRNNWeightSpaceSize(void*, void* descriptor, std::size_t* bytes) {
  const Recurrent r = layer_of(descriptor);
  return *bytes = static_cast<std::size_t>(weights(r) * element(r)), kSuccess;
}
API Status cudnnGetRNNWeightParams(void*, void* descriptor, std::int32_t pseudo_layer, std::size_t, const void* space,
    std::int32_t gate, void* matrix, void** matrix_at, void* bias, void** bias_at) {
  const Recurrent r = layer_of(descriptor);
  const std::int64_t layer = pseudo_layer / r.directions();
  std::int64_t at = pseudo_layer % r.directions() * block_of(r, layer).whole();
  for (std::int64_t l = 0; l < layer; ++l) at += r.directions() * block_of(r, l).whole();
  const Block block = block_of(r, layer);
  const auto place = [&](std::int64_t offset) {
    return const_cast<char*>(static_cast<const char*>(space)) + offset * element(r);
  };
  const std::int64_t gates = r.gates();
  if (matrix != nullptr && gate == 2 * gates) {  // the projection
    describe(matrix, r.type, r.projection, r.hidden);
    *matrix_at = place(at + block.input + block.state + block.bias);
  } else if (matrix != nullptr) {
    const bool of_input = gate < gates;
    const std::int64_t columns = of_input ? r.input_of(layer) : r.output();
    const std::int64_t before = of_input ? 0 : block.input;
    describe(matrix, r.type, r.hidden, columns);
    *matrix_at = place(at + before + gate % gates * r.hidden * columns);
  }
  if (bias != nullptr && gate < 2 * gates) {
    describe(bias, r.type, r.hidden, 1);
    *bias_at = place(at + block.input + block.state + gate * r.hidden);
  }
  return kSuccess;
}
API Status cudnnGetRNNTempSpaceSizes(
    void*, void* descriptor, int, void* sequences, std::size_t* workspace, std::size_t* reserve) {
  const Recurrent r = layer_of(descriptor);
  const std::int64_t tokens = sequences_of(sequences).tokens * r.directions() * element(r);
  if (workspace != nullptr) *workspace = static_cast<std::size_t>(tokens * r.gates() * r.hidden);
  if (reserve != nullptr) *reserve = static_cast<std::size_t>(tokens * r.layers * (r.gates() + 2) * r.hidden);
  return kSuccess;
}
API Status cudnnRNNForward(void* handle, void* descriptor, int, const void*, void* sequences) {
  run(layer_of(descriptor), sequences_of(sequences), stream_of(handle), Part::kForward);
  return kSuccess;
}
API Status cudnnRNNBackwardData_v8(void* handle, void* descriptor, const void*, void* sequences) {
  run(layer_of(descriptor), sequences_of(sequences), stream_of(handle), Part::kData);
  return kSuccess;
}
API Status cudnnRNNBackwardWeights_v8(void* handle, void* descriptor, int, const void*, void* sequences) {
  run(layer_of(descriptor), sequences_of(sequences), stream_of(handle), Part::kWeights);
  return kSuccess;
}

// A generator for each thread that a GPU can run (sizeof(curandState_t) is 48).
API Status cudnnDropoutGetStatesSize(void*, std::size_t* bytes) {
  const Properties& p = properties();
  *bytes = std::size_t{48} * static_cast<std::size_t>(p.multiprocessors) *
           static_cast<std::size_t>(p.threads_per_multiprocessor);
  return kSuccess;
}
DONE(cudnnSetDropoutDescriptor)
DONE(cudnnRestoreDropoutDescriptor)
