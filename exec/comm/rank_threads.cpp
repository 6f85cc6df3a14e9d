#include "exec/comm/rank_threads.h"

#include <exception>
#include <memory>
#include <numeric>
#include <thread>

namespace foreshard {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(at(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void for_each_rank(int size, const std::function<void(World&)>& body) {
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
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}
