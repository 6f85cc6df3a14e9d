// cuDNN: its graph interface as the frontend in PyTorch uses it (attention, convolutions), and
// batch norm of the older one. A descriptor keeps the attributes it is given and hands them out
// again; a query of engines is answered with one, without workspace. What a plan runs is read off
// its graph: convolutions are products, and a graph with attention in it is one call.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t.
constexpr int kConvolutionForward = 10, kConvolutionFilter = 11, kConvolutionData = 12;
constexpr int kTensor = 17, kMatmul = 19, kSdpaForward = 41, kSdpaBackward = 43;
constexpr int kHeuristicResults = 202, kHeuristicGraph = 201, kPlanConfig = 401;
constexpr int kConfigEngine = 300, kEngineGraph = 1300, kOperations = 801;
constexpr int kTensorType = 901, kTensorDimensions = 902;
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
    if (!result.empty())
      std::memcpy(result.data(), it->second.bytes.data(), it->second.bytes.size());
    return result;
  }
  const Descriptor* part(int name) const {
    const auto all = parts(name);
    return all.empty() ? nullptr : all.front();
  }
  std::vector<std::int64_t> dimensions() const {
    const auto it = attributes.find(kTensorDimensions);
    if (it == attributes.end()) return {};
    std::vector<std::int64_t> d(it->second.bytes.size() / sizeof(std::int64_t));
    if (!d.empty()) std::memcpy(d.data(), it->second.bytes.data(), it->second.bytes.size());
    return d;
  }
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
int cuda_type(int type) {
  return type == 0 ? 0 : type == 1 ? 1 : type == 2 ? 2 : type == 9 ? 14 : 3;
}

