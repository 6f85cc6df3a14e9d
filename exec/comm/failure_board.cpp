// Asks the store on threads of its own, for a bounded time (bounded_call.h).
#include "exec/comm/failure_board.h"

#include <utility>

#include "exec/comm/bounded_call.h"

namespace foreshard {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kAnswer{1000};  // a store that is well answers in less than one
constexpr milliseconds kPoll{10};
constexpr milliseconds kLauncher{300};  // from a rank's death to the launcher's word

}

FailureBoard::FailureBoard(std::shared_ptr<JobStore> store, bool launcher_tells)
    : store_(std::move(store)), launcher_tells_(launcher_tells) {}

void FailureBoard::announce(const std::string& text) const {
  try {
    call_within(
        kAnswer,
        [store = store_, text] {
          store->set_once(kFailureKey, text);
          return true;
        });
  } catch (const std::exception&) {  // the store is gone: nobody is there to be told
  }
}

std::optional<std::string> FailureBoard::announced(milliseconds patience) const {
  const auto ask = [store = store_, patience, launcher_tells = launcher_tells_]() -> std::optional<std::string> {
    auto deadline = std::chrono::steady_clock::now() + patience;
    bool told = false;
    while (true) {
      if (store->has(kCauseKey)) return store->get(kCauseKey);
      if (!told && store->has(kFailureKey)) {
        told = true;
        const auto soon = std::chrono::steady_clock::now() + kLauncher;
        deadline = launcher_tells ? std::min(deadline, soon) : std::chrono::steady_clock::now();
      }
      if (std::chrono::steady_clock::now() >= deadline) break;
      std::this_thread::sleep_for(kPoll);
    }
    if (!told) return std::nullopt;
    return store->get(kFailureKey);
  };
  try {
    return call_within(patience + kAnswer, ask).value_or(std::nullopt);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}
