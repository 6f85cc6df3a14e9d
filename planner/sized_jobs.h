// The jobs of recommend and scale: one model on many clusters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibration/machines.h"
#include "calibration/prices.h"
#include "planner/job.h"
#include "planner/job_search.h"
#include "reports/sizing/recommend.h"

namespace foreshard {

// A machine of the catalogue or a cloud's instance type, by any of its names.
struct NamedMachine {
  Machine machine;
  std::string spec(std::int64_t gpus) const;  // of so many, whole nodes where an instance is named
};
std::optional<NamedMachine> find_machine(const std::string& name);

// Sequences of a step: --global-batch, or --batch-tokens over `sequence`, or as many as make 4 Mi
// tokens, which is Llama 2's step (arXiv 2307.09288, section 2.2); at least 1.
std::int64_t most_sequences(const std::optional<std::string>& global_batch,
    const std::optional<std::string>& batch_tokens, std::int64_t sequence);

// GPUs of a machine that a step of so many sequences can keep busy: one each, or with axes in
// `vary` one for every node or domain of NVLink.
std::int64_t most_gpus(const Cluster& machine, const std::vector<std::string>& vary, std::int64_t most_sequences);

// Makes the job of a cluster; a JobMaker, for any thread.
class SizedJobs {
 public:
  // `vary`: as of SpaceRequest. Without `prices_file` the catalogue's prices hold; clusters that
  // the file leaves out are refused.
  SizedJobs(JobOptions job, std::vector<std::string> vary, PriceList prices, std::string prices_file);

  Job job(const std::string& spec) const;
  // Functions of the answer refer to this.
  JobVariants operator()(const CandidateCluster& candidate, std::int64_t most_sequences) const;

 private:
  SizedJob sized(const JobVariant& variant) const;
  std::int64_t sequences_of_step(const Job& job, std::int64_t most_sequences) const;
  Price price_of(const Job& job) const;

  JobOptions job_;
  std::vector<std::string> vary_;
  PriceList prices_;
  std::string prices_file_;
  std::shared_ptr<ReservedMemory> replays_ = std::make_shared<ReservedMemory>();
};

}
