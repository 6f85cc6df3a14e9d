// A training run on one rank: data, steps, evaluation, checkpoints, and the record of it all.
//
// All ranks call train() at the same time with the same plan. Numbers depend on plan, data and seed
// alone: not on the ranks' timing, not on where a run was stopped and resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/data/token_store.h"
#include "exec/engine/backend.h"
#include "exec/run/facts.h"
#include "reports/validate/run_record.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// After a step, on rank 0.
struct StepReport {
  std::int64_t step = 0;
  std::int64_t last_step = 0;
  double loss = 0;
  double seconds = 0;
  double tokens_per_s = 0;  // of all ranks, this step
  std::optional<double> evaluation;
};

struct TrainOptions {
  std::filesystem::path data;
  TokenFormat format = TokenFormat::kAuto;
  std::int64_t steps = 1;             // in all: a resumed run goes on to it
  std::filesystem::path checkpoint;   // "": none
  std::int64_t checkpoint_every = 0;  // 0: at the end only
  std::int64_t checkpoint_keep = 3;
  std::filesystem::path resume;      // "": from the seed
  std::int64_t recorded_steps = 20;  // timelines that are kept, of the last steps
  bool debug = false;
  std::filesystem::path kineto;    // rank 0's last two steps as LibTorch's profiler sees them; "": none
  Accelerator* device = nullptr;   // none: CPU ranks
  const Pacing* pacing = nullptr;  // none: the world's ranks are real
  bool graph = false;              // steps replayed as a whole
  std::vector<std::pair<std::string, std::string>> metadata;  // goes into checkpoints
  // Of plan and model, and what else the ranks were compared in (agree() of facts.h); with the data
  // they are the job that a checkpoint belongs to.
  Facts facts;
  std::vector<std::string> accept_changes;          // keys of them that may differ from the checkpoint's
  std::function<void(const StepReport&)> progress;  // rank 0
  std::function<void(const std::string&)> note;     // rank 0: one sentence
  std::function<bool()> stop;                       // asked after every step; all ranks then end after a common one
};

// Before the first step it holds the ranks' data against each other, the checkpoint's job against
// this one (Error(kInvalidInput) names what changes the numbers and is not accepted), and claims
// the folder of checkpoints (checkpoint_claim.h).
//
// The record of the whole run on rank 0, of this rank alone on the others; `complete` is false
// where it was stopped. A loss, gradient norm or parameter that is no longer finite stops it on all
// ranks (RunRecord::not_finite), and no checkpoint is saved from then on. A lost rank or a failed
// step is thrown (PeerFailure, StepFailure); *partial then holds what this rank has so far.
RunRecord train(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world,
    const TrainOptions& options, RunRecord* partial);

}
