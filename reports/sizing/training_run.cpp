// The run is forecast once for every draw of the step and every slice of the distributions of the failure rate and of
// the price: slices of equal probability, each by its middle. Whether the plan fits is drawn with the step: who asks
// for all at once gets all of one draw. Checkpoints are set once, by the central rate. Where failures fall is a normal
// scatter around each (sim/search/goodput.h): exact in the probabilities, by three points in the interval.
#include "reports/sizing/training_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace foreshard {
namespace {

// Middles of nine slices of equal probability of the standard normal: its quantiles at 1/18, 3/18 ...
constexpr std::array<double, 9> kSlices = {-1.5932, -0.9674, -0.5895, -0.2822, 0, 0.2822, 0.5895, 0.9674, 1.5932};
// Three equally likely points of mean 0 and variance 1.
constexpr std::array<double, 3> kScatter = {-1.224745, 0, 1.224745};

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double chance_below(const WallTime& wall, double limit) {
  if (!std::isfinite(wall.mean)) return 0;
  return wall.sd > 0 ? normal_cdf((limit - wall.mean) / wall.sd) : wall.mean <= limit;
}

// A price at a number of standard deviations; its range is taken for a 90 % interval.
double price_at(const Price& price, double z) {
  const double end = z < 0 ? price.low : price.high;
  if (end <= 0 || price.usd_per_hour <= 0) return price.usd_per_hour;
  return price.usd_per_hour * std::pow(end / price.usd_per_hour, std::abs(z) / kStandardDeviations);
}

// Independent relative errors of two factors of a product.
Quantity product(double value, const Quantity& a, const Quantity& b) {
  const auto ratio = [](double x, double y) { return x > 0 && y > 0 ? std::log(x / y) : 0; };
  const double down = std::hypot(ratio(a.value, a.low), ratio(b.value, b.low));
  const double up = std::hypot(ratio(a.high, a.value), ratio(b.high, b.value));
  return {value, value * std::exp(-down), value * std::exp(up), weaker(a.evidence, b.evidence)};
}

Quantity scaled(const Quantity& q, double factor) {
  return {q.value * factor, q.low * factor, q.high * factor, q.evidence};
}

Interruptions interruptions_of(const SizedPlan& sized, const RunTerms& terms, double per_gpu_day) {
  Interruptions x;
  const auto gpus = as_double(sized.cluster.gpus);
  x.mean_between = per_gpu_day > 0 ? kSecondsPerDay / (per_gpu_day * gpus) : std::numeric_limits<double>::infinity();
  x.save = as_double(sized.state.count()) / (terms.checkpoint_rate.value() * gpus);
  x.restart = terms.restart + x.save;  // what was written is read
  return x;
}

// Forward work of the sequences of an evaluation over the training time between two.
double evaluation_share(const SizedPlan& sized, const RunTerms& terms) {
  if (terms.evaluate_every <= 0) return 0;
  const Batch& batch = sized.plan.batch;
  const auto sequences = as_double(batch.micro_batch * batch.accumulation * sized.plan.mesh.data_parallel());
  return sized.forward_share * as_double(terms.evaluate_sequences) / sequences / as_double(terms.evaluate_every);
}

}

FailureRate published_failure_rate() {
  // 419 unexpected interruptions in 54 days on 16,384 GPUs: arXiv 2407.21783, section 3.3.4.
  constexpr double kLlama3 = 419 / (54.0 * 16384);
  // Standard deviation of the logarithms of five published rates, per 8-GPU node and day: Llama 3
  // 3.8e-3; BLOOM 3e-3; RSC-1 6.5e-3 and RSC-2 2.3e-3 (arXiv 2410.21680); OPT-175B 1.6e-2.
  constexpr double kLogSd = 0.77;
  return {kLlama3, kLogSd,
      "Llama 3: 419 unexpected interruptions in 54 days on 16,384 H100 (arXiv 2407.21783); "
      "scatter of five published clusters"};
}

