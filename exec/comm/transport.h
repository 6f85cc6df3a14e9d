// Point-to-point messages between the ranks of one group: what every collective is made of.
//
// A Transport belongs to one group ("shard", "replicate", ...) and is used by one thread at a time.
// Peers are indices into the group, never the rank itself. Messages between two ranks arrive in the
// order of the calls; both sides name the same sizes; a message of no bytes is not sent at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "sim/base/error.h"

namespace foreshard {

struct Outgoing {
  int peer = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct Incoming {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// A peer closed its connection, did not answer in time, or the group was told to stop.
class PeerFailure : public Error {
 public:
  // `rank` counts in the whole world; -1: not known (the group was told to stop).
  PeerFailure(int rank, const std::string& what) : Error(ExitCode::kLaunchFailure, what), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int index() const = 0;  // of this rank in the group
  virtual int size() const = 0;
  // Posts every receive, then every send, and returns when all are complete: the buffers may be
  // used again. Throws PeerFailure; no later exchange succeeds then.
  virtual void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) = 0;
  // From any thread: a waiting exchange() and all later ones throw PeerFailure.
  virtual void abort() = 0;
};

}
