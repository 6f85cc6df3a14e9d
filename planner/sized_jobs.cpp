#include "planner/sized_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/amounts.h"
#include "planner/axes_variants.h"
#include "planner/search_space.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {
constexpr double kDefaultBatchTokens = 4 * 1024 * 1024;
}

std::optional<NamedMachine> find_machine(const std::string& name) {
  std::optional<Machine> machine = machine_named(name);
  if (!machine) return std::nullopt;
  return NamedMachine{std::move(*machine)};
}

std::string NamedMachine::spec(std::int64_t gpus) const {
  // The word behind the x: an instance type counts nodes.
  const std::string& one = machine.node.spec;
  const std::string word = one.substr(one.find('x') + 1);
  const bool is_instance = machine.node.node.key == word;
  return fmt::format("{}x{}", is_instance ? gpus / machine.node.node.gpus : gpus, word);
}

std::int64_t most_sequences(const std::optional<std::string>& global_batch,
    const std::optional<std::string>& batch_tokens, std::int64_t sequence) {
  if (global_batch) return read_global_batch(*global_batch);
  const double tokens = batch_tokens ? parse_amount("--batch-tokens", *batch_tokens, "4M") : kDefaultBatchTokens;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens) / sequence);
}

std::int64_t most_gpus(const Cluster& machine, const std::vector<std::string>& vary, std::int64_t most_sequences) {
  const bool is_shared = !split_axes(vary).axes.empty();
  const std::int64_t domain = machine.node.gpus * machine.node.link_domain;
  return std::min(kMaxGpus, is_shared ? checked_multiply(most_sequences, domain) : most_sequences);
}

SizedJobs::SizedJobs(JobOptions job, std::vector<std::string> vary, PriceList prices, std::string prices_file)
    : job_(std::move(job)), vary_(std::move(vary)), prices_(std::move(prices)), prices_file_(std::move(prices_file)) {}

Job SizedJobs::job(const std::string& spec) const {
  JobOptions named = job_;
  named.cluster = spec;
  return without_choices(load_job(named));
}

SizedJob SizedJobs::sized(const JobVariant& variant) const {
  CostModel costs = cost_model(variant.job);
  StackSet stacks = stack_set(variant.job, costs);
  return {variant.job.model, variant.space, std::move(costs), price_of(variant.job), std::move(stacks), replays_};
}

// One step for all variants, else their times do not compare: the most sequences that divide over
// the most ranks with samples of their own, one for every GPU unless axes may share one.
std::int64_t SizedJobs::sequences_of_step(const Job& job, std::int64_t most_sequences) const {
  const Mesh& mesh = job.resolved.plan.mesh;
  const std::vector<std::int64_t> micro_batches = space_of(job).micro_batches;
  const std::int64_t at_once = micro_batches.empty() ? 1 : micro_batches.front();
  std::int64_t ranks = job.cluster.gpus / mesh.sharing();
  const bool may_share = !split_axes(vary_).axes.empty();
  const auto is_shareable = [&] {
    return job.cluster.gpus % ranks == 0 && checked_multiply(ranks, at_once) <= most_sequences;
  };
  while (may_share && ranks > 1 && !is_shareable()) --ranks;
  const std::int64_t least = checked_multiply(ranks, at_once);
  if (least > most_sequences) {
    throw Error(ExitCode::kInfeasible,
        "a step of at most {} sequences is less than one for every GPU (--global-batch, --batch-tokens)",
        format_count(most_sequences));
  }
  return most_sequences / least * least;
}

JobVariants SizedJobs::operator()(const CandidateCluster& candidate, std::int64_t most_sequences) const {
  const Job loaded = job(candidate.spec);
  const std::string batch = std::to_string(sequences_of_step(loaded, most_sequences));
  const SearchVariants searched = search_variants(loaded, {batch, vary_, true});
  const auto sized_all = [this](const std::vector<JobVariant>& list) {
    return list_of<SizedJob>(list, [&](const JobVariant& each) { return sized(each); });
  };
  JobVariants variants{sized_all(searched.list)};
  const auto made = std::make_shared<std::vector<JobVariant>>(searched.list);
  if (searched.otherwise) {
    variants.otherwise = [sized_all, made, make = searched.otherwise, count = searched.list.size()](
                             std::optional<std::size_t> best) {
      const std::vector<JobVariant> others = make(best ? &(*made)[*best] : nullptr);
      made->resize(count);
      append(*made, others);
      return sized_all(others);
    };
  }
  variants.around = [sized_all, made, make = searched.around](const std::vector<std::size_t>& numbers) {
    auto of = list_of<const JobVariant*>(numbers, [&](const std::size_t number) { return &(*made)[number]; });
    return sized_all(make(of));
  };
  return variants;
}

Price SizedJobs::price_of(const Job& job) const {
  const Cluster& cluster = job.cluster;
  if (const auto found = prices_.find(cluster.gpu.key); found != prices_.end()) return found->second;
  if (!prices_file_.empty())
    throw invalid_input("{}: no price of {}; expected a row {},USD", prices_file_, cluster.gpu.key, cluster.gpu.key);
  Price price = listed_price(cluster);
  if (price.usd_per_hour <= 0) {
    throw invalid_input(
        "{}: no price; expected gpu.price_per_hour in the cluster file, such as 2.95USD/h, or --prices FILE",
        cluster.spec);
  }
  return price;
}

}
