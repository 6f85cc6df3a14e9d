// Every candidate is searched and forecast by itself, in parallel over candidates, into a vector in
// their order; sorting and what follows from it is done from there in one thread.
//
// Where no choice meets the deadline, the fastest machine is doubled, each size a forecast of its
// own, until one does; steps grow by a sequence for every GPU where they have to.
#include "reports/sizing/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "calibration/machines.h"
#include "reports/view/layout.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr double kLikelyMfu = 0.4;
constexpr int kSizes = 8;
constexpr int kMostDoublings = 8;

struct Looked {
  std::optional<Choice> choice;
  std::string reason;  // where there is none
  ExitCode failure = ExitCode::kOk;
  std::string model;
  std::int64_t parameters = 0;
  std::int64_t sequence = 0;
  void note(const SizedJob& job) {
    model = job.model.name;
    parameters = job.model.parameters();
    sequence = job.space.base.batch.sequence;
  }
};

// With the plan that is fastest of those that fit with the confidence asked for. Where that is
// enough for memory, but not for memory, time and money at once: with one that spares more.
std::optional<Choice> choice_of(const CandidateCluster& candidate, const JobVariants& variants, const RunTerms& terms,
    const RecommendOptions& options) {
  const auto with = [&](double confidence) -> std::optional<Choice> {
    auto sized = best_plan(variants, {confidence}, options.draws);
    if (!sized) return std::nullopt;
    Choice choice{candidate.machine, std::move(*sized), variants.front().price, {}};
    choice.run = forecast_run(choice.sized, choice.price, terms);
    return choice;
  };
  std::optional<Choice> choice = with(terms.confidence);
  if (!choice || choice->run.probability >= terms.confidence) return choice;
  const double others = choice->run.probability / choice->sized.fit_probability;
  if (others <= terms.confidence) return choice;
  auto surer = with(terms.confidence / others);
  return surer && surer->run.probability >= terms.confidence ? surer : choice;
}

// Of a run whose every FLOP is done at the dense peak: no plan is faster.
double least_seconds(const SizedJob& job, const RunTerms& terms) {
  const std::int64_t sequence = job.space.base.batch.sequence;
  const double flops = job.model.training_flops_per_sequence(sequence).count() / as_double(sequence) * terms.tokens;
  const Cluster& cluster = job.costs.cluster();
  const Gpu& gpu = cluster.gpu;
  const double peak = std::max({gpu.peak_bf16.value(), gpu.peak_fp8.value(), gpu.peak_fp32.value()});
  return flops / (as_double(cluster.gpus) * peak);
}

Looked look_at(
    const CandidateCluster& candidate, const JobMaker& make, const RunTerms& terms, const RecommendOptions& options) {
  Looked looked;
  try {
    const JobVariants variants = make(candidate, options.most_sequences);
    const SizedJob& job = variants.front();
    looked.note(job);
    if (!candidate.is_largest && terms.deadline && least_seconds(job, terms) > *terms.deadline) {
      looked.reason = "late even at the GPUs' peak";
      return looked;
    }
    auto choice = choice_of(candidate, variants, terms, options);
    if (!choice) looked.reason = fmt::format("nothing fits with {}", chance_text(terms.confidence));
    else if (std::isfinite(choice->run.days.high)) looked.choice = std::move(choice);
    else looked.reason = "fails more often than a checkpoint takes";
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::kInternal || error.exit_code() == ExitCode::kInterrupted) throw;
    looked.reason = error.what();
    looked.failure = error.exit_code();
  }
  return looked;
}

bool comes_first(const Choice& a, const Choice& b, double confidence) {
  const auto key = [&](const Choice& c) {
    const bool holds = c.run.probability >= confidence;
    const double alike = std::floor(std::log(c.run.dollars.value) / std::log1p(kAlike));
    return std::tuple(!holds, holds ? 0.0 : -std::round(100 * c.run.probability), alike, c.assumed(),
        c.run.dollars.value, c.sized.cluster.gpus, c.machine);
  };
  return key(a) < key(b);
}