RunForecast forecast_run(const SizedPlan& sized, const Price& price, const RunTerms& terms) {
  RunForecast run;
  const auto gpus = as_double(sized.cluster.gpus);
  const Batch& batch = sized.plan.batch;
  // Ranks of cp and tp share their sequences.
  const Mesh& mesh = sized.plan.mesh;
  const double data_ranks = gpus / as_double(mesh.sharing());
  const auto tokens_per_step = as_double(batch.micro_batch * batch.accumulation * batch.sequence) * data_ranks;
  run.steps = std::ceil(terms.tokens / tokens_per_step);
  run.evaluation_share = evaluation_share(sized, terms);
  run.interruptions = interruptions_of(sized, terms, terms.failures.per_gpu_day);
  run.checkpoint_interval = checkpoint_interval(run.interruptions);

  const double deadline = terms.deadline.value_or(std::numeric_limits<double>::infinity());
  // Seconds that the budget lasts, by slices of the price.
  std::vector<double> affordable = {std::numeric_limits<double>::infinity()};
  if (terms.budget) affordable.clear();
  for (const double z : kSlices) {
    const double usd_per_second = gpus * price_at(price, z) / 3600;
    if (terms.budget && usd_per_second > 0) affordable.push_back(*terms.budget / usd_per_second);
  }
  std::vector<double> days, shares;
  double in_time = 0, in_budget = 0, all = 0;
  std::size_t count = 0;
  const auto work_of = [&](double step) { return step * run.steps * (1 + run.evaluation_share); };
  std::vector<double> steps = sized.draws;
  if (steps.empty()) steps.push_back(sized.step.value);
  for (const double z : kSlices) {
    const Interruptions x =
        interruptions_of(sized, terms, terms.failures.per_gpu_day * std::exp(terms.failures.log_sd * z));
    const double share = goodput(x, run.checkpoint_interval) / (1 + run.evaluation_share);
    shares.push_back(share);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      const WallTime wall = wall_time(work_of(steps[k]), x, run.checkpoint_interval);
      in_time += chance_below(wall, deadline);
      double pays = 0, both = 0;
      for (const double seconds : affordable) {
        pays += chance_below(wall, seconds);
        both += chance_below(wall, std::min(deadline, seconds));
      }
      const auto slices = as_double(affordable.size());
      in_budget += pays / slices;
      all += both / slices * sized.fit_probability_of(k);
      ++count;
      for (const double s : kScatter) days.push_back((wall.mean + s * wall.sd) / kSecondsPerDay);
    }
  }
  const auto draws = as_double(count);
  run.probability = all / draws;
  run.probability_in_time = terms.deadline ? in_time / draws : 1;
  run.probability_within_budget = terms.budget ? in_budget / draws : 1;

  const WallTime central = wall_time(work_of(sized.step.value), run.interruptions, run.checkpoint_interval);
  run.days = with_interval(central.mean / kSecondsPerDay, std::move(days), sized.step.evidence);
  run.goodput = with_interval(goodput(run.interruptions, run.checkpoint_interval) / (1 + run.evaluation_share),
      std::move(shares), Evidence::kExtrapolated);
  run.gpu_hours = scaled(run.days, gpus * 24);
  const Quantity hourly{price.usd_per_hour, price.low, price.high, price.evidence};
  run.dollars = product(run.gpu_hours.value * hourly.value, run.gpu_hours, hourly);
  run.dollars_per_million_tokens = scaled(run.dollars, 1e6 / terms.tokens);
  const double kilowatts = sized.cluster.gpu.power_limit / 1000 * terms.pue;
  const Quantity power{kilowatts * terms.server_power, kilowatts * terms.server_power_low,
      kilowatts * terms.server_power_high, Evidence::kExtrapolated};
  run.energy_kwh = product(run.gpu_hours.value * power.value, run.gpu_hours, power);
  run.meets_deadline = central.mean <= deadline;
  run.within_budget = !terms.budget || run.dollars.value <= *terms.budget;
  return run;
}

}
