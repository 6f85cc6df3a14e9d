// Keys as torch/csrc/cuda/Module.cpp makes them (torch 2.11). Times are when the host issues the
// row, in microseconds from the first issue of the step; a row's actions share one.
#include "reports/validate/memory_snapshot.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "reports/view/event_names.h"
#include "sim/memory/reserved.h"
#include "sim/memory/reserved_forecast.h"

namespace foreshard {
namespace {

class SnapshotWriter {
 public:
  SnapshotWriter(const Forecast& forecast, const TracedStep& step)
      : graph_(forecast.graph), timeline_(forecast.timeline), names_(forecast.graph, forecast.model), step_(step) {
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
      out_.entry("state", block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive");
      const auto id = at(block.id);
      if (block.allocated && id < step_.buffer_of_block.size()) write_frames(kNoEvent, step_.buffer_of_block[id]);
      else write_no_frames();
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
      write_frame(graph_.buffer_name(buffer), unit >= 0 ? graph_.units[at(unit)].name : "step", buffer);
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

}

std::string memory_snapshot(const Forecast& forecast, const AllocatorSettings& settings, const DeviceMemory& memory,
    const LibraryBuffers& library) {
  const RowTimes times = row_times(forecast.timeline);
  const ReplayInputs inputs(library, &times, buckets_of(forecast.plan));
  const ReservedProfile profile = replay_reserved(forecast.graph, settings, memory, inputs);
  const TracedStep step = trace_step(forecast.graph, settings, memory, profile.steady_step - 1, inputs);
  return SnapshotWriter(forecast, step).write();
}

// Lists and dictionaries are written as an empty one, a mark, their items, and the opcode that
// takes everything down to the mark.

namespace {

constexpr char kProto = '\x80', kStop = '.', kMark = '(', kNone = 'N';
constexpr char kNewTrue = '\x88', kNewFalse = '\x89';
constexpr char kTuple2 = '\x86';
constexpr char kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M', kLong1 = '\x8a';
constexpr char kBinUnicode = 'X', kLongBinPut = 'r', kLongBinGet = 'j', kBinGet = 'h', kBinPut = 'q';
constexpr char kEmptyList = ']', kAppends = 'e', kEmptyDict = '}', kSetItems = 'u';

}

PickleWriter::PickleWriter() {
  out_ += kProto;
  out_ += '\x02';
}

void PickleWriter::bytes(std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::none() { out_ += kNone; }
void PickleWriter::boolean(bool value) { out_ += value ? kNewTrue : kNewFalse; }

void PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 1 << 8) {
    out_ += kBinInt1;
    bytes(bits, 1);
  } else if (value >= 0 && value < 1 << 16) {
    out_ += kBinInt2;
    bytes(bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += kBinInt;
    bytes(bits, 4);
  } else {
    out_ += kLong1;
    out_ += '\x08';
    bytes(bits, 8);
  }
}

void PickleWriter::text(std::string_view value) {
  const auto next = static_cast<std::uint32_t>(memo_.size());
  const auto [known, is_new] = memo_.try_emplace(std::string(value), next);
  const std::uint32_t slot = known->second;
  if (is_new) {
    out_ += kBinUnicode;
    bytes(value.size(), 4);
    out_ += value;
  }
  const bool is_short = slot < 256;
  if (is_new) out_ += is_short ? kBinPut : kLongBinPut;
  else out_ += is_short ? kBinGet : kLongBinGet;
  bytes(slot, is_short ? 1 : 4);
}

void PickleWriter::pair(std::int64_t first, std::int64_t second) {
  integer(first);
  integer(second);
  out_ += kTuple2;
}

void PickleWriter::begin_list() {
  out_ += kEmptyList;
  out_ += kMark;
}
void PickleWriter::end_list() { out_ += kAppends; }
void PickleWriter::begin_dict() {
  out_ += kEmptyDict;
  out_ += kMark;
}
void PickleWriter::end_dict() { out_ += kSetItems; }

std::string PickleWriter::finish() {
  out_ += kStop;
  return std::move(out_);
}

}
