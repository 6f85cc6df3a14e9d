// Writes a layer down in the order in which PyTorch executes it: numbers tensors and parameters and adds one module at
// a time. Internal to models/; the dimensions must have passed build_model's checks.
//
// Which tensors a gradient needs is stated where the operation is, as derivatives.yaml of PyTorch does: a linear layer
// keeps its input; silu and gelu their input, relu and softmax their output; a product both factors; a norm its input
// and statistics; flash attention q, k, v, its output, logsumexp and two random-number seeds; sums, casts, views and
// the rotary product (whose table needs no gradient) nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/model_dims.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {

// A linear layer of `n` outputs from `k` inputs.
struct Linear {
  std::string_view name;    // of the module
  std::string_view result;  // name of the output tensor
  std::int64_t n = 0, k = 0;
  bool bias = false;
  bool conv1d = false;  // the weight is stored [k, n]
};

class LayerBuilder : public LayerWriter {
 public:
  LayerBuilder(std::string name, LayerRole role, TensorSpec input, Stack stack)
      : LayerWriter(std::move(name), role, std::move(input)), stack_(stack) {}
  bool is_native() const { return stack_ == Stack::kNative; }

  void widen(Index tensor) { layer_.tensors[at(tensor)].type = ElementType::kFp32; }
  Index parameter(std::string_view module, std::string_view suffix, std::vector<std::int64_t> shape);
  ParameterSpec& last_parameter() { return layer_.parameters.back(); }
  // The last ones are not trained.
  void fix_last_parameters(std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i)
      layer_.parameters.rbegin()[static_cast<std::ptrdiff_t>(i) - 1].trainable = false;
  }

  // One pass over memory. The functions below return the (first) output.
  Index elementwise(std::string_view name, Function function, Indices inputs, Indices saved, Index output);
  Index constant(std::string_view name, Function function, Indices inputs, Index output);
  // `rows` of a table by indices that nothing learns, which are kept.
  void look_up(std::string_view table, Indices ids, Index rows, Index parameter);
  // Views of one tensor; their gradients are concatenated.
  void split(std::string_view name, Index input, Indices outputs);  // or one expanded view
  // The gradients are views of the result's.
  Index concatenate(std::string_view name, Indices inputs);
  Index linear(const Linear& linear, Index input);
  // The last product is not on selective checkpointing's list and does not count there.
  void leave_off_selective();
  // With the given parameters: the weight, then perhaps a bias.
  Index matrix_product(const Linear& linear, Index input, Indices parameters);
  // `groups` > 1: each of so many slices of `width` elements is normalised by itself, with the same weight.
  Index norm(std::string_view name, std::string_view result, NormKind kind, std::int64_t width, Index input,
      std::int64_t groups = 1);
  Index residual_add(std::string_view name, std::int64_t width, Index residual, Index branch);
  // Training-time dropout where the model has it: keeps a mask of one byte per element.
  Index dropout(std::string_view name, bool drops, Index input);

  // Python's names end with the last operation (the engine lets go of everything after its last use).
  void release(const Indices& tensors);

  // Local names of a function that ends later; held() hands them to whom it returns to.
  void hold(const Indices& tensors) { append(held_, tensors); }
  Indices held() { return std::exchange(held_, {}); }

  // From here on parameters and operations belong to the module, which may be a unit of its own.
  void begin_nested(std::string module);
  void end_nested() { part_ = 0; }

 private:
  Stack stack_;
  Indices held_;
  int matrix_products_ = 0;
};

}
