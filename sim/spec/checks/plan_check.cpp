// find_problem runs a list of small rules in the order of the plan's keys; each looks at one matter
// and returns the first contradiction it sees. Rules about values hold for every runtime; what a
// runtime cannot express is capabilities.txt's.
#include "sim/spec/checks/plan_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/size_units.h"

namespace foreshard {

const char* newest_version(RuntimeKind kind) {
  static const std::string kFsdp2 = fmt::format("2.{}", kNewestFsdp2);
  switch (kind) {
    case RuntimeKind::kFsdp2: return kFsdp2.c_str();
    case RuntimeKind::kNative: return "1";
    case RuntimeKind::kFsdp1:
    case RuntimeKind::kDdp: return "2.11";
    case RuntimeKind::kMegatron: return "0.20";
    case RuntimeKind::kZero1:
    case RuntimeKind::kZero2:
    case RuntimeKind::kZero3: return "0.19";
  }
  return "?";
}

bool has_engine_modules(const Runtime& runtime) {
  return runtime.kind == RuntimeKind::kMegatron && runtime.version != kLocalMegatron;
}

namespace {

using Problem = std::optional<PlanProblem>;

const LayerSpec& kind_of(const ModelSpec& model, const LayerInstance& layer) { return model.kinds[at(layer.kind)]; }

// A table of positions stands beside the table of words in the embedding's layer.
bool has_learned_positions(const ModelSpec& model) {
  return std::ranges::any_of(
      model.order,
      [&](const LayerInstance& layer) {
        const LayerSpec& kind = kind_of(model, layer);
        if (kind.role != LayerRole::kEmbedding) return false;
        return std::any_of(
            kind.parameters.begin() + (kind.parameters.empty() ? 0 : 1), kind.parameters.end(),
            [&](const ParameterSpec& parameter) {
              return parameter.shape.size() == 2 && parameter.shape[0] == model.max_positions;
            });
      });
}

std::string expected_number(const PlanKeyType& type) {
  if (type.kind == PlanKeyType::Kind::kInteger)
    return fmt::format("an integer from {} to {}", format_count(type.least), format_count(type.most));
  const std::string none = type.words == 0 ? "" : fmt::format(", or {}", type.word(0));
  if (type.above_least) return fmt::format("a number above {}{}", type.least_number, none);
  return fmt::format(
      "a number from {} to {}{}{}", type.least_number, type.below_most ? "below " : "", type.most_number, none);
}

// Numbers outside of their key's range.
Problem problem_of_bounds(const Plan& plan) {
  using Kind = PlanKeyType::Kind;
  for (const PlanKey& key : plan_key_table()) {
    const PlanKeyType& type = key.type;
    const bool is_integer = type.kind == Kind::kInteger;
    if (key.value == nullptr || (!is_integer && type.kind != Kind::kNumber)) continue;
    const Json value = key.value(plan);
    if (!value.is_number()) continue;
    const double number = value.get<double>();
    const bool is_right = is_integer ? value >= type.least && value <= type.most
                                     : (type.above_least ? number > type.least_number : number >= type.least_number) &&
                                           (type.below_most ? number < type.most_number : number <= type.most_number);
    if (is_right) continue;
    return contradiction(key.path.data(), fmt::format("{} is out of range", value.dump()), expected_number(type));
  }
  return std::nullopt;
}

Problem problem_of_batch(const Plan& plan, const ModelSpec& model) {
  try {
    checked_multiply(checked_multiply(global_batch(plan), plan.batch.sequence), 4);
  } catch (const Error& error) {
    return contradiction("batch", fmt::format("the tokens of a step are too many: {}", error.what()),
        "sequence x micro_batch x accumulation x ranks below 2^61");
  }
  const std::int64_t images = plan.batch.images;
  if (model.fixed_sequence > 0 && plan.batch.sequence != model.fixed_sequence) {
    return contradiction("batch.sequence",
        fmt::format("{} runs on the {} positions that its images have, not on {}", model.name, model.fixed_sequence,
            plan.batch.sequence),
        std::to_string(model.fixed_sequence));
  }
  const RuntimeKind runtime = plan.runtime.kind;
  const bool gathers = plan.mesh.shard > 1 && runtime != RuntimeKind::kDdp && runtime != RuntimeKind::kZero1 &&
                       runtime != RuntimeKind::kZero2;
  if (model.calls > 1 && (gathers || runtime == RuntimeKind::kNative)) {
    return contradiction("runtime",
        fmt::format("{} calls its layers {} times in a step, and each call would "
                    "gather their parameters, which no plan says",
            model.name, model.calls),
        "ddp, zero1 or zero2, or a program that calls its model once, for all "
        "samples; or foreshard predict --capture of the program as it is sharded");
  }
  const auto is_again = [](const LayerSpec& kind) {
    return kind.role != LayerRole::kHead && std::ranges::any_of(kind.parameters, &ParameterSpec::tied);
  };
  if ((runtime == RuntimeKind::kNative || runtime == RuntimeKind::kZero3) &&
      std::ranges::any_of(model.kinds, is_again)) {
    return contradiction("runtime",
        fmt::format("{} uses weights again outside of its head, of which this "
                    "runtime's gathers and gradients are not known",
            model.name),
        "fsdp2, fsdp1, ddp, zero1 or zero2");
  }
  if (model.image_tokens == 0 && images > 0) {
    return contradiction("batch.images", fmt::format("{} has no images among its words", model.name),
        "a model of text and images, for example llava-1.5-7b");
  }
  if (model.image_tokens > 0 && images < 1) {
    return contradiction("batch.images",
        fmt::format("{} needs an image in each sample: its vision tower is gathered in every step", model.name),
        "at least 1");
  }
  if (checked_multiply(images, model.image_tokens) > plan.batch.sequence) {
    return contradiction("batch.images",
        fmt::format("{} images of {} positions do not fit in a sequence of {}", images, model.image_tokens,
            plan.batch.sequence),
        fmt::format("at most {}, or a longer batch.sequence", plan.batch.sequence / model.image_tokens));
  }
  if (plan.batch.sequence > model.max_positions && has_learned_positions(model)) {
    return contradiction("batch.sequence",
        fmt::format("{} exceeds the {} learned positions of {}", plan.batch.sequence, model.max_positions, model.name),
        fmt::format("at most {}", model.max_positions));
  }
  return std::nullopt;
}

Problem problem_of_mesh(const Plan& plan, const Cluster& cluster) {
  const std::int64_t shard = plan.mesh.shard, replicate = plan.mesh.replicate;
  const std::int64_t others = checked_multiply(checked_multiply(plan.mesh.cp, plan.mesh.tp), plan.mesh.pp);
  const std::string stages = plan.mesh.pp > 1 ? fmt::format(" x pp {}", plan.mesh.pp) : "";
  const std::int64_t world = checked_multiply(checked_multiply(shard, replicate), others);
  if (others > 1 && world != cluster.gpus) {
    const std::int64_t left = cluster.gpus / others;
    return contradiction("mesh.shard",
        fmt::format("replicate {} x shard {} x cp {} x tp {}{} = {} ranks, but the cluster has {} GPUs", replicate,
            shard, plan.mesh.cp, plan.mesh.tp, stages, world, cluster.gpus),
        fmt::format("replicate x shard x cp x tp{} = {}", stages.empty() ? "" : " x pp", cluster.gpus),
        cluster.gpus % (others * replicate) == 0 ? std::to_string(left / replicate) : "");
  }
  if (world == cluster.gpus) {
    if (plan.rank() >= 0 && plan.rank() < world) return std::nullopt;
    return contradiction("rank", fmt::format("{} is none of the {} ranks", plan.rank(), world),
        fmt::format("an integer from 0 to {}", world - 1));
  }
  std::vector<std::string> fitting;
  const auto add = [&](std::int64_t s) {
    std::string text = fmt::format("shard {} x replicate {}", s, cluster.gpus / s);
    if (!contains(fitting, text)) fitting.push_back(std::move(text));
  };
  if (cluster.gpus % shard == 0) add(shard);
  if (cluster.gpus % replicate == 0) add(cluster.gpus / replicate);
  if (fitting.empty())
    for (const std::int64_t divisor : nearest_divisors(cluster.gpus, shard)) add(divisor);
  return contradiction("mesh.shard",
      fmt::format(
          "shard {} x replicate {} = {} ranks, but the cluster has {} GPUs", shard, replicate, world, cluster.gpus),
      fmt::format("shard x replicate = {}, for example {}", cluster.gpus, fmt::join(fitting, " or ")));
}

Problem problem_of_units(const Plan& plan, const ModelSpec& model) {
  const std::int64_t blocks = model.block_count();
  if (plan.units.layers_per_unit > std::max<std::int64_t>(blocks, 1)) {
    return contradiction("units.layers_per_unit",
        fmt::format("{} exceeds the {} blocks of {}", plan.units.layers_per_unit, blocks, model.name),
        fmt::format("an integer from 1 to {}", blocks));
  }
  const auto& [layers, embedding, head, block, experts, every, dimension, table, least, adapters, calls] = plan.units;
  using enum UnitPlacement;
  if (embedding == kWithNorm || embedding == kNorm) {
    return contradiction(
        "units.embedding", fmt::format("{} is for the head only", to_string(embedding)), "own, root or with_head");
  }
  if (head == kWithHead)
    return contradiction("units.head", "with_head is for the embedding only", "own, root or with_norm");
  const bool has_norm =
      std::ranges::any_of(model.kinds, [](const LayerSpec& kind) { return kind.role == LayerRole::kFinalNorm; });
  if ((head == kWithNorm || head == kNorm) && !has_norm)
    return contradiction("units.head", fmt::format("{} has no final norm", model.name), "own or root");
  if (embedding == kWithHead && (head == kRoot || head == kNorm)) {
    return contradiction(
        "units.head", fmt::format("{} contradicts units.embedding with_head", to_string(head)), "with_norm");
  }
  if (block != kOwn && block != kRoot)
    return contradiction("units.blocks", "blocks are units or in the root", "own or root");
  if (experts != kOwn && experts != kRoot)
    return contradiction("units.experts", "experts are units or in their block", "own or block");
  if (adapters && plan.lora.rank == 0)
    return contradiction("units.adapters_alone", "the plan has no adapters", "false, or lora.rank");
  return std::nullopt;
}

// `noun` is what the numbers count: "units" or "layers", of which there are `count`.
template <typename T>
Problem problem_of_ranges(const RangedPolicy<T>& policy, const char* key, const char* noun, std::int64_t count) {
  for (const auto& range : policy.ranges) {
    if (range.first < 0 || range.first > range.last) {
      return contradiction(
          key, fmt::format("{} {}-{} is no range", noun, range.first, range.last), "the lower number first");
    }
    if (range.last >= count) {
      return contradiction(key, fmt::format("{} {}-{} exceed the {} there are", noun, range.first, range.last, count),
          fmt::format("numbers from 0 to {}", count - 1));
    }
  }
  return std::nullopt;
}

Problem problem_of_reshard(const Plan& plan, const ModelSpec& model) {
  static constexpr const char* kKey = "reshard_after_forward";
  const std::int64_t shard = plan.mesh.shard;
  const auto problem_of = [shard](const Reshard& reshard) -> Problem {
    if (reshard.kind != Reshard::Kind::kGroup) return std::nullopt;
    const std::int64_t group = reshard.group;
    if (group > 1 && group < shard && shard % group == 0) return std::nullopt;
    std::vector<std::int64_t> proper = nearest_divisors(shard, group);
    std::erase_if(proper, [shard](std::int64_t d) { return d <= 1 || d >= shard; });
    return contradiction(kKey, fmt::format("a group of {} is no proper part of mesh.shard {}", group, shard),
        proper.empty() ? "always or never"
                       : fmt::format("a proper divisor of {}, for example {}", shard, fmt::join(proper, " or ")),
        group == 1 ? "never" : (group == shard ? "always" : ""));
  };
  if (Problem problem = problem_of(plan.reshard_after_forward.value)) return problem;
  for (const auto& range : plan.reshard_after_forward.ranges)
    if (Problem problem = problem_of(range.value)) return problem;
  if (plan.reshard_after_forward.ranges.empty()) return std::nullopt;
  return problem_of_ranges(plan.reshard_after_forward, kKey, "units", unit_count(plan, model));
}

// Embedding and head of a tied model share one parameter, which only a unit that holds both can
// have. torchtitan 0.2.2 gives each its own all the same, and ties them again before it makes the
// optimizer: the head's then has a gradient and no step. So does Accelerate where stacks of a model
// look the table up through modules of their own (T5); PyTorch refuses it from 2.13 on.
Problem problem_of_tying(const Plan& plan, const ModelSpec& model) {
  const bool in_root = plan.units.embedding == UnitPlacement::kRoot && plan.units.head == UnitPlacement::kRoot;
  const bool in_one_unit = plan.units.embedding == UnitPlacement::kWithHead;
  // DDP, Megatron-Core and DeepSpeed have no units: a parameter that two modules share is one of the model's.
  const RuntimeKind kind = plan.runtime.kind;
  const bool has_units = kind != RuntimeKind::kDdp && kind != RuntimeKind::kMegatron && !is_zero(kind);
  const bool is_titan = kind == RuntimeKind::kFsdp2 && plan.step_frame != StepFrame::kPlain &&
                        plan.units.embedding == UnitPlacement::kOwn && plan.units.head != UnitPlacement::kRoot;
  constexpr std::int32_t kRefuses = 13;
  const bool has_two = kind == RuntimeKind::kFsdp2 && parts_tied(plan.units) &&
                       fsdp2_minor(plan.runtime.version).value_or(kRefuses) < kRefuses;
  if (!model.tied_embeddings || in_root || in_one_unit || !has_units || is_titan || has_two || flattens_twice(plan))
    return std::nullopt;
  return contradiction(plan.units.embedding != UnitPlacement::kRoot ? "units.embedding" : "units.head",
      fmt::format("embedding and head of {} share one parameter, which {} refuses in two units", model.name,
          fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version)),
      plan.runtime.kind == RuntimeKind::kFsdp2
          ? "units.embedding=root and units.head=root, or units.embedding=with_head"
          : "units.embedding=root and units.head=root");
}

// A kernel that reads parameters of a module without calling it (a scan, its convolution's) finds
// them where they are only if one unit gathers both.
Problem problem_of_size_units(const Plan& plan, const ModelSpec& model) {
  if (plan.units.min_parameters == 0) return std::nullopt;
  for (const LayerSpec& layer : model.kinds) {
    const SizeUnits units = units_by_size(layer, plan.units.min_parameters);
    for (const Operation& op : layer.operations) {
      std::int32_t first = -1;
      for (std::size_t i = 0; i < op.parameters.size(); ++i) {
        const std::string& name = layer.parameters[at(op.parameters[i])].name;
        const std::int32_t unit = unit_of_name(units, name);
        if (i == 0) first = unit;
        if (unit == first) continue;
        return contradiction("units.min_parameters",
            fmt::format("{} would be in another unit than what {} reads with it", name, op.name),
            fmt::format("units.min_parameters: {}", layer.numel()));
      }
    }
  }
  return std::nullopt;
}

// The gradient that was kept is added to that of the first lookup, or call of a block, alone, which
// no layer program tells from the second.
Problem problem_of_shared_table(const Plan& plan, const ModelSpec& model) {
  const bool repeats = std::ranges::any_of(model.order, [&](const LayerInstance& layer) {
    return layer.same_as >= 0 && kind_of(model, layer).role == LayerRole::kBlock;
  });
  const bool shares = plan.units.embedding == UnitPlacement::kOwn && stacks_share_table(model);
  if (plan.runtime.kind != RuntimeKind::kFsdp2 || plan.batch.accumulation == 1 ||
      plan.accumulation != AccumulationMode::kKeepUnsharded || !(shares || repeats))
    return std::nullopt;
  if (repeats) {
    return missing_capability("accumulation.mode",
        fmt::format("keep_unsharded is not modelled of blocks that {} calls again", model.name),
        "accumulation.mode: reduce_each");
  }
  return missing_capability("accumulation.mode",
      fmt::format("keep_unsharded is not modelled of a table that is a unit and that encoder and decoder of {} share",
          model.name),
      "accumulation.mode: reduce_each, or units.embedding: root");
}

// Keys that say which kernels run.
Problem problem_of_variants(const Plan& plan) {
  const bool is_compiled = plan.loss.kind == Loss::Kind::kCompiled && plan.compile == Compile::kModel;
  const bool is_eager = plan.loss.kind == Loss::Kind::kEager || plan.loss.kind == Loss::Kind::kEagerCompute;
  if (!is_eager && !is_compiled && plan.logits == Logits::kHeld)
    return contradiction("logits", "held logits are those that an eager loss was given", "loss: eager", "released");
  if (plan.logits == Logits::kKept && plan.loss.kind != Loss::Kind::kEager && plan.loss.kind != Loss::Kind::kChunked)
    return contradiction("logits", "kept logits are those of an eager or chunked loss", "loss: eager", "released");
  if (plan.autocast && size_of(*plan.autocast) > size_of(plan.param_dtype)) {
    return contradiction(
        "dtype.autocast", "autocast computes in no wider dtype than dtype.param", "dtype.param: fp32", "none");
  }
  return std::nullopt;
}

// A linear layer before the loss, which reads its weight: no hook of the head's gathers it.
Problem problem_of_fused_linear(const Plan& plan, const ModelSpec& model) {
  if (!plan.loss.has_product()) return std::nullopt;
  if (plan.runtime.kind == RuntimeKind::kFsdp2 && plan.units.head == UnitPlacement::kOwn &&
      plan.units.embedding != UnitPlacement::kWithHead && !gathers_own_head(plan)) {
    return contradiction(
        "units.head", "a loss with the head's product in it calls no head", "units.head: root or with_norm");
  }
  const std::size_t n = model.order.size();
  const auto is_product = [](const Operation& op) { return op.kind == OperationKind::kGemm; };
  if (n >= 2 && kind_of(model, model.order[n - 1]).role == LayerRole::kLoss) {
    const LayerSpec& head = kind_of(model, model.order[n - 2]);
    if (head.role == LayerRole::kHead && head.domain.positions == 0 && std::ranges::any_of(head.operations, is_product))
      return std::nullopt;
  }
  return contradiction("loss", fmt::format("{} has no linear head over every token", model.name), "loss: eager");
}

Problem problem_of_frozen(const Plan& plan, const ModelSpec& model) {
  const Frozen& frozen = plan.frozen;
  const std::int64_t blocks = model.block_count();
  if (Problem problem = problem_of_ranges(frozen.blocks, "frozen", "layers", blocks)) return problem;
  if (model.tied_embeddings && frozen.head && !frozen.embedding) {
    return contradiction("frozen", fmt::format("embedding and head of {} share one parameter", model.name),
        "embedding, which freezes both");
  }
  const auto is_tower = [&](const LayerInstance& layer) { return kind_of(model, layer).tower; };
  if (frozen.tower && std::ranges::none_of(model.order, is_tower)) {
    return contradiction(
        "frozen", fmt::format("{} has no vision tower", model.name), "embedding, norm, head or numbers of blocks");
  }
  bool is_trained = !frozen.embedding || !frozen.norm || !frozen.head;
  std::int64_t block = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& kind = kind_of(model, layer);
    const bool counts = kind.role == LayerRole::kBlock && layer.same_as < 0;
    if (counts || kind.role == LayerRole::kInner || kind.tower)
      is_trained |= !kind.parameters.empty() && !is_frozen(frozen, kind, block);
    if (kind.role == LayerRole::kBlock) ++block;
  }
  if (is_trained) return std::nullopt;
  return contradiction("frozen", "no parameter is left to train", "fewer frozen layers");
}

