// Which rows of the running step are done, and the order in which collectives of one communicator go.
//
// Threads wait for rows by id. A failure anywhere ends every wait: the first one is kept, and whoever waits gets it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "sim/graph/event_graph.h"

namespace foreshard {

// A failure with the row in which it happened.
struct EventFailure {
  EventId event = kNoEvent;
  std::exception_ptr cause;
};

// Thrown to those that wait when another thread's row failed.
class StepStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the step was stopped"; }
};

class Events {
 public:
  Events(std::size_t rows, std::size_t communicators);

  void begin_step();  // nothing is done, every FIFO is at its first ticket
  void finish(EventId event);
  void wait(EventId event);  // throws StepStopped

  // A collective's place in its communicator's FIFO, taken when the row is issued.
  std::int64_t take_ticket(std::uint8_t communicator);
  void wait_turn(std::uint8_t communicator, std::int64_t ticket);  // throws StepStopped
  void end_turn(std::uint8_t communicator);

  void fail(EventId event, std::exception_ptr cause);
  bool failed() const;
  EventFailure failure() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::vector<std::int32_t> waiters_;  // per row: nobody is woken for a row that nobody awaits
  std::int32_t queuing_ = 0;           // collectives that wait for their turn
  std::vector<std::int64_t> next_ticket_, serving_;
  EventFailure failure_;
};

}
