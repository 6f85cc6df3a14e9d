// mesh.tp of the exported FSDP2 script: which models it cuts, and how.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "interop/export/export_fsdp2_parts.h"

namespace foreshard {
namespace {

// The script cuts blocks of an attention and a gated layer of separate projections, behind a norm
// each; torchtitan's plan for Llama.
bool can_be_cut(const ModelDims& dims) {
  const bool is_llama = dims.positions == Positions::kRotary && dims.norm == NormKind::kRms &&
                        dims.residual == Residual::kPreNorm &&
                        dims.activation == Activation::kSwiGlu && dims.qk_norm == HeadNorm::kNone;
  return is_llama && dims.moe.experts == 0 && dims.latent.kv_rank == 0 && !dims.fused_qkv &&
         !dims.fused_gate_up && !dims.tied && !dims.embedding_norm && !dims.embedding_scale &&
         !dims.conv1d && !dims.output_bias && !dims.mlp_bias;
}

}  // namespace

void check_can_be_cut(const Plan& plan, const ModelDims& dims) {
  if (plan.mesh.tp == 1) return;
  const char* nearest = "--to torchtitan, or mesh.tp: 1";
  if (!can_be_cut(dims)) {
    refuse_script("mesh.tp",
                  "layers are cut as Llama's are (RMS norms, rotary, separate "
                  "projections, an untied head)",
                  nearest);
  }
  if (!plan.tensor_parallel.sequence) {
    refuse_script("tensor_parallel.sequence", "norms are of a part of the positions",
                  "tensor_parallel.sequence: true");
  }
  const bool is_eager = plan.loss.kind == Loss::Kind::kEager && plan.compile == Compile::kNone;
  if (plan.tensor_parallel.async || !is_eager) {
    refuse_script("mesh.tp", "cut layers and their loss are eager here",
                  "compile: none, loss: eager, tensor_parallel.async: false");
  }
  const bool plain = plan.recompute == RangedPolicy<Recompute>{} && !plan.frozen.any() &&
                     plan.offload == Offload::kNone && plan.batch.documents == 1 && !plan.autocast;
  if (!plain || plan.mesh.inner != MeshInner::kShard) {
    refuse_script("mesh.tp", "cut layers neither recompute nor offload here, nor are parts frozen",
                  nearest);
  }
}

// torchtitan's plan for Llama (models/llama3/infra/parallelize.py): one gather for what a norm
// made, one reduce-scatter for what a branch adds to the residual.
std::string python_cut(const Plan& plan, const ParameterNames& names) {
  if (plan.mesh.tp == 1) return "";
  std::string block;
  const auto add = [&](std::string_view module, const char* style) {
    block += fmt::format("                \"{}\": {},\n", module, style);
  };
  add(names.norm1, "SequenceParallel()");
  add(names.norm2, "SequenceParallel()");
  for (const auto& module : {names.q, names.k, names.v, names.gate, names.up}) {
    add(module, "columns");
  }
  for (const auto& module : {names.o, names.down}) add(module, "rows");
  const char* logits = plan.tensor_parallel.loss
                           ? "output_layouts=Shard(-1), use_local_output=False"
                           : "output_layouts=Replicate()";
  return fmt::format(R"(

def cut(model, mesh):
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    ends = {{
        "{}": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "{}": SequenceParallel(),
        "{}": ColwiseParallel(input_layouts=Shard(1), {}),
    }}
    parallelize_module(model, mesh, ends)
    for block in model.{}:
        parallelize_module(
            block,
            mesh,
            {{
{}            }},
        )
)",
                     names.embedding, names.final_norm, names.head, logits, names.blocks, block);
}

}  // namespace foreshard
