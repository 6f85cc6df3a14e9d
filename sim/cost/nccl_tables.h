// The constants of NCCL's cost model, by version (NVIDIA/nccl:src/graph/tuning.cc, search.cc). Microseconds and GB/s.
#pragma once

#include <array>
#include <span>

#include "sim/cost/nccl.h"
#include "sim/spec/cluster.h"

namespace foreshard {

using ByProtocol = std::array<double, kNcclProtocols>;  // LL, LL128, Simple

// Versions that changed more than one file of the model.
inline constexpr NcclVersion k219{2, 19, 0};
inline constexpr NcclVersion k223{2, 23, 0};
inline constexpr NcclVersion k228{2, 28, 0};

enum class NcclHop : std::uint8_t { kNvlink, kPci, kNetwork };

// Unknown GPUs, and other vendors', whose libraries are ports of NCCL, read as kAmpere.
GpuGeneration nccl_generation(const Gpu& gpu);

// Time before the first hop.
ByProtocol nccl_base(NcclAlgorithm algorithm, NcclVersion version);
ByProtocol nccl_hop(NcclAlgorithm algorithm, NcclHop hop, NcclVersion version);

// Caps; columns are one node, two nodes, more.
double nccl_ll_cap(const NcclSystem& system);      // of all channels
double nccl_ring_ll128(const NcclSystem& system);  // per channel, as the next three
double nccl_tree_ll128(const NcclSystem& system);
double nccl_tree_simple(const NcclSystem& system);
double nccl_nvls_tree(const NcclSystem& system);
double nccl_nvls_efficiency(GpuGeneration generation);  // since 2.28

// Factor on a tree all-reduce's bandwidth at this size.
double nccl_tree_correction(NcclProtocol protocol, double bytes);

// Speeds the graph search tries, highest first.
std::span<const double> nccl_speeds_inside(GpuGeneration generation);
std::span<const double> nccl_speeds_between(GpuGeneration generation);

}
