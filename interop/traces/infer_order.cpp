// Likeness is a longest common subsequence. Of units gathered ahead, a unit counts once it was
// gathered in this pass and not yet computed in it; the commonest count is the pass's.
#include "interop/traces/infer_order.h"

#include <algorithm>
#include <map>
#include <set>

namespace foreshard {
namespace {

bool is_marked(EventKind kind, std::int32_t unit) {
  switch (kind) {
    case EventKind::kAllGather:
    case EventKind::kForward:
    case EventKind::kRecompute:
    case EventKind::kBackward:
    case EventKind::kReduceScatter:
    case EventKind::kAllReduce:
      return unit >= 0;
    default:
      return false;
  }
}

void add(std::vector<OrderMark>& order, OrderMark mark) {
  if (!is_marked(mark.kind, mark.unit)) return;
  // Backward begins before it asks for what is computed again.
  if (mark.kind == EventKind::kRecompute) mark.kind = EventKind::kBackward;
  if (is_collective(mark.kind) || order.empty() || order.back() != mark) order.push_back(mark);
}

}  // namespace

std::vector<OrderMark> order_of(const JobStep& step) {
  std::vector<OrderMark> order;
  for (const TraceRun& run : step.runs) add(order, {run.kind, run.unit, run.microbatch});
  return order;
}

std::vector<OrderMark> order_of(const EventGraph& graph) {
  std::vector<OrderMark> order;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    add(order, {graph.rows[i].kind, graph.details[i].unit, graph.details[i].microbatch});
  }
  return order;
}

double likeness(const std::vector<OrderMark>& a, const std::vector<OrderMark>& b) {
  if (a.empty() || b.empty()) return 0;
  std::vector<std::int32_t> above(b.size() + 1, 0), row(b.size() + 1, 0);
  for (const OrderMark& mark : a) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = mark == b[j] ? above[j] + 1 : std::max(row[j], above[j + 1]);
    }
    std::swap(above, row);
  }
  return 2.0 * above.back() / as_double(a.size() + b.size());
}

std::int64_t units_ahead(const std::vector<OrderMark>& order, EventKind pass) {
  std::set<std::int32_t> waiting;  // gathered, not computed
  std::map<std::int64_t, int> counts;
  bool backward = false;
  for (const OrderMark& mark : order) {
    if (mark.microbatch > 0) break;
    const bool of_backward = mark.kind == EventKind::kBackward;
    if (of_backward && !backward) {
      backward = true;
      if (pass == EventKind::kForward) break;
    }
    if (mark.kind == EventKind::kAllGather) waiting.insert(mark.unit);
    if (mark.kind == EventKind::kForward && pass == EventKind::kBackward) waiting.erase(mark.unit);
    const bool computes =
        pass == EventKind::kForward ? mark.kind == EventKind::kForward : of_backward;
    if (!computes) continue;
    const bool gathered = waiting.erase(mark.unit) > 0;
    if (gathered) ++counts[std::ssize(waiting)];
  }
  const auto most = std::ranges::max_element(
      counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

}  // namespace foreshard
