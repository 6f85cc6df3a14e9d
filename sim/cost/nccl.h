// NCCL's own decision: which algorithm and protocol it runs a collective with, on how many
// channels, and how long its cost model says that takes.
//
// Follows NVIDIA/nccl:src/graph/tuning.cc, src/graph/search.cc, src/graph/connect.cc and src/enqueue.cc of v2.18.6-1 to
// v2.30.7-1; values are those of v2.28.9-1 where versions agree. Units here are NCCL's: microseconds and GB/s (1e9
// bytes a second); bytes are those of the whole unsharded buffer, as nccl-tests counts. What a real machine takes is in
// sim/cost/collective.h, which corrects these numbers by what was measured.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

#include "sim/base/letters.h"
#include "sim/spec/calibration.h"

namespace foreshard {

enum class NcclAlgorithm : std::uint8_t {
  kTree,
  kRing,
  kCollNetDirect,
  kCollNetChain,
  kNvls,
  kNvlsTree,
  kPat,
  kPointToPoint,  // sends and receives; not in NCCL's table
  kCopyEngine,    // of symmetric windows, since 2.28: no multiprocessor runs it
  kSymmetric      // kernels on symmetric windows, since 2.27
};
enum class NcclProtocol : std::uint8_t { kLL, kLL128, kSimple };
inline constexpr std::size_t kNcclProtocols = 3;
constexpr const char* to_string(NcclAlgorithm algorithm) {
  return word_at(algorithm, {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat",
                                "point_to_point", "copy_engine", "symmetric"});
}
constexpr const char* to_string(NcclProtocol protocol) { return word_at(protocol, {"ll", "ll128", "simple"}); }

struct NcclVersion {
  int major = 2;
  int minor = 28;
  int patch = 9;
  auto operator<=>(const NcclVersion&) const = default;
};
// "2.28.9", "2.18", "v2.30.7-1", "22809"; anything else is the default above.
NcclVersion parse_nccl_version(std::string_view text);

// Rows of NCCL's tables, by compute capability: below 8.0, 8.x, 9.x, 10.0 and later.
enum class GpuGeneration : std::uint8_t { kVolta, kAmpere, kHopper, kBlackwell };

enum class CpuKind : std::uint8_t { kIntel, kAmd, kOther };

// What NCCL finds out about the machines of one communicator.
struct NcclSystem {
  NcclVersion version;
  GpuGeneration generation = GpuGeneration::kHopper;
  CpuKind cpu = CpuKind::kIntel;
  std::int64_t nodes = 1;           // NVLink domains
  std::int64_t ranks_per_node = 1;  // of this communicator, in the node with the fewest
  std::int64_t all_ranks = 0;       // 0: as many in every node
  bool nvlink = true;
  bool nvswitch = true;
  double link = 0;         // GB/s per GPU and direction as NCCL counts it: usable_link()
  double nic = 0;          // GB/s of one port
  double nics = 0;         // ports of a node that are this communicator's; may be a fraction
  double net_latency = 0;  // us, as the network plug-in reports it
  bool collnet = false;    // SHARP, where the network has it and the job asked for it
  std::int64_t ranks() const { return all_ranks > 0 ? all_ranks : nodes * ranks_per_node; }
  bool operator==(const NcclSystem&) const = default;
};

// NVLink counts 20 GB/s a link on Volta and Ampere, 20.6 on Hopper, 40.1 on Blackwell (links of 25,
// 25, 25 and 50 GB/s); 20.0 on Hopper before 2.20. In: data-sheet GB/s of all links, one direction.
double usable_link(GpuGeneration generation, double gigabytes, NcclVersion version);

// What NCCL's search finds: channels and the bandwidth of each, inside nodes and between.
struct NcclGraph {
  int channels = 0;
  double intra = 0;
  double inter = 0;
  int ctas = 0;  // blocks of the kernel: channels after splitting and doubling
};
NcclGraph ring_graph(const NcclSystem& system);
NcclGraph nvls_graph(const NcclSystem& system);  // 0 channels where there is none

struct NcclCost {
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  NcclProtocol protocol = NcclProtocol::kSimple;
  double latency = 0;    // us
  double bandwidth = 0;  // GB/s of the whole buffer: bytes / time; 0: not available
  bool is_available() const { return bandwidth > 0; }
};

// Everything about one communicator, worked out once; choose() then costs some tens of ns.
// Steps of a ring: pieces of S / n that every link carries.
double ring_steps(CollectiveOperation collective, double ranks);

class NcclModel {
 public:
  // Precondition: at least two ranks.
  explicit NcclModel(const NcclSystem& system);

  struct Choice {
    NcclCost cost;
    int channels = 0;         // blocks that the kernel launches, one to a multiprocessor
    double microseconds = 0;  // by NCCL's own table
  };
  Choice choose(CollectiveOperation collective, double bytes) const;

  // The entry of one algorithm and protocol: latency and bandwidth at this size.
  NcclCost cost(CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol, double bytes) const;
  const NcclSystem& system() const { return system_; }
  const NcclGraph& ring() const { return ring_; }
  const NcclGraph& nvls() const { return nvls_; }

 private:
  struct Entry {
    NcclAlgorithm algorithm = NcclAlgorithm::kRing;
    NcclProtocol protocol = NcclProtocol::kSimple;
    double latency = 0;
    double bandwidth = 0;
  };
  Entry entry(CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol) const;
  NcclCost at_size(CollectiveOperation collective, const Entry& entry, double bytes) const;
  int channels_for(const Entry& entry, double bytes) const;

  NcclSystem system_;
  NcclGraph ring_;
  NcclGraph nvls_;
  static constexpr std::size_t kMostEntries = 12;
  struct Entries {  // those that are available; no allocation, for search makes many models
    std::array<Entry, kMostEntries> list;
    std::size_t count = 0;
    void add(const Entry& entry) { list[count++] = entry; }
  };
  std::array<Entries, kCollectiveOperations> entries_;
};

}
