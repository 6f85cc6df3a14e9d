// What groups that load the same wires get of them: max-min fair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace foreshard {

inline constexpr double kUnbound = std::numeric_limits<double>::infinity();

// Ends are wires with a direction (2 * wire + (forward ? 0 : 1)).
struct WireLoad {
  std::uint32_t end = 0;
  double flow = 0;
};

// Loads of all groups, one after the other.
struct GroupLoads {
  std::vector<WireLoad> list;
  std::vector<std::size_t> begin{0};
  std::span<const WireLoad> group(std::size_t i) const {
    return std::span(list).subspan(begin[i], begin[i + 1] - begin[i]);
  }
};

// Adds up flows on wires for one group at a time, in a table that is zeroed by walking back over
// what was touched: a group costs what it touches.
class Tally {
 public:
  explicit Tally(std::size_t wires) : flow_(2 * wires, 0.0) {}
  void add(std::uint32_t end, double flow) {
    if (flow == 0) return;
    if (flow_[end] == 0) touched_.push_back(end);
    flow_[end] += flow;
  }
  void finish(GroupLoads& loads);

 private:
  std::vector<double> flow_;
  std::vector<std::uint32_t> touched_;
};

struct FairShares {
  std::vector<double> rate;       // per group, in its flows; kUnbound: loads nothing
  std::vector<std::uint32_t> by;  // the end at which it stopped
};

// `ends`: above every end of the loads. `rate_of`: bytes/s of an end.
FairShares fair_shares(const GroupLoads& loads, std::size_t ends, const std::function<double(std::uint32_t)>& rate_of);

}
