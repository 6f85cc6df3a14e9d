// After the rendezvous every rank knows where the others run. A group of one moves nothing. A group
// on one host takes shared memory when every member could open what its first member made; they
// tell each other, so that all choose alike. Any other group takes Gloo. Whatever waits for the
// store does so for a bounded time and stops when a failure is announced.
#include "exec/comm/process_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "exec/comm/bounded_call.h"
#include "exec/comm/failure_board.h"
#include "exec/comm/gloo_transport.h"
#include "exec/comm/rendezvous.h"
#include "exec/comm/shared_transport.h"
#include "sim/base/error.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStartedTogether{5000};

class LoneTransport : public Transport {
 public:
  int index() const override { return 0; }
  int size() const override { return 1; }
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    FORESHARD_CHECK(sends.empty() && receives.empty(), "a lone rank has no peer");
  }
  void abort() override {}
};

// One rank, no launcher, no network.
class LoneWorld : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Transport> connect(const std::string&, const std::vector<int>&) override {
    return std::make_unique<LoneTransport>();
  }
  std::vector<std::string> gather(const std::string&, const std::string& text) override { return {text}; }
  void announce_failure(const std::string& text) override {
    if (!failure_) failure_ = text;
  }
  std::optional<std::string> announced_failure(milliseconds) override { return failure_; }

 private:
  std::optional<std::string> failure_;
};

