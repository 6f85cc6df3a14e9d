// cuDNN: its graph interface as the frontend in PyTorch uses it (attention, convolutions), and
// batch norm of the older one. A descriptor keeps the attributes it is given and hands them out
// again; a query of engines is answered with one. What a plan runs is read off its graph:
// convolutions are products and transpositions, and a graph with attention in it is one call.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"
#include "exec/null/state.h"
#include "sim/base/lookup.h"

namespace foreshard::null {
namespace {

// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t.
constexpr int kConvolutionForward = 10, kConvolutionFilter = 11, kConvolutionData = 12;
constexpr int kTensor = 17, kMatmul = 19, kSdpaForward = 41, kSdpaBackward = 43;
constexpr int kHeuristicResults = 202, kHeuristicGraph = 201, kPlanConfig = 401, kWorkspaceSize = 402;
constexpr int kConfigEngine = 300, kEngineGraph = 1300, kOperations = 801;
constexpr int kTensorType = 901, kTensorDimensions = 902, kTensorStrides = 903;
constexpr int kMatmulA = 1520, kMatmulB = 1521;
constexpr int kTypeDescriptor = 15;
constexpr int kPointwise = 13, kPointwiseMode = 0, kPointwiseOf = 750, kModeIndex = 501;
constexpr int kPointwiseB = 752, kModeAdd = 0, kTensorIsVirtual = 907, kRandom = 33;

struct Attribute {
  int type = 0;
  std::int64_t count = 0;
  std::vector<char> bytes;
};
struct Descriptor {
  int type = 0;
  std::map<int, Attribute> attributes;
  const Descriptor* graph = nullptr;  // that it is an answer to

