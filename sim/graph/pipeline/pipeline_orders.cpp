// A schedule says what its ranks compute by counting: the i-th forward is of this stage, the j-th
// backward of that, and each is of the stage's next micro-batch.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/pipeline/pipeline.h"

namespace foreshard {
namespace {

using Kind = PipelineAction::Kind;

[[noreturn]] void refuse(std::string_view what, std::string_view expected) {
  throw invalid_input("pipeline: {}; expected {}", what, expected);
}

// The order of one rank, written action by action.
class Writer {
 public:
  // The next micro-batch of the stage; backwards of both kinds count together.
  void next(int stage, Kind kind, bool overlaps_next = false) {
    const Kind counted = kind == Kind::kInputGrad ? Kind::kBackward : kind;
    order_.push_back({stage, kind, counts_[{stage, counted}]++, overlaps_next});
    if (kind == Kind::kInputGrad) left_.push_back(order_.back());
  }
  // The weight gradients that were left first; nothing where none are.
  void weight() {
    if (left_.empty()) return;
    order_.push_back({left_.front().stage, Kind::kWeightGrad, left_.front().microbatch});
    left_.pop_front();
  }
  void weight_of(int stage) {
    const auto found = std::ranges::find(left_, stage, &PipelineAction::stage);
    if (found == left_.end()) return;
    order_.push_back({stage, Kind::kWeightGrad, found->microbatch});
    left_.erase(found);
  }
  // A forward of one stage and a backward of the other as one.
  void both(int forward, int backward) {
    next(forward, Kind::kForward, true);
    next(backward, Kind::kBackward);
  }
  int count(int stage, Kind kind) const { return value_of(counts_, std::pair{stage, kind}, 0); }
  bool has_weights() const { return !left_.empty(); }
  bool has_weights_of(int stage) const { return contains(left_, stage, &PipelineAction::stage); }

  PipelineOrder order() && { return std::move(order_); }

