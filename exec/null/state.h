// What a file of the null GPU keeps for the process: a struct State with its mutex, made when it is
// first asked for and never destroyed, for libraries still call when the process ends.
#pragma once

#include <mutex>

namespace foreshard::null {

template <typename State>
State& state() {
  static State* const s = new State;
  return *s;
}

// The State, nobody else's while this lives.
template <typename State>
class Held {
 public:
  State* operator->() const { return &state<State>(); }
  State& operator*() const { return state<State>(); }

 private:
  const std::lock_guard<decltype(State::mutex)> lock_{state<State>().mutex};
};

}
