// A trial is a job with assignments over its own; its memory is asked of what is allocated first, which rules most out,
// and then of the caching allocator. From the second micro-batch on all are alike: three of them show the peak, but for
// what a trainer's frame fetches of all before the first, and of a pipeline, whose fullest rank decides.
#include "planner/remedy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "calibration/machines.h"
#include "reports/sizing/search_advice.h"
#include "reports/view/layout.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_actions.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"

namespace foreshard {
namespace {

constexpr std::int64_t kShownMicroBatches = 3;

Assignments joined(Assignments a, const Assignments& b) {
  append(a, b);
  return a;
}

// What the changes set the key to, the last of them deciding.
std::int64_t set_to(const Assignments& changes, std::string_view key, std::int64_t own) {
  for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
    const std::size_t equals = change->find('=');
    if (change->substr(0, equals) == key) return std::stoll(change->substr(equals + 1));
  }
  return own;
}

// Without those that a later one of the same key takes back.
Assignments standing(const Assignments& changes) {
  Assignments last;
  for (const std::string& change : changes) {
    const std::string_view key = std::string_view(change).substr(0, change.find('=') + 1);
    std::erase_if(last, [&](const std::string& earlier) { return earlier.starts_with(key); });
    last.push_back(change);
  }
  return last;
}

// With the times of a simulation where blocks come back by them.
Bytes reserved_of(const EventGraph& graph, const Plan& plan, const Job& job) {
  const Plan few = shortened(plan, laid_out_of(plan).count);
  if (records_streams(graph)) return forecast(job.model, few, cost_model(job)).reserved.peak;
  return forecast_reserved(graph, plan, job.cluster).peak;
}

class Trials {
 public:
  Trials(const Job& job, const Plan& plan, const MemoryTerms& terms)
      : job_(job), own_(assignments_to(job, plan)), terms_(terms) {}

  // The plan with these changes, where it holds.
  std::optional<Remedy> with(const Assignments& changes) const { return on(job_, changes); }

  // On a cluster of so many GPUs, everything sharded over them but what the plan replicates.
  std::optional<Remedy> with(const Assignments& changes, std::int64_t gpus) const {
    if (job_.cluster.routes) return std::nullopt;  // of its own nodes, no more
    Job bigger = job_;
    bigger.cluster.gpus = gpus;
    const Mesh& own = job_.resolved.plan.mesh;
    const std::int64_t sharing = own.pp * own.cp * set_to(changes, "mesh.tp", own.tp);
    if (gpus % sharing != 0) return std::nullopt;
    const std::int64_t ranks = gpus / sharing;
    const std::int64_t wanted = set_to(changes, "mesh.replicate", own.replicate);
    const std::int64_t replicate = ranks % wanted == 0 ? wanted : 1;
    return on(bigger, joined(changes, {fmt::format("mesh.shard={}", ranks / replicate),
                                          fmt::format("mesh.replicate={}", replicate)}));
  }

  std::vector<MemoryKnob> knobs() const {
    const auto own = changed_job(job_, own_);
    return own ? memory_knobs(*own) : std::vector<MemoryKnob>();
  }

  // All changes at their strongest that go together, in the order of the knobs; and the same begun
  // by each knob that those before it left out.
  std::vector<std::vector<Assignments>> everything() const {
    const std::vector<MemoryKnob> all = knobs();
    std::vector<std::vector<Assignments>> sets;
    std::set<std::string> taken;
    for (const MemoryKnob& first : all) {
      if (taken.contains(first.key)) continue;
      std::vector<Assignments>& together = sets.emplace_back(1, first.values.back());
      taken.insert(first.key);
      for (const MemoryKnob& knob : all) {
        const Assignments& strongest = knob.values.back();
        if (knob.key == first.key || !changed_job(job_, joined(joined(own_, flat(together)), strongest))) continue;
        together.push_back(strongest);
        taken.insert(knob.key);
      }
    }
    return sets;
  }

  static Assignments flat(const std::vector<Assignments>& changes) {
    Assignments all;
    for (const Assignments& some : changes) append(all, some);
    return all;
  }

