// Lowering and the host: schedules.py's _add_unshard_reshard, _add_reduce_grad, _add_send_recv and
// _PipelineScheduleRuntime, and the loops of ScheduleGPipe and Schedule1F1B.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/pipeline/pipeline.h"

namespace foreshard {
namespace {

using Kind = PipelineAction::Kind;

// Whether the action at i stands inside a pair.
bool ends_pair(const PipelineOrder& order, std::size_t i) { return i > 0 && order[i - 1].overlaps_next; }

// A stage is gathered while it is among the next ones that the rank computes.
PipelineOrder with_unshards(const PipelineOrder& order) {
  constexpr std::size_t kAhead = 3;
  // Stages from each action on.
  std::vector<std::size_t> left(order.size());
  std::vector<int> seen;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (!contains(seen, order[i].stage)) seen.push_back(order[i].stage);
    left[i] = seen.size();
  }
  PipelineOrder all;
  std::vector<int> active;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!ends_pair(order, i)) {
      std::vector<int> next;
      for (std::size_t j = i; j < order.size() && next.size() < left[i]; ++j) {
        if (!contains(next, order[j].stage)) next.push_back(order[j].stage);
        if (next.size() >= kAhead && !order[j].overlaps_next) break;
      }
      std::vector<int> kept;
      for (const int stage : active)
        if (contains(next, stage)) kept.push_back(stage);
        else all.push_back({stage, Kind::kReshard});
      active = std::move(kept);
      for (const int stage : next) {
        if (contains(active, stage)) continue;
        active.push_back(stage);
        all.push_back({stage, Kind::kUnshard});
      }
    }
    all.push_back(order[i]);
  }
  for (const int stage : active) all.push_back({stage, Kind::kReshard});
  return all;
}

// Behind a stage's last backward, or behind the pair that it is in.
PipelineOrder with_reductions(const PipelineOrder& order, int microbatches) {
  PipelineOrder all;
  std::map<int, int> done;
  std::vector<int> reduced;
  for (const PipelineAction& action : order) {
    all.push_back(action);
    const bool is_backward = action.kind == Kind::kBackward || action.kind == Kind::kWeightGrad;
    if (is_backward && ++done[action.stage] == microbatches) reduced.push_back(action.stage);
    if (action.overlaps_next) continue;
    for (const int stage : reduced) all.push_back({stage, Kind::kReduceGrad});
    reduced.clear();
  }
  return all;
}

bool is_backward_of_input(Kind kind) { return kind == Kind::kBackward || kind == Kind::kInputGrad; }

// The neighbour that reads what the action makes; nothing where nobody does.
std::optional<int> reader_of(const PipelineAction& action, int stages) {
  const int reader = action.kind == Kind::kForward       ? action.stage + 1
                     : is_backward_of_input(action.kind) ? action.stage - 1
                                                         : -1;
  if (reader < 0 || reader >= stages) return std::nullopt;
  return reader;
}

// Sweeps over the ranks, each of which goes on by one action that is ready: what it reads was
// computed here or is being received. What another rank reads is sent at once, and its receive
// goes to the end of that rank's list.
class Exchanges {
 public:
  Exchanges(const std::vector<PipelineOrder>& orders, const std::vector<int>& ranks)
      : orders_(orders),
        ranks_(ranks),
        stages_(static_cast<int>(ranks.size())),
        done_(orders.size()),
        out_(orders.size()) {
    for (const PipelineOrder& order : orders)
      for (const PipelineAction& action : order) microbatches_ = std::max(microbatches_, action.microbatch + 1);
    there_.resize(ranks.size() * 2 * at(microbatches_));
  }

  std::vector<PipelineOrder> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < orders_.size(); ++rank) moved |= advance(rank);
    }
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      if (done_[rank] == orders_[rank].size()) continue;
      throw Error(ExitCode::kInvalidInput, "pipeline: " + text_of(PipelineOrder{{orders_[rank][done_[rank]]}}) +
                                               " waits for what no rank computes; expected an order that can be run");
    }
    return std::move(out_);
  }

 private:
  // What the stage reads: an activation? of which batch.
  std::size_t value(int stage, bool forward, int microbatch) const {
    return (at(stage) * 2 + (forward ? 1 : 0)) * at(microbatches_) + at(microbatch);
  }

  bool is_ready(std::size_t rank, const PipelineAction& action) const {
    const bool forward = action.kind == Kind::kForward;
    if (!forward && !is_backward_of_input(action.kind)) return true;
    const bool is_end = forward ? action.stage == 0 : action.stage == stages_ - 1;
    return is_end || (at(ranks_[at(action.stage)]) == rank && there_[value(action.stage, forward, action.microbatch)]);
  }

  bool advance(std::size_t rank) {
    const PipelineOrder& order = orders_[rank];
    const std::size_t begin = done_[rank];
    if (begin == order.size()) return false;
    std::size_t end = begin;
    while (end + 1 < order.size() && order[end].overlaps_next) ++end;
    ++end;
    for (std::size_t i = begin; i < end; ++i)
      if (!is_ready(rank, order[i])) return false;
    done_[rank] = end;
    for (std::size_t i = begin; i < end; ++i) out_[rank].push_back(order[i]);
    for (std::size_t i = begin; i < end; ++i) hand_on(rank, order[i]);
    return true;
  }

  void hand_on(std::size_t rank, const PipelineAction& action) {
    const std::optional<int> reader = reader_of(action, stages_);
    if (!reader) return;
    const bool forward = action.kind == Kind::kForward;
    const auto to = at(ranks_[at(*reader)]);
    if (to != rank) {
      out_[rank].push_back({action.stage, forward ? Kind::kSendForward : Kind::kSendBackward, action.microbatch});
      out_[to].push_back({*reader, forward ? Kind::kRecvForward : Kind::kRecvBackward, action.microbatch});
    }
    there_[value(*reader, forward, action.microbatch)] = true;
  }

  const std::vector<PipelineOrder>& orders_;
  const std::vector<int>& ranks_;
  int stages_;
  int microbatches_ = 0;
  std::vector<std::size_t> done_;  // actions, by rank
  std::vector<PipelineOrder> out_;
  std::vector<bool> there_;  // values that are read
};

