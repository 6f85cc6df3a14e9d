// Runs the ranks of a world as threads of the test.
#pragma once

#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "exec/comm/communicator.h"
#include "exec/comm/world.h"

namespace foreshard {

inline std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Calls `body` for each rank on a thread of its own, then throws what the first rank threw, if any.
inline void for_each_rank(int size, const std::function<void(World&)>& body) {
  std::vector<std::unique_ptr<World>> worlds = thread_worlds(size);
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*worlds[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
      worlds[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace foreshard
