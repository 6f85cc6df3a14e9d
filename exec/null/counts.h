// What counting kernels write, where the host may read it: how often each value occurs, and sums of
// known numbers. Programs cut experts' tokens by them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace foreshard::null {

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

}  // namespace foreshard::null
