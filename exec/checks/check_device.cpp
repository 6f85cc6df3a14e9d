// Memory, lanes, events, and what calls cost the host.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "exec/checks/checks.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

}

std::string Checks::identity() {
  const AcceleratorInfo info = device_.info();
  std::string text = fmt::format("{}, sm_{}, {} multiprocessors, {:.1f} GiB, device clock counts in {:.0f} ns",
      info.name, info.capability, info.multiprocessors, as_double(info.memory_bytes) / (1024.0 * 1024 * 1024),
      info.globaltimer_step_ns);
  for (const auto& [name, version] : info.versions) text += fmt::format(", {} {}", name, version);
  return text;
}

std::string Checks::memory() {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::byte* block = device_.allocate(kBytes);
  std::vector<std::byte> host(4096);
  device_.to_host(host.data(), block + kBytes - host.size(), host.size());
  const bool zeroed = std::ranges::all_of(host, [](std::byte b) { return b == std::byte{0}; });
  device_.fill(block, 0x5a, kBytes / 2);
  device_.copy(block + kBytes / 2, block, kBytes / 2);
  device_.to_host(host.data(), block + kBytes - host.size(), host.size());
  const bool copied = std::ranges::all_of(host, [](std::byte b) { return b == std::byte{0x5a}; });
  at::Tensor view = tensor_over(block, 1024, at::kFloat, on_);
  view.fill_(2.5);
  const double sum = view.sum().item<double>();
  device_.release(block, kBytes);
  expect(zeroed, "an allocation is not zeroed");
  expect(copied, "fill and copy did not arrive");
  expect(sum == 2.5 * 1024, fmt::format("a tensor over raw memory sums to {}", sum));
  return "allocate, fill, copy, read back, tensor over raw memory";
}

std::string Checks::out_of_memory() {
  needs_gpu();
  try {
    std::byte* block = device_.allocate(std::size_t{1} << 46);
    device_.release(block, std::size_t{1} << 46);
  } catch (const std::exception& error) {
    at::Tensor after = at::ones({16}, at::TensorOptions().device(on_));
    expect(after.sum().item<double>() == 16, "the device does not work after it");
    return error.what();
  }
  throw std::runtime_error("64 TiB were given");
}

std::string Checks::events() {
  const double seconds = device_seconds(device_, [&] { device_.spin(1'000'000, 1); });
  expect(seconds > 0.0009 && seconds < at_most(0.01),
      fmt::format("1 ms of spinning took {:.1f} us between events", seconds * 1e6));
  return fmt::format("1000 us of spinning are {:.1f} us between events", seconds * 1e6);
}

std::string Checks::lanes() {
  needs_gpu();
  const auto begin = Clock::now();
  device_.synchronize();
  device_.enter(main_);
  device_.spin(4'000'000, 2);
  device_.enter(other_);
  device_.spin(4'000'000, 2);
  device_.synchronize();
  device_.enter(main_);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  expect(seconds < 0.007, fmt::format("2 x 4 ms on two lanes took {:.2f} ms", seconds * 1e3));
  return fmt::format("2 x 4 ms on two lanes took {:.2f} ms", seconds * 1e3);
}

std::string Checks::waits() {
  const DeviceEvent first = device_.new_event(), second = device_.new_event();
  device_.enter(main_);
  device_.spin(2'000'000, 1);
  device_.record(first);
  device_.enter(other_);
  device_.wait(first);
  device_.record(second);
  device_.synchronize(second);
  const double apart = device_.seconds_between(first, second);
  device_.enter(main_);
  device_.free_event(first);
  device_.free_event(second);
  expect(apart >= 0 && apart < at_most(0.001),
      fmt::format("the waiting lane went on {:.1f} us after the event", apart * 1e6));
  return fmt::format("a lane goes on {:.1f} us after the event it waits for", apart * 1e6);
}

