// Prices the Work entries of a graph on one machine: kernels by the curves of its Calibration, collectives by their
// group's place in the cluster, host work by counts. Pure: the same work costs the same, whatever runs beside it.
//
// A kernel's price is remembered: a plan has few different ones, and a search asks for them again
// with every plan. Copies of a model share what they remember; threads may use one model at once.
//
// Formulas: sim/spec/calibration.h. Peaks, bandwidths and links come from the Cluster, everything
// fitted from the Calibration. Where a Calibration has points measured on the machine itself, they
// are the price (sim/cost/measured.h). A group of one rank communicates in no time; on CPU ranks
// its gather is a copy, or a cast where parameters are kept in another dtype.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/collective.h"
#include "sim/cost/cost_table.h"
#include "sim/cost/measured.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Multipliers on the time of each class of work: the machine's latent factors. All 1 is the central forecast.
using FactorDraw = std::array<double, kFactors>;
FactorDraw central_draw();

// How far a step is below half of the peak, which the best do: 0 .. 1; 0 where no peak is known.
double below_half_peak(double mfu);

struct KernelPrice {
  double seconds = 0;
  Factor factor = Factor::kGemm;
  Evidence evidence = Evidence::kAssumed;
};

// What a plan says about prices that its graph does not.
struct CostChoices {
  // Name of the Calibration's attention curves (fa1, fa2, fa3, triton, cudnn, sdpa_efficient,
  // math), sdpa_flash, or sdpa or "" for what PyTorch picks. One that the Calibration lacks is
  // priced as its nearest relative there, as an assumption.
  std::string attention_kernel;
  ReductionOrder order = ReductionOrder::kLibrary;
  DType compute = DType::kFp32;  // of memory-bound kernels, with measured points
  bool group_by_group = false;   // products of experts, as TransformerEngine's
  CollectiveSettings collectives;
};

class PriceCache;

class CostModel {
 public:
  CostModel(const Cluster& cluster, const Calibration& calibration, CostChoices choices = {});

  KernelPrice price(const Kernel& kernel) const;
  // The same without looking it up.
  KernelPrice compute_price(const Kernel& kernel) const;
  // Of a row's kernels, one after another: as hot as they are together, by the factors of a draw
  // and, of several GPUs, on the slowest. `prices` is what they are put into.
  void price_row(std::span<const Kernel> kernels, const FactorDraw& draw, std::vector<KernelPrice>& prices) const;
  // Seconds of one collective over a group; bytes as in Work. Over NCCL where the calibration knows
  // fabrics (sim/cost/collective.h), else by its curves of one node and of several.
  KernelPrice price(EventKind collective, Bytes bytes, const GroupShape& group) const;

  // NCCL's choice for it, and what that occupies. Nothing where NCCL is not what runs, or the group is of one rank.
  std::optional<CollectivePrice> collective(EventKind collective, Bytes bytes, const GroupShape& group) const;

  CostTable price(const EventGraph& graph) const { return price(graph, center()); }
  CostTable price(const EventGraph& graph, const FactorDraw& draw) const;

  // Multipliers drawn from the spreads of the calibration: draw k of a fixed sequence, the same on every machine.
  FactorDraw draw(int k) const;
  // The factors as they are best known: 1 without Calibration::knowledge.
  FactorDraw center() const;
  // Of what multiplies a whole step, the standard deviation of the logarithm: its own shape and its
  // training code, of which less is sure the less of the step is products at the peak.
  double plan_log_sd(double mfu) const;
  double plan_draw(int k, double mfu) const;  // draw k of it
  // The same prices for one GPU that runs a rank by itself.
  CostModel of_one_gpu() const;
  const Cluster& cluster() const { return cluster_; }
  const std::string& attention_kernel() const { return choices_.attention_kernel; }
  const Calibration& calibration() const { return calibration_; }

 private:
  AttentionCurve attention_curve(std::int64_t head_dim, Pass pass) const;
  // By the smooth curves alone.
  KernelPrice curve_price(const Kernel& kernel) const;
  KernelPrice memory_price(const Kernel& kernel) const;
  // How often as long as their prices say the products of a row of these kernels take.
  double heat(std::span<const Kernel> kernels, std::span<const KernelPrice> prices) const;
  KernelPrice copy_price(Bytes written) const;  // a gather of a group of one
  std::optional<CollectiveModel> collective_model(const GroupShape& group) const;
  KernelPrice curve_price(EventKind collective, Bytes bytes, const GroupShape& group) const;
  struct HostPrice {
    double seconds = 0;
    bool by_host = false;  // the host's own work, not a stream's
    Evidence evidence = Evidence::kAssumed;
  };
  // Rows that use the host's memory, its link or its drives; none: the device's kernels.
  std::optional<HostPrice> price_on_host(const EventGraph& graph, const Work& work) const;

  Cluster cluster_;
  Gpu hot_;  // its GPU, peaks at the clocks that its power limit allows
  Calibration calibration_;
  CostChoices choices_;
  double slowest_ = 1;          // of the cluster's GPUs, whose products all wait for, over their mean
  bool is_substitute_ = false;  // no curve of the attention kernel that was asked for
  ShapeCorrection gemm_;
  ShapeCorrection attention_;
  std::shared_ptr<PriceCache> prices_;
};

// The clock that a power limit leaves a row, from the energy of its kernels.

// Of a row's kernels at the top clock.
struct HeatLoad {
  double products = 0;  // s
  double others = 0;    // s
  double joules = 0;    // above idle
};

// How often as long as their curves say the row's products take under a limit in W: `cool` where
// the limit does not bind. Needs a curve with idle > 0.
double product_heat(const HeatCurve& curve, const HeatLoad& load, double power_limit);

}
