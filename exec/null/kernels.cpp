// Kernels: the binaries that hold them, their names, and their launches, as the CUDA runtime is called for them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"
#include "exec/null/state.h"
#include "exec/null/unanswered.h"

namespace foreshard::null {
namespace {

// What counting kernels write, where the host may read it: how often each value occurs, and sums of
// known numbers. Programs cut experts' tokens by them.
// at::cuda's histogram (ATen/native/cuda/SummaryOps.cu: counts, partial counts, input, bins, least,
// most, elements) of numbers that nobody computed says of each bin the same: what routes tokens to
// experts is trained to be level. CUB's DeviceScanKernel (input, output, ..., elements) adds up.
class Counts {
 public:
  // Of a kernel that is one, by its name and its arguments' types.
  static std::optional<Counts> of(const std::string& name, const std::vector<std::string>& types);
  // Before the kernel's operands are forgotten, and behind it.
  std::vector<char> result(void** arguments) const;
  void write(void** arguments, const std::vector<char>& result) const;

 private:
  enum class What : unsigned char { kHistogram, kSums };
  What what_ = What::kHistogram;
  bool is_long_ = false;
  std::size_t arguments_ = 0;
};

constexpr std::size_t kBins = 3, kElements = 6;  // among the histogram's arguments

template <typename Number>
std::vector<char> bytes_of(const std::vector<Number>& numbers) {
  std::vector<char> bytes(numbers.size() * sizeof(Number));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::int64_t number_at(void** arguments, std::size_t i) { return *static_cast<const std::int64_t*>(arguments[i]); }

template <typename Number>
std::vector<char> level(std::int64_t bins, std::int64_t elements) {
  std::vector<Number> counts(static_cast<std::size_t>(bins));
  for (std::int64_t i = 0; i < bins; ++i)
    counts[static_cast<std::size_t>(i)] = static_cast<Number>(elements * (i + 1) / bins - elements * i / bins);
  return bytes_of(counts);
}

template <typename Number>
std::vector<char> sums(const void* input, std::size_t count) {
  std::vector<Number> numbers(count);
  if (!known_bytes(numbers.data(), input, count * sizeof(Number))) return {};
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin());
  return bytes_of(numbers);
}

std::optional<Counts> Counts::of(const std::string& name, const std::vector<std::string>& types) {
  Counts made;
  made.arguments_ = types.size();
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  if (has(name, "kernelHistogram1D") && types.size() > kElements && types[kElements] == "long") {
    made.is_long_ = has(types[0], "TensorInfo<long");
    if (made.is_long_ || has(types[0], "TensorInfo<int")) return made;
  }
  if (has(name, "DeviceScanKernel") && types.size() > 2 && types.back() == "unsigned int" &&
      has(types[types.size() - 2], "NullType")) {  // (what starts from a value is exclusive)
    made.what_ = What::kSums;
    made.is_long_ = types[0] == "long const*";
    const bool adds = has(types[types.size() - 3], "plus<") || has(types[types.size() - 3], "Sum");
    const std::string result = made.is_long_ ? "long*" : "int*";
    if (adds && (made.is_long_ || types[0] == "int const*") && types[1] == result) return made;
  }
  return std::nullopt;
}

std::vector<char> Counts::result(void** arguments) const {
  if (what_ == What::kSums) {
    const auto count = static_cast<std::size_t>(*static_cast<const std::uint32_t*>(arguments[arguments_ - 1]));
    if (count == 0 || count * 8 > kKnownBytes) return {};
    const void* const input = *static_cast<const void* const*>(arguments[0]);
    return is_long_ ? sums<std::int64_t>(input, count) : sums<std::int32_t>(input, count);
  }
  const std::int64_t bins = number_at(arguments, kBins), all = number_at(arguments, kElements);
  if (bins <= 0 || bins * 8 > static_cast<std::int64_t>(kKnownBytes)) return {};
  return is_long_ ? level<std::int64_t>(bins, all) : level<std::int32_t>(bins, all);
}

void Counts::write(void** arguments, const std::vector<char>& result) const {
  if (result.empty()) return;
  if (what_ == What::kHistogram) record_level_counts();
  // A TensorInfo begins with its address, too.
  const std::size_t output = what_ == What::kSums ? 1 : 0;
  copy_bytes(*static_cast<void* const*>(arguments[output]), result.data(), result.size());
}

// The newest architecture (90 is 9.0) of a fat binary that the GPU runs: binaries run on their own and on later minor
// versions, PTX on all later ones. Places of the fields: CUDA's fatbinary.h is not public; `cuobjdump -lelf` of
// PyTorch's libraries lists the same. The GPU's own where there is none.
int runnable_architecture(const void* wrapper) {
  struct Wrapper {
    std::uint32_t magic, version;
    const char* data;
  };
  constexpr std::uint32_t kWrapper = 0x466243b1, kData = 0xba55ed50;
  constexpr std::size_t kEntry = 64;
  const int own = properties().major * 10 + properties().minor;
  const auto* const w = static_cast<const Wrapper*>(wrapper);
  if (w == nullptr || w->magic != kWrapper || w->data == nullptr) return own;
  const auto at = [](const char* from, std::size_t offset, auto value) {
    std::memcpy(&value, from + offset, sizeof value);
    return value;
  };
  if (at(w->data, 0, std::uint32_t{}) != kData) return own;
  const char* entry = w->data + at(w->data, 6, std::uint16_t{});
  const char* const end = entry + at(w->data, 8, std::uint64_t{});
  int best = 0;
  while (entry + kEntry <= end) {
    constexpr int kPtx = 1, kBinary = 2;
    const int kind = at(entry, 0, std::uint16_t{});
    const auto architecture = static_cast<int>(at(entry, 28, std::uint32_t{}));
    const bool runs = kind == kPtx || (kind == kBinary && architecture / 10 == own / 10);
    if (runs && architecture <= own) best = std::max(best, architecture);
    const std::uint64_t size = at(entry, 4, std::uint32_t{}) + at(entry, 8, std::uint64_t{});
    if (size < kEntry) break;
    entry += size;
  }
  return best == 0 ? own : best;
}

// Where torch._grouped_mm's first kernel (ATen/native/cuda/GroupMMCommon.cuh; a thread for each
// group) is told the extents that all groups share, of which the one that differs is negative, and
// the shapes of both operands. The product behind it reads its groups' shapes on the device.
struct GroupedPlaces {
  std::size_t extents = 0, shapes = 0;  // of M before N and K; of A's before B's
  int a_type = 0, c_type = 0;

