// The rank's part of one layer while it is written: tensors keep their numbers; what a gather or a
// reduction adds gets new ones, and later operations read those.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/graph/axes/layer_cutter.h"

namespace foreshard {

using Index = std::int16_t;
using Indices = std::vector<Index>;

struct LayerPart {
  static constexpr Index kNone = -1;

  LayerPart(const LayerSpec& layer, const Plan& plan);

  void place(Index t, Placement placement);
  void place(const Indices& tensors, Placement placement);
  Index add_tensor(TensorSpec spec, Placement placement);
  TensorSpec whole(Index t, const char* suffix) const;
  Operation& move(Index from, Index to, std::int8_t part);
  // Whether what a product reads is cast before it is gathered: torchao's Float8ColwiseParallel,
  // Float8RowwiseParallel and PrepareFloat8ModuleInput (float8/float8_tensor_parallel.py), which
  // torchtitan takes with scales of tensors alone, and TransformerEngine's linear layers
  // (module/linear.py; the output's gradient: module/base.py, grad_output_preprocess).
  bool gathers_in_fp8(const Operation& op) const;
  // All positions of a sequence-parallel tensor, where a module that multiplies begins.
  Index gather(Index t, std::int8_t part, bool in_fp8 = false);
  // Of the operation added last.
  Slices& of_last();
  // Every slice of the products that read it has a gradient of it; they are summed here.
  Index view_of_slices(Index t, std::int8_t part);
  bool is_gathered(Index t) const;
  // Without sequence parallel the gradient of a product's input is summed over the ranks.
  Index own_input(Index t, std::int8_t part);
  // The last operation's output, of which each rank has a summand, becomes `result`. What that
  // operation lets go of goes behind the collective, unless its module has returned before.
  void reduce(Index result, std::int8_t part, bool has_returned = false);
  // The bias is added once, to the sum.
  void reduce_and_add(Index result, Index bias, std::int8_t part);

  const LayerSpec& source;
  const Plan& plan;
  const std::int64_t tp;
  const bool sequence;
  const bool native;
  const bool megatron;  // Megatron-Core's linear layers, with positions as the first dimension
  const std::int16_t slices;  // of the rank
  LayerSpec layer;
  std::vector<Slices> sliced;     // of the operations
  std::vector<Placement> places;  // of tensors
  std::vector<bool> known;
  Indices gathered;  // tensors: what is read of them by products
  std::int64_t experts = 1;
  Indices held;                                   // by a call that has returned
  std::pair<Index, Index> renamed{kNone, kNone};  // later operations read the second instead
};

}  // namespace foreshard
