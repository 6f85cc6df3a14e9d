// The engine's device half on a stand-in as hostile as a GPU: the same bits as on the one that does
// everything at once, whatever the order; and faults that are planted are found.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <functional>
#include <iostream>

#include "exec/comm/rank_threads.h"
#include "exec/device/host_accelerator.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "sim/graph/training_step.h"
#include "tests/exec/device/hostile_accelerator.h"
#include "tests/exec/device/planted_faults.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard::hostile_test {
namespace {

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
  const Trained usual = train_alone(*host_accelerator(), plan, graph, model, {steps, c.replays});
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto device = hostile_accelerator(std::make_shared<HostileGpu>(seed));
    EXPECT_EQ(train_alone(*device, plan, graph, model, {steps, c.replays}), usual) << "seed " << seed;
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
    {"reduced_in_bf16", "llama", 8, 1, false, [](Plan& p) { p.param_dtype = p.reduce_dtype = DType::kBf16; }},
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
    {"kept", "llama", 8, 1, false, [](Plan& p) { p.accumulation = AccumulationMode::kKeepUnsharded; }},
    {"sgd", "llama", 8, 1, false, [](Plan& p) { p.optimizer.kind = Optimizer::Kind::kSgd; }},
    {"offload", "llama", 8, 1, false, [](Plan& p) { p.offload = Offload::kCpu; }},
    {"replayed", "llama", 8, 1, true},
    {"replayed_alone", "llama", 1, 1, true},
    {"replayed_recompute", "gpt2", 8, 1, true, [](Plan& p) { p.recompute.value = Recompute::kFull; }},
};
INSTANTIATE_TEST_SUITE_P(Hostile, HostilePlans, testing::ValuesIn(kCases), [](const auto& c) { return c.param.name; });

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
        std::vector<MicroBatch> batches(at(plan.batch.accumulation));
        for (std::size_t m = 0; m < batches.size(); ++m) {
          batches[m] = batch_of(model, plan,
              s * microbatches_of_step(plan) + global_microbatch(plan, world.rank(), static_cast<std::int64_t>(m)),
              1.0 / static_cast<double>(microbatches_of_step(plan)));
        }
        engine.step(s + 1, batches, nullptr);
      }
      hashes[at(world.rank())] = engine.parameter_hash();
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

TEST(HostileFaults, MissingWaitsAreFound) {
  const ModelSpec model = small_model("llama");
  const std::vector<MissingWait> planted = missing_waits(model);
  std::size_t found = 0;
  for (const MissingWait& c : planted) {
    ASSERT_LT(c.faulty.waits.size(), c.whole.waits.size());
    const Trained usual = train_alone(*host_accelerator(), c.plan, c.whole, model, {2});
    const auto device = hostile_accelerator(std::make_shared<HostileGpu>(0));
    const std::string notice = noticed(usual, [&] { return train_alone(*device, c.plan, c.faulty, model, {2}); });
    EXPECT_NE(notice, "") << c.name;
    found += notice.empty() ? 0 : 1;
  }
  std::cout << "missing waits: " << found << " of " << planted.size() << " found\n";
}

// Every single wait of a step is forgotten once. What the clocks do not refuse then orders nothing
// that is in memory: the bits are the same in whatever order.
TEST(HostileFaults, EveryWaitIsFoundOrOrdersNothing) {
  const ModelSpec model = small_model("llama");
  const Plan plan = device_plan(8);
  const EventGraph graph = build_training_step(model, plan);
  const Trained usual = train_alone(*host_accelerator(), plan, graph, model, {3});
  const auto whole = std::make_shared<HostileGpu>(0);
  train_alone(*hostile_accelerator(whole), plan, graph, model, {3});
  int found = 0, ordered_otherwise = 0, orders_nothing = 0;
  for (std::int64_t w = whole->waits() / 3; w < 2 * whole->waits() / 3; ++w) {
    const auto run = [&](std::uint64_t seed) {
      const auto gpu = std::make_shared<HostileGpu>(seed);
      gpu->forget_wait(w);
      const auto device = hostile_accelerator(gpu);
      const std::string notice = noticed(usual, [&] { return train_alone(*device, plan, graph, model, {3}); });
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
  std::cout << "waits of a step: " << found << " found, " << ordered_otherwise << " ordered otherwise, "
            << orders_nothing << " order nothing in memory\n";
}

}
}