// Names of the linear modules that adapters can stand beside: products of one weight.
std::vector<std::string> linear_modules(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      if (!takes_adapter(layer, op)) continue;
      const std::string name = op.name.substr(op.name.rfind('.') + 1);
      if (!contains(names, name)) names.push_back(name);
    }
  }
  return names;
}

// Megatron-Bridge's adapters (peft/utils.py, ParallelLinearAdapter), each of two parallel layers; an
// expert's are others.
Problem problem_of_parallel_adapters(const Plan& plan, const ModelSpec& model) {
  if (plan.lora.rank % plan.mesh.tp != 0) {
    return contradiction(
        "lora.rank", "adapters' rank is cut by mesh.tp", fmt::format("a multiple of {}", plan.mesh.tp));
  }
  for (const LayerSpec& layer : model.kinds) {
    const bool is_mixture = std::ranges::any_of(layer.operations, [](const auto& op) { return op.groups > 1; });
    for (const Operation& op : layer.operations) {
      const bool is_target = std::ranges::any_of(plan.lora.targets, [&](const std::string& target) {
        return target == Lora::kAllLinear ? layer.role == LayerRole::kBlock : is_module(op.name, target);
      });
      if (op.kind != OperationKind::kGemm || !is_target) continue;
      const std::string name = op.name.substr(op.name.rfind('.') + 1);
      if (contains(" q_proj k_proj v_proj qkv_proj o_proj ", ' ' + name + ' ')) continue;
      if (!is_mixture && contains(" gate_proj up_proj gate_up_proj down_proj ", ' ' + name + ' ')) continue;
      return contradiction("lora.targets", fmt::format("Megatron-Core's adapter beside {} is not modelled", name),
          "modules of attention or of a dense feed-forward layer");
    }
  }
  return std::nullopt;
}

