// Puts the fits of all curves together, with what no measurement gives: host, overlap, spreads.
//
// A spread is the root mean square of the out-of-sample biases of its curves: how far off a whole
// class is on a machine nobody has seen. A GPU's own may be small by chance, so it is at least that
// of all GPUs together, and half as much again where the curve is borrowed.
#include "calibration/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calibration/least_squares.h"
#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

double sorted_quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return quantile(values, q);
}

double root_mean_square(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::string chip_name(std::string_view key) {
  return std::string(key.substr(0, key.find('-')));  // "a100-40gb" and "a100-80gb" are one chip
}

std::vector<Chip> chips_of(const std::vector<Machine>& machines) {
  std::vector<Chip> chips;
  for (const Machine& machine : machines) {
    // Rows of A100 are of the 80 GB card; it comes later in the catalogue and replaces the other.
    const std::string name = chip_name(machine.key);
    std::erase_if(chips, [&](const Chip& chip) { return chip.name == name; });
    chips.push_back({name, machine.node.gpu, machine.node.node});
  }
  return chips;
}

// Everything of one chip.
struct ChipFits {
  Chip chip;
  GemmFit gemm;
  AttentionFits attention;
  MemoryFits memory;
  CollectiveFits collective;
};

ChipFits fit_chip(const Chip& chip, const std::vector<Chip>& chips) {
  ChipFits fits{chip, {}, {}, fit_memory_of(chip.name, chips), {}};
  const double hbm =
      fits.memory.curves[static_cast<std::size_t>(MemoryClass::kElementwise)].fraction;
  fits.gemm = fit_gemm(gemm_rows(chip.name, GemmData::kRandom), chip.gpu, hbm);
  fits.attention = fit_attention_of(chip.name, chips);
  fits.collective = fit_collectives_of(chip.name, chips);
  return fits;
}

std::vector<double> gemm_biases(const GemmFit& fit) {
  std::vector<double> biases;
  for (std::size_t i = 1; i < fit.report.errors.size(); ++i) {
    biases.push_back(fit.report.errors[i].log_bias);
  }
  return biases;
}

HostCurve host_curve() {
  // Between the ends of the published range, in the logarithm.
  constexpr double kFastestOperation = 5e-6;
  constexpr double kSlowestOperation = 25e-6;
  constexpr double kFastestHook = 5e-5;
  constexpr double kSlowestHook = 1e-3;
  HostCurve host;
  host.per_launch = rounded(std::sqrt(kFastestOperation * kSlowestOperation));
  host.per_hook = rounded(std::sqrt(kFastestHook * kSlowestHook));
  host.evidence = Evidence::kAssumed;
  host.source =
      "launch: middle of 5 to 25 us per eager PyTorch operation (jiahuanglin.xyz); hook: middle of "
      "50 us (assumed) and 1 ms (FSDP2 pre_forward on a Xeon, pytorch/pytorch#173680)";
  return host;
}

ContentionCurve contention_curve(const Chip& chip, const Gpu& h100) {
  constexpr double kComputeOnH100 = 0.40;
  constexpr double kCommunication = 0.15;
  ContentionCurve curve;
  const double share =
      static_cast<double>(h100.multiprocessors) / static_cast<double>(chip.gpu.multiprocessors);
  curve.compute = rounded(1 + kComputeOnH100 * share);
  curve.communication = rounded(1 + kCommunication);
  curve.evidence = Evidence::kAssumed;
  curve.source = fmt::format(
      "compute: 30 to 40 % slower on 8 H100 (pytorch/pytorch#179937), times 132/{} multiprocessors "
      "for the same 24 communication blocks; communication: 10 to 20 %, assumed",
      chip.gpu.multiprocessors);
  return curve;
}

GemmCurve fp32_gemm(const GemmCurve& bf16) {
  GemmCurve curve = bf16;
  curve.evidence = Evidence::kAssumed;
  curve.source = "no rows; bf16's shape and share of the peak";
  return curve;
}

FactorSpread measured_spread(const std::vector<double>& own, const std::vector<double>& all,
                             bool borrowed) {
  FactorSpread spread;
  const double size = std::max(root_mean_square(own), root_mean_square(all)) * (borrowed ? 1.5 : 1);
  spread.log_sd = rounded(size);
  spread.source = fmt::format(
      "root mean square of {} out-of-sample biases of this GPU ({:.3f}) or of {} of all ({:.3f}){}",
      own.size(), root_mean_square(own), all.size(), root_mean_square(all),
      borrowed ? ", times 1.5 for a borrowed curve" : "");
  return spread;
}

std::array<FactorSpread, kFactors> spreads_of(const ChipFits& own,
                                              const std::vector<ChipFits>& all) {
  std::vector<double> gemm;
  std::vector<double> attention;
  std::vector<double> memory;
  std::vector<double> intra;
  std::vector<double> inter;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const ChipFits& fits : all) {
    append(gemm, gemm_biases(fits.gemm));
    append(attention, fits.attention.log_biases);
    append(intra, fits.collective.intra_log_biases);
    append(inter, fits.collective.inter_log_biases);
    if (fits.chip.name == "a100" || fits.chip.name == "h100")
      append(memory, fits.memory.log_biases);
  }
  const bool new_chip = own.chip.name == "h200" || own.chip.name == "b200";
  std::array<FactorSpread, kFactors> spread;
  const auto at = [&](Factor factor) -> FactorSpread& {
    return spread[static_cast<std::size_t>(factor)];
  };
  at(Factor::kGemm) = measured_spread(gemm_biases(own.gemm), gemm, false);
  at(Factor::kAttention) = measured_spread(own.attention.log_biases, attention, new_chip);
  at(Factor::kMemoryBound) =
      measured_spread(new_chip ? std::vector<double>{} : own.memory.log_biases, memory, new_chip);
  at(Factor::kIntraNode) =
      measured_spread(own.collective.intra_log_biases, intra, own.chip.name == "h200");
  at(Factor::kInterNode) =
      measured_spread(own.collective.inter_log_biases, inter, own.chip.name == "h200");
  constexpr double kNinetyPercent = 1.6449;  // standard deviations on each side
  at(Factor::kHost) = {rounded(std::log(5.0) / 2 / kNinetyPercent),
                       "5 to 25 us per operation as a 90 % interval"};
  at(Factor::kOverlap) = {
      rounded(std::log(1.40 / 1.189) / kNinetyPercent),
      "mean slowdown 18.9 %, largest 40 % (arXiv 2507.03114): half of a 90 % interval"};
  return spread;
}

