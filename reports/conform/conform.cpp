// Schedule: the rows of a step one by one, up to the first that differs. Bytes: the rows that carry bytes, one by one,
// so that a missing wait does not hide them. Memory: the pools after every row as far as both sides have the same rows,
// the boundaries of memory.csv in their order, and every peak. Allocations: between two events as a sequence; where a
// sequence differs, once more with each run of frees sorted.
//
// Step 1 is held against its own rows where the recording has them; else its order must be step
// 2's, as the index says.
#include "reports/conform/conform.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reports/conform/conform_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using What = Difference::What;

bool is_boundary(const Recording& recording, std::string_view kind) {
  if (!recording.boundaries.empty()) return contains(recording.boundaries, kind);
  constexpr std::array<std::string_view, 12> kBoundaries = {"step_begin", "forward_begin", "forward_end", "loss",
      "backward_begin", "backward_end", "reduce_end", "root_post_backward_begin", "optimizer_begin",
      "root_post_backward_end", "optimizer_end", "step_end"};
  return contains(kBoundaries, kind);
}

// What comes before step 1's first micro-batch the recorder numbers 0 or, over axes, leaves blank, as later steps do.
bool same_microbatch(const RecordedEvent& recorded, const RecordedEvent& predicted) {
  return recorded.microbatch == predicted.microbatch ||
         (recorded.step == 1 && std::max(recorded.microbatch, predicted.microbatch) == 0);
}

bool same_place(const RecordedEvent& a, const RecordedEvent& b) { return a.kind == b.kind && a.unit == b.unit; }

bool same_order(const RecordedEvent& a, const RecordedEvent& b) {
  return same_place(a, b) && a.stream == b.stream && a.dtype == b.dtype && a.group == b.group && a.cause == b.cause &&
         a.state == b.state && a.on == b.on;
}

// One of the two steps: what was recorded and what is forecast.
struct Step {
  std::int64_t number = 0;
  const LoggedMemory* memory = nullptr;
  std::vector<RecordedEvent> predicted;  // in the recorder's words, with pools
  std::vector<RecordedEvent> recorded;   // empty: not stored
  bool has_own_rows = true;              // else `recorded` is step 2's, of which the order counts
};

class StepComparison {
 public:
  StepComparison(const Recording& recording, const ForecastSteps& forecast)
      : recording_(recording), forecast_(forecast), constant_(constant_bytes()) {
    first_memory_ = log_memory(forecast.first, constant_);
    steady_memory_ = log_memory(forecast.steady, constant_);
    steps_[0] = make_step(1, forecast.first, first_memory_);
    steps_[1] = make_step(2, forecast.steady, steady_memory_);
    if (steps_[0].recorded.empty() && recording.first_step_order_equal) {
      steps_[0].recorded = steps_[1].recorded;
      steps_[0].has_own_rows = false;
    }
  }

  Conformance run() {
    result_.id = recording_.id;
    result_.version = recording_.version;
    if (steps_[1].recorded.empty()) {
      result_.state = Conformance::State::kPartlyStored;
      result_.counted = false;
    }
    result_.schedule_identical = result_.bytes_identical = result_.memory_identical = true;
    // Step 2 first: it is the one that people look at.
    for (Step* step : {&steps_[1], &steps_[0]}) {
      compare_schedule(*step);
      compare_bytes(*step);
      compare_levels(*step);
    }
    compare_units();
    for (Step* step : {&steps_[1], &steps_[0]}) compare_boundaries(*step);
    for (Step* step : {&steps_[1], &steps_[0]}) compare_peaks(*step);
    for (Step* step : {&steps_[1], &steps_[0]}) compare_allocations(*step);
    result_.memory_within_tolerance = result_.worst_peak_error <= Conformance::kMemoryTolerance;
    result_.peak_measured_bytes = recording_.steps[1].total;
    result_.peak_predicted_bytes = steady_memory_.peak;
    std::ranges::stable_sort(result_.differences, {}, &Difference::what);
    return std::move(result_);
  }

 private:
  std::int64_t constant_bytes() const {
    const auto column = std::ranges::find(recording_.categories, kOtherCategory);
    if (column != recording_.categories.end() && !recording_.memory.empty())
      return recording_.memory.front().categories.at(at(column - recording_.categories.begin()));
    return forecast_.constant_bytes;
  }

  Step make_step(std::int64_t number, const RecordedStep& step, const LoggedMemory& memory) const {
    Step result = {.number = number, .memory = &memory};
    for (std::size_t i = 0; i < step.log.size(); ++i) {
      RecordedEvent row = in_recorders_words(step.log[i], forecast_.unit_names);
      row.step = number;
      row.seq = static_cast<std::int64_t>(i) + 1;
      row.pools = memory.levels[i].pools;
      result.predicted.push_back(std::move(row));
    }
    result.recorded =
        list_where<RecordedEvent>(recording_.events, [&](const RecordedEvent& event) { return event.step == number; });
    return result;
  }

