// Rank 0 serves the store, unless the launcher does. Under the job's prefix:
//   claim/<rank>      counts the processes that call themselves this rank
//   size/<rank>       the world's size as this rank was told; rank 0's is the measure
//   process/<rank>    RankProcess
//   arrived, ready    a counter, and the key that the last one sets
//   left              counts the ranks that are through; rank 0 serves until all are
//   failure           what failed (failure_board.h); whoever waits looks at it
// Whoever sees a contradiction says so there, so that all stop with the same words; a second
// process of one rank keeps quiet, because the first one may belong to a healthy job.
#include "exec/comm/rendezvous.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <thread>

#include "exec/comm/bounded_call.h"
#include "exec/comm/failure_board.h"
#include "exec/comm/shared_transport.h"
#include "exec/comm/sockets.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// For how long a store is still served: after a failure, and for ranks that end later than rank 0.
constexpr milliseconds kFarewell{500};
constexpr milliseconds kStragglers{5000};

double seconds(milliseconds time) { return as_double(time.count()) / 1000; }

bool all_on_this_machine(const Launch& launch) { return launch.local_size == launch.size; }

bool serves_store(const Launch& launch) { return launch.rank == 0 && !launch.agent_store; }

StoreAddress store_address(const Launch& launch) {
  const bool loopback = all_on_this_machine(launch) && !launch.agent_store;
  return {loopback ? "127.0.0.1" : launch.master_address, launch.master_port};
}

// One limit for all of a rendezvous: the time it began with is what messages tell.
struct Limit {
  milliseconds whole;
  Clock::time_point deadline = Clock::now() + whole;
  milliseconds left() const {
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
  }
};

std::shared_ptr<JobStore> join(const StoreAddress& address, const std::string& run_id, const Limit& limit) {
  const auto store = call_within(
      limit.left(), [address, run_id, left = limit.left()] { return JobStore::join(address, run_id, left); });
  if (!store) {
    fail_launch("what listens at {}:{} is no rendezvous store of LibTorch (no answer within {} s)", address.host,
        address.port, seconds(limit.whole));
  }
  return *store;
}

void check_owner(JobStore& store) {
  const std::string owner = store.owner();
  if (owner.empty() || owner == store.run_id()) return;
  fail_launch("the store at {}:{} belongs to another job ({}; this one is {}); is MASTER_PORT shared by two jobs?",
      store.address().host, store.address().port, owner, store.run_id());
}

std::shared_ptr<JobStore> enter(const Launch& launch, const Limit& limit) {
  const StoreAddress address = store_address(launch);
  if (serves_store(launch)) {
    const auto where = all_on_this_machine(launch) ? ListenOn::kLoopback : ListenOn::kEveryInterface;
    return JobStore::serve(listen_socket(where, address.port), address, launch.run_id);
  }
  if (!answers(address.host, address.port, limit.left())) {
    fail_launch(
        "rank {} found nobody at {}:{} within {} s; is rank 0 running, and do "
        "MASTER_ADDR and MASTER_PORT agree on all ranks?",
        launch.rank, address.host, address.port, seconds(limit.whole));
  }
  return join(address, launch.run_id, limit);
}

std::string own_address(const Launch& launch, const ConnectOptions& options) {
  if (!options.address.empty()) return options.address;
  if (all_on_this_machine(launch)) return "127.0.0.1";
  return own_address_towards(launch.master_address);
}

std::string write(const RankProcess& process) {
  return fmt::format("{}\n{}\n{}", process.host, process.process, process.address);
}

RankProcess read(const std::string& text) {
  const std::size_t first = text.find('\n');
  const std::size_t second = text.find('\n', first + 1);
  FORESHARD_CHECK(second != std::string::npos, "a process is three lines");
  return {text.substr(0, first), std::stoi(text.substr(first + 1, second - first - 1)), text.substr(second + 1)};
}

// Returns when `key` is there.
void await(
    JobStore& store, const std::string& key, Clock::time_point deadline, const std::function<std::string()>& lateness) {
  constexpr milliseconds kSlice{50};
  while (!store.wait(key, kSlice)) {
    if (store.has(kCauseKey)) fail_launch("{}", store.get(kCauseKey));
    if (store.has(kFailureKey)) fail_launch("{}", store.get(kFailureKey));
    if (Clock::now() >= deadline) fail_launch("{}", lateness());
  }
}