  static std::optional<GroupedPlaces> of(const std::vector<std::string>& types) {
    constexpr std::size_t kShapes = 5;  // three of strides, then A's and B's extents
    const auto is_array = [](const std::string& type) { return type.starts_with("std::array<long, 3"); };
    const auto extent = std::find(types.begin(), types.end(), "int");
    if (types.end() - extent < 3 || std::count_if(types.begin(), types.end(), is_array) != kShapes) return std::nullopt;
    const auto array = std::find_if(types.begin(), types.end(), is_array);
    const auto at = [&](auto it) { return static_cast<std::size_t>(it - types.begin()); };
    return GroupedPlaces{at(extent), at(array) + kShapes - 2, type_of(types[0]), type_of(types[2])};
  }

  Product product(void** arguments, int groups) const {
    const auto number = [&](std::size_t i) { return *static_cast<const int*>(arguments[i]); };
    const auto extent = [&](std::size_t which, std::size_t tensor, std::size_t dimension) {
      const int own = number(extents + which);
      if (own >= 0) return std::int64_t{own};
      const auto* const shape = static_cast<const std::int64_t*>(arguments[shapes + tensor]);
      return (shape[dimension] + groups - 1) / groups;
    };
    // As cuBLAS, column-major.
    Product made;
    made.m = extent(1, 1, 1);
    made.n = extent(0, 0, 0);
    made.k = extent(2, 0, 1);
    made.batch = groups;
    made.a_type = a_type;
    made.c_type = c_type;
    made.a = *static_cast<void**>(arguments[1]);
    made.b = *static_cast<void**>(arguments[0]);
    made.output = *static_cast<void**>(arguments[2]);
    return made;
  }

