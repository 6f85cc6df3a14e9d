// The operations of a layer (sim/spec/model_spec.h, Stack::kNative) as ATen calls: forward, and the
// gradient of each, with no autograd in between.
//
// Activations are [tokens, width], tokens of a micro-batch sequence by sequence (all, or the
// rank's run of them). Slices of widths are computed one by one and summed in pairs (Slices of
// sim/graph/axes/rank_part.h): gradients of what several slices read are [slices * tokens, width]. Results are new
// tensors unless the operation is in place. Gradients of parameters are written where Parameter says.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "exec/compute/rotary_table.h"
#include "exec/device/accelerator.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// A parameter of the layer as views of the unit's flat buffers.
struct Parameter {
  at::Tensor value;         // compute dtype, its own shape
  at::Tensor gradient;      // reduce dtype, the same shape; undefined in forward
  bool* written = nullptr;  // whether the gradient holds something to add to
};

struct MicroBatch {
  std::int64_t sequences = 0;
  std::int64_t sequence = 0;
  at::Tensor tokens;  // [sequences * sequence], int64
  at::Tensor labels;
  // Factor on the gradient of the mean loss of this micro-batch: 1 / micro-batches of the step.
  double loss_scale = 1;
  double loss = 0;  // mean over the micro-batch's tokens; written by the loss
  // On a device the loss adds the tokens' losses there instead: fp32, one element, zero before.
  at::Tensor loss_sum;

  std::int64_t count() const { return sequences * sequence; }
};

// Stamps taken between the kernels of an operation, for who measures them.
class KernelClock {
 public:
  virtual ~KernelClock() = default;
  virtual void mark() = 0;  // a kernel of the operation that runs has ended, another begins
};

// A rank's place among those of mesh.tp: part `index` of the vocabulary, and of the tokens where
// each has a part of them.
struct PartOfLayer {
  std::int64_t index = 0, count = 1;
};

struct OperationContext {
  const Numerics& numerics;
  DType compute;
  const RotaryTable& rotary;
  MicroBatch& batch;
  PartOfLayer part;
  Slices slices;  // of the operation
  KernelClock* clock = nullptr;
  Accelerator* device = nullptr;  // none: tensors are a CPU rank's
  DeviceAttention attention = DeviceAttention::kCpu;
};

// Tensors as Operation::outputs lists them; undefined where nobody reads one.
std::vector<at::Tensor> run_forward(const Operation& operation, const OperationContext& context,
    std::span<const Parameter> parameters, std::span<const at::Tensor> inputs);

// Gradients of Operation::inputs, in order (none under GradientRule::kNone).
std::vector<at::Tensor> run_backward(const Operation& operation, const OperationContext& context,
    std::span<const Parameter> parameters, const at::Tensor& gradient, std::span<const at::Tensor> saved);

}
