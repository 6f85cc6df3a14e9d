// A scaling curve of one machine kind: the best plan at every size, each a forecast of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/sizing/recommend.h"

namespace foreshard {

struct ScalePoint {
  SizedPlan sized;
  Price price;
  double speedup = 1;     // in tokens/s over the smallest size
  double efficiency = 1;  // tokens/s per GPU over those of the smallest size
};

struct ScalingCurve {
  std::string model;
  std::string machine;
  bool weak = false;  // the step grows with the GPUs; strong: it stays
  std::int64_t sequence = 0;
  std::vector<ScalePoint> points;  // by GPUs
  std::vector<Rejected> rejected;
  std::optional<std::int64_t> knee;  // knee_of()
};

// Of at most so many sequences a step, weak: for every GPU. Threads as RecommendOptions.
ScalingCurve scale(const std::vector<CandidateCluster>& sizes, const JobMaker& make, bool weak,
                   const RecommendOptions& options);

std::string scale_text(const ScalingCurve& curve, Color color);
Json to_json(const ScalingCurve& curve);
// gpus,global_batch,step_s,step_s_low,step_s_high,tokens_per_s,tokens_per_s_per_gpu,speedup,
// efficiency,mfu,exposed_communication,shard,replicate,reshard,prefetch,recompute,micro_batch,
// accumulation
std::string scale_csv(const ScalingCurve& curve);

}  // namespace foreshard