std::vector<MachineSizes> sizes_of(const std::vector<CandidateCluster>& candidates, const std::vector<Looked>& looked,
    const std::vector<std::optional<std::int64_t>>& smallest) {
  std::vector<MachineSizes> machines;
  std::map<std::string, std::vector<const Choice*>> choices;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (looked[i].choice) choices[candidates[i].machine].push_back(&*looked[i].choice);
    if (!machines.empty() && machines.back().machine == candidates[i].machine) continue;
    machines.push_back({candidates[i].machine, smallest[i], std::nullopt});
  }
  for (MachineSizes& machine : machines) {
    std::vector<std::pair<std::int64_t, double>> curve;
    for (const Choice* choice : choices[machine.machine]) {
      // (Other axes may do with fewer than the plan that asks for least.)
      const std::int64_t gpus = choice->sized.cluster.gpus;
      machine.smallest = std::min(machine.smallest.value_or(gpus), gpus);
      curve.emplace_back(choice->sized.cluster.gpus, choice->sized.tokens_per_s.value);
    }
    machine.knee = knee_of(std::move(curve));
  }
  return machines;
}

// The spec of as many other GPUs: "512xh100" of "256xh100"; "" of a file.
std::string resized(const std::string& spec, std::int64_t gpus) {
  const std::size_t x = spec.find_first_of("xX");
  const bool is_spec = x != std::string::npos && x > 0 && spec.find_first_not_of("0123456789") == x;
  return is_spec ? fmt::format("{}{}", gpus, spec.substr(x)) : "";
}

std::optional<TermsRemedy> more_gpus(
    const Choice& fastest, const JobMaker& make, const RunTerms& terms, RecommendOptions options) {
  const Cluster& cluster = fastest.sized.cluster;
  std::int64_t gpus = cluster.gpus;
  for (int k = 0; k < kMostDoublings && gpus <= kMaxGpus / 2; ++k) {
    gpus = next_size(gpus, cluster);
    if (cluster.node.nics == 0 && gpus > cluster.node.gpus) return std::nullopt;
    const std::string spec = resized(cluster.spec, gpus);
    if (spec.empty()) return std::nullopt;
    const bool has_to_grow = gpus > options.most_sequences;
    if (has_to_grow) options.most_sequences = gpus;
    const Looked looked = look_at({fastest.machine, spec, gpus}, make, terms, options);
    if (!looked.choice || looked.choice->run.probability_in_time < terms.confidence) continue;
    const RunForecast& run = looked.choice->run;
    return TermsRemedy{TermsRemedy::What::kGpus, spec, as_double(gpus), has_to_grow ? options.most_sequences : 0,
        run.days.value * kSecondsPerDay, run.dollars.value};
  }
  return std::nullopt;
}

// The value nearest to `fails` with which the choice holds, to a thousandth; nothing where it does
// not hold with `holds` either. Both above zero.
std::optional<double> nearest_that_holds(
    const Choice& choice, const RunTerms& terms, auto&& set, std::pair<double, double> fails_holds) {
  const auto holds = [&](double value) {
    RunTerms other = terms;
    set(other, value);
    return forecast_run(choice.sized, choice.price, other).probability >= terms.confidence;
  };
  auto [fails, enough] = fails_holds;
  if (!holds(enough)) return std::nullopt;
  while (std::abs(enough / fails - 1) > 1e-3) {
    const double middle = std::sqrt(fails * enough);
    (holds(middle) ? enough : fails) = middle;
  }
  return enough;
}

