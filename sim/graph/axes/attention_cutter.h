// Attention over the positions of mesh.cp's ranks: a ring, a gather of keys and values, or an
// exchange of positions for heads (Ulysses).
#pragma once

#include "sim/graph/axes/layer_part.h"

namespace foreshard {

class AttentionCutter {
 public:
  explicit AttentionCutter(LayerPart& part);

  // The rank's own positions: their part of the rotary table is gathered once and kept.
  void rotate_own_positions(Operation& op);
  void attend(Operation op);

 private:
  // Keys and values of the other ranks of cp come round. What a step with a part of the queries
  // leaves is merged in another order of dimensions and copied back.
  void ring(const Operation& op);
  void replace_read(Operation& op, Index from, Index to);
  // Heads are a dimension in front of positions there.
  Index make_contiguous(Operation& op, std::size_t i);
  // FlexAttention's context parallel (torch 2.11 experimental/_context_parallel/_attention.py,
  // _ContextParallel._flex_input_fn: keys, then values are gathered along the positions), and
  // TransformerEngine's cp_comm_type all_gather.
  void attend_to_all(Operation op);
  // DeepSpeed-Ulysses (deepspeed/sequence/layer.py of 0.19, DistributedAttention) and
  // Megatron-Core's cp_comm_type a2a: queries, keys, values and the result change between parts of
  // the positions and parts of the heads, each by an all-to-all with copies in front and behind.
  void attend_with_heads(Operation op);

  LayerPart& part_;
  Index rotary_ = LayerPart::kNone;
  const bool has_latents_;
};

}  // namespace foreshard
