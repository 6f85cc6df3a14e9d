// How far a run is, and its way to and from checkpoints: what it goes on from is held against what
// it is, and the folder that it saves to is its own.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/engine/engine.h"
#include "exec/run/checkpoint_claim.h"
#include "exec/run/facts.h"
#include "exec/run/train.h"
#include "exec/state/checkpoint.h"
#include "exec/state/training_state.h"

namespace foreshard {

class RunState {
 public:
  // References are kept.
  RunState(const ModelSpec& model, const Plan& plan, Engine& engine, World& world, const TrainOptions& options);

  // Parameters from the seed or from options.resume; claims options.checkpoint. All ranks call it.
  // Throws Error(kInvalidInput) on all of them, as train() says.
  void start(const JobIdentity& job);
  // A checkpoint of `progress`. All ranks call it.
  void save();

  RunProgress& progress() { return progress_; }
  void note(const std::string& sentence) const;  // rank 0's

 private:
  struct Mirror {
    std::byte* device = nullptr;
    std::vector<std::byte> copy;
  };

  std::byte* on_host(std::byte* data, std::size_t bytes);
  void put_on_device();
  TrainingState state();
  void resume();
  void compare_with(const LoadedCheckpoint& loaded) const;
  void claim_folder();

  const ModelSpec& model_;
  const Plan& plan_;
  Engine& engine_;
  World& world_;
  const TrainOptions& options_;
  std::vector<Mirror> mirrors_;
  RunProgress progress_;
  JobIdentity job_;
  std::optional<CheckpointClaim> claim_;  // rank 0
};

}
