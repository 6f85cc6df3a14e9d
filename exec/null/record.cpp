// The arguments of a kernel are addresses on the caller's stack; words there that are device
// addresses tell which blocks of PyTorch's allocator it is given. The kernel's name says which
// arguments may hold addresses; how long a structure is, it does not say, so words up to the next
// argument are looked at, and nothing outside of the thread's stack.
#include "exec/null/record.h"

#include <cxxabi.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "exec/null/device.h"
#include "exec/null/log.h"
#include "sim/base/lookup.h"

namespace foreshard::null {
namespace {

constexpr double kNominalKernel = 4e-6;     // s, for clocks that only have to order
constexpr double kNominalBandwidth = 2e12;  // byte/s
constexpr double kNominalFlops = 4e14;
constexpr std::size_t kMostArguments = 64;

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool holds(std::uintptr_t at, std::size_t bytes) const { return at >= begin && at + bytes <= end; }
};

// Of a kernel over strided tensors; none of another.
struct Moved {
  std::int64_t held = 0, asked = 0;
  std::uint32_t dimensions = 0;
};

Range own_stack() {
  static thread_local const Range range = [] {
    Range r;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return r;
    void* base = nullptr;
    std::size_t size = 0;
    if (pthread_attr_getstack(&attributes, &base, &size) == 0) {
      r.begin = reinterpret_cast<std::uintptr_t>(base);
      r.end = r.begin + size;
    }
    pthread_attr_destroy(&attributes);
    return r;
  }();
  Range live = range;
  live.begin = std::max(live.begin, reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)));
  return live;
}

Use::Kind kind_of(ArgumentWords::How how, bool is_first) {
  if (how == ArgumentWords::How::kUnknown) return Use::Kind::kUnknown;
  const bool writes = how == ArgumentWords::How::kWrites || (how == ArgumentWords::How::kWritesFirst && is_first);
  return writes ? Use::Kind::kWrites : Use::Kind::kReads;
}

std::uint64_t word_at(std::uintptr_t at) { return *reinterpret_cast<const std::uint64_t*>(at); }

// Places behind those that the last block works on hold what was on the stack before.
void add_lists(std::uintptr_t at, const ArgumentWords& said, unsigned blocks, std::vector<Use>& uses) {
  if (blocks == 0) return;
  const auto last = *reinterpret_cast<const unsigned char*>(at + said.owners_at + blocks - 1);
  for (std::size_t list = 0; list < said.lists; ++list) {
    for (std::size_t tensor = 0; tensor <= last && tensor < said.words; ++tensor) {
      const std::uint64_t word = word_at(at + 8 * (list * said.words + tensor));
      if (!is_device(reinterpret_cast<const void*>(word))) continue;
      constexpr std::size_t kGradients = 1;  // of an optimizer's lists: read, not written
      uses.push_back({word, 0, kind_of(list == kGradients ? ArgumentWords::How::kUnknown : said.how, false)});
    }
  }
}

// What the host wrote into a table, as far as it is addresses: its length is another argument.
void add_table(std::uint64_t table, std::vector<Use>& uses) {
  for (std::uint64_t word = 0; known_bytes(&word, reinterpret_cast<const void*>(table), sizeof word) &&
                               is_device(reinterpret_cast<const void*>(word));
       table += sizeof word)
    uses.push_back({word, 0, Use::Kind::kUnknown, false});
}

// The lambda of at::native's gpu_kernel_impl: behind the OffsetCalculator of n tensors (its number
// of dimensions, 12 bytes for each of up to 25 extents and 4 for each tensor's stride there) are
// their addresses, the result's first. How many, the lambda does not say.
constexpr std::size_t kDimensions = 25, kExtent = 12, kStride = 4;

std::uint32_t half_word_at(std::uintptr_t at) { return *reinterpret_cast<const std::uint32_t*>(at); }

// Of each tensor: what it holds that the kernel is given, and what its warps ask for, in sectors of
// 32 bytes; a dimension of stride 0 is read again and again.
Moved strided_bytes(std::uintptr_t at, std::size_t n) {
  constexpr double kSector = 32, kWarp = 32;
  Moved made;
  made.dimensions = half_word_at(at);
  if (made.dimensions > kDimensions) return {};
  double all = 1, first = kWarp;
  for (std::size_t d = 0; d < made.dimensions; ++d) {
    const double extent = half_word_at(at + 4 + kExtent * d);
    if (d == 0) first = std::min(extent, kWarp);
    all *= extent;
  }
  if (all < 1) return {};
  double held = 0, asked = 0;
  for (std::size_t t = 0; t < n; ++t) {
    double count = 1, least = 0, step = 0;
    for (std::size_t d = 0; d < made.dimensions; ++d) {
      const double stride = half_word_at(at + 4 + kExtent * kDimensions + kStride * (d * n + t));
      if (d == 0) step = stride;
      if (stride == 0) continue;
      count *= half_word_at(at + 4 + kExtent * d);
      least = least == 0 ? stride : std::min(least, stride);
    }
    held += std::max(kSector, count * std::min(least, kSector));
    asked += all * std::max(kSector / first, std::min(step, kSector));
  }
  made.held = static_cast<std::int64_t>(held);
  made.asked = static_cast<std::int64_t>(asked);
  return made;
}

