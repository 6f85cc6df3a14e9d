// One pass over the steady step's calls; findings of a rule at one place are one. A tensor is kept where its block is
// allocated in the step and lives on at its end, and as much more lives there than at its beginning.
#include "reports/capture/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

using Kind = CapturedCall::Kind;

struct Rule {
  std::string_view name;
  const char *what, *fix;
};
constexpr Rule kRules[] = {
    {"compiles", "torch.compile made graphs anew within the step, which takes seconds that no later step does",
        "let the program take more steps; TORCH_LOGS=recompiles says why"},
    {"host_wait", "the host waits for the GPU",
        "read values once in many steps, or copy them without waiting (non_blocking=True and an event)"},
    {"fp32_product", "a product runs in fp32 while most run in 16 bits",
        "cast its inputs, or run it under autocast; torch.backends.cuda.matmul.allow_tf32 where fp32 is meant"},
    {"unfused_attention", "attention runs as products and a softmax of its own",
        "scaled_dot_product_attention with a head dimension, dtype and mask that a fused kernel takes "
        "(attn_implementation=\"sdpa\")"},
    {"large_mask", "a mask of all pairs of positions is written out",
        "is_causal=True, or no mask where batches have no padding"},
    {"kept_tensor", "a tensor made in the step lives on behind it, and more with each step",
        "keep numbers (loss.item() once in a while, or loss.detach()), not tensors with their graph"},
    {"collective_outside_units", "a parameter is gathered or reduced outside of its unit",
        "use it inside the forward of the module that fully_shard cut, or make that module a unit"},
    {"unequal_shards", "ranks hold unequal shards, padded to the largest",
        "make dimension 0 a multiple of the ranks, or shard along another dimension (shard_placement_fn)"},
};

const Rule& rule_named(std::string_view name) { return *std::ranges::find(kRules, name, &Rule::name); }

// The program's own place, and the library's where it is in one.
std::string place_words(std::string_view frames) {
  const std::string own = own_place(frames);
  std::string innermost(frames.substr(0, frames.find(" < ")));
  if (own == innermost) return own;
  innermost.erase(0, innermost.rfind('/') == innermost.npos ? 0 : innermost.rfind('/') + 1);
  return own + ", in " + innermost;
}

class Linter {
 public:
  explicit Linter(const Capture& capture) : capture_(capture), range_(steady_step(capture)) {}

  std::vector<LintFinding> run() {
    find_dtypes();
    for (std::size_t i = 0; i < range_.end; ++i) {
      const CapturedCall& call = capture_.calls[i];
      if (call.kind == Kind::kMemory) memory(i, call);
      if (i >= range_.begin) take(call);
    }
    keep();
    shards();
    for (std::int64_t i = 0; i < capture_.compiled; ++i) add("compiles", "", 0);
    auto list = list_of<LintFinding>(
        found_, [&](auto& each) { return std::move(each.second); });
    std::ranges::stable_sort(list, [](const LintFinding& a, const LintFinding& b) {
      const auto order = [](const LintFinding& f) { return std::tuple(&rule_named(f.rule), -f.bytes, -f.count); };
      return order(a) < order(b);
    });
    return list;
  }

 private:
  void note(std::string_view rule, const CapturedCall& call, std::int64_t bytes) {
    add(rule, place_words(capture_.place_of(call)), bytes);
  }
  void add(std::string_view rule, const std::string& place, std::int64_t bytes) {
    LintFinding& finding = found_[{std::string(rule), place}];
    finding.rule = rule;
    finding.place = place;
    finding.what = rule_named(rule).what;
    finding.fix = rule_named(rule).fix;
    ++finding.count;
    finding.bytes += bytes;
  }

  void find_dtypes() {
    constexpr std::int64_t kF16 = 2, kBf16 = 14;  // cudaDataType_t
    std::int64_t half = 0, all = 0;
    for (std::size_t i = range_.begin; i < range_.end; ++i) {
      const CapturedCall& call = capture_.calls[i];
      fuses_ |= call.kind == Kind::kLaunch &&
                (contains(capture_.name_of(call), "flash_fwd") || contains(capture_.name_of(call), "fmha"));
      fuses_ |= call.kind == Kind::kLibrary && contains(capture_.name_of(call), "attention");
      if (call.kind != Kind::kProduct) continue;
      ++all;
      half += call.values[4] == kF16 || call.values[4] == kBf16 ? 1 : 0;
    }
    is_half_ = 2 * half > all;
  }

