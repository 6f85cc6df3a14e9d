// Time of every Work of a graph in isolation, and how much rows that overlap slow each other down.
// What simulate() needs from a CostModel, a table of constants in a test, or a measurement.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/calibration.h"
#include "sim/spec/network/shared_links.h"

namespace foreshard {

// Slowdowns in 1/kOne; kOne means none.
struct Contention {
  static constexpr std::int64_t kOne = 1024;
  std::int64_t compute = kOne;        // of a compute row while a collective runs
  std::int64_t communication = kOne;  // of a collective while a compute row runs
  bool operator==(const Contention&) const = default;
};

// What a collective's kernel takes from compute rows beside it, as excesses over kOne in 1/kOne;
// those of collectives that run at the same time add up. Negative: Contention::compute holds.
struct Occupancy {
  std::int32_t compute = -1;  // on kernels bound by multiprocessors
  std::int32_t memory = -1;   // on kernels bound by memory
  bool operator==(const Occupancy&) const = default;
};

// What a collective takes of the links that communicators share while it runs alone, in 1/kOne of
// their rates; less where latency binds it. Of links that are asked for more than there is, those
// at the same time get max-min fair shares.
using LinkUse = std::array<std::int32_t, kSharedLinks>;

struct Cost {
  Time before;                    // host work ahead of the issue (hooks)
  Time during;                    // host work while enqueuing (launches)
  Time duration;                  // on the device, alone
  Time last_kernel;               // the end is not before the host has enqueued everything and the last kernel
                                  // has run
  Occupancy takes;                // a collective
  LinkUse uses{};                 // a collective; of anything else none
  std::int32_t memory_share = 0;  // a compute row: of its time in kernels bound by memory, in 1/kOne
  bool operator==(const Cost&) const = default;
};

// Host work ahead of a row beyond its Work's: memory that is taken from the driver or given back.
struct HostDelay {
  std::int32_t row = 0;
  Time time;
  bool drains = false;  // the host first waits until the device has done everything issued before
  bool operator==(const HostDelay&) const = default;
};

struct CostTable {
  std::vector<Cost> works;  // indexed like EventGraph::works
  Contention contention;
  std::vector<Evidence> evidence;   // per Work, of its weakest curve
  std::vector<HostDelay> delays;    // of every step, by ascending row
  std::vector<CostTable> pipeline;  // of the graphs in EventGraph::pipeline, in their order
};

}
