// Ranks that are processes: they meet at the store that their launcher names, and talk through
// shared memory (all ranks of a group on one host) or Gloo over TCP.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "exec/comm/launched.h"
#include "exec/comm/world.h"

namespace foreshard {

enum class TransportChoice { kAutomatic, kShared, kGloo };

struct ConnectOptions {
  // From a rank's coming to the rendezvous until all are there; a group that is not connected.
  std::chrono::milliseconds rendezvous{60'000};
  // A peer that neither takes nor gives a byte for so long has failed. Not shorter than what one
  // rank may do alone (write a checkpoint) while the others wait for it.
  std::chrono::milliseconds timeout{120'000};
  // Of this host, for Gloo: an address or the name of an interface. Empty: the loopback when all
  // ranks are on one machine, else the address from which the master is reached.
  std::string address;
  // kShared is an error where it cannot be had.
  TransportChoice transport = TransportChoice::kAutomatic;
};

// The defaults, changed by FORESHARD_TRANSPORT (auto, shm, gloo), FORESHARD_ADDRESS and
// FORESHARD_TIMEOUT_S (whole seconds), which is for the rendezvous, too, but for the 5 s that
// processes started together may be apart. Throws Error(kLaunchFailure), naming the variable.
ConnectOptions connect_options(const Environment& environment);

// Blocks until all ranks are there. Throws Error(kLaunchFailure) when they are not within `rendezvous`, when they
// disagree about the world's size, when two claim one rank, when the port is taken by another program or another job.
// One rank alone uses no network. The store listens on the loopback only, when all ranks are on one machine.
std::unique_ptr<World> connect_processes(const Launch& launch, const ConnectOptions& options);

}
