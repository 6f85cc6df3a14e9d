// Values are divisors: of a domain of NVLink for tp, of the ranks for cp, of the experts for ep, and powers of two for
// pp and for the stages of its ranks. What of the mesh they do not go with is asked of the plan check before a job is
// made, for most combinations are none; what of the other keys, which may follow from the axes, is asked of the job.
#include "planner/axes_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "planner/changes.h"
#include "planner/search_space.h"
#include "sim/base/lookup.h"
#include "sim/search/layers_floor.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// Positions of a sequence that a rank of cp has at the least (assumed: what is cut finer leaves
// products that do not fill a GPU).
constexpr std::int64_t kFewestPositions = 2048;

// Stages of a rank at the most: more pass on micro-batches more often than they shorten the bubble.
constexpr std::int64_t kMostStages = 4;

// Of what a rank computes, the bubble of a pipeline at the most (assumed: more ranks than that have
// something better to do).
constexpr double kMostBubble = 0.25;

struct Axes {
  std::int64_t tp = 1, cp = 1, ep = 1, etp = 1, pp = 1;
  PipelineParallel pipeline = {};
};

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> list;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) list.push_back(d);
  return list;
}

std::int64_t experts_of(const ModelSpec& model) {
  std::int64_t experts = 1;
  for (const LayerSpec& layer : model.kinds)
    for (const Operation& op : layer.operations) experts = std::max(experts, op.groups);
  return experts;
}

class AxesAround {
 public:
  AxesAround(const Job& job, const std::vector<std::string>& keys, std::int64_t global_batch)
      : job_(job), keys_(keys), global_batch_(global_batch) {}

  std::vector<Axes> list() const {
    const Mesh& own = job_.resolved.plan.mesh;
    const Cluster& cluster = job_.cluster;
    const std::int64_t domain = cluster.gpus_per_node() * cluster.node.link_domain;
    const std::int64_t sequence = job_.resolved.plan.batch.sequence;
    std::vector<Axes> all;
    for (const std::int64_t tp : values("mesh.tp", own.tp, std::gcd(cluster.gpus, domain))) {
      for (const std::int64_t cp : values("mesh.cp", own.cp, cluster.gpus / tp)) {
        if (cp > 1 && cp != own.cp && sequence / cp < kFewestPositions) continue;
        for (const std::int64_t ep : values("mesh.ep", own.ep, experts_of(job_.model))) {
          for (const std::int64_t etp : tensor_parts(ep, tp)) {
            for (const auto& [pp, pipeline] : pipelines()) {
              const Axes axes{tp, cp, ep, etp, pp, pipeline};
              if (is_possible(axes)) all.push_back(axes);
            }
          }
        }
      }
    }
    std::ranges::stable_sort(all, [](const Axes& a, const Axes& b) {
      const auto size = [](const Axes& x) {
        return std::tuple(x.tp * x.cp * x.ep * x.pp, x.pp, x.pipeline.stages_per_rank, x.tp * x.cp, x.tp, x.etp);
      };
      return size(a) < size(b);
    });
    return all;
  }

  std::vector<std::string> assignments(const Axes& axes) const {
    std::vector<std::string> list;
    const auto add = [&](const char* key, std::int64_t value) {
      if (varies(key)) list.push_back(fmt::format("{}={}", key, value));
    };
    add("mesh.tp", axes.tp);
    add("mesh.cp", axes.cp);
    add("mesh.ep", axes.ep);
    add("mesh.etp", axes.etp);
    add("mesh.pp", axes.pp);
    if (axes.pp > 1) {
      if (is_free("pipeline.schedule"))
        list.push_back(fmt::format("pipeline.schedule={}", to_string(axes.pipeline.schedule)));
      if (is_free("pipeline.stages_per_rank"))
        list.push_back(fmt::format("pipeline.stages_per_rank={}", axes.pipeline.stages_per_rank));
      // Too few micro-batches in a plan file are where a search starts, too.
      const bool is_start = job_.document.has("batch.accumulation");
      if (is_start && !is_fixed(job_, "batch.accumulation"))
        list.push_back(fmt::format("batch.global={}", global_batch_));
    }
    // Sides of the mesh that a plan file writes are where a search starts; here they cannot stay.
    const bool is_fixed_mesh = is_fixed(job_, "mesh.shard") || is_fixed(job_, "mesh.replicate");
    const bool is_written = job_.document.has("mesh.shard") || job_.document.has("mesh.replicate");
    if (is_written && !is_fixed_mesh) list.push_back(fmt::format("mesh.shard={}", data_ranks(axes)));
    return list;
  }

 private:
  bool varies(std::string_view key) const { return !is_fixed(job_, key) && contains(keys_, key); }

  // With mesh.pp its schedules vary, too.
  bool is_free(std::string_view key) const { return varies(key) || (varies("mesh.pp") && !is_fixed(job_, key)); }

  // 1F1B, and Interleaved1F1B where ranks have several stages; another schedule is for who sets it.
  std::vector<std::pair<std::int64_t, PipelineParallel>> pipelines() const {
    const Plan& own = job_.resolved.plan;
    std::vector<std::int64_t> ranks = {own.mesh.pp};
    if (varies("mesh.pp")) {
      ranks = {1};
      const std::int64_t most = std::gcd(job_.cluster.gpus, std::int64_t{1} << 20);
      for (std::int64_t pp = 2; pp <= most; pp *= 2) ranks.push_back(pp);
    }
    std::vector<std::pair<std::int64_t, PipelineParallel>> list;
    for (const std::int64_t pp : ranks) {
      const bool has_stages = pp > 1 && is_free("pipeline.stages_per_rank");
      for (std::int64_t stages = 1; stages <= (has_stages ? kMostStages : 1); stages *= 2) {
        PipelineParallel pipeline = own.pipeline;
        if (has_stages) pipeline.stages_per_rank = stages;
        if (pp > 1 && is_free("pipeline.schedule")) {
          pipeline.schedule =
              pipeline.stages_per_rank > 1 ? PipelineSchedule::kInterleaved1F1B : PipelineSchedule::k1F1B;
        }
        list.emplace_back(pp, pipeline);
      }
    }
    return list;
  }