std::string Checks::swapped_storage() {
  constexpr std::size_t kBytes = 4096;
  std::byte* a = device_.allocate(kBytes);
  std::byte* b = device_.allocate(kBytes);
  FlatStorage storage(kBytes / 4, at::kFloat, on_);
  const std::int64_t shape[] = {16, 16};
  const at::Tensor view = storage.view(32, shape);
  tensor_over(a, kBytes / 4, at::kFloat, on_).fill_(1.0);
  tensor_over(b, kBytes / 4, at::kFloat, on_).fill_(2.0);
  storage.attach(a);
  const double first = view.sum().item<double>();
  storage.attach(b);
  const double second = at::mm(view, view).sum().item<double>();
  storage.attach(nullptr);
  device_.release(a, kBytes);
  device_.release(b, kBytes);
  expect(first == 256 && second == 16 * 16 * 16 * 4.0, fmt::format("a view saw {} and {}", first, second));
  return "views follow the storage's pointer";
}

std::string Checks::host_cost() {
  constexpr int kRuns = 2000;
  const DeviceEvent event = device_.new_event();
  const at::Tensor small = at::zeros({16}, at::TensorOptions().device(on_));
  const auto cost = [&](auto work) {
    device_.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < kRuns; ++i) work();
    const double us = std::chrono::duration<double>(Clock::now() - begin).count() / kRuns * 1e6;
    device_.synchronize();
    return us;
  };
  const double record = cost([&] { device_.record(event); });
  const double wait = cost([&] { device_.wait(event); });
  const double enter = cost([&] { device_.enter(main_); });
  const double fill = cost([&] { small.fill_(1.0); });
  device_.free_event(event);
  return fmt::format("us per call: record {:.2f}, wait {:.2f}, enter {:.2f}, fill_ {:.2f}", record, wait, enter, fill);
}

std::string Checks::allocator() {
  const AcceleratorMemory before = device_.memory();
  device_.reset_peaks();
  { const at::Tensor t = at::empty({1 << 20}, at::TensorOptions().device(on_)); }
  const AcceleratorMemory after = device_.memory();
  if (device_.is_gpu()) expect(after.allocated_peak - before.allocated >= 4 << 20, "a peak was not counted");
  return fmt::format("allocated {} MiB, reserved {} MiB, free {} of {} MiB on the device", after.allocated >> 20,
      after.reserved >> 20, after.free >> 20, after.total >> 20);
}

// Work on two lanes, recorded with the events around it: nothing is done until it is replayed, and
// every replay does it again.
std::string Checks::graph_capture() {
  constexpr int kReplays = 5;
  constexpr std::int64_t kNs = 200'000;
  const DeviceEvent fork = device_.new_event(), begin = device_.new_event(), end = device_.new_event();
  const at::Tensor values = at::zeros({1024}, at::TensorOptions().device(on_));
  device_.synchronize();
  const DeviceGraph graph = device_.capture([&] {
    device_.record(fork);
    device_.enter(other_);
    device_.wait(fork);
    device_.record(begin);
    values.add_(1.0);
    device_.spin(kNs, 1);
    device_.record(end);
    device_.enter(main_);
    device_.wait(end);
  });
  device_.synchronize();
  const double recorded = values.sum().item<double>();
  double host = 0;
  for (int i = 0; i < kReplays; ++i) {
    const auto before = Clock::now();
    device_.replay(graph);
    host = std::chrono::duration<double>(Clock::now() - before).count();
  }
  device_.synchronize();
  const double sum = values.sum().item<double>();
  const double seconds = device_.seconds_between(begin, end);
  device_.free_graph(graph);
  for (DeviceEvent event : {fork, begin, end}) device_.free_event(event);
  expect(recorded == 0, "what was recorded was done at once");
  expect(sum == 1024.0 * kReplays, fmt::format("{} replays added up to {}", kReplays, sum));
  expect(seconds > 0.9e-9 * kNs, fmt::format("200 us of spinning took {:.1f} us", seconds * 1e6));
  return fmt::format(
      "{} replays of two lanes, 200 us of spinning between their events {:.1f} us, {:.1f} us of host for the last",
      kReplays, seconds * 1e6, host * 1e6);
}

std::string Checks::clocks() {
  const AcceleratorClocks c = device_.clocks();
  if (c.sm_mhz == 0) throw CheckSkipped("NVML tells nothing");
  return fmt::format("{} MHz, memory {} MHz, {} C, {:.0f} W, throttle mask {:#x}", c.sm_mhz, c.memory_mhz,
      c.temperature_c, c.watts, c.throttle_mask);
}

}