// at::native's reductions (Reduce.cuh): behind the operation, which is no number or a few, its
// configuration: bytes of an element, how many are added up to one, how many of these, ...; the
// block's width, height and threads. Its bytes are what it is given and makes.
Moved reduced_bytes(std::uintptr_t at, const Dim3& block) {
  constexpr std::size_t kOperations[] = {4, 8, 16}, kWidth = 11;
  for (const std::size_t operation : kOperations) {
    const auto field = [&](std::size_t i) { return std::int64_t{half_word_at(at + operation + 4 * i)}; };
    if (field(kWidth) != block.x || field(kWidth + 1) != block.y || field(0) > 16) continue;
    return {field(0) * field(2) * field(1), field(2), static_cast<std::uint32_t>(field(0))};
  }
  return {};
}

void add_strided(std::uintptr_t at, const Range& stack, std::vector<Use>& uses, Moved& moved) {
  constexpr std::size_t kMost = 4;
  for (std::size_t n = kMost; n > 0; --n) {
    const std::uintptr_t first = at + (4 + kDimensions * (kExtent + kStride * n) + 7) / 8 * 8;
    bool are_all = stack.holds(first, 8 * n);
    for (std::size_t i = 0; i < n && are_all; ++i)
      are_all = is_device(reinterpret_cast<const void*>(word_at(first + 8 * i)));
    if (!are_all) continue;
    for (std::size_t i = 0; i < n; ++i) uses.push_back({word_at(first + 8 * i), 0, Use::Kind::kUnknown, false});
    moved = strided_bytes(at, n);
    return;
  }
}

std::vector<Use> operands(const Launch& launch, Moved& moved) {
  if (launch.arguments == nullptr) return {};
  const Range stack = own_stack();
  const std::size_t most = launch.words == nullptr ? kMostArguments : std::min(kMostArguments, launch.words->size());
  std::array<std::uintptr_t, kMostArguments> sorted{}, places{};
  std::size_t count = 0;
  while (count < most && stack.holds(reinterpret_cast<std::uintptr_t>(launch.arguments + count), sizeof(void*))) {
    const auto place = reinterpret_cast<std::uintptr_t>(launch.arguments[count]);
    if (!stack.holds(place, sizeof(std::uint64_t))) break;
    places[count] = sorted[count] = place;
    ++count;
  }
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<Use> uses;
  for (std::size_t i = 0; i < count; ++i) {
    const ArgumentWords said = launch.words == nullptr ? ArgumentWords{} : (*launch.words)[i];
    if (said.lists > 0) {
      if (stack.holds(places[i], said.owners_at + launch.grid.x)) add_lists(places[i], said, launch.grid.x, uses);
      continue;
    }
    if (said.form == ArgumentWords::Form::kStrided) {
      add_strided(places[i], stack, uses, moved);
      continue;
    }
    if (said.form == ArgumentWords::Form::kReduced) moved = reduced_bytes(places[i], launch.block);
    const std::uint64_t words = said.form == ArgumentWords::Form::kRows ? launch.grid.y : said.skipped + said.words;
    const auto* const next =
        std::upper_bound(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count), places[i]);
    const std::uintptr_t bound = next == sorted.begin() + count ? stack.end : *next;
    const std::uintptr_t end = std::min({bound, places[i] + words * 8, stack.end});
    const std::uintptr_t first = (places[i] + 7) / 8 * 8 + said.skipped * 8;
    for (std::uintptr_t at = first; at + 8 <= end; at += 8) {
      const std::uint64_t word = word_at(at);
      if (!is_device(reinterpret_cast<const void*>(word))) continue;
      uses.push_back({word, 0, kind_of(said.how, at == first), said.is_sure});
      if (said.form == ArgumentWords::Form::kTable) add_table(word, uses);
    }
  }
  return uses;
}

