// Sources, at the revisions that were read:
// - torchtitan 01e1814a, torchtitan/distributed/fsdp.py: apply_fsdp_to_decoder makes units of the
//   embedding, each block, and norm and head together, whose parameters it keeps after forward
//   because backward gathers them first; of tied embeddings one unit with the norm, kept as well;
//   disable_fsdp_gradient_division sets the divide factor to 1 (the loss is divided by the number
//   of tokens). Selective checkpointing and fused AdamW are defaults of its configuration.
// - accelerate, src/accelerate/utils/fsdp_utils.py, fsdp2_prepare_model: fully_shard of each module
//   that the wrapping policy names (the blocks of a transformer), then of the model, all with the
//   same reshard_after_forward, which is True unless told otherwise. Until 1.13 the root's is given
//   too. From 1.14 on (read at 1.15) get_input_embeddings() is a unit, and so is the list of the
//   last norm among the base model's children and get_output_embeddings(), which is never
//   resharded; tied weights join that list; the root takes what is left, with PyTorch's default.
// - accelerate, src/accelerate/utils/dataclasses.py, set_mixed_precision: parameters, reductions
// and
//   outputs in one dtype; the forward of a model that fully_shard prepared runs without autocast.
//   Accelerator.accumulate is set_requires_gradient_sync(False) but for the last micro-batch.
// - transformers 5: a model that is given labels computes its loss in its forward.
// - accelerate, src/accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin with
// fsdp_version
//   1: FULL_SHARD, no backward prefetch, no forward prefetch, use_orig_params false; of mixed
//   precision parameters, reductions and buffers alike (set_mixed_precision).
// - llm-foundry (Composer): blocks are wrapped (`fsdp_wrap_fn`), the model is the root, FULL_SHARD.
//   Composer's own default for the root is PyTorch's. FullyShardedDataParallel: composer 008dac70,
//   composer/utils/parallelism.py, FSDPConfig (BACKWARD_POST, use_orig_params, limit_all_gathers);
//   llm-foundry 15fb4ffa, scripts/train/yamls/pretrain/mpt-7b.yaml (mixed_precision: PURE, which
//   reduces in the dtype of the parameters).
// - fairscale ab71efb3, fairscale/nn/data_parallel/fully_sharded_data_parallel.py: what PyTorch's
//   FullyShardedDataParallel began as. reshard_after_forward True; a unit's gather is awaited where
//   it is issued (_rebuild_full_params), so there is no prefetch and no limiter; flat parameters
//   without alignment; fp32_reduce_scatter False. Gradients of less than bucket_cap_mb (25) are
//   reduced together there, which is not modelled: those of blocks are larger.
#include "sim/spec/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "sim/base/error.h"
#include "sim/spec/checks/capabilities.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

class Habits {
 public:
  explicit Habits(const PlanDocument& document) : document_(document) {}

  // The first value that is filled in stays.
  template <typename T, typename U>
  void fill(std::string_view key, T& field, const U& value) {
    if (document_.has(key) || std::find(keys_.begin(), keys_.end(), key) != keys_.end()) return;
    field = value;
    keys_.push_back(key);
  }
  std::vector<std::string_view> keys() && { return std::move(keys_); }

 private:
  const PlanDocument& document_;
  std::vector<std::string_view> keys_;
};

