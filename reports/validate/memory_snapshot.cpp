// Keys as torch/csrc/cuda/Module.cpp makes them (torch 2.11). Times are when the host issues the
// row, in microseconds from the first issue of the step; a row's actions share one.
#include "reports/validate/memory_snapshot.h"

#include <algorithm>

#include "reports/validate/pickle.h"
#include "reports/view/event_names.h"
#include "sim/memory/reserved.h"
#include "sim/memory/reserved_forecast.h"

namespace foreshard {
namespace {

class SnapshotWriter {
 public:
  SnapshotWriter(const Forecast& forecast, const TracedStep& step)
      : graph_(forecast.graph),
        timeline_(forecast.timeline),
        names_(forecast.graph, forecast.model),
        step_(step) {
    for (const Span& span : timeline_.spans) first_issue_ = std::min(first_issue_, span.issue);
  }

  std::string write() {
    out_.begin_dict();
    out_.key("segments");
    out_.begin_list();
    for (const SegmentState& segment : step_.segments) write_segment(segment);
    out_.end_list();
    out_.key("device_traces");
    out_.begin_list();
    out_.begin_list();
    for (const TracedAction& action : step_.actions) write_action(action);
    out_.end_list();
    out_.end_list();
    out_.end_dict();
    return out_.finish();
  }

 private:
  void write_segment(const SegmentState& segment) {
    std::int64_t allocated = 0, active = 0, requested = 0;
    for (const BlockState& block : segment.blocks) {
      if (block.allocated) allocated += block.size;
      if (!block.active) continue;
      active += block.size;
      requested += block.requested;
    }
    out_.begin_dict();
    out_.entry("device", 0);
    out_.entry("address", segment.address);
    out_.entry("total_size", segment.size);
    out_.entry("allocated_size", allocated);
    out_.entry("active_size", active);
    out_.entry("requested_size", requested);
    out_.entry("stream", segment.stream);
    out_.entry("segment_type", segment.is_small ? "small" : "large");
    out_.key("segment_pool_id");
    out_.pair(0, 0);
    out_.key("is_expandable");
    out_.boolean(segment.is_expandable);
    write_no_frames();
    out_.key("blocks");
    out_.begin_list();
    for (const BlockState& block : segment.blocks) {
      out_.begin_dict();
      out_.entry("address", block.address);
      out_.entry("size", block.size);
      out_.entry("requested_size", block.active ? block.requested : 0);
      out_.entry("state", block.allocated ? "active_allocated"
                          : block.active  ? "active_awaiting_free"
                                          : "inactive");
      const auto id = at(block.id);
      if (block.allocated && id < step_.buffer_of_block.size()) {
        write_frames(kNoEvent, step_.buffer_of_block[id]);
      } else {
        write_no_frames();
      }
      out_.end_dict();
    }
    out_.end_list();
    out_.end_dict();
  }

  void write_action(const TracedAction& action) {
    const AllocatorTraceEntry& entry = action.entry;
    const bool is_oom = entry.action == AllocatorTraceEntry::Action::kOom;
    out_.begin_dict();
    out_.entry("action", to_string(entry.action));
    out_.entry(is_oom ? "device_free" : "addr", entry.address);
    out_.entry("size", entry.size);
    out_.entry("stream", entry.stream);
    out_.entry("time_us", time_of(action.row));
    write_frames(action.row, action.buffer);
    out_.end_dict();
  }

  std::int64_t time_of(EventId row) const {
    if (row == kNoEvent) return 0;
    const Time issue = timeline_.spans[at(row)].issue;
    return (issue - first_issue_).nanoseconds() / 1000;
  }

  void write_frame(const std::string& name, const std::string& file, std::int64_t line) {
    out_.begin_dict();
    out_.entry("name", name);
    out_.entry("filename", file);
    out_.entry("line", line);
    out_.end_dict();
  }

  void write_no_frames() {
    out_.key("frames");
    out_.begin_list();
    out_.end_list();
  }

  // Innermost first.
  void write_frames(EventId row, std::int32_t buffer) {
    out_.key("frames");
    out_.begin_list();
    if (buffer >= 0) {
      const std::int32_t unit = graph_.buffer(buffer).unit;
      write_frame(graph_.buffer_name(buffer), unit >= 0 ? graph_.units[at(unit)].name : "step",
                  buffer);
    }
    write_frame(names_.of(row), "step", std::max(row, 0));
    out_.end_list();
  }

  const EventGraph& graph_;
  const Timeline& timeline_;
  EventNames names_;
  const TracedStep& step_;
  Time first_issue_;
  PickleWriter out_;
};

}  // namespace

std::string memory_snapshot(const Forecast& forecast, const AllocatorSettings& settings,
                            const DeviceMemory& memory, const LibraryBuffers& library) {
  const RowTimes times = row_times(forecast.timeline);
  const ReplayInputs inputs(library, &times, buckets_of(forecast.plan));
  const ReservedProfile profile = replay_reserved(forecast.graph, settings, memory, inputs);
  const TracedStep step =
      trace_step(forecast.graph, settings, memory, profile.steady_step - 1, inputs);
  return SnapshotWriter(forecast, step).write();
}

}  // namespace foreshard
