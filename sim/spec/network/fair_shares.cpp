// All groups speed up together until a wire is full; its groups stop there, the others go on. Wires wait in a heap by
// the speed at which they fill; that only grows when groups stop, so the first whose figure is up to date is the next.
#include "sim/spec/network/fair_shares.h"

#include <algorithm>
#include <utility>

#include "sim/base/integers.h"

namespace foreshard {
void Tally::finish(GroupLoads& loads) {
  for (const std::uint32_t end : touched_) {
    loads.list.push_back({end, flow_[end]});
    flow_[end] = 0;
  }
  touched_.clear();
  loads.begin.push_back(loads.list.size());
}

FairShares fair_shares(const GroupLoads& loads, std::size_t ends, const std::function<double(std::uint32_t)>& rate_of) {
  const std::size_t groups = loads.begin.size() - 1;
  FairShares shares{std::vector<double>(groups, kUnbound), std::vector<std::uint32_t>(groups, 0)};
  if (loads.list.empty()) return shares;
  struct WireState {
    double left = 0;  // of its rate
    double flow = 0;  // of groups that still speed up
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  std::vector<std::int32_t> index(ends, -1);
  std::vector<WireState> wires;
  std::vector<std::uint32_t> end_of;
  for (const WireLoad& load : loads.list) {
    std::int32_t& i = index[load.end];
    if (i < 0) {
      i = static_cast<std::int32_t>(wires.size());
      wires.push_back({rate_of(load.end), 0, 0, 0});
      end_of.push_back(load.end);
    }
    wires[at(i)].flow += load.flow;
    ++wires[at(i)].count;
  }
  std::uint32_t first = 0;
  for (WireState& wire : wires) {
    wire.first = first;
    first += wire.count;
    wire.count = 0;
  }
  std::vector<std::uint32_t> users(loads.list.size());
  for (std::size_t g = 0; g < groups; ++g) {
    for (const WireLoad& load : loads.group(g)) {
      WireState& wire = wires[at(index[load.end])];
      users[wire.first + wire.count++] = static_cast<std::uint32_t>(g);
    }
  }
  using Entry = std::pair<double, std::uint32_t>;
  const auto level = [&](const WireState& wire) { return wire.left / wire.flow; };
  std::vector<Entry> heap;
  heap.reserve(wires.size());
  for (std::uint32_t i = 0; i < wires.size(); ++i) heap.emplace_back(level(wires[i]), i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  std::size_t running = groups;
  constexpr double kRounding = 1e-9;
  while (!heap.empty() && running > 0) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [was, i] = heap.back();
    heap.pop_back();
    WireState& wire = wires[i];
    double all = 0;
    for (std::uint32_t u = wire.first; u < wire.first + wire.count; ++u)
      all += shares.rate[users[u]] == kUnbound ? 1 : 0;
    if (all == 0) continue;
    const double now = level(wire);
    if (now > was * (1 + kRounding)) {
      heap.emplace_back(now, i);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
      continue;
    }
    for (std::uint32_t u = wire.first; u < wire.first + wire.count; ++u) {
      const std::uint32_t g = users[u];
      if (shares.rate[g] != kUnbound) continue;
      shares.rate[g] = was;
      shares.by[g] = end_of[i];
      --running;
      for (const WireLoad& load : loads.group(g)) {
        WireState& other = wires[at(index[load.end])];
        other.flow -= load.flow;
        other.left -= load.flow * was;
      }
    }
  }
  return shares;
}

}
