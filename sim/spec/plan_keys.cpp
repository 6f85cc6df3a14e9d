// One table lists every key with the function that reads it and the one that writes it.
#include "sim/spec/plan_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/spelling.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_stack.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
constexpr std::array kEmbeddingPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot,
                                             UnitPlacement::kWithHead};
constexpr std::array kBlockPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot};
constexpr std::array kHeadPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot,
                                        UnitPlacement::kWithNorm, UnitPlacement::kNorm};
constexpr std::array kAccumulationModes = {AccumulationMode::kReduceEach,
                                           AccumulationMode::kKeepUnsharded};
constexpr std::array kOptimizers = {Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd};
constexpr std::array kImplementations = {Optimizer::Implementation::kForeach,
                                         Optimizer::Implementation::kFused,
                                         Optimizer::Implementation::kLoop};
constexpr std::array kCompiles = {Compile::kNone, Compile::kBlocks, Compile::kModel};
constexpr std::array kAttentionKernels = {
    AttentionKernel::kFlash, AttentionKernel::kCudnn,  AttentionKernel::kEfficient,
    AttentionKernel::kMath,  AttentionKernel::kFa1,    AttentionKernel::kFa2,
    AttentionKernel::kFa3,   AttentionKernel::kTriton, AttentionKernel::kEager};
constexpr std::array kNorms = {ModuleKernels::Norm::kCompute, ModuleKernels::Norm::kFp32,
                               ModuleKernels::Norm::kEager};
constexpr std::array kRopes = {ModuleKernels::Rope::kComplex, ModuleKernels::Rope::kReal,
                               ModuleKernels::Rope::kFused};
constexpr std::array kResiduals = {ModuleKernels::Residual::kCompute,
                                   ModuleKernels::Residual::kFp32};
constexpr std::array kActivations = {ModuleKernels::Activation::kFused,
                                     ModuleKernels::Activation::kEager};
constexpr std::array kLogits = {Logits::kReleased, Logits::kHeld};
constexpr std::array kFloat8 = {Float8::kNone,        Float8::kTensorwise, Float8::kRowwise,
                                Float8::kRowwiseGwHp, Float8::kDelayed,    Float8::kCurrent};
constexpr std::array kCollectiveKernels = {
    CollectiveKernels::kDefault, CollectiveKernels::kSymmetric, CollectiveKernels::kCopyEngine};
constexpr std::array kMeshInners = {MeshInner::kShard, MeshInner::kReplicate};
constexpr std::array kRotates = {ContextParallel::Rotate::kAllGather,
                                 ContextParallel::Rotate::kAllToAll};
constexpr std::array kBalances = {ContextParallel::Balance::kHeadTail,
                                  ContextParallel::Balance::kNone};
constexpr std::array kStepFrames = {StepFrame::kPlain, StepFrame::kTorchtitan,
                                    StepFrame::kTorchtitanLog};
constexpr std::array kRankPlacementWords = {RankPlacement::kListed, RankPlacement::kByLeaf,
                                            RankPlacement::kByPod, RankPlacement::kByRail};
constexpr std::array kCommunicators = {Communicators::kShared, Communicators::kSeparate};
constexpr std::array kHostSyncs = {HostSync::kNone, HostSync::kStep};
constexpr std::array kReductionOrders = {ReductionOrder::kMicrobatch, ReductionOrder::kLibrary};
constexpr std::array kWhens = {When::kEach, When::kLast};
constexpr std::array kCheckpointWraps = {CheckpointWraps::kModule, CheckpointWraps::kUnit};
constexpr std::array kSelectivePolicies = {SelectivePolicy::kEverySecondMm,
                                           SelectivePolicy::kDotsExceptMlp};
constexpr std::array kExpertKernels = {ExpertKernels::kGrouped, ExpertKernels::kLoop,
                                       ExpertKernels::kTransformers};
constexpr std::array kLoraBases = {Lora::Base::kMaster, Lora::Base::kParam, Lora::Base::kNf4};
constexpr std::array kIgnored = {Ignored::kNone, Ignored::kNorms};
constexpr std::array kOffloads = {Offload::kNone, Offload::kCpu, Offload::kCpuUnpinned};
constexpr std::array kTrainers = {Trainer::kTorchtitan, Trainer::kAccelerate, Trainer::kLlmFoundry,
                                  Trainer::kFairscale, Trainer::kNone};

using Node = const ConfigNode&;
using Document = PlanDocument&;

