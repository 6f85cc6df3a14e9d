// Which axes a runtime has, what they do not go with, and what they must divide.
//
// Divisors: torchtitan 0.2.2 has no replication of key/value heads (a view fails where tp does not
// divide them), splits positions in chunks of 2 * cp, each cut by tp, and experts evenly.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "sim/base/lookup.h"
#include "sim/spec/checks/capabilities.h"
#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

struct AskedAxis {
  const char* key;
  std::int64_t size;
};

std::vector<AskedAxis> asked_axes(const Plan& plan) {
  const Mesh& mesh = plan.mesh;
  std::vector<AskedAxis> list = {
      {"mesh.tp", mesh.tp}, {"mesh.cp", mesh.cp}, {"mesh.ep", mesh.ep}, {"mesh.etp", mesh.etp}, {"mesh.pp", mesh.pp}};
  std::erase_if(list, [](const AskedAxis& axis) { return axis.size == 1; });
  return list;
}

// Beside replicate and shard: those that the runtime has, and all of its axes in words.
struct RuntimeAxes {
  std::vector<std::string_view> keys;
  const char* words = "replicate and shard";
};

RuntimeAxes axes_of(const Runtime& runtime) {
  const RuntimeAxes every{{"mesh.tp", "mesh.cp", "mesh.ep", "mesh.etp", "mesh.pp"}, ""};
  switch (runtime.kind) {
    case RuntimeKind::kNative: return {{"mesh.tp"}, "replicate, shard and tp"};
    case RuntimeKind::kMegatron: return every;
    case RuntimeKind::kZero1: return {{"mesh.cp", "mesh.pp"}, "replicate, shard, cp and pp"};
    case RuntimeKind::kZero2:
    case RuntimeKind::kZero3: return {{"mesh.cp"}, "replicate, shard and cp"};
    case RuntimeKind::kFsdp2:
      return fsdp2_minor(runtime.version).value_or(0) >= kOldestFsdp2WithAxes ? every : RuntimeAxes();
    default: return {};
  }
}

// Without fully_shard (mesh.shard, mesh.cp and mesh.replicate 1) parameters are plain tensors.
Problem problem_of_company(const Plan& plan, const char* key) {
  const std::string who = fmt::format("{}@{} with {}", to_string(plan.runtime.kind), plan.runtime.version, key);
  if (Problem problem = problem_of_capability(plan, Capability::Of::kAxes, who)) return problem;
  const bool is_fsdp2 = plan.runtime.kind == RuntimeKind::kFsdp2;
  if (!is_fsdp2 || plan.mesh.is_wrapped()) return std::nullopt;
  return problem_of_capability(plan, Capability::Of::kPlainTensors,
      fmt::format("{} without fully_shard (mesh.shard, mesh.cp and mesh.replicate 1)",
          plan.mesh.tp > 1 ? "mesh.tp" : "mesh.pp"));
}

// The greatest power of two below `parts` that cuts `width` into parts of whole blocks; at least 1.
std::int64_t nearest_parts(std::int64_t width, std::int64_t parts, std::int64_t block) {
  do {
    parts /= 2;
  } while (parts > 1 && width % (parts * block) != 0);
  return std::max<std::int64_t>(parts, 1);
}