  void differ(What what, std::string text) { add_first(result_, what, std::move(text)); }

  // Both sides around row `at` of the step, in the words of `row`.
  std::string rows_around(const Step& step, std::size_t at, auto row) const {
    return around(
        step.recorded, step.predicted, at, row, [](std::size_t i) { return fmt::format("seq {}", i + 1); });
  }

  std::string place(const Step& step, std::size_t at) const {
    return fmt::format("{}, {}, step {}{}, seq {}", recording_.events_file, recording_.id, step.number,
        step.has_own_rows ? "" : " (which has the order of step 2)", at + 1);
  }

  // Names of FIFOs are each side's own: what counts is which rows share one.
  bool same_fifo(const RecordedEvent& recorded, const RecordedEvent& predicted) {
    if (!recording_.events_have_communicators) return true;
    if (recorded.communicator.empty() || predicted.communicator.empty())
      return recorded.communicator == predicted.communicator;
    const auto theirs = fifos_.try_emplace(recorded.communicator, predicted.communicator).first;
    const auto ours = owners_.try_emplace(predicted.communicator, recorded.communicator).first;
    return theirs->second == predicted.communicator && ours->second == recorded.communicator;
  }

  bool same_row(const Step& step, std::size_t i) {
    const RecordedEvent& recorded = step.recorded[i];
    const RecordedEvent& predicted = step.predicted[i];
    const bool issued_alike = !recording_.events_have_communicators || recorded.issue == predicted.issue;
    return issued_alike && same_fifo(recorded, predicted) && same_order(recorded, predicted) &&
           (!step.has_own_rows || same_microbatch(recorded, predicted));
  }

  void compare_schedule(const Step& step) {
    if (step.recorded.empty()) return;
    const std::size_t common = std::min(step.recorded.size(), step.predicted.size());
    std::size_t at = 0;
    while (at < common && same_row(step, at)) ++at;
    result_.rows += std::ssize(step.recorded);
    if (at == step.recorded.size() && at == step.predicted.size()) return;
    result_.schedule_identical = false;
    differ(What::kSchedule,
        fmt::format("{}: the schedule\n{}", place(step, at), rows_around(step, at, [](const RecordedEvent& e) {
          RecordedEvent plain = e;
          plain.bytes_in = plain.bytes_out = RecordedEvent::kBlank;
          return describe(plain);
        })));
  }

  void compare_bytes(const Step& step) {
    if (step.recorded.empty()) return;
    const auto carries = [](const RecordedEvent& e) {
      return e.bytes_in != RecordedEvent::kBlank || e.bytes_out != RecordedEvent::kBlank;
    };
    std::size_t i = 0;
    std::size_t j = 0;
    while (true) {
      while (i < step.recorded.size() && !carries(step.recorded[i])) ++i;
      while (j < step.predicted.size() && !carries(step.predicted[j])) ++j;
      const bool ends = i == step.recorded.size() || j == step.predicted.size();
      if (ends && i == step.recorded.size() && j == step.predicted.size()) return;
      if (ends || !same_place(step.recorded[i], step.predicted[j]) ||
          step.recorded[i].bytes_in != step.predicted[j].bytes_in ||
          step.recorded[i].bytes_out != step.predicted[j].bytes_out)
        break;
      ++i;
      ++j;
    }
    result_.bytes_identical = false;
    differ(What::kBytes, fmt::format("{}: bytes\n{}", place(step, i),
                             rows_around(step, i, [](const RecordedEvent& e) { return describe(e); })));
  }

  void compare_levels(const Step& step) {
    if (step.recorded.empty()) return;
    if (!step.has_own_rows || !recording_.events_have_pools) return;
    const std::size_t common = std::min(step.recorded.size(), step.predicted.size());
    for (std::size_t i = 0; i < common; ++i) {
      if (!same_place(step.recorded[i], step.predicted[i])) break;
      if (step.recorded[i].pools == step.predicted[i].pools) continue;
      result_.memory_identical = false;
      differ(What::kMemory,
          fmt::format("{}: live bytes by pool\n{}", place(step, i), rows_around(step, i, [](const RecordedEvent& e) {
            std::string text = e.kind + " " + e.unit + ":";
            for (std::size_t p = 0; p < kPools.size(); ++p) text += fmt::format(" {} {}", kPools[p], e.pools[p]);
            return text;
          })));
      return;
    }
    if (common != step.recorded.size() || common != step.predicted.size())
      result_.memory_identical = false;  // what cannot be compared is not identical
  }

