// Turns a table of training steps into what calibration/training_evidence.h keeps of it.
#pragma once

#include "calibration/csv_table.h"
#include "calibration/training_evidence.h"

namespace foreshard {

// Of rows whose `score` is yes and that can be forecast; of each family x GPU at most kMostRows,
// chosen by hash of the id. A group counts as many rows as it has, at most kIndependent, for rows
// of one code on one machine share their errors.
TrainingEvidence gather_evidence(const CsvTable& table);

}  // namespace foreshard