  // Without the changes that are not needed, the costliest first.
  std::optional<Remedy> least_of(std::vector<Assignments> changes, std::int64_t gpus) const {
    const auto tried = [&] { return gpus > job_.cluster.gpus ? with(flat(changes), gpus) : with(flat(changes)); };
    std::optional<Remedy> best = tried();
    for (std::size_t i = changes.size(); best && i-- > 0;) {
      const std::vector<Assignments> before = changes;
      changes.erase(changes.begin() + i);
      if (auto without = tried()) best = std::move(without);
      else changes = before;
    }
    return best;
  }

 private:
  std::optional<Remedy> on(const Job& job, const Assignments& changes) const {
    const auto changed = changed_job(job, joined(own_, changes));
    if (!changed) return std::nullopt;
    const Plan& plan = changed->resolved.plan;
    Plan shorter = shortened(plan, plan.mesh.pp > 1 ? laid_out_of(plan).count : kShownMicroBatches);
    const Cluster& cluster = job.cluster;
    EventGraph graph = build_training_step(changed->model, shorter);
    take_fullest_rank(graph, shorter);
    Bytes peak = peak_allocated(graph);
    const Bytes outside = total(memory_outside(graph, cluster, plan.runtime));
    if (!holds(fit_in(cluster, peak, peak, outside), terms_)) return std::nullopt;
    if (plan.step_frame != StepFrame::kPlain && plan.mesh.pp == 1) {
      shorter.batch.accumulation = laid_out_of(plan).count;
      graph = build_training_step(changed->model, shorter);
      peak = peak_allocated(graph);
    }
    const Fit fit = fit_in(cluster, peak, reserved_of(graph, plan, *changed), outside);
    if (!holds(fit, terms_)) return std::nullopt;
    const CostModel costs = cost_model(*changed);
    const double probability = StackOdds(stack_set(*changed, costs))(plan, fit, terms_.confidence);
    if (probability < terms_.confidence) return std::nullopt;
    return Remedy{standing(changes), cluster.gpus, plan, fit, probability, replay_allocations(graph).host_peak};
  }

  const Job& job_;
  const Assignments own_;
  const MemoryTerms terms_;
};

std::optional<Remedy> one_key(const Trials& trials, const std::vector<MemoryKnob>& knobs) {
  for (const MemoryKnob& knob : knobs) {
    for (const Assignments& value : knob.values)
      if (auto remedy = trials.with(value)) return remedy;
  }
  return std::nullopt;
}

std::optional<Remedy> two_keys(const Trials& trials, const std::vector<MemoryKnob>& knobs) {
  for (std::size_t a = 0; a < knobs.size(); ++a) {
    for (std::size_t b = a + 1; b < knobs.size(); ++b) {
      // Where both at their strongest do not hold, no milder ones do.
      if (!trials.with(joined(knobs[a].values.back(), knobs[b].values.back()))) continue;
      for (const Assignments& first : knobs[a].values) {
        for (const Assignments& second : knobs[b].values)
          if (auto remedy = trials.with(joined(first, second))) return remedy;
      }
    }
  }
  return std::nullopt;
}

std::optional<Remedy> few_keys(const Trials& trials, const std::vector<MemoryKnob>& knobs) {
  auto remedy = one_key(trials, knobs);
  return remedy ? remedy : two_keys(trials, knobs);
}

std::optional<Remedy> more_gpus(
    const Trials& trials, const std::vector<std::vector<Assignments>>& sets, const Cluster& cluster) {
  const std::int64_t most = cluster.node.nics > 0 ? kMaxGpus : cluster.node.gpus;
  std::int64_t gpus = cluster.gpus;
  while (gpus <= most / 2) {
    // Part of a node grows to the whole of it.
    gpus = gpus < cluster.node.gpus ? std::min(gpus * 2, cluster.node.gpus) : gpus * 2;
    for (const std::vector<Assignments>& changes : sets)
      if (auto remedy = trials.least_of(changes, gpus)) return remedy;
  }
  return std::nullopt;
}

// Where every rank holds the parameters whole: the runtime that shards them, over every GPU.
std::optional<Remedy> another_runtime(const Job& job, const Plan& plan, const MemoryTerms& terms) {
  const RuntimeKind kind = plan.runtime.kind;
  if (kind != RuntimeKind::kDdp && kind != RuntimeKind::kZero1 && kind != RuntimeKind::kZero2) return std::nullopt;
  const Assignments sharded = {fmt::format("runtime={}", to_string(RuntimeKind::kFsdp2)),
      fmt::format("mesh.shard={}", job.cluster.gpus / plan.mesh.sharing()), "mesh.replicate=1"};
  const auto other = changed_job(job, sharded);
  if (!other) return std::nullopt;
  const Trials trials(*other, other->resolved.plan, terms);
  auto remedy = trials.with({});
  if (!remedy) remedy = few_keys(trials, trials.knobs());
  if (remedy) remedy->changes = joined(sharded, remedy->changes);
  return remedy;
}

}

