// Puts the fits of all curves together, with what no measurement gives: host, overlap, spreads.
//
// A spread is the root mean square of the out-of-sample biases of its curves: how far off a whole
// class is on a machine nobody has seen. A GPU's own may be small by chance, so it is at least that
// of all GPUs together, and half as much again where the curve is borrowed.
#include "tools/profiles/published_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "calibration/fit/fit_fabric.h"
#include "calibration/fit/least_squares.h"
#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/cost/nccl_tables.h"

namespace foreshard {
namespace {

double sorted_quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return quantile(values, q);
}

double root_mean_square(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / as_double(values.size()));
}

// Attention, memory-bound work and collectives are fitted for four chips; which one a machine takes.
std::string chip_name(const Machine& machine) {
  const Gpu& gpu = machine.node.gpu;
  if (gpu.key == "h200") return "h200";
  if (gpu.architecture.starts_with("blackwell")) return "b200";
  if (gpu.architecture == "hopper" || is_amd(gpu)) return "h100";
  return "a100";
}

std::vector<Chip> chips_of(const std::vector<Machine>& machines) {
  std::vector<Chip> chips;
  for (const auto& [key, name] : {std::pair{"a100-80gb", "a100"}, std::pair{"b200", "b200"},
           std::pair{"h100-sxm", "h100"}, std::pair{"h200", "h200"}}) {
    const auto found = std::ranges::find(machines, key, &Machine::key);
    FORESHARD_CHECK(found != machines.end(), std::string("the catalogue lacks ") + key);
    chips.push_back({name, found->node.gpu, found->node.node});
  }
  return chips;
}

// Everything of one chip but products.
struct ChipFits {
  Chip chip;
  AttentionFits attention;
  MemoryFits memory;
};

ChipFits fit_chip(const Chip& chip, const std::vector<Chip>& chips) {
  return {chip, fit_attention_of(chip.name, chips), fit_memory_of(chip.name, chips)};
}

std::vector<double> gemm_biases(const GemmFit& fit) {
  std::vector<double> biases;
  for (std::size_t i = 1; i < fit.report.errors.size(); ++i) biases.push_back(fit.report.errors[i].log_bias);
  return biases;
}

HostCurve host_curve(std::string_view machine) {
  // Between the ends of the published range, in the logarithm.
  constexpr double kFastestOperation = 5e-6;
  constexpr double kSlowestOperation = 25e-6;
  constexpr double kFastestHook = 5e-5;
  constexpr double kSlowestHook = 1e-3;
  HostCurve host = published_host_calls(machine);
  host.per_launch = rounded(std::sqrt(kFastestOperation * kSlowestOperation));
  host.per_hook = rounded(std::sqrt(kFastestHook * kSlowestHook));
  host.evidence = Evidence::kAssumed;
  host.source =
      "launch: middle of 5 to 25 us per eager PyTorch operation (jiahuanglin.xyz); hook: middle of 50 us (assumed) and "
      "1 ms (FSDP2 pre_forward on a Xeon, pytorch/pytorch#173680)";
  return host;
}

ContentionCurve contention_curve(const Cluster& machine, const Gpu& h100) {
  constexpr double kComputeOnH100 = 0.40;
  constexpr double kCommunication = 0.15;
  // What a ring over the links of one node takes of H100: 24 blocks of 132 multiprocessors, and 3
  // bytes of memory traffic for each of the 350 GB/s on the link (sim/cost/collective.h).
  CollectivePrice ring = {.ctas = 24, .busbw = 350e9};
  ContentionCurve curve = {.memory = 0};
  const Slowdown of_blocks = slowdown_of(ring, h100, curve);
  const double held = 1 - 1 / of_blocks.memory;
  curve.memory = rounded((1 - of_blocks.compute / (1 + kComputeOnH100)) / held);
  ring.busbw *= machine.node.gpu_link.value() / 450e9;
  curve.compute = rounded(slowdown_of(ring, machine.gpu, curve).compute);
  curve.communication = rounded(1 + kCommunication);
  curve.evidence = Evidence::kAssumed;
  curve.source = fmt::format(
      "compute: 30 to 40 % slower on 8 H100 (pytorch/pytorch#179937), split into the {} of 132 multiprocessors that "
      "the collective holds and the memory bandwidth it takes; the mean over models is 18.9 %, the largest 40 % (arXiv "
      "2507.03114); communication: 10 to 20 %, assumed",
      ring.ctas);
  return curve;
}