// The engine's tensor parallelism cuts every width into parts of whole blocks of 32 elements, the
// grid of the gradients' norm, and adds sums of ranks in pairs.
Problem problem_of_native(const Plan& plan, const ModelSpec& model) {
  constexpr std::int64_t kBlock = 32;
  const std::int64_t named = slices_of(plan.reduction_order);
  const bool by_order = named > plan.mesh.tp;
  const char* const kKey = by_order ? "reduction_order" : "mesh.tp";
  const std::int64_t parts = std::max(named, plan.mesh.tp);
  if ((parts & (parts - 1)) != 0) {
    std::int64_t below = 1;
    while (below * 2 < parts) below *= 2;
    return contradiction(kKey, fmt::format("{} is no power of two: the engine adds the ranks' sums in pairs", parts),
        fmt::format("{} or {}", below, 2 * below));
  }
  const auto nearest_word = [&](std::int64_t count) {
    if (!by_order) return std::to_string(count);
    return count > 1 ? fmt::format("microbatch_{}", count) : std::string("microbatch");
  };
  if (named > 1 && plan.mesh.tp > named) {
    return contradiction("reduction_order", fmt::format("{} slices are fewer than mesh.tp {}", named, plan.mesh.tp),
        "microbatch, or one of as many slices");
  }
  const std::int64_t tokens = checked_multiply(plan.batch.sequence, plan.batch.micro_batch);
  if (tokens % parts != 0) {
    return contradiction(kKey, fmt::format("{} tokens of a micro-batch are not cut into {} parts", tokens, parts),
        nearest_word(nearest_parts(tokens, parts, 1)));
  }
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      if (op.kind == OperationKind::kAttention && op.inputs.size() == 1) {
        return missing_capability(kKey, "the engine does not cut one projection for queries, keys and values",
            "a model with a projection each, or mesh.tp: 1");
      }
      if (op.kind == OperationKind::kNorm && layer.tensors[at(op.outputs.front())].per_token != model.hidden) {
        return missing_capability(
            kKey, "the engine does not cut norms of heads", "a model without them, or mesh.tp: 1");
      }
      if (op.groups > 1) return missing_capability(kKey, "the engine has no experts", "mesh.tp: 1");
      if (op.kind != OperationKind::kGemm) continue;
      for (const auto& [what, width] : {std::pair("columns", op.n), std::pair("features", op.k)}) {
        if (width % checked_multiply(parts, kBlock) == 0) continue;
        return contradiction(kKey,
            fmt::format("the {} {} of {} of {} are not cut into {} parts of whole blocks of {}", width, what, op.name,
                model.name, parts, kBlock),
            nearest_word(nearest_parts(width, parts, kBlock)));
      }
    }
  }
  return std::nullopt;
}

std::string nearest(std::int64_t n, std::int64_t x) {
  return fmt::format("a divisor of {}, for example {}", n, fmt::join(nearest_divisors(n, x), " or "));
}

// A mixer's heads are cut with their groups; its scan over parts of a sequence is not modelled.
Problem problem_of_scans(const Plan& plan, const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const bool whole = op.function == Function::kDeltaRule || op.function == Function::kConvolve;
      if (whole && (plan.mesh.tp > 1 || plan.mesh.cp > 1)) {
        const char* key = plan.mesh.tp > 1 ? "mesh.tp" : "mesh.cp";
        return missing_capability(key,
            "linear attention and short convolutions are not modelled over parts of their channels or of a sequence",
            fmt::format("{}: 1", key));
      }
      if (op.scan.heads == 0) continue;
      if (plan.mesh.cp > 1)
        return missing_capability("mesh.cp", "Mamba-2's scan is not modelled over parts of a sequence", "mesh.cp: 1");
      if (plan.kernels.torch_mixers && plan.mesh.tp > 1) {
        return missing_capability("kernels.torch_mixers",
            "transformers' own operations are not modelled over parts of the heads", "kernels.torch_mixers: false");
      }
      if (op.scan.groups % plan.mesh.tp == 0) continue;
      return contradiction("mesh.tp",
          fmt::format("{} does not divide the {} groups of {}'s mixers", plan.mesh.tp, op.scan.groups, model.name),
          nearest(op.scan.groups, plan.mesh.tp));
    }
  }
  return std::nullopt;
}

