#include "sim/search/judge.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "sim/base/error.h"
#include "sim/memory/memory_actions.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/search/bounds.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"

namespace foreshard {
namespace {

// Of the micro-batches that tell its memory.
Plan told(const Plan& plan) { return shortened(plan, plan.mesh.pp > 1 ? laid_out_of(plan).count : kTelling); }

// With what the caching allocator reserves at the least: every stream has segments of its own, so their peaks add up.
// Where that is more than there is, it gives some back while the step runs; then no more than the peak is certain.
Fit least_fit_of(const EventGraph& graph, const Plan& plan, const Cluster& cluster) {
  const Bytes peak = peak_allocated(graph);
  const Bytes outside = total(memory_outside(graph, cluster, plan.runtime));
  const Fit allocated = fit_in(cluster, peak, peak, outside);
  if (plan.runtime.kind == RuntimeKind::kNative || cluster.host_computes) return allocated;
  std::array<Bytes, kStreams> now{}, most{};
  const auto add = [&](std::int32_t id, std::int64_t sign) {
    const std::int32_t own = id - graph.first_own_buffer;
    const Buffer b = own < 0 ? graph.buffer(id) : graph.buffers[at(own)];
    if (b.on_host) return;
    const auto pool = at(b.pool);
    now[pool] += b.bytes * sign;
    most[pool] = std::max(most[pool], now[pool]);
  };
  constexpr auto kLayers = at(Stream::kCompute);
  for (const std::int32_t buffer : graph.persistent) add(buffer, 1);
  using Kind = MemoryAction::Kind;
  for (const MemoryAction& action : graph.actions) {
    if (action.kind == Kind::kAllocate || action.kind == Kind::kFree) {
      add(action.target, action.kind == Kind::kAllocate ? 1 : -1);
    } else if (action.kind != Kind::kStore && action.kind != Kind::kKeep) {
      const LayerExecution& e = graph.executions[at(action.target)];
      const MemorySwing swing = swing_of(phase_of(graph.program(e), action), action);
      most[kLayers] = std::max(most[kLayers], now[kLayers] + Bytes(swing.peak));
      now[kLayers] += Bytes(swing.net);
    }
  }
  const Fit pools = fit_in(cluster, peak, std::accumulate(most.begin(), most.end(), Bytes()), outside);
  return pools.fits() ? pools : allocated;
}

}

const LazyPrograms& ProgramCache::add(const Plan& plan, std::int16_t recompute, std::int16_t micro_batch) {
  Bucket& bucket = buckets_[{recompute, micro_batch}];
  for (const auto& programs : bucket)
    if (programs->serve(plan)) return *programs;
  bucket.push_back(std::make_unique<LazyPrograms>(model_, plan));
  return *bucket.back();
}

const LazyPrograms& ProgramCache::at(const Plan& plan, std::int16_t recompute, std::int16_t micro_batch) const {
  const Bucket& bucket = buckets_.at({recompute, micro_batch});
  if (bucket.size() == 1) return *bucket.front();
  for (const auto& programs : bucket)
    if (programs->serve(plan)) return *programs;
  FORESHARD_CHECK(false, "no programs of this plan");
}

const EventGraph& Judge::build(const Plan& plan, const LayerPrograms& programs) {
  graph_ = build_training_step(model_, plan, programs, std::move(graph_));
  Plan of_fullest = plan;
  take_fullest_rank(graph_, of_fullest);
  return graph_;
}

const EventGraph& Judge::build_fullest(const Plan& plan, const LayerPrograms& programs) {
  if (plan.mesh.pp == 1) return build(plan, programs);
  ranks_.clear();
  for (std::int64_t rank = 0; rank < plan.mesh.pp; ++rank)
    ranks_.push_back(build_pipeline_rank(model_, at_pipeline_rank(plan, rank), programs));
  if (plan.named_rank) return ranks_[at(plan.mesh.pp_index(plan.rank()))];
  return *std::ranges::max_element(ranks_, {}, [](const EventGraph& graph) { return peak_allocated(graph); });
}

bool Judge::weigh(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome) {
  const EventGraph& graph = build_fullest(told(plan), programs);
  const Fit pools = least_fit_of(graph, plan, costs_.cluster());
  outcome.peak = pools.allocated;
  outcome.outside = pools.outside;
  outcome.least_reserved = pools.reserved;
  outcome.is_built = true;
  // As if the allocator cached nothing.
  const Fit least = fit_in(costs_.cluster(), outcome.peak, outcome.peak, outcome.outside);
  if (rule_.keeps_riskier ? fits(least, rule_.terms) : holds(least, rule_.terms)) return true;
  outcome.verdict = Verdict::kDoesNotFit;
  return false;
}

void Judge::time(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome) {
  const bool is_built = plan.mesh.pp == 1 && told(plan).batch.accumulation == plan.batch.accumulation;
  outcome.step = is_built ? simulator_.period(graph_, costs_.price(graph_)) : period(plan, programs);
  outcome.verdict = Verdict::kSimulated;
}

Time Judge::period(const Plan& plan, const LayerPrograms& programs) {
  return period_of(
      simulator_, costs_, plan,
      [&](std::int64_t micro_batches) -> const EventGraph& { return build(shortened(plan, micro_batches), programs); });
}

LayersFloor Judge::floor(const Plan& plan, const LazyPrograms& lazy) {
  if (plan.mesh.pp > 1) return pipeline_floor(model_, plan, costs_, *samples_);
  const LayerPrograms& programs = lazy.get();
  const auto of = [&](std::int64_t micro_batches) {
    const EventGraph& graph = build(shortened(plan, micro_batches), programs);
    return layers_bound(graph, costs_.price(graph));
  };
  const Time step = of(kTelling);
  LayersFloor floor{step, {activations_of(graph_)}, peak_allocated(graph_)};
  if (plan.batch.accumulation > kTelling)
    floor.step = extended_bound(of(kTelling - 1), floor.step, plan.batch.accumulation);
  return floor;
}

Time Judge::bound(const Plan& plan, const LayerPrograms& programs) {
  build_fullest(told(plan), programs);
  return extended(plan, programs, lower_bound);
}

Time Judge::bound_weighed(const Plan& plan, const LayerPrograms& programs) {
  return extended(plan, programs, contended_bound);
}

Time Judge::extended(const Plan& plan, const LayerPrograms& programs, Bound* of) {
  if (plan.mesh.pp > 1) return pipeline_bound(plan, programs, of);
  const Time at_telling = of(graph_, costs_.price(graph_));
  if (plan.batch.accumulation <= kTelling) return at_telling;
  const EventGraph& shorter = build(shortened(plan, kTelling - 1), programs);
  return extended_bound(of(shorter, costs_.price(shorter)), at_telling, plan.batch.accumulation);
}

// Of each of its ranks, beside what stages before it add.
Time Judge::pipeline_bound(const Plan& plan, const LayerPrograms& programs, Bound* of) {
  const auto of_ranks = [&] {
    std::vector<CostTable> tables;
    Time most;
    for (const EventGraph& rank : ranks_) {
      tables.push_back(costs_.price(rank));
      most = std::max(most, of(rank, tables.back()));
    }
    return std::max(most, stages_bound(ranks_, tables, model_, plan));
  };
  const LaidOut few = laid_out_of(plan);
  const Time laid_out = of_ranks();
  if (few.fewer == few.count) return laid_out;
  build_fullest(shortened(plan, few.fewer), programs);
  const double fewer = of_ranks().seconds();
  return Time::seconds(of_whole_step(few, laid_out.seconds(), fewer, plan.batch.accumulation));
}

ReservedMemory::Answer Judge::reserved_of(const EventGraph& graph, const Plan& plan) {
  if (!records_streams(graph)) return reserved_->ask(graph, plan, costs_.cluster());
  // By the times of the whole step, as predict's.
  const Plan few = shortened(plan, laid_out_of(plan).count);
  const ReservedForecast reserved = forecast(model_, few, costs_, reserved_.get()).reserved;
  return {reserved.peak, !reserved.stalls.empty()};
}

Fit Judge::least_fit(const Plan& plan, const LayerPrograms& programs) {
  return least_fit_of(build_fullest(told(plan), programs), plan, costs_.cluster());
}

Fit Judge::fit(const Plan& plan, const LayerPrograms& programs) {
  const EventGraph& graph = build_fullest(told(plan), programs);
  const Fit least = least_fit_of(graph, plan, costs_.cluster());
  return fit_in(costs_.cluster(), least.allocated, reserved_of(graph, plan).peak, least.outside);
}

bool Judge::assess(const Plan& plan, const LayerPrograms& programs, PlanOutcome& outcome, double enough) {
  // From the second micro-batch on all are alike: three of them show what is reserved.
  const EventGraph& graph = build_fullest(told(plan), programs);
  const ReservedMemory::Answer reserved = reserved_of(graph, plan);
  outcome.reserved = reserved.peak;
  outcome.stalls = reserved.stalls;
  const Fit fit = fit_of(outcome);
  outcome.fit_probability = rule_.probability ? rule_.probability(plan, fit, enough) : fit_probability(fit);
  outcome.is_assessed = true;
  if (!fits(fit, rule_.terms)) outcome.verdict = Verdict::kDoesNotFit;
  return outcome.verdict == Verdict::kSimulated && outcome.fit_probability >= rule_.terms.confidence;
}

void Judge::add_stalls(const Plan& plan, PlanOutcome& outcome) {
  if (!outcome.stalls || outcome.verdict != Verdict::kSimulated) return;
  const auto period = [&](std::int64_t micro_batches) {
    const Plan few = shortened(plan, micro_batches);
    return forecast(model_, few, costs_, reserved_.get()).timeline.period;
  };
  const std::int64_t all = plan.batch.accumulation;
  const LaidOut few = laid_out_of(plan);
  outcome.step = period(few.count);
  if (few.fewer < few.count) {
    const double fewer = period(few.fewer).seconds();
    outcome.step = Time::seconds(of_whole_step(few, outcome.step.seconds(), fewer, all));
  }
  outcome.stalls = false;
}

std::optional<Candidate> judge_plan(
    const Plan& plan, const ModelSpec& model, const CostModel& costs, const FitRule& rule, double limit) {
  Judge judge(model, costs, rule);
  const LayerPrograms programs(model, plan);
  PlanOutcome outcome;
  if (!judge.weigh(plan, programs, outcome)) return std::nullopt;
  judge.time(plan, programs, outcome);
  // The driver's calls only add to it.
  if (outcome.step.seconds() >= limit) return std::nullopt;
  if (!judge.assess(plan, programs, outcome)) return std::nullopt;
  judge.add_stalls(plan, outcome);
  Candidate candidate = {.plan = plan, .seconds = outcome.step.seconds()};
  candidate.tokens_per_s_per_gpu = as_double(plan.batch.micro_batch * plan.batch.accumulation * plan.batch.sequence) /
                                   as_double(plan.mesh.sharing()) / candidate.seconds;
  candidate.peak_allocated = outcome.peak;
  candidate.outside_allocator = outcome.outside;
  candidate.peak_reserved = outcome.reserved;
  candidate.fit_probability = outcome.fit_probability;
  return candidate;
}

}
