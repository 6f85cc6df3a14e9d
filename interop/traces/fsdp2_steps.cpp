// One walk in host order over begins and ends of ranges and over the work issued between them. The
// threads of forward and of autograd take turns, so their ranges make one sequence.
//
// Work inside a range of FSDP2 is what the range says. Work outside belongs to the unit whose forward (pre_forward ..
// post_forward, nested: the root's encloses the others) or backward (pre_backward .. post_backward) is open; in
// backward the deepest counts, and of these the last to open, because the root's hook may fire after that of the unit
// that runs. After the last forward and before backward it is the loss; after backward and before the optimizer the
// clipping: norms, their all-reduce, the scaling. What is left is outside work.
//
// The first step's begin is not in the trace, unless it is the only one: then it begins with its first piece of work.
#include "interop/traces/fsdp2_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "interop/traces/job_step_writer.h"
#include "interop/traces/trace_items.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Label = FsdpRange::Label;

struct Range {
  Label label = Label::kNone;
  int unit = -1;
  std::int64_t number = -1;  // ProfilerStep#N
};

class Walk {
 public:
  Walk(const KinetoTrace& trace, const TracedWork& work) : trace_(trace), work_(work) {
    result_.file = trace.file;
    result_.rank = trace.rank;
    result_.world = trace.world;
    result_.base_nanoseconds = trace.base_nanoseconds;
    result_.device = trace.device;
    result_.of_gpu = trace.of_gpu();
    result_.messages = work.messages;
    result_.facts = read_facts(trace);
    for (const TraceRange& range : work.ranges) ranges_.push_back(read_range(range));
    has_optimizer_ = std::ranges::any_of(ranges_, [](const Range& r) { return r.label == Label::kOptimizer; });
  }

