// Work that all ranks do, each with its own outcome, and that fails for all or for none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "sim/base/error.h"

namespace foreshard {

struct Outcome {
  ExitCode exit_code = ExitCode::kOk;
  std::string text;  // what the work returned, or the message of the exception that it threw
};

// The outcome of every rank's `work`, by rank, the same on all ranks. All ranks call it with the
// same topic. Throws only where the ranks cannot reach each other.
std::vector<Outcome> do_together(World& world, const std::string& topic,
                                 const std::function<std::string()>& work);
// Of the lowest rank that failed; nullptr where all succeeded.
const Outcome* first_failure(const std::vector<Outcome>& outcomes);
// do_together, and the first failure thrown as Error on all ranks.
std::vector<Outcome> succeed_together(World& world, const std::string& topic,
                                      const std::function<std::string()>& work);

}  // namespace foreshard
