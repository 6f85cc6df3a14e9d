// What the ranks tell each other between steps: their micro-batches' losses, what is not finite any more, and whether
// somebody wants to stop. It travels in the background, one step behind, so that no step waits for it.
#pragma once

#include <memory>
#include <vector>

#include "exec/comm/communicator.h"
#include "exec/comm/world.h"
#include "exec/engine/stream.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

struct ControlMessage {
  std::vector<double> losses;     // of the rank's micro-batches
  EventId not_finite = kNoEvent;  // the step's first row whose result is not
  bool stop = false;
};

class Control {
 public:
  // `losses`: micro-batches per rank and step.
  Control(World& world, std::size_t losses);
  ~Control();

  void post(const ControlMessage& message);
  // Everyone's messages of the oldest post that was not taken, by rank. Throws what the exchange threw.
  std::vector<ControlMessage> take();
  std::size_t posted() const { return pending_.size(); }  // and not taken

 private:
  struct Exchange;
  std::size_t losses_;
  GroupCommunicator communicator_;
  std::vector<std::shared_ptr<Exchange>> pending_;
  std::unique_ptr<StreamThread> thread_;
};

}