// Runs on a thread of its own (bounded_call.h): takes copies.
std::vector<RankProcess> introduce(
    const std::shared_ptr<JobStore>& shared, const Launch& launch, const RankProcess& own, const Limit& limit) {
  JobStore& store = *shared;
  const std::string at = fmt::format("{}:{}", store.address().host, store.address().port);
  const std::string rank = std::to_string(launch.rank);
  check_owner(store);
  if (store.add("claim/" + rank, 1) > 1) {
    fail_launch(
        "a process is there already as rank {} at {}: another job uses this port, or two "
        "processes were started as one rank",
        rank, at);
  }
  store.set("process/" + rank, write(own));
  store.set("size/" + rank, std::to_string(launch.size));
  await(store, "size/0", limit.deadline, [&] {
    check_owner(store);  // it may not have been known before
    return fmt::format("rank 0 did not come to {} within {} s", at, seconds(limit.whole));
  });
  const std::string size = store.get("size/0");
  if (size != std::to_string(launch.size)) {
    const std::string text =
        fmt::format("the ranks disagree about the world's size: rank 0 was started for {} ranks, rank {} for {}", size,
            rank, launch.size);
    store.set_once(kFailureKey, text);
    fail_launch("{}", text);
  }
  if (store.add("arrived", 1) == launch.size) store.set("ready", "");
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int other = 0; other < launch.size; ++other)
      if (!store.has(fmt::format("size/{}", other))) ranks.push_back(other);
    std::string text = fmt::format(
        "{} of {} did not come to {} within {} s", name_ranks(ranks), launch.size, at, seconds(limit.whole));
    store.set_once(kFailureKey, text);
    return text;
  };
  await(store, "ready", limit.deadline, missing);
  std::vector<std::string> keys;
  for (int other = 0; other < launch.size; ++other) keys.push_back(fmt::format("process/{}", other));
  return list_of<RankProcess>(store.get(keys), [&](const std::string& text) { return read(text); });
}

}

std::string name_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? std::to_string(ranks[i])
                                : fmt::format("{}{}{}", ranks[i], end - i == 2 ? ", " : " to ", ranks[end - 1]));
    i = end;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(runs, ", "));
}

Meeting meet(const Launch& launch, const ConnectOptions& options) {
  const Limit limit{options.rendezvous};
  Meeting meeting = {.store = enter(launch, limit), .failures = join(store_address(launch), launch.run_id, limit)};
  const RankProcess own{shared_memory_domain(), ::getpid(), own_address(launch, options)};
  constexpr milliseconds kSpare{500};  // introduce() keeps the deadline while the store answers
  try {
    auto members = call_within(limit.left() + kSpare,
        [store = meeting.store, launch, own, limit] { return introduce(store, launch, own, limit); });
    if (!members) fail_launch("the store at {}:{} stopped answering", launch.master_address, launch.master_port);
    meeting.members = *std::move(members);
  } catch (const Error&) {
    if (serves_store(launch)) std::this_thread::sleep_for(kFarewell);  // the others read why
    throw;
  }
  return meeting;
}

void part(const Launch& launch, const Meeting& meeting) noexcept {
  if (launch.agent_store) return;
  const auto ranks = launch.size;
  try {
    if (!serves_store(launch)) {
      call_within(kFarewell, [store = meeting.store] { return store->add("left", 1); });
      return;
    }
    call_within(kStragglers + kFarewell, [store = meeting.store, ranks] {
      const auto start = Clock::now();
      while (store->add("left", 0) < ranks - 1) {
        const bool failed = store->has(kFailureKey) || store->has(kCauseKey);
        if (Clock::now() - start > (failed ? kFarewell : kStragglers)) break;
        std::this_thread::sleep_for(milliseconds(2));
      }
      return true;
    });
  } catch (const std::exception&) {  // the store is gone: nobody is left to wait for
  }
}

}
