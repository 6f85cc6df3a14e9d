// What keeps a job's ranks from meeting.
#pragma once

#include <string>

#include "sim/base/error.h"

namespace foreshard {

[[noreturn]] inline void fail_launch(const std::string& what) {
  throw Error(ExitCode::kLaunchFailure, what);
}

}  // namespace foreshard
