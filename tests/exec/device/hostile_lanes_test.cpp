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
#include <string>
#include <vector>

#include "tests/exec/device/hostile_accelerator.h"
#include "tests/exec/device/planted_faults.h"

namespace foreshard {
namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::unique_ptr<Accelerator> hostile() { return hostile_accelerator(std::make_shared<HostileGpu>(0)); }

TEST(HostileLanes, EarlyFreesAreFound) {
  const std::vector<EarlyFree> planted = early_frees();
  std::size_t found = 0;
  for (const EarlyFree& f : planted) {
    EXPECT_EQ(refusal([&] { f.run(Lanes(hostile()), true); }), "") << f.name;
    const std::string problem = refusal([&] { f.run(Lanes(hostile()), false); });
    EXPECT_NE(problem.find("freed"), std::string::npos) << f.name << ": " << problem;
    found += problem.empty() ? 0 : 1;
  }
  std::cout << "early frees: " << found << " of " << planted.size() << " found\n";
}

TEST(HostileLanes, WhatACaptureForbidsIsFound) {
  const std::vector<ForbiddenCall> planted = forbidden_calls();
  std::size_t found = 0;
  for (const ForbiddenCall& c : planted) {
    const Lanes l(hostile());
    const at::Tensor x = l.tensor();
    const std::string problem = refusal([&] { capture_with(l, x, c); });
    EXPECT_NE(problem.find("captur"), std::string::npos) << c.name << ": " << problem;
    found += problem.empty() ? 0 : 1;
    // What was captured is not done, and the lanes work as before.
    x.add_(1);
    EXPECT_EQ(x.sum().item<float>(), 1024) << c.name;
  }
  std::cout << "illegal calls in a capture: " << found << " of " << planted.size() << " found\n";
}

// A host cannot read what is the device's; here the system says so, as it does not end a program
// for a pointer that it is given.
TEST(HostileLanes, TheHostReadsNoDeviceMemory) {
  const Lanes l(hostile());
  const at::Tensor x = l.tensor();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  EXPECT_EQ(::write(::fileno(file.get()), x.const_data_ptr(), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  float value = -1;
  l.device->to_host(&value, x.const_data_ptr(), sizeof value);
  EXPECT_EQ(value, 0);
}

}
}
