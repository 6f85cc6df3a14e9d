// Operation order of transformers 5.17's Mamba-2 mixers (models/nemotron_h, bamba, mamba2:
// in_proj, mamba_split_conv1d_scan_combined) over mamba_ssm's kernels (mamba_ssm/ops/triton/ssd_combined.py of v2.3,
// MambaSplitConv1dScanCombinedFn): one function of autograd from z, x, B, C and dt to the mixer's result, which keeps
// what in_proj made, what the scan made and the norm's statistics, and computes the rest again in backward. The norm by
// groups is of y silu(z), and out_proj's input is made again by the norm's backward, so that out_proj keeps nothing.
// Without kernels, transformers' own loop over chunks is another computation.
//
// Megatron-Core's mixer (core/ssm/mamba_mixer.py) calls the function without norm and projection:
// the scan itself multiplies by silu(z) and keeps its result before that, too, and norm and
// out_proj are modules that keep their inputs.
#include "models/layers/mamba.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

// Where the scan multiplies by silu(z) it keeps what it made before that.
void gate_in_scan(LayerSpec& layer, Operation& scan) {
  TensorSpec spec = tensor(layer, scan.outputs.front());
  spec.name += " before its gate";
  const Index kept = add_tensor(layer, std::move(spec));
  std::ranges::replace(scan.saved, scan.outputs.front(), kept);
  scan.outputs.push_back(kept);
  scan.released.push_back(kept);
}

}

Index mix_by_scan(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input) {
  const Mamba& mamba = dims.mamba;
  const ScanShape& shape = mamba.scan;
  const std::int64_t inner = shape.inner(), convolved = shape.convolved();
  const std::string module = std::string(names.mamba) + ".";
  // Parameters of the module itself come before those of the modules in it.
  Indices of_scan;
  for (const char* name : {"dt_bias", "A_log", "D"}) of_scan.push_back(layer.parameter(module, name, {shape.heads}));
  of_scan.push_back(layer.parameter(module, "conv1d.weight", {convolved, 1, mamba.convolution}));
  of_scan.push_back(layer.parameter(module, "conv1d.bias", {convolved}));
  const std::string in_name = module + "in_proj", out_name = module + "out_proj";
  const Index projected = layer.linear({.name = in_name,
                                           .result = "z_x_b_c_dt",
                                           .n = inner + convolved + shape.heads,
                                           .k = dims.hidden,
                                           .bias = mamba.bias},
      input);
  const auto workspace = [&](const char* name, std::int64_t per_token, ElementType type) {
    return layer.activation(name, per_token, type);
  };
  // States of [head_dim, state] for every chunk (of which there is at least a part), and for every
  // position what it has in common with the others of its chunk.
  const std::int64_t states = std::max<std::int64_t>(1, inner * shape.state / shape.chunk);
  const std::int64_t pairs = shape.groups * shape.chunk;
  constexpr ElementType kWide = ElementType::kFp32, kNarrow = ElementType::kCompute;
  Operation& scan = layer.operation(module + "scan", OperationKind::kScan, Function::kScan);
  scan.scan = shape;
  scan.inputs = {projected};
  scan.parameters = std::move(of_scan);
  const Index scanned = layer.activation("scan", inner);
  scan.outputs = {scanned};
  scan.saved = {projected, scanned};
  const Index x = workspace("x_b_c convolved", convolved, kNarrow);
  scan.forward_workspace = {x, workspace("dt", 2 * shape.heads, kWide), workspace("states", states, kWide),
      workspace("passed states", states, kNarrow), workspace("pairs", pairs, kWide)};
  scan.backward_workspace = {x, workspace("x_b_c.grad", convolved, kNarrow),
      workspace("dt (backward)", 5 * shape.heads, kWide), workspace("states (backward)", 2 * states, kWide),
      workspace("passed states (backward)", 2 * states, kNarrow), workspace("pairs (backward)", 2 * pairs, kWide),
      workspace("b_c.grad", 2 * shape.shared(), kWide)};
  const Index normed =
      layer.norm(module + "norm", "scan_norm", NormKind::kRms, inner / shape.groups, scanned, shape.groups);
  layer.last_parameter().shape = {inner};
  layer.last().scan = shape;
  // out_proj's gradient of the weight reads what the norm's backward makes again.
  layer.last().backward_workspace = {layer.activation("scan_norm again", inner)};
  const Index made =
      layer.linear({.name = out_name, .result = "mixed", .n = dims.hidden, .k = inner, .bias = mamba.bias}, normed);
  layer.last().saved.clear();
  layer.release({projected, scanned, normed, input});
  return made;
}

void use_megatron_mixer(LayerSpec& layer) {
  const auto is_scan = [](const Operation& op) { return op.function == Function::kScan; };
  const auto scan = std::ranges::find_if(layer.operations, is_scan);
  if (scan == layer.operations.end()) return;
  const bool is_gated = !contains(scan->saved, scan->outputs.front());
  if (is_gated) return;
  gate_in_scan(layer, *scan);
  for (auto op = scan + 1; op != layer.operations.end(); ++op) {
    if (op->scan.heads == 0) continue;
    op->backward_workspace.clear();
    (op + 1)->saved = (op + 1)->inputs;
  }
}

}
