// One table per GPU.
#include <fmt/format.h>

#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

std::string error_text(const FitError& error) {
  return fmt::format("{}: {:.1f} / {:.1f} ({:+.1f}, {} rows)", error.what, 100 * error.median, 100 * error.p90,
      100 * error.log_bias, error.rows);
}

std::string spread_text(const Calibration& c) {
  static constexpr const char* kNames[] = {
      "GEMM", "attention", "memory-bound", "in a node", "between nodes", "host", "overlap"};
  std::string text;
  for (std::size_t i = 0; i < kFactors; ++i)
    text += fmt::format("| {} | {:.3f} | {} |\n", kNames[i], c.spread[i].log_sd, c.spread[i].source);
  return text;
}

}

std::string calibration_report(const std::vector<PublishedFit>& fits) {
  std::string text =
      "# What the shipped profiles are made of\n\n"
      "Written by `./x profiles`. The rows are calibration/published/*.csv, the forms are in sim/spec/calibration.h. "
      "Errors are |predicted/measured - 1| in per cent, median / 90th percentile (median signed error, rows). The "
      "first error of a curve is on the rows it was fitted to, the others on rows it never saw: a source left out of a "
      "refit, or another machine. No whole training step was used.\n";
  for (const PublishedFit& fit : fits) {
    const Calibration& c = fit.calibration;
    text += fmt::format("\n## {}\n\n", c.gpu);
    if (c.gpu == "a100-40gb") {
      text +=
          "As a100-80gb, whose rows these are; memory-bound curves are fractions of this card's own bandwidth and "
          "tagged extrapolated.\n";
      continue;
    }
    text += "| curve | evidence | constants | rows | errors |\n|---|---|---|---|---|\n";
    for (const CurveReport& report : fit.reports) {
      std::string errors;
      for (const FitError& error : report.errors) errors += (errors.empty() ? "" : "<br>") + error_text(error);
      text += fmt::format("| {} | {} | {} | {} | {} |\n", report.curve, to_string(report.evidence), report.constants,
          report.rows, errors);
    }
    text += fmt::format(
        "\nHost: {:.1f} us per launch, {:.0f} us per hook. Overlap: compute x{:.2f}, communication "
        "x{:.2f}. Attention of PyTorch: flash backend {}, its own choice from 2.11 on {} "
        "({}).\n\n| spread | log sd | from |\n|---|---|---|\n{}",
        c.host.per_launch * 1e6, c.host.per_hook * 1e6, c.contention.compute, c.contention.communication, c.sdpa_kernel,
        c.sdpa_preferred, c.sdpa_source, spread_text(c));
  }
  return text;
}

}
