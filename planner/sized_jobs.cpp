#include "planner/sized_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/amounts.h"
#include "planner/job_search.h"
#include "planner/search_space.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {
constexpr double kDefaultBatchTokens = 4 * 1024 * 1024;
}  // namespace

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
  const double tokens =
      batch_tokens ? parse_amount("--batch-tokens", *batch_tokens, "4M") : kDefaultBatchTokens;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens) / sequence);
}

SizedJobs::SizedJobs(JobOptions job, PriceList prices, std::string prices_file)
    : job_(std::move(job)), prices_(std::move(prices)), prices_file_(std::move(prices_file)) {}

Job SizedJobs::job(const std::string& spec) const {
  JobOptions named = job_;
  named.cluster = spec;
  return without_choices(load_job(named));
}

JobVariants SizedJobs::operator()(const CandidateCluster& candidate,
                                  std::int64_t most_sequences) const {
  const Job loaded = job(candidate.spec);
  const Price price = price_of(loaded);
  JobVariants variants;
  for (auto& [variant, space] : search_variants(loaded, {})) {
    const std::int64_t at_once = space.micro_batches.empty() ? 1 : space.micro_batches.front();
    const std::int64_t least = checked_multiply(candidate.gpus, at_once);
    if (least > most_sequences) {
      throw Error(ExitCode::kInfeasible,
                  fmt::format("a step of at most {} sequences is less than one for every GPU",
                              format_count(most_sequences)));
    }
    space.global_batch = most_sequences / least * least;
    CostModel costs = cost_model(variant);
    ModelSpec model = variant.model;
    StackSet stacks = stack_set(variant, costs);
    variants.push_back(
        {std::move(model), std::move(space), std::move(costs), price, std::move(stacks), replays_});
  }
  return variants;
}

Price SizedJobs::price_of(const Job& job) const {
  const Cluster& cluster = job.cluster;
  if (const auto found = prices_.find(cluster.gpu.key); found != prices_.end()) {
    return found->second;
  }
  if (!prices_file_.empty()) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: no price of {}; expected a row {},USD", prices_file_,
                            cluster.gpu.key, cluster.gpu.key));
  }
  Price price = listed_price(cluster);
  if (price.usd_per_hour <= 0) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: no price; expected gpu.price_per_hour in the cluster file, such "
                            "as 2.95USD/h, or --prices FILE",
                            cluster.spec));
  }
  return price;
}

}  // namespace foreshard
