// Runs the ranks of a world as threads of this process.
#pragma once

#include <functional>
#include <vector>

#include "exec/comm/world.h"

namespace foreshard {

// 0, 1, ... count - 1
std::vector<int> first_ranks(int count);

// Calls `body` for each rank on a thread of its own, then throws what the first rank threw, if any.
// A rank's world ends with it, so that the others hear of a failure.
void for_each_rank(int size, const std::function<void(World&)>& body);

}
