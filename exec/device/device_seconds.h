// How long the device took for a piece of work: two events around it, read when it is done.
#pragma once

#include "exec/device/accelerator.h"

namespace foreshard {

// Lets a GPU's current lane wait until the host has handed over what comes next: on an idle one the
// time between two events is the host's, some microseconds for every launch. 0.2 ms are enough for
// thirty of them. The stand-in does everything at once.
inline void give_head_start(Accelerator& device, std::int64_t nanoseconds = 200'000) {
  if (device.is_gpu()) device.spin(nanoseconds, 1);
}

// Seconds on the device's clock of what `work` gives to the current lane; the host waits for it.
double device_seconds(Accelerator& device, auto work) {
  const DeviceEvent begin = device.new_event(), end = device.new_event();
  give_head_start(device);
  device.record(begin);
  work();
  device.record(end);
  device.synchronize(end);
  const double seconds = device.seconds_between(begin, end);
  device.free_event(begin);
  device.free_event(end);
  return seconds;
}

}
