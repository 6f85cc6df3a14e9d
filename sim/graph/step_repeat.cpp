// Rows of units that repeat.
//
// A place is what the builder holds between two units, and how much it has written. Where three
// places in a row differ by constants, and what was written between them too, the units in between
// are one pattern, whose ids advance by constants from unit to unit: so those that follow are
// written by adding to it. wakes are the exception: later rows set them, here as in push().
#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/graph/step_builder.h"

namespace foreshard {

bool StepBuilder::is_like_next(std::int32_t unit) const {
  if (repeats_layers_ || unit == root_ || unit + 1 >= unit_count()) return false;
  const auto at = static_cast<std::size_t>(unit);
  const std::span<const Module> modules = modules_of(unit);
  const std::span<const Module> next = modules_of(unit + 1);
  const auto count = static_cast<std::int32_t>(modules.size());
  if (modules.empty() || next.size() != modules.size() || shape_of_unit_[at] != shape_of_unit_[at + 1] ||
      this->unit(unit).reshard != this->unit(unit + 1).reshard)
    return false;
  const std::int32_t first = modules.front().layer;
  for (std::int32_t k = 0; k < count; ++k) {
    const auto i = static_cast<std::size_t>(first) + static_cast<std::size_t>(k);
    const auto other = i + modules.size();
    const auto n = static_cast<std::size_t>(k);
    const LayerSpec& spec = spec_of(first + k);
    if (modules[n] != Module{first + k, 0} || next[n] != Module{first + count + k, 0} ||
        spec.role != LayerRole::kBlock || spec.joins >= 0 || first_nested_[i] >= 0 || first_nested_[other] >= 0 ||
        model_.order[i].kind != model_.order[other].kind || programs_of_layer_[i] != programs_of_layer_[other] ||
        recompute_of_layer_[i] != recompute_of_layer_[other])
      return false;
  }
  return true;
}

StepBuilder::Place StepBuilder::place() const {
  Place p;
  p.rows = graph_.rows.size();
  p.waits = graph_.waits.size();
  p.actions = graph_.actions.size();
  p.buffers = graph_.buffers.size();
  p.works = graph_.works.size();
  p.hooks = pending_hooks_;
  p.ids.fill(kNoEvent);
  std::size_t n = 0;
  for (const EventId tail : tails_) p.ids[n++] = tail;
  for (std::size_t s = 0; s < kStreams; ++s) {
    for (std::size_t from = 0; from < kStreams; ++from, ++n)
      if ((pending_sources_[s] >> from & 1U) != 0) p.ids[n] = pending_waits_[s][from];
  }
  for (const EventId id : {host_reads_, unawaited_compute_, pending_host_wait_}) p.ids[n++] = id;
  const std::size_t communicators = std::min(graph_.communicators.size(), kPlaceCommunicators);
  for (std::size_t c = 0; c < communicators; ++c) p.ids[n++] = communicator_tails_[c];
  return p;
}

bool StepBuilder::advances(
    std::span<const std::int32_t> a, std::span<const std::int32_t> b, std::span<const std::int32_t> c) {
  if (a.size() != b.size() || b.size() != c.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (c[i] - b[i] != b[i] - a[i]) return false;
    // Nothing is nothing everywhere.
    if ((a[i] < 0 || b[i] < 0 || c[i] < 0) && (a[i] != b[i] || b[i] != c[i])) return false;
  }
  return true;
}

bool StepBuilder::is_pattern(const Place& a, const Place& b, const Place& c) const {
  if (graph_.communicators.size() > kPlaceCommunicators || b.works != c.works || c.rows - b.rows != b.rows - a.rows ||
      c.waits - b.waits != b.waits - a.waits || c.actions - b.actions != b.actions - a.actions ||
      c.buffers - b.buffers != b.buffers - a.buffers || a.hooks != b.hooks || b.hooks != c.hooks || c.rows == b.rows ||
      a.rows == 0 || !advances(a.ids, b.ids, c.ids))
    return false;
  const auto both = [](std::int32_t x, std::int32_t y) { return (x < 0) == (y < 0); };
  const std::size_t rows = c.rows - b.rows;
  for (std::size_t i = 0; i < rows; ++i) {
    const Row& x = graph_.rows[a.rows + i];
    const Row& y = graph_.rows[b.rows + i];
    const RowDetail& first = graph_.details[a.rows + i];
    const RowDetail& second = graph_.details[b.rows + i];
    if (x.kind != y.kind || x.stream != y.stream || x.communicator != y.communicator || x.wait_count != y.wait_count ||
        x.waits_begin - a.waits != y.waits_begin - b.waits || x.work != y.work || !both(x.host_wait, y.host_wait) ||
        first.microbatch != second.microbatch || !both(first.unit, second.unit) || !both(first.layer, second.layer) ||
        first.buffer != second.buffer || first.other != second.other || first.sum != second.sum ||
        first.actions_begin - a.actions != second.actions_begin - b.actions)
      return false;
  }
  for (std::size_t i = 0; i < c.actions - b.actions; ++i) {
    const MemoryAction& x = graph_.actions[a.actions + i];
    const MemoryAction& y = graph_.actions[b.actions + i];
    if (x.kind != y.kind || x.segment != y.segment || x.segments != y.segments) return false;
  }
  for (std::size_t i = 0; i < c.buffers - b.buffers; ++i) {
    const Buffer& x = graph_.buffers[a.buffers + i];
    const Buffer& y = graph_.buffers[b.buffers + i];
    if (x.category != y.category || x.pool != y.pool || !both(x.unit, y.unit) || x.bytes != y.bytes ||
        x.parts != y.parts || x.on_host != y.on_host)
      return false;
  }
  return true;
}

void StepBuilder::write_again(const Place& b, const Place& c, std::int32_t times) {
  const auto added = static_cast<std::size_t>(times);
  const std::size_t rows = c.rows - b.rows, waits = c.waits - b.waits;
  const std::size_t actions = c.actions - b.actions, buffers = c.buffers - b.buffers;
  // Each number from those of the two units before.
  const auto next = [](const auto* at, std::size_t unit) { return *(at - unit) + (*(at - unit) - *(at - 2 * unit)); };
  graph_.waits.resize(c.waits + waits * added);
  for (EventId *wait = graph_.waits.data() + c.waits, *end = wait + waits * added; wait < end; ++wait)
    *wait = next(wait, waits);
  graph_.rows.resize(c.rows + rows * added);
  graph_.details.resize(c.rows + rows * added);
  Row* const all = graph_.rows.data();
  const EventId* const awaited = graph_.waits.data();
  for (std::size_t i = c.rows; i < graph_.rows.size(); ++i) {
    Row& row = all[i];
    row = all[i - rows];
    const auto bit = static_cast<StreamSet>(1U << static_cast<unsigned>(row.stream));
    row.wakes = bit;
    row.host_wait += row.host_wait - all[i - 2 * rows].host_wait;
    row.waits_begin += static_cast<std::uint32_t>(waits);
    for (std::uint32_t w = row.waits_begin; w < row.waits_begin + row.wait_count; ++w) all[awaited[w]].wakes |= bit;
    if (row.communicator != kNoCommunicator) {
      EventId& queue = communicator_tails_[row.communicator];
      if (queue != kNoEvent) all[queue].wakes |= bit;
      queue = static_cast<EventId>(i);
    }
    RowDetail* const detail = graph_.details.data() + i;
    const RowDetail& before = *(detail - 2 * rows);
    *detail = *(detail - rows);
    detail->unit += detail->unit - before.unit;
    detail->layer += detail->layer - before.layer;
    detail->actions_begin += static_cast<std::uint32_t>(actions);
    detail->actions_end = detail->actions_begin;
  }
  graph_.actions.reserve(c.actions + actions * added);
  std::vector<MemoryAction> unit(graph_.actions.end() - static_cast<std::ptrdiff_t>(actions), graph_.actions.end());
  std::vector<std::int32_t> strides(actions);
  for (std::size_t i = 0; i < actions; ++i)
    strides[i] = unit[i].target - graph_.actions[b.actions - actions + i].target;
  for (std::size_t k = 0; k < added; ++k) {
    for (std::size_t i = 0; i < actions; ++i) unit[i].target += strides[i];
    append(graph_.actions, unit);
  }
  graph_.buffers.resize(c.buffers + buffers * added);
  Buffer* buffer = graph_.buffers.data() + c.buffers;
  for (std::size_t i = 0; i < buffers * added; ++i, ++buffer) {
    *buffer = *(buffer - buffers);
    buffer->unit += buffer->unit - (buffer - 2 * buffers)->unit;
  }
  // What is held, in the order of place().
  std::size_t n = 0;
  const auto advance = [&](EventId& id) {
    id += times * (c.ids[n] - b.ids[n]);
    ++n;
  };
  for (EventId& tail : tails_) advance(tail);
  for (auto& waiting : pending_waits_)
    for (EventId& event : waiting) advance(event);
  for (EventId* id : {&host_reads_, &unawaited_compute_, &pending_host_wait_}) advance(*id);
}

}