// Ulysses gives each rank of cp a part of the heads that tp leaves. Ranks of Megatron-Core's tp
// share what fewer heads there are of keys and values.
Problem problem_of_heads(const Plan& plan, const ModelSpec& model) {
  const bool shares_heads = plan.mesh.cp > 1 && plan.context_parallel.rotate == ContextParallel::Rotate::kUlysses;
  const std::int64_t ranks = plan.mesh.tp * (shares_heads ? plan.mesh.cp : 1);
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      const AttentionShape& shape = op.attention;
      if (op.kind != OperationKind::kAttention || shape.kv_heads % ranks == 0) continue;
      // deepspeed/runtime/sequence_parallel/ulysses_sp.py repeats fewer heads for each rank.
      const bool shares_keys = plan.runtime.kind == RuntimeKind::kMegatron ? !shares_heads : is_zero(plan.runtime.kind);
      if (shares_keys && ranks % shape.kv_heads == 0 && shape.heads % ranks == 0) continue;
      if (shape.kv_heads % plan.mesh.tp == 0) {
        const std::int64_t left = shape.kv_heads / plan.mesh.tp;
        return contradiction("mesh.cp",
            fmt::format("{} does not divide the {} key/value heads of {} that tp {} leaves, which ulysses shares",
                plan.mesh.cp, left, model.name, plan.mesh.tp),
            nearest(left, plan.mesh.cp));
      }
      return contradiction("mesh.tp",
          fmt::format("{} does not divide the {} key/value heads of {}", plan.mesh.tp, shape.kv_heads, model.name),
          nearest(shape.kv_heads, plan.mesh.tp));
    }
  }
  return std::nullopt;
}

// Ranks of cp send keys and values round and merge what they attend to by its logsumexp: one kernel
// that reads them, from one tensor or three, and leaves it.
Problem problem_of_attention(const Plan& plan, const ModelSpec& model) {
  if (plan.mesh.cp == 1) return std::nullopt;
  for (const LayerSpec& layer : model.kinds) {
    const auto is_cut = [](const Operation& op) {
      return reads_packed_projection(op) ||
             (op.kind == OperationKind::kAttention && op.inputs.size() == 3 && op.outputs.size() >= 2);
    };
    const auto is_other = [&](const Operation& op) {  // ALiBi's bias is of whole sequences
      return op.kind == OperationKind::kAttention && (!is_cut(op) || model.numerics.alibi);
    };
    const auto& operations = layer.operations;
    if (std::ranges::none_of(operations, is_other) &&
        (layer.role != LayerRole::kBlock || std::ranges::any_of(operations, is_cut)))
      continue;
    return missing_capability("mesh.cp",
        fmt::format("attention of {} is no kernel that reads queries, keys and values apart and leaves its logsumexp",
            model.name),
        "mesh.cp: 1");
  }
  return std::nullopt;
}

// A product's columns are cut, and a norm reads whole rows.
Problem problem_of_norms(const Plan& plan, const ModelSpec& model) {
  if (plan.mesh.tp == 1) return std::nullopt;
  for (const LayerSpec& layer : model.kinds) {
    const auto is_product = [](const Operation& op) { return op.kind == OperationKind::kGemm; };
    const bool transforms = layer.role == LayerRole::kFinalNorm || (layer.role == LayerRole::kInner && !layer.tower);
    if (!transforms || std::ranges::none_of(layer.operations, is_product)) continue;
    return missing_capability(
        "mesh.tp", fmt::format("{} multiplies in front of its head's norm", model.name), "mesh.tp: 1");
  }
  return std::nullopt;
}

// torchtitan 0.3.0, components/loss.py ("expected local vocab size"): the last ranks' parts are padded.
Problem problem_of_words(const Plan& plan, const ModelSpec& model) {
  if (!is_titan_3(plan) || !plan.tensor_parallel.loss || model.vocabulary % plan.mesh.tp == 0) return std::nullopt;
  return contradiction("mesh.tp",
      fmt::format("{} does not divide the {} words of {}, as torchtitan's loss parallel asks from 0.3 on", plan.mesh.tp,
          model.vocabulary, model.name),
      nearest(model.vocabulary, plan.mesh.tp));
}

Problem problem_of_positions(const Plan& plan) {
  const bool balances = plan.mesh.cp > 1 && plan.context_parallel.balance == ContextParallel::Balance::kHeadTail;
  const std::int64_t chunks = plan.mesh.cp * (balances ? 2 : 1);
  const std::int64_t parts = checked_multiply(chunks, plan.mesh.tp);
  const std::int64_t sequence = plan.batch.sequence;
  if (sequence % parts == 0) return std::nullopt;
  const std::int64_t below = sequence / parts * parts;
  return contradiction("batch.sequence",
      fmt::format("{} positions are not cut evenly into {} parts ({}cp {} x tp {})", sequence, parts,
          balances ? "2 x " : "", plan.mesh.cp, plan.mesh.tp),
      below == 0 ? std::to_string(parts) : fmt::format("{} or {}", below, below + parts));
}

