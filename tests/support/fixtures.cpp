#include "tests/support/fixtures.h"

#include <algorithm>
#include <sstream>

#include "models/model_dims.h"

namespace foreshard {

ModelSpec tiny_model(int blocks) {
  ModelDims dims = {.name = "tiny",
      .family = "llama",
      .source = "tests/support",
      .layers = blocks,
      .hidden = 512,
      .heads = 8,
      .kv_heads = 4,
      .head_dim = 64,
      .ffn = 1536,
      .vocabulary = 4096,
      .max_positions = 1024};
  return build_model(dims);
}

Plan tiny_plan() {
  Plan plan = {.model = "tiny", .cluster = "8xround", .batch = {128, 2, 1}, .mesh = {8, 1}};
  plan.units.head = UnitPlacement::kWithNorm;
  plan.optimizer.clip_norm.reset();
  return plan;
}

CostTable table_costs(const EventGraph& graph, const std::function<Cost(const Work&, int unit)>& of) {
  CostTable table;
  std::vector<int> unit_of_work(graph.works.size(), -1);
  for (std::size_t row = 0; row < graph.rows.size(); ++row) {
    unit_of_work[graph.rows[row].work] = graph.details[row].unit;
  }
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    table.works.push_back(of(graph.works[w], unit_of_work[w]));
    if (is_collective(graph.works[w].kind)) table.works[w].uses = {Contention::kOne, 0};
  }
  table.evidence.assign(graph.works.size(), Evidence::kAssumed);
  return table;
}

Cluster round_cluster(std::int64_t gpus) {
  Cluster cluster = {.spec = std::to_string(gpus) + "xround", .gpus = gpus};
  cluster.gpu.key = "round";
  cluster.gpu.name = "round GPU";
  cluster.gpu.multiprocessors = 100;
  cluster.gpu.peak_bf16 = FlopsPerSecond(100e12);
  cluster.gpu.peak_fp32 = FlopsPerSecond(10e12);
  cluster.gpu.peak_fp8 = FlopsPerSecond(200e12);
  cluster.gpu.memory = Bytes(std::int64_t{80} << 30);
  cluster.gpu.memory_bandwidth = BytesPerSecond(1e12);
  cluster.node.key = "round-node";
  cluster.node.gpus = 8;
  cluster.node.gpu_link = BytesPerSecond(100e9);
  cluster.node.nics = 8;
  cluster.node.nic_rate = BytesPerSecond(10e9);
  cluster.network.nodes_per_leaf = 32;
  cluster.memory_outside_allocator = Bytes(std::int64_t{2} << 30);
  return cluster;
}

Calibration round_calibration() {
  Calibration c = {.gpu = "round", .id = "round"};
  c.gemm_bf16.efficiency = c.gemm_fp32.efficiency = 1;
  c.gemm_bf16.hbm_fraction = c.gemm_fp32.hbm_fraction = 1;
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    AttentionCurve curve = {.kernel = "fa2", .head_dim = 64, .pass = pass, .efficiency = 1};
    c.attention.push_back(curve);
  }
  for (MemoryCurve& curve : c.memory) curve.fraction = 1;
  c.intra_node.link_fraction = 1;
  c.inter_node.link_fraction = c.inter_node.network_fraction = 1;
  for (FactorSpread& spread : c.spread) spread.log_sd = 0.1;
  return c;
}

CostModel round_costs(std::int64_t gpus) { return CostModel(round_cluster(gpus), round_calibration()); }

std::int64_t count(const EventGraph& graph, EventKind kind) {
  return std::ranges::count_if(graph.rows, [&](const Row& row) { return row.kind == kind; });
}

std::vector<std::string> text_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}
