// The text is cut into words and the four signs , : [ ] as PyTorch does, white space ignored; each key then reads its
// value from the words. PyTorch's list form of roundup_power2_divisions, [256:1,512:2,>:4], names the lower end of a
// class in MB; the first entry also holds for all classes below it, ">" for all above the last.
#include "sim/spec/allocator_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

template <typename... Parts>
[[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) {
  throw invalid_input("PYTORCH_ALLOC_CONF: {}", fmt::format(text, std::forward<Parts>(parts)...));
}

bool is_power_of_two(std::int64_t value) { return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value)); }

class ConfParser {
 public:
  explicit ConfParser(std::string_view text) {
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) words_.push_back(std::exchange(word, ""));
    };
    for (const char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        end_word();
        words_.emplace_back(1, c);
      } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
        word += c;
      }
    }
    end_word();
  }

  AllocatorSettings parse() {
    while (at_ < words_.size()) {
      read_key(words_[at_++]);
      if (at_ < words_.size()) expect(",");
    }
    return settings_;
  }

 private:
  void read_key(const std::string& key) {
    expect(":");
    AllocatorSettings& s = settings_;
    if (key == "max_split_size_mb") {
      s.max_split_size = megabytes(key, s.large_segment_size / kMiB);
    } else if (key == "max_non_split_rounding_mb") {
      s.max_non_split_rounding = megabytes(key, s.large_segment_size / kMiB);
    } else if (key == "large_segment_size_mb") {
      s.large_segment_size = megabytes(key, kLargeBuffer / kMiB);
    } else if (key == "garbage_collection_threshold") {
      s.garbage_collection_threshold = real(key);
      if (!(s.garbage_collection_threshold > 0 && s.garbage_collection_threshold < 1))
        fail("garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
    } else if (key == "per_process_memory_fraction") {
      s.per_process_memory_fraction = real(key);
      if (!(*s.per_process_memory_fraction >= 0 && *s.per_process_memory_fraction <= 1))
        fail("invalid fraction:{}. Please set within (0, 1).", *s.per_process_memory_fraction);
    } else if (key == "roundup_power2_divisions") {
      read_divisions(key);
    } else if (key == "expandable_segments") {
      s.expandable_segments = boolean(key);
    } else if (key == "backend") {
      const std::string value = word(key);
      if (value != "native") fail("backend:{} is not modelled, only the native allocator is", value);
    } else if (key == "release_lock_on_cudamalloc" || key == "release_lock_on_hipmalloc" ||
               key == "pinned_use_cuda_host_register" || key == "pinned_use_hip_host_register" ||
               key == "pinned_use_background_threads" || key == "graph_capture_record_stream_reuse") {
      boolean(key);
    } else if (key == "pinned_num_register_threads" || key == "pinned_reserve_segment_size_mb") {
      integer(key);
    } else {
      fail("Unrecognized key '{}' in CUDA allocator config.", key);
    }
  }

  void read_divisions(const std::string& key) {
    auto& divisions = settings_.roundup_power2_divisions;
    if (at_ >= words_.size() || words_[at_] != "[") {
      const std::int64_t value = integer(key);
      if (!is_power_of_two(value)) fail("For roundups, the divisions has to be power of 2");
      divisions.fill(value);
      return;
    }
    expect("[");
    std::size_t last = 0;  // the first class that is not named yet
    bool is_first = true;
    while (at_ < words_.size() && words_[at_] != "]") {
      const bool is_rest = words_[at_] == ">";
      const std::int64_t from = is_rest ? (++at_, 0) : integer(key);
      expect(":");
      const std::int64_t value = integer(key);
      if (value != 0 && !is_power_of_two(value))
        fail("For roundups, the divisions has to be power of 2 or 0 to disable roundup");
      if (is_rest) {
        std::fill(divisions.begin() + last, divisions.end(), value);
      } else {
        if (!is_power_of_two(from)) fail("For roundups, the intervals have to be power of 2");
        const auto index = std::min(at(std::bit_width(static_cast<std::uint64_t>(from)) - 1), divisions.size() - 1);
        if (is_first) std::fill_n(divisions.begin(), index, value);
        is_first = false;
        divisions[index] = value;
        last = index + 1;
      }
      if (at_ < words_.size() && words_[at_] != "]") expect(",");
    }
    expect("]");
  }

  void expect(const char* sign) {
    if (at_ >= words_.size()) fail("expected '{}' at the end", sign);
    if (words_[at_] != sign) fail("expected '{}' but got '{}'", sign, words_[at_]);
    ++at_;
  }

  const std::string& word(const std::string& key) {
    if (at_ >= words_.size()) fail("Error, expecting {} value", key);
    return words_[at_++];
  }

  template <typename Number>
  Number number(const std::string& key, const char* what) {
    const std::string& text = word(key);
    const std::optional<Number> value = parse_number<Number>(text);
    if (!value) fail("{} takes {}, got '{}'", key, what, text);
    return *value;
  }

  std::int64_t integer(const std::string& key) {
    const auto value = number<std::int64_t>(key, "a whole number");
    if (value < 0) fail("{} takes a whole number, got '{}'", key, value);
    return value;
  }

  double real(const std::string& key) { return number<double>(key, "a number"); }

  std::int64_t megabytes(const std::string& key, std::int64_t least) {
    const std::int64_t value = integer(key);
    if (value < least) fail("CachingAllocator option {} too small, must be >= {}", key, least);
    return std::min(value, AllocatorSettings::kUnlimited / kMiB) * kMiB;
  }

  bool boolean(const std::string& key) {
    const std::string& value = word(key);
    if (value != "True" && value != "False") fail("{}: Expected 'True' or 'False' but got '{}'", key, value);
    return value == "True";
  }

  std::vector<std::string> words_;
  std::size_t at_ = 0;
  AllocatorSettings settings_;
};

}

