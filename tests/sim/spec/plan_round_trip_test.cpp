// A plan written as YAML or JSON reads back as itself.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlocks = 24;

template <typename T>
T pick(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}
std::int64_t between(std::int64_t first, std::int64_t last) { return *rc::gen::inRange<std::int64_t>(first, last + 1); }

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
  for (std::int64_t group = 2; group < shard; group *= 2) choices.push_back({Reshard::Kind::kGroup, group});
  return *rc::gen::elementOf(choices);
}

Frozen random_frozen() {
  Frozen frozen{pick({false, true}), pick({false, true}), pick({false, true}), {}};
  for (std::int64_t n = between(0, 3); n > 0; --n) {  // block 0 is trained
    const std::int64_t first = between(1, kBlocks - 1);
    frozen.blocks.ranges.push_back({first, between(first, kBlocks - 1), true});
  }
  return frozen;
}

// What only fsdp2 has, as far as the version goes.
void add_fsdp2_switches(Plan& plan) {
  const std::int64_t minor = between(5, 15);
  plan.runtime.version = "2." + std::to_string(minor) + pick<std::string>({"", ".0", ".1"});
  plan.units.blocks = pick({UnitPlacement::kOwn, UnitPlacement::kOwn, UnitPlacement::kRoot});
  if (plan.units.blocks == UnitPlacement::kOwn) plan.units.experts = pick({UnitPlacement::kOwn, UnitPlacement::kRoot});
  if (plan.units.head != UnitPlacement::kRoot && pick({false, true})) plan.units.embedding = UnitPlacement::kWithHead;
  plan.prefetch.backward_lists = pick({false, true});
  plan.output_dtype = pick<std::optional<DType>>({std::nullopt, DType::kFp32, DType::kBf16});
  plan.recompute_wraps = pick({CheckpointWraps::kModule, CheckpointWraps::kUnit});
  plan.recompute_early_stop = pick({false, true});
  plan.recompute_reentrant = pick({false, true});
  plan.collectives = {
      pick({CollectiveKernels::kDefault, CollectiveKernels::kSymmetric, CollectiveKernels::kCopyEngine}),
      between(0, 64)};
  const auto when = [] { return pick({When::kEach, When::kLast}); };
  plan.accumulation_details = {when(), when(), when()};
  plan.frozen = random_frozen();
  plan.offload = pick({Offload::kNone, Offload::kCpu, Offload::kCpuUnpinned});
  if (plan.reference == Reference::kNone) plan.evaluation.in_step = pick({false, true});
  if (between(0, 3) > 0) plan.named_rank = between(0, plan.mesh.world() - 1);
  if (minor >= 6) {
    plan.prefetch.async_unshard = pick({false, true});
    plan.unshard_in_backward = random_policy<bool>(unit_count(plan, small_model({.blocks = kBlocks})), [] {
      return pick({false, true});
    });
    if (plan.mesh.shard <= 64) plan.units.shard_dim = between(0, 1);  // of 1000 x 64
  }
  if (minor >= 7 && !plan.optimizer.clip_norm) plan.ignored = pick({Ignored::kNone, Ignored::kNorms});
  if (minor >= 8) {
    plan.gradient_divide_factor = pick<std::optional<double>>({std::nullopt, 1.0, 0.3, 1e300});
    plan.force_sum_reduction = pick({false, true});
  }
  if (minor >= 13) {
    plan.reduce_scatter_buffers = between(1, 64);
    plan.communicators = pick({Communicators::kShared, Communicators::kSeparate});
  }
}

