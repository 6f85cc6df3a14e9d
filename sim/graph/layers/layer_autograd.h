// What autograd settles about a layer before anything runs: which operations get a node in its
// graph, what each node saves, when Python lets go of a tensor, which gradients its weights get.
//
// The layer is the given one with the casts at its borders written into it (layer_casts.h). Nothing
// changes after construction; the given layer and options must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/graph/layers/layer_kernels.h"
#include "sim/graph/layers/layer_modules.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {

// Mixed precision at the borders of units, written as operations of the layer: FSDP2 casts what
// arrives at a module to param_dtype and what leaves it to output_dtype.
//
// Casts of the layer's own unit carry LayerSegment::kBefore and kAfter as their part; those of a
// module inside stand beside its operations in the part around it.
struct CastedLayer {
  std::optional<LayerSpec> layer;           // none: the layer as it is
  std::vector<std::optional<DType>> casts;  // per operation: dtype of an inserted cast
};

CastedLayer with_casts(const LayerSpec& layer, const ProgramOptions& options);

// Of every tensor: what arrives keeps its dtype until it is cast; sums and products of two dtypes are in the wider one.
std::vector<TensorElement> element_types(
    const LayerSpec& layer, const CastedLayer& casts, const ProgramOptions& options);

// Products make it.
inline bool has_product_gradient(const LayerSpec& layer, const ParameterSpec& parameter) {
  return layer.role != LayerRole::kEmbedding && parameter.shape.size() >= 2;
}

class LayerAutograd {
 public:
  // Throws Error(kInvalidInput) when sizes overflow.
  LayerAutograd(const LayerSpec& layer, const ProgramOptions& options);
  LayerAutograd& operator=(LayerAutograd&&) = delete;  // nor is it copied

  // --- the layer ---

  const LayerSpec& layer() const { return layer_; }
  const ProgramOptions& options() const { return options_; }
  std::size_t operations() const { return layer_.operations.size(); }
  const Operation& operation(std::size_t o) const { return layer_.operations[o]; }
  std::size_t tensors() const { return layer_.tensors.size(); }
  const TensorSpec& tensor(Index t) const { return layer_.tensors[at(t)]; }
  const ParameterSpec& parameter(Index p) const { return layer_.parameters[at(p)]; }
  const std::vector<std::int64_t>& bytes() const { return bytes_; }  // of every tensor
  std::int64_t bytes(Index t) const { return bytes_[at(t)]; }
  // Of a tensor that ranks share, of all its parts.
  std::int64_t whole_bytes(Index t) const { return checked_multiply(bytes(t), tensor(t).split); }
  // Of what a product gathers: the head does into memory that is always there.
  std::int64_t gathered_bytes(Index t) const { return layer_.role == LayerRole::kHead ? 0 : whole_bytes(t); }
  TensorElement element(Index t) const { return elements_[at(t)]; }
  KernelCounts counts() const { return {layer_, options_, bytes_}; }
  const ModuleSpans& modules() const { return modules_; }  // empty without ProgramOptions::hooks

  // Token ids belong to the micro-batch, not to the embedding.
  bool has_input_buffer() const { return layer_.role != LayerRole::kEmbedding; }
  bool is_loss() const { return layer_.role == LayerRole::kLoss; }
  bool is_flat() const { return options_.gradients == GradientStorage::kFlat; }
  // The output is the first input's storage.
  bool is_alias(const Operation& op) const;
  // The tensor whose storage the layer's output is.
  Index border() const { return border_; }

  // --- names ---

  // An argument of the module, as the input itself: its call holds it.
  bool is_cast_input(Index t) const;
  // Tensors whose names end with the operation.
  const Indices& releases(std::size_t o) const { return releases_[o]; }

  // --- nodes ---

  bool needs_gradient(Index t) const { return needs_[at(t)]; }
  bool has_node(std::size_t o) const { return node_[o]; }
  // A node of autograd's that no gradient reaches.
  bool is_unread(std::size_t o) const;
  bool trains(std::size_t o) const { return trains_[o]; }  // a weight of it gets a gradient
  const Indices& saves(std::size_t o) const;
  bool is_saved(Index t) const { return is_saved_[at(t)]; }

  // --- checkpointing ---

  // The layer is recomputed and something in it is saved: only then is it run again.
  bool is_checkpointed() const { return checkpointed_; }
  // Casts at the unit's borders are outside of what is checkpointed.
  bool inside(std::size_t o) const { return layer_.operations[o].part >= 0; }
  std::size_t first_inside() const;
  // What is checkpointed starts from: the layer's input or its cast, and what else a cast makes.
  Indices checkpoint_inputs() const;
  // What a reentrant checkpoint's backward holds; -1: no such checkpoint.
  Index reentrant_output() const;
  // Operations inside that save anything; weights count: they are saved for the input's gradient.
  std::size_t first_saver() const { return first_saver_; }
  std::size_t last_saver() const { return last_saver_; }

  // --- gradients of weights ---

  bool is_frozen(Index p) const;
  bool is_ignored(Index p) const {  // a norm outside FSDP
    return options_.ignores_norms && parameter(p).is_norm;
  }
  DType dtype_of(Index p) const { return is_ignored(p) ? options_.stored : options_.compute; }
  DType gradient_dtype_of(Index p) const {
    if (parameter(p).stored_as_computed) return options_.compute;
    return is_ignored(p) ? options_.stored : options_.gradient_dtype.value_or(options_.compute);
  }
  // Its gradient is added where it is kept, by the product that makes it.
  bool has_fused_gradient(Index p) const {
    return options_.fused_gradients && has_product_gradient(layer_, parameter(p)) &&
           (!parameter(p).tied || options_.fuses_tied);
  }
  std::int64_t gradient_bytes(Index p, DType dtype) const {
    if (has_fused_gradient(p)) return 0;
    const std::int64_t whole = parameter(p).gradient_numel;
    return checked_multiply(whole > 0 ? whole : parameter(p).numel(), size_of(dtype));
  }
  std::int64_t gradient_bytes(Index p) const { return gradient_bytes(p, gradient_dtype_of(p)); }
  // Of the gradient that another use made first: of a table the head's, which its product adds up.
  std::int64_t earlier_gradient_bytes(Index p) const {
    return options_.fuses_tied && layer_.role == LayerRole::kEmbedding ? 0 : gradient_bytes(p);
  }

 private:
  void find_releases();
  void find_border();
  void find_nodes();
  std::vector<bool> find_reached() const;

  const CastedLayer casts_;
  const LayerSpec& layer_;
  const ProgramOptions& options_;
  const std::vector<TensorElement> elements_;
  std::vector<std::int64_t> bytes_;
  std::vector<Indices> releases_;       // operations
  std::vector<Indices> weight_copies_;  // autocast's, which the input's gradient is made of
  Index border_ = 0;
  std::vector<bool> needs_, is_saved_;  // tensors
  std::vector<bool> node_, trains_;     // operations
  std::size_t first_saver_ = 0, last_saver_ = 0;
  bool checkpointed_ = false;
  ModuleSpans modules_;
};

}
