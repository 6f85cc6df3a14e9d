// The verbs of foreshard. Each reads what its options name, calls the library and writes one answer
// to standard output; the exit code is the program's. Failures are thrown (sim/base/error.h).
#pragma once

#include <string_view>

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

ExitCode run_predict(const PredictOptions& options);
ExitCode run_schedule(const ScheduleOptions& options);
ExitCode run_explain(const ExplainOptions& options);
ExitCode run_compare(const CompareOptions& options);
ExitCode run_search(const SearchCommandOptions& options);
ExitCode run_recommend(const RecommendCommandOptions& options);
ExitCode run_scale(const ScaleOptions& options);
ExitCode run_calibrate(const CalibrateOptions& options);
ExitCode run_import(const ImportOptions& options);
ExitCode run_export(const ExportOptions& options);
ExitCode run_launch(const ExportOptions& options);
ExitCode run_report(const ReportOptions& options);
ExitCode run_serve(const ServeOptions& options);
ExitCode run_validate(const ValidateOptions& options);
ExitCode run_accuracy(const AccuracyOptions& options);
ExitCode run_conform(const ConformOptions& options);
ExitCode run_models(const ModelsOptions& options);
ExitCode run_machines(const MachinesOptions& options);
ExitCode run_schema(const SchemaOptions& options);
ExitCode run_doctor(const DoctorOptions& options);

}  // namespace foreshard
