// Pipelines of stages as torch.distributed.pipelining (PyTorch 2.11) runs them: what each rank
// computes in which order, where it gathers, reduces and exchanges, and what its host then does.
//
// A stage is a part of the model; a rank has one or several. An action is one of these for one
// stage and micro-batch. Source: torch/distributed/pipelining/schedules.py; held against tables
// that the library itself wrote (tests/sim/graph/pipeline).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/spec/plan.h"

namespace foreshard {

// By the library's names: "GPipe", "1F1B", "Interleaved1F1B", ...
std::optional<PipelineSchedule> pipeline_schedule_of(std::string_view name);

struct StagePipeline {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 1;
  std::vector<std::string> orders = {};  // of schedule custom
  // Whose 1F1B it is. All but PyTorch's take fewer micro-batches than stages; DeepSpeed's does one transfer at a time.
  enum class Host : std::uint8_t { kTorch, kMegatron, kDeepSpeed };
  Host host = Host::kTorch;

  int stages() const { return ranks * stages_per_rank; }
  bool operator==(const StagePipeline&) const = default;
};

struct PipelineAction {
  enum class Kind : std::uint8_t {
    kForward,
    kBackward,    // whole: of inputs and weights
    kInputGrad,   // backward of inputs alone
    kWeightGrad,  // what that left
    kUnshard,     // all units of the stage gathered; no micro-batch, as the next two
    kReshard,
    kReduceGrad,
    kSendForward,
    kRecvForward,
    kSendBackward,
    kRecvBackward,
  };
  int stage = 0;
  Kind kind = Kind::kForward;
  int microbatch = -1;         // -1: of none
  bool overlaps_next = false;  // one action with the one behind it (OVERLAP_F_B)
  bool operator==(const PipelineAction&) const = default;
};
using PipelineOrder = std::vector<PipelineAction>;  // of one rank

// "3F0", "2UNSHARD", "(0F4;3B1)OVERLAP_F_B", separated by blanks, as the library prints and reads
// them; idle slots (".") are left out. Throws Error(kInvalidInput) for what is no action.
std::string text_of(const PipelineOrder& order);
PipelineOrder read_pipeline_order(std::string_view text);

// The rank of each stage: round and round, or down and up again (ZBVZeroBubble, DualPipeV), or who
// computes it (custom).
std::vector<int> stage_ranks(const StagePipeline& pipeline);

// What every rank computes, in its order. Throws Error(kInvalidInput) for what the library refuses.
std::vector<PipelineOrder> pipeline_orders(const StagePipeline& pipeline);

// With gathers, reductions and exchanges, as the library puts them between: of all schedules but GPipe and 1F1B, whose
// hosts do both by themselves. Throws Error(kInvalidInput) where an action waits for what no rank computes.
std::vector<PipelineOrder> lowered(
    const std::vector<PipelineOrder>& orders, const std::vector<int>& stage_ranks, int microbatches);

// One of the operations of a batch of sends and receives.
struct PipelineTransfer {
  bool sends = false;
  int stage = 0;         // that sends or receives
  bool forward = false;  // an activation, else its gradient
  int microbatch = 0;
  int peer = 0;  // rank
  bool operator==(const PipelineTransfer&) const = default;
};

// What a host does next: posts a batch of transfers, has its compute stream wait for one, runs an
// action, or hands a tensor to the neighbour stage on its own rank.
struct PipelineRow {
  enum class Kind : std::uint8_t { kBatch, kWait, kAction, kLocal };
  Kind kind = Kind::kAction;
  int batch = -1;                           // number of the rank's, of kBatch and kWait
  std::vector<PipelineTransfer> transfers;  // of kBatch
  // Of kAction; of kLocal the stage that is given to, kForward or kBackward.
  PipelineAction action;
};
using PipelineRows = std::vector<PipelineRow>;  // of one rank, in host order

// Without what gathers and reshards, which tables of the library's hosts leave out.
std::string text_of(const PipelineRows& rows);

// Of every rank, or of one. Throws as pipeline_orders().
std::vector<PipelineRows> pipeline_rows(const StagePipeline& pipeline);
PipelineRows pipeline_rows(const StagePipeline& pipeline, int rank);
// Of a rank's lowered order that may be no schedule's.
PipelineRows pipeline_rows(const PipelineOrder& lowered, const std::vector<int>& stage_ranks, int rank);

}
