// What a GPU does not forgive, planted on two lanes of the hostile stand-in: memory that is freed
// while it is used, calls that a capture forbids, a host that reads the device's memory.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "exec/device/hostile_accelerator.h"

namespace foreshard {
namespace {

// Two lanes that use one device, as a step's do.
struct Lanes {
  explicit Lanes(std::uint64_t seed = 0)
      : device(hostile_accelerator(std::make_shared<HostileGpu>(seed))),
        a(device->open_lane(false)),
        b(device->open_lane(false)),
        event(device->new_event()) {
    device->enter(a);
  }
  ~Lanes() { device->free_event(event); }

  // Lane `to` waits for what lane `from` has; it is the current one then.
  void hand_over(Lane from, Lane to) const {
    device->enter(from);
    device->record(event);
    device->enter(to);
    device->wait(event);
  }
  at::Tensor tensor(std::int64_t count = 1024) const {
    return at::zeros({count}, at::TensorOptions().device(device->device()));
  }

  std::unique_ptr<Accelerator> device;
  Lane a, b;
  DeviceEvent event;
};

std::string refusal(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Each frees what another lane still uses; with `waits` it does as it should.
TEST(HostileFaults, EarlyFreesAreFound) {
  using Scenario = void (*)(const Lanes&, bool waits);
  const std::pair<const char*, Scenario> scenarios[] = {
      {"an activation that another lane reads",
       [](const Lanes& l, bool waits) {
         at::Tensor kept = l.tensor();
         {
           const at::Tensor x = l.tensor();
           l.hand_over(l.a, l.b);
           kept = x.mul(2);
         }
         waits ? l.hand_over(l.b, l.a) : l.device->enter(l.a);
         l.tensor();
       }},
      {"the sum of a reduce-scatter that another lane accumulates",
       [](const Lanes& l, bool waits) {
         const at::Tensor whole = l.tensor(), gradient = l.tensor(128);
         {
           const at::Tensor sum = at::empty({128}, gradient.options());
           l.device->paced({.kind = PacedCollective::Kind::kReduceScatter,
                            .whole = whole.mutable_data_ptr(),
                            .shard = sum.mutable_data_ptr(),
                            .shard_elements = 128,
                            .dtype = DType::kFp32,
                            .ranks = 8});
           l.hand_over(l.a, l.b);
           gradient.add_(sum);
         }
         waits ? l.hand_over(l.b, l.a) : l.device->enter(l.a);
         l.tensor();
       }},
      {"a tensor that is gone when its address is used",
       [](const Lanes& l, bool waits) {
         const at::Tensor to = l.tensor();
         at::Tensor from = l.tensor();
         const void* const address = from.const_data_ptr();
         if (!waits) from = at::Tensor();
         l.device->copy(to.mutable_data_ptr(), address, 4096);
       }},
      {"an arena that is released before what is given to it",
       [](const Lanes& l, bool waits) {
         std::byte* const arena = l.device->allocate(4096);
         if (!waits) l.device->release(arena, 4096);
         l.device->fill(arena, 0, 4096);
         if (waits) l.device->release(arena, 4096);
       }},
      {"a tensor of a recorded step that another lane reads",
       [](const Lanes& l, bool waits) {
         const at::Tensor kept = l.tensor();
         const DeviceGraph graph = l.device->capture([&] {
           {
             const at::Tensor x = l.tensor();
             l.hand_over(l.a, l.b);
             kept.add_(x);
           }
           if (waits) l.hand_over(l.b, l.a);
           l.device->enter(l.a);
           l.tensor();
           l.hand_over(l.b, l.a);
         });
         const std::string problem = refusal([&] { l.device->replay(graph); });
         l.device->free_graph(graph);
         if (!problem.empty()) throw std::runtime_error(problem);
       }},
  };
  int found = 0;
  for (const auto& [name, scenario] : scenarios) {
    EXPECT_EQ(refusal([&] { scenario(Lanes(), true); }), "") << name;
    const std::string problem = refusal([&] { scenario(Lanes(), false); });
    EXPECT_NE(problem.find("freed"), std::string::npos) << name << ": " << problem;
    found += problem.empty() ? 0 : 1;
  }
  std::cout << "early frees: " << found << " of " << std::size(scenarios) << " found\n";
}

TEST(HostileFaults, WhatACaptureForbidsIsFound) {
  const std::pair<const char*, std::function<void(const Lanes&, const at::Tensor&)>> calls[] = {
      {"wait for the device", [](const Lanes& l, auto&) { l.device->synchronize(); }},
      {"wait for an event", [](const Lanes& l, auto&) { l.device->synchronize(l.event); }},
      {"ask for an event", [](const Lanes& l, auto&) { l.device->done(l.event); }},
      {"read a number", [](const Lanes&, auto& x) { x.sum().template item<float>(); }},
      {"read memory",
       [](const Lanes& l, auto& x) {
         float value = 0;
         l.device->to_host(&value, x.const_data_ptr(), sizeof value);
       }},
      {"copy from the host", [](const Lanes&, auto& x) { x.copy_(at::ones({1024})); }},
      {"allocate", [](const Lanes& l, auto&) { l.device->allocate(4096); }},
      {"pin", [](const Lanes& l, auto&) { l.device->allocate_pinned(4096); }},
      {"capture", [](const Lanes& l, auto&) { l.device->capture([] {}); }},
      {"leave a lane behind",
       [](const Lanes& l, auto& x) {
         l.hand_over(l.a, l.b);
         x.add_(1);
       }},
  };
  int found = 0;
  for (const auto& [name, call] : calls) {
    const Lanes l;
    const at::Tensor x = l.tensor();
    l.device->record(l.event);
    const std::string problem = refusal([&] {
      l.device->free_graph(l.device->capture([&] {
        x.add_(1);
        call(l, x);
      }));
    });
    EXPECT_NE(problem.find("captur"), std::string::npos) << name << ": " << problem;
    found += problem.empty() ? 0 : 1;
    // What was captured is not done, and the lanes work as before.
    x.add_(1);
    EXPECT_EQ(x.sum().item<float>(), 1024) << name;
  }
  std::cout << "illegal calls in a capture: " << found << " of " << std::size(calls) << " found\n";
}

// A host cannot read what is the device's; here the system says so, as it does not end a program
// for a pointer that it is given.
TEST(HostileFaults, TheHostReadsNoDeviceMemory) {
  const Lanes l;
  const at::Tensor x = l.tensor();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  EXPECT_EQ(::write(::fileno(file.get()), x.const_data_ptr(), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  float value = -1;
  l.device->to_host(&value, x.const_data_ptr(), sizeof value);
  EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace foreshard
