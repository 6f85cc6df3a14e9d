// What a command line asks for, as plain data: filled by command_line.cpp, read by the verbs.
//
// Values stay text where the plan's readers judge them (sim/spec/plan_config.h), so that a flag and
// a file are refused in the same words. Absent is std::nullopt or "".
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace foreshard {

enum class Form : std::uint8_t { kText, kJson };
enum class ColorChoice : std::uint8_t { kAuto, kAlways, kNever };

struct OutputOptions {
  Form form = Form::kText;
  ColorChoice color = ColorChoice::kAuto;
  std::string command;  // the whole line, for a report that says how it was made
};

// Whether a job on `local` can do without a profile of the machine: where only the order of events
// counts, and where they are executed.
enum class ProfileNeed : std::uint8_t { kRequired, kOptional };

// How a job is named; every flag overrides the file, --set overrides both.
struct JobOptions {
  std::optional<std::string> plan;
  std::optional<std::string> model;
  std::optional<std::string> cluster;
  std::optional<std::string> runtime;
  std::optional<std::string> sequence;
  std::optional<std::string> micro_batch;
  std::optional<std::string> accumulation;
  // Assignments "key=value" in groups, later ones over earlier ones: --set, then those of a variant.
  std::vector<std::vector<std::string>> assignments;
  std::optional<std::string> profile;  // FILE; none: the GPU's shipped one, the newest of `local`
  bool accept_profile = false;         // of another GPU than the cluster's
  ProfileNeed profile_need = ProfileNeed::kRequired;
  // Instead of model and plan: the folder of a captured run (foreshard-null), or of several ranks of it.
  std::vector<std::string> capture;
  // Ranks of `local` where the plan gives no whole mesh: the launcher's. None: what the mesh says, or one.
  std::optional<std::int64_t> ranks;
  // Bytes that a plan may take of each GPU, as if it had no more; 0: all that it has.
  std::int64_t gpu_memory = 0;
  bool paced = false;  // rank 0 by itself, as foreshard-exec run --paced: no slower GPU holds it up
};

struct PredictOptions {
  JobOptions job;
  OutputOptions output;
  std::string trace;  // files to write
  std::string csv;
  std::string memory_snapshot;
  std::string html;
  bool asks = false;  // which fact to find out next, instead of the forecast
};

struct ScheduleOptions {
  JobOptions job;
  std::string out;  // "": standard output
};

struct ExplainOptions {
  JobOptions job;
  OutputOptions output;
  std::string run;  // "": the forecast alone; as ValidateOptions::run
};

struct CompareOptions {
  JobOptions job;
  OutputOptions output;
  std::vector<std::string> plans;     // two plan files, or none
  std::vector<std::string> with;      // assignments that make the second job of the first
  std::vector<std::string> runtimes;  // or the same job under several
};

struct SearchCommandOptions {
  JobOptions job;
  OutputOptions output;
  std::vector<std::string> fix;  // assignments; what they name does not vary
  std::optional<std::string> global_batch;
  double max_memory = 1;           // of the GPU's
  double confidence = 0.95;        // that the plan fits
  std::string objective = "time";  // time, memory or cost
  bool robust = false;             // by the high end of the interval
  bool deep = false;               // knobs, then layers
  std::vector<std::string> vary;   // further keys
  std::string resume;              // FILE; "": none
  int threads = 0;                 // 0: all cores
  std::string out;                 // the best plan as a file
  std::string html;                // file to write
};

struct FitOptions {
  JobOptions job;
  OutputOptions output;
  std::string budget;        // of each GPU's memory
  double confidence = 0.95;  // that a plan fits
  int threads = 0;
  std::string out;  // the best plan as a file
};

struct RecommendCommandOptions {
  JobOptions job;  // without a cluster
  std::string html;
  OutputOptions output;
  std::vector<std::string> clusters;  // specs, machines, cluster files; empty: the whole catalogue
  std::string gpus;                   // sizes of machines: "64,128"; "": around what is needed
  std::string tokens, deadline, budget;
  std::optional<std::string> global_batch, batch_tokens;
  std::vector<std::string> vary;     // as SearchCommandOptions::vary
  std::string prices;                // FILE
  double failures_per_gpu_day = -1;  // < 0: published
  std::string restart, checkpoint_rate;
  std::int64_t evaluate_every = 0, evaluate_sequences = 1024;
  double pue = 1;
  double confidence = 0.95;  // that a choice fits, is in time and within the budget
  bool what_if = false;
  int threads = 0;
};

struct ScaleOptions {
  JobOptions job;  // without a cluster
  std::string html;
  OutputOptions output;
  std::string cluster;
  std::string gpus;  // "": eight sizes, doubling from one node
  std::optional<std::string> global_batch, batch_tokens;
  std::int64_t weak = 0;  // sequences of every GPU; 0: the step stays as it is
  bool csv = false;
  std::vector<std::string> vary;  // as SearchCommandOptions::vary
  std::string prices;
  double confidence = 0.95;  // that a plan fits
  int threads = 0;
};

struct ReportOptions {
  JobOptions job;
  OutputOptions output;
  std::string answer;  // a document that a verb wrote with --json, or a run folder; not with a job
  std::string run;     // as ValidateOptions::run; "": the forecast alone
  std::string html;    // "": standard output
  int threads = 0;     // of its search; 0: all cores
};

struct CalibrateOptions {
  OutputOptions output;
  std::vector<std::string> files;  // raw measurements, or logs of nccl-tests
  std::string machine;             // of logs that do not tell the GPU; "": as they say
  std::string out;                 // "": the user's data folder
};

struct ImportOptions {
  OutputOptions output;
  std::vector<std::string> files;
  std::string machine;     // a catalogue key; "": as the files say
  std::int64_t nodes = 0;  // 0: as the files say, or one
  std::string out;         // of the cluster or plan file; "": standard output
  std::string nodelist;    // hosts of an allocation, as Slurm writes them; "": all
  std::string model;       // of settings that do not name it
  std::string stage;       // of settings that do not say what they train; "": sft
  std::string cluster;     // of the plan
};

struct ExportOptions {
  JobOptions job;
  OutputOptions output;
  std::string to;        // fsdp2, ...
  std::string out;       // "": standard output
  std::string ledger;    // file; "": standard error
  std::string launcher;  // of --to launch: torchrun, slurm, openmpi
  std::string program;   // that the ranks run
};

struct ServeOptions {
  std::string address = "127.0.0.1";
  std::vector<std::string> hosts;  // names to be asked by, beside localhost and the address
  bool no_token = false;           // on the loopback only
  int port = 8080;                 // 0: any that is free
  int threads = 0;                 // of a search; 0: all cores
};

struct ValidateOptions {
  JobOptions job;
  OutputOptions output;
  std::string run;    // folder of foreshard-exec run, trace of torch.profiler, or folder of traces
  std::string trace;  // file to write; without `run`: the trace to read
  double max_step_error = 0.10;
  double max_exposed_error = 0.05;
  double max_memory_error = 0.05;
  bool history = true;
  std::string html;  // file to write
};

struct AccuracyOptions {
  OutputOptions output;
  bool history = false;
  std::vector<std::string> files;  // tables of measurements
  std::vector<std::string> blank;  // columns to forecast without; "details": the training code's
  int anchor = 0;                  // rows of each group that scale the others' forecasts
  std::string evidence;            // file to write what the first table says about factors to
  std::string freeze, frozen;      // files of forecasts to write, and to take instead
  double max_median_error = std::numeric_limits<double>::infinity();
  double max_p90_error = std::numeric_limits<double>::infinity();
  std::string html;  // file to write
};

struct ConformOptions {
  OutputOptions output;
  std::vector<std::string> folders;
  std::vector<std::string> only;  // configurations; empty: all
  std::int64_t verbose = 3;       // configurations whose difference is shown
};

struct ModelsOptions {
  OutputOptions output;
  std::string name;      // "": all
  bool as_yaml = false;  // the one of `name` as a model file
};

struct MachinesOptions {
  OutputOptions output;
  std::string name;      // "": all
  std::string topology;  // a cluster file, or another tool's description of one
  bool dot = false;
};

struct SchemaOptions {
  std::string name;
};

struct DoctorOptions {
  OutputOptions output;
};

}
