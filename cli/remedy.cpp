// A knob is a list of variants of the plan, mildest first; each is a plan with the assignments that
// lead to it. Single knobs are tried in the order of `knobs`, then pairs of them in the same order.
#include "cli/remedy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "calibration/machines.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/memory/reserved.h"
#include "sim/spec/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

struct Variant {
  Plan plan;
  std::vector<Change> changes;
};
using Knob = std::vector<Variant> (*)(const Plan&);

std::vector<Variant> recompute_more(const Plan& plan) {
  std::vector<Variant> variants;
  const RangedPolicy<Recompute> full{Recompute::kFull, {}};
  const RangedPolicy<Recompute> selective{Recompute::kSelective, {}};
  if (plan.recompute == full) return variants;
  for (const RangedPolicy<Recompute>& policy : {selective, full}) {
    if (plan.recompute == policy) continue;
    Variant variant{plan, {{"recompute", to_string(policy.value)}}};
    variant.plan.recompute = policy;
    variants.push_back(std::move(variant));
  }
  return variants;
}

std::vector<Variant> shard_further(const Plan& plan) {
  std::vector<Variant> variants;
  const std::int64_t world = plan.mesh.world();
  for (std::int64_t replicate = plan.mesh.replicate - 1; replicate >= 1; --replicate) {
    if (world % replicate != 0) continue;
    Variant variant{plan, {{"mesh.shard", std::to_string(world / replicate)}}};
    variant.plan.mesh = {world / replicate, replicate, plan.mesh.inner};
    variant.changes.push_back({"mesh.replicate", std::to_string(replicate)});
    variants.push_back(std::move(variant));
  }
  return variants;
}

// The sequences of a step stay: what a micro-batch loses, accumulation gains.
std::vector<Variant> shrink_micro_batch(const Plan& plan) {
  std::vector<Variant> variants;
  const Batch& batch = plan.batch;
  for (std::int64_t size = batch.micro_batch / 2; size >= 1; --size) {
    if (batch.micro_batch % size != 0) continue;
    Variant variant{plan, {{"batch.micro_batch", std::to_string(size)}}};
    variant.plan.batch.micro_batch = size;
    variant.plan.batch.accumulation = batch.accumulation * (batch.micro_batch / size);
    variant.changes.push_back(
        {"batch.accumulation", std::to_string(variant.plan.batch.accumulation)});
    variants.push_back(std::move(variant));
  }
  return variants;
}

std::vector<Variant> reshard_always(const Plan& plan) {
  if (plan.reshard_after_forward == RangedPolicy<Reshard>{}) return {};
  Variant variant{plan, {{"reshard_after_forward", "always"}}};
  variant.plan.reshard_after_forward = {};
  return {std::move(variant)};
}

std::vector<Variant> smaller_states(const Plan& plan) {
  if (plan.optimizer.kind != Optimizer::Kind::kAdamW || plan.optimizer.state != DType::kFp32) {
    return {};
  }
  Variant variant{plan, {{"optimizer.state", "bf16"}}};
  variant.plan.optimizer.state = DType::kBf16;
  return {std::move(variant)};
}

constexpr Knob kKnobs[] = {recompute_more, shard_further, shrink_micro_batch, reshard_always,
                           smaller_states};

class Trial {
 public:
  Trial(const ModelSpec& model, const Cluster& cluster) : model_(model), cluster_(cluster) {}

  // The first variant that fits.
  std::optional<Remedy> first(const std::vector<Variant>& variants) const {
    for (const Variant& variant : variants) {
      if (find_problem(variant.plan, model_, cluster_)) continue;
      // From the second micro-batch on all are alike: three of them show the peak.
      Plan shorter = variant.plan;
      shorter.batch.accumulation = std::min<std::int64_t>(shorter.batch.accumulation, 3);
      const EventGraph graph = build_training_step(model_, shorter);
      const Bytes peak = peak_allocated(graph);
      const Bytes outside = total(memory_outside(graph, cluster_, shorter.runtime));
      if (!may_fit(cluster_, peak, outside)) continue;
      const Fit fit = fit_in(cluster_, peak, peak_reserved(graph, shorter, cluster_), outside);
      if (fit.fits()) return Remedy{variant.changes, cluster_.gpus, variant.plan, fit};
    }
    return std::nullopt;
  }

