// Fits FabricCurves (sim/spec/calibration.h) to published nccl-tests tables, one step from the general to the
// particular: all rows of a kind of fabric, leaning on NCCL's own table; then those of one generation of GPUs, leaning
// on that. So a GPU without rows has the class's curve, and one table more or less moves little.
#pragma once

#include <functional>
#include <vector>

#include "calibration/fit/nccl_rows.h"

namespace foreshard {

// The published rows that say something: nccl_measured.csv and nccl_scaling.csv.
const std::vector<NcclRow>& published_nccl_rows();

// Curves of all kinds for one generation, in the order of FabricKind, from the rows `use` accepts.
std::vector<FabricCurve> fit_fabrics(
    GpuGeneration generation, const std::vector<NcclRow>& rows, const std::function<bool(const NcclRow&)>& use);

// How far off whole tables are, as medians of log(predicted / measured) of their rows from 1 MiB
// up, each by fits that leave its source out. NVLink, or networks with RDMA.
std::vector<double> fabric_log_biases(FabricKind kind, const std::vector<NcclRow>& rows);

}