Problem problem_of_lora(const Plan& plan, const ModelSpec& model) {
  const Lora& lora = plan.lora;
  if (lora.rank == 0) return std::nullopt;
  const bool is_megatron = plan.runtime.kind == RuntimeKind::kMegatron;
  if (plan.float8 != Float8::kNone && !is_megatron)
    return contradiction("float8", "adapters' base is not cast to fp8", "none, or lora.rank: 0");
  if (is_megatron) {
    if (Problem problem = problem_of_parallel_adapters(plan, model)) return problem;
  }
  if ((lora.trains_embedding || lora.trains_head) && model.tied_embeddings)
    return contradiction("lora.modules_to_save", "embedding and head are tied, of which PEFT copies one", "none");
  for (const std::string& target : lora.targets) {
    const bool found = target == Lora::kAllLinear || std::ranges::any_of(model.kinds, [&](const LayerSpec& layer) {
      return std::ranges::any_of(layer.operations, [&](const auto& op) {
        // (Of stacks of experts PEFT knows the modules that they were.)
        const bool of_stack = contains(" gate gate_proj up_proj down_proj w1 w2 w3 ", ' ' + target + ' ');
        return takes_adapter(layer, op) ? is_module(op.name, target) : op.groups > 1 && of_stack;
      });
    });
    if (found) continue;
    const std::vector<std::string> names = linear_modules(model);
    return contradiction("lora.targets", fmt::format("{} has no linear module \"{}\"", model.name, target),
        fmt::format("of {}", fmt::join(names, ", ")), nearest_spelling(target, names));
  }
  return std::nullopt;
}

