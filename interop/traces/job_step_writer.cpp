// A run reaches from its first piece's begin to its last one's end, whatever lies between them.
#include "interop/traces/job_step_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace foreshard {
namespace {

void extend(TraceRun& run, const WorkItem& item) {
  run.begin = std::min(run.begin, item.begin);
  run.end = std::max(run.end, item.end);
  run.busy += item.end - item.begin;
  ++run.pieces;
  run.products += item.products;
  run.attentions += item.attentions;
  if (item.message != 0) run.message = item.message;
}

TraceRun begun(EventKind kind, int unit, int microbatch, const WorkItem& item) {
  TraceRun run{kind, unit, microbatch, item.issue, item.begin, item.end, Time()};
  extend(run, item);
  return run;
}

}

void JobStepWriter::add(EventKind kind, int unit, const WorkItem& item, std::int64_t instance) {
  const auto [found, is_new] = instances_.try_emplace({kind, instance}, step_.runs.size());
  if (is_new) step_.runs.push_back(begun(kind, unit, microbatch_, item));
  else extend(step_.runs[found->second], item);
}

void JobStepWriter::add_compute(EventKind kind, int unit, const WorkItem& item) {
  if (computing_) {
    TraceRun& run = step_.runs[*computing_];
    if (run.kind == kind && run.unit == unit && run.microbatch == microbatch_) return extend(run, item);
  }
  computing_ = step_.runs.size();
  step_.runs.push_back(begun(kind, unit, microbatch_, item));
}

void JobStepWriter::add_outside(const char* where, const WorkItem& item) {
  static constexpr std::array<const char*, 5> kCollectives = {
      "work", "all_gather", "reduce_scatter", "all_reduce", "collective"};
  const std::string what = fmt::format("{} {}", kCollectives[at(item.collective)], where);
  add_outside(what, 1, item.end - item.begin);
}

void JobStepWriter::add_outside(const std::string& what, int pieces, Time time) {
  for (OutsideWork& work : step_.outside) {
    if (work.what != what) continue;
    work.pieces += pieces;
    work.time += time;
    return;
  }
  step_.outside.push_back({what, pieces, time});
}

void JobStepWriter::drop_loss() {
  if (!computing_) return;
  const TraceRun run = step_.runs[*computing_];
  if (run.kind != EventKind::kLoss || run.microbatch != microbatch_) return;
  const std::size_t gone = *computing_;
  step_.runs.erase(step_.runs.begin() + gone);
  for (auto& [key, index] : instances_) index -= index > gone ? 1 : 0;
  computing_.reset();
  add_outside("work in forward, between units", run.pieces, run.end - run.begin);
}

JobStep JobStepWriter::take() { return std::exchange(*this, JobStepWriter()).step_; }

}
