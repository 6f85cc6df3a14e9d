#include "sim/spec/checks/plan_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

Plan good_plan() {
  Plan plan = {.model = "small", .cluster = "64xh100"};
  plan.batch.sequence = 4096;
  plan.mesh = {8, 8};
  return plan;
}

// What check() says of the good plan with one change.
Refusal refused(const std::function<void(Plan&)>& change, const SmallModel& model = {}) {
  Plan plan = good_plan();
  change(plan);
  Cluster cluster = cluster_of_gpus(64);
  cluster.gpu.peak_fp8 = FlopsPerSecond(2e15);
  return refusal_of([&] { check(plan, small_model(model), cluster); });
}

void expect_refused(const Refusal& refusal, int exit_code, std::string_view says) {
  EXPECT_EQ(refusal.exit_code, exit_code);
  EXPECT_NE(refusal.text.find(says), std::string::npos) << refusal.text;
}

TEST(PlanCheck, AcceptsWhatIsRight) {
  EXPECT_EQ(refused([](Plan&) {}).text, "");
  EXPECT_EQ(refused([](Plan& p) { p.param_dtype = DType::kFp16; }).text, "");
  EXPECT_EQ(refused([](Plan& p) { p.reshard_after_forward.value = {Reshard::Kind::kGroup, 4}; }).text, "");
  EXPECT_EQ(refused([](Plan& p) { p.batch.sequence = 1 << 20; }).text, "");
  EXPECT_EQ(refused([](Plan& p) { p.prefetch = {4, 3}; }).text, "");
}

// _fsdp_param.py's all_gather_inputs raises for a tensor subclass in a smaller group.
TEST(PlanCheck, GathersInFp8WhereTorchaoDoes) {
  const auto gathers = [](Plan& p) {
    p.float8 = Float8::kTensorwise;
    p.float8_all_gather = true;
  };
  EXPECT_EQ(refused(gathers).text, "");
  expect_refused(refused([&](Plan& p) {
    gathers(p);
    p.float8 = Float8::kRowwise;
  }),
      3, "float8_all_gather: only tensorwise scaling gathers in fp8");
  expect_refused(refused([&](Plan& p) {
    gathers(p);
    p.reshard_after_forward.value = {Reshard::Kind::kGroup, 4};
  }),
      6, "reshard_after_forward: fsdp2@2.15 does not gather in fp8 from smaller groups");
  expect_refused(refused([&](Plan& p) {
    gathers(p);
    p.runtime = {RuntimeKind::kFsdp1, "2.11"};
    p.mesh = {64, 1};
  }),
      6, "float8_all_gather: fsdp1@2.11 gathers no tensor subclasses");
}

TEST(PlanCheck, NamesBothProductsOfTheMeshAndWhatFits) {
  expect_refused(refused([](Plan& p) {
    p.mesh = {8, 4};
  }),
      3,
      "mesh.shard: shard 8 x replicate 4 = 32 ranks, but the cluster has 64 GPUs; expected shard x replicate = 64, for "
      "example shard 8 x replicate 8 or shard 16 x replicate 4");
  expect_refused(refused([](Plan& p) {
    p.mesh = {7, 9};
  }),
      3, "for example shard 4 x replicate 16 or shard 8 x replicate 8");
  expect_refused(refused([](Plan& p) { p.mesh = {0, 64}; }), 3, "mesh.shard: 0 is out of range");
}

TEST(PlanCheck, RefusesWhatOverflows) {
  expect_refused(refused([](Plan& p) {
    p.batch = {1 << 24, 1 << 20, 1 << 20};
  }),
      3, "batch: the tokens of a step are too many");
}

TEST(PlanCheck, RefusesSequencesBeyondLearnedPositionsOnly) {
  const SmallModel learned{.positions = 2048, .has_learned_positions = true};
  expect_refused(refused([](Plan&) {}, learned), 3,
      "batch.sequence: 4096 exceeds the 2048 learned positions of small; expected at most 2048");
  EXPECT_EQ(refused([](Plan&) {}, {.positions = 2048}).text, "");
  const std::vector<std::string> texts = warnings(good_plan(), small_model({.positions = 2048}), cluster_of_gpus(64));
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(texts[0], "batch.sequence 4096 exceeds the 2048 positions small was made for");
}

