// Runs the steps of a plan for real, on one rank: walks the EventGraph in id order.
//
// The thread that calls step() is the host. How a row comes to run is the backend's (exec/engine/backend.h): on a CPU
// rank the host does compute rows itself and hands every other row to its stream, one thread each; on a device all rows
// go to its lanes. A row starts when its stream has come to it, its waits are done, and, for a collective, when its
// communicator's FIFO has. Nothing is decided here; what a plan means is written in sim/graph/native.cpp.
//
// Refused by find_engine_problem (exit 6): everything but runtime native; fp16; tied
// embeddings outside the root unit; ALiBi and rope scalings but linear and llama3, whose arithmetic is not implemented.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/compute/layer_runner.h"
#include "exec/engine/backend.h"
#include "exec/engine/rows.h"
#include "exec/engine/unit_memory.h"
#include "exec/memory/allocator.h"
#include "reports/validate/run_record.h"
#include "sim/graph/training_step.h"

namespace foreshard {

// Why the engine cannot run it, with the nearest plan that it can; nullopt: it can.
std::optional<std::string> find_engine_problem(const ModelSpec& model, const Plan& plan);
// Further ones of a rank that feeds a device. `paced`: its peers are not there.
std::optional<std::string> find_device_problem(const ModelSpec& model, const Plan& plan, bool paced);

// Further ones of steps that are replayed as a whole.
std::optional<std::string> find_graph_problem(const Plan& plan, const World& world);

// A row failed. what() names this rank, the row and the cause; for a lost peer `cause` is a PeerFailure.
class StepFailure : public Error {
 public:
  StepFailure(const std::string& what, ExitCode code) : Error(code, what) {}
};

struct StepOutcome {
  std::vector<double> losses;  // of this rank's micro-batches, in order
  double gradient_norm = 0;    // before clipping; 0 without clip_norm
};

class Engine {
 public:
  struct Options {
    bool debug = false;              // gradient slots are filled with NaN and checked, freed slots detached
    Accelerator* device = nullptr;   // none: a CPU rank
    const Pacing* pacing = nullptr;  // none: the world's ranks are real
    bool graph = false;              // on a device: after some steps each is replayed as one recorded whole
  };
  // References are kept. Every rank makes its engine at the same time: communicators connect here.
  Engine(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world, Options options);
  ~Engine();

  // Parameters from the plan's seed: the same values whatever the mesh and the units.
  void initialise();

  // One step. `number` counts from 1 (the optimizer's bias correction). `batches`: this rank's
  // micro-batches in order, on the host. Fills `record` where one is given.
  StepOutcome step(std::int64_t number, std::span<MicroBatch> batches, MeasuredStep* record);
  // The same in two halves: a device may be given step after step, at most ahead() of them before
  // the oldest is collected.
  void issue(std::int64_t number, std::span<MicroBatch> batches);
  StepResult collect();
  int ahead() const { return backend_->ahead(); }

  // The first row of the step just collected whose result, as far as it is told or still there, is
  // no longer finite on this rank: a loss, a unit's gradient, the norm; kNoEvent: all are finite.
  EventId find_not_finite(const StepResult& result);
  // The first parameter of this rank's shards with an element that is not finite, there or in the
  // optimizer's state: "layers.0.mlp.up_proj.weight (exp_avg)"; "" where all are. Reads them all.
  std::string find_not_finite_parameter();

  // Mean loss of a micro-batch of held-back data: walks an EventGraph of its own (build_evaluation), whose peak is part
  // of activations_peak(). All ranks of a shard group call it equally often.
  double evaluate(MicroBatch& batch);

  // Hash of every parameter in the stored dtype, the same on all ranks and for every mesh and
  // grouping of units that hold the same values.
  std::string parameter_hash();

  UnitSet& units() { return units_; }
  int shard_index() const { return shard_index_; }
  int replica() const { return replica_; }
  int part_index() const { return part_index_; }  // on mesh.tp
  // Highest sum of the bytes of tensors in the allocator, in any step.
  std::int64_t activations_peak();
  const MemoryAccount& activations() const { return account_; }
  void forget_peak();

  void observe(StepObserver* observer) { rows_->layers().observe(observer); }

  // From any thread: a running step ends with a failure.

 private:
  // Its graph and what its rows do, made when it is first asked for.
  struct Evaluation {
    Evaluation(const ModelSpec& model, const Plan& plan, const RankParts& parts)
        : graph(build_evaluation(model, plan)), rows(parts, graph, Rows::Of::kBetweenSteps) {}
    const EventGraph graph;
    Rows rows;
  };

  RankParts rank_parts();
  void issue_rows();
  [[noreturn]] void throw_failure();
  std::string event_name(EventId id) const;

  const ModelSpec& model_;
  const std::optional<ModelSpec> part_;  // what this rank computes, where that is not the model
  const Plan& plan_;
  const EventGraph& graph_;
  const int rank_, part_index_, shard_index_, replica_;
  const Options options_;
  MemoryAccount account_;
  UnitSet units_;
  RotaryTable rotary_;
  DeviceAttention attention_ = DeviceAttention::kCpu;
  std::int64_t number_ = 0;
  EventId issuing_ = kNoEvent;
  std::unique_ptr<Rows> rows_;
  std::unique_ptr<Evaluation> evaluation_;
  std::unique_ptr<Backend> backend_;  // last: its threads use the others
};

}
