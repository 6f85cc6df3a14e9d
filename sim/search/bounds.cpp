// Which collectives are waited for: backwards from the compute stream's last row, a row is needed
// if a needed row waits for it or comes after it on its stream. Only these count, and what a
// communicator does before one of them.
#include "sim/search/bounds.h"

#include <algorithm>
#include <array>
#include <vector>

namespace foreshard {

Time lower_bound(const EventGraph& graph, const CostTable& costs) {
  const std::size_t count = graph.rows.size();
  Time compute;
  std::array<bool, kStreams> needed_stream{};  // a later row of it is needed
  std::array<bool, 256> needed_fifo{};
  std::array<Time, 256> fifo{};
  std::vector<char> needed(count, 0);
  constexpr auto kCompute = static_cast<std::size_t>(Stream::kCompute);
  needed_stream[kCompute] = true;
  for (std::size_t i = count; i-- > 0;) {
    const Row& row = graph.rows[i];
    const auto s = static_cast<std::size_t>(row.stream);
    const bool queues = row.communicator != kNoCommunicator && is_collective(row.kind);
    const bool is_needed =
        needed[i] != 0 || needed_stream[s] || (queues && needed_fifo[row.communicator]);
    if (!is_needed) continue;
    const Time duration = costs.works[row.work].duration;
    if (s == kCompute) compute += duration;
    needed_stream[s] = true;
    if (queues) {
      needed_fifo[row.communicator] = true;
      fifo[row.communicator] += duration;
    }
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) {
      needed[static_cast<std::size_t>(graph.waits[w])] = 1;
    }
  }
  return std::max(compute, *std::max_element(fifo.begin(), fifo.end()));
}

Time layers_bound(const EventGraph& graph, const CostTable& costs) {
  Time sum;
  for (const Row& row : graph.rows) {
    const bool is_of_layers = row.kind == EventKind::kForward || row.kind == EventKind::kLoss ||
                              row.kind == EventKind::kRecompute || row.kind == EventKind::kBackward;
    if (is_of_layers && row.stream == Stream::kCompute) sum += costs.works[row.work].duration;
  }
  return sum;
}

Time extended_bound(Time at_two, Time at_three, std::int64_t micro_batches) {
  // The larger of two sums that grow evenly: their maximum grows at least as at the beginning.
  return at_three + (at_three - at_two) * (micro_batches - 3);
}

}  // namespace foreshard
