// What the forecast says of a job with one setting changed, for settings that a running job can
// change without other hardware.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "planner/job.h"
#include "sim/base/letters.h"
#include "sim/memory/capacity.h"

namespace foreshard {

// What a change costs beside time and memory.
enum class SettingPrice : std::uint8_t {
  kFree,     // the same numbers by the same code
  kCode,     // the same model by other kernels
  kNumbers,  // other roundings
};
constexpr const char* to_string(SettingPrice price) {
  return word_at(price, {"free", "changes_code", "changes_numbers"});
}

struct TriedSetting {
  std::vector<std::string> changes;  // as --set takes them
  SettingPrice price = SettingPrice::kFree;
  double seconds = 0;  // of a step
  Fit fit;
  std::string why;  // what differs in the step: "64 all_gathers less, ..."
};

// The job without a change.
TriedSetting as_it_is(const Job& job);

// Those that fit as surely as a choice must (sim/memory/capacity.h) and make the step shorter, what saves most first;
// behind them those that free memory and cost next to no time, what frees most first. One of each kind of change. Of
// `base`, whose options are `options`; `load` makes a job of options.
std::vector<TriedSetting> try_settings(
    const JobOptions& options, const Job& base, const std::function<Job(const JobOptions&)>& load);

}
