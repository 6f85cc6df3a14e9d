// Optimizers mark the end of each step. A program with several of them (one per kind of parameter)
// ends its step with the one that steps last, and one that steps its groups of parameters one after
// the other (DeepSpeed's) with the last before the next backward. Without marks, the last p calls
// equal the p before them, call by call: the smallest such p that holds a launch is the step.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/graph/capture/capture.h"

namespace foreshard {
namespace {

constexpr std::string_view kStepMark = "step ";

bool alike(const CapturedCall& a, const CapturedCall& b) {
  if (a.kind != b.kind || a.name != b.name) return false;
  return a.kind == CapturedCall::Kind::kMemory ? a.values[1] == b.values[1] : true;
}

std::optional<StepRange> repeated(const Capture& capture) {
  const std::vector<CapturedCall>& calls = capture.calls;
  const std::size_t n = calls.size();
  for (std::size_t p = 1; 2 * p <= n; ++p) {
    if (!alike(calls[n - 1], calls[n - 1 - p])) continue;
    bool same = true, launches = false;
    for (std::size_t i = 0; i < p && same; ++i) {
      same = alike(calls[n - 1 - i], calls[n - 1 - i - p]);
      launches |= calls[n - 1 - i].kind == CapturedCall::Kind::kLaunch;
    }
    if (same && launches && p > 2) return StepRange{n - p, n, static_cast<std::int64_t>(n / p)};
  }
  return std::nullopt;
}

// Whether autograd's own thread launched something between two marks.
bool has_backward(const Capture& capture, std::size_t from, std::size_t to) {
  using enum CapturedCall::Kind;
  return std::any_of(&capture.calls[from], &capture.calls[to], [&](const CapturedCall& call) {
    return (call.kind == kLaunch || call.kind == kProduct) && call.thread != capture.calls[to].thread;
  });
}

}

StepRange steady_step(const Capture& capture) {
  std::vector<std::size_t> marks;
  for (std::size_t i = 0; i < capture.calls.size(); ++i) {
    const CapturedCall& call = capture.calls[i];
    if (call.kind == CapturedCall::Kind::kMark && capture.name_of(call).starts_with(kStepMark)) marks.push_back(i);
  }
  if (marks.empty()) {
    if (const std::optional<StepRange> range = repeated(capture)) return *range;
    throw invalid_input(
        "{}: no optimizer stepped and no stretch of calls repeats; expected a program that takes at least 2 training "
        "steps",
        capture.path);
  }
  const std::int32_t last = capture.calls[marks.back()].name;
  std::vector<std::size_t> all, ends;
  for (const std::size_t mark : marks) {
    if (capture.calls[mark].name != last) continue;
    if (!all.empty() && !has_backward(capture, all.back(), mark)) ends.pop_back();
    all.push_back(mark);
    ends.push_back(mark);
  }
  if (ends.size() < 2) ends = std::move(all);  // (a CUDA graph's backward is launched in one)
  if (ends.size() < 2) {
    throw invalid_input(
        "{}: the program took 1 training step, of which the first is not like the others; expected at least 3 (e.g. "
        "--steps 3)",
        capture.path);
  }
  return {ends[ends.size() - 2] + 1, ends.back() + 1, std::ssize(ends)};
}

}