// A plan that check() accepts for kBlocks blocks and shard x replicate GPUs.
Plan random_plan() {
  const auto dtype = [] { return pick({DType::kBf16, DType::kFp16, DType::kFp32}); };
  Plan plan = {.model = *rc::gen::nonEmpty<std::string>()};
  // What is not UTF-8 cannot stand in a file.
  for (char& c : plan.model) c = static_cast<char>(c & 0x7f) == '\0' ? '0' : static_cast<char>(c & 0x7f);
  plan.cluster = pick<std::string>({"64xh100", "a b.yaml", "1e5", "no", "~", "#x", "- a", "a: b"});
  const bool is_native = pick({false, true});
  plan.runtime = is_native ? Runtime{RuntimeKind::kNative, "1"} : Runtime{};
  plan.batch = {between(1, 1 << 20), between(1, 64), between(1, 64)};
  plan.mesh = {std::int64_t{1} << between(0, 10), between(1, 100)};
  plan.units = {between(1, kBlocks), pick({UnitPlacement::kOwn, UnitPlacement::kRoot}),
      pick({UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm})};
  plan.prefetch = {pick({Prefetch::kImplicit, std::int64_t{1}, between(1, 1024)}), between(is_native ? 0 : 1, 1024)};
  if (is_native && pick({false, true})) plan.prefetch.forward = 0;
  plan.recompute =
      pick({false, true}) ? recompute_every(between(1, kBlocks + 5), kBlocks) : random_policy<Recompute>(kBlocks, [] {
        return pick({Recompute::kNone, Recompute::kFull, Recompute::kSelective});
      });
  if (is_native) {
    plan.recompute_keeps = pick({SelectivePolicy::kEverySecondMm, SelectivePolicy::kDots});
  } else {
    plan.compile = pick({Compile::kNone, Compile::kBlocks, Compile::kModel});
    plan.attention = pick({AttentionKernel::kFlash, AttentionKernel::kCudnn, AttentionKernel::kEfficient,
        AttentionKernel::kMath, AttentionKernel::kFa1, AttentionKernel::kTriton});
    plan.kernels = {pick({ModuleKernels::Norm::kCompute, ModuleKernels::Norm::kFp32, ModuleKernels::Norm::kEager}),
        pick({ModuleKernels::Rope::kComplex, ModuleKernels::Rope::kReal, ModuleKernels::Rope::kFused}),
        pick({ModuleKernels::Residual::kCompute, ModuleKernels::Residual::kFp32}),
        pick({ModuleKernels::Activation::kFused, ModuleKernels::Activation::kEager}), pick({false, true}),
        between(0, 64), pick({false, true})};
    plan.loss_in_forward = pick({false, true});
    plan.reference = pick({Reference::kNone, Reference::kBase, Reference::kWhole, Reference::kUnit, Reference::kUnits});
    plan.units.table_alone = pick({false, true});
    plan.batch.padded = pick({false, true});
    plan.recompute_keeps = pick({SelectivePolicy::kEverySecondMm, SelectivePolicy::kDotsExceptMlp});
    plan.loss = pick<Loss>({{Loss::Kind::kEager, 0}, {Loss::Kind::kEagerCompute, 0}, {Loss::Kind::kCompiled, 0},
        {Loss::Kind::kFused, 0}, {Loss::Kind::kChunked, 8}});
    if (plan.loss == Loss{}) plan.logits = pick({Logits::kReleased, Logits::kHeld});
    plan.float8 = pick({Float8::kNone, Float8::kTensorwise, Float8::kRowwise, Float8::kCurrent});
    if (plan.float8 == Float8::kTensorwise) plan.float8_all_gather = pick({false, true});
    if (plan.float8 == Float8::kNone) plan.lora.rank = between(0, 65536);
    plan.lora.dropout = pick({0.0, 0.05, 0.999});
    plan.lora.base = pick({Lora::Base::kMaster, Lora::Base::kParam, Lora::Base::kNf4});
    plan.batch.documents = pick({std::int64_t{1}, plan.batch.sequence});
    plan.experts = pick({ExpertKernels::kGrouped, ExpertKernels::kLoop});
  }
  plan.param_dtype = plan.float8 == Float8::kNone ? dtype() : pick({DType::kBf16, DType::kFp16});
  plan.reduce_dtype = dtype();
  plan.master_dtype = dtype();
  plan.accumulation = pick({AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded});
  plan.optimizer.kind = pick({Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd});
  plan.optimizer.implementation =
      pick({Optimizer::Implementation::kForeach, Optimizer::Implementation::kFused, Optimizer::Implementation::kLoop});
  plan.optimizer.state = dtype();
  const double norm = pick({false, true}) ? 0 : std::abs(*rc::gen::arbitrary<double>());
  plan.optimizer.clip_norm = norm > 0 ? std::optional<double>(norm) : std::nullopt;
  if (is_native) {
    plan.reduce_scatter_buffers = between(1, 64);
    plan.communicators = pick({Communicators::kShared, Communicators::kSeparate});
  }
  plan.host_sync = pick({HostSync::kNone, HostSync::kStep});
  if (!is_native) add_fsdp2_switches(plan);
  const bool has_groups = plan.units.shard_dim == 0 && !plan.float8_all_gather;
  plan.reshard_after_forward = random_policy<Reshard>(unit_count(plan, small_model({.blocks = kBlocks})),
      [&] { return random_reshard(has_groups ? plan.mesh.shard : 1); });
  return plan;
}

RC_GTEST_PROP(PlanRoundTrip, YamlAndJsonReadBackAsThePlan, ()) {
  const Plan plan = random_plan();
  const ModelSpec model = small_model({.blocks = kBlocks});
  Cluster cluster = cluster_of_gpus(plan.mesh.world());
  cluster.gpu.peak_fp8 = FlopsPerSecond(2e15);
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
  for (const auto& [key, value] : root.items()) document = apply_set(std::move(document), key + "=" + value.dump());
  RC_ASSERT(resolve(document, model, cluster).plan == plan);
}

}
}