void torchtitan(const PlanDocument& document, const ModelSpec& model, Plan& plan, Habits& habits) {
  const bool says_where = document.has("units.embedding") || document.has("units.head");
  const bool is_one_unit = plan.units.embedding == UnitPlacement::kWithHead;
  if (!model.tied_embeddings || !says_where) {
    habits.fill("units.embedding", plan.units.embedding,
                model.tied_embeddings ? UnitPlacement::kWithHead : UnitPlacement::kOwn);
    habits.fill("units.head", plan.units.head, UnitPlacement::kWithNorm);
  } else if (!is_one_unit) {
    // Where the user moves one end of a tied model the other follows, as in resolve().
    if (!document.has("units.embedding")) plan.units.embedding = UnitPlacement::kRoot;
    if (!document.has("units.head")) plan.units.head = UnitPlacement::kRoot;
  }
  const std::int64_t first = has_root_unit(plan, model) ? 1 : 0;
  const Reshard never{Reshard::Kind::kNever, 0};
  RangedPolicy<Reshard> reshard;
  if (plan.units.embedding == UnitPlacement::kWithHead) {
    reshard.ranges.push_back({first, first, never});
  } else if (plan.units.head != UnitPlacement::kRoot) {
    const std::int64_t last = unit_count(plan, model) - 1;
    reshard.ranges.push_back({last, last, never});
  }
  habits.fill("reshard_after_forward", plan.reshard_after_forward, reshard);
  habits.fill("recompute", plan.recompute, RangedPolicy<Recompute>{Recompute::kSelective, {}});
  habits.fill("accumulation.mode", plan.accumulation, AccumulationMode::kReduceEach);
  habits.fill("optimizer.implementation", plan.optimizer.implementation,
              Optimizer::Implementation::kFused);
  const bool has_experts =
      std::any_of(model.kinds.begin(), model.kinds.end(), [](const LayerSpec& layer) {
        return std::any_of(layer.parameters.begin(), layer.parameters.end(),
                           [](const ParameterSpec& p) { return p.shape.size() > 2; });
      });
  if (has_experts && has_capability(plan.runtime, "units.shard_dim != 0")) {
    habits.fill("units.shard_dim", plan.units.shard_dim, Units::kExpertsDim);
  }
  if (has_capability(plan.runtime, "reduction.divide_factor != none")) {
    habits.fill("reduction.divide_factor", plan.gradient_divide_factor, 1.0);
  }
}

void wrap_blocks(Plan& plan, Habits& habits) {
  habits.fill("units.blocks", plan.units.blocks, UnitPlacement::kOwn);
  habits.fill("units.embedding", plan.units.embedding, UnitPlacement::kRoot);
  habits.fill("units.head", plan.units.head, UnitPlacement::kRoot);
}

void fsdp1(const PlanDocument& document, Plan& plan, Habits& habits) {
  wrap_blocks(plan, habits);
  const bool is_composer = document.trainer == Trainer::kLlmFoundry;
  habits.fill("reshard_after_forward", plan.reshard_after_forward, RangedPolicy<Reshard>{});
  habits.fill("prefetch.forward", plan.prefetch.forward, Prefetch::kImplicit);
  habits.fill("prefetch.backward", plan.prefetch.backward, is_composer ? 1 : 0);
  habits.fill(
      "fsdp1.backward_prefetch", plan.fsdp1.backward_prefetch,
      is_composer ? Fsdp1Options::BackwardPrefetch::kPost : Fsdp1Options::BackwardPrefetch::kPre);
  habits.fill("fsdp1.limit_all_gathers", plan.fsdp1.limit_all_gathers,
              document.trainer != Trainer::kFairscale);
  habits.fill("fsdp1.use_orig_params", plan.fsdp1.use_orig_params, is_composer);
  habits.fill("dtype.reduce", plan.reduce_dtype, plan.param_dtype);
}

// "model.norm.weight" is one, "model.decoder.final_layer_norm.weight" and, of a model that is its
// own base, "decoder.final_layer_norm.weight" are not.
bool is_child_of_base(const LayerSpec& layer) {
  if (layer.parameters.empty()) return false;
  const std::string& name = layer.parameters.front().name;
  return !name.starts_with("decoder.") && std::count(name.begin(), name.end(), '.') == 2;
}

bool reads_images(const LayerSpec& layer) {
  return layer.role == LayerRole::kEmbedding && !layer.tensors.empty() &&
         layer.tensors.front().type != ElementType::kInt64;
}

// The units of Accelerate from 1.14 on. The last norm counts where it is a child of the base model,
// which none is under PEFT's wrapper; a classifier is no output embedding.
void wrap_ends(const ModelSpec& model, Plan& plan, Habits& habits) {
  const bool has_norm =
      plan.lora.rank == 0 &&
      std::any_of(model.kinds.begin(), model.kinds.end(), [](const LayerSpec& layer) {
        return layer.role == LayerRole::kFinalNorm && is_child_of_base(layer);
      });
  const bool has_words =
      std::none_of(model.kinds.begin(), model.kinds.end(), reads_images) || model.image_tokens > 0;
  habits.fill("units.blocks", plan.units.blocks, UnitPlacement::kOwn);
  habits.fill("units.table_alone", plan.units.table_alone, true);
  habits.fill("units.embedding", plan.units.embedding,
              model.tied_embeddings ? UnitPlacement::kWithHead : UnitPlacement::kOwn);
  habits.fill("units.head", plan.units.head,
              !has_words ? (has_norm ? UnitPlacement::kNorm : UnitPlacement::kRoot)
              : has_norm ? UnitPlacement::kWithNorm
                         : UnitPlacement::kOwn);
  const std::int64_t first = has_root_unit(plan, model) ? 1 : 0;
  const std::int64_t last = unit_count(plan, model) - 1;
  const std::int64_t tail = plan.units.embedding == UnitPlacement::kWithHead ? first : last;
  RangedPolicy<Reshard> reshard;
  if (plan.units.head != UnitPlacement::kRoot) {
    reshard.ranges.push_back({tail, tail, {Reshard::Kind::kNever, 0}});
  }
  habits.fill("reshard_after_forward", plan.reshard_after_forward, reshard);
}

