// Bytes of elementwise kernels: the number of elements is the kernel's first argument, its arrays
// are counted in its name (std::array<char*, 3>, or what its functor takes and gives), and the
// types that the name holds are theirs, in equal parts. A broadcast one is as large as its block.
//
// Attention: head size and tile are in the name (Flash_fwd_kernel_traits<64, 128, 128, ...>,
// fmha_cutlassF_bf16_aligned_64x128), the grid is tiles of queries by batch by heads, or the other way round.
#include "sim/graph/capture/captured_kernel.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

enum class BytesRule : std::uint8_t { kElements, kOperands, kRows, kChunks, kLists, kLargest };

struct KernelClass {
  std::string name;
  KernelKind kind = KernelKind::kMemory;
  Pass pass = Pass::kForward;
  MemoryClass memory_class = MemoryClass::kElementwise;
  BytesRule rule = BytesRule::kOperands;
  bool binds_threads = false;
  double factor = 1;  // where threads bind: operations for each element
};

MemoryClass memory_class_of(std::string_view word) {
  constexpr std::pair<std::string_view, MemoryClass> kWords[] = {{"elementwise", MemoryClass::kElementwise},
      {"norm_forward", MemoryClass::kNormForward}, {"norm_backward", MemoryClass::kNormBackward},
      {"generated_norm", MemoryClass::kGeneratedNorm}, {"loss", MemoryClass::kLoss},
      {"optimizer", MemoryClass::kOptimizer}, {"copy", MemoryClass::kCopy}, {"strided", MemoryClass::kStrided}};
  for (const auto& [known, value] : kWords)
    if (known == word) return value;
  FORESHARD_CHECK(false, "kernel_classes.csv: class " + std::string(word));
  return MemoryClass::kElementwise;
}

KernelClass parse_class(std::string_view line) {
  // From the right: names have commas.
  std::array<std::string_view, 4> cells;
  for (std::size_t i = cells.size(); --i > 0;) {
    const std::size_t comma = line.rfind(',');
    cells[i] = line.substr(comma + 1);
    line = line.substr(0, comma);
  }
  cells[0] = line;
  KernelClass made = {.name = std::string(cells[0])};
  if (cells[1].starts_with("attention_")) {
    made.kind = KernelKind::kAttention;
    made.pass = cells[1] == "attention_forward" ? Pass::kForward : Pass::kBackward;
  } else if (cells[1] == "product") {
    made.kind = KernelKind::kGemm;
  } else if (cells[1] == "threads") {
    made.binds_threads = true;
  } else {
    made.memory_class = memory_class_of(cells[1]);
  }
  made.rule = cells[2] == "elements"  ? BytesRule::kElements
              : cells[2] == "rows"    ? BytesRule::kRows
              : cells[2] == "chunks"  ? BytesRule::kChunks
              : cells[2] == "lists"   ? BytesRule::kLists
              : cells[2] == "largest" ? BytesRule::kLargest
                                      : BytesRule::kOperands;
  made.factor = std::stod(std::string(cells[3]));
  return made;
}

const std::vector<KernelClass>& kernel_classes() {
  static const std::vector<KernelClass> classes = [] {
    std::vector<KernelClass> made;
    std::string_view rest = kernel_class_files().front().content;
    bool header = true;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (line.empty() || line.starts_with('#')) continue;
      if (!std::exchange(header, false)) made.push_back(parse_class(line));
    }
    return made;
  }();
  return classes;
}

const KernelClass* class_of(std::string_view name) {
  for (const KernelClass& row : kernel_classes())
    if (contains(name, row.name)) return &row;
  return nullptr;
}

// The first number behind `text`, skipping what is no digit; 0: none.
std::int64_t number_after(std::string_view name, std::string_view text) {
  const std::size_t found = name.find(text);
  if (found == std::string_view::npos) return 0;
  std::string_view rest = name.substr(found + text.size());
  const std::size_t digit = rest.find_first_of("0123456789");
  if (digit == std::string_view::npos) return 0;
  rest.remove_prefix(digit);
  std::int64_t value = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return value;
}

// The numbers of a list that follows `text`: "<64, 128, 128".
std::vector<std::int64_t> numbers_after(std::string_view name, std::string_view text) {
  std::vector<std::int64_t> numbers;
  const std::size_t found = name.find(text);
  if (found == std::string_view::npos) return numbers;
  const char* at = name.data() + found + text.size();
  const char* const end = name.data() + name.size();
  while (at < end) {
    while (at < end && (*at == ' ' || *at == ',' || *at == '<')) ++at;
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) break;
    numbers.push_back(value);
    at = next;
  }
  return numbers;
}