  void take(const CapturedCall& call) {
    const std::string& name = capture_.name_of(call);
    const std::string& place = capture_.place_of(call);
    if (call.kind == Kind::kHostWait) note("host_wait", call, 0);
    if (call.kind == Kind::kCopy && call.values[2] != 0) note("host_wait", call, 0);
    if (call.kind == Kind::kProduct) {
      constexpr std::int64_t kF32 = 0;
      // What rotary tables need is none.
      constexpr std::int64_t kSmall = 1 << 28;
      const std::int64_t flops = 2 * call.values[0] * call.values[1] * call.values[2] * call.values[3];
      if (is_half_ && call.values[4] == kF32 && flops > kSmall) note("fp32_product", call, 0);
    }
    if (call.kind == Kind::kLaunch) {
      constexpr std::int64_t kLargestBlock = 9, kLarge = 1 << 20;  // CapturedCall's values
      const std::int64_t bytes = call.values[kLargestBlock];
      if (!fuses_ && contains(name, "oftmax") && contains(name, "orward") && !contains(name, "ogSoft") &&
          !contains(name, "nll_loss"))
        note("unfused_attention", call, bytes);
      if (bytes >= kLarge && contains(place, "mask") && !contains(place, "loss")) note("large_mask", call, bytes);
    }
    // Units' own are issued by FSDP's hooks; norms and losses have a few bytes.
    constexpr std::int64_t kNumbers = 1 << 16;
    if (call.kind == Kind::kCollective && !place.empty() && call.values[1] > kNumbers && !contains(place, "_fsdp_") &&
        contains(place, "redistribute"))
      note("collective_outside_units", call, call.values[1]);
  }

  void memory(std::size_t i, const CapturedCall& call) {
    const std::int64_t bytes = call.values[1];
    const bool is_in = i >= range_.begin;
    if (is_in) more_ += bytes > 0 ? 1 : -1;
    if (bytes > 0 && is_in) alive_[call.values[0]] = &call;
    else if (alive_.erase(call.values[0]) == 0 && is_in) replaced_.insert(-bytes);
  }

  // Parameters that a step replaces, and what a name holds until the next one, live on, too, but no more of them with
  // each step. (By their number: a block has up to a MiB of what it is cut from.)
  void keep() {
    for (const auto& [address, made] : alive_) {
      const std::int64_t bytes = made->values[1];
      if (const auto same = replaced_.find(bytes); same != replaced_.end()) replaced_.erase(same);
      else if (more_-- > 0) note("kept_tensor", *made, bytes);
    }
  }

  void shards() {
    for (const CapturedParameter& parameter : capture_.parameter_list) {
      if (parameter.shards <= 1 || parameter.rows % parameter.shards == 0) continue;
      const std::int64_t rows = (parameter.rows + parameter.shards - 1) / parameter.shards;
      const std::int64_t padding = (rows * parameter.shards - parameter.rows) * parameter.row_elements;
      constexpr std::int64_t kSmall = 1 << 16, kBytes = 4;
      if (padding < kSmall) continue;
      add("unequal_shards", fmt::format("{} [{}, ...] of {} ranks", parameter.name, parameter.rows, parameter.shards),
          padding * kBytes);
    }
  }

  const Capture& capture_;
  const StepRange range_;
  bool is_half_ = false, fuses_ = false;
  std::int64_t more_ = 0;                              // blocks, at the end of the step
  std::map<std::int64_t, const CapturedCall*> alive_;  // made in it
  std::multiset<std::int64_t> replaced_;               // bytes of those from before
  std::map<std::pair<std::string, std::string>, LintFinding> found_;
};

}

std::vector<LintFinding> lint_capture(const Capture& capture) { return Linter(capture).run(); }

std::string own_place(std::string_view frames) {
  std::string first;
  while (!frames.empty()) {
    const std::string frame(cut(frames, " < "));
    if (first.empty()) first = frame;
    if (!contains(frame, "site-packages") && !contains(frame, "dist-packages") && !contains(frame, "/torch/"))
      return frame;
  }
  return first;
}

Json lint_json(const std::vector<LintFinding>& findings) {
  return json_list(
      findings,
      [&](const LintFinding& f) -> Json {
        return {{"rule", f.rule}, {"place", f.place}, {"count", f.count}, {"bytes", f.bytes}, {"what", f.what},
            {"fix", f.fix}};
      });
}

std::string lint_text(const std::vector<LintFinding>& findings) {
  constexpr std::size_t kMost = 12;
  if (findings.empty()) return "";
  std::string text = "what the program could do otherwise:\n";
  const auto is_new = [&](std::size_t i) { return i == 0 || findings[i].rule != findings[i - 1].rule; };
  for (std::size_t i = 0; i < std::min(findings.size(), kMost); ++i) {
    const LintFinding& f = findings[i];
    if (is_new(i)) text += fmt::format("  {}; fix: {}\n", f.what, f.fix);
    text += fmt::format("    {}: {} x{}\n", f.place.empty() ? "a place not known (--check)" : f.place, f.count,
        f.bytes > 0 ? ", " + format_bytes(Bytes(f.bytes)) : "");
  }
  if (findings.size() > kMost) text += fmt::format("    and {} more (--json)\n", findings.size() - kMost);
  return text;
}

}
