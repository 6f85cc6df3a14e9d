// From the second micro-batch of a step on all are alike, so a step of many micro-batches is drawn on two shorter ones
// and what one more of them takes: the difference of the two. The central value is simulated in full.
#include "reports/sizing/sizing.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "reports/accuracy/evidence.h"
#include "reports/report_parts.h"
#include "reports/sanity.h"
#include "sim/base/error.h"
#include "sim/graph/optimizer_state.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/search/variant_search.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/open_stack.h"

namespace foreshard {
namespace {

// Micro-batches of the step whose memory and composition are told; of a pipeline predict's.
constexpr std::int64_t kShown = 4;
std::int64_t shown_of(const Plan& plan) { return plan.mesh.pp == 1 ? kShown : laid_out_of(plan).count; }

Plan with_accumulation(Plan plan, std::int64_t most) {
  plan.batch.accumulation = std::min(plan.batch.accumulation, most);
  return plan;
}

double period(Simulator& simulator, const EventGraph& graph, CostTable costs, const std::vector<HostDelay>& delays) {
  costs.delays = delays;
  return simulator.period(graph, costs).seconds();
}

// A step that is drawn again and again.
class DrawnStep {
 public:
  // `shown`: of the step's first micro-batches (shown_of), or of all where the driver's calls in
  // every step depend on the whole of it.
  DrawnStep(const ModelSpec& model, const Plan& plan, const CostModel& costs, ReservedMemory* replays)
      : accumulation_(plan.batch.accumulation), costs_(costs), drawn_(drawn_of(plan)) {
    const std::int64_t shown = shown_of(plan);
    const auto of = [&](std::int64_t micro_batches) {
      return forecast(model, with_accumulation(plan, micro_batches), costs, replays);
    };
    shown_ = of(shown);
    const bool is_alone = plan.mesh.pp == 1;
    const bool has_calls = !shown_.costs.delays.empty();
    if (accumulation_ > shown && has_calls && is_alone) shown_ = of(accumulation_);
    mfu_ = mfu_of(shown_, costs.cluster());
    is_whole_ = accumulation_ <= shown || (has_calls && is_alone);
    if (is_whole_) return;
    if (has_calls) {
      const LaidOut few = laid_out_of(plan);
      seconds_ =
          of_whole_step(few, shown_.timeline.period.seconds(), of(few.fewer).timeline.period.seconds(), accumulation_);
    }
    const LayerPrograms programs(model, plan);
    longer_ = build_training_step(model, with_accumulation(plan, drawn_.count), programs);
    shorter_ = build_training_step(model, with_accumulation(plan, drawn_.fewer), programs);
    if (has_calls) return;
    EventGraph graph;
    const auto step = [&](std::int64_t micro_batches) -> const EventGraph& {
      return graph = build_training_step(model, with_accumulation(plan, micro_batches), programs, std::move(graph));
    };
    seconds_ = period_of(simulator_, costs, plan, step).seconds();
  }

  const Forecast& shown() const { return shown_; }
  double seconds() const { return is_whole_ ? shown_.timeline.period.seconds() : seconds_; }
  double draw(int k) {
    const FactorDraw factors = costs_.draw(k);
    const auto at = [&](const EventGraph& graph, const std::vector<HostDelay>& delays) {
      return period(simulator_, graph, costs_.price(graph, factors), delays);
    };
    if (is_whole_) return at(shown_.graph, shown_.costs.delays) * costs_.plan_draw(k, mfu_);
    return of_whole_step(drawn_, at(longer_, {}), at(shorter_, {}), accumulation_) * costs_.plan_draw(k, mfu_);
  }