TEST(PlanCheck, RefusesReshardGroupsThatAreNoProperPart) {
  const auto with_group = [](std::int64_t group) {
    return refused([=](Plan& p) { p.reshard_after_forward.value = {Reshard::Kind::kGroup, group}; });
  };
  expect_refused(with_group(3), 3, "expected a proper divisor of 8, for example 2 or 4");
  expect_refused(with_group(1), 3, "did you mean never?");
  expect_refused(with_group(8), 3, "did you mean always?");
  expect_refused(with_group(16), 3, "no proper part of mesh.shard 8");
  expect_refused(refused([](Plan& p) {
    p.reshard_after_forward.ranges = {{0, 1, {Reshard::Kind::kGroup, 5}}};
  }),
      3, "a group of 5");
}

TEST(PlanCheck, RefusesRangesBeyondUnitsAndBlocks) {
  // root (the norm), embedding, 32 blocks, head
  EXPECT_EQ(unit_count(good_plan(), small_model()), 35);
  EXPECT_EQ(refused([](Plan& p) { p.reshard_after_forward.ranges = {{0, 34, {}}}; }).text, "");
  expect_refused(refused([](Plan& p) {
    p.reshard_after_forward.ranges = {{0, 35, {}}};
  }),
      3, "reshard_after_forward: units 0-35 exceed the 35 there are; expected numbers from 0 to 34");
  expect_refused(refused([](Plan& p) { p.reshard_after_forward.ranges = {{3, 2, {}}}; }), 3, "no range");
  EXPECT_EQ(refused([](Plan& p) { p.recompute.ranges = {{31, 31, Recompute::kFull}}; }).text, "");
  expect_refused(refused([](Plan& p) {
    p.recompute.ranges = {{32, 32, Recompute::kFull}};
  }),
      3, "recompute: layers 32-32 exceed the 32 there are");
  expect_refused(refused([](Plan& p) { p.units.layers_per_unit = 33; }), 3, "exceeds the 32 blocks");
}

TEST(PlanCheck, CountsUnits) {
  const auto count = [](Units units) {
    Plan plan = good_plan();
    plan.units = units;
    return unit_count(plan, small_model());
  };
  using enum UnitPlacement;
  EXPECT_EQ(count({1, kOwn, kWithNorm}), 34);
  EXPECT_EQ(count({1, kRoot, kRoot}), 33);
  EXPECT_EQ(count({5, kRoot, kOwn}), 9);
  EXPECT_EQ(count({32, kRoot, kWithNorm}), 3);
}

TEST(PlanCheck, SaysWhatFsdp2CannotExpress) {
  expect_refused(refused([](Plan& p) { p.prefetch.forward = 0; }), 6, "nearest plan: prefetch.forward: implicit");
  expect_refused(refused([](Plan& p) { p.prefetch.backward = 0; }), 6, "nearest plan: prefetch.backward: 1");
  const auto version = [](const char* text) { return refused([=](Plan& p) { p.runtime.version = text; }); };
  const std::string newest = std::string("nearest plan: fsdp2@") + newest_version(RuntimeKind::kFsdp2);
  expect_refused(version("2.99"), 6, "runtime: version '2.99' of fsdp2 is not modelled; " + newest);
  expect_refused(version("2.3.1"), 6, "nearest plan: fsdp2@2.4");
  expect_refused(version("1.13"), 6, "nearest plan: fsdp2@2.4");
  expect_refused(version("3.0"), 6, newest);
  expect_refused(version("2.11.0.1"), 6, "nearest plan: fsdp2@2.11");
  for (const char* text : {"2.4", "2.5.1", "2.9", "2.11.0", "2.15"}) EXPECT_EQ(version(text).text, "") << text;
  const auto megatron = [](const char* text) {
    return refused([=](Plan& p) { p.runtime = {RuntimeKind::kMegatron, text}; });
  };
  expect_refused(megatron("0.6"), 6, "nearest plan: megatron@0.20");
  EXPECT_EQ(megatron(kLocalMegatron).text, "");
}

