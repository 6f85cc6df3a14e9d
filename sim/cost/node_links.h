// What a node's GPUs reach each other over, by the name of its links.
#pragma once

#include <cstdint>

#include "sim/spec/cluster.h"

namespace foreshard {

enum class Inside : std::uint8_t { kSwitch, kMesh, kXgmi, kPcie, kThroughHost };
Inside inside_of(const NodeKind& node);

}  // namespace foreshard
