// Which collectives are waited for: backwards from the compute stream's last row, a row is needed if a needed row waits
// for it or comes after it on its stream. Only these count, and what a communicator does before one of them.
//
// What compute loses is summed collective by collective, each rounded down: so it grows evenly with
// the micro-batches, as extended_bound() needs it.
#include "sim/search/bounds.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace foreshard {
namespace {

struct NeededWork {
  Time compute;
  Time communicator;  // the busiest
  std::vector<EventId> collectives;
};

NeededWork needed_work(const EventGraph& graph, const CostTable& costs) {
  const std::size_t count = graph.rows.size();
  NeededWork work;
  std::array<bool, kStreams> needed_stream{};  // a later row of it is needed
  std::array<bool, 256> needed_fifo{};
  std::array<Time, 256> fifo{};
  std::vector<char> needed(count, 0);
  constexpr auto kCompute = at(Stream::kCompute);
  needed_stream[kCompute] = true;
  for (std::size_t i = count; i-- > 0;) {
    const Row& row = graph.rows[i];
    const auto s = at(row.stream);
    const bool is_communication = is_collective(row.kind);
    const bool queues = row.communicator != kNoCommunicator && is_communication;
    const bool is_needed = needed[i] != 0 || needed_stream[s] || (queues && needed_fifo[row.communicator]);
    if (!is_needed) continue;
    const Time duration = costs.works[row.work].duration;
    if (s == kCompute) work.compute += duration;
    // (Beside one on the compute stream nothing computes.)
    if (is_communication && s != kCompute) work.collectives.push_back(static_cast<EventId>(i));
    needed_stream[s] = true;
    if (queues) {
      needed_fifo[row.communicator] = true;
      fifo[row.communicator] += duration;
    }
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) needed[at(graph.waits[w])] = 1;
  }
  work.communicator = *std::ranges::max_element(fifo);
  return work;
}

// At the least, on any compute row; 0 where it does not say what it takes. In 1 / kOne.
std::int64_t excess_of(const Cost& collective) {
  return std::max<std::int64_t>(0, std::min(collective.takes.compute, collective.takes.memory));
}

Time lost_by_compute(const EventGraph& graph, const CostTable& costs, const std::vector<EventId>& collectives) {
  std::array<std::int64_t, kStreams> most{};
  for (const EventId id : collectives) {
    const Row& row = graph.rows[at(id)];
    std::int64_t& of_stream = most[at(row.stream)];
    of_stream = std::max(of_stream, excess_of(costs.works[row.work]));
  }
  const auto together = as_double(std::accumulate(most.begin(), most.end(), 0LL));
  if (together == 0) return Time();
  constexpr auto kOne = as_double(Contention::kOne);
  const double longer = std::min(as_double(costs.contention.communication) / kOne, 1 + kOne / together);
  std::int64_t lost = 0;
  for (const EventId id : collectives) {
    const Cost& cost = costs.works[graph.rows[at(id)].work];
    const double share = longer * as_double(excess_of(cost)) / (kOne + together);
    lost += static_cast<std::int64_t>(share * as_double(cost.duration.nanoseconds()));
  }
  return Time::ns(lost);
}

}

Time lower_bound(const EventGraph& graph, const CostTable& costs) {
  const NeededWork work = needed_work(graph, costs);
  return std::max(work.compute, work.communicator);
}

Time contended_bound(const EventGraph& graph, const CostTable& costs) {
  const NeededWork work = needed_work(graph, costs);
  return std::max(
      {work.compute + lost_by_compute(graph, costs, work.collectives), work.communicator, layers_bound(graph, costs)});
}

namespace {

bool is_of_layers(EventKind kind) {
  return kind == EventKind::kForward || kind == EventKind::kLoss || kind == EventKind::kRecompute ||
         kind == EventKind::kBackward;
}

// The longest way along the rows of layers on the compute stream and the collectives inside of layers between them;
// `passed(row, time)` hears by how much each row of the stream lengthens it. What such a collective queues behind is
// left out, so that every micro-batch adds its own way; and so is one that follows from no row of the stream.
Time pass_layers(const EventGraph& graph, const CostTable& costs, const auto& passed) {
  std::vector<Time> ends(graph.rows.size());
  Time compute;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Row& row = graph.rows[i];
    const bool is_compute = row.stream == Stream::kCompute;
    if (!is_compute && (row.stream < Stream::kTensor || row.stream >= Stream::kPipeline)) continue;
    Time start = is_compute ? compute : Time();
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w)
      start = std::max(start, ends[at(graph.waits[w])]);
    const bool counts = is_compute ? is_of_layers(row.kind) : start > Time();
    ends[i] = counts ? start + costs.works[row.work].duration : start;
    if (!is_compute) continue;
    passed(i, ends[i] - compute);
    compute = ends[i];
  }
  return compute;
}

}

Time layers_bound(const EventGraph& graph, const CostTable& costs) {
  return pass_layers(
      graph, costs, [](std::size_t, Time) {});
}

std::vector<StageFloor> stage_floors(
    const EventGraph& rank, const CostTable& costs, std::span<const StageRange> stages) {
  struct Pass {
    Time forward, backward;
  };
  std::vector<std::vector<Pass>> passes(stages.size());  // by micro-batch
  pass_layers(rank, costs, [&](std::size_t i, Time time) {
    const RowDetail& detail = rank.details[i];
    const auto has = [&](const StageRange& stage) {
      return detail.layer >= stage.first && detail.layer < stage.second;
    };
    const auto of = std::ranges::find_if(stages, has) - stages.begin();
    if (at(of) == stages.size() || !is_of_layers(rank.rows[i].kind)) return;
    std::vector<Pass>& own = passes[at(of)];
    if (own.size() <= at(detail.microbatch)) own.resize(at(detail.microbatch) + 1);
    Pass& pass = own[at(detail.microbatch)];
    (rank.rows[i].kind == EventKind::kForward ? pass.forward : pass.backward) += time;
  });
  std::vector<StageFloor> floors;
  for (const std::vector<Pass>& own : passes) {
    StageFloor& floor = floors.emplace_back();
    for (const Pass& pass : own) {
      const bool is_first = &pass == &own.front();
      floor.forward = is_first ? pass.forward : std::min(floor.forward, pass.forward);
      floor.backward = is_first ? pass.backward : std::min(floor.backward, pass.backward);
      floor.all += pass.forward + pass.backward;
    }
  }
  return floors;
}

Time extended_bound(Time at_two, Time at_three, std::int64_t micro_batches) {
  // The larger of two sums that grow evenly: their maximum grows at least as at the beginning.
  return at_three + (at_three - at_two) * (micro_batches - 3);
}

}
