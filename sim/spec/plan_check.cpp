// find_problem runs a list of small rules in the order of the plan's keys; each looks at one matter
// and returns the first contradiction it sees. Rules about values hold for every runtime; the last
// ones are what a runtime cannot express.
#include "sim/spec/plan_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"

namespace foreshard {

const char* newest_version(RuntimeKind kind) { return kind == RuntimeKind::kFsdp2 ? "2.11" : "1"; }

namespace {

using Problem = std::optional<PlanProblem>;

PlanProblem contradiction(std::string key, std::string what_is_wrong, std::string expected = "",
                          std::string did_you_mean = "") {
  return {ExitCode::kInvalidInput, std::move(key), std::move(what_is_wrong), std::move(expected),
          std::move(did_you_mean)};
}

PlanProblem missing_capability(std::string key, std::string what_is_wrong,
                               std::string nearest = "") {
  return {ExitCode::kMissingCapability, std::move(key), std::move(what_is_wrong), "",
          std::move(nearest)};
}

const LayerSpec& kind_of(const ModelSpec& model, const LayerInstance& layer) {
  return model.kinds[static_cast<std::size_t>(layer.kind)];
}

bool has_parameters(const ModelSpec& model, LayerRole role) {
  return std::any_of(model.order.begin(), model.order.end(), [&](const LayerInstance& layer) {
    return kind_of(model, layer).role == role && !kind_of(model, layer).parameters.empty();
  });
}

// A table of positions stands beside the table of words in the embedding's layer.
bool has_learned_positions(const ModelSpec& model) {
  return std::any_of(model.order.begin(), model.order.end(), [&](const LayerInstance& layer) {
    const LayerSpec& kind = kind_of(model, layer);
    if (kind.role != LayerRole::kEmbedding) return false;
    return std::any_of(kind.parameters.begin() + (kind.parameters.empty() ? 0 : 1),
                       kind.parameters.end(), [&](const ParameterSpec& parameter) {
                         return parameter.shape.size() == 2 &&
                                parameter.shape[0] == model.max_positions;
                       });
  });
}

struct Bound {
  const char* key;
  std::int64_t value;
  std::int64_t least;
  std::int64_t most;
};

Problem problem_of_bounds(const Plan& plan) {
  const auto& [forward, backward] = plan.prefetch;
  const Bound bounds[] = {
      {"batch.sequence", plan.batch.sequence, 1, plan_limits::kSequence},
      {"batch.micro_batch", plan.batch.micro_batch, 1, plan_limits::kMicroBatch},
      {"batch.accumulation", plan.batch.accumulation, 1, plan_limits::kAccumulation},
      {"mesh.shard", plan.mesh.shard, 1, plan_limits::kMesh},
      {"mesh.replicate", plan.mesh.replicate, 1, plan_limits::kMesh},
      {"units.layers_per_unit", plan.units.layers_per_unit, 1, plan_limits::kLayersPerUnit},
      {"prefetch.forward", forward == Prefetch::kImplicit ? 0 : forward, 0, plan_limits::kPrefetch},
      {"prefetch.backward", backward, 0, plan_limits::kPrefetch},
      {"buffers.reduce_scatter", plan.reduce_scatter_buffers, 1, plan_limits::kBuffers},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= bound.least && bound.value <= bound.most) continue;
    return contradiction(bound.key, fmt::format("{} is out of range", bound.value),
                         fmt::format("an integer from {} to {}", format_count(bound.least),
                                     format_count(bound.most)));
  }
  if (plan.optimizer.clip_norm && !(*plan.optimizer.clip_norm > 0)) {
    return contradiction("optimizer.clip_norm",
                         fmt::format("{} is out of range", *plan.optimizer.clip_norm),
                         "a number above 0, or none");
  }
  return std::nullopt;
}

Problem problem_of_runtime(const Plan& plan) {
  const char* newest = newest_version(plan.runtime.kind);
  if (plan.runtime.version == newest) return std::nullopt;
  const char* kind = to_string(plan.runtime.kind);
  return missing_capability(
      "runtime", fmt::format("version {} of {} is not modelled", quote(plan.runtime.version), kind),
      fmt::format("{}@{}", kind, newest));
}

Problem problem_of_batch(const Plan& plan, const ModelSpec& model) {
  try {
    checked_multiply(checked_multiply(global_batch(plan), plan.batch.sequence), 4);
  } catch (const Error& error) {
    return contradiction("batch",
                         fmt::format("the tokens of a step are too many: {}", error.what()),
                         "sequence x micro_batch x accumulation x ranks below 2^61");
  }
  if (plan.batch.sequence > model.max_positions && has_learned_positions(model)) {
    return contradiction("batch.sequence",
                         fmt::format("{} exceeds the {} learned positions of {}",
                                     plan.batch.sequence, model.max_positions, model.name),
                         fmt::format("at most {}", model.max_positions));
  }
  return std::nullopt;
}

Problem problem_of_mesh(const Plan& plan, const Cluster& cluster) {
  const auto& [shard, replicate] = plan.mesh;
  const std::int64_t world = checked_multiply(shard, replicate);
  if (world == cluster.gpus) return std::nullopt;
  std::vector<std::string> fitting;
  const auto add = [&](std::int64_t s) {
    std::string text = fmt::format("shard {} x replicate {}", s, cluster.gpus / s);
    if (std::find(fitting.begin(), fitting.end(), text) == fitting.end()) {
      fitting.push_back(std::move(text));
    }
  };
  if (cluster.gpus % shard == 0) add(shard);
  if (cluster.gpus % replicate == 0) add(cluster.gpus / replicate);
  if (fitting.empty()) {
    for (const std::int64_t divisor : nearest_divisors(cluster.gpus, shard)) add(divisor);
  }
  return contradiction(
      "mesh.shard",
      fmt::format("shard {} x replicate {} = {} ranks, but the cluster has {} GPUs", shard,
                  replicate, world, cluster.gpus),
      fmt::format("shard x replicate = {}, for example {}", cluster.gpus,
                  fmt::join(fitting, " or ")));
}

Problem problem_of_units(const Plan& plan, const ModelSpec& model) {
  const std::int64_t blocks = model.block_count();
  if (plan.units.layers_per_unit > std::max<std::int64_t>(blocks, 1)) {
    return contradiction("units.layers_per_unit",
                         fmt::format("{} exceeds the {} blocks of {}", plan.units.layers_per_unit,
                                     blocks, model.name),
                         fmt::format("an integer from 1 to {}", blocks));
  }
  if (plan.units.embedding == UnitPlacement::kWithNorm) {
    return contradiction("units.embedding", "with_norm is for the head only", "own or root");
  }
  return std::nullopt;
}

// `noun` is what the numbers count: "units" or "layers", of which there are `count`.
template <typename T>
Problem problem_of_ranges(const RangedPolicy<T>& policy, const char* key, const char* noun,
                          std::int64_t count) {
  for (const auto& range : policy.ranges) {
    if (range.first < 0 || range.first > range.last) {
      return contradiction(key, fmt::format("{} {}-{} is no range", noun, range.first, range.last),
                           "the lower number first");
    }
    if (range.last >= count) {
      return contradiction(
          key,
          fmt::format("{} {}-{} exceed the {} there are", noun, range.first, range.last, count),
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
    return contradiction(
        kKey, fmt::format("a group of {} is no proper part of mesh.shard {}", group, shard),
        proper.empty() ? "always or never"
                       : fmt::format("a proper divisor of {}, for example {}", shard,
                                     fmt::join(proper, " or ")),
        group == 1 ? "never" : (group == shard ? "always" : ""));
  };
  if (Problem problem = problem_of(plan.reshard_after_forward.value)) return problem;
  for (const auto& range : plan.reshard_after_forward.ranges) {
    if (Problem problem = problem_of(range.value)) return problem;
  }
  if (plan.reshard_after_forward.ranges.empty()) return std::nullopt;
  return problem_of_ranges(plan.reshard_after_forward, kKey, "units", unit_count(plan, model));
}

// What fully_shard of PyTorch 2.11 has no knob for. Sources: torch/distributed/fsdp/_fully_shard at
// v2.11.0 and the recordings of its schedule (an empty prefetch list means the default prefetch;
// the two communication knobs first appear in 2.13.0).
// Embedding and head of a tied model share one parameter, which only a unit that holds both can
// have.
Problem problem_of_tying(const Plan& plan, const ModelSpec& model) {
  const bool in_root =
      plan.units.embedding == UnitPlacement::kRoot && plan.units.head == UnitPlacement::kRoot;
  if (!model.tied_embeddings || in_root) return std::nullopt;
  return contradiction(
      plan.units.embedding != UnitPlacement::kRoot ? "units.embedding" : "units.head",
      fmt::format("embedding and head of {} share one parameter, which {} refuses in two units",
                  model.name,
                  fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version)),
      "units.embedding=root and units.head=root");
}

Problem problem_of_fsdp2(const Plan& plan) {
  const std::string name = fmt::format("fsdp2@{}", plan.runtime.version);
  if (plan.prefetch.forward == 0) {
    return missing_capability(
        "prefetch.forward",
        fmt::format("{} cannot switch forward prefetch off: the host runs ahead, and an empty list "
                    "of modules means the default",
                    name),
        "prefetch.forward: implicit");
  }
  if (plan.prefetch.backward == 0) {
    return missing_capability(
        "prefetch.backward",
        fmt::format("{} cannot switch backward prefetch off: an empty list of modules means the "
                    "default",
                    name),
        "prefetch.backward: 1");
  }
  if (plan.reduction_order != ReductionOrder::kLibrary) {
    return missing_capability(
        "reduction_order",
        fmt::format("{} sums as its communication library does; micro-batch order is the engine's",
                    name),
        "reduction_order: library");
  }
  if (plan.reduce_scatter_buffers > 1) {
    return missing_capability(
        "buffers.reduce_scatter",
        fmt::format("{} keeps one reduce-scatter input; more came with PyTorch 2.13 "
                    "(set_reduce_scatter_max_input_buffers), which is not modelled yet",
                    name),
        "buffers.reduce_scatter: 1");
  }
  if (plan.communicators == Communicators::kSeparate) {
    return missing_capability(
        "communicators",
        fmt::format("{} reduces on the communicator that gathers; a separate one came with PyTorch "
                    "2.13 (set_separate_reduce_scatter_group), which is not modelled yet",
                    name),
        "communicators: shared");
  }
  return std::nullopt;
}

}  // namespace

std::optional<PlanProblem> find_problem(const Plan& plan, const ModelSpec& model,
                                        const Cluster& cluster) {
  if (Problem problem = problem_of_bounds(plan)) return problem;
  if (Problem problem = problem_of_runtime(plan)) return problem;
  if (Problem problem = problem_of_batch(plan, model)) return problem;
  if (Problem problem = problem_of_mesh(plan, cluster)) return problem;
  if (Problem problem = problem_of_units(plan, model)) return problem;
  if (Problem problem = problem_of_reshard(plan, model)) return problem;
  if (!plan.recompute.ranges.empty()) {
    if (Problem problem =
            problem_of_ranges(plan.recompute, "recompute", "layers", model.block_count())) {
      return problem;
    }
  }
  if (Problem problem = problem_of_tying(plan, model)) return problem;
  return plan.runtime.kind == RuntimeKind::kFsdp2 ? problem_of_fsdp2(plan) : std::nullopt;
}

void throw_problem(const PlanProblem& problem, Location location) {
  location.key_path = problem.key;
  if (problem.exit_code == ExitCode::kInvalidInput) {
    throw ConfigError(std::move(location), problem.what_is_wrong, problem.expected,
                      problem.did_you_mean);
  }
  std::string what = problem.what_is_wrong;
  if (!problem.did_you_mean.empty()) what += "; nearest plan: " + problem.did_you_mean;
  // A ConfigError's text, under another exit code.
  throw Error(problem.exit_code, ConfigError(std::move(location), what).what());
}

std::vector<std::string> warnings(const Plan& plan, const ModelSpec& model,
                                  const Cluster& /*cluster*/) {
  std::vector<std::string> texts;
  if (model.max_positions > 0 && plan.batch.sequence > model.max_positions) {
    texts.push_back(fmt::format("batch.sequence {} exceeds the {} positions {} was made for",
                                plan.batch.sequence, model.max_positions, model.name));
  }
  if (plan.accumulation == AccumulationMode::kKeepUnsharded && plan.batch.accumulation == 1) {
    texts.emplace_back(
        "accumulation.mode keep_unsharded has no effect while batch.accumulation is 1");
  }
  if (plan.param_dtype == DType::kFp16) {
    texts.emplace_back("dtype.param fp16 needs loss scaling, which is not modelled");
  }
  const std::int64_t blocks = model.block_count();
  if (const std::int64_t rest = blocks % plan.units.layers_per_unit; rest != 0) {
    texts.push_back(
        fmt::format("units.layers_per_unit {} does not divide {} blocks: the last unit "
                    "has {}",
                    plan.units.layers_per_unit, blocks, rest));
  }
  return texts;
}

std::int64_t unit_count(const Plan& plan, const ModelSpec& model) {
  const auto& [layers_per_unit, embedding, head] = plan.units;
  const bool is_root_used =
      (embedding == UnitPlacement::kRoot && has_parameters(model, LayerRole::kEmbedding)) ||
      (head == UnitPlacement::kRoot && has_parameters(model, LayerRole::kHead)) ||
      (head != UnitPlacement::kWithNorm && has_parameters(model, LayerRole::kFinalNorm));
  const std::int64_t blocks = model.block_count();
  return (is_root_used ? 1 : 0) + (embedding == UnitPlacement::kOwn ? 1 : 0) +
         (blocks + layers_per_unit - 1) / layers_per_unit + (head != UnitPlacement::kRoot ? 1 : 0);
}

std::int64_t global_batch(const Plan& plan) {
  const std::int64_t world = checked_multiply(plan.mesh.shard, plan.mesh.replicate);
  return checked_multiply(checked_multiply(world, plan.batch.micro_batch), plan.batch.accumulation);
}

// The first range changes nothing. It keeps the number of blocks, without which every-K could not
// be told from a list of the same blocks that stops earlier; the reader of lists drops such ranges.
RangedPolicy<Recompute> recompute_every(std::int64_t k, std::int64_t blocks) {
  FORESHARD_CHECK(k >= 1 && blocks >= 0, "recompute_every needs k >= 1");
  if (k == 1 || blocks <= 1) return {Recompute::kFull, {}};
  RangedPolicy<Recompute> policy{Recompute::kNone, {{0, blocks - 1, Recompute::kNone}}};
  for (std::int64_t block = 0; block < blocks; block += k) {
    policy.ranges.push_back({block, block, Recompute::kFull});
  }
  return policy;
}

std::optional<std::int64_t> every_k(const RangedPolicy<Recompute>& policy) {
  if (policy.value != Recompute::kNone || policy.ranges.size() < 2) return std::nullopt;
  const std::int64_t blocks = policy.ranges[0].last + 1;
  const std::int64_t k = policy.ranges.size() == 2 ? blocks : policy.ranges[2].first;
  if (k < 2 || k > plan_limits::kEvery || blocks > plan_limits::kNumber) return std::nullopt;
  if (policy != recompute_every(k, blocks)) return std::nullopt;
  return k;
}

std::vector<std::int64_t> nearest_divisors(std::int64_t n, std::int64_t x) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  const auto take = [&](std::int64_t divisor) {
    if (divisor <= x) below = std::max(below, divisor);
    if (divisor >= x) above = above == 0 ? divisor : std::min(above, divisor);
  };
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    take(d);
    take(n / d);
  }
  std::vector<std::int64_t> divisors;
  if (below > 0) divisors.push_back(below);
  if (above > 0 && above != below) divisors.push_back(above);
  return divisors;
}

}  // namespace foreshard
