// at::cuda's histogram (ATen/native/cuda/SummaryOps.cu: counts, partial counts, input, bins, least,
// most, elements) of numbers that nobody computed says of each bin the same: what routes tokens to
// experts is trained to be level. CUB's DeviceScanKernel (input, output, ..., elements) adds up.
#include "exec/null/counts.h"

#include <cstdint>
#include <cstring>
#include <numeric>

#include "exec/null/device.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

constexpr std::size_t kBins = 3, kElements = 6;  // among the histogram's arguments

template <typename Number>
std::vector<char> bytes_of(const std::vector<Number>& numbers) {
  std::vector<char> bytes(numbers.size() * sizeof(Number));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::int64_t number_at(void** arguments, std::size_t i) {
  return *static_cast<const std::int64_t*>(arguments[i]);
}

template <typename Number>
std::vector<char> level(std::int64_t bins, std::int64_t elements) {
  std::vector<Number> counts(static_cast<std::size_t>(bins));
  for (std::int64_t i = 0; i < bins; ++i)
    counts[static_cast<std::size_t>(i)] =
        static_cast<Number>(elements * (i + 1) / bins - elements * i / bins);
  return bytes_of(counts);
}

template <typename Number>
std::vector<char> sums(const void* input, std::size_t count) {
  std::vector<Number> numbers(count);
  if (!known_bytes(numbers.data(), input, count * sizeof(Number))) return {};
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin());
  return bytes_of(numbers);
}

}  // namespace

std::optional<Counts> Counts::of(const std::string& name, const std::vector<std::string>& types) {
  Counts made;
  made.arguments_ = types.size();
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
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
    const auto count =
        static_cast<std::size_t>(*static_cast<const std::uint32_t*>(arguments[arguments_ - 1]));
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

}  // namespace foreshard::null