  FsdpTrace walk() {
    if (result_.units.empty()) {
      const std::string other = other_library(trace_);
      refuse(
          fmt::format("{}has no ranges of FSDP2 (FSDP::pre_forward ...): fully_shard of PyTorch 2.4 or later "
                      "writes them while torch.profiler records ProfilerActivity.CPU",
              other.empty() ? "" : fmt::format("is of {} and ", other)));
    }
    struct Point {
      Time at;
      int order;  // ends, begins, work
      std::size_t index;
    };
    std::vector<Point> points;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].label == Label::kNone) continue;
      points.push_back({work_.ranges[i].begin, 1, i});
      points.push_back({work_.ranges[i].end, 0, i});
    }
    for (std::size_t i = 0; i < work_.items.size(); ++i) points.push_back({work_.items[i].issue, 2, i});
    std::ranges::stable_sort(
        points, [](const Point& a, const Point& b) { return a.at != b.at ? a.at < b.at : a.order < b.order; });
    for (const Point& point : points) {
      if (point.order == 0) end_range(point.index);
      if (point.order == 1) begin_range(point.index);
      if (point.order == 2) take(work_.items[point.index]);
    }
    finish_step();
    return finish();
  }

 private:
  enum class Phase : std::uint8_t { kBefore, kForward, kBackward, kAfter, kDone };
  struct Active {
    std::size_t range;
    bool reduced = false;                      // its collective was issued
    std::optional<std::int64_t> first_stream;  // of a reduction
    Time blocked_until;                        // end of its collective
  };
  struct Open {
    int unit;
    std::size_t order;
  };

  [[noreturn]] void refuse(const std::string& what) const { throw ConfigError({trace_.file, 0, 0, ""}, what); }

  Range read_range(const TraceRange& range) {
    const FsdpRange read = read_fsdp_range(trace_.names[range.name]);
    if (!read.has_unit()) return {read.label, -1, read.number};
    auto& units = result_.units;
    auto unit = std::ranges::find(units, read.unit);
    // The trace may begin in the middle of a step: the order is that of whole forwards, found later.
    if (unit == units.end()) unit = units.insert(unit, read.unit);
    return {read.label, static_cast<int>(unit - units.begin()), read.number};
  }

  // --- ranges ---

  void begin_range(std::size_t index) {
    const Range& range = ranges_[index];
    active_.push_back({index, false, std::nullopt, Time()});
    switch (range.label) {
      case Label::kRootPreForward: begin_forward(); break;
      case Label::kPreForward:
        if (phase_ != Phase::kForward && open_.empty()) begin_forward();
        if (phase_ == Phase::kForward) {
          step_.drop_loss();
          note_forward(range.unit);
        }
        // From PyTorch 2.13 on a unit of several modules has one of these for each.
        if (forward_.empty() || forward_.back() != range.unit) forward_.push_back(range.unit);
        break;
      case Label::kPreBackward:
        phase_ = Phase::kBackward;
        if (!is_open(range.unit)) open_.push_back({range.unit, ++opened_});
        break;
      case Label::kPostForward:
      case Label::kAccumulate:
      case Label::kReshard:
      case Label::kReduce: {
        auto& list = forward_;
        if (range.label == Label::kPostForward) {
          const auto last = std::find(list.rbegin(), list.rend(), range.unit);
          if (last != list.rend()) list.erase(std::next(last).base(), list.end());
        } else {
          std::erase_if(
              open_, [&](const Open& open) { return open.unit == range.unit; });
        }
        break;
      }
      case Label::kRootPostBackward: open_.clear(); break;
      case Label::kOptimizer:
        settle_clipping();
        phase_ = Phase::kDone;
        number_ = profiler_step_ + 1;
        break;
      case Label::kProfilerStep:
        if (range.number >= 0) profiler_step_ = range.number;
        break;
      default: break;
    }
  }

  void end_range(std::size_t index) {
    std::erase_if(active_, [&](const Active& active) { return active.range == index; });
    const Label label = ranges_[index].label;
    if (label == Label::kRootPostBackward && phase_ == Phase::kBackward) phase_ = Phase::kAfter;
    if (label == Label::kProfilerStep && !has_optimizer_) {
      settle_clipping();
      number_ = ranges_[index].number + 1;
      finish_step();
    }
  }

  void begin_forward() {
    if (phase_ == Phase::kDone) finish_step();
    if (phase_ == Phase::kForward) return;
    if (phase_ != Phase::kBefore) {
      step_.next_microbatch();
      leave_clipping("between micro-batches");
    }
    phase_ = Phase::kForward;
    forward_.clear();
    open_.clear();
  }

  void note_forward(int unit) {
    if (!contains(first_forwards_, unit)) first_forwards_.push_back(unit);
    auto [depth, is_new] = depth_.emplace(unit, static_cast<int>(forward_.size()));
    if (!is_new) depth->second = std::min(depth->second, static_cast<int>(forward_.size()));
  }

  bool is_open(int unit) const {
    return std::ranges::any_of(
        open_, [&](const Open& o) { return o.unit == unit; });
  }

  // --- work ---

  void take(const WorkItem& item) {
    if (step_.is_empty()) first_work_ = item.begin;
    last_work_ = std::max(last_work_, item.end);
    // The innermost range that says something.
    for (auto active = active_.rbegin(); active != active_.rend(); ++active)
      if (take_in(*active, item)) return;
    take_between(item);
  }

  bool take_in(Active& active, const WorkItem& item) {
    const Range& range = ranges_[active.range];
    const bool collective = item.collective != TracedCollective::kNone;
    const auto instance = static_cast<std::int64_t>(active.range);
    switch (range.label) {
      case Label::kAllGather:
        active.reduced = active.reduced || collective;
        step_.add(active.reduced ? EventKind::kAllGather : EventKind::kAllGatherCopyIn, range.unit, item, instance);
        return true;
      case Label::kCopyOut: step_.add(EventKind::kAllGatherCopyOut, range.unit, item, instance); return true;
      case Label::kAccumulate: step_.add(EventKind::kAccumulate, range.unit, item, instance); return true;
      case Label::kPostForward: step_.add(EventKind::kReshard, range.unit, item, instance); return true;
      case Label::kReduce: {
        const EventKind kind = kind_in_reduction(active, item);
        if (collective) active.blocked_until = item.end;
        step_.add(kind, range.unit, collective ? item : behind(active.blocked_until, item), instance);
        return true;
      }
      case Label::kPreForward:
        // Casts of inputs; work of a recomputed forward has its own place below.
        if (phase_ != Phase::kForward) return false;
        // A view of each input, for the hook behind backward: a CPU rank's trace has it.
        if (trace_.names[item.name] == "RegisterPostBackwardFunction") return true;
        step_.add_compute(EventKind::kForward, range.unit, item);
        return true;
      case Label::kOptimizer:
        if (collective) step_.add_outside("in the optimizer", item);
        else step_.add_compute(EventKind::kOptimizer, -1, item);
        return true;
      default: return false;
    }
  }

  // A CPU rank waits for its collective inside the operator behind it.
  WorkItem behind(Time collective_end, WorkItem item) const {
    if (!result_.of_gpu) item.begin = std::clamp(collective_end, item.begin, item.end);
    return item;
  }

  // Before the collective the gradients are packed, behind it they are cast or added; groups of one
  // rank have no collective, but their second part is on another stream.
  static EventKind kind_in_reduction(Active& active, const WorkItem& item) {
    if (!active.first_stream) active.first_stream = item.stream;
    if (item.collective == TracedCollective::kAllReduce) {
      active.reduced = true;
      return EventKind::kAllReduce;
    }
    if (item.collective != TracedCollective::kNone) {
      active.reduced = true;
      return EventKind::kReduceScatter;
    }
    return active.reduced || item.stream != *active.first_stream ? EventKind::kAccumulate
                                                                 : EventKind::kReduceScatterCopyIn;
  }

  void take_between(const WorkItem& item) {
    const bool computes = item.collective == TracedCollective::kNone;
    if (phase_ == Phase::kAfter) {
      after_.push_back(item);
    } else if (computes && phase_ == Phase::kForward && !forward_.empty()) {
      step_.add_compute(EventKind::kForward, forward_.back(), item);
    } else if (computes && phase_ == Phase::kForward) {
      step_.add_compute(EventKind::kLoss, -1, item);
    } else if (computes && phase_ == Phase::kBackward && !open_.empty()) {
      const bool again = item.recompute || !forward_.empty();
      step_.add_compute(again ? EventKind::kRecompute : EventKind::kBackward, running(), item);
    } else {
      step_.add_outside(place(), item);
    }
  }

  const char* place() const {
    return word_at(phase_, {"before forward", "in forward", "in backward, between units"}, "after the optimizer");
  }

  int running() const {
    const auto depth = [&](int unit) { return value_of(depth_, unit, 0); };
    return std::ranges::max_element(open_, [&](const Open& a, const Open& b) {
      const int x = depth(a.unit), y = depth(b.unit);
      return x != y ? x < y : a.order < b.order;
    })->unit;
  }

  // --- between backward and optimizer ---

  void settle_clipping() {
    const auto norm = std::ranges::find_if(after_, &WorkItem::norm);
    const auto is_all_reduce = [](const WorkItem& item) { return item.collective == TracedCollective::kAllReduce; };
    const auto reduce = std::find_if(norm, after_.end(), is_all_reduce);
    for (auto item = after_.begin(); item != norm; ++item) step_.add_outside("after backward", *item);
    bool scaling = false;
    for (auto item = norm; item != after_.end(); ++item) {
      if (item == reduce) {
        step_.add(EventKind::kAllReduce, -1, *item, kNormInstance);
        scaling = true;
      } else if (item->collective != TracedCollective::kNone) {
        step_.add_outside("after backward", *item);
      } else {
        scaling = scaling || (reduce == after_.end() && item->scale);
        const Time since = reduce < item ? reduce->end : item->begin;
        step_.add_compute(scaling ? EventKind::kGradScale : EventKind::kGradNorm, -1, behind(since, *item));
      }
    }
    after_.clear();
  }

  void leave_clipping(const char* where) {
    for (const WorkItem& item : after_) step_.add_outside(where, item);
    after_.clear();
  }

  // --- steps ---

  void finish_step() {
    leave_clipping("after backward");
    JobStep step = step_.take();
    step.number = std::exchange(number_, 0);
    bool forward = false;
    std::optional<Time> end;
    if (!has_optimizer_) end = last_work_;
    for (const TraceRun& run : step.runs) {
      forward = forward || run.kind == EventKind::kForward;
      if (run.kind == EventKind::kOptimizer) end = end ? std::max(*end, run.end) : run.end;
    }
    if (end && !step.runs.empty()) {
      step.end = *end;
      const bool begins = last_end_.has_value();
      step.begin = begins ? *last_end_ : first_work_;
      std::ranges::stable_sort(step.runs, {}, &TraceRun::issue);
      if (forward) {
        whole_.push_back(begins);
        result_.steps.push_back(std::move(step));
      }
      last_end_ = end;
    }
    forward_.clear();
    open_.clear();
    phase_ = Phase::kBefore;
  }

  FsdpTrace finish() {
    auto& steps = result_.steps;
    if (steps.empty()) refuse("has no whole step, from the forward of FSDP2 to the end of an optimizer");
    if (steps.size() > 1 && !whole_.front()) {
      steps.erase(steps.begin());
    } else if (!whole_.front()) {
      result_.notes.emplace_back(
          "one step only: it is taken to begin with its first piece of work; record two or more");
    }
    for (std::size_t i = 1; i < steps.size(); ++i) steps[i].number = std::max(steps[i].number, steps[i - 1].number + 1);
    if (work_.orphans > 0) {
      result_.notes.push_back(
          fmt::format("{} kernels without the call that launched them are left out", work_.orphans));
    }
    if (!has_optimizer_) {
      result_.notes.emplace_back(
          "no Optimizer.step range: steps end with the ProfilerStep marks, and what the optimizer "
          "did is not told apart");
    }
    order_units();
    note_collectives();
    for (const TraceEvent& event : trace_.events) {
      if (event.category != TraceEvent::Category::kMemory) continue;
      if (event.begin < steps.front().begin || event.begin > steps.back().end) continue;
      result_.peak_allocated = std::max(result_.peak_allocated, event.allocated);
      result_.peak_reserved = std::max(result_.peak_reserved, event.reserved);
    }
    return std::move(result_);
  }

  // Those of the first step, if all of them are told.
  void note_collectives() {
    std::vector<TracedCollectiveCall> calls;
    for (const TraceRun& run : result_.steps.front().runs) {
      if (!is_collective(run.kind) || run.unit < 0) continue;
      if (run.message == 0) return;
      const TracedMessage& message = result_.messages[run.message];
      calls.push_back({to_string(run.kind), message.bytes(), message.group_size});
    }
    result_.collectives = std::move(calls);
  }

  // Units were numbered as the file names them; a trace may begin in backward.
  void order_units() {
    for (int unit = 0; unit < static_cast<int>(result_.units.size()); ++unit) note_forward(unit);
    std::vector<std::string> names;
    std::vector<int> place(result_.units.size());
    for (const int unit : first_forwards_) {
      place[at(unit)] = static_cast<int>(names.size());
      names.push_back(result_.units[at(unit)]);
    }
    result_.units = std::move(names);
    for (JobStep& step : result_.steps) {
      for (TraceRun& run : step.runs)
        if (run.unit >= 0) run.unit = place[at(run.unit)];
    }
  }

  static constexpr std::int64_t kNormInstance = -1;

  const KinetoTrace& trace_;
  const TracedWork& work_;
  std::vector<Range> ranges_;  // of work_.ranges
  bool has_optimizer_ = false;
  FsdpTrace result_;

  std::vector<Active> active_;
  Phase phase_ = Phase::kBefore;
  std::vector<int> forward_;  // units whose forward is open, outermost first
  std::vector<Open> open_;    // ... whose backward is
  std::size_t opened_ = 0;
  std::map<int, int> depth_;  // of units, in forward
  std::vector<int> first_forwards_;
  std::vector<WorkItem> after_;  // since the end of backward
  std::int64_t profiler_step_ = -1;

  JobStepWriter step_;
  std::int64_t number_ = 0;  // of the step
  Time first_work_, last_work_;
  std::optional<Time> last_end_;
  std::vector<bool> whole_;  // whether a step's begin is known
};

}

FsdpTrace read_fsdp_steps(const KinetoTrace& trace) {
  const TracedWork work = link_work(trace);
  return Walk(trace, work).walk();
}

}