GemmCurve fp32_gemm(const GemmCurve& bf16) {
  GemmCurve curve = bf16;
  curve.evidence = Evidence::kAssumed;
  curve.source = "no rows; bf16's shape and share of the peak";
  return curve;
}

FactorSpread measured_spread(const std::vector<double>& own, const std::vector<double>& all, bool borrowed) {
  FactorSpread spread;
  const double size = std::max(root_mean_square(own), root_mean_square(all)) * (borrowed ? 1.5 : 1);
  spread.log_sd = rounded(size);
  spread.source = fmt::format(
      "root mean square of {} out-of-sample biases of this GPU ({:.3f}) or of {} of all ({:.3f}){}", own.size(),
      root_mean_square(own), all.size(), root_mean_square(all), borrowed ? ", times 1.5 for a borrowed curve" : "");
  return spread;
}

// Wider where fewer than ten biases say so: by the 90 % interval of Student's t over the normal's.
FactorSpread of_few_sources(FactorSpread spread, std::size_t biases) {
  constexpr std::size_t kMany = 10;
  if (biases == 0 || biases >= kMany) return spread;
  const boost::math::students_t few(as_double(biases));
  const double ratio = boost::math::quantile(few, 0.95) / boost::math::quantile(boost::math::normal(), 0.95);
  const double wider = std::round(100 * ratio) / 100;
  spread.log_sd = rounded(spread.log_sd * wider);
  spread.source += fmt::format(", times {:.2f} for so few (Student's t)", wider);
  return spread;
}

// From the median absolute bias: single fabrics that are several times slower than their kind are
// broken, not uncertain.
FactorSpread fabric_spread(const std::vector<double>& biases) {
  constexpr double kNormal = 1.4826;  // standard deviation over median of the absolute value
  auto sizes = list_of<double>(biases, [&](const double bias) { return std::abs(bias); });
  FactorSpread spread;
  spread.log_sd = rounded(kNormal * sorted_quantile(std::move(sizes), 0.5));
  spread.source =
      fmt::format("1.48 times the median size of the biases of {} published tables, each by a fit without its source",
          biases.size());
  return spread;
}

// What all machines together say about how far off a class may be; products by vendor, for their
// libraries are a vendor's.
struct Biases {
  std::vector<double> gemm, gemm_amd, attention, memory;
};

Biases all_biases(const std::vector<ChipFits>& chips, const std::vector<Machine>& machines,
    const std::map<std::string, CatalogueGemm, std::less<>>& gemm) {
  Biases all;
  for (const Machine& machine : machines)
    append(is_amd(machine.node.gpu) ? all.gemm_amd : all.gemm, gemm_biases(gemm.at(machine.key).bf16));
  for (const ChipFits& fits : chips) {
    append(all.attention, fits.attention.log_biases);
    if (fits.chip.name == "a100" || fits.chip.name == "h100") append(all.memory, fits.memory.log_biases);
  }
  return all;
}

