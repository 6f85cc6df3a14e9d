// A GPU's profile out of the engine's own measurements of it (calibration/measurements.h with a
// device): the shipped profile of that GPU, with what was measured as points.
//
// A measured shape or size then costs what was measured; near ones the shipped curve corrected by
// the points; what was not measured (collectives, overlap) stays as shipped.
#pragma once

#include <string>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/fit/fit.h"
#include "calibration/measurements.h"
#include "sim/spec/calibration.h"

namespace foreshard {

struct DeviceFit {
  Calibration calibration;
  std::vector<CurveReport> reports;  // errors of the shipped curves on the measured rows
  std::vector<std::string> notes;
};

// Throws Error(kInvalidInput) where nothing was measured or the catalogue has no such GPU.
DeviceFit fit_device(const Measurements& measurements);

// A profile out of measured products of one GPU, in the published form (calibration/README.md): six
// large ones set the scale, a surface sets every constant; all else is the shipped profile's.

struct CsvFit {
  Calibration calibration;
  CurveReport report;              // own rows, and each source or every sixth row left out
  std::vector<std::string> notes;  // rows that were not used, and what is still borrowed
};

// True where the table has the columns of products.
bool is_gemm_table(const CsvTable& table);

// Throws Error(kInvalidInput) where no 16 bit row can be read, rows are of several GPUs, most are
// faster than its peak, or no curve fits them.
CsvFit fit_gemm_csv(const std::vector<CsvTable>& tables, const std::string& id);

}
