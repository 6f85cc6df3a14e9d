// One rank for the tests of launch, rendezvous, transports and failures: comm_rank <what>, the rank
// from the environment. Failures go to standard error as the programs print them.
//   meet          connects, gathers, prints "rank R of W" and what all gathered
//   sums          prints a hash of the results of every collective
//   threads N     the same hash, of N ranks that are threads
//   forever       exchanges until something fails; prints the announced failure
//   chain         rank 0 exchanges with rank 1 only, rank 1 with rank 2 only
//   quit CODE     like forever, but rank 1 announces a failure and ends with CODE after a while
//   once          exchanges until SIGINT, then ends properly with 0
//   deaf          like forever, but SIGINT and SIGTERM do nothing
//   bench BYTES   prints medians of all_gather and reduce_scatter
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <thread>

#include "exec/comm/communicator.h"
#include "exec/comm/process_world.h"
#include "exec/launch/launch.h"

namespace foreshard {
namespace {

volatile std::sig_atomic_t interrupted = 0;

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void meet(World& world) {
  const auto texts = world.gather("names", fmt::format("I am {}", world.rank()));
  GroupCommunicator all(world.connect("world", everyone(world)));
  std::vector<float> values = {1.0F, static_cast<float>(world.rank())};
  all.all_reduce(values);
  print(fmt::format(
      "rank {} of {}: {}; {} {}", world.rank(), world.size(), fmt::join(texts, ", "), values[0], values[1]));
}

std::uint64_t mix(std::uint64_t hash, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211ULL;
  return hash;
}

void sums(World& world) {
  GroupCommunicator all(world.connect("world", everyone(world)));
  const auto ranks = static_cast<std::size_t>(world.size());
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::size_t elements : {1UL, 7UL, 1000UL, 1100001UL}) {
    std::vector<float> whole(ranks * elements);
    std::uint32_t state = 17 + static_cast<std::uint32_t>(world.rank());
    for (float& value : whole) {
      state = state * 1664525U + 1013904223U;
      value = static_cast<float>(static_cast<std::int32_t>(state)) * 1e-6F;
    }
    std::vector<float> shard(elements, 0.5F);
    all.reduce_scatter(whole.data(), DType::kFp32, elements, shard.data(), SumInto::kContinue);
    all.reduce_scatter(whole.data(), DType::kBf16, elements, shard.data(), SumInto::kContinue);
    std::copy(shard.begin(), shard.end(), whole.begin() + (static_cast<std::size_t>(world.rank()) * elements));
    all.all_gather(whole.data(), elements * sizeof(float));
    all.all_reduce(whole);
    hash = mix(hash, whole.data(), whole.size() * sizeof(float));
  }
  print(fmt::format("{:016x}", hash));
}

void sums_of_threads(int size) {
  std::vector<std::thread> threads;
  for (std::unique_ptr<World>& world : thread_worlds(size)) {
    threads.emplace_back([world = std::move(world)] { sums(*world); });
  }
  for (std::thread& thread : threads) thread.join();
}

void exchange_with(GroupCommunicator& with) {
  std::vector<float> values(4096, 1.0F);
  with.all_reduce(values);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void forever(World& world) {
  GroupCommunicator all(world.connect("world", everyone(world)));
  print(fmt::format("ready {}", ::getpid()));
  while (true) exchange_with(all);
}

void chain(World& world) {
  std::vector<GroupCommunicator> links;
  for (int low = 0; low + 1 < world.size(); ++low) {
    if (world.rank() == low || world.rank() == low + 1) links.emplace_back(world.connect("link", {low, low + 1}));
  }
  print(fmt::format("ready {}", ::getpid()));
  while (true) {
    for (GroupCommunicator& link : links) exchange_with(link);
  }
}

void quit(World& world, int code) {
  GroupCommunicator all(world.connect("world", everyone(world)));
  for (int i = 0; i < 50; ++i) exchange_with(all);
  if (world.rank() == 1) throw Error(static_cast<ExitCode>(code), "rank 1: the data ran out");
  while (true) exchange_with(all);
}

void once(World& world) {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  GroupCommunicator all(world.connect("world", everyone(world)));
  print(fmt::format("ready {}", ::getpid()));
  std::vector<std::int64_t> stop(1);
  while (stop[0] == 0) {
    stop[0] = interrupted;
    all.all_reduce(stop);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  print("stopped properly");
}

double median_ms(int repeats, auto call) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void bench(World& world, std::size_t bytes) {
  GroupCommunicator all(world.connect("world", everyone(world)));
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t elements = bytes / sizeof(float) / ranks;
  std::vector<float> whole(ranks * elements, 1.0F);
  std::vector<float> shard(elements);
  const int repeats = bytes > 1'000'000 ? 31 : 2001;
  const auto gather = [&] { all.all_gather(whole.data(), elements * sizeof(float)); };
  const auto scatter = [&] {
    all.reduce_scatter(whole.data(), DType::kFp32, elements, shard.data(), SumInto::kOverwrite);
  };
  gather();
  scatter();
  const double gathered = median_ms(repeats, gather);
  const double scattered = median_ms(repeats, scatter);
  if (world.rank() == 0) {
    print(fmt::format("{} bytes: all_gather {:.4f} ms, reduce_scatter {:.4f} ms", bytes, gathered, scattered));
  }
}

int run(const std::vector<std::string>& words) {
  const Environment environment = process_environment();
  std::unique_ptr<World> world;
  const std::string what = words.empty() ? "meet" : words[0];
  if (what == "threads") {
    sums_of_threads(std::stoi(words.at(1)));
    return 0;
  }
  try {
    ConnectOptions options = connect_options(environment);
    if (const auto limit = environment("COMM_RANK_RENDEZVOUS_MS")) {
      options.rendezvous = std::chrono::milliseconds(std::stoi(*limit));
    }
    world = connect_processes(resolve_launch(environment), options);
    if (what == "meet") meet(*world);
    if (what == "sums") sums(*world);
    if (what == "forever") forever(*world);
    if (what == "deaf") {
      std::signal(SIGINT, SIG_IGN);
      std::signal(SIGTERM, SIG_IGN);
      forever(*world);
    }
    if (what == "chain") chain(*world);
    if (what == "quit") quit(*world, std::stoi(words.at(1)));
    if (what == "once") once(*world);
    if (what == "bench") bench(*world, std::stoul(words.at(1)));
    return 0;
  } catch (const PeerFailure& failure) {
    std::fputs(fmt::format("error: {}\n", explain(*world, failure)).c_str(), stderr);
    return static_cast<int>(failure.exit_code());
  } catch (const Error& error) {
    if (world) world->announce_failure(error.what());
    std::fputs(fmt::format("error: {}\n", error.what()).c_str(), stderr);
    return static_cast<int>(error.exit_code());
  }
}

}
}

int main(int argc, char** argv) {
  // As foreshard-exec: who writes to a rank that is gone hears of it.
  std::signal(SIGPIPE, SIG_IGN);
  return foreshard::run({argv + 1, argv + argc});
}
