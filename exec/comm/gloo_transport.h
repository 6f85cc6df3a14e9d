// Messages between processes over TCP: the send and recv of c10d's Gloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "exec/comm/job_store.h"
#include "exec/comm/transport.h"

namespace foreshard {

struct GlooGroup {
  std::string key;         // the same for every member, used once per job
  std::vector<int> ranks;  // of the world, two or more
  int index = 0;           // of this rank
  std::string address;     // of this host, or the name of one of its interfaces
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds timeout{};  // of one exchange
};

// Connects every member with every other; all call it. Throws Error(kLaunchFailure). May block for
// ever when the store's server is frozen.
std::unique_ptr<Transport> connect_gloo(const std::shared_ptr<JobStore>& store, const GlooGroup& group);

}
