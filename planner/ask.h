// Which fact about a job narrows its forecast most per minute of the user's time.
//
// A step's interval is the root of the sum of squares of its levels (DESIGN section 12): each latent factor of the
// machine, the codes that may run the job, what a code does that its description leaves open, and the run. A fact takes
// away what it settles. Memory's upper end is the forecast with all that a code may keep besides. What is taken from
// the catalogue and may be otherwise (the power limit) narrows nothing, but moves the forecast: asked last.
#pragma once

#include <string>
#include <vector>

#include "planner/job.h"
#include "sim/base/json.h"

namespace foreshard {

// Half of the 90 % interval, as a share of the step.
struct Levels {
  std::vector<std::pair<std::string, double>> machine;  // by factor, in words
  double codes = 0;                                     // between the codes that may run the job
  double code = 0;                                      // within one: first looks
  double run = 0;                                       // the same job on another host or day
  double half_width() const;
};

struct NextFact {
  std::string name;       // "training code"
  std::string ask;        // what to find out
  std::string command;    // that reads it back
  double minutes = 0;     // of the user's, assumed
  double half_width = 0;  // of the step once it is known
  Bytes memory_above;     // that memory may be above its forecast, once it is known
  double per_minute = 0;  // narrowing of step and memory, as shares of them, over the minutes
  double moves = 0;       // share by which the step is longer where the answer is the worse one
};

struct Questions {
  double step_s = 0, half_width = 0;
  Levels levels;
  Bytes memory, memory_above;
  std::vector<NextFact> facts;  // the one that narrows most per minute first
};

Questions questions(const Job& job);

std::string questions_text(const Questions& questions);
Json to_json(const Questions& questions);

}