std::size_t size_of_attribute(int type) {
  constexpr int kHandle = 0, kBoolean = 2, kInt64 = 3, kDouble = 5, kPointer = 6, kChar = 24,
                kFraction = 26;
  switch (type) {
    case kHandle:
    case kInt64:
    case kDouble:
    case kPointer:
    case kTypeDescriptor:
      return 8;
    case kFraction:
      return 16;
    case kBoolean:
    case kChar:
      return 1;
    default:
      return 4;
  }
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

// A convolution as the product that it is: of the pixels of its output, its filters, and what each
// of these sees.
void run_convolution(const Descriptor& operation, StreamHandle stream) {
  const bool forward = operation.type == kConvolutionForward;
  const bool data = operation.type == kConvolutionData;
  const Descriptor* const w = operation.part(forward ? 703 : data ? 709 : 715);
  const Descriptor* const y = operation.part(forward ? 705 : data ? 711 : 717);
  if (w == nullptr || y == nullptr) return;
  const std::vector<std::int64_t> filter = w->dimensions(), out = y->dimensions();
  if (filter.size() < 3 || out.size() < 3) return;
  const std::int64_t seen = volume(filter) / filter[0], filters = filter[0];
  const std::int64_t pixels = volume(out) / out[1];
  const int type = cuda_type(y->data_type());
  Product p{name_id(forward ? "cudnn convolution_forward"
                    : data  ? "cudnn convolution_backward_data"
                            : "cudnn convolution_backward_filter"),
            stream,
            pixels,
            filters,
            seen,
            1,
            type,
            type,
            false,
            false,
            nullptr};
  if (data) std::swap(p.n, p.k);
  if (!forward && !data)
    p = {p.name, stream, filters, seen, pixels, 1, type, type, false, false, nullptr};
  record_product(p);
}

// Shape: batch, heads, queries, keys, head dimension, and 1 where positions are compared (a causal
// or a sliding mask), where a mask or bias is added, where there is dropout.
void run_graph(const Descriptor& graph, StreamHandle stream) {
  std::vector<const Descriptor*> products;
  const Descriptor* whole = nullptr;
  bool masked = false, biased = false, drops = false;
  for (const Descriptor* operation : graph.parts(kOperations)) {
    if (operation->type >= kConvolutionForward && operation->type <= kConvolutionData) {
      run_convolution(*operation, stream);
    }
    if (operation->type == kMatmul) products.push_back(operation);
    const Descriptor* const pointwise =
        operation->type == kPointwise ? operation->part(kPointwiseOf) : nullptr;
    if (pointwise != nullptr) {
      const auto mode = pointwise->attributes.find(kPointwiseMode);
      int value = 0;
      if (mode != pointwise->attributes.end()) {
        std::memcpy(&value, mode->second.bytes.data(), sizeof value);
      }
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
  record_library_call(
      {forward ? "cudnn attention_forward" : "cudnn attention_backward",
       stream,
       forward ? bytes : 2 * bytes,
       {q[0], q[1], q[2], k[2], q[3], masked ? 1 : 0, biased ? 1 : 0, drops ? 1 : 0}});
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
State& state() {
  static State* const s = new State;
  return *s;
}

StreamHandle stream_of(void* handle) {
  const std::lock_guard lock(state().mutex);
  return state().streams[handle];
}
std::uint64_t bytes_of(const void* tensor) {
  const std::lock_guard lock(state().mutex);
  return state().tensors[tensor].bytes();
}

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

}  // namespace
}  // namespace foreshard::null

using namespace foreshard::null;

#define API FORESHARD_NULL_API
#define DONE(name, ...) \
  API Status name(__VA_ARGS__) { return kSuccess; }
#define CREATED(name) \
  API Status name(void** made) { return *made = new_handle(), kSuccess; }

API Status cudnnCreate(void** handle) { return *handle = new_handle(), kSuccess; }
DONE(cudnnDestroy, void*)
API Status cudnnSetStream(void* handle, StreamHandle stream) {
  const std::lock_guard lock(state().mutex);
  return state().streams[handle] = stream, kSuccess;
}
API Status cudnnGetStream(void* handle, StreamHandle* stream) {
  return *stream = stream_of(handle), kSuccess;
}

API Status cudnnBackendCreateDescriptor(int type, void** made) {
  *made = new Descriptor{type, {}, nullptr};
  return kSuccess;
}
API Status cudnnBackendDestroyDescriptor(void*) { return kSuccess; }  // others may point to it
API Status cudnnBackendInitialize(void*) { return kSuccess; }
API Status cudnnBackendFinalize(void*) { return kSuccess; }
API Status cudnnBackendSetAttribute(void* descriptor, int name, int type, std::int64_t count,
                                    const void* values) {
  const auto* const bytes = static_cast<const char*>(values);
  const std::size_t size = size_of_attribute(type) * static_cast<std::size_t>(count);
  static_cast<Descriptor*>(descriptor)->attributes[name] = {type, count, {bytes, bytes + size}};
  return kSuccess;
}
API Status cudnnBackendGetAttribute(void* descriptor, int name, int type, std::int64_t requested,
                                    std::int64_t* count, void* values) {
  auto* const of = static_cast<Descriptor*>(descriptor);
  constexpr int kInt64 = 3, kInt32 = 23;
  if (name == kHeuristicResults) {
    if (count != nullptr) *count = 1;
    if (requested > 0 && values != nullptr) {
      static_cast<Descriptor**>(values)[0]->graph = of->part(kHeuristicGraph);
    }
    return kSuccess;
  }
  const auto it = of->attributes.find(name);
  if (it != of->attributes.end()) {
    if (count != nullptr) *count = it->second.count;
    const auto most = std::min(requested, it->second.count);
    if (values != nullptr && most > 0) {
      std::memcpy(values, it->second.bytes.data(),
                  size_of_attribute(type) * static_cast<std::size_t>(most));
    }
    return kSuccess;
  }
  const bool is_number = type == kInt64 || type == kInt32;
  if (count != nullptr) *count = is_number ? 1 : 0;
  if (is_number && requested > 0 && values != nullptr) {
    std::memset(values, 0, size_of_attribute(type));
  }
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
DONE(cudnnDestroyTensorDescriptor, void*)
DONE(cudnnDestroyFilterDescriptor, void*)
DONE(cudnnDestroyConvolutionDescriptor, void*)
DONE(cudnnDestroyActivationDescriptor, void*)
DONE(cudnnDestroyDropoutDescriptor, void*)
DONE(cudnnSetActivationDescriptor, void*, int, int, double)
API Status cudnnSetTensorNdDescriptor(void* tensor, int type, int count, const int* dimensions,
                                      const int* strides) {
  const std::lock_guard lock(state().mutex);
  state().tensors[tensor] = {type, {dimensions, dimensions + count}, {strides, strides + count}};
  return kSuccess;
}
API Status cudnnGetTensorNdDescriptor(const void* tensor, int requested, int* type, int* count,
                                      int* dimensions, int* strides) {
  const std::lock_guard lock(state().mutex);
  const State::Tensor& t = state().tensors[tensor];
  *type = t.type;
  *count = static_cast<int>(t.dimensions.size());
  for (int i = 0; i < std::min(requested, *count); ++i) {
    dimensions[i] = t.dimensions[static_cast<std::size_t>(i)];
    strides[i] = t.strides[static_cast<std::size_t>(i)];
  }
  return kSuccess;
}
API Status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, const void*,
                                                                    const void*, const void*,
                                                                    const void*, const void*,
                                                                    std::size_t* bytes) {
  return *bytes = 0, kSuccess;
}
API Status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, const void*,
                                                                const void*, std::size_t* bytes) {
  return *bytes = 0, kSuccess;
}
API Status cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, const void*,
                                                             const void*, const void*, const void*,
                                                             const void*, const void*, const void*,
                                                             std::size_t* bytes) {
  return *bytes = 0, kSuccess;
}
// Training reads the input twice (its moments first) and writes it once; backward reads input and
// gradient twice.
API Status cudnnBatchNormalizationForwardTrainingEx(void* handle, int, int, const void*,
                                                    const void*, const void* x) {
  return norm(handle, "cudnn batch_norm_forward", 3 * bytes_of(x));
}
API Status cudnnBatchNormalizationBackwardEx(void* handle, int, int, const void*, const void*,
                                             const void*, const void*, const void* x) {
  return norm(handle, "cudnn batch_norm_backward", 5 * bytes_of(x));
}
API Status cudnnBatchNormalizationForwardInference(void* handle, int, const void*, const void*,
                                                   const void* x) {
  return norm(handle, "cudnn batch_norm_inference", 2 * bytes_of(x));
}
