// How the processes of a job find each other in the store, and find out that they are not a job.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/comm/job_store.h"
#include "exec/comm/process_world.h"
#include "sim/base/error.h"

namespace foreshard {

// What a rank tells the others about its process.
struct RankProcess {
  std::string host;  // shared_memory_domain(), or empty
  int process = 0;
  std::string address;  // for Gloo
};

struct Meeting {
  std::shared_ptr<JobStore> store;
  std::shared_ptr<JobStore> failures;  // a second connection, for the failure board
  std::vector<RankProcess> members;    // by rank
};

// The contract of connect_processes.
Meeting meet(const Launch& launch, const ConnectOptions& options);

// At the end of the world: whoever serves the store waits, for 5 s at most, for those who use it.
void part(const Launch& launch, const Meeting& meeting) noexcept;

// "ranks 1, 3 to 5", for a sorted list.
std::string name_ranks(const std::vector<int>& ranks);

// What keeps a job's ranks from meeting.

template <typename... Parts>
[[noreturn]] void fail_launch(fmt::format_string<Parts...> text, Parts&&... parts) {
  throw Error(ExitCode::kLaunchFailure, fmt::format(text, std::forward<Parts>(parts)...));
}

}