 private:
  const ModelSpec& model_;
  const Cluster& cluster_;
};

std::vector<Variant> both(const Plan& plan, Knob a, Knob b) {
  std::vector<Variant> variants;
  for (const Variant& first : a(plan)) {
    for (Variant& second : b(first.plan)) {
      second.changes.insert(second.changes.begin(), first.changes.begin(), first.changes.end());
      variants.push_back(std::move(second));
    }
  }
  return variants;
}

// Each knob at its end.
Variant everything(const Plan& plan) {
  Variant all{plan, {}};
  for (const Knob knob : kKnobs) {
    std::vector<Variant> variants = knob(all.plan);
    if (variants.empty()) continue;
    Variant& last = variants.back();
    all.plan = std::move(last.plan);
    all.changes.insert(all.changes.end(), last.changes.begin(), last.changes.end());
  }
  return all;
}

// The cluster and the shard group doubled until `variant` fits.
std::optional<Remedy> with_more_gpus(const ModelSpec& model, Variant variant, Cluster cluster) {
  const std::int64_t most = cluster.node.nics > 0 ? kMaxGpus : cluster.node.gpus;
  while (cluster.gpus <= most / 2) {
    const std::int64_t doubled = cluster.gpus * 2;
    // Part of a node grows to the whole of it.
    cluster.gpus =
        cluster.gpus < cluster.node.gpus ? std::min(doubled, cluster.node.gpus) : doubled;
    const std::int64_t replicate = variant.plan.mesh.replicate;
    variant.plan.mesh = cluster.gpus % replicate == 0 ? Mesh{cluster.gpus / replicate, replicate}
                                                      : Mesh{cluster.gpus, 1};
    if (auto remedy = Trial(model, cluster).first({variant})) return remedy;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Remedy> find_remedy(const ModelSpec& model, const Plan& plan,
                                  const Cluster& cluster) {
  const Trial trial(model, cluster);
  for (const Knob knob : kKnobs) {
    if (auto remedy = trial.first(knob(plan))) return remedy;
  }
  for (const Knob* a = std::begin(kKnobs); a != std::end(kKnobs); ++a) {
    for (const Knob* b = a + 1; b != std::end(kKnobs); ++b) {
      if (auto remedy = trial.first(both(plan, *a, *b))) return remedy;
    }
  }
  const Variant all = everything(plan);
  if (auto remedy = trial.first({all})) return remedy;
  if (auto remedy = with_more_gpus(model, {plan, {}}, cluster)) return remedy;
  return with_more_gpus(model, all, cluster);
}

std::string shortfall_text(const Fit& fit) {
  return fmt::format("does not fit: {} more per GPU than the {} there are",
                     format_bytes(Bytes(-fit.margin().count())), format_bytes(fit.capacity));
}

std::string remedy_text(const std::optional<Remedy>& remedy, const Cluster& cluster) {
  if (!remedy) return "no knob and no number of GPUs makes it fit: shorten batch.sequence";
  std::vector<std::string> changes;
  if (remedy->gpus != cluster.gpus) {
    changes.push_back(fmt::format("{} GPUs (mesh.shard={})", format_count(remedy->gpus),
                                  remedy->plan.mesh.shard));
  }
  for (const Change& change : remedy->changes) {
    changes.push_back(fmt::format("--set {}={}", change.key, change.value));
  }
  return fmt::format("it fits with {}: peak {} allocated, {} to spare", fmt::join(changes, " "),
                     format_bytes(remedy->fit.allocated), format_bytes(remedy->fit.margin()));
}

Json remedy_json(const Fit& fit, const std::optional<Remedy>& remedy) {
  Json json;
  json["exceeds_bytes"] = -fit.margin().count();
  json["remedy"] = nullptr;
  if (!remedy) return json;
  Json set = Json::object();
  for (const Change& change : remedy->changes) set[change.key] = change.value;
  json["remedy"] = {{"gpus", remedy->gpus},
                    {"set", set},
                    {"plan", to_json(remedy->plan)},
                    {"peak_allocated_bytes", remedy->fit.allocated.count()},
                    {"margin_bytes", remedy->fit.margin().count()}};
  return json;
}

}  // namespace foreshard