// Whose base_model_tp_plan (transformers 5.17) leaves attention whole.
constexpr std::string_view kWholeLatents[] = {"axk1", "deepseek_v3", "kimi_linear", "mistral4", "youtu"};

Problem problem_of_expert_axes(const Plan& plan, const ModelSpec& model) {
  const Mesh& mesh = plan.mesh;
  std::int64_t experts = 0;
  for (const LayerSpec& layer : model.kinds)
    for (const Operation& op : layer.operations) experts = std::max(experts, op.groups);
  const bool latent = std::ranges::any_of(model.kinds, has_latents);
  // What is redistributed where a module begins (torchtitan 0.3), or as a plan of transformers has it (which has none
  // for experts with biases).
  const auto adds_biases = [](const Operation& op) { return op.groups > 1 && op.parameters.size() > 1; };
  const bool is_by_plan =
      plan.transformers() == 5 && mesh.ep == 1 && plan.tensor_parallel.tables != TensorParallel::Tables::kCut &&
      (!latent || contains(kWholeLatents, model.family)) &&
      std::ranges::none_of(
          model.kinds, [&](const LayerSpec& layer) { return std::ranges::any_of(layer.operations, adds_biases); });
  if (mesh.tp > 1 && !plan.tensor_parallel.sequence && (latent || experts > 1) && !is_titan_3(plan) && !is_by_plan) {
    return missing_capability("tensor_parallel.sequence",
        latent ? "latent attention is modelled with sequence parallel" : "experts are modelled with sequence parallel",
        "tensor_parallel.sequence: true");
  }
  const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
  if (is_megatron && mesh.tp > 1 && experts > 1 && mesh.ep == 1 && mesh.etp == 1) {
    return missing_capability("mesh.ep",
        fmt::format(
            "{}@{} is modelled with experts spread over ranks", to_string(plan.runtime.kind), plan.runtime.version),
        fmt::format("mesh.ep: 2, or mesh.etp: {}", mesh.tp));
  }
  // Flex dispatchers send a token to each of the ranks that share its expert.
  const bool is_flex = plan.expert_parallel.dispatcher != ExpertParallel::Dispatcher::kAllToAll;
  if (is_megatron && mesh.etp > 1 && is_flex) {
    return missing_capability("expert_parallel.dispatcher",
        "with mesh.etp rows are modelled as MoEAlltoAllTokenDispatcher sends them", "alltoall");
  }
  if (mesh.ep == 1 && mesh.etp == 1) return std::nullopt;
  if (experts <= 1) return contradiction("mesh.ep", fmt::format("{} has no experts", model.name), "1");
  if (mesh.ep > 1 && plan.units.experts != UnitPlacement::kOwn && !is_megatron)
    return contradiction("units.experts", "experts that ranks share are units of their own", "own");
  if (mesh.etp != 1 && mesh.etp != mesh.tp) {
    return contradiction("mesh.etp", fmt::format("{} is neither 1 nor mesh.tp", mesh.etp),
        mesh.tp == 1 ? "1" : fmt::format("1 or {}", mesh.tp));
  }
  if (experts % mesh.ep != 0) {
    return contradiction("mesh.ep",
        fmt::format("{} does not divide the {} experts of {}", mesh.ep, experts, model.name),
        nearest(experts, mesh.ep));
  }
  const std::int64_t ranks = mesh.fsdp() * mesh.tp;
  if (ranks % (mesh.ep * mesh.etp) != 0) {
    return contradiction("mesh.ep",
        fmt::format("ep {} x etp {} does not divide the {} ranks of shard, cp and tp", mesh.ep, mesh.etp, ranks),
        nearest(ranks / mesh.etp, mesh.ep));
  }
  const std::vector<std::int64_t>& sent = plan.expert_parallel.sent;
  const std::vector<std::int64_t>& received = plan.expert_parallel.received;
  const std::vector<std::int64_t>& counts = plan.expert_parallel.counts;
  if (!counts.empty() && std::ssize(counts) != experts) {
    return contradiction("expert_parallel.counts",
        fmt::format("{} counts are not those of the {} experts of {}", counts.size(), experts, model.name),
        fmt::format("{} numbers", experts));
  }
  const auto ranks_of = [&](const std::vector<std::int64_t>& rows) {
    return rows.empty() || std::ssize(rows) == mesh.ep;
  };
  if (!ranks_of(sent) || !ranks_of(received) || sent.empty() != received.empty()) {
    return contradiction("expert_parallel",
        fmt::format("{} rows sent and {} received are not those of ep {}", sent.size(), received.size(), mesh.ep),
        fmt::format("{} numbers each", mesh.ep));
  }
  return std::nullopt;
}

