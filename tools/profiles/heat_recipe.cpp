// Clocks and power that the driver told of an H100 and an H200 (700 W) while plans of our engine and one product ran
// for seconds (calibration/measured/clocks.csv): median clock and power, what the forecast's kernels of the plan
// compute and move in the time it took. Step times have no part in it.
//
// Of a Blackwell's training steps nobody published clocks. Attention that holds a B200 at its limit
// says what a FLOP takes, less than Hopper's: five products on hot B200, GB200 and GB300 are then
// within 4 % of what others measured, with Hopper's joules 7 to 12 % slower
// (published_fit_test.cpp). The tables that curves are fitted to pause between products.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

constexpr double kTopClock = 1980;  // MHz, of both
// Hardly in the clocks: 120 to 180 W fit them to 11 to 12 W.
constexpr double kIdle = 150;
// Of the curve's time, 18 large products of a 1B model's layers take 0.915 at 1,980 MHz (h100-sxm/20261123T101920Z,
// where the chip had cooled); at 1,620 MHz 1.00 (h200), of an 8B model 0.96 at 1,770 (h100-sxm/20261123T092043Z):
// exponents of 0.45 and 0.43. One product of 8192 cubed (both files), from the first 0.1 s to the last: 0.32 and 0.60.
constexpr double kCool = 0.915;
constexpr double kRateExponent = 0.45;
// Of eight B200 that hold a model and wait (NVIDIA/TensorRT-LLM#10278): 192 to 196 W.
constexpr double kBlackwellIdle = 195;
// Attention in bf16 on a B200 that stays busy falls from 1,450 to 1,237 TFLOP/s as the limit of
// 1000 W takes the clock from 1,965 to 1,580 MHz (flashinfer-ai/flashinfer#2899).
constexpr double kBlackwellRateExponent = 0.73;
constexpr double kBlackwellLimit = 1000;
constexpr double kBlackwellFlops = 1237e12;
constexpr double kBlackwellClock = 1580.0 / 1965;
constexpr std::array kBlackwells = {"b200", "b300", "gb200", "gb300"};

}

HeatCurve fit_heat(const CsvTable& clocks) {
  LeastSquares problem = {.rows = clocks.rows()};
  problem.ranges = {{0.1, 10}, {0.001, 1}, {0.2, 4}};  // W per TFLOP/s, per GB/s; the exponent
  problem.starts = {{1, 0.1, 1}};
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    for (std::size_t row = 0; row < clocks.rows(); ++row) {
      const double watts = x[0] * clocks.number(row, "tflops") + x[1] * 1e3 * clocks.number(row, "tbytes_per_s");
      const double clock = clocks.number(row, "sm_mhz") / kTopClock;
      const double predicted = kIdle + watts * std::pow(clock, x[2]);
      out[row] = std::log(predicted / clocks.number(row, "watts"));
    }
  };
  const std::vector<double> found = solve(problem);
  return HeatCurve{.idle = kIdle,
      .joules_per_flop = rounded(found[0] * 1e-12),
      .joules_per_byte = rounded(found[1] * 1e-9),
      .energy_exponent = rounded(found[2]),
      .rate_exponent = kRateExponent,
      .cool = kCool,
      .evidence = Evidence::kMeasured,
      .source = "clocks.csv: 25 runs on an H100 and an H200"};
}

HeatCurve blackwell_heat(const HeatCurve& hopper, double sustained) {
  HeatCurve curve = hopper;
  curve.idle = kBlackwellIdle;
  curve.joules_per_flop =
      rounded((kBlackwellLimit - kBlackwellIdle) / kBlackwellFlops * std::pow(kBlackwellClock, -curve.energy_exponent));
  curve.rate_exponent = kBlackwellRateExponent;
  curve.cool = sustained;  // products with pauses run at the top clock
  curve.evidence = Evidence::kExtrapolated;
  curve.source =
      "Hopper's joules of a byte; idle, a FLOP's and the rate under a limit of a B200 "
      "(NVIDIA/TensorRT-LLM#10278, flashinfer-ai/flashinfer#2899)";
  return curve;
}

bool is_blackwell(std::string_view machine) { return contains(kBlackwells, machine); }

bool has_heat(const Gpu& gpu, const std::vector<Machine>& machines) {
  return std::ranges::any_of(
      machines,
      [&](const Machine& machine) {
        const Gpu& seen = machine.node.gpu;
        return machine.key == "h100-sxm" && gpu.architecture == seen.architecture &&
               gpu.multiprocessors == seen.multiprocessors && gpu.peak_bf16 == seen.peak_bf16;
      });
}

}