Problem problem_of_documents(const Plan& plan) {
  const std::int64_t sequence = plan.batch.sequence, documents = plan.batch.documents;
  if (plan.batch.labelled > sequence) {
    return contradiction("batch.labelled", fmt::format("{} of {} tokens", plan.batch.labelled, sequence),
        fmt::format("at most {}", sequence));
  }
  if (documents < 1 || documents > sequence) {
    return contradiction("batch.documents", fmt::format("{} in {} tokens", documents, sequence),
        fmt::format("an integer from 1 to {}", sequence));
  }
  if (sequence % documents == 0) return std::nullopt;
  return contradiction("batch.documents",
      fmt::format("{} equally long documents do not fill {} tokens", documents, sequence),
      fmt::format(
          "a divisor of {}, for example {}", sequence, fmt::join(nearest_divisors(sequence, documents), " or ")));
}

// Balanced routing gives every expert a row at least.
Problem problem_of_experts(const Plan& plan, const ModelSpec& model) {
  const std::int64_t tokens = checked_multiply(plan.batch.micro_batch, plan.batch.sequence);
  for (const LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations) {
      if (op.groups <= 1 || checked_multiply(tokens, op.rows) >= op.groups) continue;
      return contradiction("batch.sequence",
          fmt::format(
              "{} tokens x {} are fewer rows than the {} experts of {}", tokens, op.rows, op.groups, model.name),
          fmt::format("batch.micro_batch x batch.sequence of at least {}", (op.groups + op.rows - 1) / op.rows));
    }
  }
  return std::nullopt;
}

}

