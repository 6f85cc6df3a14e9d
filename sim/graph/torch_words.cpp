#include "sim/graph/torch_words.h"

#include <fmt/format.h>

namespace foreshard {

std::string_view torch_word(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kFp16:
      return "float16";
    case DType::kFp32:
      break;
  }
  return "float32";
}

std::string span_of(const std::string& first, const std::string& last, std::size_t count) {
  return count == 1 ? first : first + ".." + last;
}

std::string span_of(const std::vector<std::string>& names) {
  return names.empty() ? "" : span_of(names.front(), names.back(), names.size());
}

std::string group_word(std::int64_t first, std::int64_t size, std::int64_t stride,
                       std::int64_t world) {
  if (size == world) return "world";
  return fmt::format("{}:{}:{}", first, first + (size - 1) * stride, size > 1 ? stride : 1);
}

}  // namespace foreshard
