// Forecasts of published collectives (nccl-tests tables) against what was measured, each from its
// own columns alone: gpu, n_gpus, n_nodes, network, nccl_version, collective, bytes.
//
// Nothing is forecast by what it was fitted on. The curves are refitted without the row's source;
// where the other of all_gather and reduce_scatter of the same fabric was published, its sweep is
// the forecast ("other collective"), else the fabric is unseen. Measured columns of the table that
// is scored reach no forecast, unless it is given as `known`.
#pragma once

#include <vector>

#include "calibration/csv_table.h"
#include "reports/accuracy/accuracy.h"

namespace foreshard {

// One row per row of the table, in its order; quantity time_us_oop, in us. Groups: table, gpu,
// nodes, collective, size, how. Rows that say nothing are there with the reason.
// Throws Error(kInvalidInput) where the table is not of nccl-tests' columns, ConfigError where it
// is no table.
std::vector<AccuracyRow> score_collectives(const CsvTable& table);

enum class CollectiveKnowledge : std::uint8_t {
  kOtherCollective,  // as above
  kUnseenFabric,     // no sweep of the fabric, whoever measured it
};
std::vector<AccuracyRow> score_collectives(const CsvTable& table, CollectiveKnowledge knowledge);

// With the rows of `known` beside the published ones: sweeps of the other collective on the same
// fabric.
std::vector<AccuracyRow> score_collectives(const CsvTable& table, const CsvTable& known);

}  // namespace foreshard
