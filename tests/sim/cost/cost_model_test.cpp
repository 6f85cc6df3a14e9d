// Prices on a round machine: 100 TFLOP/s, 1 TB/s, 8 GPUs a node at 100 GB/s, one 10 GB/s NIC per GPU, every fraction 1.
#include "sim/cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Kernel gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return Kernel{.kind = KernelKind::kGemm,
      .m = m,
      .n = n,
      .k = k,
      .bytes = Bytes((m * k + k * n + m * n) * 2),
      .flops = Flops(2.0 * static_cast<double>(m * n * k))};
}

TEST(CostModel, AGemmTakesItsFlopsOverTheSustainedPeak) {
  Calibration c = round_calibration();
  c.gemm_bf16.efficiency = 0.8;
  c.gemm_bf16.sustained = 0.5;
  c.gemm_bf16.k_half = 100;
  c.gemm_bf16.overhead = 1e-6;
  const CostModel costs(round_cluster(8), c);
  // 2 * 4096^3 = 137.4 GFLOP at 40 TFLOP/s, times 1 + 100/4096, plus 1 us. The wave term is off.
  const double expected = 2 * std::pow(4096.0, 3) / 40e12 * (1 + 100.0 / 4096) + 1e-6;
  EXPECT_NEAR(costs.price(gemm(4096, 4096, 4096)).seconds, expected, 1e-12);
}

TEST(CostModel, AThinGemmIsLimitedByMemory) {
  const CostModel costs(round_cluster(8), round_calibration());
  // m = 1: 2*n*k FLOPs need 0.0034 ms of compute, the weight's 33.6 MB need 33.6 us at 1 TB/s.
  const Kernel kernel = gemm(1, 4096, 4096);
  EXPECT_NEAR(costs.price(kernel).seconds, static_cast<double>(kernel.bytes.count()) / 1e12, 1e-12);
}

TEST(CostModel, TheLastWaveCostsItsShareOfTheChip) {
  Calibration c = round_calibration();
  c.gemm_bf16.tail = 0.5;
  const CostModel costs(round_cluster(8), c);
  // 1024 x 1024 are 64 tiles of 128 x 128 on 100 multiprocessors: 1 + 0.5 * 100 / 64.
  EXPECT_NEAR(
      costs.price(gemm(1024, 1024, 8192)).seconds, 2 * 1024.0 * 1024 * 8192 / 100e12 * (1 + 0.5 * 100 / 64), 1e-12);
}

TEST(CostModel, CollectivesCountTheWholeBufferAsNcclTestsDoes) {
  Calibration c = round_calibration();
  c.intra_node.latency = 10e-6;
  c.intra_node.per_hop = 1e-6;
  const CostModel costs(round_cluster(8), c);
  const Bytes gib(std::int64_t{1} << 30);
  const double wire = 7.0 / 8 * static_cast<double>(gib.count()) / 100e9;
  EXPECT_NEAR(costs.price(EventKind::kAllGather, gib, {8, 1}).seconds, 10e-6 + 7e-6 + wire, 1e-9);
  EXPECT_NEAR(costs.price(EventKind::kReduceScatter, gib, {8, 1}).seconds, 10e-6 + 7e-6 + wire, 1e-9);
  EXPECT_NEAR(costs.price(EventKind::kAllReduce, gib, {8, 1}).seconds, 10e-6 + 14e-6 + 2 * wire, 1e-9);
  EXPECT_EQ(costs.price(EventKind::kAllGather, gib, {1, 1}).seconds, 0);
}