PublishedFit assemble(const Machine& machine, const ChipFits& own, const std::vector<ChipFits>& all,
                      const Gpu& h100) {
  PublishedFit fit;
  Calibration& c = fit.calibration;
  c.gpu = machine.key;
  c.id = "published";
  c.gemm_bf16 = own.gemm.curve;
  c.gemm_fp32 = fp32_gemm(own.gemm.curve);
  c.attention = own.attention.curves;
  c.sdpa_kernel = "fa2";
  c.sdpa_preferred = own.chip.name == "a100" ? "fa2" : "cudnn";
  c.sdpa_source =
      "PyTorch's flash backend is FlashAttention-2; on Hopper and Blackwell it prefers cuDNN above "
      "9.15 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), which its packages hold from "
      "2.11 "
      "on (huggingface/transformers#48163, sgl-project/sglang#33655)";
  c.memory = own.memory.curves;
  c.intra_node = own.collective.intra_node;
  c.inter_node = own.collective.inter_node;
  c.host = host_curve();
  c.contention = contention_curve(own.chip, h100);
  c.spread = spreads_of(own, all);
  if (machine.key == "a100-40gb") {
    for (MemoryCurve& curve : c.memory) {
      curve.evidence = weaker(curve.evidence, Evidence::kExtrapolated);
      curve.source = "fraction of the 80 GB card: " + curve.source;
    }
  }
  fit.reports.push_back(own.gemm.report);
  for (const auto* reports :
       {&own.attention.reports, &own.memory.reports, &own.collective.reports}) {
    fit.reports.insert(fit.reports.end(), reports->begin(), reports->end());
  }
  return fit;
}

}  // namespace

FitError fit_error(std::string what, const std::vector<double>& predicted,
                   const std::vector<double>& measured) {
  FORESHARD_CHECK(!measured.empty() && predicted.size() == measured.size(),
                  "an error over no rows: " + what);
  FitError error;
  error.what = std::move(what);
  error.rows = static_cast<std::int64_t>(measured.size());
  std::vector<double> absolute;
  std::vector<double> logs;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    absolute.push_back(std::abs(predicted[i] / measured[i] - 1));
    logs.push_back(std::log(predicted[i] / measured[i]));
  }
  error.median = sorted_quantile(absolute, 0.5);
  error.p90 = sorted_quantile(absolute, 0.9);
  error.log_bias = sorted_quantile(logs, 0.5);
  return error;
}

std::vector<PublishedFit> fit_all_published() {
  const std::vector<Machine> machines = list_machines();
  const std::vector<Chip> chips = chips_of(machines);
  std::vector<ChipFits> fits;
  for (const Chip& chip : chips) fits.push_back(fit_chip(chip, chips));
  const auto of = [&](std::string_view name) -> const ChipFits& {
    return *std::find_if(fits.begin(), fits.end(),
                         [&](const ChipFits& fit) { return fit.chip.name == name; });
  };
  std::vector<PublishedFit> result;
  for (const Machine& machine : machines) {
    result.push_back(assemble(machine, of(chip_name(machine.key)), fits, of("h100").chip.gpu));
  }
  return result;
}

Calibration fit_published(std::string_view gpu_key) {
  for (PublishedFit& fit : fit_all_published()) {
    if (fit.calibration.gpu == gpu_key) return std::move(fit.calibration);
  }
  throw Error(ExitCode::kInvalidInput, fmt::format("no machine '{}' in the catalogue", gpu_key));
}

}  // namespace foreshard