// The structures of ATen/native/cuda/MultiTensorApply.cuh by their number of lists, "Metadata<4>":
// addresses[lists][places], elements[places], of some a scalar or a step for each tensor, then a byte for each block.
ArgumentWords list_words(std::string_view type) {
  constexpr std::uint16_t kPlaces[] = {110, 64, 48, 36, 30}, kScalarPlaces[] = {96, 64, 48, 36, 30};
  const std::size_t digit = type.find_last_of("0123456789");
  const auto lists = static_cast<std::uint16_t>(digit == type.npos ? 0 : type[digit] - '0');
  if (lists < 1 || lists > std::size(kPlaces)) return {0};
  const bool has_scalars = type.find("ScalarList") != type.npos;
  const std::uint16_t places = (has_scalars ? kScalarPlaces : kPlaces)[lists - 1];
  std::size_t owners_at = 8U * (lists + 1U) * places;
  if (has_scalars) owners_at += (type.find("double") != type.npos ? 8U : 4U) * places;
  const bool is_optimizer = type.find("FusedOptimizer") != type.npos;
  if (is_optimizer) owners_at += 8U * kScalarPlaces[lists - 1];
  return {places, is_optimizer ? ArgumentWords::How::kWrites : ArgumentWords::How::kUnknown, lists,
      static_cast<std::uint16_t>(owners_at)};
}

ArgumentWords words_of_type(std::string_view type) {
  using How = ArgumentWords::How;
  constexpr std::uint16_t kStructureWords = 64;
  const std::size_t array = type.find("char*, ");
  if (array != std::string_view::npos && type.find("rray<") != std::string_view::npos)
    return {static_cast<std::uint16_t>(std::atoi(std::string(type.substr(array + 7)).c_str())), How::kWritesFirst};
  if (type.ends_with("**")) return {.form = ArgumentWords::Form::kTable};
  if (type.ends_with("const*")) return {1, How::kReads};
  if (type.ends_with('*')) return {1, How::kWrites};
  for (const std::string_view number :
      {"bool", "char", "short", "int", "long", "float", "double", "c10::Half", "c10::BFloat16"})
    if (type.ends_with(number) && type.find('<') == std::string_view::npos) return {0};
  if (type.find("PhiloxCudaState") != std::string_view::npos) return {0};
  if (type.find("OffsetCalculator") != std::string_view::npos) return {0};
  if (type.find("TensorSizeStride") != std::string_view::npos) return {0};
  if (type.find("ListMetadata<") != std::string_view::npos) return list_words(type);
  if (type.find("CatArrInputTensorMetadata<") != std::string_view::npos)
    return {.is_sure = false, .form = ArgumentWords::Form::kRows};
  if (type.find("gpu_kernel_impl") != std::string_view::npos) return {.form = ArgumentWords::Form::kStrided};
  ArgumentWords structure{kStructureWords};
  if (type.find("ReduceOp<") != std::string_view::npos) {
    // Reduce.cuh: the operation, 64 bytes of configuration, the OffsetCalculators of one tensor and
    // of two; then the source and its first result (who has no second leaves its place as it was).
    structure.skipped = (64 + (4 + 25 * 16) + (4 + 25 * 20)) / 8;
    structure.words = 4;
    structure.form = ArgumentWords::Form::kReduced;
  }
  structure.is_sure = false;
  return structure;
}

}

std::vector<std::string> argument_types(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::vector<std::string> types;
  if (status != 0) return types;
  // The arguments are in the last parentheses at the outermost level.
  const std::string_view name(text.get());
  std::size_t begin = name.size();
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {
    const char c = name[i];
    if (c == ')' || c == '>' || c == ']' || c == '}') ++depth;
    if (c == '(' || c == '<' || c == '[' || c == '{') --depth;
    if (depth == 0 && c == '(') {
      begin = i + 1;
      break;
    }
  }
  if (begin >= name.size()) return types;
  const std::string_view list = name.substr(begin, name.rfind(')') - begin);
  std::size_t from = 0;
  depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '(' || c == '<' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == '>' || c == ']' || c == '}') --depth;
    if (c != ',' || (depth != 0 && i < list.size())) continue;
    std::string_view type = list.substr(from, i - from);
    while (type.starts_with(' ')) type.remove_prefix(1);
    if (!type.empty()) types.emplace_back(type);
    from = i + 1;
  }
  return types;
}

std::vector<ArgumentWords> argument_words(const std::vector<std::string>& types) {
  std::vector<ArgumentWords> words;
  for (const std::string& type : types) {
    words.push_back(words_of_type(type));
    // Behind lists of tensors are functions and numbers.
    if (words.size() > 1 && words.front().lists > 0) words.back() = {0};
  }
  return words;
}

