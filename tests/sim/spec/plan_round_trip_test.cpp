// A plan written as YAML or JSON reads back as itself.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/spec/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlocks = 24;

template <typename T>
T pick(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}
std::int64_t between(std::int64_t first, std::int64_t last) {
  return *rc::gen::inRange<std::int64_t>(first, last + 1);
}

template <typename T, typename Make>
RangedPolicy<T> random_policy(std::int64_t count, Make make) {
  RangedPolicy<T> policy{make(), {}};
  for (std::int64_t n = between(0, 4); n > 0; --n) {
    const std::int64_t first = between(0, count - 1);
    policy.ranges.push_back({first, between(first, count - 1), make()});
  }
  return policy;
}

Reshard random_reshard(std::int64_t shard) {
  std::vector<Reshard> choices = {{Reshard::Kind::kAlways, 0}, {Reshard::Kind::kNever, 0}};
  for (std::int64_t group = 2; group < shard; group *= 2) {
    choices.push_back({Reshard::Kind::kGroup, group});
  }
  return *rc::gen::elementOf(choices);
}

// A plan that check() accepts for kBlocks blocks and shard x replicate GPUs.
Plan random_plan() {
  const auto dtype = [] { return pick({DType::kBf16, DType::kFp16, DType::kFp32}); };
  Plan plan;
  plan.model = *rc::gen::nonEmpty<std::string>();
  // What is not UTF-8 cannot stand in a file.
  for (char& c : plan.model)
    c = static_cast<char>(c & 0x7f) == '\0' ? '0' : static_cast<char>(c & 0x7f);
  plan.cluster = pick<std::string>({"64xh100", "a b.yaml", "1e5", "no", "~", "#x", "- a", "a: b"});
  const bool is_native = pick({false, true});
  plan.runtime = is_native ? Runtime{RuntimeKind::kNative, "1"} : Runtime{};
  plan.batch = {between(1, 1 << 20), between(1, 64), between(1, 64)};
  plan.mesh = {std::int64_t{1} << between(0, 10), between(1, 100)};
  plan.units = {between(1, kBlocks), pick({UnitPlacement::kOwn, UnitPlacement::kRoot}),
                pick({UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm})};
  plan.reshard_after_forward =
      random_policy<Reshard>(unit_count(plan, small_model({.blocks = kBlocks})),
                             [&] { return random_reshard(plan.mesh.shard); });
  plan.prefetch = {pick({Prefetch::kImplicit, std::int64_t{1}, between(1, 1024)}),
                   between(is_native ? 0 : 1, 1024)};
  if (is_native && pick({false, true})) plan.prefetch.forward = 0;
  plan.recompute = pick({false, true})
                       ? recompute_every(between(1, kBlocks + 5), kBlocks)
                       : random_policy<Recompute>(kBlocks, [] {
                           return pick({Recompute::kNone, Recompute::kFull, Recompute::kSelective});
                         });
  plan.param_dtype = dtype();
  plan.reduce_dtype = dtype();
  plan.master_dtype = dtype();
  plan.accumulation = pick({AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded});
  plan.optimizer.kind = pick({Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd});
  plan.optimizer.implementation =
      pick({Optimizer::Implementation::kForeach, Optimizer::Implementation::kFused,
            Optimizer::Implementation::kLoop});
  plan.optimizer.state = dtype();
  const double norm = std::abs(*rc::gen::arbitrary<double>());
  plan.optimizer.clip_norm = norm > 0 ? std::optional<double>(norm) : std::nullopt;
  if (is_native) {
    plan.reduce_scatter_buffers = between(1, 64);
    plan.communicators = pick({Communicators::kShared, Communicators::kSeparate});
  }
  plan.host_sync = pick({HostSync::kNone, HostSync::kStep});
  return plan;
}

RC_GTEST_PROP(PlanRoundTrip, YamlAndJsonReadBackAsThePlan, ()) {
  const Plan plan = random_plan();
  const ModelSpec model = small_model({.blocks = kBlocks});
  const Cluster cluster = cluster_of_gpus(plan.mesh.world());
  check(plan, model, cluster);
  const std::string yaml = to_yaml(plan);
  const ResolvedPlan from_yaml = resolve(document_of(yaml), model, cluster);
  RC_ASSERT(from_yaml.plan == plan);
  RC_ASSERT(from_yaml.assumed.empty());
  RC_ASSERT(to_yaml(from_yaml.plan) == yaml);
  const std::string json = to_text(to_json(plan));
  RC_ASSERT(resolve(read_plan(parse_json(json, "plan.json")), model, cluster).plan == plan);
}

// The longer way: every value of to_json by an assignment of its own.
RC_GTEST_PROP(PlanRoundTrip, AssignmentsReadBackAsThePlan, ()) {
  const Plan plan = random_plan();
  const ModelSpec model = small_model({.blocks = kBlocks});
  const Cluster cluster = cluster_of_gpus(plan.mesh.world());
  PlanDocument document;
  const Json root = to_json(plan);
  for (const auto& [key, value] : root.items()) {
    document = apply_set(std::move(document), key + "=" + value.dump());
  }
  RC_ASSERT(resolve(document, model, cluster).plan == plan);
}

}  // namespace
}  // namespace foreshard