 private:
  std::int64_t accumulation_;
  const CostModel& costs_;
  Forecast shown_;
  double mfu_ = 0;
  bool is_whole_ = true;
  const LaidOut drawn_;
  EventGraph longer_, shorter_;
  double seconds_ = 0;
  Simulator simulator_;
};

// The step of another code that may run the job; of a long one by what a micro-batch more takes.
StackOutcome outcome_of(const StackCase& other, ReservedMemory* replays) {
  const std::int64_t accumulation = other.plan.batch.accumulation;
  const LaidOut few = drawn_of(other.plan);
  const Forecast told = forecast(other.model, with_accumulation(other.plan, few.count), other.costs, replays);
  StackOutcome outcome = outcome_of(told, other.costs.cluster(), &other);
  if (few.fewer == few.count) return outcome;
  Simulator simulator;
  const auto at = [&](const EventGraph& graph) { return period(simulator, graph, other.costs.price(graph), {}); };
  const double fewer = at(build_training_step(other.model, with_accumulation(other.plan, few.fewer)));
  outcome.seconds += of_whole_step(few, at(told.graph), fewer, accumulation) - at(told.graph);
  return outcome;
}

double share_of(const EventGraph& graph, const Timeline& timeline, EventKind kind) {
  Time sum;
  for (std::size_t i = 0; i < graph.rows.size(); ++i)
    if (graph.rows[i].kind == kind) sum += timeline.spans[i].end - timeline.spans[i].arrive;
  return sum.seconds() / timeline.period.seconds();
}

}

SizedPlan size_up(const ModelSpec& model, const Plan& plan, const CostModel& costs, const Sizing& sizing) {
  const std::vector<StackCase>& cases = sizing.cases;
  DrawnStep step(model, plan, costs, sizing.replays);
  std::vector<StackOutcome> outcomes = {
      outcome_of(step.shown(), costs.cluster(), cases.empty() ? nullptr : &cases.front())};
  outcomes[0].seconds = step.seconds();
  for (std::size_t i = 1; i < cases.size(); ++i) outcomes.push_back(outcome_of(cases[i], sizing.replays));
  SizedPlan sized = {.cluster = costs.cluster(), .plan = plan};
  Forecast shown = step.shown();
  const StepMetrics metrics = measure_step(shown.graph, shown.timeline);
  sized.exposed_share = metrics.exposed_communication / metrics.seconds;
  sized.forward_share = share_of(shown.graph, shown.timeline, EventKind::kForward);
  const std::vector<double> weights = weights_of(outcomes);
  for (int k = 0; k < sizing.draws; ++k) {
    const std::size_t of = alternative_of_draw(weights, k);
    // A machine's factors move every code's step by about the same share.
    sized.draws.push_back(step.draw(k) * (outcomes[of].seconds / outcomes[0].seconds));
    sized.fit_draws.push_back(fit_probability(outcomes[of].fit));
  }
  sized.step =
      covering(with_interval(outcomes[0].seconds, sized.draws, weigh_evidence(shown, costs).seconds), outcomes);
  sized.fit = outcomes[0].fit;
  sized.fit_probability = fit_probability(outcomes);
  if (outcomes.size() > 1)
    sized.open_stack = open_stack(std::move(outcomes), sized.draws, sized.step.high - sized.step.low);
  shown.plan = plan;
  const StepRates rates = step_rates(shown, sized.cluster);
  sized.mfu = rate(rates.model_peak_seconds, sized.step);
  sized.tokens_per_s = rate(rates.tokens_per_gpu * as_double(sized.cluster.gpus), sized.step);
  sized.state = checkpoint_bytes(model, plan);
  if (const std::string text = find_nonsense(sized, shown); !text.empty()) throw NonsenseError(text);
  return sized;
}

void judge_each(std::size_t count, const Judging& judging, const std::function<void(std::size_t)>& judge) {
  std::atomic<std::int64_t> done = 0;
  std::atomic<bool> stopped = false;
  const auto work = [&](std::size_t i) {
    if (stopped) return;
    judge(i);
    const std::int64_t now = ++done;
    if (judging.progress && !judging.progress(now, static_cast<std::int64_t>(count))) stopped = true;
  };
  oneapi::tbb::task_arena arena(judging.threads > 0 ? judging.threads : oneapi::tbb::task_arena::automatic);
  arena.execute([&] { oneapi::tbb::parallel_for(std::size_t{0}, count, work, oneapi::tbb::simple_partitioner()); });
  if (stopped) throw Error(ExitCode::kInterrupted, std::string(judging.who) + " was stopped");
}

std::optional<SizedPlan> best_plan(const JobVariants& variants, const MemoryTerms& terms, int draws) {
  SearchOptions options = {.threads = 1, .detail = SearchDetail::kBest};
  options.fit.terms = terms;
  options.fit.keeps_riskier = false;
  options.fit.samples = std::make_shared<StageSamples>();
  options.faster_than = kAnyStep;
  std::vector<const SizedJob*> jobs;
  const auto search_of = [&](std::size_t v, const SearchSpace& space, SearchOptions own) {
    const SizedJob& job = *jobs[v];
    StackOdds odds(job.stacks, job.replays);
    own.fit = rule_of(odds, job.replays, std::move(own.fit));
    return search(space, job.model, job.costs, own);
  };
  const auto floor = [&](std::size_t v) {
    const SizedJob& job = *jobs[v];
    return floor_of(job.space, job.model, job.costs, terms, options.fit.samples);
  };
  const auto space = [&](std::size_t v) -> const SearchSpace& { return jobs[v]->space; };
  VariantSearch all({space, floor, search_of}, options);
  const auto look_at = [&](const std::vector<SizedJob>& more) {
    for (const SizedJob& job : more) jobs.push_back(&job);
    all.look_at(more.size());
  };
  look_at(variants.list);
  std::vector<SizedJob> others, around;
  if (variants.otherwise && (!all.plan() || all.plan()->recomputes())) {
    others = variants.otherwise(all.plan() ? all.best() : std::nullopt);
    look_at(others);
  }
  if (variants.around) {
    std::vector<std::size_t> promising;
    // (The loss in parts shuts out tensor parallelism, which may have won without it.)
    const bool is_open = !all.plan() || all.plan()->plan.mesh.tp > 1;
    for (std::size_t v = 0; v < jobs.size(); ++v) {
      const bool is_asked = is_open || v < variants.list.size() || v == *all.best();
      const bool may_win = may_win_in_parts(all.floors()[v], all.plan() ? &*all.plan() : nullptr);
      if (is_asked && may_win && space(v).base.mesh != space(0).base.mesh) promising.push_back(v);
    }
    around = variants.around(promising);
    look_at(around);
  }
  if (!all.plan()) return std::nullopt;
  const SizedJob& of = *jobs[*all.best()];
  const Plan& best = all.plan()->plan;
  SizedPlan sized = size_up(of.model, best, of.costs, {draws, of.stacks.of(best), of.replays.get()});
  sized.job = std::make_shared<SizedJob>(of);
  sized.enumerated = all.counts().enumerated;
  sized.simulated = all.counts().simulated;
  return sized;
}

std::optional<std::int64_t> knee_of(std::vector<std::pair<std::int64_t, double>> curve) {
  if (curve.size() < 2) return std::nullopt;
  std::ranges::sort(curve);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const auto& [less, slower] = curve[i - 1];
    const auto& [more, faster] = curve[i];
    const double doublings = std::log2(as_double(more) / as_double(less));
    if (faster / slower < std::pow(kKneeGain, doublings)) return less;
  }
  return std::nullopt;
}

