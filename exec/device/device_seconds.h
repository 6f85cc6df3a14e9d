// How long the device took for a piece of work: two events around it, read when it is done.
#pragma once

#include "exec/device/accelerator.h"

namespace foreshard {

// Seconds on the device's clock of what `work` gives to the current lane; the host waits for it.
template <typename Work>
double device_seconds(Accelerator& device, Work work) {
  const DeviceEvent begin = device.new_event(), end = device.new_event();
  device.record(begin);
  work();
  device.record(end);
  device.synchronize(end);
  const double seconds = device.seconds_between(begin, end);
  device.free_event(begin);
  device.free_event(end);
  return seconds;
}

}  // namespace foreshard
