// Fits of the curves of sim/spec/calibration.h to the published measurements.
//
// Robust least squares in log time. Whole training steps are never looked at: they judge the
// result. Every fit reports how well it does on its own rows and on rows of a source left out of
// it; the spreads of a profile come from the latter. reports/calibration.md is
// calibration_report()'s text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/published.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Of predicted/measured - 1 over some rows.
struct FitError {
  std::string what;  // the rows: "own rows", a source left out, another fabric
  std::int64_t rows = 0;
  double median = 0;    // of the absolute error
  double p90 = 0;       // of the absolute error
  double log_bias = 0;  // median of log(predicted/measured)
};
FitError fit_error(std::string what, const std::vector<double>& predicted,
                   const std::vector<double>& measured);

struct CurveReport {
  std::string curve;
  std::string rows;       // what was fitted, by source
  std::string constants;  // as printed
  Evidence evidence = Evidence::kMeasured;
  std::vector<FitError> errors;  // the first on the fit's own rows, the others out of sample
};

// --- GEMM (fit_gemm.cpp) ---

// What a program's way of timing does to its rows, as other GPUs show it.
class GemmProtocols {
 public:
  GemmProtocols() = default;
  // From the rows of all GPUs but one.
  GemmProtocols(const std::vector<GemmRow>& rows, std::string_view without_gpu);
  // On the time of a row; 1 where nothing is known.
  double factor(const GemmRow& row) const;
  // Of the protocol that slows long products most.
  double hottest() const;

 private:
  static constexpr std::size_t kBins = 6;  // by size
  static std::size_t bin_of(double flops);
  static bool is_reference(std::string_view protocol);
  std::map<std::string, std::array<double, kBins>, std::less<>> effects_;  // log
};

struct GemmFitOptions {
  std::string name = "bf16";
  double hbm_fraction = 0.9;                    // not fitted: hardly a row is limited by memory
  const GemmCurve* relative = nullptr;          // towards which few rows are drawn; none: usual
  const GemmProtocols* protocols = nullptr;     // none: rows as they are
  const GemmCurve* start = nullptr;             // of the search; none: several
  const std::vector<GemmRow>* apart = nullptr;  // not fitted: what the curve is off on them
};
struct GemmFit {
  GemmCurve curve;
  CurveReport report;
};
// Rows of one type; constants unrounded.
GemmCurve fit_gemm_curve(const std::vector<GemmRow>& rows, const Gpu& gpu,
                         const GemmFitOptions& options);
// With the rate on a hot chip and what every source's rows are off when it is left out.
GemmFit fit_gemm(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options);

std::string constants_text(const GemmCurve& curve);  // as reports print them
Kernel kernel_of(const GemmRow& row);
// Seconds of a single product on a cool chip, with quantisation where the row has it.
double gemm_seconds(const GemmCurve& curve, const GemmRow& row, const Gpu& gpu);

// GEMM curves of the whole catalogue (fit_gemm_transfer.cpp): fitted where a GPU has rows, else
// from its nearest relative.
struct CatalogueGemm {
  GemmFit bf16;
  GemmCurve fp8;  // efficiency 0 where the GPU has no fp8
  bool is_borrowed = false;
  bool is_anchored = false;   // borrowed, with a published rate of large products
  bool is_same_chip = false;  // borrowed from a card of the same peak and power
  double power_exponent = 0;
};
// By key of the catalogue. `rows` may hold more than the published ones.
std::map<std::string, CatalogueGemm, std::less<>> fit_gemm_catalogue(
    const std::vector<GemmRow>& rows, const std::vector<Machine>& machines);

// --- attention (fit_attention.cpp) ---

// Seconds of one pass; the row's batch, sequence and heads, `flops` of that pass.
double attention_seconds(const AttentionCurve& curve, const AttentionRow& row, double flops,
                         const Gpu& gpu);
// Rows of one pass. What is below zero is fitted, else taken as it is: charts keep batch*sequence
// constant, and then neither the fixed time nor the fill of the chip shows.
struct AttentionFixed {
  double c_half = -1;
  double overhead = -1;  // s
};
AttentionCurve fit_attention(const std::vector<AttentionRow>& rows, const Gpu& gpu,
                             const AttentionFixed& fixed);
struct AttentionFits {
  std::vector<AttentionCurve> curves;
  std::vector<CurveReport> reports;
  std::vector<double> log_biases;  // out of sample
};
// All kernels and head dims of "a100", "h100", "h200" or "b200"; `gpus` holds every chip's figures.
struct Chip {
  std::string name;
  Gpu gpu;
  NodeKind node;
};
AttentionFits fit_attention_of(std::string_view chip, const std::vector<Chip>& chips);

// --- AMD (fit_cdna.cpp) ---

// Curves that are H100's shares of an AMD GPU's peaks, corrected by what is public of MI300X and
// MI355X.
void use_cdna_figures(Calibration& calibration, const Gpu& own,
                      const std::vector<Machine>& machines);

// --- memory-bound operations (fit_memory.cpp) ---

// Of a kernel timed by itself.
double memory_seconds(const MemoryCurve& curve, double bytes, const Gpu& gpu);
MemoryCurve fit_memory(const std::vector<MemoryRow>& rows, const Gpu& gpu);
struct MemoryFits {
  std::array<MemoryCurve, kMemoryClasses> curves;
  std::vector<CurveReport> reports;
  std::vector<double> log_biases;
};
// Curves measured on `measured` become those of `own`, a chip of the same maker that has less
// bandwidth for each cycle of its multiprocessors.
void give_less_bandwidth(std::array<MemoryCurve, kMemoryClasses>& curves, const Gpu& own,
                         const Gpu& measured);
MemoryFits fit_memory_of(std::string_view chip, const std::vector<Chip>& chips);

// --- collectives (fit_collective.cpp) ---

// Rates of the machine the rows were measured on, for one group.
struct Fabric {
  double link = 0;     // B/s of one GPU, one direction
  double network = 0;  // B/s of the group's ports in one node; 0 inside a node
};
double collective_seconds(const CollectiveCurve& curve, const CollectiveRow& row,
                          const Fabric& fabric);
struct CollectiveSample {
  CollectiveRow row;
  Fabric fabric;
  double weight = 1;
};
// What is not below zero is taken as it is, not fitted.
struct CollectiveFixed {
  double latency = -1;
  double per_hop = -1;
  double link_fraction = -1;
  double network_fraction = -1;
  double per_doubling = -1;
};
CollectiveCurve fit_collective(const std::vector<CollectiveSample>& samples,
                               const CollectiveFixed& fixed);
struct CollectiveFits {
  CollectiveCurve intra_node;
  CollectiveCurve inter_node;
  std::vector<CurveReport> reports;
  std::vector<double> intra_log_biases;
  std::vector<double> inter_log_biases;
};
CollectiveFits fit_collectives_of(std::string_view chip, const std::vector<Chip>& chips);

// --- everything (fit.cpp) ---

struct PublishedFit {
  Calibration calibration;
  std::vector<CurveReport> reports;
};
// One per GPU of the catalogue, in its order.
std::vector<PublishedFit> fit_all_published();
// Throws Error(kInvalidInput) for a key that the catalogue does not have.
Calibration fit_published(std::string_view gpu_key);

// reports/calibration.md
std::string calibration_report(const std::vector<PublishedFit>& fits);

}  // namespace foreshard
