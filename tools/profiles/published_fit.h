// The recipes that make the shipped profiles (calibration/profiles/) of the published tables
// (calibration/published/): which rows set which curve of which chip, and what a card without rows
// takes of its relative. The program reads what they give and never runs them.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/fit/fit.h"

namespace foreshard {

// GEMM curves of the whole catalogue (gemm_catalogue.cpp): fitted where a GPU has rows, else
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

// --- attention (attention_recipes.cpp) ---

// Seconds of one pass; the row's batch, sequence and heads, `flops` of that pass.
double attention_seconds(const AttentionCurve& curve, const AttentionRow& row, double flops, const Gpu& gpu);
// Rows of one pass. What is below zero is fitted, else taken as it is: charts keep batch*sequence
// constant, and then neither the fixed time nor the fill of the chip shows.
struct AttentionFixed {
  double c_half = -1;
  double overhead = -1;  // s
};
AttentionCurve fit_attention(const std::vector<AttentionRow>& rows, const Gpu& gpu, const AttentionFixed& fixed);
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
const Chip& chip_named(std::string_view name, const std::vector<Chip>& chips);
AttentionFits fit_attention_of(std::string_view chip, const std::vector<Chip>& chips);
// Curves that H20 borrows, by forward passes timed on it.
void use_h20_rows(Calibration& calibration, const Gpu& h20, const std::vector<Machine>& machines);

// --- AMD (cdna_figures.cpp) ---

// Curves that are H100's shares of an AMD GPU's peaks, corrected by what is public of MI300X and MI355X.
void use_cdna_figures(Calibration& calibration, const Gpu& own, const std::vector<Machine>& machines);

// --- memory-bound operations (memory_recipes.cpp) ---

struct MemoryFits {
  std::array<MemoryCurve, kMemoryClasses> curves;
  std::vector<CurveReport> reports;
  std::vector<double> log_biases;
};
// Curves measured on `measured` become those of `own`, a chip of the same maker with another
// bandwidth for each cycle of its multiprocessors.
void give_bandwidth(std::array<MemoryCurve, kMemoryClasses>& curves, const Gpu& own, const Gpu& measured);
MemoryFits fit_memory_of(std::string_view chip, const std::vector<Chip>& chips);

// --- clocks (heat_recipe.cpp) ---

// Of the chip of H100 and H200, from rows of calibration/measured/clocks.csv.
HeatCurve fit_heat(const CsvTable& clocks);
// That of a Blackwell whose products with pauses between them are as fast as `sustained` says.
HeatCurve blackwell_heat(const HeatCurve& hopper, double sustained);
bool is_blackwell(std::string_view machine);  // one of those with 1000 W and more
// Whether it is that chip, under whatever limit.
bool has_heat(const Gpu& gpu, const std::vector<Machine>& machines);

// --- everything (published_fit.cpp) ---

struct PublishedFit {
  Calibration calibration;
  std::vector<CurveReport> reports;
};
// One per GPU of the catalogue, in its order.
std::vector<PublishedFit> fit_all_published();
// The texts of the files of calibration/profiles/ by their names: one per chip that was measured,
// the cards that take its curves with it.
std::map<std::string, std::string> profile_files(const std::vector<PublishedFit>& fits);

// Rows, constants and errors of every curve, as a page.
std::string calibration_report(const std::vector<PublishedFit>& fits);

}