// What torch.distributed.pipelining's schedules ask of micro-batches and stages (schedules.py).
Problem problem_of_schedule(const Plan& plan) {
  using enum PipelineSchedule;
  const PipelineSchedule schedule = plan.pipeline.schedule;
  const std::int64_t stages = plan.pipeline.stages_per_rank, ranks = plan.mesh.pp;
  const bool is_call = plan.pipeline.microbatches > 0;
  const std::int64_t all = is_call ? plan.pipeline.microbatches : plan.batch.accumulation;
  const char* const key_of_all = is_call ? "pipeline.microbatches" : "batch.accumulation";
  const auto refused = [&](const char* key, std::int64_t value, const char* of, const std::string& expected) {
    return contradiction(key, fmt::format("{} {} under {}", value, of, to_string(schedule)), expected);
  };
  const bool is_v = schedule == kZbvZeroBubble || schedule == kDualPipeV;
  const std::int64_t only = is_v ? 2 : 1;
  if ((is_v || schedule == kGPipe || schedule == k1F1B) && stages != only)
    return refused("pipeline.stages_per_rank", stages, "stages on a rank", std::to_string(only));
  const bool fills = schedule == k1F1B && plan.runtime.kind == RuntimeKind::kFsdp2;
  const std::int64_t least = fills ? ranks : schedule == kDualPipeV ? 2 * ranks : 1;
  if (all < least) {
    return refused(key_of_all, all, "micro-batches",
        fmt::format("as many as {}, {}, or more", fills ? "mesh.pp" : "stages", least));
  }
  const bool has_rounds = schedule == kInterleaved1F1B || schedule == kInterleavedZeroBubble;
  const std::int64_t rounds = has_rounds ? std::max<std::int64_t>(1, all / ranks) : 1;
  if (all % rounds == 0) return std::nullopt;
  return refused(key_of_all, all, "micro-batches",
      fmt::format("a multiple of mesh.pp, such as {} or {}", all / ranks * ranks, (all / ranks + 1) * ranks));
}

