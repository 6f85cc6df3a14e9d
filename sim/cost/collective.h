// What a collective takes on a real fabric: NCCL's own table (sim/cost/nccl.h) corrected by measurements.
//
//   t = fixed + l + s + pipeline * sqrt(l * s)
//   l = hops[protocol] * L
//   s = S / (share * B) * (1 + own / steps) * (1 + per_doubling)^log2(nodes / 2)
//
// for the algorithm and protocol that the table of the installed version chooses; L and B are those of 2.28.9, for a
// version's opinion does not change what the hardware does. share is ring[protocol], nvls or tree. The root is what
// filling a pipeline costs that is cut into pieces of the best size. `own` is the step each rank makes for its own
// piece (copied, not sent), in steps of the ring: it makes two GPUs slower than eight.
//
// Where the cluster itself was swept, a measured size costs what was measured, sizes between are interpolated in bus
// bandwidth over the logarithms, and an operation that moves the same (reduce_scatter by an all_gather) takes them
// over. Other sizes, groups and operations cost the form times the ratio at the nearest point.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/cost/nccl.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// By what words a network's name holds ("EFAv2", "TCPX", "Slingshot-11"); else kRdma.
FabricKind network_kind(std::string_view name);

struct FabricSystem {
  NcclSystem system;
  FabricKind kind = FabricKind::kNvlink;
  double tree = 1;  // GroupLink::tree over network, which is what the system has
};
// What NCCL sees of the group. Precondition: it has more than one rank.
// GB/s of `ranks` GPUs that exchange through the host's memory, where they do not reach each other's: 0.73 of their
// slot or of their part of that memory, which each byte is written to and read from (8 RTX 5090 and two Xeon 8480+ with
// 614 GB/s: 28 of 38, 4 of them 35 of 48; NVIDIA/nccl#1639).
double through_host(double slot, BytesPerSecond memory, double ranks);
// There are hosts where it is 2 to 4 (tinygrad/open-gpu-kernel-modules#36).
inline constexpr double kSlowestThroughHost = 4;

FabricSystem fabric_system(const Cluster& cluster, const GroupLink& group, NcclVersion version);

struct CollectiveSettings {
  NcclVersion version;
  CollectiveKernels kernels = CollectiveKernels::kDefault;  // inside one NVLink domain
  int max_ctas = 0;                                         // NCCL_MAX_CTAS; 0: NCCL's choice
};

// NCCL's numbers of one call that a FabricCurve corrects.
struct FabricTerm {
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  NcclProtocol protocol = NcclProtocol::kSimple;
  double latency = 0;    // L, s
  double transfer = 0;   // S / B, s
  double steps = 1;      // of a ring
  double doublings = 0;  // log2(nodes / 2) of more than two nodes
  int ctas = 0;
};
double fabric_seconds(const FabricCurve& curve, const FabricTerm& term);

struct CollectivePrice {
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  int ctas = 0;  // multiprocessors that its kernel holds
  double seconds = 0;
  double busbw = 0;  // bytes/s of every GPU's link, as nccl-tests counts
  Evidence evidence = Evidence::kAssumed;
};

// Of one group, worked out once; a price then costs some tens of nanoseconds.
class CollectiveModel {
 public:
  // No curve of the kind: NCCL's table as it is, assumed.
  CollectiveModel(const FabricSystem& fabric, const CollectiveSettings& settings, const Calibration& calibration);
  CollectiveModel(const FabricSystem& fabric, const CollectiveSettings& settings, const FabricCurve& curve,
      const std::vector<CollectiveSweep>& sweeps);

  CollectivePrice price(CollectiveOperation operation, double bytes) const;
  // What an all-to-all that takes as long moves, where of `copies` rows of one token each node and
  // rank gets one. Tokens choose ranks at random.
  double sent_once(double bytes, std::int64_t copies) const;
  FabricTerm term(CollectiveOperation operation, double bytes) const;
  // The latent factor that its times are off by.
  Factor factor() const { return fabric_.system.nodes > 1 ? Factor::kInterNode : Factor::kIntraNode; }

 private:
  struct Sweep {
    CollectiveOperation operation = CollectiveOperation::kAllGather;
    bool same_group = false;
    std::vector<double> log_bytes, log_busbw, log_ratio;  // measured over form
  };
  const Sweep* sweep_for(CollectiveOperation operation) const;
  void add_sweeps(const std::vector<CollectiveSweep>& sweeps);
  void apply(CollectiveOperation operation, double bytes, CollectivePrice& price) const;

  FabricSystem fabric_;
  CollectiveSettings settings_;
  FabricCurve curve_;  // without its source
  NcclModel choice_;
  std::optional<NcclModel> reference_;  // where the version is another
  double ranks_ = 0;
  double doublings_ = 0;
  std::vector<Sweep> sweeps_;
};

// (n-1)/n, twice that or 1: bus bandwidth over bytes / time (nccl-tests, doc/PERFORMANCE.md).
double busbw_factor(CollectiveOperation operation, double ranks);

// Factors on compute kernels beside a collective, both >= 1.
//
//   memory-bound   1 / (1 - h);  h = 3 * busbw / memory bandwidth, at most 0.6: a ring's step reads
//                  its source and the FIFO and writes, about 3 bytes per byte on the link
//   others         M / (M - c) / (1 - memory * h)
//
// M multiprocessors, c blocks of the collective. A slow network holds as many blocks for longer and
// takes little memory bandwidth.
struct Slowdown {
  double compute = 1;
  double memory = 1;
};
Slowdown slowdown_of(const CollectivePrice& price, const Gpu& gpu, const ContentionCurve& curve);

// What a node's GPUs reach each other over, by the name of its links.

enum class Inside : std::uint8_t { kSwitch, kMesh, kXgmi, kPcie, kThroughHost };
Inside inside_of(const NodeKind& node);

}
