// Forecasts of a TrainingJob's whole step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibration/training_evidence.h"
#include "interop/steps/training_job.h"
#include "reports/report.h"
#include "sim/cost/cost_model.h"

namespace foreshard {

// A step of n micro-batches is forecast with at most three and continued: from the third on each
// costs what the third did, for the schedule of a micro-batch depends only on the ones beside it.
// A smaller last micro-batch costs what a further one of its size costs.
class StepForecaster {
 public:
  // With what all families' steps say but those in `without`; nullopt: with none's and no plan_log_sd.
  StepForecaster(const TrainingJob& job, const std::optional<std::vector<std::string>>& without);

  // Memory is that of the largest micro-batches. `draws`: as summarize().
  Report step(int draws) const;
  double seconds(const FactorDraw& draw) const;

  FactorCauses causes() const;
  const Calibration& calibration() const { return costs_.calibration(); }

 private:
  Report report(std::int64_t micro_batch, std::int64_t accumulation, int draws) const;
  double seconds(std::int64_t micro_batch, std::int64_t accumulation, const FactorDraw& draw) const;

  const TrainingJob& job_;
  CostModel costs_;
};

}
