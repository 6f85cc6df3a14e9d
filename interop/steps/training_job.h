// What a row of a table of training steps ran: its model, cluster and plan.
//
// Nothing is fitted and no measured column is read. A published column decides its plan keys;
// others are those of the row's stack (sim/spec/preset.h), then the program's defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibration/training_evidence.h"
#include "interop/steps/training_rows.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

struct TrainingJob {
  ModelSpec model;  // with the plan's variants
  Cluster cluster;
  ResolvedPlan resolved;                        // checked; accumulation counts whole micro-batches only
  std::int64_t remainder = 0;                   // sequences of one smaller micro-batch behind them; 0: none
  GemmLibrary library = GemmLibrary::kCurrent;  // by the PyTorch or the date of the row
  std::string site;                             // whose machines: the row's family
  std::string host;                             // a processor of host_calls.json; "": the profile's
};

// Keys that a row leaves open, and what else they may be: forecasts of these widen the interval.
struct OpenChoice {
  std::string column;
  std::vector<std::string> assignments;  // "attention=fa1", each an alternative
};

// `set`: assignments over everything the row says. Throws Error with the reason why the row cannot be forecast.
TrainingJob training_job(const TrainingRow& row, const std::vector<std::string>& set = {});

std::vector<OpenChoice> open_choices(const TrainingRow& row);

// Whether a job over several nodes leaves their network open. Tables of meshes name whole systems
// (DGX H100), whose network is their own.
bool leaves_network_open(const TrainingRow& row, const Cluster& cluster);

// Whether GPUs that are plugged in may exchange through the memory of a slow host, which no row
// says: NCCL does where no switch joins them, 18 and 28 GB/s are reported and 4 (NVIDIA/nccl#1603,
// #1639).
bool may_exchange_through_host(const Cluster& cluster);

// A row that says its network: `share` of what the machines of `cluster` have at the most.
TrainingRow with_network(TrainingRow row, const Cluster& cluster, double share);

}
