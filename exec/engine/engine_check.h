// The engine itself on a device, on a model of a few thousand parameters: the same losses as on the
// stand-in, one rank or several that share the device, whatever the schedule.
#pragma once

#include <functional>
#include <memory>

#include "exec/checks/self_check.h"

namespace foreshard {

// Each rank gets an Accelerator of its own.
using MakeAccelerator = std::function<std::unique_ptr<Accelerator>()>;

// Of what a check finds, throws DeviceLost only.
void engine_check(const MakeAccelerator& make, const std::vector<std::string>& skipped, const CheckListener& told);

}
