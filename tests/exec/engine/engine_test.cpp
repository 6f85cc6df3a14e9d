// The central invariant: a plan never changes the numbers within one reduction order.
//
// Every run here trains on the same 4 x 2 sequences per step, in debug mode: gradients that were
// not written, or memory that was free, show as NaN. Equal means equal bits: a hash of the
// parameters, and every step's loss and gradient norm.
#include "exec/engine/engine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/exec/engine/engine_runs.h"
#include "tests/exec/engine/expect_same.h"

namespace foreshard::engine_test {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kBlocks = 3;  // of small_model

enum class Numbers { kFp32, kBf16, kBf16ReducedInBf16, kBf16Stored };

void set_numbers(Plan& plan, Numbers numbers) {
  if (numbers == Numbers::kFp32) return;
  plan.param_dtype = DType::kBf16;
  if (numbers == Numbers::kBf16ReducedInBf16) plan.reduce_dtype = DType::kBf16;
  if (numbers == Numbers::kBf16Stored) plan.master_dtype = DType::kBf16;
}

struct Knob {
  std::string name;
  std::function<void(Plan&)> set;
};

// Every value of every knob that must not show in the numbers, one at a time.
std::vector<Knob> all_knobs() {
  std::vector<Knob> knobs = {{"as it is", [](Plan&) {}}};
  for (const std::int64_t ahead : {0, 1, 2}) {
    knobs.push_back({"prefetch " + std::to_string(ahead), [ahead](Plan& plan) { plan.prefetch = {ahead, ahead}; }});
  }
  const auto add = [&](const char* name, auto set) { knobs.push_back({name, set}); };
  add("reshard never", [](Plan& plan) { plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0}; });
  add("reshard in groups of 2", [](Plan& plan) {
    if (plan.mesh.shard == 4) plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
  });
  add("reshard unit by unit", [](Plan& plan) {
    plan.reshard_after_forward.ranges = {{1, 2, {Reshard::Kind::kNever, 0}}};
  });
  add("recompute full", [](Plan& plan) { plan.recompute.value = Recompute::kFull; });
  add("recompute selective", [](Plan& plan) { plan.recompute.value = Recompute::kSelective; });
  add("recompute every 2", [](Plan& plan) { plan.recompute = recompute_every(2, kBlocks); });
  add("two layers per unit", [](Plan& plan) { plan.units.layers_per_unit = 2; });
  add("embedding in the root", [](Plan& plan) { plan.units.embedding = UnitPlacement::kRoot; });
  add("head in the root", [](Plan& plan) { plan.units.head = UnitPlacement::kRoot; });
  add("both in the root", [](Plan& plan) { plan.units.embedding = plan.units.head = UnitPlacement::kRoot; });
  add("head with norm", [](Plan& plan) { plan.units.head = UnitPlacement::kWithNorm; });
  add("two reduce-scatter buffers", [](Plan& plan) { plan.reduce_scatter_buffers = 2; });
  add("separate communicators", [](Plan& plan) { plan.communicators = Communicators::kSeparate; });
  add("many at once", [](Plan& plan) {
    plan.prefetch = {2, 0};
    plan.recompute.value = Recompute::kFull;
    plan.units = {2, UnitPlacement::kRoot, UnitPlacement::kWithNorm};
    plan.reduce_scatter_buffers = 2;
    plan.communicators = Communicators::kSeparate;
    plan.reshard_after_forward.ranges = {{2, 2, {Reshard::Kind::kNever, 0}}};
  });
  return knobs;
}

EngineRun reference_of(const ModelSpec& model, Numbers numbers) {
  Plan plan = small_plan(1);
  set_numbers(plan, numbers);
  return run_in_threads(model, fitted(plan, model), kSteps);
}

// A comparison of bits says nothing where nothing happens.
void expect_training(const EngineRun& run) {
  ASSERT_EQ(run.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_GT(run.norms.front(), 0);
  EngineRun untrained = {.parameters = run.initial};
  EXPECT_GT(relative_difference(run, untrained), 0.1);
}

void check_all_knobs(const ModelSpec& model, Numbers numbers) {
  const EngineRun reference = reference_of(model, numbers);
  expect_training(reference);
  for (const std::int64_t ranks : {1, 2, 4}) {
    for (const Knob& knob : all_knobs()) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + knob.name);
      Plan plan = small_plan(ranks);
      set_numbers(plan, numbers);
      knob.set(plan);
      expect_same(run_in_threads(model, fitted(plan, model), kSteps), reference);
    }
  }
}

TEST(Engine, EveryKnobGivesTheSameBitsInFp32) { check_all_knobs(small_model("llama"), Numbers::kFp32); }

TEST(Engine, EveryKnobGivesTheSameBitsInBf16) { check_all_knobs(small_model("llama"), Numbers::kBf16); }

