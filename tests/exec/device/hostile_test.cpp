// The engine's device half on a stand-in as hostile as a GPU: the same bits as on the one that does
// everything at once, whatever the order; and faults that are planted are found.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <functional>
#include <iostream>

#include "exec/comm/rank_threads.h"
#include "exec/device/device_communicators.h"
#include "exec/device/host_accelerator.h"
#include "exec/device/hostile_accelerator.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "sim/graph/training_step.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard {
namespace {

Plan device_plan(std::int64_t shard, std::int64_t replicate = 1) {
  Plan plan = small_plan(shard, replicate);
  plan.host = HostKind::kFeedsDevice;
  plan.reduction_order = ReductionOrder::kLibrary;
  plan.batch.accumulation = 2;
  return plan;
}

struct Trained {
  std::string hash;
  std::vector<double> losses, norms;
  bool operator==(const Trained&) const = default;
};
void PrintTo(const Trained& t, std::ostream* out) {
  *out << t.hash << testing::PrintToString(t.losses) << testing::PrintToString(t.norms);
}

// Micro-batch `number` of all there are.
MicroBatch batch_of(const ModelSpec& model, const Plan& plan, std::int64_t number, double scale) {
  MicroBatch batch;
  batch.sequences = plan.batch.micro_batch;
  batch.sequence = plan.batch.sequence;
  batch.loss_scale = scale;
  batch.tokens = at::empty({batch.count()}, at::kLong);
  batch.labels = at::empty({batch.count()}, at::kLong);
  for (std::int64_t i = 0; i < batch.sequences; ++i) {
    fill_sample(number * batch.sequences + i, model.vocabulary, batch.sequence,
                batch.tokens.mutable_data_ptr<std::int64_t>() + i * batch.sequence,
                batch.labels.mutable_data_ptr<std::int64_t>() + i * batch.sequence);
  }
  return batch;
}

// Rank 0 of the plan alone, its collectives paced.
Trained train(Accelerator& device, const ModelSpec& model, const Plan& plan,
              const EventGraph& graph, int steps, bool replays = false) {
  at::set_num_threads(1);
  Pacing pacing;
  pacing.durations.resize(graph.rows.size());
  pacing.ctas.assign(graph.rows.size(), 1);
  const auto world = plan.mesh.world() > 1 ? paced_world(static_cast<int>(plan.mesh.world()))
                                           : std::move(thread_worlds(1).front());
  Engine engine(
      model, plan, graph, *world,
      {.device = &device, .pacing = plan.mesh.world() > 1 ? &pacing : nullptr, .graph = replays});
  engine.initialise();
  Trained outcome;
  int pending = 0;
  const auto collect = [&] {
    const StepResult result = engine.collect();
    outcome.losses.insert(outcome.losses.end(), result.losses.begin(), result.losses.end());
    outcome.norms.push_back(result.gradient_norm);
    --pending;
  };
  for (int s = 0; s < steps; ++s) {
    std::vector<MicroBatch> batches(static_cast<std::size_t>(plan.batch.accumulation));
    for (std::size_t m = 0; m < batches.size(); ++m) {
      batches[m] = batch_of(model, plan, s * 100 + static_cast<std::int64_t>(m),
                            1.0 / static_cast<double>(batches.size()));
    }
    engine.issue(s + 1, batches);
    ++pending;
    while (pending > engine.ahead()) collect();
  }
  while (pending > 0) collect();
  outcome.hash = engine.parameter_hash();
  return outcome;
}

struct Case {
  const char* name;
  const char* family = "llama";
  std::int64_t shard = 8, replicate = 1;
  bool replays = false;
  void (*change)(Plan&) = [](Plan&) {};
};

class HostilePlans : public testing::TestWithParam<Case> {};

TEST_P(HostilePlans, TrainsWithTheSameBits) {
  const Case& c = GetParam();
  const ModelSpec model = small_model(c.family);
  Plan plan = device_plan(c.shard, c.replicate);
  c.change(plan);
  const EventGraph graph = build_training_step(model, plan);
  const int steps = c.replays ? 6 : 3;
  const Trained usual = train(*host_accelerator(), model, plan, graph, steps, c.replays);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto device = hostile_accelerator(std::make_shared<HostileGpu>(seed));
    EXPECT_EQ(train(*device, model, plan, graph, steps, c.replays), usual) << "seed " << seed;
  }
}