std::array<FactorSpread, kFactors> spreads_of(
    const Machine& machine, const ChipFits& own, const CatalogueGemm& own_gemm, const Biases& all) {
  const auto& [gemm, gemm_amd, attention, memory] = all;
  const bool has_other_vendor = is_amd(machine.node.gpu);
  const bool new_chip = own.chip.name == "h200" || own.chip.name == "b200";
  std::array<FactorSpread, kFactors> spread;
  const auto at = [&](Factor factor) -> FactorSpread& { return spread[static_cast<std::size_t>(factor)]; };
  const std::vector<double>& vendor = has_other_vendor ? gemm_amd : gemm;
  at(Factor::kGemm) = of_few_sources(measured_spread(gemm_biases(own_gemm.bf16), vendor, false), vendor.size());
  if (own_gemm.is_borrowed && !own_gemm.is_same_chip) {
    // Curves of data-centre GPUs moved to each other were off by 4 to 18 % (median), with one scale
    // out of six products by 4 to 8 %; moved to L40S by 26 to 36 %.
    constexpr double kMoved = 0.18, kAnchored = 0.10;
    at(Factor::kGemm) = own_gemm.is_anchored ? FactorSpread{std::max(kAnchored, at(Factor::kGemm).log_sd),
                                                   "a borrowed shape with a published rate of large products"}
                                             : FactorSpread{kMoved, "a curve borrowed from another GPU"};
  }
  at(Factor::kAttention) = measured_spread(own.attention.log_biases, attention, new_chip);
  if (has_other_vendor) {
    constexpr double kOtherVendor = 0.25;
    at(Factor::kAttention) = {kOtherVendor,
        "shapes of another vendor's GPU, to the scale of a few figures: curves moved to L40S were off by 26 to 36 %"};
  }
  at(Factor::kMemoryBound) =
      measured_spread(new_chip ? std::vector<double>{} : own.memory.log_biases, memory, new_chip);
  // Whole fabrics nobody has seen: the tables of all GPUs, each without its source.
  static const std::vector<double> kInside = fabric_log_biases(FabricKind::kNvlink, published_nccl_rows());
  static const std::vector<double> kBetween = fabric_log_biases(FabricKind::kRdma, published_nccl_rows());
  at(Factor::kIntraNode) = fabric_spread(kInside);
  at(Factor::kInterNode) = fabric_spread(kBetween);
  at(Factor::kHost) = {rounded(std::log(5.0) / 2 / kNinetyPercent), "5 to 25 us per operation as a 90 % interval"};
  at(Factor::kOverlap) = {rounded(std::log(0.40 / 0.189) / kNinetyPercent),
      "mean slowdown 18.9 %, largest 40 % (arXiv 2507.03114): half of a 90 % interval of what is above one"};
  return spread;
}

bool is_own_chip(const Machine& machine, const Chip& chip) {
  return machine.key.starts_with(chip.name) && machine.node.node.gpus > 1 && !contains(machine.key, "pcie") &&
         !contains(machine.key, "nvl") && !contains(machine.key, "96gb");
}

PublishedFit assemble(const Machine& machine, const ChipFits& own, const CatalogueGemm& gemm,
    const CatalogueGemm& chip_gemm, const Gpu& h100, const std::vector<Machine>& machines) {
  PublishedFit fit;
  Calibration& c = fit.calibration;
  c.gpu = machine.key;
  c.id = "published";
  c.gemm_bf16 = gemm.bf16.curve;
  c.gemm_fp32 = fp32_gemm(gemm.bf16.curve);
  c.gemm_fp8 = gemm.fp8;
  c.power_limit = machine.node.gpu.power_limit;
  c.power_exponent = gemm.power_exponent;
  const HeatCurve hopper = fit_heat(calibration_table("measured/clocks.csv"));
  if (has_heat(machine.node.gpu, machines)) c.heat = hopper;
  if (is_blackwell(machine.key)) {
    c.heat = blackwell_heat(hopper, c.gemm_bf16.sustained);
    c.gemm_fp8.sustained = c.heat.cool;
  }
  c.attention = own.attention.curves;
  c.sdpa_kernel = "fa2";
  c.sdpa_preferred = own.chip.name == "a100" || is_amd(machine.node.gpu) ? "fa2" : "cudnn";
  c.sdpa_source =
      "PyTorch's flash backend is FlashAttention-2; on Hopper and Blackwell it prefers cuDNN above 9.15 "
      "(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), which its packages hold from 2.11 on "
      "(huggingface/transformers#48163, sgl-project/sglang#33655)";
  c.memory = own.memory.curves;
  c.fabrics =
      fit_fabrics(nccl_generation(machine.node.gpu), published_nccl_rows(), [](const NcclRow&) { return true; });
  c.host = host_curve(machine.key);
  c.contention = contention_curve(machine.node, h100);
  if (!is_amd(machine.node.gpu)) give_bandwidth(c.memory, machine.node.gpu, own.chip.gpu);
  if (!is_own_chip(machine, own.chip)) {
    const double share =
        chip_gemm.bf16.curve.efficiency > 0 ? gemm.bf16.curve.efficiency / chip_gemm.bf16.curve.efficiency : 1;
    borrow_curves({own.chip.name, share, is_amd(machine.node.gpu) ? Evidence::kAssumed : Evidence::kExtrapolated}, c);
  }
  fit.reports.push_back(gemm.bf16.report);
  for (const auto* reports : {&own.attention.reports, &own.memory.reports})
    fit.reports.insert(fit.reports.end(), reports->begin(), reports->end());
  return fit;
}

}