void record_launch(const Launch& l) {
  const Recording recording;
  Moved moved;
  const std::vector<Use> uses = operands(l, moved);
  check_work(l.stream, l.name, uses);
  std::vector<std::uint64_t> addresses;
  for (const Use& use : uses) addresses.push_back(use.at);
  const Touched touched = touch(addresses.data(), addresses.size());
  enqueue(l.stream, kNominalKernel + static_cast<double>(touched.bytes) / kNominalBandwidth);
  Line('L') << handle_id(l.stream) << l.name << l.grid.x << l.grid.y << l.grid.z << l.block.x << l.block.y << l.block.z
            << l.shared_bytes << l.elements << touched.bytes << touched.largest << touched.blocks << moved.held
            << moved.asked << moved.dimensions;
}

void record_product(const Product& p) {
  const Recording recording;
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
                       static_cast<double>(p.batch);
  enqueue(p.stream, kNominalKernel + flops / kNominalFlops);
  const auto bytes = [&](std::int64_t elements, int type) {
    return static_cast<std::uint64_t>(elements * p.batch * bytes_of_type(type));
  };
  if (p.output != nullptr) {
    forget(p.output, bytes(p.m * p.n, p.c_type));
    check_work(p.stream, p.name,
        {reads(p.a, bytes(p.m * p.k, p.a_type)), reads(p.b, bytes(p.k * p.n, p.a_type)),
            writes(p.output, bytes(p.m * p.n, p.c_type))});
  }
  Line('G') << handle_id(p.stream) << p.name << p.m << p.n << p.k << p.batch << p.a_type << p.c_type
            << (p.a_transposed ? 1 : 0) << (p.b_transposed ? 1 : 0);
}

void record_library_call(const LibraryCall& call) {
  const Recording recording;
  enqueue(call.stream, kNominalKernel);
  const std::int64_t name = name_id(call.name);
  check_work(call.stream, name, call.uses);
  Line line('A');
  line << handle_id(call.stream) << name << call.bytes;
  for (const std::int64_t extent : call.shape) line << extent;
}

namespace {

void note_copy(const Copy& copy, int host_waits) {
  const Recording recording;
  enqueue(copy.stream, kNominalKernel + static_cast<double>(copy.bytes) / kNominalBandwidth);
  const char* const name = copy.kind == 's' ? "memset" : "memcpy";
  check_work(copy.stream, name_id(name), {reads(copy.from, copy.bytes), writes(copy.to, copy.bytes)});
  Line('C') << handle_id(copy.stream) << static_cast<int>(copy.kind) << copy.bytes << host_waits;
}

}

void record_copy(const Copy& copy) { note_copy(copy, 0); }

void record_copy_and_wait(const Copy& copy) {
  note_copy(copy, 1);
  await_stream(copy.stream);
  order_host_stream(copy.stream);
}

void record_blind_read(std::uint64_t bytes) {
  const Recording recording;
  const std::string text = python_place();
  const std::int64_t place = name_id(text);
  Line('R') << bytes << place;
  constexpr int kMany = 1000;  // at one place: few steps read fewer
  static std::mutex* const mutex = new std::mutex;
  static std::map<std::int64_t, int>* const reads = new std::map<std::int64_t, int>;
  const std::lock_guard lock(*mutex);
  if (++(*reads)[place] == kMany) {
    say(text + ": has read " + std::to_string(kMany) +
        " numbers that nobody computed, and got zeros: a loop that waits for one does not end here "
        "(three steps are enough)");
  }
}

void record_level_counts() {
  const Recording recording;
  const std::int64_t name = name_id("level " + python_place());
  Line('H') << name;
}

std::int64_t note_place() {
  static thread_local std::int64_t last = -1;
  const std::int64_t place = name_id(python_place());
  if (place != last) Line('U') << place;
  last = place;
  return place;
}

void record_wait(char what, const void* of) {
  if (checks_races()) note_place();
  const std::int64_t id = handle_id(of);
  Line('Y') << static_cast<int>(what) << id;
}

// library_types.h: CUDA_R_16F = 2, 32F = 0, 64F = 1, 8I = 3, C_32F = 4, C_64F = 5, C_16F = 6,
// 8U = 8, 32I = 10, 16BF = 14, 8F = 28 and 29.
int bytes_of_type(int type) {
  return value_of(type, {{2, 2}, {14, 2}, {0, 4}, {6, 4}, {10, 4}, {1, 8}, {4, 8}, {5, 16}}, 1);
}

}