std::int64_t next_size(std::int64_t gpus, const Cluster& cluster) {
  const std::int64_t node = cluster.node.gpus;
  return gpus < node ? std::min(gpus * 2, node) : gpus * 2;
}

namespace {

// Whether the plan that asks for least memory holds on a cluster.
bool least_holds(const SizedJob& job, const Cluster& cluster, const MemoryTerms& terms) {
  const SearchSpace& space = job.space;
  Plan plan = space.base;
  plan.batch.micro_batch = space.micro_batches.empty() ? 1 : space.micro_batches.front();
  plan.batch.accumulation = plan.mesh.pp;
  plan.reshard_after_forward = space.reshards.empty() ? RangedPolicy<Reshard>{} : space.base.reshard_after_forward;
  plan.recompute = space.recomputes.empty() ? RangedPolicy<Recompute>{Recompute::kFull, {}} : space.recomputes.back();
  plan.prefetch = space.prefetches.empty() ? Prefetch{} : space.prefetches.front();
  const std::int64_t inner = plan.mesh.sharing();
  const std::int64_t ranks = cluster.gpus / inner;
  const std::int64_t shard = space.shard_groups.empty() ? ranks : space.shard_groups.front();
  if (cluster.gpus % inner != 0 || shard == 0 || ranks % shard != 0) return false;
  plan.mesh.shard = shard;
  plan.mesh.replicate = ranks / shard;
  std::vector<AllocatorSettings> allocators = space.allocators;
  if (allocators.empty()) allocators = {plan.allocator};
  // Experts that are sharded along another dimension where that is free to choose.
  for (const KnobAxis& knob : space.knobs)
    if (knob.key == "units.shard_dim" && knob.matters(plan)) knob.values.back()(plan);
  if (find_problem(plan, job.model, cluster)) return false;
  EventGraph graph = build_training_step(job.model, plan);
  take_fullest_rank(graph, plan);
  const Bytes peak = peak_allocated(graph);
  const Bytes outside = total(memory_outside(graph, cluster, plan.runtime));
  if (!holds(fit_in(cluster, peak, peak, outside), terms)) return false;
  return std::ranges::any_of(allocators, [&](const AllocatorSettings& allocator) {
    plan.allocator = allocator;
    if (find_problem(plan, job.model, cluster)) return false;
    const Bytes reserved = forecast_reserved(graph, plan, cluster).peak;
    return holds(fit_in(cluster, peak, reserved, outside), terms);
  });
}

}

std::optional<std::int64_t> smallest_that_holds(
    const JobVariants& variants, const MemoryTerms& terms, std::int64_t most) {
  Cluster cluster = variants.front().costs.cluster();
  const bool is_single = cluster.node.nics == 0;
  if (cluster.routes) most = std::min(most, cluster.gpus);  // of its own nodes, no more
  for (std::int64_t gpus = 1; gpus <= most; gpus = next_size(gpus, cluster)) {
    if (is_single && gpus > cluster.node.gpus) break;
    cluster.gpus = gpus;
    const bool is_enough =
        std::ranges::any_of(variants.list, [&](const SizedJob& job) { return least_holds(job, cluster, terms); });
    if (is_enough) return gpus;
  }
  return std::nullopt;
}

}