void accelerate(const PlanDocument& document, const ModelSpec& model, Plan& plan, Habits& habits) {
  constexpr std::int32_t kUnitsOfEnds = 14;
  const bool ends = trainer_minor(document.trainer_version).value_or(kUnitsOfEnds) >= kUnitsOfEnds;
  if (ends && has_capability(plan.runtime, "units.head = with_norm")) {
    wrap_ends(model, plan, habits);
  } else {
    // _no_split_modules names the embeddings of images as well.
    if (std::any_of(model.kinds.begin(), model.kinds.end(), reads_images)) {
      habits.fill("units.embedding", plan.units.embedding, UnitPlacement::kOwn);
      habits.fill("units.head", plan.units.head, UnitPlacement::kRoot);
    }
    wrap_blocks(plan, habits);
    RangedPolicy<Reshard> reshard;
    if (has_root_unit(plan, model)) reshard.ranges.push_back({0, 0, Reshard{}});
    habits.fill("reshard_after_forward", plan.reshard_after_forward, reshard);
  }
  habits.fill("dtype.reduce", plan.reduce_dtype, plan.param_dtype);
  if (plan.param_dtype != DType::kFp32) {
    habits.fill("dtype.output", plan.output_dtype, plan.param_dtype);
  }
  habits.fill("accumulation.mode", plan.accumulation, AccumulationMode::kKeepUnsharded);
  habits.fill("loss_in_forward", plan.loss_in_forward, true);
}

bool trains_with(Trainer trainer, RuntimeKind kind) {
  if (kind == RuntimeKind::kFsdp1) return trainer != Trainer::kTorchtitan;
  return kind == RuntimeKind::kFsdp2 && trainer != Trainer::kFairscale;
}

}  // namespace

const char* to_string(Trainer trainer) {
  switch (trainer) {
    case Trainer::kNone:
      return "none";
    case Trainer::kTorchtitan:
      return "torchtitan";
    case Trainer::kAccelerate:
      return "accelerate";
    case Trainer::kLlmFoundry:
      return "llm-foundry";
    case Trainer::kFairscale:
      return "fairscale";
  }
  return "?";
}

std::optional<std::int32_t> trainer_minor(std::string_view version) {
  if (!version.starts_with("1.")) return std::nullopt;
  std::int32_t minor = 0;
  const char* const end = version.data() + version.size();
  const auto [at, failure] = std::from_chars(version.data() + 2, end, minor);
  if (failure != std::errc() || (at != end && *at != '.')) return std::nullopt;
  return minor;
}

std::vector<std::string_view> apply_trainer(const PlanDocument& document, const ModelSpec& model,
                                            Plan& plan) {
  Habits habits(document);
  if (document.trainer == Trainer::kNone) return {};
  if (!trains_with(document.trainer, plan.runtime.kind)) {
    const Location location = document.given.at("trainer").location;
    const char* nearest = document.trainer == Trainer::kFairscale ? "fsdp1" : "fsdp2";
    const std::string what =
        fmt::format("{} trains with {}; nearest plan: runtime: {}, or trainer: none",
                    to_string(document.trainer), nearest, nearest);
    throw Error(ExitCode::kMissingCapability, ConfigError(location, what).what());
  }
  if (plan.runtime.kind == RuntimeKind::kFsdp1) {
    fsdp1(document, plan, habits);
    return std::move(habits).keys();
  }
  switch (document.trainer) {
    case Trainer::kNone:
    case Trainer::kFairscale:
      break;
    case Trainer::kTorchtitan:
      torchtitan(document, model, plan, habits);
      break;
    case Trainer::kAccelerate:
      accelerate(document, model, plan, habits);
      break;
    case Trainer::kLlmFoundry:
      wrap_blocks(plan, habits);
      habits.fill("reshard_after_forward", plan.reshard_after_forward, RangedPolicy<Reshard>{});
      break;
  }
  return std::move(habits).keys();
}

}  // namespace foreshard
