// The layers of a transformer, as the operations that PyTorch executes eagerly.
//
// Operation order, saved tensors and temporaries follow recordings of PyTorch 2.11 with CUDA's kernels: fused norms
// with fp32 statistics, flash attention, rotary embedding as complex fp32 arithmetic, cross entropy on an fp32 copy of
// the logits. A linear layer's bias is part of its matrix product in forward (addmm) and a column sum in backward.
// `kept_by_selective` marks what torchtitan's selective activation checkpointing saves (torchtitan
// distributed/activation_checkpoint.py): attention, and the first, third, fifth ... matrix product of a block.
//
// Stack::kNative writes the engine's own operations instead, for the decoders that it runs: rotary embedding in place,
// silu and product in one pass, a loss that turns a few rows at a time into their gradient in the logits' place.
//
// The dimensions must have passed build_model's checks.
#pragma once

#include "models/model_dims.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// The feed-forward layer of a block, where a model has both kinds.
enum class FeedForwardKind : std::uint8_t { kDense, kExperts, kNone };
// What mixes tokens before it.
enum class MixerKind : std::uint8_t { kAttention, kMamba, kDelta, kConvolution, kNone };
// How the blocks of one model differ.
struct BlockKind {
  FeedForwardKind mlp = FeedForwardKind::kDense;
  MixerKind mixer = MixerKind::kAttention;
  bool rotates = true;       // false: no positions in its attention
  bool windowed = false;     // attends within ModelDims::window
  bool norms_input = true;   // false: its attention reads the input as it is
  bool shares_keys = false;  // reads keys and values of an earlier one
  bool predicts = false;     // reads a projection of the input and of the next token's embedding
  bool operator==(const BlockKind&) const = default;
};
BlockKind block_kind(const ModelDims& dims, std::int64_t layer);

LayerSpec embedding_layer(const ModelDims& dims, Stack stack = Stack::kEager);
LayerSpec decoder_block(const ModelDims& dims, Stack stack = Stack::kEager, BlockKind kind = {});
// Behind the embedding: what blocks are given beside the stream (BlockParts::layer_input).
LayerSpec layer_inputs(const ModelDims& dims, Stack stack);
LayerSpec final_norm_layer(const ModelDims& dims, Stack stack = Stack::kEager);
// A tied head lists the embedding's weight, flagged ParameterSpec::tied.
LayerSpec head_layer(const ModelDims& dims, Stack stack = Stack::kEager);
LayerSpec loss_layer(const ModelDims& dims, Stack stack = Stack::kEager);

// Rows of logits that the engine's loss handles at a time: about a million elements, 4 MiB in fp32.
std::int64_t loss_rows(std::int64_t vocabulary);

}
