// What would make a plan fit that does not: the first knob that does on the real model, else the
// first pair of knobs, else the smallest number of GPUs, doubling. Only allocations are replayed;
// nothing is timed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/memory/capacity.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// An assignment as --set takes it.
struct Change {
  std::string key;
  std::string value;
  bool operator==(const Change&) const = default;
};

struct Remedy {
  std::vector<Change> changes;
  std::int64_t gpus = 0;  // of the cluster it fits; more than there are where no knob helps
  Plan plan;
  Fit fit;
};

// Precondition: the plan passed check(). std::nullopt: not even all knobs on 2^20 GPUs would help.
std::optional<Remedy> find_remedy(const ModelSpec& model, const Plan& plan, const Cluster& cluster);

// "does not fit: 3.12 GiB more per GPU than the 79.1 GiB there are"
std::string shortfall_text(const Fit& fit);
// "it fits with --set recompute=full: peak 66.7 GiB allocated, 7.53 GiB to spare"
std::string remedy_text(const std::optional<Remedy>& remedy, const Cluster& cluster);
Json remedy_json(const Fit& fit, const std::optional<Remedy>& remedy);

}  // namespace foreshard
