// What a step in flight has of its own on a device: the events of its rows, its micro-batches, and
// the numbers that change from step to step. A backend has one for every step that may run or wait
// to be collected, and uses them in turn.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/device/accelerator.h"
#include "exec/engine/backend.h"

namespace foreshard {

inline Time time_of(double seconds) { return Time::ns(static_cast<std::int64_t>(seconds * 1e9)); }

struct DeviceStep {
  struct RowEvents {
    DeviceEvent start = nullptr, arrive = nullptr, end = nullptr;  // arrive: collectives only
  };

  // References are kept.
  DeviceStep(Accelerator& accelerator, const EventGraph& graph);
  ~DeviceStep();
  DeviceStep& operator=(DeviceStep&&) = delete;  // nor is it copied

  // On the current lane, which the host then waits for; `uploaded` is recorded.
  void upload(const Plan& plan, std::int64_t step, std::span<MicroBatch> host_batches);
  // Rows' times from `begin` on. Precondition: the device has done them. `zero`: when the host's
  // clock and the device's `begin` were one moment, but for `offset` seconds.
  std::vector<Span> spans(DeviceEvent begin, std::chrono::steady_clock::time_point zero, double offset) const;
  // Losses and the gradient's norm, on the current lane, which the host waits for.
  void read_back(const Plan& plan, StepResult& result) const;

  Accelerator& device;
  std::int64_t number = 0;
  std::vector<RowEvents> rows;
  std::vector<std::chrono::steady_clock::time_point> issued;  // by row
  DeviceEvent uploaded = nullptr;
  std::vector<MicroBatch> batches;  // on the device
  at::Tensor norm;
  at::Tensor host_scalars, scalars;  // DeviceUpdate::step's, on the host and on the device
  DeviceGraph graph = nullptr;       // the step as it was recorded
};

}
