// Rows in words: "all_gather layers.3 (backward)", "backward layers.1", "optimizer".
#pragma once

#include <string>
#include <vector>

#include "reports/view/attribution.h"

namespace foreshard {

class EventNames {
 public:
  // `model` names the layers; where it has none (a graph made by hand), units do.
  EventNames(const EventGraph& graph, const ModelSpec& model);
  std::string of(EventId event) const;  // "between steps" for kNoEvent
  Phase phase(EventId event) const { return phases_[at(event)]; }
  // The unit's or layer's name, "" for rows of the whole step.
  std::string place(EventId event) const;

 private:
  const EventGraph& graph_;
  const ModelSpec& model_;
  std::vector<Phase> phases_;
  bool several_microbatches_ = false;
};

// "shard"; communicators that a unit has to itself are told apart by its name: "post_forward/layers.3". "" for none.
std::string communicator_name(const EventGraph& graph, EventId event);

}
