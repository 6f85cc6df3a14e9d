// Where a rank tells the others why it stops, in the job's store. Never throws, never waits long: a
// board whose store is gone or frozen takes nothing and knows nothing.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "exec/comm/job_store.h"

namespace foreshard {

// Keys of the store: what the first rank to fail said, and what the launcher saw, which is nearer
// to the cause (a killed rank says nothing itself).
inline constexpr const char* kFailureKey = "failure";
inline constexpr const char* kCauseKey = "cause";

class FailureBoard {
 public:
  // `store` is a connection of the board's own: one that waits for a key would make it wait too.
  // `launcher_tells`: the launcher writes the cause soon after a rank was killed.
  FailureBoard(std::shared_ptr<JobStore> store, bool launcher_tells);

  void announce(const std::string& text) const;
  // The launcher's text before a rank's.
  std::optional<std::string> announced(std::chrono::milliseconds patience) const;

 private:
  std::shared_ptr<JobStore> store_;
  bool launcher_tells_;
};

}
