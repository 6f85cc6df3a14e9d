// predict, explain, schedule and report of a captured run (--capture DIR --cluster SPEC).
#pragma once

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

// Throw Error(kUsage) where the job is also named in another way, Error(kInvalidInput) as
// read_capture and forecast_capture.
ExitCode predict_capture(const PredictOptions& options);
ExitCode explain_capture(const ExplainOptions& options);
ExitCode schedule_capture(const ScheduleOptions& options);
ExitCode report_capture(const ReportOptions& options);

}  // namespace foreshard