const Case kCases[] = {
    {"llama"},
    {"alone", "llama", 1},
    {"gpt2", "gpt2"},
    {"qwen3", "qwen3"},
    {"replicas", "llama", 1, 8},
    {"hsdp", "llama", 4, 2},
    {"bf16", "llama", 8, 1, false, [](Plan& p) { p.param_dtype = DType::kBf16; }},
    {"reduced_in_bf16", "llama", 8, 1, false,
     [](Plan& p) { p.param_dtype = p.reduce_dtype = DType::kBf16; }},
    {"prefetch_none", "llama", 8, 1, false,
     [](Plan& p) {
       p.prefetch = {0, 0};
     }},
    {"prefetch_two", "llama", 8, 1, false,
     [](Plan& p) {
       p.prefetch = {2, 2};
     }},
    {"never", "llama", 8, 1, false,
     [](Plan& p) {
       p.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
     }},
    {"group", "llama", 8, 1, false,
     [](Plan& p) {
       p.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
     }},
    {"recompute", "llama", 8, 1, false, [](Plan& p) { p.recompute.value = Recompute::kFull; }},
    {"host_sync", "llama", 8, 1, false, [](Plan& p) { p.host_sync = HostSync::kStep; }},
    {"kept", "llama", 8, 1, false,
     [](Plan& p) { p.accumulation = AccumulationMode::kKeepUnsharded; }},
    {"sgd", "llama", 8, 1, false, [](Plan& p) { p.optimizer.kind = Optimizer::Kind::kSgd; }},
    {"offload", "llama", 8, 1, false, [](Plan& p) { p.offload = Offload::kCpu; }},
    {"replayed", "llama", 8, 1, true},
    {"replayed_alone", "llama", 1, 1, true},
    {"replayed_recompute", "gpt2", 8, 1, true,
     [](Plan& p) { p.recompute.value = Recompute::kFull; }},
};
INSTANTIATE_TEST_SUITE_P(Hostile, HostilePlans, testing::ValuesIn(kCases),
                         [](const auto& c) { return c.param.name; });

// Ranks in threads that share the device read each other's memory behind each other's events.
TEST(HostileEngine, RanksThatShareADeviceTrainWithTheSameBits) {
  const ModelSpec model = small_model("llama");
  const Plan plan = device_plan(2);
  const EngineRun usual = run_in_threads(model, plan, 2, false, Feeds::kStandin);
  const EventGraph graph = build_training_step(model, plan);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto gpu = std::make_shared<HostileGpu>(seed);
    std::barrier all(2);
    std::array<std::string, 2> hashes;
    for_each_rank(2, [&](World& world) {
      const auto device = hostile_accelerator(gpu);
      Engine engine(model, plan, graph, world, {.device = device.get()});
      engine.initialise();
      for (int s = 0; s < 2; ++s) {
        std::vector<MicroBatch> batches(static_cast<std::size_t>(plan.batch.accumulation));
        for (std::size_t m = 0; m < batches.size(); ++m) {
          batches[m] =
              batch_of(model, plan,
                       s * microbatches_of_step(plan) +
                           global_microbatch(plan, world.rank(), static_cast<std::int64_t>(m)),
                       1.0 / static_cast<double>(microbatches_of_step(plan)));
        }
        engine.step(s + 1, batches, nullptr);
      }
      hashes[static_cast<std::size_t>(world.rank())] = engine.parameter_hash();
      all.arrive_and_wait();  // nobody gives back what another may still read
    });
    EXPECT_EQ(hashes[0], usual.hash) << "seed " << seed;
  }
}

// --- planted faults ---

// What the planted fault did, empty where nobody noticed: refused, or other bits.
std::string noticed(const Trained& usual, const std::function<Trained()>& faulty) {
  try {
    return faulty() == usual ? "" : "other bits";
  } catch (const std::exception& error) {
    return error.what();
  }
}

using Pair = std::pair<EventKind, EventKind>;  // rows of the first kind wait for some of the second

// The step without those waits.
EventGraph without(EventGraph graph, const Pair& pair) {
  std::vector<EventId> waits;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto begin = static_cast<std::uint32_t>(waits.size());
    for (const EventId awaited : graph.waits_of(static_cast<EventId>(i))) {
      if (Pair{graph.rows[i].kind, graph.rows[static_cast<std::size_t>(awaited)].kind} != pair) {
        waits.push_back(awaited);
      }
    }
    graph.rows[i].waits_begin = begin;
    graph.rows[i].wait_count = static_cast<decltype(Row::wait_count)>(waits.size() - begin);
  }
  graph.waits = std::move(waits);
  return graph;
}