 private:
  // library_types.h
  static int type_of(const std::string& type) {
    return type.find("float8_e4m3") != type.npos || type.find("float_e4m3") != type.npos ? 28
           : type.find("bfloat16") != type.npos                                          ? 14
           : type.find("half") != type.npos                                              ? 2
                                                                                         : 0;
  }
};

std::int64_t first_number(void** arguments) { return *static_cast<const int*>(arguments[0]); }

// Products of a convolution with a filter for each channel (ATen/native/cuda/DepthwiseConv2d.cu):
// its kernels take three accessors of four dimensions (GenericPackedTensorAccessor: data, sizes,
// strides), input and output in either order, and the filter.
std::int64_t by_channel_products(void** arguments) {
  const auto sizes = [&](int i) {
    std::array<std::int32_t, 4> made{};  // index_t is 32 bits but where a tensor has 2^31 elements
    std::memcpy(made.data(), static_cast<const char*>(arguments[i]) + sizeof(void*), sizeof made);
    return made;
  };
  const auto elements = [&](int i) {
    const auto of = sizes(i);
    return std::int64_t{of[0]} * of[1] * of[2] * of[3];
  };
  const auto filter = sizes(2);
  return std::min(elements(0), elements(1)) * filter[2] * filter[3];
}

// Names of kernels by their host functions, which are what a launch names.
struct Kernels {
  struct Known {
    std::int64_t name = -1;
    bool multiplies_groups = false;
    std::int64_t (*elements)(void** arguments) = nullptr;
    std::vector<ArgumentWords> words;  // argument_words
    std::optional<GroupedPlaces> grouped;
    std::optional<Counts> counts;
  };
  std::mutex mutex;
  std::map<const void*, std::string> names;
  std::map<const void*, int> architectures;
  std::map<const void*, Known> known;
};

const Kernels::Known& kernel(const void* function) {
  const Held<Kernels> all;
  Kernels::Known& known = all->known[function];
  if (known.name < 0) {
    const auto it = all->names.find(function);
    const std::string name = it == all->names.end() ? "a kernel without a name" : it->second;
    known.name = name_id(name);
    const std::vector<std::string> types = argument_types(name);
    known.words = argument_words(types);
    if (name.find("prepare_grouped_gemm_data") != std::string::npos) known.grouped = GroupedPlaces::of(types);
    known.counts = Counts::of(name, types);
    known.multiplies_groups = name.find("GroupProblemShape") != std::string::npos;
    // at::native: vectorized_, unrolled_ and plain elementwise_kernel(int N, ...)
    if (name.find("elementwise_kernel") != std::string::npos) known.elements = first_number;
    if (name.find("conv_depthwise2d") != std::string::npos) known.elements = by_channel_products;
  }
  return known;
}

Status launch(
    const void* function, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, StreamHandle stream) {
  const Recording recording;
  const Kernels::Known& known = kernel(function);
  static thread_local std::optional<Product> grouped;  // of this thread's next product
  if (known.grouped && arguments != nullptr) grouped = known.grouped->product(arguments, static_cast<int>(block.x));
  if (known.multiplies_groups && grouped) {
    Product product = *std::exchange(grouped, std::nullopt);
    product.name = known.name;
    product.stream = stream;
    record_product(product);
    return kSuccess;
  }
  const bool knows = known.elements != nullptr && arguments != nullptr;
  const bool counts = known.counts && arguments != nullptr;
  const std::vector<char> result = counts ? known.counts->result(arguments) : std::vector<char>{};
  record_launch(
      {known.name, grid, block, shared_bytes, stream, arguments, &known.words, knows ? known.elements(arguments) : -1});
  if (counts) known.counts->write(arguments, result);
  return kSuccess;
}

struct Configuration {
  Dim3 grid, block;
  std::size_t shared_bytes;
  StreamHandle stream;
};
thread_local std::vector<Configuration> configurations;

}
}

using namespace foreshard::null;

// ---- registration of kernels, at the load of each library ----
API void** __cudaRegisterFatBinary(void* wrapper) {
  patch_unanswered();
  // The handle is the architecture, once for each.
  static std::map<int, void*>* const handles = new std::map<int, void*>;
  const int architecture = runnable_architecture(wrapper);
  void*& handle = (*handles)[architecture];
  handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(architecture));
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
API void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(
    void** handle, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  const Held<Kernels> all;
  all->names[host] = name;
  if (handle == nullptr) return;
  all->architectures[host] = static_cast<int>(reinterpret_cast<std::intptr_t>(*handle));
}
API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared_bytes, void* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
API Status __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return kInvalidValue;
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared_bytes = c.shared_bytes;
  *static_cast<void**>(stream) = c.stream;
  return kSuccess;
}
ANSWERS(__cudaGetKernel, *kernel = const_cast<void*>(function), void** kernel, const void* function)
API Status __cudaLaunchKernel(
    void* kernel, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, StreamHandle stream) {
  return launch(kernel, grid, block, arguments, shared_bytes, stream);
}
API Status cudaLaunchKernel(
    const void* function, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, StreamHandle stream) {
  return launch(function, grid, block, arguments, shared_bytes, stream);
}
API Status cudaLaunchCooperativeKernel(
    const void* function, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes, StreamHandle stream) {
  return launch(function, grid, block, arguments, shared_bytes, stream);
}
API Status cudaLaunchKernelExC(const LaunchConfig* c, const void* function, void** arguments) {
  return launch(function, c->grid, c->block, arguments, c->shared_bytes, c->stream);
}
API Status cudaLaunchHostFunc(StreamHandle, void (*function)(void*), void* data) {
  function(data);
  return kSuccess;
}
API Status cudaStreamAddCallback(
    StreamHandle stream, void (*function)(StreamHandle, Status, void*), void* data, unsigned) {
  function(stream, kSuccess, data);
  return kSuccess;
}
API Status cudaFuncGetAttributes(FunctionAttributes* a, const void* function) {
  std::memset(a, 0, sizeof *a);
  int binary = properties().major * 10 + properties().minor;
  {
    const Held<Kernels> all;
    const auto it = all->architectures.find(function);
    // CUB picks its kernels by it, of the architectures that it was compiled for.
    if (it != all->architectures.end()) binary = it->second;
  }
  a->max_threads = 1024;
  a->registers = 32;
  a->ptx_version = a->binary_version = binary;
  a->max_dynamic_shared = 49152;
  return kSuccess;
}
DONE(cudaFuncSetAttribute)
DONE(cudaFuncSetCacheConfig)
// As many blocks as threads allow; registers and shared memory are not looked at.
API Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* count, const void*, int threads, std::size_t, unsigned) {
  return *count = threads <= 0 ? 1 : std::max(1, properties().threads_per_multiprocessor / threads), kSuccess;
}
API Status cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* count, const void* function, int threads, std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, threads, shared, 0);
}
