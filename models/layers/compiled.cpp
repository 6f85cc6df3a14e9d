// What is saved (torch/_functorch/partitioners.py, should_ban_recomputation and its cut of least bytes): a tensor of
// the forward that backward needs is computed again inside a kernel that backward runs anyhow, if what that reads is
// saved already or is smaller. Not so: results of products and attention ("compute intensive"), of reductions (1/rms)
// and what a product or attention reads in backward ("materialized in backward": norms' outputs, the product of gate
// and up). So of a Llama block only silu(gate) goes, of an eager norm the fp32 copies of its input; with float8 the
// products' inputs go too, because backward reads them through a cast, which fuses. With selective recompute what the
// policy keeps is saved only where backward needs it: the last product of the MLP is not.
//
// What fuses (torch/_inductor/scheduler.py): pointwise operations and reductions that follow each other and share a
// tensor, up to the next product, attention or operation that has a kernel of its own (complex numbers, sorts, random
// numbers). In backward the sums of gradients that meet at a tensor are part of the region that made it. The compiler
// sees one block at a time: FSDP's hooks between blocks break the graph.
//
// Products of widths that are no multiple of 16 bytes run padded (torch/_inductor/fx_passes/pad_mm.py, on by default
// since 2.1; XLA's cublas_pad_for_gemms does the same).
//
// float8: one quantised copy of an input serves all products that read it, and a tensorwise amax
// is found by the kernel that makes the input, where that is a generated one.
#include "models/layers/compiled.h"

#include <algorithm>
#include <vector>

#include "sim/base/lookup.h"

namespace foreshard {
namespace {

bool is_pointwise(const Operation& op) {
  return op.kind == OperationKind::kElementwise || op.kind == OperationKind::kNorm;
}

// Kernels of their own, or random numbers.
bool has_own_kernel(Function function) {
  return function == Function::kSort || function == Function::kTopK || function == Function::kScatterAdd ||
         function == Function::kDropout;
}

// --- what is saved ---

class Saved {
 public:
  explicit Saved(LayerSpec& layer) : layer_(layer), producer_(layer.tensors.size(), nullptr) {
    for (Operation& op : layer.operations)
      if (!op.outputs.empty()) producer_[at(op.outputs.front())] = &op;
  }

  void drop_what_is_cheap() {
    for (std::size_t t = 1; t < layer_.tensors.size(); ++t) {
      const auto index = static_cast<Index>(t);
      if (!is_saved(index) || !is_recomputable(index) || index == layer_.output || !fuses_into_backward(index))
        continue;
      std::vector<Source> sources;
      if (!find_sources(index, sources)) continue;
      if (const std::int64_t more = added(sources); more > 0 && more >= size(index)) continue;
      for (Operation& op : layer_.operations) std::erase(op.saved, index);
      for (const Source& source : sources) {
        Indices& saved = source.reader->saved;
        if (!contains(saved, source.tensor)) saved.push_back(source.tensor);
      }
    }
  }

 private:
  // Saved by the operation that reads it: later ones may find it gone.
  struct Source {
    Index tensor = 0;
    Operation* reader = nullptr;
  };

  static std::size_t at(Index t) { return static_cast<std::size_t>(t); }

  // Of a token, in halves of an fp32 element; rows of statistics are small, whatever their number.
  std::int64_t size(Index t) const {
    const TensorSpec& spec = layer_.tensors[at(t)];
    return (spec.per_token + spec.per_sequence) * (spec.type == ElementType::kFp32 ? 2 : 1);
  }
  // What saving them takes beyond what is saved already.
  std::int64_t added(const std::vector<Source>& sources) const {
    std::int64_t sum = 0;
    Indices counted;
    for (const Source& source : sources) {
      if (is_saved(source.tensor) || contains(counted, source.tensor)) continue;
      counted.push_back(source.tensor);
      sum += size(source.tensor);
    }
    return sum;
  }
  bool is_overwritten(Index t) const {
    return std::ranges::any_of(
        layer_.operations, [&](const Operation& op) { return op.in_place && op.inputs.front() == t; });
  }
  bool is_saved(Index t) const {
    return t == 0 || std::ranges::any_of(
                         layer_.operations, [&](const Operation& op) { return contains(op.saved, t); });
  }
  // The main result of a pointwise operation or of a norm.
  bool is_recomputable(Index t) const {
    const Operation* op = producer_[at(t)];
    return op != nullptr && is_pointwise(*op) && !has_own_kernel(op->function) && !op->in_place && !op->view &&
           op->function != Function::kColumnSum;
  }
  bool fuses_into_backward(Index t) const {
    return std::ranges::all_of(
        layer_.operations,
        [&](const Operation& op) {
          if (!contains(op.saved, t)) return true;
          if (op.kind == OperationKind::kGemm) return op.fp8 != Float8::kNone;
          return op.kind != OperationKind::kAttention;
        });
  }
  // What `t` is computed from: saved tensors, or ones that could be. A norm's statistics are saved,
  // its own gradient needs them.
  bool find_sources(Index t, std::vector<Source>& sources) const {
    Operation* reader = producer_[at(t)];
    for (const Index input : reader->inputs) {
      std::vector<Source> below;
      const bool is_deeper = !is_saved(input) && is_recomputable(input) && find_sources(input, below);
      if (is_deeper && added(below) < size(input)) {
        append(sources, below);
        continue;
      }
      if (!is_saved(input) && is_overwritten(input)) return false;
      sources.push_back({input, reader});
    }
    return true;
  }

