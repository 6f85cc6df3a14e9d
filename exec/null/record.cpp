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
#include <memory>
#include <vector>

#include "exec/null/device.h"
#include "exec/null/log.h"

namespace foreshard::null {
namespace {

constexpr double kNominalKernel = 4e-6;     // s, for clocks that only have to order
constexpr double kNominalBandwidth = 2e12;  // byte/s
constexpr double kNominalFlops = 4e14;
constexpr std::size_t kMostArguments = 64;

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool holds(std::uintptr_t at, std::size_t bytes) const {
    return at >= begin && at + bytes <= end;
  }
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

Touched operands(const Launch& launch) {
  if (launch.arguments == nullptr) return {};
  const Range stack = own_stack();
  const std::size_t most =
      launch.words == nullptr ? kMostArguments : std::min(kMostArguments, launch.words->size());
  std::array<std::uintptr_t, kMostArguments> sorted{}, places{};
  std::size_t count = 0;
  while (count < most &&
         stack.holds(reinterpret_cast<std::uintptr_t>(launch.arguments + count), sizeof(void*))) {
    const auto place = reinterpret_cast<std::uintptr_t>(launch.arguments[count]);
    if (!stack.holds(place, sizeof(std::uint64_t))) break;
    places[count] = sorted[count] = place;
    ++count;
  }
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  std::vector<std::uint64_t> words;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t wanted = launch.words == nullptr ? 1 : (*launch.words)[i];
    const auto* const next = std::upper_bound(
        sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count), places[i]);
    const std::uintptr_t bound = next == sorted.begin() + count ? stack.end : *next;
    const std::uintptr_t end = std::min({bound, places[i] + wanted * 8, stack.end});
    for (std::uintptr_t at = (places[i] + 7) / 8 * 8; at + 8 <= end; at += 8) {
      const std::uint64_t word = *reinterpret_cast<const std::uint64_t*>(at);
      if (is_device(reinterpret_cast<const void*>(word))) words.push_back(word);
    }
  }
  return touch(words.data(), words.size());
}

std::uint16_t words_of_type(std::string_view type) {
  constexpr std::uint16_t kMetadataWords = 512, kStructureWords = 64;
  const std::size_t array = type.find("char*, ");
  if (array != std::string_view::npos && type.find("rray<") != std::string_view::npos) {
    return static_cast<std::uint16_t>(std::atoi(std::string(type.substr(array + 7)).c_str()));
  }
  if (type.ends_with('*')) return 1;
  for (const std::string_view number :
       {"bool", "char", "short", "int", "long", "float", "double", "c10::Half", "c10::BFloat16"}) {
    if (type.ends_with(number) && type.find('<') == std::string_view::npos) return 0;
  }
  if (type.find("PhiloxCudaState") != std::string_view::npos) return 0;
  if (type.find("OffsetCalculator") != std::string_view::npos) return 0;
  if (type.find("lambda") != std::string_view::npos) return kStructureWords;
  return type.find("Metadata") != std::string_view::npos ? kMetadataWords : kStructureWords;
}

}  // namespace

std::vector<std::uint16_t> argument_words(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::vector<std::uint16_t> words;
  if (status != 0) return words;
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
  if (begin >= name.size()) return words;
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
    if (!type.empty()) words.push_back(words_of_type(type));
    from = i + 1;
  }
  return words;
}

void record_launch(const Launch& l) {
  const Touched touched = operands(l);
  std::int64_t elements = -1;
  if (l.counts_elements && l.arguments != nullptr)
    elements = *static_cast<const int*>(l.arguments[0]);
  enqueue(l.stream, kNominalKernel + static_cast<double>(touched.bytes) / kNominalBandwidth);
  Line('L') << handle_id(l.stream) << l.name << l.grid.x << l.grid.y << l.grid.z << l.block.x
            << l.block.y << l.block.z << l.shared_bytes << elements << touched.bytes
            << touched.largest << touched.blocks;
}

void record_product(const Product& p) {
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                       static_cast<double>(p.k) * static_cast<double>(p.batch);
  enqueue(p.stream, kNominalKernel + flops / kNominalFlops);
  if (p.output != nullptr) {
    forget(p.output, static_cast<std::uint64_t>(p.m * p.n * p.batch * bytes_of_type(p.c_type)));
  }
  Line('G') << handle_id(p.stream) << p.name << p.m << p.n << p.k << p.batch << p.a_type << p.c_type
            << (p.a_transposed ? 1 : 0) << (p.b_transposed ? 1 : 0);
}

void record_library_call(const LibraryCall& call) {
  enqueue(call.stream, kNominalKernel);
  const std::int64_t name = name_id(call.name);
  Line line('A');
  line << handle_id(call.stream) << name << call.bytes;
  for (const std::int64_t extent : call.shape) line << extent;
}

void record_copy(char kind, StreamHandle stream, std::uint64_t bytes, bool host_waits) {
  enqueue(stream, kNominalKernel + static_cast<double>(bytes) / kNominalBandwidth);
  Line('C') << handle_id(stream) << static_cast<int>(kind) << bytes << (host_waits ? 1 : 0);
  if (host_waits) await_stream(stream);
}

void record_blind_read(std::uint64_t bytes) {
  const std::int64_t place = name_id(python_place());
  Line('R') << bytes << place;
}

void record_wait(char what, const void* of) {
  const std::int64_t id = handle_id(of);
  Line('Y') << static_cast<int>(what) << id;
}

// library_types.h: CUDA_R_16F = 2, 32F = 0, 64F = 1, 8I = 3, C_32F = 4, C_64F = 5, C_16F = 6,
// 8U = 8, 32I = 10, 16BF = 14, 8F = 28 and 29.
int bytes_of_type(int type) {
  switch (type) {
    case 2:
    case 14:
      return 2;
    case 0:
    case 6:
    case 10:
      return 4;
    case 1:
    case 4:
      return 8;
    case 5:
      return 16;
    default:
      return 1;
  }
}

}  // namespace foreshard::null
