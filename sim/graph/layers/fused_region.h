// The bytes of the one kernel that runs a region of operations (Operation::region), as
// torch.compile's generated kernels do: what comes from outside is read once, and written is what
// operations outside or backward read. Tensors in between have no buffer (bytes 0).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/layers/layer_program.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// Of one phase: operations of a region are given in the order in which the phase runs them.
class FusedRegion {
 public:
  using Sizes = std::vector<std::int64_t>;  // bytes of each tensor of the layer

  void forward(const Operation& op, const Sizes& bytes, LayerPhaseProgram& phase);

  struct InputGradient {
    std::int16_t tensor = 0;
    bool exists = false;  // an operation outside made a part of it before: they are added
    bool alias = false;   // the gradient of the output is that of the input
    bool inside = false;  // an operation of the region made the tensor: its gradient stays inside
  };
  // What an operation's derivative reads: the gradient of its output, in so many parts that are
  // still to be summed, and `saved`.
  struct Derivative {
    std::int64_t parts = 1;
    const Indices& saved;
    std::vector<InputGradient> gradients;
  };
  void backward(const Operation& op, const Derivative& derivative, const Sizes& bytes, LayerPhaseProgram& phase);

 private:
  void enter(const Operation& op);
  void add(const Operation& op, Pass pass, std::int64_t moved, LayerPhaseProgram& phase);

  static constexpr std::size_t kNone = SIZE_MAX;
  std::int16_t region_ = -1;
  std::size_t kernel_ = kNone;
  Indices read_;     // tensors
  Indices written_;  // forward: tensors; backward: tensors whose gradient it is
};

}