// One term changed until a choice holds: the choice that needs the least change.
std::vector<TermsRemedy> find_remedies(const Recommendation& r, const JobMaker& make, const RecommendOptions& options) {
  using What = TermsRemedy::What;
  std::vector<TermsRemedy> remedies;
  if (r.choices.empty() || r.meets_terms()) return remedies;
  constexpr double kFar = 1000;
  const RunTerms& terms = r.terms;
  const auto least_change = [&](What what, double from, double to, auto set) {
    std::optional<TermsRemedy> best;
    for (const Choice& c : r.choices) {
      const auto value = nearest_that_holds(c, terms, set, {from, to});
      if (!value) continue;
      const bool is_nearer = !best || std::abs(std::log(*value / from)) < std::abs(std::log(best->value / from));
      if (!is_nearer) continue;
      best = TermsRemedy{what, c.sized.cluster.spec, *value, 0, c.run.days.value * kSecondsPerDay, c.run.dollars.value};
    }
    if (best) remedies.push_back(*best);
  };
  if (terms.deadline) {
    least_change(
        What::kDeadline, *terms.deadline, *terms.deadline * kFar,
        [](RunTerms& t, double value) { t.deadline = value; });
    const auto by_days = [](const Choice& a, const Choice& b) { return a.run.days.value < b.run.days.value; };
    const Choice& fastest = *std::ranges::min_element(r.choices, by_days);
    if (fastest.run.probability_in_time < terms.confidence) {
      if (auto more = more_gpus(fastest, make, terms, options)) remedies.push_back(*more);
    }
  }
  if (terms.budget) {
    least_change(
        What::kBudget, *terms.budget, *terms.budget * kFar, [](RunTerms& t, double value) { t.budget = value; });
  }
  least_change(What::kTokens, terms.tokens, terms.tokens / kFar, [](RunTerms& t, double value) { t.tokens = value; });
  return remedies;
}

}

std::vector<std::int64_t> likely_sizes(const Cluster& cluster, double flops, const RunTerms& terms, std::int64_t most) {
  const std::int64_t node = cluster.node.gpus;
  std::int64_t gpus = node;
  while (gpus > most && gpus > 1) gpus /= 2;  // part of a node
  if (terms.deadline) {
    const double needed = flops / (kLikelyMfu * cluster.gpu.peak_bf16.value() * *terms.deadline);
    while (as_double(gpus) * 2 * 8 <= needed && gpus * 2 <= most) gpus *= 2;
  }
  std::vector<std::int64_t> sizes;
  const std::int64_t largest = cluster.node.nics == 0 ? std::min(most, node) : most;
  for (int i = 0; i < kSizes && gpus <= largest; ++i, gpus *= 2) sizes.push_back(gpus);
  return sizes;
}

Recommendation recommend(const std::vector<CandidateCluster>& candidates, const JobMaker& make, const RunTerms& terms,
    const RecommendOptions& options) {
  std::vector<Looked> looked(candidates.size());
  std::vector<std::optional<std::int64_t>> smallest(candidates.size());
  const auto judge = [&](std::size_t i) {
    CandidateCluster candidate = candidates[i];
    // Of every machine one size is a choice even where no size is in time: for what would be.
    candidate.is_largest = i + 1 == candidates.size() || candidates[i + 1].machine != candidate.machine;
    looked[i] = look_at(candidate, make, terms, options);
    if (i == 0 || candidates[i].machine != candidates[i - 1].machine) {
      try {
        const JobVariants variants = make(candidates[i], kMaxGpus);
        looked[i].note(variants.front());
        smallest[i] = smallest_that_holds(variants, {terms.confidence}, kMaxGpus);
      } catch (const Error& error) {
        if (error.exit_code() == ExitCode::kInternal) throw;
      }
    }
  };
  judge_each(candidates.size(), {options.threads, options.progress, "recommend"}, judge);

  Recommendation r;
  r.terms = terms;
  r.most_sequences = options.most_sequences;
  r.machines = sizes_of(candidates, looked, smallest);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (looked[i].parameters > 0) {
      r.model = looked[i].model;
      r.parameters = looked[i].parameters;
      r.sequence = looked[i].sequence;
    }
    if (looked[i].choice) r.choices.push_back(std::move(*looked[i].choice));
    else if (candidates.size() == 1 && looked[i].failure != ExitCode::kOk)
      throw Error(looked[i].failure, looked[i].reason);
    else r.rejected.push_back({candidates[i].spec, candidates[i].gpus, looked[i].reason});
  }
  std::ranges::sort(r.choices, [&](const Choice& a, const Choice& b) { return comes_first(a, b, terms.confidence); });
  r.remedies = find_remedies(r, make, options);
  return r;
}

}