TEST(PlanCheck, NativeExpressesAllOfIt) {
  const auto native = [](Plan& p) {
    p.runtime = {RuntimeKind::kNative, "1"};
    p.prefetch = {0, 0};
    p.reduce_scatter_buffers = 4;
    p.communicators = Communicators::kSeparate;
  };
  EXPECT_EQ(refused(native).text, "");
  // One parameter in two units nobody can run.
  expect_refused(refused(native, {.is_tied = true}), 3, "units.embedding=root and units.head=root");
  expect_refused(refused([](Plan& p) { p.runtime = {RuntimeKind::kNative, "2"}; }), 6, "native@1");
}

// A decoder looks the encoder's table up, too.
TEST(PlanCheck, GradientsOfASharedTableAreKeptByTheRootAlone) {
  ModelSpec model = small_model();
  model.order.push_back({0, "decoder_embedding"});
  model.order.back().same_as = 0;
  Plan plan = good_plan();
  plan.units.embedding = UnitPlacement::kOwn;
  plan.batch.accumulation = 2;
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  const auto refusal = [&] { return refusal_of([&] { check(plan, model, cluster_of_gpus(64)); }); };
  expect_refused(refusal(), 6, "accumulation.mode: reduce_each, or units.embedding: root");
  plan.accumulation = AccumulationMode::kReduceEach;
  EXPECT_EQ(refusal().text, "");
}

TEST(PlanCheck, RefusesTiedEmbeddingsInTwoUnits) {
  const SmallModel tied{.is_tied = true};
  expect_refused(refused([](Plan&) {}, tied), 3, "units.embedding=root and units.head=root");
  expect_refused(refused([](Plan& p) { p.units.embedding = UnitPlacement::kRoot; }, tied), 3, "units.head: ");
  EXPECT_EQ(refused(
                [](Plan& p) {
                  p.units.embedding = UnitPlacement::kRoot;
                  p.units.head = UnitPlacement::kRoot;
                },
                tied)
                .text,
      "");
}

// Models with one run in tests/preset_cases.
TEST(PlanCheck, ALossWithTheHeadsProductNeedsAHeadThatIsGathered) {
  const auto fuses = [](Plan& p) {
    p.loss.kind = Loss::Kind::kFusedLinear;
    p.units.head = UnitPlacement::kRoot;
  };
  expect_refused(refused(fuses), 3, "loss: small has no linear head over every token");
  expect_refused(refused([&](Plan& p) {
    fuses(p);
    p.units.head = UnitPlacement::kOwn;
  }),
      3, "units.head: a loss with the head's product in it calls no head");
}

TEST(PlanCheck, WarnsOfWhatIsHardlyMeant) {
  Plan plan = good_plan();
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  plan.param_dtype = DType::kFp16;
  plan.units.layers_per_unit = 5;
  EXPECT_EQ(warnings(plan, small_model(), cluster_of_gpus(64)).size(), 3U);
  EXPECT_TRUE(warnings(good_plan(), small_model(), cluster_of_gpus(64)).empty());
}

TEST(PlanCheck, FindsNearestDivisors) {
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(nearest_divisors(64, 7), (List{4, 8}));
  EXPECT_EQ(nearest_divisors(64, 8), (List{8}));
  EXPECT_EQ(nearest_divisors(64, 100), (List{64}));
  EXPECT_EQ(nearest_divisors(1, 1), (List{1}));
  EXPECT_EQ(nearest_divisors(97, 5), (List{1, 97}));
}

TEST(PlanCheck, RecognisesEveryK) {
  for (const std::int64_t blocks : {2, 3, 32, 80}) {
    for (std::int64_t k = 2; k <= blocks + 1; ++k) {
      const RangedPolicy<Recompute> policy = recompute_every(k, blocks);
      const std::optional<std::int64_t> found = every_k(policy);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(recompute_every(*found, blocks), policy) << k << " of " << blocks;
    }
  }
  EXPECT_EQ(every_k({Recompute::kFull, {}}), std::nullopt);
  EXPECT_EQ(every_k({Recompute::kNone, {{0, 0, Recompute::kFull}, {2, 2, Recompute::kFull}}}), std::nullopt);
}

TEST(PlanCheck, KnowsSizes) {
  EXPECT_EQ(size_of(DType::kBf16), 2);
  EXPECT_EQ(size_of(DType::kFp16), 2);
  EXPECT_EQ(size_of(DType::kFp32), 4);
}

}
}
