#include "calibration/measure/bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/integers.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

constexpr int kRepeats = 5;

// Keeps the time of every repeat and prints nothing.
class RunTimes final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      seconds.push_back(run.real_accumulated_time / as_double(run.iterations));
    }
  }
  std::vector<double> seconds;
};

double seconds_of(const std::function<void()>& once) {
  const auto begin = std::chrono::steady_clock::now();
  once();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}

Json BenchResult::to_json() const { return {{"median", median}, {"low", low}, {"high", high}}; }

BenchResult summary_of(std::vector<double> seconds) {
  const auto repeats = static_cast<int>(seconds.size());
  const Quartiles q = quartiles(std::move(seconds));
  return {q.median, q.low, q.high, repeats};
}

void Bench::meet() { world_.gather(fmt::format("meet/{}", meetings_++), ""); }

BenchResult Bench::run(const std::string& name, const std::function<void()>& once) {
  meet();
  once();
  meet();
  const double first = seconds_of(once);
  const auto tries = world_.gather(fmt::format("iterations/{}", meetings_++), std::to_string(first));
  const double slowest = std::max(std::stod(tries[0]), 1e-7);
  const auto iterations = std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds_ / slowest), 1, 100'000);
  benchmark::ClearRegisteredBenchmarks();
  benchmark::RegisterBenchmark(name.c_str(),
      [&](benchmark::State& state) {
        meet();
        for (auto _ : state) once();
      })
      ->Iterations(iterations)
      ->Repetitions(kRepeats)
      ->UseRealTime();
  RunTimes collector;
  benchmark::RunSpecifiedBenchmarks(&collector, ".*");
  return summary_of(std::move(collector.seconds));
}

}