  std::vector<std::int64_t> values(std::string_view key, std::int64_t own, std::int64_t of) const {
    return varies(key) ? divisors(of) : std::vector<std::int64_t>{own};
  }

  std::vector<std::int64_t> tensor_parts(std::int64_t ep, std::int64_t tp) const {
    if (!varies("mesh.etp")) return {job_.resolved.plan.mesh.etp};
    if (ep == 1 || tp == 1) return {1};
    return {1, tp};
  }

  std::int64_t data_ranks(const Axes& axes) const { return job_.cluster.gpus / (axes.tp * axes.cp * axes.pp); }

  bool is_possible(const Axes& axes) const {
    // Beside experts tp multiplies the combinations by six and won none of the searches of
    // docs/axes.md: it is for who sets it.
    if (axes.tp > 1 && experts_of(job_.model) > 1) return false;
    if (job_.cluster.gpus % (axes.tp * axes.cp * axes.pp) != 0) return false;
    const std::int64_t ranks = data_ranks(axes);
    if (global_batch_ % ranks != 0) return false;
    Plan plan = job_.resolved.plan;
    const Mesh own = plan.mesh;
    const bool is_own = axes.tp == own.tp && axes.cp == own.cp && axes.ep == own.ep && axes.etp == own.etp &&
                        axes.pp == own.pp && axes.pipeline == plan.pipeline;
    plan.mesh = {ranks, 1, own.inner, axes.cp, axes.tp, axes.ep, axes.etp, axes.pp};
    plan.pipeline = axes.pipeline;
    plan.named_rank.reset();
    if (axes.pp > 1 && !is_fixed(job_, "batch.accumulation")) {
      plan.batch.micro_batch = 1;
      plan.batch.accumulation = global_batch_ / ranks;
    }
    if (axes.ep > 1) plan.units.experts = UnitPlacement::kOwn;
    if (axes.pp > 1) plan.units.head = UnitPlacement::kWithNorm;
    if (is_own) return false;
    const bool is_free_pp = axes.pp > 1 && axes.pp != own.pp;
    if (is_free_pp && (bubble_of(plan) > kMostBubble || !has_room_for_gradients(plan))) return false;
    const auto problem = find_problem(plan, job_.model, job_.cluster);
    return !problem || !(problem->key.starts_with("mesh.") || problem->key.starts_with("pipeline.") ||
                           problem->key == "batch.sequence" || problem->key == "batch.accumulation");
  }

  // At its least: a micro-batch in all stages before the last rank's, of the smallest micro-batches.
  static double bubble_of(const Plan& plan) {
    return as_double(plan.mesh.pp - 1) / as_double(plan.pipeline.stages_per_rank * plan.batch.accumulation);
  }

  // A rank with one stage has whole gradients of it when its last backward ends, beside its state.
  bool has_room_for_gradients(Plan plan) const {
    if (plan.pipeline.stages_per_rank > 1) return true;
    plan.reshard_after_forward = {};
    const std::int64_t parameters = job_.model.parameters() / plan.mesh.pp;
    const LayersFloor floor{Time(), {{Bytes(), Bytes(), parameters, true}}};
    return memory_floor(plan, job_.model, floor) <= job_.cluster.gpu.memory;
  }

  const Job& job_;
  const std::vector<std::string>& keys_;
  const std::int64_t global_batch_;
};

// Parameters and their state, spread over all GPUs whatever the axes.
bool has_room(const Job& job) {
  Plan plan = job.resolved.plan;
  plan.mesh = {job.cluster.gpus, 1};
  return state_floor(plan, job.model) <= job.cluster.gpu.memory;
}

}

std::vector<std::string> inner_axis_keys() { return {"mesh.tp", "mesh.cp", "mesh.ep", "mesh.etp"}; }

std::vector<std::string> axis_keys() {
  std::vector<std::string> keys = inner_axis_keys();
  for (const char* key : {"mesh.pp", "pipeline.schedule", "pipeline.stages_per_rank"}) keys.emplace_back(key);
  return keys;
}

VariedKeys split_axes(const std::vector<std::string>& vary) {
  const std::vector<std::string> axes = axis_keys();
  VariedKeys keys;
  for (const std::string& key : vary) {
    if (key == kAllAxes) {
      for (const std::string& inner : inner_axis_keys()) keys.axes.push_back(inner);
    } else {
      const bool is_axis = contains(axes, key);
      (is_axis ? keys.axes : keys.others).push_back(key);
    }
  }
  return keys;
}

std::vector<Job> jobs_over_axes(const Job& job, const std::vector<std::string>& keys, std::int64_t global_batch) {
  std::vector<Job> jobs;
  if (job.resolved.plan.runtime.kind != RuntimeKind::kFsdp2 || !has_room(job)) return jobs;
  const AxesAround around(job, keys, global_batch);
  for (const Axes& axes : around.list())
    if (auto other = changed_job(job, around.assignments(axes))) jobs.push_back(std::move(*other));
  return jobs;
}

}
