// A whole training run on one cluster: wall-clock time, money and energy, with what failures,
// checkpoints, restarts and evaluation take, and how sure it is to meet a deadline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calibration/prices.h"
#include "reports/report.h"
#include "reports/sizing/sizing.h"
#include "sim/search/goodput.h"

namespace foreshard {

inline constexpr double kSecondsPerDay = 86400;

// How often a GPU, or what stands around it, ends the job of all.
struct FailureRate {
  double per_gpu_day = 0;
  double log_sd = 0;  // of the rate itself, from cluster to cluster
  std::string source;
};
// Llama 3 on 16,384 H100, scattered as published clusters are.
FailureRate published_failure_rate();

struct RunTerms {
  double tokens = 0;
  std::optional<double> deadline;   // s
  std::optional<double> budget;     // USD
  double confidence = kConfidence;  // that a choice fits, is in time and within the budget
  FailureRate failures = published_failure_rate();
  // Of one GPU when all write or read a checkpoint: BLOOM wrote 2.3 TB from 384 GPUs in 40 s
  // (bigscience-workshop/bigscience, chronicles of the 176B run).
  BytesPerSecond checkpoint_rate = BytesPerSecond(150e6);
  double restart = 600;                 // s from a failure until the job runs again, reading apart: assumed
  std::int64_t evaluate_every = 0;      // steps; 0: no evaluation
  std::int64_t evaluate_sequences = 0;  // of each
  // Power of the servers over that of their GPUs' limits. 8 x H100 training Llama-2-13B: 8.4 kW at
  // most (arXiv 2412.08602), 76 % of the rated 10.2 kW on average (arXiv 2506.14551).
  double server_power = 1.44, server_power_low = 1.38, server_power_high = 1.50;
  double pue = 1;  // cooling and losses of the building; 1: not counted
};

struct RunForecast {
  double steps = 0;
  Quantity days;  // wall clock, from the first step to the last token
  Quantity goodput;
  Quantity gpu_hours;
  Quantity dollars;
  Quantity dollars_per_million_tokens;
  Quantity energy_kwh;  // value 0: the GPU's power is not known
  // Of all draws of the step, the failures and the price: that the plan fits, the run is in time
  // and it is within the budget; then each alone.
  double probability = 1;
  double probability_in_time = 1;
  double probability_within_budget = 1;
  Interruptions interruptions;     // at the central rate, restart with reading
  double checkpoint_interval = 0;  // s of training
  double evaluation_share = 0;     // of training time
  bool meets_deadline = true;      // the central forecast does
  bool within_budget = true;
};

RunForecast forecast_run(const SizedPlan& sized, const Price& price, const RunTerms& terms);

}
