// A killed rank says nothing, one that failed by itself says why a little after its connections close, and a rank that
// lost it ends and is lost in turn. So everyone waits for a nearer word before speaking.
#include "exec/comm/world.h"

#include <fmt/format.h>

namespace foreshard {

std::string explain(World& world, const PeerFailure& failure) {
  constexpr std::chrono::milliseconds kNearerWord{500};
  const std::string own = fmt::format("rank {}", world.rank());
  const std::string what = failure.what();
  std::string seen = what.starts_with(own + " ") ? what : own + ": " + what;
  const auto announced = world.announced_failure(kNearerWord);
  if (announced) return *announced;
  world.announce_failure(seen);
  return seen;
}

}
