// Every rank sends its exit code, a blank, and its text; gathering them is the barrier.

#include "exec/state/together.h"

#include <algorithm>
#include <exception>

#include "sim/base/parse.h"

namespace foreshard {
namespace {

RankOutcome outcome_of(const std::function<std::string()>& work) {
  try {
    return {ExitCode::kOk, work()};
  } catch (const Error& error) {
    return {error.exit_code(), error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::kInternal, error.what()};
  }
}

}

std::vector<RankOutcome> do_together(World& world, const std::string& topic, const std::function<std::string()>& work) {
  const RankOutcome own = outcome_of(work);
  std::vector<RankOutcome> outcomes;
  for (const std::string& message :
      world.gather(topic, std::to_string(static_cast<int>(own.exit_code)) + " " + own.text)) {
    const std::size_t blank = std::min(message.find(' '), message.size());
    const int code = leading_number({message.data(), blank}, static_cast<int>(ExitCode::kInternal));
    outcomes.push_back({static_cast<ExitCode>(code), message.substr(std::min(blank + 1, message.size()))});
  }
  return outcomes;
}

const RankOutcome* first_failure(const std::vector<RankOutcome>& outcomes) {
  const auto failed =
      std::ranges::find_if(outcomes, [](const RankOutcome& outcome) { return outcome.exit_code != ExitCode::kOk; });
  return failed == outcomes.end() ? nullptr : &*failed;
}

std::vector<RankOutcome> succeed_together(
    World& world, const std::string& topic, const std::function<std::string()>& work) {
  std::vector<RankOutcome> outcomes = do_together(world, topic, work);
  const RankOutcome* const failure = first_failure(outcomes);
  if (failure != nullptr) throw Error(failure->exit_code, failure->text);
  return outcomes;
}

}