// Nothing to say where a key has the value that it has without being written.
template <typename T, typename U>
Json unless(T usual, U value) {
  return value == usual ? Json() : Json(value);
}
template <typename E, std::size_t N>
Json unless_first(const std::array<E, N>& values, E value) {
  return value == values.front() ? Json() : Json(word_of(value));
}

std::vector<std::int64_t> read_rows(Node n) {
  std::vector<std::int64_t> rows;
  for (const ConfigNode& item : n.elements())
    rows.push_back(item.as_int(0, plan_limits::kSequence));
  return rows;
}
Json written_rows(const std::vector<std::int64_t>& rows) {
  return rows.empty() ? Json() : Json(rows);
}

// "accelerate" or "accelerate@1.13".
void read_trainer(Node n, Document d) {
  const std::string text = n.as_string();
  const std::size_t at = text.find('@');
  std::vector<std::string> words;
  for (const Trainer trainer : kTrainers) words.emplace_back(to_string(trainer));
  const auto word = std::find(words.begin(), words.end(), text.substr(0, at));
  if (word == words.end()) {
    throw n.error(quote(text) + " is no trainer", fmt::format("one of {}", fmt::join(words, ", ")),
                  nearest_spelling(text.substr(0, at), words));
  }
  d.trainer = kTrainers[static_cast<std::size_t>(word - words.begin())];
  d.trainer_version = at == std::string::npos ? "" : text.substr(at + 1);
  if (at == std::string::npos) return;
  if (d.trainer != Trainer::kAccelerate || !trainer_minor(d.trainer_version)) {
    throw n.error(quote(text) + " is no version of a trainer that is told apart",
                  "accelerate@1.13, accelerate@1.15, or the name alone");
  }
}

