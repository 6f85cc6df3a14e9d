// One function per table. A value that changed between versions stands behind the first version that has it.
#include "sim/cost/nccl_tables.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr NcclVersion k229{2, 29, 0};
constexpr NcclVersion k230{2, 30, 0};

using ByNodes = std::array<double, 3>;

double of_nodes(const ByNodes& values, std::int64_t nodes) { return values[at(std::min<std::int64_t>(nodes, 3) - 1)]; }

std::size_t row_of(GpuGeneration generation) { return at(generation); }

constexpr std::array<ByNodes, 4> kLlCaps = {{{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}};

}

ByProtocol nccl_base(NcclAlgorithm algorithm, NcclVersion version) {
  switch (algorithm) {
    case NcclAlgorithm::kTree: return {6.8, 14, version < k223 ? 0 : 8.4};
    case NcclAlgorithm::kRing: return {6.6, 14, 8.4};
    case NcclAlgorithm::kNvls: return {0, 0, version < k219 ? 23.0 : 0.0};
    case NcclAlgorithm::kPat: return {8, 8, 8};
    default: return {0, 0, 0};
  }
}

ByProtocol nccl_hop(NcclAlgorithm algorithm, NcclHop hop, NcclVersion version) {
  const auto pick = [&](double nvlink, double pci, double network) {
    return hop == NcclHop::kNvlink ? nvlink : hop == NcclHop::kPci ? pci : network;
  };
  const bool is_219_to_222 = version >= k219 && version < k223;
  switch (algorithm) {
    case NcclAlgorithm::kTree: {
      const double simple = version < k219 ? pick(4, 6, 14) : is_219_to_222 ? 28 : pick(4, 4, 14);
      return {pick(0.6, 1.0, 5.0), pick(1.25, 1.9, 8.5), simple};
    }
    case NcclAlgorithm::kRing: return {pick(0.6, 1.0, 2.7), pick(1.9, 2.5, 4.0), pick(3.4, 5.7, 14)};
    case NcclAlgorithm::kCollNetDirect: return {0, 0, version < k219 ? pick(8, 8, 10.7) : pick(3.7, 3.7, 31)};
    case NcclAlgorithm::kCollNetChain: return {0, 0, pick(2.8, 2.8, 30)};
    case NcclAlgorithm::kNvls: return {0, 0, version < k219 ? pick(0, 0, 18) : pick(is_219_to_222 ? 23 : 25, 0, 18)};
    case NcclAlgorithm::kNvlsTree: {
      const double network = version < k219 ? 19 : version < k228 ? 14 : 20.9;
      return {0, 0, pick(version < k219 ? 0 : is_219_to_222 ? 23 : 25, 0, network)};
    }
    case NcclAlgorithm::kPat: return {0, 0, pick(4, 4, 14)};
    default: return {0, 0, 0};
  }
}

double nccl_ll_cap(const NcclSystem& system) {
  if (system.nodes > 1) return of_nodes(kLlCaps[system.cpu == CpuKind::kAmd ? 1 : 0], system.nodes);
  GpuGeneration generation = system.generation;
  if (system.version < k223) generation = std::min(generation, GpuGeneration::kAmpere);
  return of_nodes(kLlCaps[row_of(generation)], 1);
}

double nccl_ring_ll128(const NcclSystem& system) {
  if (system.generation < GpuGeneration::kHopper) return 20;
  if (system.generation == GpuGeneration::kHopper) return 36.7;
  if (system.version >= k229) return 40;
  return system.version >= k228 ? of_nodes({73.4, 34.6, 73.4}, system.nodes) : 73.4;
}

double nccl_tree_ll128(const NcclSystem& system) {
  if (system.generation < GpuGeneration::kHopper) return 20;
  const ByNodes hopper = {36.7, 36.7, 29};
  if (system.generation == GpuGeneration::kHopper) return of_nodes(hopper, system.nodes);
  return system.version >= k228 ? of_nodes({55.6, 31.67, 20}, system.nodes) : 2 * of_nodes(hopper, system.nodes);
}

double nccl_tree_simple(const NcclSystem& system) {
  const ByNodes hopper = {38.7, 41.4, 36};
  switch (system.generation) {
    case GpuGeneration::kVolta: return of_nodes({26.5, 18.5, 10}, system.nodes);
    case GpuGeneration::kAmpere: return of_nodes({24, 23.6, 17.8}, system.nodes);
    case GpuGeneration::kHopper: return of_nodes(hopper, system.nodes);
    case GpuGeneration::kBlackwell: break;
  }
  return system.version >= k228 ? of_nodes({70, 42.8, 24}, system.nodes) : 2 * of_nodes(hopper, system.nodes);
}

double nccl_nvls_tree(const NcclSystem& system) {
  if (system.generation < GpuGeneration::kHopper) return 0;
  if (system.generation == GpuGeneration::kHopper) return of_nodes({0, 57.7, 45.5}, system.nodes);
  return of_nodes({0, 96, system.version >= k230 ? 80.0 : 43.8}, system.nodes);
}

double nccl_nvls_efficiency(GpuGeneration generation) {
  if (generation < GpuGeneration::kHopper) return 0;
  return generation == GpuGeneration::kHopper ? 0.85 : 0.74;
}

double nccl_tree_correction(NcclProtocol protocol, double bytes) {
  static constexpr std::array<std::array<double, 23>, kNcclProtocols> kFactors = {
      {{1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
          {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
          {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9}}};
  if (bytes < 64) return 1;
  const int index = std::ilogb(bytes / 64);
  if (index > 22) return 1;
  return kFactors[at(protocol)][at(index)];
}

std::span<const double> nccl_speeds_inside(GpuGeneration generation) {
  static constexpr double kOld[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  static constexpr double kHopper[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
  static constexpr double kBlackwell[] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18};
  if (generation < GpuGeneration::kHopper) return kOld;
  if (generation == GpuGeneration::kHopper) return kHopper;
  return kBlackwell;
}

std::span<const double> nccl_speeds_between(GpuGeneration generation) {
  static constexpr double kOld[] = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, .24, .12};
  static constexpr double kHopper[] = {48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12};
  static constexpr double kBlackwell[] = {96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12};
  if (generation < GpuGeneration::kHopper) return kOld;
  if (generation == GpuGeneration::kHopper) return kHopper;
  return kBlackwell;
}

}
