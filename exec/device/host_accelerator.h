// A stand-in for a GPU: does everything on the CPU, at once, in the order of the calls.
//
// That order is a right one for any plan, for every dependency of an EventGraph points to a smaller
// id. So the engine's device half (lanes, events, paced collectives, run records) runs and is
// tested without a GPU; only overlap does not exist here. Paced collectives take their time.
#pragma once

#include <memory>

#include "exec/device/accelerator.h"

namespace foreshard {

std::unique_ptr<Accelerator> host_accelerator();

// What a paced collective moves, on the host.

void paced_move(const PacedCollective& collective);

}
