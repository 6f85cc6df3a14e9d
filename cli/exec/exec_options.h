// What a command line of foreshard-exec asks for, as plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

// --spawn N and the words that a rank started by it gets.
struct SpawnRequest {
  int ranks = 0;  // 0: this process is a rank, or the only one
  std::vector<std::string> arguments;
  std::chrono::milliseconds grace{30'000};  // SpawnOptions::interrupt_grace
};

struct RunCommandOptions {
  JobOptions job;
  OutputOptions output;
  SpawnRequest spawn;
  std::string data;
  std::string tokens = "auto";
  std::int64_t steps = 0;
  std::string checkpoint;
  std::int64_t checkpoint_every = 0;
  std::int64_t checkpoint_keep = 3;
  std::string resume;
  std::string accept_changes;  // keys with commas between them
  std::string grace = "30s";   // from a signal to the end at the latest
  std::string out;             // run folder; "": runs/<model>-<time>
  std::string trace, kineto;   // files to write; "": none
  std::int64_t recorded_steps = 20;
  std::optional<int> threads;  // compute threads of a rank
  bool debug = false;
  std::string device = "auto";
  bool paced = false;
  bool graph = false;   // steps are recorded once and replayed
  double pace = 1;      // factor on the forecast times of a paced rank's collectives
  std::string command;  // as typed, for the record
};

struct MeasureOptions {
  SpawnRequest spawn;
  std::vector<std::string> models;     // whose shapes are measured
  std::vector<std::string> sequences;  // SEQUENCExMICRO_BATCH
  std::string out;
  std::string dtype;      // "": fp32 on CPU ranks, bf16 on a GPU
  double seconds = 0.15;  // per benchmark and repeat
  std::optional<int> threads;
  std::string device = "cpu";  // cuda or standin: one GPU instead of this machine's CPU ranks
  double budget_s = 300;       // of a GPU's measurements, all together
  std::string command;
};

struct SelfCheckOptions {
  OutputOptions output;
  std::string device = "cuda";
  int index = 0;                  // of the GPU
  std::vector<std::string> skip;  // names of checks
  std::string out;
  std::string command;
};

ExitCode run_run(const RunCommandOptions& options);
ExitCode run_measure(const MeasureOptions& options);
ExitCode run_self_check(const SelfCheckOptions& options);

// `arguments` without the program's name.
CommandLine parse_exec_command_line(std::vector<std::string> arguments);

}