// Rows of one rank, written one by one.
class Host {
 public:
  explicit Host(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  // Sends what the stage made, or receives what it reads; nothing at the pipeline's ends.
  std::optional<PipelineTransfer> transfer(bool sends, int stage, bool forward, int microbatch) const {
    const int other = sends == forward ? stage + 1 : stage - 1;
    if (other < 0 || other >= static_cast<int>(ranks_.size())) return std::nullopt;
    return PipelineTransfer{sends, stage, forward, microbatch, ranks_[at(other)]};
  }

  // The batch's number; nothing where it would be empty.
  std::optional<int> post(std::initializer_list<std::optional<PipelineTransfer>> transfers) {
    PipelineRow row{PipelineRow::Kind::kBatch, batches_, {}, {}};
    for (const auto& transfer : transfers)
      if (transfer) row.transfers.push_back(*transfer);
    if (row.transfers.empty()) return std::nullopt;
    rows_.push_back(std::move(row));
    return batches_++;
  }
  void wait(std::optional<int> batch) {
    if (batch) rows_.push_back({PipelineRow::Kind::kWait, *batch, {}, {}});
  }
  void run(const PipelineAction& action) { rows_.push_back({PipelineRow::Kind::kAction, -1, {}, action}); }
  void hand_over(int stage, bool forward, int microbatch) {
    rows_.push_back(
        {PipelineRow::Kind::kLocal, -1, {}, {stage, forward ? Kind::kForward : Kind::kBackward, microbatch}});
  }
  PipelineRows rows() && { return std::move(rows_); }

 private:
  std::vector<int> ranks_;
  int batches_ = 0;
  PipelineRows rows_;
};

PipelineRows gpipe_rows(const StagePipeline& p, int rank) {
  Host host(stage_ranks(p));
  for (const bool forward : {true, false}) {
    std::vector<std::optional<int>> sends;
    for (int k = 0; k < p.microbatches; ++k) {
      host.wait(host.post({host.transfer(false, rank, forward, k)}));
      host.run({rank, forward ? Kind::kForward : Kind::kBackward, k});
      sends.push_back(host.post({host.transfer(true, rank, forward, k)}));
    }
    for (const std::optional<int> send : sends) host.wait(send);
  }
  host.run({rank, Kind::kReduceGrad});
  return std::move(host).rows();
}

PipelineRows one_f_one_b_rows(const StagePipeline& p, int rank) {
  Host host(stage_ranks(p));
  const auto send = [&](bool forward, int k) { return host.transfer(true, rank, forward, k); };
  const auto recv = [&](bool forward, int k) { return host.transfer(false, rank, forward, k); };
  // Fewer micro-batches than stages (Megatron-Core; PyTorch refuses them): all forwards come first.
  const bool fills = p.microbatches >= p.ranks - rank;
  int forwards = std::min(p.microbatches, p.ranks - rank), backwards = 0;
  std::optional<int> sent;
  for (int k = 0; k < forwards; ++k) {
    host.wait(host.post({recv(true, k)}));
    host.run({rank, Kind::kForward, k});
    host.wait(sent);
    // The last one goes with the first gradient.
    if (!fills || k + 1 < forwards) sent = host.post({send(true, k)});
  }
  if (!fills) host.wait(std::exchange(sent, std::nullopt));
  while (fills) {
    host.wait(host.post({send(true, forwards - 1), recv(false, backwards)}));
    host.run({rank, Kind::kBackward, backwards++});
    if (forwards == p.microbatches) break;
    host.wait(host.post({send(false, backwards - 1), recv(true, forwards)}));
    host.run({rank, Kind::kForward, forwards++});
  }
  if (fills) sent = host.post({send(false, backwards - 1)});
  while (backwards < p.microbatches) {
    host.wait(host.post({recv(false, backwards)}));
    host.run({rank, Kind::kBackward, backwards});
    host.wait(sent);
    sent = host.post({send(false, backwards++)});
  }
  host.wait(sent);
  host.run({rank, Kind::kReduceGrad});
  return std::move(host).rows();
}

// deepspeed/runtime/pipe/schedule.py, TrainSchedule: in every other step a forward, between them backwards; what one
// made is sent in the next step, around what that one receives.
PipelineRows deepspeed_rows(const StagePipeline& p, int rank) {
  Host host(stage_ranks(p));
  const auto move = [&](bool sends, bool forward, int k) {
    if (k >= 0 && k < p.microbatches) host.wait(host.post({host.transfer(sends, rank, forward, k)}));
  };
  int before = -1;
  for (int step = 0; step < 2 * (p.microbatches + p.ranks - 1); ++step) {
    const bool forward = (step + rank) % 2 == 0;
    const int k = forward ? (step - rank) / 2 : (step + rank + 1) / 2 - p.ranks;
    const bool is_there = k >= 0 && k < p.microbatches && step >= rank;
    if (forward) move(true, false, before);
    if (is_there) move(false, forward, k);
    if (!forward) move(true, true, before);
    if (is_there) host.run({rank, forward ? Kind::kForward : Kind::kBackward, k});
    before = is_there ? k : -1;
  }
  host.run({rank, Kind::kReduceGrad});
  return std::move(host).rows();
}

}

