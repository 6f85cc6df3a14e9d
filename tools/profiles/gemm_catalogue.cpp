// Order: GPUs with surfaces are fitted by themselves; those with few rows, and those of which only a rate of large
// products is known, are drawn towards the nearest of them; the rest borrow all from the nearest that has something.
//
// A borrowed efficiency follows the power that the board gives each FLOP/s of its peak, by the exponent that same chips
// on several boards show: 0.27 from A100 SXM (400 W) to A100 PCIe (300 W; SimuMax lists 0.70 to 0.75 of the peak), 0.46
// and 0.8 from H100 SXM (700 W, 795 TFLOP/s) to PCIe (350 W, 499) and NVL (400 W, 488), 0.61 from MI300X (750 W, 708)
// to MI325X (1000 W, 843). No board keeps more than 0.9 of its peak.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "calibration/fit/least_squares.h"
#include "calibration/gpu_names.h"
#include "sim/cost/measured.h"
#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

constexpr std::size_t kSurface = 100;  // rows
constexpr double kMostOfPeak = 0.9;
constexpr double kHbmFraction = 0.85;

bool is_up_to_ampere(const Gpu& gpu) {
  return gpu.architecture == "volta" || gpu.architecture == "turing" || gpu.architecture == "ampere";
}

// Time added where rows are no multiples of 16 bytes (GemmCurve::misaligned).
// Hopper and Blackwell: measured (cuBLAS 13.0): the means of the three products of a layer; what is
// not aligned falls to kernels older than the chip. Before cuBLAS 12.8 aligned products ran on such
// kernels, too: a SwiGLU of inner width 10922 (rows of 4-byte multiples) at 273 TFLOP/s, one of
// 10944 at 398; so on other chips since Ampere, with each halving twice as bad.
// Before: nanoGPT's step of GPT-2 on A100 (12 x 1,024 tokens, 135 ms: its README of 2022-12-29) was a quarter faster
// with a vocabulary of 50304 instead of 50257 (Karpathy, 2023-02-03, x.com/karpathy/status/1621578354024677377: "goes
// down a different kernel path"): 27 ms more than the 13 ms of the head's three products when aligned.
struct Misaligned {
  std::array<double, 3> times{};
  const char* source = "";
};

Misaligned misaligned(const Gpu& gpu) {
  if (is_up_to_ampere(gpu))
    return {{2.0 / 7, 6.0 / 7, 2.0}, "; odd widths: nanoGPT with a vocabulary of 50257 against 50304 on A100"};
  if (gpu.architecture != "hopper" && gpu.architecture != "blackwell") {
    return {
        {1.1 / 7, 3.3 / 7, 1.1}, "; odd widths: SwiGLU of width 10922 against 10944 on H100, 273 against 398 TFLOP/s"};
  }
  return {{1.8, 1.7, 4.6},
      "; widths 50260, 50258 and 50257 against 50304 on H100 with cuBLAS 13.0: 233 to 281, 248 "
      "to 281 and 97 to 149 against 666 to 753 TFLOP/s (calibration/measure/torch_rows.py)"};
}

// Rates of large products (calibration/published/large_products.csv): of GPUs without shapes, of two cards of one chip
// by their maker (`relative`), of fp8 where the rows are another generation's.
struct LargeProducts {
  std::string gpu;
  std::string relative;  // empty: a rate of this GPU alone
  bool fp8 = false;
  double size = 0;  // fp8: of a square
  double tflops = 0;
  double relative_tflops = 0;
  std::string source;
};
const std::vector<LargeProducts>& large_products() {
  static const std::vector<LargeProducts> kRows = [] {
    const CsvTable table = published_table("large_products.csv");
    std::vector<LargeProducts> rows;
    for (std::size_t i = 0; i < table.rows(); ++i) {
      const auto number = [&](const char* column) { return table.empty(i, column) ? 0 : table.number(i, column); };
      rows.push_back({table.text(i, "gpu"), table.text(i, "relative"), table.text(i, "dtype") == "fp8", number("size"),
          number("tflops"), number("relative_tflops"), table.text(i, "source")});
    }
    return rows;
  }();
  return kRows;
}

void use_fp8_rate(GemmCurve& curve, const Gpu& gpu) {
  for (const LargeProducts& rate : large_products()) {
    if (!rate.fp8 || gpu.key != rate.gpu) continue;
    GemmRow row;
    row.m = row.n = row.k = rate.size;
    row.type = GemmType::kFp8;
    const Kernel kernel = kernel_of(row);
    const double measured = kernel.flops.count() / (rate.tflops * 1e12);
    const double factor = curve_seconds(curve, kernel, gpu) / measured;
    curve.efficiency = rounded(std::min(kMostOfPeak, curve.efficiency * factor));
    curve.source +=
        fmt::format("; times {:.3f} for {} TFLOP/s of {} cubed ({})", factor, rate.tflops, rate.size, rate.source);
  }
}