  LayerSpec& layer_;
  std::vector<Operation*> producer_;  // of each tensor that is a first output
};

// Kept for nothing: backward needs neither the result nor anything computed from it again.
void keep_only_what_is_needed(LayerSpec& layer) {
  for (Operation& op : layer.operations) {
    if (op.kind != OperationKind::kGemm) continue;
    const Index result = op.outputs.front();
    const bool needed = std::ranges::any_of(layer.operations, [&](const Operation& reader) {
      return contains(reader.saved, result) ||
             (contains(reader.inputs, result) && reader.outputs.front() != layer.output);
    });
    if (!needed) op.kept_by_selective = false;
  }
}

// --- what fuses ---

bool fuses(const Operation& op) {
  return is_pointwise(op) && !has_own_kernel(op.function) && op.function != Function::kRotary &&
         op.function != Function::kGather && op.function != Function::kDequantize && !op.in_place && !op.view &&
         !op.host_reads && !op.outputs.empty();
}

bool shares_tensor(const Operation& op, const Indices& tensors) {
  return std::ranges::any_of(
      op.inputs, [&](Index t) { return contains(tensors, t); });
}

void number_regions(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  Indices tensors;  // of the region that is open
  const Operation* first = nullptr;
  Index regions = 0;
  for (Operation& op : ops) {
    if (op.view) continue;
    if (!fuses(op)) {
      first = nullptr;
      continue;
    }
    if (first == nullptr || first->part != op.part || !shares_tensor(op, tensors)) {
      first = &op;
      tensors.clear();
      ++regions;
    }
    op.region = static_cast<Index>(regions - 1);
    append(tensors, op.inputs);
    append(tensors, op.outputs);
  }
}

// What only the region itself reads.
void keep_in_registers(LayerSpec& layer) {
  for (const Operation& op : layer.operations) {
    if (op.region < 0 || op.kept_by_selective) continue;
    for (const Index t : op.outputs) {
      const bool outside = std::ranges::any_of(layer.operations, [&](const Operation& other) {
        return contains(other.saved, t) || (contains(other.inputs, t) && other.region != op.region);
      });
      layer.tensors[static_cast<std::size_t>(t)].in_registers = !outside && t != layer.output;
    }
  }
}

void fuse_regions(LayerSpec& layer) {
  number_regions(layer);
  keep_in_registers(layer);
  for (Operation& op : layer.operations)
    if (op.region >= 0) op.eager_norm = false;
}

// --- float8 ---

void share_quantised_inputs(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  for (std::size_t o = 0; o < ops.size(); ++o) {
    if (ops[o].fp8 == Float8::kNone) continue;
    const Index input = ops[o].inputs.front();
    const auto earlier = ops.begin() + o;
    ops[o].shares_fp8_input = std::any_of(
        ops.begin(), earlier,
        [&](const Operation& other) { return other.fp8 == ops[o].fp8 && other.inputs.front() == input; });
    ops[o].amax_in_producer =
        ops[o].fp8 == Float8::kTensorwise && std::any_of(ops.begin(), earlier, [&](const Operation& other) {
          return fuses(other) && contains(other.outputs, input);
        });
  }
}

}

// silu(a) * b is one operation, where b is: the product that makes b may stand between them, which
// would part them in regions. silu(a) is never written. Liger's kernels (in_place) are of gelu(a), too.
void fuse_silu(LayerSpec& layer, bool in_place) {
  std::vector<Operation>& ops = layer.operations;
  for (std::size_t s = 0; s < ops.size(); ++s) {
    if (ops[s].function != Function::kSilu && !(in_place && ops[s].function == Function::kGelu)) continue;
    const Index silu = ops[s].outputs.front();
    const auto reads = [&](const Operation& op) { return contains(op.inputs, silu); };
    if (std::count_if(ops.begin(), ops.end(), reads) != 1) continue;
    Operation& product = *std::find_if(ops.begin(), ops.end(), reads);
    if (product.function != Function::kMultiply) continue;
    product.function = Function::kSiluMultiply;
    product.in_place = in_place;
    std::replace(product.inputs.begin(), product.inputs.end(), silu, ops[s].inputs.front());
    std::replace(product.saved.begin(), product.saved.end(), silu, ops[s].inputs.front());
    product.released.insert(product.released.end(), ops[s].released.begin(), ops[s].released.end());
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(s--));
  }
}

void pad_products(LayerSpec& layer) {
  for (Operation& op : layer.operations) op.pads = op.kind == OperationKind::kGemm && op.fp8 == Float8::kNone;
}

void compile(LayerSpec& layer) {
  pad_products(layer);
  fuse_silu(layer);
  Saved(layer).drop_what_is_cheap();
  keep_only_what_is_needed(layer);
  fuse_regions(layer);
  share_quantised_inputs(layer);
}

}