// Rows that no longer wait for what they need: each kind of need that a step has.
TEST(HostileFaults, MissingWaitsAreFound) {
  using enum EventKind;
  struct Faulty {
    void (*change)(Plan&);
    std::vector<Pair> pairs;
  };
  const Faulty cases[] = {
      {[](Plan&) {},
       {{kAllGather, kForward},  // into the slot of a unit that is still used
        {kForward, kAllGather},
        {kBackward, kAllGather},
        {kBackward, kReduceScatter},  // into gradients that are still sent
        {kReduceScatter, kBackward},
        {kGradNorm, kAccumulate},
        {kAllReduce, kGradNorm},
        {kGradScale, kAllReduce}}},
      {[](Plan& p) {
         p.mesh = {4, 2};
       },
       {{kAllReduce, kAccumulate}, {kGradNorm, kAllReduce}}},
      {[](Plan& p) {
         p.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
       },
       {{kAllGather, kReshard}}},
      {[](Plan& p) { p.offload = Offload::kCpu; },
       {{kAllGather, kHostToDevice},
        {kHostToDevice, kForward},
        {kHostToDevice, kDeviceToHost},
        {kReduceScatter, kHostToDevice},
        {kReduceScatter, kDeviceToHost},
        {kDeviceToHost, kReduceScatter},
        {kDeviceToHost, kAccumulate}}},
  };
  const ModelSpec model = small_model("llama");
  int planted = 0, found = 0;
  for (const Faulty& c : cases) {
    Plan plan = device_plan(8);
    c.change(plan);
    const EventGraph whole = build_training_step(model, plan);
    const Trained usual = train(*host_accelerator(), model, plan, whole, 2);
    for (const Pair& pair : c.pairs) {
      const EventGraph faulty = without(whole, pair);
      ASSERT_LT(faulty.waits.size(), whole.waits.size());
      const auto device = hostile_accelerator(std::make_shared<HostileGpu>(0));
      const std::string notice =
          noticed(usual, [&] { return train(*device, model, plan, faulty, 2); });
      EXPECT_NE(notice, "") << to_string(pair.first) << " without waiting for "
                            << to_string(pair.second);
      ++planted;
      found += notice.empty() ? 0 : 1;
    }
  }
  std::cout << "missing waits: " << found << " of " << planted << " found\n";
}

// Every single wait of a step is forgotten once. What the clocks do not refuse then orders nothing
// that is in memory: the bits are the same in whatever order.
TEST(HostileFaults, EveryWaitIsFoundOrOrdersNothing) {
  const ModelSpec model = small_model("llama");
  const Plan plan = device_plan(8);
  const EventGraph graph = build_training_step(model, plan);
  const Trained usual = train(*host_accelerator(), model, plan, graph, 3);
  const auto whole = std::make_shared<HostileGpu>(0);
  train(*hostile_accelerator(whole), model, plan, graph, 3);
  int found = 0, ordered_otherwise = 0, orders_nothing = 0;
  for (std::int64_t w = whole->waits() / 3; w < 2 * whole->waits() / 3; ++w) {
    const auto run = [&](std::uint64_t seed) {
      const auto gpu = std::make_shared<HostileGpu>(seed);
      gpu->forget_wait(w);
      const auto device = hostile_accelerator(gpu);
      const std::string notice =
          noticed(usual, [&] { return train(*device, model, plan, graph, 3); });
      if (notice.empty() && seed == 0) ++(gpu->was_needed() ? orders_nothing : ordered_otherwise);
      return notice;
    };
    if (const std::string notice = run(0); !notice.empty()) {
      EXPECT_NE(notice.find("no wait orders them"), std::string::npos) << notice;
      ++found;
    } else {
      EXPECT_EQ(run(2), "") << "wait " << w;
    }
  }
  EXPECT_GT(found, 40);
  std::cout << "waits of a step: " << found << " found, " << ordered_otherwise
            << " ordered otherwise, " << orders_nothing << " order nothing in memory\n";
}

}  // namespace
}  // namespace foreshard
