// recommend: which clusters are candidates, what a job on each of them is, and the answer.
#include "reports/sizing/recommend.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "calibration/machines.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/progress.h"
#include "cli/verbs/verbs.h"
#include "planner/amounts.h"
#include "planner/job.h"
#include "planner/sized_jobs.h"
#include "reports/page/page.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

RunTerms terms_of(const RecommendCommandOptions& o) {
  RunTerms terms = {.tokens = parse_amount("--tokens", o.tokens, "1T")};
  if (!o.deadline.empty()) terms.deadline = parse_days("--deadline", o.deadline);
  if (!o.budget.empty()) terms.budget = parse_amount("--budget", o.budget, "2M");
  if (o.failures_per_gpu_day >= 0) terms.failures = {o.failures_per_gpu_day, 0, "--failures"};
  if (!o.restart.empty()) terms.restart = parse_duration("--restart", o.restart, "10min");
  if (!o.checkpoint_rate.empty()) {
    try {
      terms.checkpoint_rate = parse_bandwidth(o.checkpoint_rate);
    } catch (const std::invalid_argument& error) {
      throw Error(ExitCode::kUsage, "--checkpoint-rate: {}", error.what());
    }
    if (terms.checkpoint_rate.value() <= 0) throw Error(ExitCode::kUsage, "--checkpoint-rate: must be more than zero");
  }
  terms.evaluate_every = o.evaluate_every;
  terms.evaluate_sequences = o.evaluate_sequences;
  terms.pue = o.pue;
  terms.confidence = o.confidence;
  return terms;
}

struct Candidates {
  std::vector<CandidateCluster> clusters;
  std::int64_t most_sequences = 0;
};

class Chooser {
 public:
  Chooser(const RecommendCommandOptions& options, const SizedJobs& jobs, const RunTerms& terms, const PriceList& prices)
      : options_(options), jobs_(jobs), terms_(terms), prices_(prices) {}

  Candidates candidates() {
    const std::vector<Machine> catalogue = list_machines();
    std::vector<std::string> names = options_.clusters;
    if (names.empty()) {
      for (const Machine& machine : catalogue) {
        // A list of prices says what can be had.
        if (prices_.empty() || prices_.contains(machine.key)) names.push_back(machine.key);
      }
    }
    Candidates all;
    for (const std::string& name : names) {
      if (name == "local") throw Error(ExitCode::kUsage, "--cluster local: expected a cluster that can be rented");
      const auto machine = find_machine(name);
      learn(machine ? machine->machine.node.spec : name, all);
    }
    if (all.most_sequences == 0) throw Error(failure_->exit_code(), failure_->what());
    for (const std::string& name : names) {
      if (const auto machine = find_machine(name)) {
        add_sizes(*machine, all);
      } else {
        const Cluster cluster = load_cluster(name);
        all.clusters.push_back({cluster.gpu.key, name, cluster.gpus});
      }
    }
    // Of one machine one after the other.
    std::ranges::stable_sort(all.clusters, [](const auto& a, const auto& b) { return a.machine < b.machine; });
    return all;
  }

 private:
  // Sequence and FLOPs of the model, from the first cluster on which the job is possible.
  void learn(const std::string& spec, Candidates& all) {
    if (all.most_sequences > 0) return;
    try {
      const Job job = jobs_.job(spec);
      const std::int64_t sequence = job.resolved.plan.batch.sequence;
      flops_ = job.model.training_flops_per_sequence(sequence).count() / as_double(sequence) * terms_.tokens;
      all.most_sequences = most_sequences(options_.global_batch, options_.batch_tokens, sequence);
    } catch (const Error& error) {
      // Wrong everywhere: a model that is not known, a key that is misspelt.
      if (error.exit_code() == ExitCode::kUsage) throw;
      failure_ = error;
    }
  }

  void add_sizes(const NamedMachine& named, Candidates& all) {
    const Cluster& node = named.machine.node;
    const std::vector<std::int64_t> sizes =
        options_.gpus.empty() ? likely_sizes(node, flops_, terms_, most_gpus(node, options_.vary, all.most_sequences))
                              : parse_counts("--gpus", options_.gpus);
    for (const std::int64_t gpus : sizes) all.clusters.push_back({named.machine.key, named.spec(gpus), gpus});
  }

  const RecommendCommandOptions& options_;
  const SizedJobs& jobs_;
  const RunTerms& terms_;
  const PriceList& prices_;
  double flops_ = 0;
  std::optional<Error> failure_;
};

}

ExitCode run_recommend(const RecommendCommandOptions& options) {
  const RunTerms terms = terms_of(options);
  const PriceList prices = options.prices.empty() ? PriceList() : read_prices(options.prices);
  const SizedJobs jobs(options.job, options.vary, prices, options.prices);
  const Candidates candidates = Chooser(options, jobs, terms, prices).candidates();

  Progress progress("recommend");
  RecommendOptions how;
  how.threads = options.threads;
  how.most_sequences = candidates.most_sequences;
  how.progress = progress.until_interrupted();
  const Recommendation answer =
      blame_profile(options.job, [&] { return recommend(candidates.clusters, std::cref(jobs), terms, how); });
  const bool asks_more = options.what_if || !options.html.empty();
  std::vector<WhatIf> changes;
  Json body = to_json(answer);
  if (asks_more) body["what_if"] = Json::array();
  if (asks_more && !answer.choices.empty()) {
    const Choice& first = answer.choices.front();
    const Cluster& cluster = first.sized.cluster;
    const JobVariants variants = jobs({first.machine, cluster.spec, cluster.gpus}, how.most_sequences);
    const SizedJob& job = *first.sized.job;
    changes = what_ifs(first, variants, terms, how);
    body["what_if"] = to_json(changes);
    body["sensitivity"] = sensitivity_json(forecast(job.model, first.sized.plan, job.costs), job.costs);
  }
  const Json json = document_json("foreshard.recommend/1", body);
  if (!options.html.empty()) write_answer_page(options.html, json, options.output.command);
  if (options.output.form == Form::kJson) {
    write_answer(to_text(json));
  } else {
    const Color color = color_of(options.output.color);
    std::string text = recommend_text(answer, color);
    if (!changes.empty()) text += what_if_text(changes, answer.choices.front(), color);
    write_text(text);
  }
  return answer.meets_terms() ? ExitCode::kOk : ExitCode::kInfeasible;
}

}