TEST(CostModel, AcrossNodesTheNicsOfTheGroupAreTheLimit) {
  const CostModel costs(round_cluster(32), round_calibration());
  const Bytes gib(std::int64_t{1} << 30);
  // 16 ranks on 2 nodes: 8 NICs of 10 GB/s each, less than the 100 GB/s links.
  EXPECT_NEAR(costs.price(EventKind::kAllGather, gib, {16, 1}).seconds,
      15.0 / 16 * static_cast<double>(gib.count()) / 80e9, 1e-9);
  // One rank per node, eight such groups side by side: one NIC each.
  EXPECT_NEAR(costs.price(EventKind::kAllReduce, gib, {4, 8}).seconds,
      2 * 3.0 / 4 * static_cast<double>(gib.count()) / 10e9, 1e-9);
}

TEST(CostModel, DrawsAreTheSameEveryTimeAndCentredOnOne) {
  const CostModel costs(round_cluster(8), round_calibration());
  EXPECT_EQ(costs.draw(3), costs.draw(3));
  EXPECT_NE(costs.draw(3), costs.draw(4));
  constexpr int kDraws = 200;
  for (std::size_t f = 0; f < kFactors; ++f) {
    double log_sum = 0, square = 0;
    for (int k = 0; k < kDraws; ++k) {
      const double x = std::log(costs.draw(k)[f]);
      log_sum += x;
      square += x * x;
    }
    EXPECT_NEAR(log_sum / kDraws, 0, 0.01) << f;
    EXPECT_NEAR(std::sqrt(square / kDraws), 0.1, 0.01) << f;  // log_sd of the fixture
  }
}

TEST(CostModel, SlowerHostDrawsMoveOnlyHostCosts) {
  Calibration c = round_calibration();
  c.host.per_hook = 100e-6;
  c.host.per_launch = 10e-6;
  const CostModel costs(round_cluster(8), c);
  const EventGraph graph = build_training_step(tiny_model(2), tiny_plan());
  FactorDraw draw = central_draw();
  draw[at(Factor::kHost)] = 2;
  const CostTable one = costs.price(graph);
  const CostTable two = costs.price(graph, draw);
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    EXPECT_EQ(one.works[w].duration, two.works[w].duration);
    EXPECT_EQ(2 * one.works[w].before, two.works[w].before);
    EXPECT_EQ(one.works[w].before, Time::seconds(100e-6 * static_cast<double>(graph.works[w].hooks)));
  }
}

// DeepSpeedCPUAdam, whose rows move 42 bytes a parameter (Zero3::update_on_host), on nodes whose memory gives 409.6
// GB/s. Seconds of the optimizer: of a step, less one without offload (240 ms for the smaller model, twice that for the
// larger) and the copies of the gradients' and the parameters' two bytes by each of two ranks at 24 GB/s; of the large
// model as its user saw it, a quarter of it on each node. Sources beside kHostOptimizerShare.
TEST(CostModel, AnOptimizerOnTheHostTakesWhatPublishedStepsSay) {
  const Cluster cluster = round_cluster(8);
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, "0.19"};
  plan.zero.offload_optimizer = ZeroOffload::kCpu;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  const CostTable table = CostModel(cluster, round_calibration()).price(graph);
  double moved = 0, seconds = 0;
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    const Work& work = graph.works[w];
    if (work.kind != EventKind::kHostOptimizer) continue;
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
      moved += 8 * static_cast<double>(graph.kernels[k].bytes.count());  // by each rank of the node
    }
    seconds += table.works[w].during.seconds();
  }
  ASSERT_GT(moved, 0);
  const double share = moved / seconds / cluster.node.host_memory_bandwidth.value();
  const auto published = [](double parameters, double taken) { return parameters * 42 / taken / 409.6e9; };
  const auto copies = [](double parameters) { return 2 * (parameters / 2 * 2) / 24e9; };
  const double small = published(1.54e9, 1.365 - 0.240 - copies(1.54e9));
  const double middle = published(3.09e9, 2.497 - 2 * 0.240 - copies(3.09e9));
  const double large = published(72.7e9 / 4, 10);
  EXPECT_NEAR(share, (small + middle + large) / 3, 0.01);
  EXPECT_LT(large / small, 1.25);  // they agree
}

}
}