const LargeProducts* ratio_of(const Machine& machine, const Machine& relative) {
  for (const LargeProducts& ratio : large_products())
    if (machine.key == ratio.gpu && relative.key == ratio.relative) return &ratio;
  return nullptr;
}

// Large products at one rate.
std::vector<GemmRow> anchor_rows(const LargeProducts& anchor) {
  std::vector<GemmRow> rows;
  for (const double n : {4096.0, 8192.0, 12288.0}) {
    for (const double m : {4096.0, 8192.0}) {
      GemmRow row = {.source = anchor.source, .m = m, .n = n, .k = 8192};
      row.seconds = 2 * row.m * row.n * row.k / (anchor.tflops * 1e12);
      row.gpu = anchor.gpu;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

double power_exponent(const Gpu& gpu) {
  constexpr double kUpToAmpere = 0.3, kSince = 0.65;
  return is_up_to_ampere(gpu) ? kUpToAmpere : kSince;
}

double power_factor(const Gpu& gpu, const Gpu& relative) {
  if (gpu.power_limit <= 0 || relative.power_limit <= 0) return 1;
  const auto per_peak = [](const Gpu& g) { return g.power_limit / g.peak_bf16.value(); };
  return std::pow(per_peak(gpu) / per_peak(relative), power_exponent(gpu));
}

// A card with more power for each FLOP/s keeps more of its clock when it is hot.
double hot_share(double sustained, const Gpu& gpu, const Gpu& relative) {
  return rounded(std::min(1.0, sustained * std::max(1.0, power_factor(gpu, relative))));
}

using Catalogue = std::map<std::string, CatalogueGemm, std::less<>>;

// The nearest that is done already; nullptr where none is.
const Machine* nearest(
    const Machine& machine, const std::vector<Machine>& machines, const std::function<bool(const Machine&)>& has) {
  const Machine* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Machine& other : machines) {
    if (other.key == machine.key || !has(other)) continue;
    const double far = distance(machine.node.gpu, other.node.gpu);
    if (far < least) {
      best = &other;
      least = far;
    }
  }
  return best;
}

class Builder {
 public:
  Builder(const std::vector<GemmRow>& rows, const std::vector<Machine>& machines) : machines_(machines) {
    std::map<std::string, std::int64_t, std::less<>> by_source;
    for (const GemmRow& row : rows) ++by_source[row.gpu + ' ' + row.source];
    for (const GemmRow& row : rows) {
      const Machine* machine = machine_named(row.gpu);
      if (machine == nullptr || !is_amd(machine->node.gpu)) nvidia_.push_back(row);
      constexpr std::int64_t kFewest = 6;
      if (by_source[row.gpu + ' ' + row.source] < kFewest) {
        if (row.type == GemmType::k16Bit) apart_[row.gpu].push_back(row);
        continue;
      }
      if (row.type == GemmType::k16Bit) bf16_[row.gpu].push_back(row);
      if (row.type == GemmType::kFp8) fp8_[row.gpu].push_back(row);
    }
  }

  Catalogue build() {
    for (const Machine& machine : machines_)
      if (count(machine) >= kSurface) fit(machine, nullptr);
    share_rates();
    for (const Machine& machine : machines_) {
      const bool few = count(machine) > 0 && count(machine) < kSurface;
      if (few) fit(machine, relative(machine));
    }
    for (const LargeProducts& anchor : large_products()) {
      if (anchor.fp8 || !anchor.relative.empty()) continue;
      for (const Machine& machine : machines_)
        if (machine.key == anchor.gpu && !done_.contains(machine.key)) anchored(machine, anchor);
    }
    const Catalogue sources = done_;  // borrowed curves are not borrowed again
    for (const Machine& machine : machines_)
      if (!sources.contains(machine.key)) borrow(machine, sources);
    for (const Machine& machine : machines_) add_fp8(machine);
    return std::move(done_);
  }

 private:
  const Machine* machine_named(std::string_view key) const {
    const auto found = std::ranges::find(machines_, key, &Machine::key);
    return found == machines_.end() ? nullptr : &*found;
  }
  std::size_t count(const Machine& machine) const {
    const auto found = bf16_.find(machine.key);
    return found == bf16_.end() ? 0 : found->second.size();
  }
  const Machine* relative(const Machine& machine) const {
    return nearest(
        machine, machines_, [&](const Machine& other) { return done_.contains(other.key); });
  }

  // GPUs of one chip and one power limit (H100 and H200) differ by their machines only, and the
  // tables are of a few: in a step each is as fast as their geometric mean.
  void share_rates() {
    const auto is_same = [](const Gpu& a, const Gpu& b) {
      return a.architecture == b.architecture && a.multiprocessors == b.multiprocessors && a.peak_bf16 == b.peak_bf16 &&
             a.power_limit == b.power_limit;
    };
    std::map<std::string, double> shared;
    for (const Machine& machine : machines_) {
      if (!done_.contains(machine.key)) continue;
      double sum = 0;
      int count = 0;
      for (const Machine& other : machines_) {
        const auto found = done_.find(other.key);
        if (found == done_.end() || !is_same(machine.node.gpu, other.node.gpu)) continue;
        const GemmCurve& curve = found->second.bf16.curve;
        sum += std::log(curve.efficiency * curve.sustained);
        ++count;
      }
      if (count > 1) shared[machine.key] = std::exp(sum / count);
    }
    for (const auto& [key, rate] : shared) {
      GemmFit& fit = done_.at(key).bf16;
      fit.curve.sustained = rounded(std::min(1.0, rate / fit.curve.efficiency));
      fit.curve.source += "; sustained: the mean over GPUs of the same chip and power";
      fit.report.constants = constants_text(fit.curve);
    }
  }

  void finish(const Machine& machine, CatalogueGemm gemm) {
    gemm.power_exponent = power_exponent(machine.node.gpu);
    const Misaligned odd = misaligned(machine.node.gpu);
    for (std::size_t i = 0; i < odd.times.size(); ++i) gemm.bf16.curve.misaligned[i] = rounded(odd.times[i]);
    gemm.bf16.curve.source += odd.source;
    gemm.bf16.report.evidence = gemm.bf16.curve.evidence;
    gemm.bf16.report.constants = constants_text(gemm.bf16.curve);
    done_[machine.key] = std::move(gemm);
  }

  // Each of AMD's GPUs was timed by programs of its own, and those of one GPU differ by the release
  // of the library, not by how they time.
  GemmProtocols protocols_for(const Machine& machine) const {
    return is_amd(machine.node.gpu) ? GemmProtocols() : GemmProtocols(nvidia_, machine.key);
  }

  void fit(const Machine& machine, const Machine* from) {
    const GemmProtocols protocols = protocols_for(machine);
    GemmFitOptions options = {.hbm_fraction = kHbmFraction, .protocols = &protocols};
    if (from != nullptr) options.relative = &done_.at(from->key).bf16.curve;
    // AMD's libraries differ by release: a few rows of an older one say how far off a curve of
    // others may be. NVIDIA's few are shapes chosen to show something else.
    const auto apart = apart_.find(machine.key);
    if (is_amd(machine.node.gpu) && apart != apart_.end()) options.apart = &apart->second;
    CatalogueGemm gemm = {.bf16 = fit_gemm(bf16_.at(machine.key), machine.node.gpu, options)};
    if (from != nullptr) {
      gemm.bf16.curve.evidence = Evidence::kInterpolated;
      gemm.bf16.curve.sustained = done_.at(from->key).bf16.curve.sustained;
      gemm.bf16.curve.source += fmt::format("; few rows, drawn towards {}", from->key);
    }
    finish(machine, std::move(gemm));
  }

  void anchored(const Machine& machine, const LargeProducts& anchor) {
    const Machine* from = relative(machine);
    if (from == nullptr) return;
    GemmFitOptions options = {.hbm_fraction = kHbmFraction, .relative = &done_.at(from->key).bf16.curve};
    CatalogueGemm gemm = {.bf16 = fit_gemm(anchor_rows(anchor), machine.node.gpu, options)};
    GemmCurve& curve = gemm.bf16.curve;
    curve.sustained = hot_share(done_.at(from->key).bf16.curve.sustained, machine.node.gpu, from->node.gpu);
    curve.evidence = Evidence::kExtrapolated;
    curve.source = fmt::format(
        "no shapes; {} TFLOP/s of large products ({}), the shape of {}", anchor.tflops, anchor.source, from->key);
    gemm.bf16.report.rows = curve.source;
    gemm.bf16.report.errors.clear();
    gemm.is_anchored = true;
    gemm.is_borrowed = true;
    finish(machine, std::move(gemm));
  }

  void borrow(const Machine& machine, const Catalogue& sources) {
    // The same chip with another limit of power comes first.
    const auto is_chip = [&](const Machine& other) {
      const Gpu &its = other.node.gpu, &own = machine.node.gpu;
      return sources.contains(other.key) && its.architecture == own.architecture &&
             its.multiprocessors == own.multiprocessors && its.peak_bf16 == own.peak_bf16;
    };
    const Machine* from = nearest(machine, machines_, is_chip);
    if (from == nullptr)
      from = nearest(machine, machines_, [&](const Machine& other) { return sources.contains(other.key); });
    if (from == nullptr) return;
    CatalogueGemm gemm = sources.at(from->key);
    GemmCurve& curve = gemm.bf16.curve;
    const LargeProducts* ratio = ratio_of(machine, *from);
    // A chip whose heat is known is as fast under every limit, until it is hot.
    const bool is_cool = has_heat(machine.node.gpu, machines_);
    const double power = is_cool ? 1 : power_factor(machine.node.gpu, from->node.gpu);
    const double factor = ratio != nullptr ? ratio->tflops / ratio->relative_tflops : power;
    curve.efficiency = rounded(std::min(curve.efficiency * factor, std::max(kMostOfPeak, curve.efficiency)));
    if (ratio == nullptr && !is_cool) curve.sustained = hot_share(curve.sustained, machine.node.gpu, from->node.gpu);
    curve.evidence = Evidence::kExtrapolated;
    curve.source = fmt::format("no rows; the shape and share of the peak of {}, times {:.3f} {}", from->key, factor,
        ratio != nullptr ? ratio->source : "for the power of each FLOP/s");
    gemm.bf16.report.rows = curve.source;
    gemm.bf16.report.errors.clear();
    gemm.is_anchored = ratio != nullptr;
    gemm.is_borrowed = true;
    const Gpu& its = from->node.gpu;
    gemm.is_same_chip = machine.node.gpu.architecture == its.architecture &&
                        machine.node.gpu.peak_bf16.value() == its.peak_bf16.value() &&
                        machine.node.gpu.power_limit == its.power_limit;
    finish(machine, std::move(gemm));
  }

  void add_fp8(const Machine& machine) {
    CatalogueGemm& gemm = done_[machine.key];
    const Gpu& gpu = machine.node.gpu;
    if (gpu.peak_fp8.value() <= 0) return;
    if (const auto own = fp8_.find(machine.key); own != fp8_.end()) {
      gemm.fp8 = fitted_fp8(own->second, machine);
      return;
    }
    const Machine* from = nearest(machine, machines_, [&](const Machine& other) { return fp8_.contains(other.key); });
    if (from == nullptr) return;
    const GemmCurve& own_bf16 = gemm.bf16.curve;
    const GemmCurve& its_bf16 = done_.at(from->key).bf16.curve;
    GemmCurve curve = fitted_fp8(fp8_.at(from->key), *from);
    curve.efficiency = rounded(std::min(kMostOfPeak, curve.efficiency * own_bf16.efficiency / its_bf16.efficiency));
    curve.sustained = rounded(std::min(1.0, own_bf16.sustained * curve.sustained / its_bf16.sustained));
    curve.evidence = Evidence::kExtrapolated;
    curve.source = fmt::format("no fp8 rows; {}'s fp8 over bf16", from->key);
    use_fp8_rate(curve, gpu);
    gemm.fp8 = curve;
  }

  GemmCurve fitted_fp8(const std::vector<GemmRow>& rows, const Machine& machine) {
    const GemmProtocols none;
    const GemmCurve& bf16 = done_.at(machine.key).bf16.curve;
    GemmFitOptions options = {.name = "fp8", .hbm_fraction = kHbmFraction, .relative = &bf16};
    GemmCurve curve = fit_gemm(rows, machine.node.gpu, options).curve;
    // By its own length: products in fp8 slow down less than those in bf16.
    const double hottest = protocols_for(machine).hottest();
    curve.sustained = rounded(std::min(1.0, curve.sustained / hottest));
    curve.misaligned = bf16.misaligned;
    return curve;
  }

  std::vector<GemmRow> nvidia_;
  const std::vector<Machine>& machines_;
  std::map<std::string, std::vector<GemmRow>, std::less<>> bf16_, fp8_;
  std::map<std::string, std::vector<GemmRow>, std::less<>> apart_;  // sources of too few rows
  Catalogue done_;
};

}

Catalogue fit_gemm_catalogue(const std::vector<GemmRow>& rows, const std::vector<Machine>& machines) {
  return Builder(rows, machines).build();
}

}
