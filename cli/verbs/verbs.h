// The verbs of foreshard. Each reads what its options name, calls the library and writes one answer
// to standard output; the exit code is the program's. Failures are thrown (sim/base/error.h).
#pragma once

#include <string>
#include <vector>

#include "interop/network/topology_import.h"
#include "planner/job.h"
#include "planner/options.h"
#include "sim/base/error.h"
#include "sim/spec/cluster.h"

namespace foreshard {

ExitCode run_predict(const PredictOptions& options);
ExitCode run_schedule(const ScheduleOptions& options);
ExitCode run_explain(const ExplainOptions& options);
ExitCode run_compare(const CompareOptions& options);
ExitCode run_search(const SearchCommandOptions& options);
ExitCode run_fit(const FitOptions& options);
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

// Options of the verb that names the fact to find out next.
struct AskOptions {
  JobOptions job;
  OutputOptions output;
};
ExitCode run_ask(const AskOptions& options);

// Options of the verb that says why a measured job is not as forecast.
struct DiagnoseOptions {
  JobOptions job;
  OutputOptions output;
  std::vector<std::string> measured;   // "tokens/s=3120"
  std::vector<std::string> said;       // in words: what was noticed, where, since when
  std::string log, run;                // FILE; TRACE or run folder; "": none
  std::vector<std::string> snapshots;  // of memory, FILEs in the order of time
  std::string threads;                 // FILE of published threads: score the verb itself
};
ExitCode run_diagnose(const DiagnoseOptions& options);

// predict, explain, schedule and report of a captured run (--capture DIR --cluster SPEC).

// Throw Error(kUsage) where the job is also named in another way, Error(kInvalidInput) as
// read_capture and forecast_capture.
ExitCode predict_capture(const PredictOptions& options);
ExitCode explain_capture(const ExplainOptions& options);
ExitCode schedule_capture(const ScheduleOptions& options);
ExitCode report_capture(const ReportOptions& options);

// `explain --run`: why a run is slower than its forecast, and which settings to change.

// Of a trace without --plan, the job is inferred from the trace; flags and --set are over it. What the trace does not
// tell and nobody named is asked for: the answer is then the inferred keys alone and the exit code kUsage.
ExitCode explain_run(const ExplainOptions& options);

// calibrate with logs of nccl-tests: the profile of a GPU with the cluster's own sweeps in it.

// Whether the files are such logs. Throws Error(kInvalidInput) where some are and others are not.
bool are_nccl_tests(const std::vector<std::string>& files);

ExitCode calibrate_sweeps(const CalibrateOptions& options);

// import DIR --out model.yaml --plan plan.yaml: what is behind a captured run.

struct CaptureImportOptions : ImportOptions {
  std::string plan;  // the plan file; of a capture `out` is its model
};
// Whether the path is a folder that foreshard-null wrote.
bool is_capture_folder(const std::string& path);

ExitCode import_capture(const CaptureImportOptions& options);

// import of whatever the files are.
ExitCode run_any_import(const CaptureImportOptions& options);

// import of files that say how somebody trains: settings of trainers, config.json, weights.

// Whether the file is one of them, from its name and its first words; the topology's forms are not.
bool is_training_file(const std::string& path);

// A plan file of what they say, and the ledger. Settings of one trainer at most; config.json and
// weights beside them. Throws as the readers do.
ExitCode import_training_files(const ImportOptions& options);

// Files in which other tools tell of machines and networks.

// Throws ConfigError where the file is of no known form.
TopologyImport read_topology(const std::string& file);

// A cluster file, or the cluster of such a file with the machine named beside it ("": as it says).
Cluster cluster_of_file(const std::string& file, const std::string& machine);

// What other training codes would make of a job's step.

// "torchtitan_2025; with hf_trainer +6.1 %, lightning +5.8 %": the job's stack, and the step time
// of the same job under every other stack that trains with its runtime, against its own; all priced
// by `costs`. Where the job does not say it: what was taken and the figures of `open`.
std::string stack_sentence(const JobOptions& options, const Job& job, const CostModel& costs, const OpenStack& open);

}
