// mesh.tp, mesh.cp of the exported FSDP2 script: which models they cut, and how.
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

void check_tensor_parallel(const Plan& plan, const ModelDims& dims) {
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
  if (plan.tensor_parallel.async) {
    refuse_script("tensor_parallel.async", "cut layers are eager here",
                  "tensor_parallel.async: false");
  }
}

void check_context_parallel(const Plan& plan, const ModelDims& dims) {
  if (plan.context_parallel.rotate == ContextParallel::Rotate::kUlysses) {
    refuse_script("context_parallel.rotate", "PyTorch's context parallel is a ring",
                  "context_parallel.rotate: allgather");
  }
  const bool rings =
      plan.attention == AttentionKernel::kFlash || plan.attention == AttentionKernel::kCudnn;
  if (!rings || dims.positions == Positions::kAlibi) {
    refuse_script("mesh.cp", "the ring is of flash or cuDNN's attention, without a mask",
                  "attention: flash, or mesh.cp: 1");
  }
}

std::string python_ring(const Plan& plan) {
  if (plan.mesh.cp == 1) return "";
  const bool balances = plan.context_parallel.balance == ContextParallel::Balance::kHeadTail;
  return fmt::format(R"(

def share_sequences():
    """Attention of tensors that are cut along the positions becomes PyTorch's ring attention."""
    global CP_MESH
    sizes = (dist.get_world_size() // (CP * TP), CP, TP)
    CP_MESH = init_device_mesh(DEVICE.type, sizes, mesh_dim_names=("batch", "cp", "inner"))["cp"]
    set_rotate_method("{}")
    _enable_context_parallel_dispatcher()


def own_part(inputs, *others):
    """The rank's positions of inputs, which these are, and of what else is of the sequences."""
    places = torch.arange(SEQUENCE, dtype=torch.int32, device=DEVICE).expand(inputs.shape)
    batch = [inputs, places, *others]
    balancer = {}
    return _context_parallel_shard(CP_MESH, batch, [1] * len(batch), balancer)
)",
                     to_string(plan.context_parallel.rotate),
                     balances ? "_HeadTailLoadBalancer(SEQUENCE, CP, DEVICE)" : "None");
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

}  // namespace

void check_script_axes(const Plan& plan, const ModelDims& dims) {
  if (plan.mesh.is_plain()) return;
  if (plan.compile != Compile::kNone) {
    refuse_script("compile", "layers with axes are eager here", "compile: none");
  }
  if (plan.offload != Offload::kNone) {
    refuse_script("offload", "gradients of axes are clipped on the GPU here", "offload: none");
  }
  if (plan.mesh.tp > 1) check_tensor_parallel(plan, dims);
  if (plan.mesh.cp > 1) check_context_parallel(plan, dims);
}

std::string python_axes(const ScriptJob& job) {
  return python_ring(job.plan) + python_cut(job.plan, job.names) + python_spread(job);
}

}  // namespace foreshard
