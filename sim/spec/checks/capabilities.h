// What a runtime cannot execute or forecast of a plan: rows of data (capabilities.txt) that one
// reader holds plans against, and docs/refusals.md names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {

inline constexpr std::int32_t kNotYet = 1 << 20;

struct Capability {
  // Axes beside replicate and shard; tensor parallelism without fully_shard.
  enum class Of : std::uint8_t { kRuntime, kAxes, kPlainTensors };

  RuntimeSet runtimes;  // that lack it
  // What a plan asks for (condition.h): "prefetch.backward > 1"; the problem's key is the first term's.
  std::string_view asked;
  std::string_view says;     // after the runtime's name; {key} stands for the key's value
  std::string_view nearest;  // "units.embedding: root and units.head: root"
  // Minor version of PyTorch 2 from which on the runtime has it, through `came`.
  std::int32_t since = kNotYet;
  std::string_view came = "";
  // The library has the knob and fails: `says` is what it says, `nearest` what to write instead.
  bool fails = false;
  Of of = Of::kRuntime;
};

// In the order in which they are asked.
std::span<const Capability> capability_table();

// The first row of `of` that the plan's runtime and version lack and the plan asks for; `who` is
// what lacks it, "fsdp2@2.11".
std::optional<PlanProblem> problem_of_capability(const Plan& plan, Capability::Of of, std::string_view who);

// Whether the plan's runtime, of its version, has all that a plan with this value of the key asks
// for: has_capability(plan, "reduction.divide_factor != none").
bool has_capability(const Runtime& runtime, std::string_view asked);

}