// Stages of a chain of blocks.
Problem problem_of_pipeline(const Plan& plan, const ModelSpec& model) {
  if (plan.mesh.pp == 1) return std::nullopt;
  const auto refused = [&](const char* what) {
    return missing_capability("mesh.pp", fmt::format("{} {}", model.name, what), "mesh.pp: 1");
  };
  if (model.tied_embeddings && plan.runtime.kind == RuntimeKind::kFsdp2)
    return refused("shares a table between its first and last stage");
  std::int64_t embeddings = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& spec = model.kinds[at(layer.kind)];
    embeddings += spec.role == LayerRole::kEmbedding ? 1 : 0;
    if (layer.same_as >= 0) return refused("runs layers more than once");
    if (spec.role == LayerRole::kInner || spec.joins >= 0) return refused("is no chain of blocks");
  }
  if (embeddings != 1) return refused("is no chain of blocks");
  if (!plan.reshard_after_forward.ranges.empty() || !plan.unshard_in_backward.ranges.empty()) {
    return missing_capability(
        "reshard_after_forward", "ranks of a pipeline have units of their own", "one value for all units");
  }
  if (plan.pipeline.splits_backward()) {
    const std::string schedule = fmt::format("pipeline.schedule {}", to_string(plan.pipeline.schedule));
    if (plan.reshard_after_forward.value.kind != Reshard::Kind::kNever) {
      return contradiction("reshard_after_forward",
          schedule + " makes gradients of weights when these are sharded again, and loses them (PyTorch 2.11)",
          "never");
    }
    // "Trying to backward an extra time" (torch.utils.checkpoint).
    const auto repeats = [](Recompute mode) { return mode == Recompute::kSelective; };
    if (repeats(plan.recompute.value) ||
        std::ranges::any_of(plan.recompute.ranges, [&](const auto& r) { return repeats(r.value); }))
      return missing_capability("recompute", schedule + " goes through a block's cache once", "full");
    if (plan.mesh.ep > 1 && (plan.recompute.value != Recompute::kNone || !plan.recompute.ranges.empty()))
      return missing_capability("recompute", schedule + " with mesh.ep is modelled with what forward has kept", "none");
  }
  if (const std::int64_t each = plan.pipeline.microbatches; each > 0 && plan.batch.accumulation % each != 0) {
    return contradiction("pipeline.microbatches",
        fmt::format("{} micro-batches of a step are no calls of {}", plan.batch.accumulation, each),
        "a divisor of batch.accumulation");
  }
  const std::vector<std::int64_t> blocks = blocks_of_stages(model, plan);
  // The first and the last one have other layers.
  const bool is_whole = blocks.front() >= 0 && blocks.back() >= 0 &&
                        std::all_of(blocks.begin() + 1, blocks.end() - 1, [](std::int64_t count) { return count > 0; });
  if (is_whole) return problem_of_schedule(plan);
  return contradiction("mesh.pp",
      fmt::format(
          "the {} blocks of {} leave a stage of {} without one", model.block_count(), model.name, blocks.size()),
      fmt::format("at most {} stages", std::max<std::int64_t>(1, model.block_count() / 2)));
}

}

std::optional<PlanProblem> problem_of_runtime_axes(const Plan& plan) {
  const RuntimeAxes axes = axes_of(plan.runtime);
  for (const AskedAxis& asked : asked_axes(plan)) {
    if (contains(axes.keys, asked.key)) continue;
    return missing_capability(asked.key,
        fmt::format(
            "{}@{} is modelled with the axes {} alone", to_string(plan.runtime.kind), plan.runtime.version, axes.words),
        fmt::format("{}: 1, or runtime: fsdp2@2.{}", asked.key, kOldestFsdp2WithAxes));
  }
  if (!is_zero(plan.runtime.kind) || plan.mesh.cp == 1 ||
      plan.context_parallel.rotate == ContextParallel::Rotate::kUlysses)
    return std::nullopt;
  return missing_capability("context_parallel.rotate",
      fmt::format("{}@{} has DeepSpeed-Ulysses", to_string(plan.runtime.kind), plan.runtime.version),
      "context_parallel.rotate: ulysses");
}

std::optional<PlanProblem> problem_of_axes(const Plan& plan, const ModelSpec& model) {
  const std::vector<AskedAxis> asked = asked_axes(plan);
  const bool is_native = plan.runtime.kind == RuntimeKind::kNative;
  if (asked.empty() && is_native && slices_of(plan.reduction_order) > 1) return problem_of_native(plan, model);
  if (asked.empty()) return std::nullopt;
  const char* key = asked.front().key;
  if (Problem problem = problem_of_company(plan, key)) return problem;
  if (Problem problem = problem_of_pipeline(plan, model)) return problem;
  if (Problem problem = problem_of_heads(plan, model)) return problem;
  if (Problem problem = problem_of_scans(plan, model)) return problem;
  if (Problem problem = problem_of_attention(plan, model)) return problem;
  if (Problem problem = problem_of_positions(plan)) return problem;
  if (Problem problem = problem_of_words(plan, model)) return problem;
  if (Problem problem = problem_of_norms(plan, model)) return problem;
  if (is_native) return problem_of_native(plan, model);
  return problem_of_expert_axes(plan, model);
}

}
