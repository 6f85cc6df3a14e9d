// Puts the work of one step of a traced job together, piece by piece in the order of issue.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "interop/traces/fsdp2_steps.h"
#include "interop/traces/trace_items.h"

namespace foreshard {

class JobStepWriter {
 public:
  bool is_empty() const { return step_.runs.empty() && step_.outside.empty(); }
  void next_microbatch() { ++microbatch_; }
  // Pieces of one instance make one run.
  void add(EventKind kind, int unit, const WorkItem& item, std::int64_t instance);
  // Pieces in a row of one kind on one unit make one run.
  void add_compute(EventKind kind, int unit, const WorkItem& item);
  void add_outside(const char* where, const WorkItem& item);
  // What was taken for the loss lay between two units of forward.
  void drop_loss();
  // The step, without number, begin and end; the next one begins.
  JobStep take();

 private:
  void add_outside(const std::string& what, int pieces, Time time);

  JobStep step_;
  int microbatch_ = 0;
  std::map<std::pair<EventKind, std::int64_t>, std::size_t> instances_;  // into step_.runs
  std::optional<std::size_t> computing_;                                 // into step_.runs
};

}
