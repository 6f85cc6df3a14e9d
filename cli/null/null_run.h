// foreshard-null --rank R --world W --gpu KEY [--out DIR] -- COMMAND...
// foreshard-null --gpu KEY --config FILE [--batch B] [--sequence S] [--out DIR] [-- PYTHON...]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foreshard {

struct NullOptions {
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::string gpu;                 // a word of the catalogue
  std::string out = "capture";     // folder
  std::string events = "done";     // done | pending | paced: how far the GPU is when it is asked
  bool modules = false;            // write what each module computes
  bool check = false;              // look for races between streams
  std::vector<std::string> after;  // folders of captures whose known sends are received
  bool values = false;             // compute integers that follow from what the host gave
  bool ones = false;               // numbers that nobody computed read as ones
  bool padded = false;             // batches have padding: masks are not all ones
  std::string config;              // of a model of transformers, whose step is run; "": the command's
  std::vector<std::string> command;
};

struct NullCommandLine {
  NullOptions options;
  std::string text;         // an answer without a run: --help, --version
  std::string usage_error;  // one sentence
};
NullCommandLine parse_null_command_line(std::vector<std::string> arguments);

// A command that fails after it read what nobody computed is run again, with `values`, then with `ones`. The last run's
// exit status (128 + signal where one ended it); 6 where it made a call that is not answered, or none at all. Throws
// Error for a GPU or a rank that cannot be, and where the null GPU's library is not beside the program.
int run_on_null_gpu(const NullOptions& options);

}
