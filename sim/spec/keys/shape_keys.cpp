// The keys that say what is computed, by whom, and in which pieces: job, batch, axes, units, gathers.

#include <vector>

#include "sim/spec/keys/key_rows.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

// Megatron-Core's and DeepSpeed's stages are even where nothing is said.
bool cuts_evenly(const Plan& plan) { return plan.mesh.pp > 1 && plan.runtime.kind != RuntimeKind::kFsdp2; }

constexpr std::array kEmbeddingPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithHead};
constexpr std::array kBlockPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot};
constexpr std::array kHeadPlacements = {
    UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm, UnitPlacement::kNorm};
constexpr std::array kExpertWords = {"own", "block"};
constexpr std::array kExpertsWord = {"experts"};
constexpr std::array kImplicit = {"implicit"};

constexpr PlanKeyType kName = other(R"({"type": "string", "minLength": 1})");
constexpr PlanKeyType kRuntimeName = other(R"({"type": "string",
    "pattern": "^(fsdp2|fsdp1|ddp|zero1|zero2|zero3|megatron|native)(@[0-9]+(\\.[0-9]+)*)?$",
    "examples": ["fsdp2@2.11", "zero3@0.19", "native"]})");
constexpr PlanKeyType kTrainerName = other(R"({"type": "string"})");  // as the trainers have it
constexpr PlanKeyType kStackName = other(R"({"enum": ["none"]})");    // and the stacks that are there
constexpr PlanKeyType kRowCounts = other(R"({"type": "array",
    "items": {"type": "integer", "minimum": 0}})");
constexpr PlanKeyType kOrders = other(R"({"type": "array", "items": {"type": "string"},
    "examples": [["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]]})");
constexpr PlanKeyType kReshardPolicy = other(R"({"oneOf": [{"$ref": "#/definitions/reshard"},
    {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
     "required": ["units", "value"], "properties": {"units": {"$ref": "#/definitions/numbers"},
     "value": {"$ref": "#/definitions/reshard"}}}}],
    "examples": ["always", 8, [{"units": "0-30", "value": "always"},
                               {"units": 31, "value": "never"}]]})");
constexpr PlanKeyType kUnshardPolicy = other(R"({"oneOf": [{"type": "boolean"},
    {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
     "required": ["units", "value"], "properties": {"units": {"$ref": "#/definitions/numbers"},
     "value": {"type": "boolean"}}}}],
    "examples": [true, [{"units": 0, "value": false}]]})");

std::vector<std::int64_t> read_rows(const ConfigNode& n) {
  return list_of<std::int64_t>(
      n.elements(), [&](const ConfigNode& item) { return item.as_int(0, plan_limits::kSequence); });
}

std::vector<std::string> read_orders(const ConfigNode& n) {
  return list_of<std::string>(n.elements(), &ConfigNode::as_string);
}

