// How much of a long run is progress: failures, the checkpoints that guard against them, restarts.
//
// Failures arrive at random with a constant rate (exponential times between them); each throws away what was done since
// the last checkpoint and costs a restart. Formulas: J. T. Daly, "A higher order estimate of the optimum checkpoint
// interval for restart dumps", FGCS 22 (2006): the complete model (eq. 20) and the optimum (eq. 37), of which Young's
// sqrt(2 * save * mean_between) is the first term. All times in seconds.
#pragma once

namespace foreshard {

struct Interruptions {
  double mean_between = 0;  // failures of the whole cluster; infinity: none
  double save = 0;          // a checkpoint holds training up that long
  double restart = 0;       // from a failure until training goes on from the last checkpoint
};

// Training time between two checkpoints that wastes least. Precondition: mean_between > 0,
// save > 0. Infinity where nothing fails.
double checkpoint_interval(const Interruptions& interruptions);

// Training time over wall-clock time, 0 to 1, with a checkpoint every `interval` seconds of
// training (infinity: none). 0 where failures come so fast that nothing is ever finished.
double goodput(const Interruptions& interruptions, double interval);

// Wall-clock time of `work` seconds of training: the mean, and what the accident of when failures
// come makes it scatter.
struct WallTime {
  double mean = 0;
  double sd = 0;
};
WallTime wall_time(double work, const Interruptions& interruptions, double interval);

}