// Each micro-batch's gradient is rounded to bf16; they are added in fp32.
TEST(Engine, GradientsReducedInBf16HaveBitsOfTheirOwn) {
  const ModelSpec model = small_model("llama");
  const EngineRun fp32 = reference_of(model, Numbers::kBf16);
  const EngineRun bf16 = reference_of(model, Numbers::kBf16ReducedInBf16);
  EXPECT_NE(bf16.hash, fp32.hash);
  expect_training(bf16);
  for (const std::int64_t ranks : {1, 2, 4}) {
    for (const std::size_t knob : {0, 1, 4, 7, 14, 17}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + all_knobs()[knob].name);
      Plan plan = small_plan(ranks);
      set_numbers(plan, Numbers::kBf16ReducedInBf16);
      all_knobs()[knob].set(plan);
      expect_same(run_in_threads(model, fitted(plan, model), kSteps), bf16);
    }
  }
}

struct Family {
  const char* name;
  bool tied;
};

class EngineFamilies : public testing::TestWithParam<Family> {};

// Fused projections, transposed weights, learned positions, biases, layer norms, gelu, relu, norms
// of q and k, a table that is head as well.
TEST_P(EngineFamilies, GiveTheSameBits) {
  const ModelSpec model = small_model(GetParam().name, GetParam().tied);
  const auto knobs = all_knobs();
  for (const Numbers numbers : {Numbers::kFp32, Numbers::kBf16}) {
    const EngineRun reference = reference_of(model, numbers);
    expect_training(reference);
    for (const auto& [ranks, knob] : std::vector<std::pair<std::int64_t, std::size_t>>{
             {1, 7}, {1, 17}, {2, 0}, {2, 8}, {2, 13}, {4, 4}, {4, 5}, {4, 14}, {4, 17}}) {
      SCOPED_TRACE(
          std::to_string(ranks) + " ranks, " + knobs[knob].name + (numbers == Numbers::kFp32 ? ", fp32" : ", bf16"));
      Plan plan = small_plan(ranks);
      set_numbers(plan, numbers);
      knobs[knob].set(plan);
      expect_same(run_in_threads(model, fitted(plan, model), kSteps), reference);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineFamilies,
    testing::Values(Family{"llama", true}, Family{"gpt2", true}, Family{"gpt3", false}, Family{"opt", true},
        Family{"qwen3", true}, Family{"qwen3", false}),
    [](const auto& param) { return std::string(param.param.name) + (param.param.tied ? "Tied" : ""); });

TEST(Engine, OtherOptimizersGiveTheSameBits) {
  const ModelSpec model = small_model("llama");
  const std::vector<Knob> kinds = {
      {"sgd", [](Plan& plan) { plan.optimizer.kind = Optimizer::Kind::kSgd; }},
      {"bf16 state", [](Plan& plan) { plan.optimizer.state = DType::kBf16; }},
      {"no clipping", [](Plan& plan) { plan.optimizer.clip_norm.reset(); }},
      {"bf16 master", [](Plan& plan) { set_numbers(plan, Numbers::kBf16Stored); }},
  };
  for (const Knob& kind : kinds) {
    Plan one = small_plan(1);
    kind.set(one);
    const EngineRun reference = run_in_threads(model, one, kSteps);
    EXPECT_NE(reference.hash, reference_of(model, Numbers::kFp32).hash) << kind.name;
    for (const std::int64_t ranks : {2, 4}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + kind.name);
      Plan plan = small_plan(ranks);
      kind.set(plan);
      expect_same(run_in_threads(model, fitted(plan, model), kSteps), reference);
    }
  }
}

// Without debug mode nothing is filled or checked; the numbers are the same.
TEST(Engine, DebugModeChangesNothing) {
  const ModelSpec model = small_model("llama");
  expect_same(run_in_threads(model, small_plan(2), kSteps, false), run_in_threads(model, small_plan(2), kSteps, true));
}

// Four slots for three units: the second micro-batch's gradients of layers 0 and 1 begin in a slot of their own when
// the reduction of layer 2 ends, which is when the first's are checked and reduced.
TEST(Engine, SlotsOfEarlierMicroBatchesStayWhileTheyAreReduced) {
  const ModelSpec model = small_model("llama");
  Plan plan = small_plan(2);
  plan.units = {2, UnitPlacement::kRoot, UnitPlacement::kWithNorm};
  plan.reduce_scatter_buffers = 3;
  plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  ASSERT_EQ(plan.batch.accumulation, 2);
  const Time slow = Time::ns(5'000'000);
  const int steps = 20;
  expect_same(run_in_threads(model, plan, steps, true, Feeds::kCpu, slow), run_in_threads(model, small_plan(1), steps));
}

TEST(Engine, AnotherSeedGivesOtherBits) {
  Plan plan = small_plan(1);
  plan.seed = 2;
  const ModelSpec model = small_model("llama");
  EXPECT_NE(run_in_threads(model, plan, 1).hash, run_in_threads(model, small_plan(1), 1).hash);
}

TEST(Engine, SaysWhatItDoesNotRun) {
  const auto problem = [](const ModelSpec& model, const std::function<void(Plan&)>& set) {
    Plan plan = small_plan(1);
    set(plan);
    return find_engine_problem(model, plan).value_or("none");
  };
  const ModelSpec llama = small_model("llama");
  EXPECT_EQ(problem(llama, [](Plan&) {}), "none");
  const ModelSpec tied = small_model("llama", true);
  EXPECT_NE(problem(tied, [](Plan&) {}).find("nearest plan: units.embedding: root"), std::string::npos);
  EXPECT_EQ(find_engine_problem(tied, fitted(small_plan(1), tied)), std::nullopt);
  EXPECT_NE(problem(llama, [](Plan& plan) { plan.param_dtype = DType::kFp16; }).find("fp16"), std::string::npos);
  EXPECT_NE(problem(llama, [](Plan& plan) { plan.reduce_dtype = DType::kBf16; }).find("fp32"), std::string::npos);
  EXPECT_NE(problem(llama, [](Plan& plan) { plan.runtime = {}; }).find("runtime: native"), std::string::npos);
  EXPECT_NE(problem(small_model("mpt"), [](Plan&) {}).find("ALiBi"), std::string::npos);
}

// --- random plans ---

template <typename T>
T one_of(std::vector<T> values) {
  return *rc::gen::elementOf(values);
}

Plan random_plan() {
  const std::int64_t ranks = one_of<std::int64_t>({1, 2, 4});
  Plan plan = small_plan(ranks);
  plan.prefetch = {one_of<std::int64_t>({Prefetch::kImplicit, 0, 1, 2, 3}), one_of<std::int64_t>({0, 1, 2, 3})};
  plan.units = {one_of<std::int64_t>({1, 2, 3}), one_of<UnitPlacement>({UnitPlacement::kOwn, UnitPlacement::kRoot}),
      one_of<UnitPlacement>({UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm})};
  plan.reduce_scatter_buffers = one_of<std::int64_t>({1, 2, 3});
  plan.communicators = one_of<Communicators>({Communicators::kShared, Communicators::kSeparate});
  const auto reshard = [&]() -> Reshard {
    const auto kind = one_of<Reshard::Kind>({Reshard::Kind::kAlways, Reshard::Kind::kNever, Reshard::Kind::kGroup});
    if (kind == Reshard::Kind::kGroup) {
      if (ranks != 4) return {};
      return {kind, 2};
    }
    return {kind, 0};
  };
  plan.reshard_after_forward.value = reshard();
  if (*rc::gen::arbitrary<bool>()) plan.reshard_after_forward.ranges = {{0, one_of<std::int64_t>({0, 1}), reshard()}};
  const auto recompute = [] { return one_of<Recompute>({Recompute::kNone, Recompute::kFull, Recompute::kSelective}); };
  plan.recompute.value = recompute();
  const std::int64_t block = one_of<std::int64_t>({0, 1, 2});
  plan.recompute.ranges = {{block, block, recompute()}};
  return plan;
}

// RC_PARAMS=max_success=N draws N / 10 plans; without it, six.
int draws() {
  const char* const asked = std::getenv("RC_PARAMS");
  const std::string text = asked == nullptr ? "" : asked;
  const std::size_t at = text.find("max_success=");
  return at == std::string::npos ? 6 : std::max(1, std::atoi(text.c_str() + at + 12) / 10);
}

RC_GTEST_PROP(EngineProperty, RandomPlansGiveTheSameBits, ()) {
  static std::map<std::string, EngineRun> references;
  static int left = draws();
  if (left-- <= 0) return;  // a draw costs tens of milliseconds, not microseconds
  const auto family = one_of<std::string>({"llama", "gpt2", "opt", "qwen3"});
  const bool tied = *rc::gen::arbitrary<bool>();
  const auto numbers = one_of<Numbers>({Numbers::kFp32, Numbers::kBf16});
  const ModelSpec model = small_model(family, tied);
  const std::string key = family + (tied ? " tied " : " ") + std::to_string(static_cast<int>(numbers));
  if (!references.contains(key)) references[key] = reference_of(model, numbers);
  Plan plan = random_plan();
  set_numbers(plan, numbers);
  plan = fitted(plan, model);
  RC_LOG() << family << (tied ? ", tied\n" : "\n") << to_yaml(plan);
  const EngineRun run = run_in_threads(model, plan, kSteps);
  RC_ASSERT(run.hash == references[key].hash);
  RC_ASSERT(run.losses == references[key].losses);
  RC_ASSERT(run.norms == references[key].norms);
}

}
}