std::optional<PlanProblem> find_problem(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (Problem problem = problem_of_bounds(plan)) return problem;
  if (Problem problem = problem_of_runtime(plan)) return problem;
  if (Problem problem = problem_of_batch(plan, model)) return problem;
  if (Problem problem = problem_of_mesh(plan, cluster)) return problem;
  if (Problem problem = problem_of_axes(plan, model)) return problem;
  if (Problem problem = problem_of_units(plan, model)) return problem;
  if (Problem problem = problem_of_size_units(plan, model)) return problem;
  if (Problem problem = problem_of_reshard(plan, model)) return problem;
  if (!plan.unshard_in_backward.ranges.empty()) {
    if (Problem problem =
            problem_of_ranges(plan.unshard_in_backward, "unshard_in_backward", "units", unit_count(plan, model)))
      return problem;
  }
  if (!plan.recompute.ranges.empty()) {
    if (Problem problem = problem_of_ranges(plan.recompute, "recompute", "layers", model.block_count())) return problem;
  }
  if (plan.frozen.any()) {
    if (Problem problem = problem_of_frozen(plan, model)) return problem;
  }
  if (Problem problem = problem_of_fused_linear(plan, model)) return problem;
  if (Problem problem = problem_of_lora(plan, model)) return problem;
  if (Problem problem = problem_of_documents(plan)) return problem;
  if (Problem problem = problem_of_experts(plan, model)) return problem;
  if (Problem problem = problem_of_tying(plan, model)) return problem;
  if (Problem problem = problem_of_shared_table(plan, model)) return problem;
  if (Problem problem = problem_of_variants(plan)) return problem;
  if (Problem problem = problem_of_hardware(plan, cluster)) return problem;
  return problem_of_running(plan, model);
}

void throw_problem(const PlanProblem& problem, Location location) {
  location.key_path = problem.key;
  if (problem.exit_code == ExitCode::kInvalidInput)
    throw ConfigError(std::move(location), problem.what_is_wrong, problem.expected, problem.did_you_mean);
  std::string what = problem.what_is_wrong;
  if (!problem.did_you_mean.empty()) what += "; nearest plan: " + problem.did_you_mean;
  // A ConfigError's text, under another exit code.
  throw Error(problem.exit_code, ConfigError(std::move(location), what).what());
}

}
