// The first product of an input takes in the later ones: all that they read is there already.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {
namespace {

// Of one weight, or of as many as there are experts.
bool is_plain_product(const LayerSpec& layer, const Operation& op) {
  return op.kind == OperationKind::kGemm && !op.packed && op.inputs.size() == 1 && op.outputs.size() == 1 &&
         !contains(op.name, ".lora_") &&  // adapters are modules of their own (Megatron-Bridge's canonical_lora.py)
         layer.parameters[at(op.parameters.front())].shape.size() == (op.groups > 1 ? 3 : 2) &&
         std::ranges::none_of(
             op.parameters, [&](Index p) { return layer.parameters[at(p)].tied; }) &&
         // (What experts read is a module of its own.)
         std::ranges::none_of(
             layer.operations,
             [&](const Operation& rows) {
               return rows.name == "gather_rows" && rows.inputs.front() == op.outputs.front();
             });
}

bool go_together(const Operation& a, const Operation& b) {
  return a.inputs == b.inputs && a.k == b.k && a.part == b.part && a.fp8 == b.fp8 && a.groups == b.groups &&
         a.rows == b.rows && a.transposed_weight == b.transposed_weight && a.parameters.size() == b.parameters.size();
}

// Weights and biases of `from` become the last rows of those of `into`.
void append_rows(LayerSpec& layer, const Operation& from, const Operation& into) {
  for (std::size_t i = 0; i < from.parameters.size(); ++i) {
    const ParameterSpec& rows = layer.parameters[at(from.parameters[i])];
    ParameterSpec& all = layer.parameters[at(into.parameters[i])];
    const bool is_second = from.groups > 1 || (i == 0 && from.transposed_weight);
    const std::size_t dim = is_second ? 1 : 0;
    all.shape[dim] += rows.shape[dim];
  }
}

void erase_parameters(LayerSpec& layer, Indices gone) {
  std::ranges::sort(gone);
  for (auto p = gone.rbegin(); p != gone.rend(); ++p) layer.parameters.erase(layer.parameters.begin() + *p);
  for (Operation& op : layer.operations)
    for (Index& p : op.parameters)
      p = static_cast<Index>(p - (std::lower_bound(gone.begin(), gone.end(), p) - gone.begin()));
}

// Each product to latents is a module (core/transformer/multi_latent_attention.py).
Indices read_by_latents(const LayerSpec& layer) {
  for (const Operation& op : layer.operations)
    if (op.kind == OperationKind::kGemm && is_latent(layer.parameters[at(op.parameters.front())])) return op.inputs;
  return {};
}

// Products like operation `first` behind it are taken out; what they were the last to name is let
// go of by the operation that now stands there.
std::vector<Operation> take_out_like(LayerSpec& layer, std::size_t first) {
  std::vector<Operation> taken;
  for (std::size_t o = first + 1; o < layer.operations.size();) {
    Operation& op = layer.operations[o];
    if (!is_plain_product(layer, op) || !go_together(layer.operations[first], op)) {
      ++o;
      continue;
    }
    if (o + 1 < layer.operations.size()) {
      Indices& released = layer.operations[o + 1].released;
      append(released, op.released);
    }
    taken.push_back(std::move(op));
    layer.operations.erase(layer.operations.begin() + o);
  }
  return taken;
}

}

LayerSpec fuse_columns(LayerSpec layer, std::ptrdiff_t exactly) {
  Indices gone;
  const Indices latents_of = read_by_latents(layer);
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (exactly > 0 && layer.operations[o].kind == OperationKind::kAttention) break;
    if (!is_plain_product(layer, layer.operations[o])) continue;
    if (layer.operations[o].inputs == latents_of) continue;
    const auto goes = [&](const Operation& op) {
      return is_plain_product(layer, op) && go_together(layer.operations[o], op);
    };
    if (exactly > 0 && std::ranges::count_if(layer.operations, goes) != exactly) continue;
    const std::vector<Operation> others = take_out_like(layer, o);
    if (others.empty()) continue;
    Operation& product = layer.operations[o];
    Operation split;
    split.name = product.name + "_split";
    split.function = Function::kCopy;
    split.view = true;
    split.part = product.part;
    split.outputs = product.outputs;
    TensorSpec wide = layer.tensors[at(product.outputs.front())];
    for (const Operation& other : others) {
      append_rows(layer, other, product);
      append(gone, other.parameters);
      product.n += other.n;
      wide.per_token += layer.tensors[at(other.outputs.front())].per_token;
      wide.name += "_" + layer.tensors[at(other.outputs.front())].name;
      split.outputs.push_back(other.outputs.front());
    }
    layer.tensors.push_back(std::move(wide));
    split.inputs = {static_cast<Index>(layer.tensors.size() - 1)};
    product.outputs = split.inputs;
    split.released = split.inputs;
    layer.operations.insert(layer.operations.begin() + o + 1, std::move(split));
  }
  erase_parameters(layer, std::move(gone));
  return layer;
}