 private:
  PipelineOrder order_;
  std::map<std::pair<int, Kind>, int> counts_;
  std::deque<PipelineAction> left_;  // input gradients whose weights' are to come
};

// Interleaved1F1B and, with backward in two parts, InterleavedZeroBubble.
PipelineOrder interleaved(const StagePipeline& p, int rank, bool splits) {
  const int rounds = std::max(1, p.microbatches / p.ranks);
  if (p.microbatches % rounds != 0) {
    refuse(fmt::format("{} micro-batches over {} ranks", p.microbatches, p.ranks),
        fmt::format("a multiple of the {} rounds", rounds));
  }
  const int per_round = p.microbatches / rounds;
  const int all = p.microbatches * p.stages_per_rank;
  const int ahead = (splits ? 1 : 2) * (p.ranks - 1 - rank);
  const int warmup = std::min((p.stages_per_rank - 1) * per_round + ahead, all);
  const auto stage = [&](int i) { return i / per_round % p.stages_per_rank; };
  Writer writer;
  for (int i = 0; i < all + warmup; ++i) {
    if (i < all) writer.next(stage(i) * p.ranks + rank, Kind::kForward);
    if (i < warmup) continue;
    const int local = p.stages_per_rank - 1 - stage(i - warmup);
    writer.next(local * p.ranks + rank, splits ? Kind::kInputGrad : Kind::kBackward);
    // Weights lag behind by as many backwards as ranks are before this one.
    if (splits && i - warmup >= rank) writer.weight();
  }
  while (writer.has_weights()) writer.weight();
  return std::move(writer).order();
}

PipelineOrder looped_bfs(const StagePipeline& p, int rank) {
  PipelineOrder order;
  for (int local = 0; local < p.stages_per_rank; ++local)
    for (int k = 0; k < p.microbatches; ++k) order.push_back({local * p.ranks + rank, Kind::kForward, k});
  for (int local = p.stages_per_rank; local-- > 0;)
    for (int k = p.microbatches; k-- > 0;) order.push_back({local * p.ranks + rank, Kind::kBackward, k});
  return order;
}

PipelineOrder in_turn(const StagePipeline& p, int rank) {
  if (p.stages_per_rank != 1) refuse(fmt::format("{} stages on a rank", p.stages_per_rank), "1 under GPipe and 1F1B");
  const bool is_gpipe = p.schedule == PipelineSchedule::kGPipe;
  if (!is_gpipe && p.host == StagePipeline::Host::kTorch && p.microbatches < p.ranks) {
    refuse(fmt::format("{} micro-batches under 1F1B", p.microbatches),
        fmt::format("as many as stages, {}, or more", p.ranks));
  }
  const int warmup = is_gpipe ? p.microbatches : std::min(p.microbatches, p.ranks - rank);
  Writer writer;
  for (int i = 0; i < warmup; ++i) writer.next(rank, Kind::kForward);
  for (int i = 0; i < p.microbatches; ++i) {
    writer.next(rank, Kind::kBackward);
    if (i + warmup < p.microbatches) writer.next(rank, Kind::kForward);
  }
  return std::move(writer).order();
}

void check_v(const StagePipeline& p, std::string_view name) {
  if (p.stages_per_rank == 2) return;
  refuse(fmt::format("{} stages on a rank under {}", p.stages_per_rank, name), "2");
}

PipelineOrder zbv_zero_bubble(const StagePipeline& p, int rank) {
  check_v(p, "ZBVZeroBubble");
  const int down = rank, up = 2 * p.ranks - 1 - rank;
  // The rules are of as many micro-batches as fill the pipeline; of fewer, what is more is left out.
  const int all = std::max(2 * p.ranks - 1, p.microbatches);
  Writer writer;
  const auto whole = [&](int stage) {
    writer.next(stage, Kind::kInputGrad);
    writer.weight_of(stage);
  };
  const auto forward = [&](int stage) { writer.next(stage, Kind::kForward); };
  for (int i = 0; i < 2 * (p.ranks - rank) - 1; ++i) forward(down);
  for (int i = 0; i < rank; ++i) {
    forward(up);
    forward(down);
  }
  for (int i = 0; i < p.ranks - rank; ++i) {
    forward(up);
    whole(up);
  }
  while (writer.count(up, Kind::kForward) < writer.count(down, Kind::kForward) ||
         writer.count(down, Kind::kForward) < all) {
    if (writer.count(down, Kind::kForward) < all) forward(down);
    whole(down);
    forward(up);
    whole(up);
  }
  for (int i = 0; i < rank; ++i) {
    writer.next(down, Kind::kInputGrad);
    writer.next(up, Kind::kInputGrad);
  }
  for (int i = 0; i < p.ranks - rank; ++i) {
    writer.next(down, Kind::kInputGrad);
    writer.weight_of(down);
  }
  while (writer.has_weights_of(up)) writer.weight_of(up);
  while (writer.has_weights_of(down)) writer.weight_of(down);
  PipelineOrder order = std::move(writer).order();
  std::erase_if(order, [&](const PipelineAction& a) { return a.microbatch >= p.microbatches; });
  return order;
}

// Eight phases: F of the stage on the way down; both F; I, W and F on the way up; pairs; B with
// pairs; the rest of B, of whose second half weights are left; these with the rest of B; weights.
PipelineOrder dual_pipe_v(const StagePipeline& p, int rank) {
  check_v(p, "DualPipeV");
  if (p.microbatches < p.stages()) {
    refuse(fmt::format("{} micro-batches under DualPipeV", p.microbatches),
        fmt::format("as many as stages, {}, or more", p.stages()));
  }
  const int down = rank, up = 2 * p.ranks - 1 - rank, behind = p.ranks - rank - 1;
  Writer writer;
  for (int i = 0; i < 2 * behind; ++i) writer.next(down, Kind::kForward);
  for (int i = 0; i < rank + 1; ++i) {
    writer.next(down, Kind::kForward);
    writer.next(up, Kind::kForward);
  }
  for (int i = 0; i < behind; ++i) {
    writer.next(up, Kind::kInputGrad);
    writer.weight();
    writer.next(up, Kind::kForward);
  }
  for (int i = 0; i < p.microbatches - 2 * p.ranks + rank + 1; ++i) {
    if (i == 0 && rank == p.ranks - 1) {
      writer.next(down, Kind::kForward);
      writer.next(up, Kind::kBackward);
    } else {
      writer.both(down, up);
    }
    writer.both(up, down);
  }
  for (int i = 0; i < behind; ++i) {
    writer.next(up, Kind::kBackward);
    writer.both(up, down);
  }
  const int half = (rank + 1) / 2;
  for (int i = 0; i < rank + 1; ++i) {
    const bool up_splits = i > half || (i == half && rank % 2 == 1);
    const bool down_splits = i >= half;
    writer.next(up, up_splits ? Kind::kInputGrad : Kind::kBackward);
    writer.next(down, down_splits ? Kind::kInputGrad : Kind::kBackward);
  }
  for (int i = 0; i < behind; ++i) {
    writer.weight();
    writer.next(down, Kind::kInputGrad);
  }
  for (int i = 0; i < rank + 1; ++i) writer.weight();
  return std::move(writer).order();
}

// Stages belong to who computes them, as many to each rank: each micro-batch once forward, and once
// backward, whole or in halves.
std::vector<PipelineOrder> written_orders(const StagePipeline& p) {
  if (std::ssize(p.orders) != p.ranks)
    refuse(fmt::format("{} orders of {} ranks", p.orders.size(), p.ranks), "one of each rank");
  std::vector<PipelineOrder> orders;
  std::map<std::tuple<int, int, Kind>, int> counts;
  for (int rank = 0; rank < p.ranks; ++rank) {
    const PipelineOrder& order = orders.emplace_back(read_pipeline_order(p.orders[at(rank)]));
    std::set<int> stages;
    for (const PipelineAction& a : order) {
      if (a.stage >= p.stages() || a.microbatch < 0 || a.microbatch >= p.microbatches || a.kind > Kind::kWeightGrad) {
        refuse(fmt::format("{} on rank {}", text_of(PipelineOrder{a}), rank),
            fmt::format("F, B, I and W of {} stages and {} micro-batches", p.stages(), p.microbatches));
      }
      stages.insert(a.stage);
      ++counts[{a.stage, a.microbatch, a.kind}];
    }
    if (std::ssize(stages) != p.stages_per_rank) {
      refuse(fmt::format("rank {} has {} stages", rank, stages.size()),
          fmt::format("pipeline.stages_per_rank, {}", p.stages_per_rank));
    }
  }
  for (int stage = 0; stage < p.stages(); ++stage) {
    for (int k = 0; k < p.microbatches; ++k) {
      const auto count = [&](Kind kind) { return counts[{stage, k, kind}]; };
      const bool is_once = count(Kind::kForward) == 1 && count(Kind::kBackward) + count(Kind::kInputGrad) == 1 &&
                           count(Kind::kInputGrad) == count(Kind::kWeightGrad);
      if (!is_once) {
        refuse(fmt::format("micro-batch {} of stage {} is left unfinished, or done twice", k, stage),
            "F and then B, or I and W, of each");
      }
    }
  }
  return orders;
}

PipelineOrder order_of(const StagePipeline& p, int rank) {
  switch (p.schedule) {
    case PipelineSchedule::kInterleaved1F1B: return interleaved(p, rank, false);
    case PipelineSchedule::kInterleavedZeroBubble: return interleaved(p, rank, true);
    case PipelineSchedule::kLoopedBfs: return looped_bfs(p, rank);
    case PipelineSchedule::kZbvZeroBubble: return zbv_zero_bubble(p, rank);
    case PipelineSchedule::kDualPipeV: return dual_pipe_v(p, rank);
    case PipelineSchedule::kCustom:  // written_orders()
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::k1F1B: break;
  }
  return in_turn(p, rank);
}

}

std::vector<int> stage_ranks(const StagePipeline& pipeline) {
  if (pipeline.schedule == PipelineSchedule::kCustom) {
    std::vector<int> places(at(pipeline.stages()));
    int rank = 0;
    for (const PipelineOrder& order : written_orders(pipeline)) {
      for (const PipelineAction& action : order) places[at(action.stage)] = rank;
      ++rank;
    }
    return places;
  }
  const bool is_v =
      pipeline.schedule == PipelineSchedule::kZbvZeroBubble || pipeline.schedule == PipelineSchedule::kDualPipeV;
  std::vector<int> ranks;
  for (int stage = 0; stage < pipeline.stages(); ++stage) {
    const int place = stage % pipeline.ranks;
    const bool goes_up = is_v && stage / pipeline.ranks % 2 == 1;
    ranks.push_back(goes_up ? pipeline.ranks - 1 - place : place);
  }
  return ranks;
}

std::vector<PipelineOrder> pipeline_orders(const StagePipeline& pipeline) {
  if (pipeline.schedule == PipelineSchedule::kCustom) return written_orders(pipeline);
  std::vector<PipelineOrder> orders;
  for (int rank = 0; rank < pipeline.ranks; ++rank) orders.push_back(order_of(pipeline, rank));
  return orders;
}

}
