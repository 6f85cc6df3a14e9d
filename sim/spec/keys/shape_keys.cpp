// The keys that say what is computed, by whom, and in which pieces: job, batch, axes, units,
// gathers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "sim/spec/keys/key_rows.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

constexpr std::array kEmbeddingPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot,
                                             UnitPlacement::kWithHead};
constexpr std::array kBlockPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot};
constexpr std::array kHeadPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot,
                                        UnitPlacement::kWithNorm, UnitPlacement::kNorm};
constexpr std::array kExpertWords = {"own", "block"};
constexpr std::array kExpertsWord = {"experts"};
constexpr std::array kImplicit = {"implicit"};

constexpr PlanKeyType kName = other(R"({"type": "string", "minLength": 1})");
constexpr PlanKeyType kRuntimeName = other(R"({"type": "string",
    "pattern": "^(fsdp2|fsdp1|ddp|zero1|zero2|zero3|megatron|native)(@[0-9]+(\\.[0-9]+)*)?$",
    "examples": ["fsdp2@2.11", "zero3@0.19", "native"]})");
constexpr PlanKeyType kTrainerName = other(R"({"type": "string"})");  // as the trainers have it
constexpr PlanKeyType kStackName = other(R"({"enum": ["none"]})");  // and the stacks that are there
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
  std::vector<std::int64_t> rows;
  for (const ConfigNode& item : n.elements())
    rows.push_back(item.as_int(0, plan_limits::kSequence));
  return rows;
}

std::vector<std::string> read_orders(const ConfigNode& n) {
  std::vector<std::string> orders;
  for (const ConfigNode& item : n.elements()) orders.push_back(item.as_string());
  return orders;
}