  std::vector<const Descriptor*> parts(int name) const {
    const auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<const Descriptor*> result(it->second.bytes.size() / sizeof(void*));
    if (!result.empty()) std::memcpy(result.data(), it->second.bytes.data(), it->second.bytes.size());
    return result;
  }
  const Descriptor* part(int name) const {
    const auto all = parts(name);
    return all.empty() ? nullptr : all.front();
  }
  std::vector<std::int64_t> numbers(int name) const {
    const auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<std::int64_t> d(it->second.bytes.size() / sizeof(std::int64_t));
    if (!d.empty()) std::memcpy(d.data(), it->second.bytes.data(), it->second.bytes.size());
    return d;
  }
  std::vector<std::int64_t> dimensions() const { return numbers(kTensorDimensions); }
  bool channels_innermost() const {
    const std::vector<std::int64_t> strides = numbers(kTensorStrides);
    return strides.size() > 1 && strides[1] == 1;
  }
  std::int64_t element_bytes() const;
  // A tensor in memory with more than one column.
  bool is_of_pairs() const {
    const auto it = attributes.find(kTensorIsVirtual);
    const std::vector<std::int64_t> d = dimensions();
    return (it == attributes.end() || it->second.bytes[0] == 0) && d.size() == 4 && d[3] > 1;
  }
  int data_type() const {  // cudnnDataType_t
    const auto it = attributes.find(kTensorType);
    int type = 0;
    if (it != attributes.end()) std::memcpy(&type, it->second.bytes.data(), sizeof type);
    return type;
  }
};

// cudnnDataType_t: float 0, double 1, half 2, bfloat16 9, to cudaDataType_t.
int cuda_type(int type) { return type == 0 ? 0 : type == 1 ? 1 : type == 2 ? 2 : type == 9 ? 14 : 3; }

std::int64_t Descriptor::element_bytes() const {
  return static_cast<std::int64_t>(bytes_of_type(cuda_type(data_type())));
}

std::size_t size_of_attribute(int type) {
  constexpr int kHandle = 0, kBoolean = 2, kInt64 = 3, kDouble = 5, kPointer = 6, kChar = 24, kFraction = 26;
  if (is_among(type, {kHandle, kInt64, kDouble, kPointer, kTypeDescriptor})) return 8;
  if (is_among(type, {kBoolean, kChar})) return 1;
  return type == kFraction ? 16 : 4;
}

std::int64_t volume(const std::vector<std::int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

const Descriptor* graph_of(const Descriptor* plan) {
  if (plan == nullptr) return nullptr;
  const Descriptor* const config = plan->part(kPlanConfig);
  if (config == nullptr) return nullptr;
  if (config->graph != nullptr) return config->graph;
  const Descriptor* const engine = config->part(kConfigEngine);
  return engine == nullptr ? nullptr : engine->part(kEngineGraph);
}

// cuDNN's tensor cores read channels innermost, eight at once.
constexpr std::int64_t kAligned = 8;

// A convolution: its tensors, and whether they are laid out anew on the way in and out.
struct Convolution {
  const Descriptor *w = nullptr, *x = nullptr, *y = nullptr;
  const Descriptor* result = nullptr;
  std::int64_t channels = 0, filters = 0, groups = 0, taps = 0;  // the first two of a group
  std::int64_t in_pixels = 0, out_pixels = 0;                    // of all images
  bool transposes = false;

  bool by_channel() const { return channels == 1 && filters == 1; }
  bool few() const { return channels < kAligned && !by_channel(); }

  static std::optional<Convolution> of(const Descriptor& operation) {
    if (operation.type < kConvolutionForward || operation.type > kConvolutionData) return {};
    const bool forward = operation.type == kConvolutionForward;
    const bool data = operation.type == kConvolutionData;
    const int first = forward ? 703 : data ? 709 : 715;  // the filter's; input's and output's follow
    Convolution c;
    c.w = operation.part(first);
    c.x = operation.part(first + 1);
    c.y = operation.part(first + 2);
    if (c.w == nullptr || c.x == nullptr || c.y == nullptr) return {};
    const std::vector<std::int64_t> filter = c.w->dimensions(), in = c.x->dimensions(), out = c.y->dimensions();
    if (filter.size() < 3 || in.size() != filter.size() || out.size() != filter.size()) return {};
    c.result = forward ? c.y : data ? c.x : c.w;
    c.channels = filter[1];
    c.groups = in[1] / filter[1];
    c.filters = filter[0] / c.groups;
    c.taps = volume(filter) / (filter[0] * filter[1]);
    c.in_pixels = volume(in) / in[1];
    c.out_pixels = volume(out) / out[1];
    // A product as it stands, image by image.
    const bool pointwise = c.taps == 1 && c.in_pixels == c.out_pixels && c.in_pixels / in[0] % kAligned == 0;
    c.transposes = !c.x->channels_innermost() && !pointwise && !c.by_channel();
    return c;
  }
};

std::int64_t tiled(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile * tile; }

// Of a tensor with its channels innermost; 0 where it is that already.
std::int64_t transposed_bytes(const Descriptor& tensor, std::int64_t channel_tile, std::int64_t pixel_tile) {
  const std::vector<std::int64_t> d = tensor.dimensions();
  const std::int64_t pixels = volume(d) / (d[0] * d[1]);
  if (pixels == 1) return 0;
  return d[0] * tiled(d[1], channel_tile) * tiled(pixels, pixel_tile) * tensor.element_bytes();
}

// Tiles of 32 channels (16 of 4 bytes) and 32 pixels are read and written, full or not.
void record_transpose(const Descriptor& tensor, bool in, StreamHandle stream) {
  const bool is_wide = tensor.element_bytes() == 4;
  const std::int64_t bytes = 2 * transposed_bytes(tensor, is_wide ? 16 : 32, 32);
  if (bytes == 0) return;
  const std::string name = in ? "cudnn nchwToNhwc" : "cudnn nhwcToNchw";
  record_library_call({is_wide ? name + " of 4 bytes" : name, stream, static_cast<std::uint64_t>(bytes), {}});
}

// As the product of each of its groups. Shape: m, n, k, groups, type.
void record_convolution(const Convolution& c, StreamHandle stream) {
  const bool forward = c.result == c.y, data = c.result == c.x;
  const std::int64_t seen = c.taps * (c.few() ? kAligned : c.channels);
  std::vector<std::int64_t> shape = {c.out_pixels, c.filters, seen};
  if (data) shape = {c.in_pixels, c.channels, c.out_pixels * c.filters * c.taps / c.in_pixels};
  else if (!forward) shape = {c.filters, seen, c.out_pixels};
  shape.insert(shape.end(), {c.groups, cuda_type(c.y->data_type())});
  std::string name = forward ? "cudnn convolution_forward"
                     : data  ? "cudnn convolution_backward_data"
                             : "cudnn convolution_backward_filter";
  if (c.few()) name += " of few channels";
  if (c.by_channel()) name += " by channel";
  if (c.groups > 1 && !c.few() && !c.by_channel()) name += " in groups";
  std::int64_t elements = 0;
  for (const Descriptor* tensor : {c.x, c.w, c.y}) {
    elements += volume(tensor->dimensions());
    if (c.transposes && tensor != c.result) record_transpose(*tensor, true, stream);
  }
  record_library_call({name, stream, static_cast<std::uint64_t>(elements * c.y->element_bytes()), shape});
  if (c.transposes) record_transpose(*c.result, false, stream);
}

// What is laid out anew stands beside.
std::int64_t workspace_of(const Descriptor* graph) {
  std::int64_t bytes = 0;
  if (graph == nullptr) return bytes;
  for (const Descriptor* operation : graph->parts(kOperations)) {
    const std::optional<Convolution> c = Convolution::of(*operation);
    if (!c || !c->transposes) continue;
    for (const Descriptor* tensor : {c->x, c->w, c->y}) bytes += transposed_bytes(*tensor, kAligned, 1);
  }
  return bytes;
}

// Shape: batch, heads, queries, keys, head dimension, and 1 where positions are compared (a causal
// or a sliding mask), where a mask or bias is added, where there is dropout.
void run_graph(const Descriptor& graph, StreamHandle stream) {
  std::vector<const Descriptor*> products;
  const Descriptor* whole = nullptr;
  bool masked = false, biased = false, drops = false;
  for (const Descriptor* operation : graph.parts(kOperations)) {
    if (const auto convolution = Convolution::of(*operation)) record_convolution(*convolution, stream);
    if (operation->type == kMatmul) products.push_back(operation);
    const Descriptor* const pointwise = operation->type == kPointwise ? operation->part(kPointwiseOf) : nullptr;
    if (pointwise != nullptr) {
      const auto mode = pointwise->attributes.find(kPointwiseMode);
      int value = 0;
      if (mode != pointwise->attributes.end()) std::memcpy(&value, mode->second.bytes.data(), sizeof value);
      masked |= value == kModeIndex;
      const Descriptor* const b = operation->part(kPointwiseB);
      biased |= value == kModeAdd && b != nullptr && b->is_of_pairs();
    }
    drops |= operation->type == kRandom;
    if (operation->type == kSdpaForward || operation->type == kSdpaBackward) whole = operation;
  }
  std::vector<std::int64_t> q, k;
  bool forward = true;
  if (whole != nullptr) {
    forward = whole->type == kSdpaForward;
    const int first = forward ? 2800 : 2851;
    if (whole->part(first) != nullptr) q = whole->part(first)->dimensions();
    if (whole->part(first + 1) != nullptr) k = whole->part(first + 1)->dimensions();
  } else if (products.size() >= 2) {
    forward = products.size() < 4;
    const Descriptor* const a = products.front()->part(kMatmulA);
    const Descriptor* const b = products.front()->part(kMatmulB);
    if (a != nullptr) q = a->dimensions();
    if (b != nullptr) k = b->dimensions();
    if (k.size() == 4) std::swap(k[2], k[3]);  // transposed
  }
  if (q.size() != 4 || k.size() != 4) return;
  const std::uint64_t bytes = 2 * static_cast<std::uint64_t>(2 * volume(q) + 2 * volume(k));
  record_library_call({forward ? "cudnn attention_forward" : "cudnn attention_backward", stream,
      forward ? bytes : 2 * bytes, {q[0], q[1], q[2], k[2], q[3], masked ? 1 : 0, biased ? 1 : 0, drops ? 1 : 0}});
}

struct State {
  std::mutex mutex;
  std::map<void*, StreamHandle> streams;
  struct Tensor {
    int type = 0;
    std::vector<int> dimensions, strides;
    std::uint64_t bytes() const {
      std::uint64_t n = static_cast<std::uint64_t>(bytes_of_type(cuda_type(type)));
      for (const int d : dimensions) n *= static_cast<std::uint64_t>(std::max(d, 1));
      return n;
    }
  };
  std::map<const void*, Tensor> tensors;
};

StreamHandle stream_of(void* handle) { return Held<State>()->streams[handle]; }
std::uint64_t bytes_of(const void* tensor) { return Held<State>()->tensors[tensor].bytes(); }

// CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS
std::vector<Use> operands_of(const Descriptor& pack) {
  constexpr int kDataPointers = 1001;
  std::vector<Use> uses;
  const auto it = pack.attributes.find(kDataPointers);
  if (it == pack.attributes.end()) return uses;
  for (std::size_t at = 0; at + sizeof(void*) <= it->second.bytes.size(); at += sizeof(void*)) {
    std::uint64_t address = 0;
    std::memcpy(&address, it->second.bytes.data() + at, sizeof address);
    uses.push_back({address});
  }
  return uses;
}

Status norm(void* handle, const char* name, std::uint64_t bytes) {
  record_library_call({name, stream_of(handle), bytes, {}});
  return kSuccess;
}

}
}

using namespace foreshard::null;

CREATED(cudnnCreate)
DONE(cudnnDestroy)
ANSWERS(cudnnSetStream, Held<State>()->streams[handle] = stream, void* handle, StreamHandle stream)
ANSWERS(cudnnGetStream, *stream = stream_of(handle), void* handle, StreamHandle* stream)

API Status cudnnBackendCreateDescriptor(int type, void** made) {
  return *made = new Descriptor{type, {}, nullptr}, kSuccess;
}
DONE(cudnnBackendDestroyDescriptor)  // others may point to it
DONE(cudnnBackendInitialize)
DONE(cudnnBackendFinalize)
API Status cudnnBackendSetAttribute(void* descriptor, int name, int type, std::int64_t count, const void* values) {
  const auto* const bytes = static_cast<const char*>(values);
  const std::size_t size = size_of_attribute(type) * static_cast<std::size_t>(count);
  static_cast<Descriptor*>(descriptor)->attributes[name] = {type, count, {bytes, bytes + size}};
  return kSuccess;
}
API Status cudnnBackendGetAttribute(
    void* descriptor, int name, int type, std::int64_t requested, std::int64_t* count, void* values) {
  auto* const of = static_cast<Descriptor*>(descriptor);
  constexpr int kInt64 = 3, kInt32 = 23;
  if (name == kHeuristicResults) {
    if (count != nullptr) *count = 1;
    if (requested > 0 && values != nullptr) static_cast<Descriptor**>(values)[0]->graph = of->part(kHeuristicGraph);
    return kSuccess;
  }
  if (name == kWorkspaceSize && requested > 0 && values != nullptr) {
    const std::int64_t bytes = workspace_of(graph_of(of));
    std::memcpy(values, &bytes, sizeof bytes);
    if (count != nullptr) *count = 1;
    return kSuccess;
  }
  const auto it = of->attributes.find(name);
  if (it != of->attributes.end()) {
    if (count != nullptr) *count = it->second.count;
    const auto most = std::min(requested, it->second.count);
    if (values != nullptr && most > 0)
      std::memcpy(values, it->second.bytes.data(), size_of_attribute(type) * static_cast<std::size_t>(most));
    return kSuccess;
  }
  const bool is_number = type == kInt64 || type == kInt32;
  if (count != nullptr) *count = is_number ? 1 : 0;
  if (is_number && requested > 0 && values != nullptr) std::memset(values, 0, size_of_attribute(type));
  return kSuccess;
}
API Status cudnnBackendExecute(void* handle, void* plan, void* pack) {
  const Descriptor* const graph = graph_of(static_cast<const Descriptor*>(plan));
  check_work(stream_of(handle), name_id("cudnn"), operands_of(*static_cast<Descriptor*>(pack)));
  if (graph == nullptr) refuse("unanswered call cudnnBackendExecute: a plan without a graph");
  run_graph(*graph, stream_of(handle));
  return kSuccess;
}

CREATED(cudnnCreateTensorDescriptor)
CREATED(cudnnCreateFilterDescriptor)
CREATED(cudnnCreateConvolutionDescriptor)
CREATED(cudnnCreateActivationDescriptor)
CREATED(cudnnCreateDropoutDescriptor)
DONE(cudnnDestroyTensorDescriptor)
DONE(cudnnDestroyFilterDescriptor)
DONE(cudnnDestroyConvolutionDescriptor)
DONE(cudnnDestroyActivationDescriptor)
DONE(cudnnDestroyDropoutDescriptor)
DONE(cudnnSetActivationDescriptor)
API Status cudnnSetTensorNdDescriptor(void* tensor, int type, int count, const int* dimensions, const int* strides) {
  Held<State>()->tensors[tensor] = {type, {dimensions, dimensions + count}, {strides, strides + count}};
  return kSuccess;
}
API Status cudnnGetTensorNdDescriptor(
    const void* tensor, int requested, int* type, int* count, int* dimensions, int* strides) {
  const Held<State> s;
  const State::Tensor& t = s->tensors[tensor];
  *type = t.type;
  *count = static_cast<int>(t.dimensions.size());
  for (int i = 0; i < std::min(requested, *count); ++i) {
    dimensions[i] = t.dimensions[static_cast<std::size_t>(i)];
    strides[i] = t.strides[static_cast<std::size_t>(i)];
  }
  return kSuccess;
}
ANSWERS(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, *bytes = 0, void*, int, int, const void*, const void*,
    const void*, const void*, const void*, std::size_t* bytes)
ANSWERS(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, *bytes = 0, void*, int, int, const void*, const void*,
    std::size_t* bytes)
ANSWERS(cudnnGetBatchNormalizationBackwardExWorkspaceSize, *bytes = 0, void*, int, int, const void*, const void*,
    const void*, const void*, const void*, const void*, const void*, std::size_t* bytes)
// Training reads the input twice (its moments first) and writes it once; backward reads input and gradient twice.
API Status cudnnBatchNormalizationForwardTrainingEx(void* handle, int, int, const void*, const void*, const void* x) {
  return norm(handle, "cudnn batch_norm_forward", 3 * bytes_of(x));
}
API Status cudnnBatchNormalizationBackwardEx(
    void* handle, int, int, const void*, const void*, const void*, const void*, const void* x) {
  return norm(handle, "cudnn batch_norm_backward", 5 * bytes_of(x));
}
API Status cudnnBatchNormalizationForwardInference(void* handle, int, const void*, const void*, const void* x) {
  return norm(handle, "cudnn batch_norm_inference", 2 * bytes_of(x));
}