  void compare_boundaries(const Step& step) {
    std::size_t at = 0;
    std::int64_t highest = 0;
    std::vector<const RecordedMemoryRow*> rows;
    for (const RecordedMemoryRow& row : recording_.memory)
      if (row.step == step.number) rows.push_back(&row);
    if (rows.empty()) return;
    for (std::size_t i = 0; i < step.predicted.size(); ++i) {
      const LoggedMemory::Level& level = step.memory->levels[i];
      highest = std::max(highest, level.highest);
      const RecordedEvent& event = step.predicted[i];
      if (!is_boundary(recording_, event.kind)) continue;
      const auto where = [&](std::size_t row) {
        return fmt::format("{}, {}, step {}, seq {}: {} {}", recording_.memory_file, recording_.id, step.number,
            rows[row]->seq, rows[row]->kind, rows[row]->unit);
      };
      if (at == rows.size()) {
        return misplaced(
            fmt::format("{}\n    then predicted: seq {} {} {}\n", where(at - 1), event.seq, event.kind, event.unit));
      }
      const RecordedMemoryRow& row = *rows[at];
      if (row.kind != event.kind || row.unit != event.unit || (recording_.memory_has_own_seq && row.seq != event.seq)) {
        return misplaced(
            fmt::format("{}\n    predicted: seq {} {} {}\n", where(at), event.seq, event.kind, event.unit));
      }
      std::string text;
      const auto check = [&](std::string_view name, std::int64_t recorded, std::int64_t predicted) {
        if (recorded == predicted) return;
        text += fmt::format(
            "    ! {:<24} recorded {:>14} predicted {:>14} ({:+})\n", name, recorded, predicted, predicted - recorded);
      };
      check("total", row.total, level.total);
      check("peak_since_previous_row", row.peak_since_previous_row, highest);
      for (std::size_t c = 0; c < row.categories.size(); ++c) {
        check(recording_.categories[c], row.categories[c],
            category_bytes(level.categories, recording_.categories[c], constant_));
      }
      if (!text.empty()) return misplaced(where(at) + "\n" + text);
      highest = level.total;
      ++at;
    }
    if (at < rows.size()) {
      misplaced(fmt::format("{}, {}, step {}, seq {}: {} {} is not predicted\n", recording_.memory_file, recording_.id,
          step.number, rows[at]->seq, rows[at]->kind, rows[at]->unit));
    }
  }

  void misplaced(std::string text) {
    result_.memory_identical = false;
    differ(What::kMemory, std::move(text));
  }

  void compare_peaks(const Step& step) {
    const PeakComparison found = compare_step_peaks(recording_, step.number, *step.memory, constant_);
    if (found.worst_error > result_.worst_peak_error) {
      result_.worst_peak_error = found.worst_error;
      result_.worst_peak = found.worst;
    }
    if (found.difference.empty()) return;
    misplaced(
        fmt::format("{}, {}, step {}: peaks\n{}", recording_.index_file, recording_.id, step.number, found.difference));
  }

  void compare_units() {
    const std::string text = unit_differences(recording_, forecast_.steady.graph.units, forecast_.unit_names);
    if (text.empty()) return;
    result_.bytes_identical = false;
    differ(What::kUnits, fmt::format("{}, {}: units\n{}", recording_.units_file, recording_.id, text));
  }

  void compare_allocations(const Step& step) {
    if (recording_.allocations_file.empty()) return;
    std::vector<RecordedAllocation> predicted;
    for (const LoggedMemory::Allocation& a : step.memory->allocations) {
      RecordedAllocation& row = predicted.emplace_back();
      row = {step.number, a.after, a.freed, a.bytes, std::string(kPools[a.pool]), to_string(a.category), ""};
      if (a.unit >= 0) row.unit = forecast_.unit_names.at(at(a.unit));
    }
    auto recorded = list_where<RecordedAllocation>(
        recording_.allocations, [&](const RecordedAllocation& a) { return a.step == step.number; });
    const AllocationComparison found = ::foreshard::compare_allocations(recorded, predicted);
    result_.allocations_identical = result_.allocations_identical.value_or(true) && found.difference.empty();
    result_.free_order_identical = result_.free_order_identical && found.free_order_identical;
    if (found.difference.empty()) return;
    const std::size_t after = found.after;
    const bool known = after > 0 && after <= step.predicted.size();
    differ(What::kAllocations,
        fmt::format("{}, {}, step {}, after seq {}{}: {}", recording_.allocations_file, recording_.id, step.number,
            after, known ? fmt::format(" ({} {})", step.predicted[after - 1].kind, step.predicted[after - 1].unit) : "",
            found.difference));
  }

  const Recording& recording_;
  const ForecastSteps& forecast_;
  std::int64_t constant_;
  LoggedMemory first_memory_, steady_memory_;
  std::array<Step, 2> steps_;
  std::map<std::string, std::string> fifos_, owners_;  // recorded to predicted and back
  Conformance result_;
};

}

bool Conformance::passed() const {
  switch (state) {
    case State::kCompared:
    case State::kPartlyStored: return schedule_identical && bytes_identical && memory_within_tolerance;
    case State::kNotRecorded: return true;
    case State::kNotForecast: return false;
  }
  return false;
}

const Difference* Conformance::first_difference() const {
  if (differences.empty() || differences.front().what == What::kAllocations) return nullptr;
  return &differences.front();
}

Conformance conform(const Recording& recording, const ForecastSteps& forecast) {
  return StepComparison(recording, forecast).run();
}

}
