// What a program says of a failure, and with which exit code it ends.
#pragma once

#include "sim/base/error.h"

namespace foreshard {

// Of the exception being handled: one sentence to standard error.
ExitCode report_failure();

}  // namespace foreshard