constexpr PlanKey kKeys[] = {
    {"model",
     [](Node n, Document d) {
       d.plan.model = read_name(n, "a zoo name or a config.json, for example llama-3.1-8b");
     },
     [](const Plan& p) { return Json(p.model); }},
    {"cluster",
     [](Node n, Document d) {
       d.plan.cluster = read_name(n, "GPUs and their kind or a cluster file, for example 64xh100");
     },
     [](const Plan& p) { return Json(p.cluster); }},
    {"runtime", [](Node n, Document d) { d.plan.runtime = read_runtime(n); },
     [](const Plan& p) { return written(p.runtime); }},
    {"trainer", read_trainer, nullptr},
    {"stack", [](Node n, Document d) { d.stack = read_stack(n); }, nullptr},
    {"batch.sequence",
     [](Node n, Document d) { d.plan.batch.sequence = n.as_int(1, plan_limits::kSequence); },
     [](const Plan& p) { return Json(p.batch.sequence); }},
    {"batch.micro_batch",
     [](Node n, Document d) { d.plan.batch.micro_batch = n.as_int(1, plan_limits::kMicroBatch); },
     [](const Plan& p) { return Json(p.batch.micro_batch); }},
    {"batch.accumulation",
     [](Node n, Document d) {
       d.plan.batch.accumulation = n.as_int(1, plan_limits::kAccumulation);
     },
     [](const Plan& p) { return Json(p.batch.accumulation); }},
    {"batch.images",
     [](Node n, Document d) { d.plan.batch.images = n.as_int(0, plan_limits::kImages); },
     [](const Plan& p) { return p.batch.images > 0 ? Json(p.batch.images) : Json(); }},
    {"batch.documents",
     [](Node n, Document d) { d.plan.batch.documents = n.as_int(1, plan_limits::kSequence); },
     [](const Plan& p) { return Json(p.batch.documents); }},
    {"batch.padded", [](Node n, Document d) { d.plan.batch.padded = n.as_bool(); },
     [](const Plan& p) { return p.batch.padded ? Json(true) : Json(); }},
    {"batch.global",
     [](Node n, Document d) { d.global_batch = n.as_int(1, plan_limits::kGlobalBatch); }, nullptr},
    {"mesh.shard", [](Node n, Document d) { d.plan.mesh.shard = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return Json(p.mesh.shard); }},
    {"mesh.replicate",
     [](Node n, Document d) { d.plan.mesh.replicate = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return Json(p.mesh.replicate); }},
    {"mesh.inner", [](Node n, Document d) { d.plan.mesh.inner = read_word(n, kMeshInners); },
     [](const Plan& p) {
       return p.mesh.inner == MeshInner::kShard ? Json() : Json(word_of(p.mesh.inner));
     }},
    {"mesh.cp", [](Node n, Document d) { d.plan.mesh.cp = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return unless(1, p.mesh.cp); }},
    {"mesh.tp", [](Node n, Document d) { d.plan.mesh.tp = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return unless(1, p.mesh.tp); }},
    {"mesh.ep", [](Node n, Document d) { d.plan.mesh.ep = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return unless(1, p.mesh.ep); }},
    {"mesh.etp", [](Node n, Document d) { d.plan.mesh.etp = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return unless(1, p.mesh.etp); }},
    {"tensor_parallel.sequence",
     [](Node n, Document d) { d.plan.tensor_parallel.sequence = n.as_bool(); },
     [](const Plan& p) { return unless(true, p.tensor_parallel.sequence); }},
    {"tensor_parallel.loss", [](Node n, Document d) { d.plan.tensor_parallel.loss = n.as_bool(); },
     [](const Plan& p) { return unless(true, p.tensor_parallel.loss); }},
    {"tensor_parallel.async",
     [](Node n, Document d) { d.plan.tensor_parallel.async = n.as_bool(); },
     [](const Plan& p) { return unless(false, p.tensor_parallel.async); }},
    {"context_parallel.rotate",
     [](Node n, Document d) { d.plan.context_parallel.rotate = read_word(n, kRotates); },
     [](const Plan& p) { return unless_first(kRotates, p.context_parallel.rotate); }},
    {"context_parallel.balance",
     [](Node n, Document d) { d.plan.context_parallel.balance = read_word(n, kBalances); },
     [](const Plan& p) { return unless_first(kBalances, p.context_parallel.balance); }},
    {"expert_parallel.sent", [](Node n, Document d) { d.plan.expert_parallel.sent = read_rows(n); },
     [](const Plan& p) { return written_rows(p.expert_parallel.sent); }},
    {"expert_parallel.received",
     [](Node n, Document d) { d.plan.expert_parallel.received = read_rows(n); },
     [](const Plan& p) { return written_rows(p.expert_parallel.received); }},
    {"step_frame", [](Node n, Document d) { d.plan.step_frame = read_word(n, kStepFrames); },
     [](const Plan& p) { return unless_first(kStepFrames, p.step_frame); }},
    {"placement", [](Node n, Document d) { d.plan.placement = read_word(n, kRankPlacementWords); },
     [](const Plan& p) {
       return p.placement == RankPlacement::kListed ? Json() : Json(word_of(p.placement));
     }},
    {"units.layers_per_unit",
     [](Node n, Document d) {
       d.plan.units.layers_per_unit = n.as_int(1, plan_limits::kLayersPerUnit);
     },
     [](const Plan& p) { return Json(p.units.layers_per_unit); }},
    {"units.embedding",
     [](Node n, Document d) { d.plan.units.embedding = read_word(n, kEmbeddingPlacements); },
     [](const Plan& p) { return Json(word_of(p.units.embedding)); }},
    {"units.head", [](Node n, Document d) { d.plan.units.head = read_word(n, kHeadPlacements); },
     [](const Plan& p) { return Json(word_of(p.units.head)); }},
    {"units.blocks",
     [](Node n, Document d) { d.plan.units.blocks = read_word(n, kBlockPlacements); },
     [](const Plan& p) { return Json(word_of(p.units.blocks)); }},
    {"units.experts", [](Node n, Document d) { d.plan.units.experts = read_experts(n); },
     [](const Plan& p) { return written_experts(p.units.experts); }},
    {"units.shard_dim",
     [](Node n, Document d) {
       const bool experts = n.is_scalar() && n.text() == "experts";
       d.plan.units.shard_dim = experts ? Units::kExpertsDim : n.as_int(0, 1);
     },
     [](const Plan& p) {
       return p.units.shard_dim == Units::kExpertsDim ? Json("experts") : Json(p.units.shard_dim);
     }},
    {"units.table_alone", [](Node n, Document d) { d.plan.units.table_alone = n.as_bool(); },
     [](const Plan& p) { return p.units.table_alone ? Json(true) : Json(); }},
    {"reshard_after_forward",
     [](Node n, Document d) { d.plan.reshard_after_forward = read_reshard_policy(n); },
     [](const Plan& p) { return written(p.reshard_after_forward); }},
    {"unshard_in_backward",
     [](Node n, Document d) { d.plan.unshard_in_backward = read_unshard_in_backward(n); },
     [](const Plan& p) { return written_unshard_in_backward(p.unshard_in_backward); }},
    {"prefetch.forward",
     [](Node n, Document d) { d.plan.prefetch.forward = read_forward_prefetch(n); },
     [](const Plan& p) {
       return p.prefetch.forward == Prefetch::kImplicit ? Json("implicit")
                                                        : Json(p.prefetch.forward);
     }},
    {"prefetch.backward",
     [](Node n, Document d) { d.plan.prefetch.backward = n.as_int(0, plan_limits::kPrefetch); },
     [](const Plan& p) { return Json(p.prefetch.backward); }},
    {"prefetch.backward_lists",
     [](Node n, Document d) { d.plan.prefetch.backward_lists = n.as_bool(); },
     [](const Plan& p) { return Json(p.prefetch.backward_lists); }},
    {"prefetch.async_unshard",
     [](Node n, Document d) { d.plan.prefetch.async_unshard = n.as_bool(); },
     [](const Plan& p) { return Json(p.prefetch.async_unshard); }},
    {"recompute", read_recompute_policy, [](const Plan& p) { return written(p.recompute); }},
    {"compile", [](Node n, Document d) { d.plan.compile = read_word(n, kCompiles); },
     [](const Plan& p) { return Json(word_of(p.compile)); }},
    {"attention", [](Node n, Document d) { d.plan.attention = read_word(n, kAttentionKernels); },
     [](const Plan& p) { return Json(word_of(p.attention)); }},
    {"kernels.norm", [](Node n, Document d) { d.plan.kernels.norm = read_word(n, kNorms); },
     [](const Plan& p) { return Json(word_of(p.kernels.norm)); }},
    {"kernels.rope", [](Node n, Document d) { d.plan.kernels.rope = read_word(n, kRopes); },
     [](const Plan& p) { return Json(word_of(p.kernels.rope)); }},
    {"kernels.residual",
     [](Node n, Document d) { d.plan.kernels.residual = read_word(n, kResiduals); },
     [](const Plan& p) { return Json(word_of(p.kernels.residual)); }},
    {"kernels.activation",
     [](Node n, Document d) { d.plan.kernels.activation = read_word(n, kActivations); },
     [](const Plan& p) { return Json(word_of(p.kernels.activation)); }},
    {"kernels.unpads", [](Node n, Document d) { d.plan.kernels.unpads = n.as_bool(); },
     [](const Plan& p) { return Json(p.kernels.unpads); }},
    {"kernels.train_metrics",
     [](Node n, Document d) { d.plan.kernels.train_metrics = n.as_int(0, plan_limits::kMetrics); },
     [](const Plan& p) { return Json(p.kernels.train_metrics); }},
    {"kernels.scan", [](Node n, Document d) { d.plan.kernels.scan = n.as_bool(); },
     [](const Plan& p) { return p.kernels.scan ? Json(true) : Json(); }},
    {"loss", [](Node n, Document d) { d.plan.loss = read_loss(n); },
     [](const Plan& p) { return written(p.loss); }},
    {"logits", [](Node n, Document d) { d.plan.logits = read_word(n, kLogits); },
     [](const Plan& p) { return Json(word_of(p.logits)); }},
    {"loss_in_forward", [](Node n, Document d) { d.plan.loss_in_forward = n.as_bool(); },
     [](const Plan& p) { return p.loss_in_forward ? Json(true) : Json(); }},
    {"float8", [](Node n, Document d) { d.plan.float8 = read_word(n, kFloat8); },
     [](const Plan& p) { return Json(word_of(p.float8)); }},
    {"float8_all_gather", [](Node n, Document d) { d.plan.float8_all_gather = n.as_bool(); },
     [](const Plan& p) { return Json(p.float8_all_gather); }},
    {"experts", [](Node n, Document d) { d.plan.experts = read_word(n, kExpertKernels); },
     [](const Plan& p) { return Json(word_of(p.experts)); }},
    {"recompute_keeps",
     [](Node n, Document d) { d.plan.recompute_keeps = read_word(n, kSelectivePolicies); },
     [](const Plan& p) {
       const bool usual = p.recompute_keeps == SelectivePolicy::kEverySecondMm;
       return usual ? Json() : Json(word_of(p.recompute_keeps));
     }},
    {"recompute_wraps",
     [](Node n, Document d) { d.plan.recompute_wraps = read_word(n, kCheckpointWraps); },
     [](const Plan& p) { return Json(word_of(p.recompute_wraps)); }},
    {"recompute_early_stop", [](Node n, Document d) { d.plan.recompute_early_stop = n.as_bool(); },
     [](const Plan& p) { return Json(p.recompute_early_stop); }},
    {"dtype.param", [](Node n, Document d) { d.plan.param_dtype = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.param_dtype)); }},
    {"dtype.autocast", [](Node n, Document d) { d.plan.autocast = read_optional_dtype(n); },
     [](const Plan& p) { return written(p.autocast); }},
    {"dtype.reduce",
     [](Node n, Document d) {
       const std::optional<DType> dtype = read_optional_dtype(n);
       d.reduce_dtype_is_none = !dtype;
       if (dtype) d.plan.reduce_dtype = *dtype;
     },
     [](const Plan& p) { return Json(word_of(p.reduce_dtype)); }},
    {"dtype.master", [](Node n, Document d) { d.plan.master_dtype = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.master_dtype)); }},
    {"dtype.output", [](Node n, Document d) { d.plan.output_dtype = read_optional_dtype(n); },
     [](const Plan& p) { return written(p.output_dtype); }},
    {"accumulation.mode",
     [](Node n, Document d) { d.plan.accumulation = read_word(n, kAccumulationModes); },
     [](const Plan& p) { return Json(word_of(p.accumulation)); }},
    {"accumulation.all_reduce",
     [](Node n, Document d) { d.plan.accumulation_details.all_reduce = read_word(n, kWhens); },
     [](const Plan& p) { return Json(word_of(p.accumulation_details.all_reduce)); }},
    {"accumulation.reshard_after_backward",
     [](Node n, Document d) {
       d.plan.accumulation_details.reshard_after_backward = read_word(n, kWhens);
     },
     [](const Plan& p) { return Json(word_of(p.accumulation_details.reshard_after_backward)); }},
    {"accumulation.is_last_backward",
     [](Node n, Document d) {
       d.plan.accumulation_details.is_last_backward = read_word(n, kWhens);
     },
     [](const Plan& p) { return Json(word_of(p.accumulation_details.is_last_backward)); }},
    {"frozen", [](Node n, Document d) { d.plan.frozen = read_frozen(n); },
     [](const Plan& p) { return written(p.frozen); }},
    {"lora.rank", [](Node n, Document d) { d.plan.lora.rank = n.as_int(0, plan_limits::kRank); },
     [](const Plan& p) { return Json(p.lora.rank); }},
    {"lora.targets", [](Node n, Document d) { d.plan.lora.targets = read_lora_targets(n); },
     [](const Plan& p) { return written_lora_targets(p.lora.targets); }},
    {"lora.dropout", [](Node n, Document d) { d.plan.lora.dropout = n.as_double(0, 0.999); },
     [](const Plan& p) { return Json(p.lora.dropout); }},
    {"lora.base", [](Node n, Document d) { d.plan.lora.base = read_word(n, kLoraBases); },
     [](const Plan& p) { return Json(word_of(p.lora.base)); }},
    {"ignored", [](Node n, Document d) { d.plan.ignored = read_word(n, kIgnored); },
     [](const Plan& p) { return Json(word_of(p.ignored)); }},
    {"optimizer.kind",
     [](Node n, Document d) { d.plan.optimizer.kind = read_word(n, kOptimizers); },
     [](const Plan& p) { return Json(word_of(p.optimizer.kind)); }},
    {"optimizer.implementation",
     [](Node n, Document d) { d.plan.optimizer.implementation = read_word(n, kImplementations); },
     [](const Plan& p) { return Json(word_of(p.optimizer.implementation)); }},
    {"optimizer.state", [](Node n, Document d) { d.plan.optimizer.state = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.optimizer.state)); }},
    {"optimizer.clip_norm",
     [](Node n, Document d) { d.plan.optimizer.clip_norm = read_optional_positive(n); },
     [](const Plan& p) { return written(p.optimizer.clip_norm); }},
    {"optimizer.learning_rate",
     [](Node n, Document d) { d.plan.optimizer.learning_rate = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.learning_rate); }},
    {"optimizer.beta1", [](Node n, Document d) { d.plan.optimizer.beta1 = read_decay(n); },
     [](const Plan& p) { return Json(p.optimizer.beta1); }},
    {"optimizer.beta2", [](Node n, Document d) { d.plan.optimizer.beta2 = read_decay(n); },
     [](const Plan& p) { return Json(p.optimizer.beta2); }},
    {"optimizer.epsilon", [](Node n, Document d) { d.plan.optimizer.epsilon = read_epsilon(n); },
     [](const Plan& p) { return Json(p.optimizer.epsilon); }},
    {"optimizer.weight_decay",
     [](Node n, Document d) { d.plan.optimizer.weight_decay = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.weight_decay); }},
    {"optimizer.warmup_steps",
     [](Node n, Document d) { d.plan.optimizer.warmup_steps = n.as_int(0, plan_limits::kSteps); },
     [](const Plan& p) { return Json(p.optimizer.warmup_steps); }},
    {"optimizer.decay_steps",
     [](Node n, Document d) { d.plan.optimizer.decay_steps = read_optional_steps(n); },
     [](const Plan& p) { return written(p.optimizer.decay_steps); }},
    {"optimizer.min_learning_rate",
     [](Node n, Document d) { d.plan.optimizer.min_learning_rate = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.min_learning_rate); }},
    {"offload", [](Node n, Document d) { d.plan.offload = read_word(n, kOffloads); },
     [](const Plan& p) { return Json(word_of(p.offload)); }},
    {"buffers.reduce_scatter",
     [](Node n, Document d) { d.plan.reduce_scatter_buffers = n.as_int(1, plan_limits::kBuffers); },
     [](const Plan& p) { return Json(p.reduce_scatter_buffers); }},
    {"communicators",
     [](Node n, Document d) { d.plan.communicators = read_word(n, kCommunicators); },
     [](const Plan& p) { return Json(word_of(p.communicators)); }},
    {"collectives.kernels",
     [](Node n, Document d) { d.plan.collectives.kernels = read_word(n, kCollectiveKernels); },
     [](const Plan& p) { return Json(to_string(p.collectives.kernels)); }},
    {"collectives.max_ctas",
     [](Node n, Document d) { d.plan.collectives.max_ctas = n.as_int(0, plan_limits::kCtas); },
     [](const Plan& p) { return Json(p.collectives.max_ctas); }},
    {"reduction.divide_factor",
     [](Node n, Document d) { d.plan.gradient_divide_factor = read_optional_positive(n); },
     [](const Plan& p) { return written(p.gradient_divide_factor); }},
    {"reduction.force_sum", [](Node n, Document d) { d.plan.force_sum_reduction = n.as_bool(); },
     [](const Plan& p) { return Json(p.force_sum_reduction); }},
    {"allocator", [](Node n, Document d) { d.plan.allocator = read_allocator(n); },
     [](const Plan& p) { return written(p.allocator); }},
    {"host_sync", [](Node n, Document d) { d.plan.host_sync = read_word(n, kHostSyncs); },
     [](const Plan& p) { return Json(word_of(p.host_sync)); }},
    {"reduction_order",
     [](Node n, Document d) { d.plan.reduction_order = read_word(n, kReductionOrders); },
     [](const Plan& p) { return Json(word_of(p.reduction_order)); }},
    {"evaluation.every",
     [](Node n, Document d) { d.plan.evaluation.every = read_optional_steps(n); },
     [](const Plan& p) { return written(p.evaluation.every); }},
    {"evaluation.sequences",
     [](Node n, Document d) {
       d.plan.evaluation.sequences = n.as_int(1, plan_limits::kMicroBatch);
     },
     [](const Plan& p) { return Json(p.evaluation.sequences); }},
    {"evaluation.held_back",
     [](Node n, Document d) { d.plan.evaluation.held_back = n.as_double(0, 0.9); },
     [](const Plan& p) { return Json(p.evaluation.held_back); }},
    {"evaluation.in_step", [](Node n, Document d) { d.plan.evaluation.in_step = n.as_bool(); },
     [](const Plan& p) { return Json(p.evaluation.in_step); }},
    {"seed", [](Node n, Document d) { d.plan.seed = n.as_int(0, plan_limits::kSeed); },
     [](const Plan& p) { return Json(p.seed); }},
    {"rank", [](Node n, Document d) { d.plan.rank = n.as_int(0, plan_limits::kMesh - 1); },
     [](const Plan& p) { return Json(p.rank); }},
    {"surround.tensor", read_surround, nullptr},
    {"surround.context", read_surround, nullptr},
    {"surround.pipeline", read_surround, nullptr},
};

}  // namespace

std::span<const PlanKey> plan_key_table() {
  static const std::vector<PlanKey> table = [] {
    std::vector<PlanKey> keys(std::begin(kKeys), std::end(kKeys));
    const std::span<const PlanKey> options = runtime_option_keys();
    const auto place = std::find_if(keys.begin(), keys.end(),
                                    [](const PlanKey& key) { return key.path == "host_sync"; });
    keys.insert(place, options.begin(), options.end());
    return keys;
  }();
  return table;
}

}  // namespace foreshard
