// A random order of n things that needs no memory: a bijection of [0, n) chosen by a key.
#pragma once

#include <cstdint>

namespace foreshard {

// Where position `index` of the order that `key` chooses leads; `count` > index >= 0. The same on
// every machine, about 20 ns.
std::int64_t shuffled(std::int64_t index, std::int64_t count, std::uint64_t key);

}  // namespace foreshard
