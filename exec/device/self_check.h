// What works on this device and what does not: one check after another, each by itself, so that a
// first contact with a GPU tells everything at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/device/accelerator.h"
#include "sim/base/json.h"

namespace foreshard {

enum class CheckStatus : std::uint8_t { kOk, kFailed, kSkipped };
const char* to_string(CheckStatus status);

struct CheckResult {
  std::string name;
  CheckStatus status = CheckStatus::kOk;
  std::string detail;  // what was seen; for a failure what went wrong
  double seconds = 0;
};

// In order; `told` hears each as it is done. Never throws for what a check finds.
std::vector<CheckResult> self_check(Accelerator& accelerator,
                                    const std::function<void(const CheckResult&)>& told);

// Largest |a - b| over the largest |b|, in double, wherever they live.
double largest_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace foreshard
