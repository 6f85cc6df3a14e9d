// Work that all ranks do, each with its own outcome, and that fails for all or for none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "sim/base/error.h"

namespace foreshard {

struct RankOutcome {
  ExitCode exit_code = ExitCode::kOk;
  std::string text;  // what the work returned, or the message of the exception that it threw
};

// The outcome of every rank's `work`, by rank, the same on all ranks. All ranks call it with the
// same topic. Throws only where the ranks cannot reach each other.
std::vector<RankOutcome> do_together(World& world, const std::string& topic, const std::function<std::string()>& work);
// Of the lowest rank that failed; nullptr where all succeeded.
const RankOutcome* first_failure(const std::vector<RankOutcome>& outcomes);
// do_together, and the first failure thrown as Error on all ranks.
std::vector<RankOutcome> succeed_together(
    World& world, const std::string& topic, const std::function<std::string()>& work);

}
