// What the files of HostileGpu share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/exec/device/hostile_gpu.h"

namespace foreshard {

struct HostileGpu::Event {
  std::shared_ptr<Mark> mark;
};

struct HostileGpu::Block {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  HostileLane lane = 0;
  bool in_graph = false;  // stays there until the graph is gone
  bool returned = false;
};

struct HostileCall {
  enum class Kind : std::uint8_t { kWork, kRecord, kWait } kind = Kind::kWork;
  HostileLane lane = 0;  // of the graph
  std::string name;
  std::vector<Extent> extents;
  std::function<void()> work;
  HostileGpu::Event* event = nullptr;
};

struct HostileGpu::Graph {
  HostileLane first = 0;  // its lane that begins and ends it
  std::vector<HostileCall> calls;
  std::vector<Block*> blocks;
};

struct HostileGpu::Capture {
  std::thread::id thread;
  HostileLane origin = 0;
  std::map<HostileLane, HostileLane> lanes;   // those that have joined: the graph's
  std::map<HostileLane, VectorClock> clocks;  // within the capture
  std::map<Event*, VectorClock> events;       // recorded in it
  std::map<HostileLane, std::vector<Block*>> given_back;
  std::unique_ptr<Graph> graph;
};

}