LayerSpec keep_narrow_inputs(LayerSpec layer) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    Operation& op = layer.operations[o];
    if (op.kind != OperationKind::kGemm || op.fp8 == Float8::kNone) continue;
    const Index input = op.inputs.front();
    std::erase(op.saved, input);
    const bool stays = op.fp8 != Float8::kDelayed && std::ranges::any_of(layer.operations, [&](const Operation& other) {
      const bool reads = &other != &op && other.kind == OperationKind::kGemm && other.inputs.front() == input;
      return reads || (other.kind == OperationKind::kAttention && contains(other.saved, input));
    });
    if (stays) {
      op.saved.push_back(input);
      continue;
    }
    TensorSpec narrow = layer.tensors[at(input)];
    narrow.name += " in fp8";
    narrow.type = ElementType::kByte;
    narrow.per_token = narrow_bytes(op.fp8, narrow.per_token);
    narrow.fixed = narrow_bytes(op.fp8, narrow.fixed);
    op.outputs.push_back(add_tensor(layer, std::move(narrow)));
    op.saved.push_back(op.outputs.back());
  }
  return layer;
}

LayerSpec unpack_attention(LayerSpec layer) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (!reads_packed_projection(layer.operations[o])) continue;
    Operation& attention = layer.operations[o];
    const Index packed = attention.inputs.front();
    Operation split;
    split.name = attention.name + "_split";
    split.function = Function::kCopy;
    split.view = true;
    split.part = attention.part;
    split.inputs = {packed};
    for (const Index gradient : attention.backward_temporaries) {
      TensorSpec view = layer.tensors[at(gradient)];
      view.name = layer.tensors[at(packed)].name + " for " + view.name;
      layer.tensors.push_back(std::move(view));
      split.outputs.push_back(static_cast<Index>(layer.tensors.size() - 1));
    }
    if (std::erase(attention.saved, packed) > 0)
      attention.saved.insert(attention.saved.begin(), split.outputs.begin(), split.outputs.end());
    attention.inputs = split.outputs;
    attention.backward_temporaries.clear();
    for (Operation& op : layer.operations) {
      if (std::erase(op.released, packed) == 0) continue;
      append(op.released, split.outputs);
      split.released = split.inputs;
    }
    layer.operations.insert(layer.operations.begin() + (o++), std::move(split));
  }
  return layer;
}

namespace {

// A tensor of its own with what `from` has, behind `suffix`; the copy stands in front of operation `o`.
Index copy_before(LayerSpec& layer, std::size_t o, Index from, const char* suffix) {
  TensorSpec spec = layer.tensors[at(from)];
  spec.name += suffix;
  const Index copied = add_tensor(layer, std::move(spec));
  Operation copy;
  copy.name = layer.tensors[at(copied)].name;
  copy.function = Function::kCopy;
  copy.gradient = GradientRule::kAlias;
  copy.part = layer.operations[std::min(o, layer.operations.size() - 1)].part;
  copy.inputs = copy.released = {from};
  copy.outputs = {copied};
  layer.operations.insert(layer.operations.begin() + o, std::move(copy));
  return copied;
}

}

LayerSpec copy_values(LayerSpec layer) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (layer.operations[o].kind != OperationKind::kAttention) continue;
    if (layer.operations[o].inputs.size() < 3) continue;
    const Index query = layer.operations[o].inputs[0], value = layer.operations[o].inputs[2];
    const bool is_part = std::ranges::any_of(layer.operations, [&](const Operation& split) {
      return split.view && std::ranges::count(split.outputs, value) > 0 &&
             std::ranges::count(split.outputs, query) == 0;
    });
    if (!is_part) continue;
    const Index copied = copy_before(layer, o++, value, "_contiguous");
    renumber(layer.operations[o], [&](Index t) { return t == value ? copied : t; });
  }
  return layer;
}

LayerSpec copy_around_attention(LayerSpec layer, bool values, bool result) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    if (layer.operations[o].kind != OperationKind::kAttention || layer.operations[o].inputs.size() < 3) continue;
    if (values && layer.operations[o].attention.kv_heads < layer.operations[o].attention.heads) {
      const Index value = layer.operations[o].inputs[2], copied = copy_before(layer, o++, value, "_beside_keys");
      renumber(layer.operations[o], [&](Index t) { return t == value ? copied : t; });
    }
    if (!result) continue;
    const Index made = layer.operations[o].outputs.front(), copied = copy_before(layer, ++o, made, "_by_positions");
    for (std::size_t later = o + 1; later < layer.operations.size(); ++later)
      renumber(layer.operations[later], [&](Index t) { return t == made ? copied : t; });
  }
  return layer;
}

LayerSpec copy_keys(LayerSpec layer, std::int64_t ranks) {
  const auto is_shared = [&](const Operation& op) {
    return op.kind == OperationKind::kAttention && op.attention.kv_heads < ranks;
  };
  if (std::ranges::none_of(layer.operations, is_shared)) return layer;
  layer = unpack_attention(std::move(layer));
  for (std::size_t a = 0; a < layer.operations.size(); ++a) {
    AttentionShape& shape = layer.operations[a].attention;
    if (!is_shared(layer.operations[a])) continue;
    const std::int64_t copies = ranks / std::exchange(shape.kv_heads, ranks);
    std::vector<bool> is_copied(layer.tensors.size(), false);
    const auto copy = [&](const Indices& tensors, std::size_t from = 0) {
      for (std::size_t i = from; i < tensors.size(); ++i) {
        if (is_copied[at(tensors[i])]) continue;
        is_copied[at(tensors[i])] = true;
        layer.tensors[at(tensors[i])].per_token *= copies;
      }
    };
    copy(layer.operations[a].inputs, 1);
    for (std::size_t o = a; o-- > 0;) {
      const Operation& op = layer.operations[o];
      if (!is_copied[at(op.outputs.front())]) continue;
      for (const Indices* list :
          {&op.inputs, &op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace, &op.backward_workspace})
        copy(*list);
    }
  }
  return layer;
}

}
