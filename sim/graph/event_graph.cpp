#include "sim/graph/event_graph.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {

void EventGraph::clear() {
  rows.clear();
  details.clear();
  waits.clear();
  works.clear();
  kernels.clear();
  communicators.clear();
  exchanges.clear();
  pipeline.clear();
  units.clear();
  final_host_wait = kNoEvent;
  host = {};
  first_own_buffer = 0;
  buffers.clear();
  parts.clear();
  persistent.clear();
  executions.clear();
  programs.clear();
  actions.clear();
}

const LayerExecution* EventGraph::execution_of(std::int32_t buffer) const {
  if (buffer >= first_own_buffer) return nullptr;
  auto it = std::ranges::upper_bound(executions, buffer, {}, &LayerExecution::first_buffer);
  return &*std::prev(it);
}

Buffer EventGraph::buffer(std::int32_t id) const {
  FORESHARD_CHECK(id >= 0 && id < buffer_count(), "buffer id out of range");
  if (id >= first_own_buffer) return buffers[at(id - first_own_buffer)];
  const LayerExecution& e = *execution_of(id);
  const Slot& slot = program(e).slots[at(id - e.first_buffer)];
  return {slot.category, Stream::kCompute, e.unit, slot.bytes, -1, false};
}

std::string EventGraph::buffer_name(std::int32_t id) const {
  const LayerExecution* e = execution_of(id);
  if (e == nullptr) return to_string(buffer(id).category);
  return program(*e).slots[at(id - e->first_buffer)].name;
}

std::string EventGraph::fingerprint() const {
  Fingerprint hash;
  hash.add(std::int64_t{kSchema});
  for (const Communicator& c : communicators) {
    hash.add(c.name);
    hash.add(c.group.size);
    hash.add(c.group.stride);
    if (c.group.placement != RankPlacement::kListed) hash.add(std::string_view(to_string(c.group.placement)));
    hash.add(std::int64_t{c.per_unit});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const RowDetail& detail = details[i];
    hash.add(static_cast<std::int64_t>(row.kind) << 24 | static_cast<std::int64_t>(row.stream) << 16 |
             static_cast<std::int64_t>(row.communicator) << 8 | row.wait_count);
    hash.add(std::int64_t{row.host_wait} << 32 ^ std::int64_t{row.work});
    hash.add(std::int64_t{detail.unit} << 32 ^ std::int64_t{detail.layer} << 16 ^ detail.microbatch);
    if (detail.buffer >= 0) hash.add(std::int64_t{detail.buffer});
    // What the engine reads besides; other runtimes have nothing here.
    if (!host.python) hash.add(std::int64_t{detail.other} << 8 ^ static_cast<std::int64_t>(detail.sum));
    for (EventId w : waits_of(static_cast<EventId>(i))) hash.add(std::int64_t{w});
    for (std::uint32_t a = detail.actions_begin; a < detail.actions_end; ++a) {
      hash.add(static_cast<std::int64_t>(actions[a].segments - 1) << 56 |
               static_cast<std::int64_t>(actions[a].kind) << 48 | static_cast<std::int64_t>(actions[a].segment) << 32 |
               actions[a].target);
    }
  }
  hash.add(std::int64_t{final_host_wait});
  for (const Exchange& exchange : exchanges) {
    hash.add(
        std::int64_t{exchange.row} << 32 ^ std::int64_t{exchange.peer} << 2 ^ static_cast<std::int64_t>(exchange.side));
  }
  for (const auto& rank : pipeline)
    if (rank) hash.add(rank->fingerprint());
  for (std::int32_t b : persistent) hash.add(std::int64_t{b});
  for (const Work& work : works) {
    hash.add(static_cast<std::int64_t>(work.caller) << 52 | std::int64_t{work.to_neighbour} << 48 |
             static_cast<std::int64_t>(work.kind) << 32 | work.hooks << 16 | work.launches);
    hash.add(work.bytes.count());
    if (work.copies > 1) hash.add(std::int64_t{work.copies});
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
      const Kernel& kernel = kernels[k];
      hash.add(static_cast<std::int64_t>(kernel.kind) << 16 | static_cast<std::int64_t>(kernel.memory_class) << 8 |
               static_cast<std::int64_t>(kernel.pass));
      for (std::int64_t v : {kernel.m, kernel.n, kernel.k, kernel.heads, kernel.bytes.count()}) hash.add(v);
      if (!host.python) hash.add(static_cast<std::int64_t>(kernel.function));
    }
  }
  for (const Buffer& b : buffers) {
    hash.add(static_cast<std::int64_t>(b.category) << 8 | static_cast<std::int64_t>(b.pool));
    hash.add(b.bytes.count());
    hash.add(std::int64_t{b.parts} << 1 ^ std::int64_t{b.on_host});
    if (!host.python) hash.add(static_cast<std::int64_t>(b.role));
  }
  for (const std::vector<Bytes>& list : parts)
    for (Bytes bytes : list) hash.add(bytes.count());
  for (const LayerExecution& e : executions) {
    hash.add(std::int64_t{e.layer} << 32 ^ std::int64_t{e.microbatch});
    hash.add(std::int64_t{e.first_buffer});
  }
  for (const auto& p : programs) {
    for (const Slot& slot : p->slots) {
      hash.add(static_cast<std::int64_t>(slot.category));
      hash.add(slot.bytes.count());
    }
    for (const LayerPhaseProgram* phase : {&p->forward, &p->recompute, &p->backward}) {
      for (std::int32_t action : phase->actions) hash.add(std::int64_t{action});
      if (host.python) continue;
      for (const LayerStep& step : phase->steps) {
        hash.add(static_cast<std::int64_t>(step.kind) << 48 ^ std::int64_t{step.operation} << 32 ^ step.actions_end);
        for (const std::int32_t slot : step.inputs) hash.add(std::int64_t{slot});
        for (const std::int32_t slot : step.outputs) hash.add(std::int64_t{slot});
      }
    }
  }
  return hash.hex();
}

}