constexpr PlanKey kShapeKeys[] = {
    FORESHARD_KEY(
        "model", kName,
        d.plan.model = read_name(n, "a zoo name or a config.json, for example llama-3.1-8b"),
        Json(p.model), "A zoo name (foreshard models) or the path of a Hugging Face config.json.",
        .open = true),
    FORESHARD_KEY(
        "cluster", kName,
        d.plan.cluster = read_name(n, "GPUs and their kind or a cluster file, for example 64xh100"),
        Json(p.cluster), "GPUs and their kind (foreshard machines) or the path of a cluster file.",
        .open = true),
    FORESHARD_KEY("runtime", kRuntimeName, d.plan.runtime = read_runtime(n), written(p.runtime),
                  "Who runs the plan, with its version: of PyTorch for fsdp2 (from 2.4 on, a patch "
                  "number may follow), fsdp1 and ddp (2.11), of DeepSpeed for zero1 to zero3 "
                  "(0.19), of Megatron-Core for megatron (0.20). Default: fsdp2, its newest "
                  "version that is modelled."),
    {.path = "trainer",
     .type = kTrainerName,
     .read = [](const PlanKey&, const ConfigNode& n, PlanDocument& d) { read_trainer(n, d); },
     .says = "Whose habits fill the keys that are left out: units, resharding, recomputation and "
             "more, each printed as that trainer's default (fsdp2, fsdp1); accelerate with a "
             "version (accelerate@1.13), else its newest.",
     .default_word = "none"},
    {.path = "stack",
     .type = kStackName,
     .read = [](const PlanKey&, const ConfigNode& n, PlanDocument& d) { d.stack = read_stack(n); },
     .says = "The training code and its era, whose kernels and switches fill the keys that are "
             "left out (docs/stacks.md), each printed with its stack.",
     .default_word = "none"},
    FORESHARD_COUNT(batch.sequence, 1, plan_limits::kSequence,
                    "Tokens per sequence. Default: the model's positions, at most 8192.",
                    .open = true),
    FORESHARD_COUNT(batch.micro_batch, 1, plan_limits::kMicroBatch,
                    "Sequences per rank and micro-batch."),
    FORESHARD_COUNT(batch.accumulation, 1, plan_limits::kAccumulation, "Micro-batches per step."),
    FORESHARD_COUNT(
        batch.images, 0, plan_limits::kImages,
        "Images per sample, of models that read images among words. Default: 1 for those, else 0.",
        .quiet = true, .open = true),
    FORESHARD_COUNT(
        batch.documents, 1, plan_limits::kSequence,
        "Documents packed into each sequence, equally long; attention stays within each."),
    FORESHARD_FLAG(
        batch.padded,
        "Sequences differ in length: a mask of the positions that count comes with each batch.",
        .quiet = true),
    {.path = "batch.global",
     .type = count(1, plan_limits::kGlobalBatch),
     .read = [](const PlanKey& key, const ConfigNode& n,
                PlanDocument& d) { d.global_batch = n.as_int(key.type.least, key.type.most); },
     .says = "Sequences per step over all ranks."},
    FORESHARD_COUNT(mesh.shard, 1, plan_limits::kMesh,
                    "Ranks that share one copy of parameters, gradients and optimizer state.",
                    .open = true),
    FORESHARD_COUNT(mesh.replicate, 1, plan_limits::kMesh,
                    "Copies; above 1 this is HSDP, with an all-reduce between the copies.",
                    .open = true),
    FORESHARD_WORD(
        mesh.inner, kUpTo<MeshInner::kReplicate>,
        "Whose groups are of consecutive ranks, inside the nodes as far as they fit: shard "
        "(PyTorch's order), or replicate (fsdp2: fully_shard on the transposed mesh).",
        .quiet = true),
    FORESHARD_COUNT(mesh.cp, 1, plan_limits::kMesh,
                    "Context parallel: ranks that share each sequence (fsdp2 from 2.11).",
                    .quiet = true),
    FORESHARD_COUNT(mesh.tp, 1, plan_limits::kMesh,
                    "Tensor parallel: consecutive ranks that share each layer (fsdp2 from 2.11).",
                    .quiet = true),
    FORESHARD_COUNT(mesh.ep, 1, plan_limits::kMesh,
                    "Expert parallel: ranks that share the experts, through tp, then cp, then "
                    "shard (fsdp2 from 2.11).",
                    .quiet = true),
    FORESHARD_COUNT(mesh.etp, 1, plan_limits::kMesh,
                    "Tensor parallel inside the experts: 1 or mesh.tp.", .quiet = true),
    FORESHARD_COUNT(mesh.pp, 1, plan_limits::kMesh,
                    "Pipeline parallel: ranks, outside of all others, that have a part of the "
                    "layers each (fsdp2 from 2.11, megatron).",
                    .quiet = true),
    FORESHARD_WORD(pipeline.schedule, kUpTo<PipelineSchedule::kCustom>,
                   "In which order ranks run their stages, by torch.distributed.pipelining's "
                   "names. Its micro-batches are those of batch.accumulation.",
                   .quiet = true),
    FORESHARD_COUNT(pipeline.stages_per_rank, 1, plan_limits::kLayersPerUnit,
                    "Stages of each rank, of schedules that have several.", .quiet = true),
    FORESHARD_COUNT_AT("pipeline.first_stage_less_layers", pipeline.first_less, 0,
                       plan_limits::kLayersPerUnit,
                       "Blocks that the first stage has less than its even share, for the "
                       "embedding (torchtitan: 1).",
                       .quiet = true),
    FORESHARD_COUNT_AT(
        "pipeline.last_stage_less_layers", pipeline.last_less, 0, plan_limits::kLayersPerUnit,
        "Blocks that the last stage has less, for the head (torchtitan: 1).", .quiet = true),
    FORESHARD_COUNT(pipeline.microbatches, 0, plan_limits::kAccumulation,
                    "Micro-batches of each step() of the schedule, where a step of the optimizer "
                    "has several (fsdp2); 0: all in one.",
                    .quiet = true),
    FORESHARD_KEY("pipeline.orders", kOrders, d.plan.pipeline.orders = read_orders(n),
                  Json(p.pipeline.orders),
                  "What each rank computes, of schedule custom: '0F0 0F1 0B0 0B1'.", .quiet = true),
    FORESHARD_FLAG(pipeline.scale_grads,
                   "Gradients are divided by the number of micro-batches (PyTorch's default; "
                   "torchtitan: false).",
                   .quiet = true),
    FORESHARD_FLAG(pipeline.return_outputs,
                   "step() returns the last stage's outputs, which stay until the next one "
                   "(PyTorch's default; torchtitan: false).",
                   .quiet = true),
    FORESHARD_FLAG(tensor_parallel.sequence,
                   "Norms and residuals on a part of the positions each (SequenceParallel).",
                   .quiet = true),
    FORESHARD_FLAG(tensor_parallel.loss,
                   "Logits stay cut by vocabulary (loss_parallel); false: they are gathered.",
                   .quiet = true),
    FORESHARD_FLAG(
        tensor_parallel.async,
        "Collectives run beside the products they belong to, chunk by chunk (torchtitan's "
        "enable_async_tensor_parallel, Megatron-Core's tp_comm_overlap); in compiled blocks.",
        .quiet = true),
    FORESHARD_WORD(context_parallel.rotate, kUpTo<ContextParallel::Rotate::kUlysses>,
                   "How keys and values come round; ulysses: none do, an all-to-all changes "
                   "between parts of the positions and parts of the heads. torchtitan 0.2.2 "
                   "trains with allgather whatever its option says.",
                   .quiet = true),
    FORESHARD_WORD(
        context_parallel.balance, kUpTo<ContextParallel::Balance::kNone>,
        "headtail: each rank has a chunk from the front of the sequence and one from its back.",
        .quiet = true),
    FORESHARD_KEY("expert_parallel.sent", kRowCounts, d.plan.expert_parallel.sent = read_rows(n),
                  Json(p.expert_parallel.sent), "Rows sent to each rank of the group.",
                  .quiet = true, .open = true),
    FORESHARD_KEY("expert_parallel.received", kRowCounts,
                  d.plan.expert_parallel.received = read_rows(n), Json(p.expert_parallel.received),
                  "Rows received from each rank of the group.", .quiet = true, .open = true),
    FORESHARD_NUMBER(expert_parallel.zipf, number(0, 10),
                     "The i-th expert is chosen in proportion to i^-zipf; 0: all alike. The "
                     "forecast is that of the rank whose experts receive most, for which the "
                     "others wait.",
                     .quiet = true),
    FORESHARD_WORD(expert_parallel.dispatcher, kUpTo<ExpertParallel::Dispatcher::kDeepEp>,
                   "How rows travel: a row for each expert, or once to each node and there once to "
                   "each rank, as DeepEP and HybridEP do (a price; memory is as with alltoall).",
                   .quiet = true),
    FORESHARD_KEY("expert_parallel.counts", kRowCounts,
                  d.plan.expert_parallel.counts = read_rows(n), Json(p.expert_parallel.counts),
                  "Rows of each expert, as counted: experts are chosen in proportion to them.",
                  .quiet = true, .open = true),
    FORESHARD_WORD(step_frame, kUpTo<StepFrame::kTorchtitanLog>,
                   "What stands around forward and backward: plain, or torchtitan's train_step "
                   "(zero_grad first, tokens counted over all samples and read by the host, "
                   "routers balanced before the optimizer), or such a step that logs its loss.",
                   .quiet = true),
    FORESHARD_WORD(
        placement, kUpTo<RankPlacement::kByRail>,
        "Where ranks sit on the nodes of a cluster file: node by node as listed, node by node of "
        "each leaf or of each pod, or round the nodes so that neighbours share a rail.",
        .quiet = true),
    FORESHARD_COUNT(units.layers_per_unit, 1, plan_limits::kLayersPerUnit, "Blocks per unit."),
    FORESHARD_WORD(units.embedding, kEmbeddingPlacements,
                   "own: a unit of its own; root: in the unit of the whole model, gathered first; "
                   "with_head: one unit with norm and head (head: own leaves the norm to the "
                   "root). Tied embeddings: root or with_head."),
    FORESHARD_WORD(
        units.head, kHeadPlacements,
        "own: a unit of its own, the final norm in the root; root: both in the root; with_norm: "
        "one unit of both; norm_only: the norm a unit, the head in the root."),
    FORESHARD_WORD(units.blocks, kBlockPlacements,
                   "own: units of layers_per_unit blocks; root: in the root (fsdp2 only)."),
    FORESHARD_KEY("units.experts", words<kExpertWords>(), d.plan.units.experts = read_experts(n),
                  written_experts(p.units.experts),
                  "own: modules inside a block that may be units are (fsdp2 only); block: they "
                  "belong to the block's unit."),
    FORESHARD_KEY(
        "units.shard_dim", or_number<kExpertsWord>(count(0, 1)),
        d.plan.units.shard_dim =
            n.is_scalar() && n.text() == "experts" ? Units::kExpertsDim : n.as_int(0, 1),
        p.units.shard_dim == Units::kExpertsDim ? Json("experts") : Json(p.units.shard_dim),
        "Dimension that matrices are sharded along, which must divide by mesh.shard for 1; "
        "experts: 1 for the weights of experts fewer than the shards, else 0 "
        "(shard_placement_fn)."),
    FORESHARD_FLAG(units.table_alone,
                   "The embedding's unit holds its table alone (of images: the product that reads "
                   "patches); positions, types and norm beside it stay in the root.",
                   .quiet = true),
    FORESHARD_KEY("reshard_after_forward", kReshardPolicy,
                  d.plan.reshard_after_forward = read_reshard_policy(n),
                  written(p.reshard_after_forward),
                  "Whether the unsharded parameters are freed after forward: always, never, or "
                  "kept 1/N in groups of N ranks; for all units or per range of units, numbered in "
                  "forward order with the root unit first."),
    FORESHARD_KEY("unshard_in_backward", kUnshardPolicy,
                  d.plan.unshard_in_backward = read_unshard_in_backward(n),
                  written_unshard_in_backward(p.unshard_in_backward),
                  "Whether backward gathers a unit's parameters (set_unshard_in_backward): "
                  "for all units or per range of units; a list leaves the others at true."),
    FORESHARD_KEY(
        "prefetch.forward", or_number<kImplicit>(count(0, plan_limits::kPrefetch)),
        d.plan.prefetch.forward = read_forward_prefetch(n),
        p.prefetch.forward == Prefetch::kImplicit ? Json("implicit") : Json(p.prefetch.forward),
        "implicit: the host runs ahead and gathers a unit when it reaches it; 0 (native only): "
        "none; N: explicit."),
    FORESHARD_COUNT(prefetch.backward, 0, plan_limits::kPrefetch,
                    "0 (native only): none; N: units ahead."),
    FORESHARD_FLAG(prefetch.backward_lists,
                   "true: lists of modules set beforehand also for backward 1 "
                   "(set_modules_to_backward_prefetch); false: PyTorch's default, "
                   "the unit before."),
    FORESHARD_FLAG(prefetch.async_unshard,
                   "Gathers through asynchronous collectives, with the copy-in on the compute "
                   "stream (_set_unshard_async_op)."),
};

}  // namespace

std::span<const PlanKey> shape_keys() { return kShapeKeys; }

}  // namespace foreshard