constexpr std::pair<std::string_view, double> kTypes[] = {{"BFloat16", 2}, {"bfloat16", 2}, {"Half", 2}, {"float", 4},
    {"double", 8}, {"<long", 8}, {"(long", 8}, {"bool", 1}};

// Bytes of an element of the type that a name holds first: its input's.
double first_element_bytes(std::string_view name) {
  std::size_t first = std::string_view::npos;
  double bytes = 4;
  for (const auto& [type, size] : kTypes) {
    const std::size_t at = name.find(type);
    if (at < first) {
      first = at;
      bytes = size;
    }
  }
  return bytes;
}

// Mean bytes of an element by the types that a name holds; 0: none is named.
double element_bytes(std::string_view name) {
  std::array<bool, 9> seen{};
  // Loads and stores that cast have a half precision on one side, whatever they compute in.
  if (contains(name, "WithCast")) seen[2] = true;
  // BinaryFunctor<BFloat16, BFloat16, BFloat16, MulFunctor<float>>: what it computes in comes last.
  if (const std::size_t functor = name.find("naryFunctor<"); functor != std::string_view::npos) {
    std::size_t end = functor;
    for (int types = 0; types < 3 && end != std::string_view::npos; ++types) end = name.find(',', end + 1);
    name = name.substr(functor, end - functor);
  }
  for (const auto& [type, size] : kTypes)
    if (contains(name, type)) seen[static_cast<std::size_t>(size)] = true;
  double sum = 0, count = 0;
  for (std::size_t size = 0; size < seen.size(); ++size) {
    if (!seen[size]) continue;
    sum += as_double(size);
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// Arrays of a kernel over strided tensors: what its functor takes, and its result. 0: not known.
std::int64_t functor_arrays(std::string_view name) {
  constexpr std::string_view kFunctor = "gpu_kernel_impl";
  const std::size_t begin = name.find(kFunctor);
  if (begin == std::string_view::npos) return 0;
  // One copy of the functor's type; others follow.
  std::string_view functor = name.substr(begin);
  functor = functor.substr(0, functor.find("(at::TensorIteratorBase&, ", kFunctor.size()));
  constexpr std::pair<std::string_view, std::int64_t> kKnown[] = {{"UnaryFunctor<", 2}, {"BinaryFunctor<", 3},
      {"CUDAFunctor_add<", 3}, {"CompareFunctor<", 3}, {"FillFunctor<", 1}};
  for (const auto& [part, arrays] : kKnown)
    if (contains(functor, part)) return arrays;
  constexpr std::string_view kLambda = "{lambda(";
  const std::size_t lambda = functor.rfind(kLambda);
  if (lambda == std::string_view::npos) return 0;
  const std::string_view takes =
      functor.substr(lambda + kLambda.size(), functor.find(')', lambda) - lambda - kLambda.size());
  return takes.empty() ? 1 : 2 + std::ranges::count(takes, ',');
}

std::int64_t moved_bytes(const KernelClass& row, std::string_view name, const CapturedCall& call) {
  const std::int64_t elements = call.values[7], operands = call.values[8];
  const std::int64_t largest = call.values[9], blocks = call.values[10];
  switch (row.rule) {
    case BytesRule::kRows: return blocks > 1 ? 2 * (operands - largest) : operands;
    case BytesRule::kChunks:
    case BytesRule::kLists: {
      const std::int64_t lists = std::max<std::int64_t>(1, number_after(name, "Metadata<"));
      // UnaryOpFunctor<float, 2, 1, 1>: of two lists one is read, the second written.
      const std::size_t found = name.find("Functor<");
      const std::string_view functor = found == name.npos ? "" : name.substr(found);
      const std::vector<std::int64_t> counts = numbers_after(functor, ",");
      const double size = counts.empty() ? 4 : first_element_bytes(functor);
      const auto most = static_cast<std::int64_t>(as_double(call.values[0] * 65536 * lists) * size);
      const std::int64_t given = operands > 0 ? std::min(operands, most) : most;
      if (row.rule == BytesRule::kChunks) return given;
      const std::int64_t reads = counts.size() < 2 ? lists : counts[1];
      return given * (reads + 1) / lists;
    }
    case BytesRule::kElements: {
      if (elements < 0) return operands;
      std::int64_t arrays = std::max(number_after(name, "array<char*,"), number_after(name, "Array<char*,"));
      if (arrays == 0) arrays = functor_arrays(name);
      if (arrays == 0) arrays = std::clamp<std::int64_t>(blocks, 1, 3);
      const double size = element_bytes(name);
      const auto all = static_cast<std::int64_t>(as_double(elements * arrays) * (size > 0 ? size : 4));
      return blocks >= arrays ? std::min(all, operands) : all;
    }
    case BytesRule::kLargest: return largest;
    case BytesRule::kOperands: break;
  }
  return operands;
}

// Where its threads bind: elements of its largest block, or those that the capture counted (of a
// convolution by channels, times its filter's).
void set_threads(Kernel& k, const KernelClass& row, std::string_view name, const CapturedCall& call) {
  const auto& v = call.values;
  const double elements = row.rule == BytesRule::kLargest ? as_double(v[9]) / first_element_bytes(name)
                                                          : as_double(std::max<std::int64_t>(v[7], 0));
  k.bytes = Bytes(v[8]);
  k.threads = v[0] * v[1] * v[2] * v[3] * v[4] * v[5];
  k.flops = Flops(row.factor * elements);
}

Kernel attention(const KernelClass& row, std::string_view name, const CapturedCall& call) {
  Kernel k = {.kind = KernelKind::kAttention, .function = Function::kAttention, .pass = row.pass};
  const std::vector<std::int64_t> traits = numbers_after(name, "kernel_traits<");
  const auto& v = call.values;
  if (traits.size() >= 3) {  // flash: head size, queries and keys of a tile
    const std::int64_t tile = row.pass == Pass::kForward ? traits[1] : traits[2];
    k.k = traits[0];
    k.n = v[0] * tile;
    k.m = v[1];
    k.heads = v[2];
    // Is_dropout, Is_causal
    k.causal = contains(name, ">, false, true") || contains(name, ">, true, true");
  } else {  // memory-efficient: tile of queries x head size; heads, batch
    const std::size_t aligned = name.find("aligned_");
    const std::int64_t tile = aligned == std::string_view::npos ? 64 : number_after(name.substr(aligned), "aligned_");
    k.n = v[0] * tile;
    k.heads = v[1];
    k.m = v[2];
    k.k = 64;
    k.fp32 = contains(name, "_f32_");
  }
  return k;
}

// Forward: two products, of which a causal mask leaves half; backward: five.
void set_attention_flops(Kernel& k) {
  const double pairs = as_double(k.m * k.heads) * as_double(k.n) * as_double(k.n) * (k.causal ? 0.5 : 1);
  k.flops = Flops((k.pass == Pass::kForward ? 4 : 10) * pairs * as_double(k.k));
}

// library_types.h
std::int64_t bytes_of_type(std::int64_t type) {
  return value_of<std::int64_t, std::int64_t>(type, {{0, 4}, {10, 4}, {1, 8}, {4, 8}, {2, 2}, {14, 2}, {5, 16}}, 1);
}

Kernel product(std::string_view name, const CapturedCall& call) {
  const auto& v = call.values;
  Kernel k = {.kind = KernelKind::kGemm, .function = Function::kMatrixProduct};
  // Column-major: the rows of C are PyTorch's columns.
  k.m = std::max<std::int64_t>(1, v[1]);
  k.n = std::max<std::int64_t>(1, v[0]);
  k.k = std::max<std::int64_t>(1, v[2]);
  const std::int64_t batch = std::max<std::int64_t>(1, v[3]);
  // Of torch._grouped_mm each has a weight of its own; a batch is priced as its rows together.
  (contains(name, "GroupProblemShape") ? k.groups : k.m) *= batch;
  k.fp32 = v[4] == 0 || v[4] == 1;
  k.fp8 = v[4] == 28 || v[4] == 29;
  const std::int64_t rows = k.m * k.groups;
  k.bytes = Bytes((rows * k.k + batch * k.k * k.n) * bytes_of_type(v[4]) + rows * k.n * bytes_of_type(v[5]));
  k.flops = Flops(2.0 * as_double(k.m) * as_double(k.n) * as_double(k.k) * as_double(k.groups));
  return k;
}

// Of a kernel that is busy for so long on all of an H200's multiprocessors: in operations, which a
// GPU with more of them does faster (CostModel::curve_price).
Flops operations_of(double picoseconds) { return Flops(picoseconds * 1e-12 * kBusyRate * kBusyMultiprocessors); }

// A convolution of cuDNN as a product: m, n, k, groups, type. With few channels, or a filter for
// each channel, threads bind.
Kernel convolution(const KernelClass& row, std::string_view name, const CapturedCall& call) {
  const auto& v = call.values;
  Kernel k = {.bytes = Bytes(v[0])};
  if (row.binds_threads) {
    k.flops = Flops(row.factor * as_double(v[1] * v[2] * v[3] * v[4]));
    return k;
  }
  // Groups of few channels are one kernel, which each output keeps busy once for each tap of its filter (ps on all of
  // an H200's multiprocessors); wider ones run one behind another, each a product of its own.
  constexpr std::int64_t kWideGroup = 64;
  constexpr double kTap = 0.42;
  const bool is_filter = contains(name, "filter");
  const bool in_groups = v[4] > 1;
  if (in_groups && v[is_filter ? 1 : 2] < kWideGroup) {
    const std::int64_t outputs_and_taps = v[is_filter ? 2 : 1] * v[3];
    k.flops = operations_of(kTap * as_double(outputs_and_taps) * as_double(v[4]));
    return k;
  }
  // fp32 convolutions run in TF32, at half the rate of 16 bits (cudnn.allow_tf32 is PyTorch's
  // default). What takes longer is priced as a longer product, aligned as its own; so is what
  // stands beside it (partial sums, filters laid out anew), in multiplications.
  constexpr std::int64_t kAligned = 64, kRows = 128;
  constexpr double kBeside = 4e9;
  const double longer = row.factor * (v[5] == 0 ? 2 : 1);
  k.kind = KernelKind::kGemm;
  k.function = Function::kMatrixProduct;
  k.m = (v[1] + kRows - 1) / kRows * kRows;
  k.n = v[2];
  const double width = longer * as_double(v[3]) + kBeside / (as_double(k.m) * as_double(k.n * v[4]));
  k.k = static_cast<std::int64_t>(std::ceil(width / kAligned)) * kAligned;
  k.kernels = v[4];
  k.flops = Flops(2 * as_double(v[1]) * as_double(v[2] * v[3]) * as_double(v[4]));
  return k;
}

// cuDNN's attention: 128 queries to a block, 64 in backward, which walk over 128 keys at a time; a causal mask leaves
// tiles out as a whole. Head sizes are filled up to 64, 80 or 128. Backward adds up what output and gradient have in
// common first, keeps the queries' gradient in fp32 and rounds it behind: its two small kernels reach 0.6 of the
// bandwidth (H200). A mask or bias of all pairs is read for each head, which takes as long as 2 bytes for each pair
// forward and 6 backward where heads are 128 wide (H200, seven shapes by themselves); dropout makes random numbers for
// each pair, as long as 3.5 and 2.5 bytes (H200: GPT-2, torch.nn.TransformerEncoder).
Kernel cudnn_attention(std::string_view name, const CapturedCall& call) {
  constexpr std::int64_t kKeys = 128, kElement = 2;
  const auto& v = call.values;
  Kernel k = {.kind = KernelKind::kAttention,
      .function = Function::kAttention,
      .pass = name.ends_with("backward") ? Pass::kBackward : Pass::kForward};
  const bool forward = k.pass == Pass::kForward;
  k.m = v[1];
  k.heads = v[2];
  k.n = std::max(v[3], v[4]);
  k.k = v[5];
  k.causal = v[6] != 0;
  k.in_tiles = true;
  const std::int64_t rows = forward ? 128 : 64;
  const auto whole = [](std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile * tile; };
  std::int64_t pairs = 0;
  for (std::int64_t at = 0; at < v[3]; at += rows)
    pairs += rows * whole(k.causal ? std::min(v[4], at + rows) : v[4], kKeys);
  const std::int64_t width = v[5] <= 64 ? 64 : v[5] <= 80 ? 80 : whole(v[5], 128);
  const double all = as_double(k.m * k.heads) * as_double(pairs);
  k.flops = Flops((forward ? 4 : 10) * all * as_double(width));
  const std::int64_t queries = k.m * k.heads * v[3] * v[5] * kElement;
  const std::int64_t keys = v[0] / (forward ? 2 : 4) - queries;  // of as many heads as there are
  constexpr double kSmall = 0.6;
  const double moved =
      forward ? as_double(2 * queries + 2 * keys) : as_double(5 * queries + 4 * keys) + as_double(5 * queries) / kSmall;
  const double for_mask = (forward ? 2 : 6) * as_double(width) / 128;
  const double for_pairs = (v[7] != 0 ? for_mask : 0) + (v[8] != 0 ? (forward ? 3.5 : 2.5) : 0);
  k.bytes = Bytes(static_cast<std::int64_t>(moved + all * for_pairs));
  k.kernels = forward ? 1 : 3;
  return k;
}

Kernel library_call(std::string_view name, const CapturedCall& call) {
  if (contains(name, "attention")) return cudnn_attention(name, call);
  Kernel k = {.bytes = Bytes(call.values[0])};
  if (const KernelClass* const row = class_of(name); row != nullptr) {
    if (row->kind == KernelKind::kGemm || row->binds_threads) return convolution(*row, name, call);
    k.memory_class = row->memory_class;
    k.bytes = Bytes(static_cast<std::int64_t>(row->factor * as_double(call.values[0])));
    return k;
  }
  // Of a recurrent layer: of each time step its own.
  k.kernels = std::max<std::int64_t>(1, call.values[1]);
  k.memory_class = !contains(name, "backward") ? MemoryClass::kNormForward : MemoryClass::kNormBackward;
  return k;
}

// Kernels that spend more on finding their elements than on moving them: picoseconds for an element on all of an H200's
// multiprocessors, as its programs took (docs/capture.md). What no warp shares moves through the second-level cache in
// sectors, at 5.5 TB/s there. A reduction also waits for each wave of its blocks, and in columns needs two of them to a
// multiprocessor; blocks that share columns meet in memory, where the last one adds up what they left, each row of its
// threads a part.
void set_strided(std::string_view name, const CapturedCall& call, Kernel& k) {
  constexpr double kElement = 1.95, kIndex = 0.14, kCast = 0.52, kSector = 1 / 5.5, kByFour = 0.93;
  const auto& v = call.values;
  const std::int64_t known = functor_arrays(name);
  const double arrays = as_double(known > 0 ? known : std::clamp<std::int64_t>(v[10], 1, 4));
  const bool casts = contains(name, "gpu_kernel_impl<");
  const double alone = kElement + kIndex * arrays * as_double(v[13]) + (casts ? kCast * arrays : 0);
  const double each = !casts && contains(name, "kernel<128, 4") ? kByFour * alone : alone;
  k.memory_class = MemoryClass::kElementwise;
  k.bytes = Bytes(v[11]);
  k.flops = operations_of(std::max(each * as_double(v[7]), kSector * as_double(v[12])));
}

void set_reduced(std::string_view name, const CapturedCall& call, Kernel& k) {
  constexpr double kByte = 0.275, kLeast = 0.5, kFew = 2 * kBusyMultiprocessors;
  constexpr double kMeet = 2e6, kLeft = 2e5;
  const auto& v = call.values;
  const bool in_columns = contains(name, "reduce_kernel<128, 4");
  const double wave = in_columns ? 6e6 : 1.7e6;
  const double blocks = as_double(v[0] * v[1] * v[2]), threads = as_double(v[3] * v[4] * v[5]);
  const double elements = as_double(v[11]) / as_double(v[13]);
  // Sums of 16 bits are told by what they add up in.
  const double size = std::min(as_double(v[13]), as_double(v[8]) / elements);
  const double each = std::max(kLeast, kByte * size);
  const double few = in_columns ? std::max(1.0, kFew / blocks) : 1;
  const double met = in_columns && v[1] > 1 ? kMeet + kLeft * as_double(v[1]) / as_double(v[4]) : 0;
  k.memory_class = MemoryClass::kElementwise;
  k.bytes = Bytes(v[8]);
  if (v[8] > v[11]) k.bytes = Bytes(v[11]);
  k.flops = operations_of(each * elements * few + blocks * threads / kBusyThreads / kBusyMultiprocessors * wave + met);
}

// A block for each row, or one for 32 columns, which goes down all rows: ps of a row and of an
// element (twelve shapes on an H200 by themselves).
void set_layer_norm(std::string_view name, const CapturedCall& call, Kernel& k) {
  const auto& v = call.values;
  const double size = first_element_bytes(name), elements = as_double(v[9]) / size;
  const bool half = size == 2;
  if (contains(name, "vectorized_layer_norm"))
    k.flops = operations_of((half ? 800 : 1200) * as_double(v[0]) + (half ? 1.44 : 1.95) * elements);
  else if (contains(name, "layer_norm_grad_input_kernel_v"))
    k.flops = operations_of(595 * as_double(v[0]) + (half ? 1.16 : 1.84) * elements);
  else if (contains(name, "GammaBeta") && v[1] == 1) k.flops = operations_of(4400 * elements / as_double(32 * v[0]));
}

void set_busy(std::string_view name, const CapturedCall& call, Kernel& k) {
  const auto& v = call.values;
  const auto has = [&](std::string_view part) { return contains(name, part); };
  if (v[11] > 0 && has("gpu_kernel_impl")) return set_strided(name, call, k);
  if (v[11] > 0 && has("reduce_kernel<")) return set_reduced(name, call, k);
  constexpr double kRolled = 4.4, kCatDimension = 0.68, kCat = 0.5, kUnrolled = 0.9, kCast = 0.95;
  // GELU of 8192 x 8192 on an H200 (calibration/measure/torch_rows.py): 89 and 118 us.
  constexpr double kGelu = 1.33, kGeluBackward = 1.76;
  if (has("layer_norm") || has("GammaBetaBackwardCUDAKernelTemplate")) return set_layer_norm(name, call, k);
  if (has("CatArrayBatchedCopy<")) {  // <.., OpaqueType<2u>, unsigned int, dimensions, ..
    const double size = as_double(std::max<std::int64_t>(1, number_after(name, "OpaqueType<")));
    const double each = kCat + kCatDimension * as_double(number_after(name, "unsigned int,"));
    k.flops = operations_of(each * as_double(v[8]) / (2 * size));
  } else if (has("roll_cuda")) {
    k.flops = operations_of(kRolled * as_double(v[8]) / (2 * std::max(1.0, element_bytes(name))));
  } else if (has("Gelu") && v[7] > 0) {
    k.flops = operations_of((has("GeluBackward") ? kGeluBackward : kGelu) * as_double(v[7]));
  } else if (has("unrolled_elementwise") && has("WithCast") && v[7] > 0) {
    const auto arrays = std::max<std::int64_t>(2, number_after(name, "array<char*,"));
    k.flops = operations_of((kUnrolled + kCast * as_double(arrays)) * as_double(v[7]));
  }
}

}

std::optional<CapturedKernel> captured_kernel(const Capture& capture, const CapturedCall& call, Pass pass) {
  const std::string& name = capture.name_of(call);
  if (call.kind == CapturedCall::Kind::kProduct) {
    CapturedKernel made{product(name, call), true};
    made.kernel.pass = pass;
    return made;
  }
  if (call.kind == CapturedCall::Kind::kLibrary) return CapturedKernel{library_call(name, call), true};
  if (call.kind != CapturedCall::Kind::kLaunch) return std::nullopt;
  const KernelClass* const row = class_of(name);
  CapturedKernel made = {.known = row != nullptr};
  if (row == nullptr) {
    made.kernel.bytes = Bytes(call.values[8]);
  } else if (row->kind == KernelKind::kAttention) {
    made.kernel = attention(*row, name, call);
    made.kernel.bytes = Bytes(call.values[8]);
    set_attention_flops(made.kernel);
    return made;
  } else if (row->binds_threads) {
    set_threads(made.kernel, *row, name, call);
  } else {
    made.kernel.memory_class = row->memory_class;
    made.kernel.bytes = Bytes(static_cast<std::int64_t>(row->factor * as_double(moved_bytes(*row, name, call))));
    set_busy(name, call, made.kernel);
  }
  if (row == nullptr || !row->binds_threads) {
    // Blocks begin one behind another: 1.3 million of one warp each on an H200, in three kernels.
    constexpr double kBegins = 603, kByte = 1 / 4.8;
    const double begun = kBegins * as_double(call.values[0] * call.values[1] * call.values[2]);
    if (begun > kByte * as_double(made.kernel.bytes.count()))
      made.kernel.flops = std::max(made.kernel.flops, operations_of(begun));
  }
  made.kernel.pass = pass;
  return made;
}

std::string_view attention_kernel_of(std::string_view kernel) {
  constexpr std::pair<std::string_view, std::string_view> kKernels[] = {
      {"cudnn attention", "cudnn"}, {"pytorch_flash", "flash"}, {"fmha", "efficient"}, {"flash", "fa2"}};
  for (const auto& [part, word] : kKernels)
    if (contains(kernel, part)) return word;
  return "";
}

}
