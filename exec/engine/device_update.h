// The end of a step on a device: norm, clipping and optimizer over all units at once, with nothing
// the host has to read.
//
// Lists of tensors are made once, those of gradients where these have moved; a step is a few
// launches (foreach and fused kernels).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "exec/device/accelerator.h"
#include "exec/engine/unit_memory.h"

namespace foreshard {

class DeviceUpdate {
 public:
  // Precondition: find_device_problem said nothing. References are kept.
  DeviceUpdate(UnitSet& units, const ModelSpec& model, const Plan& plan, Accelerator& device);

  // This rank's sum of squares goes to sum[0] (double), which ranks then add up.
  void sum_of_squares(const at::Tensor& sum);
  // norm = sqrt(sum[0]); the step takes gradients times min(1, clip_norm / (norm + 1e-6)), as
  // torch.nn.utils.clip_grad_norm_ leaves them.
  void clip(const at::Tensor& sum, const at::Tensor& norm);
  // The step, then the compute-dtype shadows. `scalars`: its number (from 1) and learning rate as step_scalars() gives
  // them, on the device of the states: a step that is replayed finds them there.
  void step(const at::Tensor& scalars);

 private:
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
  };
  struct Piece {
    const UnitMemory& unit;
    std::int64_t begin = 0, count = 0;  // in the unit's shard
    Lists& lists;                       // where it is updated
  };
  void update(const Lists& lists, double decay);
  // On the device of the states.
  at::Tensor floats(void* memory, std::int64_t count) const;
  // Where this step's gradients are.
  void find_gradients();

  const Plan& plan_;
  UnitSet& units_;
  std::vector<Piece> pieces_;          // in the order of units
  std::vector<const float*> places_;   // of units' gradients, when the lists were made
  std::vector<at::Tensor> gradients_;  // one per unit, whole shards
  std::vector<at::Tensor> counted_;    // what of them the norm takes from this rank
  Lists decayed_, undecayed_;
  std::vector<at::Tensor> masters_, shadows_;
  at::Tensor number_, rate_;
  at::Tensor factor_;                  // of clipping; undefined without
  std::unique_ptr<FusedAdamW> fused_;  // where the device has it
};

// {number, learning rate} in fp32, on the host.
at::Tensor step_scalars(const Plan& plan, std::int64_t number);

}
