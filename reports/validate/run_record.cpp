#include "reports/validate/run_record.h"

#include <algorithm>
#include <limits>

#include "sim/base/quantile.h"

namespace foreshard {

std::vector<Time> step_durations(const RunRecord& record) {
  std::size_t count = std::numeric_limits<std::size_t>::max();
  for (const RankRecord& rank : record.ranks) count = std::min(count, rank.step_durations.size());
  std::vector<Time> slowest(record.ranks.empty() ? 0 : count);
  for (const RankRecord& rank : record.ranks)
    for (std::size_t i = 0; i < count; ++i) slowest[i] = std::max(slowest[i], rank.step_durations[i]);
  return slowest;
}

std::vector<Time> steady_durations(const RunRecord& record) {
  std::vector<Time> durations = step_durations(record);
  if (durations.size() > record.warm_up) durations.erase(durations.begin(), durations.begin() + record.warm_up);
  return durations;
}

double tokens_per_second(const RunRecord& record) {
  std::vector<double> seconds;
  for (Time duration : steady_durations(record)) seconds.push_back(duration.seconds());
  const double median = quartiles(std::move(seconds)).median;
  return median > 0 ? record.tokens_per_step / median : 0;
}

}