const Chip& chip_named(std::string_view name, const std::vector<Chip>& chips) {
  for (const Chip& chip : chips)
    if (chip.name == name) return chip;
  throw Error(ExitCode::kInternal, "no chip '{}'", name);
}

std::vector<PublishedFit> fit_all_published() {
  const std::vector<Machine> machines = list_machines();
  const std::vector<Chip> chips = chips_of(machines);
  const auto gemm = fit_gemm_catalogue(gemm_rows(machines), machines);
  auto fits = list_of<ChipFits>(chips, [&](const Chip& chip) { return fit_chip(chip, chips); });
  const Biases biases = all_biases(fits, machines, gemm);
  const auto of = [&](std::string_view name) -> const ChipFits& {
    return *std::ranges::find_if(fits, [&](const ChipFits& fit) { return fit.chip.name == name; });
  };
  std::vector<PublishedFit> result;
  for (const Machine& machine : machines) {
    const ChipFits& chip = of(chip_name(machine));
    const CatalogueGemm& own = gemm.at(machine.key);
    result.push_back(assemble(machine, chip, own, gemm.at(chip.chip.gpu.key), of("h100").chip.gpu, machines));
    if (is_amd(machine.node.gpu)) use_cdna_figures(result.back().calibration, machine.node.gpu, machines);
    if (machine.key == "h20") use_h20_rows(result.back().calibration, machine.node.gpu, machines);
    result.back().calibration.spread = spreads_of(machine, chip, own, biases);
  }
  return result;
}

namespace {

// A profile a line: they are written by this program and read by another.
std::string lines_of(const Json& store) {
  auto lines = list_of<std::string>(store.at("profiles"), [](const Json& profile) { return profile.dump(); });
  return fmt::format(
      "{{\"schema\": {}, \"profiles\": [\n{}\n]}}\n", store.at("schema").dump(), fmt::join(lines, ",\n"));
}

}

std::map<std::string, std::string> profile_files(const std::vector<PublishedFit>& fits) {
  struct File {
    std::string name, whole, chip;  // `whole`: the GPU whose profile stands in full
  };
  static const std::vector<File> kFiles = {{"a100.json", "a100-80gb", "a100"}, {"b200.json", "b200", "b200"},
      {"cdna.json", "mi300x", ""}, {"h100.json", "h100-sxm", "h100"}};
  const std::vector<Machine> machines = list_machines();
  std::map<std::string, std::string> texts;
  for (const File& file : kFiles) {
    std::vector<WholeProfile> whole;
    std::vector<Calibration> others;
    for (std::size_t i = 0; i < fits.size(); ++i) {
      const std::string chip = is_amd(machines[i].node.gpu) ? "" : chip_name(machines[i]);
      const bool is_here = chip == file.chip || (chip == "h200" && file.chip == "h100");
      if (!is_here) continue;
      const Calibration& calibration = fits[i].calibration;
      if (calibration.gpu == file.whole) whole.push_back({&calibration, file.chip});
      else others.push_back(calibration);
    }
    texts[file.name] = lines_of(profile_store(whole, others));
  }
  return texts;
}

}
