// Google Benchmark with every repeat begun by all ranks together.
//
// The number of iterations is fixed beforehand (rank 0 tries once and tells), so that all ranks do
// the same: a collective inside a benchmark would hang otherwise.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "sim/base/json.h"

namespace foreshard {

// Seconds of one iteration: median and quartiles over the repeats.
struct BenchResult {
  double median = 0, low = 0, high = 0;
  int repeats = 0;
  Json to_json() const;
};
BenchResult summary_of(std::vector<double> seconds);

class Bench {
 public:
  Bench(World& world, double seconds) : world_(world), seconds_(seconds) {}

  // `once` does one iteration.
  BenchResult run(const std::string& name, const std::function<void()>& once);
  void meet();  // of all ranks

 private:
  World& world_;
  double seconds_;
  std::size_t meetings_ = 0;
};

}
