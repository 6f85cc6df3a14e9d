// A plan and a cluster in few words, and what tells two plans apart.
#pragma once

#include <string>
#include <vector>

#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// "shard 8 x replicate 4", "... (inner)" where replicas are neighbours; "... x cp 4 x tp 8, ep 64 x
// etp 8" where there are such.
std::string words_of(const Mesh& mesh);
std::string words_of(const Prefetch& prefetch);  // "implicit/1": forward/backward
std::string words_of(const Reshard& reshard);    // "always", "never", "group of 8"
// "always, 2 exceptions" for policies with ranges.
std::string reshard_words(const Plan& plan);
std::string recompute_words(const Plan& plan);
std::string cluster_words(const Cluster& cluster);  // "64 x NVIDIA H100 SXM5 80 GB, 8 nodes of 8 (...)"

struct PlanDifference {
  std::string key;  // dotted, as in a plan file
  std::string a;
  std::string b;
};
// In the order of the plan's keys. A key that holds others is split into them.
std::vector<PlanDifference> plan_differences(const Plan& a, const Plan& b);

}