constexpr PlanKey kShapeKeys[] = {
    FORESHARD_KEY("model", kName, d.plan.model = read_name(n, "a zoo name or a config.json, for example llama-3.1-8b"),
        Json(p.model), .open = true),
    FORESHARD_KEY("cluster", kName,
        d.plan.cluster = read_name(n, "GPUs and their kind or a cluster file, for example 64xh100"), Json(p.cluster),
        .open = true),
    FORESHARD_KEY("runtime", kRuntimeName, d.plan.runtime = read_runtime(n, d.plan.runtime.torch), written(p.runtime)),
    {.path = "trainer",
        .type = kTrainerName,
        .read = [](const PlanKey&, const ConfigNode& n, PlanDocument& d) { read_trainer(n, d); },
        .default_word = "none"},
    {.path = "stack",
        .type = kStackName,
        .read = [](const PlanKey&, const ConfigNode& n, PlanDocument& d) { d.stack = read_stack(n); },
        .value = [](const Plan& p) { return p.stack.empty() ? Json() : Json(p.stack); },
        .default_word = "none"},
    FORESHARD_COUNT(batch.sequence, 1, plan_limits::kSequence, .open = true),
    FORESHARD_COUNT(batch.micro_batch, 1, plan_limits::kMicroBatch),
    FORESHARD_COUNT(batch.accumulation, 1, plan_limits::kAccumulation),
    FORESHARD_COUNT(batch.images, 0, plan_limits::kImages, .quiet = true, .open = true),
    FORESHARD_COUNT(batch.documents, 1, plan_limits::kSequence),
    FORESHARD_FLAG(batch.padded, .quiet = true),
    FORESHARD_COUNT(batch.labelled, 0, plan_limits::kSequence, .quiet = true),
    FORESHARD_FLAG(batch.prefetched, .quiet = true),
    {.path = "batch.global",
        .type = count(1, plan_limits::kGlobalBatch),
        .read = [](const PlanKey& key, const ConfigNode& n,
                    PlanDocument& d) { d.global_batch = n.as_int(key.type.least, key.type.most); }},
    FORESHARD_COUNT(mesh.shard, 1, plan_limits::kMesh, .open = true),
    FORESHARD_COUNT(mesh.replicate, 1, plan_limits::kMesh, .open = true),
    FORESHARD_WORD(mesh.inner, kUpTo<MeshInner::kReplicate>, .quiet = true),
    FORESHARD_COUNT(mesh.cp, 1, plan_limits::kMesh, .quiet = true),
    FORESHARD_COUNT(mesh.tp, 1, plan_limits::kMesh, .quiet = true),
    FORESHARD_COUNT(mesh.ep, 1, plan_limits::kMesh, .quiet = true),
    FORESHARD_COUNT(mesh.etp, 1, plan_limits::kMesh, .quiet = true),
    FORESHARD_COUNT(mesh.pp, 1, plan_limits::kMesh, .quiet = true),
    FORESHARD_WORD(pipeline.schedule, kUpTo<PipelineSchedule::kCustom>, .quiet = true),
    FORESHARD_COUNT(pipeline.stages_per_rank, 1, plan_limits::kLayersPerUnit, .quiet = true),
    FORESHARD_COUNT_AT("pipeline.first_stage_less_layers", pipeline.first_less, 0, plan_limits::kLayersPerUnit,
        .quiet = true, .told = cuts_evenly),
    FORESHARD_COUNT_AT("pipeline.last_stage_less_layers", pipeline.last_less, 0, plan_limits::kLayersPerUnit,
        .quiet = true, .told = cuts_evenly),
    FORESHARD_WORD(pipeline.partition, kUpTo<PipelinePartition::kUniform>, .quiet = true),
    FORESHARD_COUNT(pipeline.microbatches, 0, plan_limits::kAccumulation, .quiet = true),
    FORESHARD_KEY(
        "pipeline.orders", kOrders, d.plan.pipeline.orders = read_orders(n), Json(p.pipeline.orders), .quiet = true),
    FORESHARD_FLAG(pipeline.scale_grads, .quiet = true),
    FORESHARD_FLAG(pipeline.return_outputs, .quiet = true),
    FORESHARD_FLAG(tensor_parallel.sequence, .quiet = true),
    FORESHARD_FLAG(tensor_parallel.loss, .quiet = true),
    FORESHARD_FLAG(tensor_parallel.async, .quiet = true),
    FORESHARD_FLAG(tensor_parallel.keeps_gathered, .quiet = true),
    FORESHARD_WORD(tensor_parallel.tables, kUpTo<TensorParallel::Tables::kWhole>, .quiet = true),
    FORESHARD_WORD(context_parallel.rotate, kUpTo<ContextParallel::Rotate::kUlysses>, .quiet = true),
    FORESHARD_WORD(context_parallel.balance, kUpTo<ContextParallel::Balance::kNone>, .quiet = true),
    FORESHARD_KEY("expert_parallel.sent", kRowCounts, d.plan.expert_parallel.sent = read_rows(n),
        Json(p.expert_parallel.sent), .quiet = true, .open = true),
    FORESHARD_KEY("expert_parallel.received", kRowCounts, d.plan.expert_parallel.received = read_rows(n),
        Json(p.expert_parallel.received), .quiet = true, .open = true),
    FORESHARD_NUMBER(expert_parallel.zipf, number(0, 10), .quiet = true),
    FORESHARD_WORD(expert_parallel.dispatcher, kUpTo<ExpertParallel::Dispatcher::kDeepEp>, .quiet = true),
    FORESHARD_KEY("expert_parallel.counts", kRowCounts, d.plan.expert_parallel.counts = read_rows(n),
        Json(p.expert_parallel.counts), .quiet = true, .open = true),
    FORESHARD_WORD(step_frame, kUpTo<StepFrame::kTorchtitanLog>, .quiet = true),
    FORESHARD_WORD(placement, kUpTo<RankPlacement::kByRail>, .quiet = true),
    FORESHARD_COUNT(units.layers_per_unit, 1, plan_limits::kLayersPerUnit),
    FORESHARD_WORD(units.embedding, kEmbeddingPlacements),
    FORESHARD_WORD(units.head, kHeadPlacements),
    FORESHARD_WORD(units.blocks, kBlockPlacements),
    FORESHARD_KEY("units.experts", words<kExpertWords>(), d.plan.units.experts = read_experts(n),
        written_experts(p.units.experts)),
    FORESHARD_KEY("units.shard_dim", or_number<kExpertsWord>(count(0, 1)),
        d.plan.units.shard_dim = n.is_scalar() && n.text() == "experts" ? Units::kExpertsDim : n.as_int(0, 1),
        p.units.shard_dim == Units::kExpertsDim ? Json("experts") : Json(p.units.shard_dim)),
    FORESHARD_FLAG(units.table_alone, .quiet = true),
    FORESHARD_COUNT(units.head_calls, 1, plan_limits::kEvery, .quiet = true),
    FORESHARD_KEY("reshard_after_forward", kReshardPolicy, d.plan.reshard_after_forward = read_reshard_policy(n),
        written(p.reshard_after_forward)),
    FORESHARD_KEY("unshard_in_backward", kUnshardPolicy, d.plan.unshard_in_backward = read_unshard_in_backward(n),
        written_unshard_in_backward(p.unshard_in_backward)),
    FORESHARD_KEY("prefetch.forward", or_number<kImplicit>(count(0, plan_limits::kPrefetch)),
        d.plan.prefetch.forward = read_forward_prefetch(n),
        p.prefetch.forward == Prefetch::kImplicit ? Json("implicit") : Json(p.prefetch.forward)),
    FORESHARD_COUNT(prefetch.backward, 0, plan_limits::kPrefetch),
    FORESHARD_FLAG(prefetch.backward_lists),
    FORESHARD_FLAG(prefetch.blocks_only, .quiet = true),
    FORESHARD_FLAG(prefetch.async_unshard),
};

}

std::span<const PlanKey> shape_keys() { return kShapeKeys; }

}
