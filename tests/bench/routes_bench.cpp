// A mesh laid over the graph of a cluster: everything from the cluster to what every group gets. To
// be at most 50 ms of 10,000 GPUs, and a second and 256 MiB of 100,000.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "calibration/machines.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

enum Axis : std::int64_t { kAllRanks, kRanksOfANode, kReplicas };

GroupShape shape_of(std::int64_t axis, const Cluster& cluster) {
  const std::int64_t node = cluster.gpus_per_node();
  if (axis == kRanksOfANode) return {node, 1};
  if (axis == kReplicas) return {cluster.gpus / node, node};
  return {cluster.gpus, 1};
}

void BM_RouteAxis(benchmark::State& state) {
  const Cluster cluster = load_cluster(std::to_string(state.range(0)) + "xh100");
  const GroupShape shape = shape_of(state.range(1), cluster);
  for (auto _ : state) {
    const Topology topology = build_topology(cluster);
    benchmark::DoNotOptimize(route(topology, shape).slowest);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}
BENCHMARK(BM_RouteAxis)
    ->ArgsProduct({{1'000, 10'000, 100'000}, {kAllRanks, kRanksOfANode, kReplicas}})
    ->Unit(benchmark::kMillisecond);

// What every further price of the axis costs.
void BM_RouteRemembered(benchmark::State& state) {
  const Routes routes(load_cluster("1024xh100"));
  for (auto _ : state) benchmark::DoNotOptimize(routes.axis({1024, 1}).slowest);
}
BENCHMARK(BM_RouteRemembered);

}
}