RemedySearch find_remedy(const Job& job, const Plan& plan, const MemoryTerms& terms) {
  RemedySearch search;
  const Trials trials(job, plan, terms);
  const std::vector<MemoryKnob> knobs = trials.knobs();
  for (const MemoryKnob& knob : knobs) search.tried.push_back(knob.key);
  search.found = few_keys(trials, knobs);
  const std::vector<std::vector<Assignments>> sets = trials.everything();
  for (const std::vector<Assignments>& all : sets)
    if (!search.found) search.found = trials.least_of(all, job.cluster.gpus);
  if (!search.found) search.found = more_gpus(trials, {{}}, job.cluster);
  if (!search.found) search.found = more_gpus(trials, sets, job.cluster);
  if (!search.found) search.found = another_runtime(job, plan, terms);
  return search;
}

std::optional<Remedy> free_remedy(const Job& job, const Plan& plan, const MemoryTerms& terms) {
  const Trials trials(job, plan, terms);
  std::vector<MemoryKnob> knobs = trials.knobs();
  std::erase_if(knobs, [](const MemoryKnob& knob) { return !knob.is_free; });
  return one_key(trials, knobs);
}

std::string shortfall_text(const Fit& fit) {
  return fmt::format("does not fit: {} more per GPU than the {} there are", format_bytes(Bytes(-fit.margin().count())),
      format_bytes(fit.capacity));
}

std::string remedy_text(const RemedySearch& search, const Cluster& cluster) {
  if (!search.found) {
    return fmt::format("no key of the plan ({}) and no number of GPUs makes it fit: shorten batch.sequence",
        fmt::join(search.tried, ", "));
  }
  const Remedy& remedy = *search.found;
  std::vector<std::string> changes;
  if (remedy.gpus != cluster.gpus) changes.push_back(format_count(remedy.gpus) + " GPUs");
  for (const std::string& change : remedy.changes) changes.push_back("--set " + change);
  std::string text = fmt::format("it fits with {}: {} to spare, with {}", fmt::join(changes, " "),
      format_bytes(remedy.fit.margin()), chance_text(remedy.fit_probability));
  if (remedy.plan.offload != Offload::kNone)
    text += fmt::format("; {} of the host's memory per GPU", format_bytes(remedy.host_peak));
  return text;
}

Json remedy_json(const Fit& fit, const RemedySearch& search) {
  Json json;
  json["exceeds_bytes"] = -fit.margin().count();
  json["tried"] = search.tried;
  json["remedy"] = nullptr;
  if (!search.found) return json;
  const Remedy& remedy = *search.found;
  json["remedy"] = {{"gpus", remedy.gpus}, {"set", set_json(remedy.changes)}, {"plan", to_json(remedy.plan)},
      {"peak_allocated_bytes", remedy.fit.allocated.count()}, {"fit_probability", remedy.fit_probability},
      {"margin_bytes", remedy.fit.margin().count()}, {"host_peak_bytes", remedy.host_peak.count()}};
  return json;
}

}