std::vector<PipelineOrder> lowered(
    const std::vector<PipelineOrder>& orders, const std::vector<int>& stage_ranks, int microbatches) {
  auto whole = list_of<PipelineOrder>(
      orders, [&](const PipelineOrder& order) { return with_reductions(with_unshards(order), microbatches); });
  return Exchanges(whole, stage_ranks).run();
}

PipelineRows pipeline_rows(const PipelineOrder& lowered, const std::vector<int>& stage_ranks, int rank) {
  Host host(stage_ranks);
  const int stages = static_cast<int>(stage_ranks.size());
  const auto is_here = [&](int stage) { return stage_ranks[at(stage)] == rank; };
  std::map<std::tuple<int, bool, int>, std::optional<int>> received;
  std::vector<std::optional<int>> sends;
  for (const PipelineAction& action : lowered) {
    const auto& [stage, kind, microbatch, overlaps_next] = action;
    const bool is_send = kind == Kind::kSendForward || kind == Kind::kSendBackward;
    const bool is_recv = kind == Kind::kRecvForward || kind == Kind::kRecvBackward;
    const bool forward = kind == Kind::kForward || kind == Kind::kSendForward || kind == Kind::kRecvForward;
    if (is_send || is_recv) {
      const auto batch = host.post({host.transfer(is_send, stage, forward, microbatch)});
      if (is_send) sends.push_back(batch);
      if (is_recv) received[{stage, forward, microbatch}] = batch;
      continue;
    }
    if (const auto read = received.find({stage, forward, microbatch});
        read != received.end() && kind != Kind::kWeightGrad) {
      host.wait(read->second);
      received.erase(read);
    }
    host.run(action);
    const std::optional<int> reader = reader_of(action, stages);
    if (reader && is_here(*reader)) host.hand_over(*reader, forward, microbatch);
  }
  std::ranges::for_each(sends.rbegin(), sends.rend(), [&](auto send) { host.wait(send); });
  return std::move(host).rows();
}

namespace {

bool exchanges_itself(const StagePipeline& pipeline) {
  return pipeline.schedule == PipelineSchedule::kGPipe || pipeline.schedule == PipelineSchedule::k1F1B;
}

std::vector<PipelineOrder> lowered_orders(const StagePipeline& pipeline) {
  const std::vector<PipelineOrder> orders = pipeline_orders(pipeline);
  if (exchanges_itself(pipeline)) return {};
  return lowered(orders, stage_ranks(pipeline), pipeline.microbatches);
}

PipelineRows rows_of(const StagePipeline& pipeline, const std::vector<PipelineOrder>& lowered, int rank) {
  if (pipeline.schedule == PipelineSchedule::kGPipe) return gpipe_rows(pipeline, rank);
  if (pipeline.host == StagePipeline::Host::kDeepSpeed) return deepspeed_rows(pipeline, rank);
  if (exchanges_itself(pipeline)) return one_f_one_b_rows(pipeline, rank);
  return pipeline_rows(lowered[at(rank)], stage_ranks(pipeline), rank);
}

}

std::vector<PipelineRows> pipeline_rows(const StagePipeline& pipeline) {
  const std::vector<PipelineOrder> lowered = lowered_orders(pipeline);
  std::vector<PipelineRows> rows;
  for (int rank = 0; rank < pipeline.ranks; ++rank) rows.push_back(rows_of(pipeline, lowered, rank));
  return rows;
}

PipelineRows pipeline_rows(const StagePipeline& pipeline, int rank) {
  // A graph of each rank of one pipeline follows the other.
  struct Lowered {
    std::optional<StagePipeline> of;
    std::vector<PipelineOrder> orders;
  };
  thread_local Lowered last;
  if (last.of != pipeline) {
    last.of.reset();
    last.orders = lowered_orders(pipeline);
    last.of = pipeline;
  }
  return rows_of(pipeline, last.orders, rank);
}

}
