#include "reports/accuracy/intervals.h"

#include <algorithm>
#include <cstddef>

namespace foreshard {

std::vector<Interval> united(std::vector<Interval> intervals) {
  const auto earlier = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::ranges::is_sorted(intervals, earlier)) std::ranges::sort(intervals, earlier);
  std::size_t count = 0;
  for (const Interval& interval : intervals) {
    if (interval.end <= interval.begin) continue;
    if (count > 0 && interval.begin <= intervals[count - 1].end)
      intervals[count - 1].end = std::max(intervals[count - 1].end, interval.end);
    else intervals[count++] = interval;
  }
  intervals.resize(count);
  return intervals;
}

Time total_length(const std::vector<Interval>& disjoint) { return sum_of<Time>(disjoint, &Interval::length); }

Time overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  Time sum;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Time begin = std::max(a[i].begin, b[j].begin);
    const Time end = std::min(a[i].end, b[j].end);
    if (begin < end) sum += end - begin;
    if (a[i].end < b[j].end) ++i;
    else ++j;
  }
  return sum;
}

}
