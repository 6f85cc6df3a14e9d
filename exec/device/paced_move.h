// What a paced collective moves, on the host.
#pragma once

#include "exec/device/accelerator.h"

namespace foreshard {

void paced_move(const PacedCollective& collective);

}  // namespace foreshard
