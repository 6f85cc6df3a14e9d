// Lists of hosts as Slurm writes them: "n[1-3,07],m4", "r[1-2]n[01-16]".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

inline constexpr std::size_t kLongestHostName = 256;  // DNS allows 253
inline constexpr std::size_t kMostHosts = 100'000;    // the largest clusters have some 10,000

// In the order of the text; leading zeros stay. At most `most` names. Throws
// std::invalid_argument, whose text says what is wrong in it, in a few words.
std::vector<std::string> expand_host_list(std::string_view text, std::size_t most = kMostHosts);

}
