// All ranks of a run: how they find each other, make groups, and learn of each other's failures.
//
// Processes meet at a c10d TCPStore and talk through Gloo's send and recv; threads of one process
// meet in memory. Everything above (collectives, engine, checkpoints) sees no difference.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/comm/transport.h"

namespace foreshard {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool one_process() const { return false; }  // ranks are threads of this process
  // One FIFO over `ranks` (of the world, ascending, this one among them). Every member calls it with the same name,
  // members of several groups in the same order. Throws PeerFailure or Error(kLaunchFailure).
  virtual std::unique_ptr<Transport> connect(const std::string& name, const std::vector<int>& ranks) = 0;
  // Every rank's text, by rank. All ranks call it equally often with the same topics in the same
  // order; also serves as a barrier. For small texts, outside the step.
  virtual std::vector<std::string> gather(const std::string& topic, const std::string& text) = 0;

  // The first announcement stays; later ones are ignored. Never throws, never waits long. A rank
  // that fails announces it before it destroys its transports: the others learn of those at once.
  virtual void announce_failure(const std::string& text) = 0;
  // Waits up to `patience` for somebody's announcement.
  virtual std::optional<std::string> announced_failure(std::chrono::milliseconds patience) = 0;
};

// What a rank that lost another one says: what was announced first, which is nearer to the cause than what this rank
// saw; where nothing was within half a second, what it saw, which it then announces.
std::string explain(World& world, const PeerFailure& failure);

// The ranks of `size` threads of this process; give each thread one.
std::vector<std::unique_ptr<World>> thread_worlds(int size);

// Rank 0 of `size` ranks, alone: its peers are echoes. What it receives from a peer is what it sent
// to that peer, and what others gather is its own text. So a collective moves its bytes, and a sum
// over ranks is a sum over this rank's own pieces.
std::unique_ptr<World> paced_world(int size);

}
