#include "tests/exec/engine/engine_runs.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "exec/comm/rank_threads.h"
#include "exec/device/host_accelerator.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "exec/engine/update.h"
#include "models/families.h"
#include "sim/graph/training_step.h"

namespace foreshard {

ModelSpec small_model(const std::string& family, bool tied) {
  ModelDims dims = family_dims(family, "small " + family, {3, 64, 4, 2, 16, 160, 96, 64});
  if (dims.fused_qkv) dims.kv_heads = 4;
  dims.tied = tied;
  return build_model(dims, Stack::kNative);
}

Plan small_plan(std::int64_t shard, std::int64_t replicate) {
  Plan plan = {.runtime = {RuntimeKind::kNative, "1"},
      .batch = {32, 2, 4 / (shard * replicate)},
      .mesh = {shard, replicate},
      .param_dtype = DType::kFp32,
      .reduction_order = ReductionOrder::kMicrobatch,
      .host = HostKind::kComputes};
  plan.optimizer.learning_rate = 1e-2;
  return plan;
}

Plan fitted(Plan plan, const ModelSpec& model) {
  if (model.tied_embeddings) {
    plan.units.embedding = UnitPlacement::kRoot;
    plan.units.head = UnitPlacement::kRoot;
  }
  return plan;
}

MicroBatch batch_of(const ModelSpec& model, const Plan& plan, std::int64_t number, double scale) {
  MicroBatch batch;
  batch.sequences = plan.batch.micro_batch;
  batch.sequence = plan.batch.sequence;
  batch.loss_scale = scale;
  batch.tokens = at::empty({batch.count()}, at::kLong);
  batch.labels = at::empty({batch.count()}, at::kLong);
  auto* tokens = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.count(); ++i) {
    const std::int64_t sample = number * batch.sequences + i / batch.sequence;
    const auto token = [&](std::int64_t t) {
      return (sample * 131 + t * t * 7 + t * (sample % 13)) % model.vocabulary;
    };
    tokens[i] = token(i % batch.sequence);
    labels[i] = token(i % batch.sequence + 1);
  }
  return batch;
}

namespace {

// What one rank holds of every parameter; rank 0's replica is the one that counts.
struct Piece {
  std::int64_t first = 0;  // element of the whole parameter
  std::vector<float> values;
};
using Pieces = std::multimap<std::string, Piece>;

Pieces pieces_of(Engine& engine, const ModelSpec& model, const Plan& plan) {
  Pieces pieces;
  if (plan.master_dtype != DType::kFp32) return pieces;
  for (const UnitMemory& unit : engine.units().all()) {
    for (const ShardPiece& piece : foreshard::pieces_of(unit)) {
      const auto* values = reinterpret_cast<const float*>(unit.master) + piece.begin;
      const std::int64_t count = std::min(piece.count, piece.parameter->numel - piece.first);
      for (std::int64_t i = 0; i < count;) {
        const std::int64_t run = piece.cut.run(piece.first + i, count - i);
        pieces.emplace(parameter_name(model, *piece.parameter),
            Piece{piece.cut.whole(piece.first + i), {values + i, values + i + run}});
        i += run;
      }
    }
  }
  return pieces;
}

void put_together(const Pieces& pieces, std::map<std::string, std::vector<float>>& whole) {
  for (const auto& [name, piece] : pieces) {
    std::vector<float>& values = whole[name];
    const auto end = static_cast<std::size_t>(piece.first) + piece.values.size();
    values.resize(std::max(values.size(), end));
    std::copy(piece.values.begin(), piece.values.end(), values.begin() + piece.first);
  }
}

}

double relative_difference(const EngineRun& a, const EngineRun& b) {
  double difference = 0;
  double norm = 0;
  for (const auto& [name, values] : b.parameters) {
    const std::vector<float>& others = a.parameters.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(others.at(i)) - static_cast<double>(values[i]);
      difference += d * d;
      norm += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  return std::sqrt(difference / norm);
}

EngineRun run_in_threads(const ModelSpec& model, Plan plan, int steps, bool debug, Feeds feeds, Time reduce_scatter) {
  const EventGraph graph = build_training_step(model, plan);
  Pacing pacing;
  for (const Row& row : graph.rows) {
    pacing.durations.push_back(row.kind == EventKind::kReduceScatter ? reduce_scatter : Time());
  }
  return run_graph(model, plan, graph, steps, {debug, feeds, reduce_scatter > Time() ? &pacing : nullptr});
}

EngineRun run_graph(const ModelSpec& model, const Plan& plan, const EventGraph& graph, int steps, const RanksRun& how) {
  at::set_num_threads(1);
  const auto ranks = static_cast<std::size_t>(plan.mesh.world());
  std::vector<EngineRun> runs(ranks);
  std::vector<std::vector<std::vector<double>>> losses(
      static_cast<std::size_t>(steps), std::vector<std::vector<double>>(ranks));
  std::vector<Pieces> first(ranks), last(ranks);
  for_each_rank(static_cast<int>(ranks), [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto device = how.feeds == Feeds::kCpu ? nullptr : host_accelerator();
    Engine engine(model, plan, graph, world,
        {.debug = how.debug, .device = device.get(), .pacing = how.pacing, .graph = how.feeds == Feeds::kReplayed});
    engine.initialise();
    first[rank] = pieces_of(engine, model, plan);
    EngineRun& run = runs[rank];
    for (int s = 0; s < steps; ++s) {
      std::vector<MicroBatch> batches;
      for (std::int64_t m = 0; m < plan.batch.accumulation; ++m) {
        batches.push_back(
            batch_of(model, plan, s * microbatches_of_step(plan) + global_microbatch(plan, world.rank(), m),
                1.0 / static_cast<double>(microbatches_of_step(plan))));
      }
      const StepOutcome outcome = engine.step(s + 1, batches, nullptr);
      losses[static_cast<std::size_t>(s)][rank] = outcome.losses;
      run.norms.push_back(outcome.gradient_norm);
    }
    run.hash = engine.parameter_hash();
    run.activations_peak = engine.activations().peak;
    run.arena = engine.units().arena_bytes();
    run.tensors_held = engine.activations().now;
    last[rank] = pieces_of(engine, model, plan);
  });
  EngineRun result = runs.front();
  const std::int64_t holders = plan.mesh.shard * plan.mesh.tp;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(holders); ++rank) {
    put_together(first[rank], result.initial);
    put_together(last[rank], result.parameters);
  }
  for (const auto& step : losses) result.losses.push_back(mean_loss(plan, step));
  return result;
}

}