std::int64_t AllocatorSettings::round_size(std::int64_t bytes) const {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  const auto size = static_cast<std::uint64_t>(bytes);
  const auto log = static_cast<int>(std::bit_width(size)) - 1;
  const int index = std::clamp(log - 20, 0, static_cast<int>(kRoundupClasses) - 1);
  const std::int64_t divisions = roundup_power2_divisions[at(index)];
  if (divisions > 1 && bytes > kMinBlockSize * divisions) {
    const std::uint64_t step = std::bit_floor(size) >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
    return static_cast<std::int64_t>((size + step - 1) / step * step);
  }
  return (bytes + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
}

std::int64_t AllocatorSettings::segment_size(std::int64_t rounded) const {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return large_segment_size;
  return (rounded + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}

AllocatorSettings parse_alloc_conf(std::string_view text) { return ConfParser(text).parse(); }

std::string alloc_conf(const AllocatorSettings& settings) {
  static const AllocatorSettings kDefaults;
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", key, value);
  };
  const auto add_mb = [&](std::string_view key, std::int64_t bytes, std::int64_t usual) {
    if (bytes != usual) add(key, std::to_string(bytes / kMiB));
  };
  // Other sizes are held against it when they are read, so it comes first.
  add_mb("large_segment_size_mb", settings.large_segment_size, kDefaults.large_segment_size);
  add_mb("max_split_size_mb", settings.max_split_size, kDefaults.max_split_size);
  add_mb("max_non_split_rounding_mb", settings.max_non_split_rounding, kDefaults.max_non_split_rounding);
  const auto& divisions = settings.roundup_power2_divisions;
  if (divisions != kDefaults.roundup_power2_divisions) {
    std::string list;
    for (std::size_t i = 0; i < divisions.size(); ++i)
      list += fmt::format("{}{}:{}", i == 0 ? "" : ",", std::int64_t{1} << i, divisions[i]);
    add("roundup_power2_divisions", "[" + list + "]");
  }
  if (settings.garbage_collection_threshold > 0)
    add("garbage_collection_threshold", fmt::format("{}", settings.garbage_collection_threshold));
  if (settings.expandable_segments) add("expandable_segments", "True");
  if (settings.per_process_memory_fraction)
    add("per_process_memory_fraction", fmt::format("{}", *settings.per_process_memory_fraction));
  return text;
}

}
