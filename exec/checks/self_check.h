// What works on this device and what does not: one check after another, each by itself, so that a
// first contact with a GPU tells everything at once.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/device/accelerator.h"

namespace foreshard {

enum class CheckStatus : std::uint8_t { kOk, kFailed, kSkipped, kRunning };
const char* to_string(CheckStatus status);

struct CheckResult {
  std::string name;
  CheckStatus status = CheckStatus::kOk;
  std::string detail;  // what was seen; for a failure what went wrong
  double seconds = 0;
};

// Hears of each check when it begins (kRunning) and when it is done: one may end the process.
using CheckListener = std::function<void(const CheckResult&)>;

// Thrown by a check that does not apply.
class CheckSkipped : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// After some errors of a kernel (an illegal address) every further call of the process fails: a new
// process has to do the checks that are left. what() is the name of the check that failed last.
class DeviceLost : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs `work`, which returns what was seen, throws CheckSkipped, or fails by another exception.
// A name in `skipped` is left out. The status that was told last.
CheckStatus run_check(const std::string& name, const std::vector<std::string>& skipped,
    const std::function<std::string()>& work, const CheckListener& told);

// In order, but those named in `skipped`. Of what a check finds, throws DeviceLost only.
void self_check(Accelerator& accelerator, const std::vector<std::string>& skipped, const CheckListener& told);

// Largest |a - b| over the largest |b|, in double, wherever they live.
double largest_error(const at::Tensor& a, const at::Tensor& b);

}