class ProcessWorld : public World {
 public:
  ProcessWorld(const Launch& launch, const ConnectOptions& options, Meeting meeting)
      : launch_(launch),
        options_(options),
        meeting_(std::move(meeting)),
        board_(meeting_.failures, launch.launcher == kSpawnLauncher) {}
  ~ProcessWorld() override { part(launch_, meeting_); }

  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.size; }

  std::unique_ptr<Transport> connect(const std::string& name, const std::vector<int>& ranks) override {
    const auto place = std::ranges::find(ranks, rank());
    FORESHARD_CHECK(place != ranks.end(), "a rank connects to groups it is in");
    if (ranks.size() == 1) return std::make_unique<LoneTransport>();
    const std::string group = fmt::format("{}/{}", name, fmt::join(ranks, ","));
    const std::string key = fmt::format("group/{}/{}", group, connected_[group]++);
    const int index = static_cast<int>(place - ranks.begin());
    if (auto transport = try_shared(key, ranks, index)) return transport;

    const GlooGroup gloo{
        key, ranks, index, meeting_.members[position(rank())].address, options_.rendezvous, options_.timeout};
    auto transport = bounded(options_.rendezvous, [store = meeting_.store, gloo] { return connect_gloo(store, gloo); });
    if (!transport) give_up(fmt::format("group {} is not connected", name), options_.rendezvous);
    return *std::move(transport);
  }

  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    const std::string key = fmt::format("gather/{}/{}", topic, gathered_[topic]++);
    std::vector<int> everyone(position(size()));
    for (int other = 0; other < size(); ++other) everyone[position(other)] = other;
    return collect(key, everyone, text, std::max(options_.timeout, options_.rendezvous));
  }

  void announce_failure(const std::string& text) override { board_.announce(text); }
  std::optional<std::string> announced_failure(milliseconds patience) override { return board_.announced(patience); }

 private:
  static std::size_t position(int rank) { return at(rank); }

  auto bounded(milliseconds limit, auto call) -> std::optional<decltype(call())> {
    constexpr milliseconds kSpare{1000};  // the call has its own limit while the store answers
    return call_within(
        limit + kSpare, std::move(call), [this] { return board_.announced(milliseconds(0)).has_value(); });
  }

  [[noreturn]] void give_up(const std::string& what, milliseconds limit) {
    const auto announced = board_.announced(milliseconds(0));
    throw PeerFailure(-1, announced.value_or(fmt::format("{} within {} s", what, as_double(limit.count()) / 1000)));
  }

  // Each of `ranks` leaves its text; all get all of them.
  std::vector<std::string> collect(
      const std::string& key, const std::vector<int>& ranks, const std::string& text, milliseconds limit) {
    auto keys = list_of<std::string>(ranks, [&](const int other) { return fmt::format("{}/{}", key, other); });
    const std::string own = fmt::format("{}/{}", key, rank());
    auto texts = bounded(limit, [store = meeting_.store, own, keys, text, limit] {
      const auto deadline = std::chrono::steady_clock::now() + limit;
      store->set(own, text);
      for (const std::string& one : keys) {
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        if (!store->wait(one, std::max(left, milliseconds(1)))) return std::vector<std::string>();
      }
      return store->get(keys);
    });
    if (texts && !texts->empty()) return *std::move(texts);
    give_up(missing(keys, ranks), limit);
  }

  // "rank 1 did not answer", of those whose key is not there.
  std::string missing(const std::vector<std::string>& keys, const std::vector<int>& ranks) {
    const auto there = bounded(milliseconds(0), [store = meeting_.store, keys] {
      return list_of<bool>(keys, [&](const std::string& key) { return store->has(key); });
    });
    if (!there) return "the store did not answer";
    std::vector<int> absent;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (!(*there)[i]) absent.push_back(ranks[i]);
    return name_ranks(absent.empty() ? ranks : absent) + " did not answer";
  }

  // Null: not on one host, or not to be had.
  std::unique_ptr<Transport> try_shared(const std::string& key, const std::vector<int>& ranks, int index) {
    if (options_.transport == TransportChoice::kGloo) return nullptr;
    const std::string& host = meeting_.members[position(ranks[0])].host;
    std::string reason;
    std::shared_ptr<SharedMemory> memory;
    const bool together = !host.empty() && std::ranges::all_of(ranks,
                                               [&](int rank) { return meeting_.members[position(rank)].host == host; });
    if (!together) reason = "its ranks run on several hosts, or this system lacks pidfd_open";
    else std::tie(memory, reason) = share(key, ranks, index);
    if (!memory) {
      if (options_.transport != TransportChoice::kShared) return nullptr;
      fail_launch("FORESHARD_TRANSPORT=shm: {} cannot share memory: {}", name_ranks(ranks), reason);
    }
    SharedGroup group{ranks, {}, index, options_.timeout};
    for (const int rank : ranks) group.processes.push_back(meeting_.members[position(rank)].process);
    return shared_transport(std::move(memory), group);
  }

  // The memory that all members hold, or why they do not.
  std::pair<std::shared_ptr<SharedMemory>, std::string> share(
      const std::string& key, const std::vector<int>& ranks, int index) {
    const int members = static_cast<int>(ranks.size());
    std::shared_ptr<SharedMemory> memory;
    std::string trouble;
    const auto attempt = [&](auto get) {
      try {
        memory = get();
      } catch (const Error& error) {
        trouble = error.what();
      }
    };
    if (index == 0) attempt([&] { return SharedMemory::create(members); });
    const std::string ticket =
        collect(key + "/ticket", ranks, memory ? memory->ticket() : trouble, options_.rendezvous)[0];
    const bool made = ticket.starts_with("/proc/");
    if (index != 0 && made) attempt([&] { return SharedMemory::open(ticket, members); });
    for (const std::string& theirs : collect(key + "/trouble", ranks, trouble, options_.rendezvous))
      if (!theirs.empty()) return {nullptr, theirs};
    return {std::move(memory), ""};
  }

  Launch launch_;
  ConnectOptions options_;
  Meeting meeting_;
  FailureBoard board_;
  std::map<std::string, int> connected_;  // how often, by name and ranks
  std::map<std::string, int> gathered_;   // by topic
};

}

ConnectOptions connect_options(const Environment& environment) {
  ConnectOptions options;
  if (const auto transport = environment("FORESHARD_TRANSPORT")) {
    if (*transport == "shm") options.transport = TransportChoice::kShared;
    else if (*transport == "gloo") options.transport = TransportChoice::kGloo;
    else if (*transport != "auto") fail_launch("FORESHARD_TRANSPORT={}: expected auto, shm or gloo", *transport);
  }
  options.address = environment("FORESHARD_ADDRESS").value_or("");
  if (const auto timeout = environment("FORESHARD_TIMEOUT_S")) {
    const int seconds = parse_number<int>(*timeout).value_or(0);
    if (seconds < 1 || seconds > 86400)
      fail_launch("FORESHARD_TIMEOUT_S={}: expected whole seconds from 1 to 86400", *timeout);
    options.timeout = std::chrono::seconds(seconds);
    options.rendezvous = std::max<milliseconds>(options.timeout, kStartedTogether);
  }
  return options;
}

std::unique_ptr<World> connect_processes(const Launch& launch, const ConnectOptions& options) {
  if (launch.size == 1) return std::make_unique<LoneWorld>();
  return std::make_unique<ProcessWorld>(launch, options, meet(launch, options));
}

}
