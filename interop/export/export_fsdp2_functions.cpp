// What the blocks of the exported script call: norms, rotary tables, attention, experts.
#include <fmt/format.h>

#include <string>

#include "interop/export/export_fsdp2_parts.h"
#include "models/parameter_names.h"

namespace foreshard {
namespace {

std::string norm_classes(const ModelDims& dims, const Plan& plan) {
  std::string result;
  const bool fp32 = plan.kernels.norm == ModuleKernels::Norm::kFp32;
  if (dims.norm == NormKind::kRms || dims.qk_norm != HeadNorm::kNone) {
    const std::string weight =
        dims.embedding_scale ? "(1 + self.weight)" : "self.weight";  // Gemma's
    std::string body;
    if (plan.kernels.norm == ModuleKernels::Norm::kEager ||
        plan.kernels.norm == ModuleKernels::Norm::kEagerFp32) {
      const bool weighs = plan.kernels.norm == ModuleKernels::Norm::kEagerFp32;
      body = fmt::format(R"(        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPSILON)
        return {}
)",
                         weighs ? "(" + weight + " * y).type_as(x)" : weight + " * y.type_as(x)");
    } else if (fp32) {
      body = fmt::format(
          "        y = F.rms_norm(x.float(), self.weight.shape, {}.float(), EPSILON)\n"
          "        return y.type_as(x)\n",
          weight);
    } else {
      body = fmt::format("        return F.rms_norm(x, self.weight.shape, {}, EPSILON)\n", weight);
    }
    result += R"(

class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
)" + body;
  }
  if (dims.norm != NormKind::kRms && fp32) {
    const bool bias = dims.norm == NormKind::kLayer;
    result += fmt::format(R"(

class LayerNorm(nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size, eps=EPSILON, bias={0})

    def forward(self, x):
        y = F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), {1}, EPSILON)
        return y.type_as(x)
)",
                          bias ? "True" : "False", bias ? "self.bias.float()" : "None");
  }
  return result;
}

// Rope scaling as RopeScaling (sim/spec/model_spec.h) has it.
std::string rescaled_frequencies(const ModelDims& dims) {
  const RopeScaling& scaling = dims.numerics.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kLinear) return "    frequencies /= ROPE_FACTOR\n";
  if (scaling.kind != RopeScaling::Kind::kLlama3) return "";
  return R"(    # Of Llama 3.1: what turns less than ROPE_LOW times in ROPE_POSITIONS is slowed by ROPE_FACTOR.
    turns = ROPE_POSITIONS * frequencies / (2 * torch.pi)
    kept = ((turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW)).clamp(0, 1)
    frequencies *= kept + (1 - kept) / ROPE_FACTOR
)";
}

std::string rotary_functions(const ModelDims& dims, const Plan& plan) {
  if (dims.positions == Positions::kAlibi) {
    return R"(

def position_bias(tokens, dtype):
    """ALiBi: a slope per head, times how far back a key lies; a causal mask is in it."""
    slopes = 2 ** (-8 * torch.arange(1, HEADS + 1, device=tokens.device) / HEADS)
    positions = torch.arange(SEQUENCE // DOCUMENTS, device=tokens.device)
    distance = positions[None, :] - positions[:, None]
    bias = slopes[:, None, None] * distance
    return bias.masked_fill(distance > 0, float("-inf")).to(dtype)
)";
  }
  if (dims.positions != Positions::kRotary) return "";
  std::string result = R"(

def angles(positions):
    """What every pair of elements of a head turns by, [positions, pairs]."""
    pairs = torch.arange(0, ROTARY, 2, device=positions.device).float()
    frequencies = ROPE_THETA ** (-pairs / ROTARY)
)" + rescaled_frequencies(dims) +
                       "    return torch.outer(positions.float(), frequencies)\n";
  const bool complex = plan.kernels.rope == ModuleKernels::Rope::kComplex;
  // Rows of the table of all positions, gathered for each sequence.
  const char* row = plan.mesh.cp > 1 ? ":, :, None" : "None, :, None";
  if (complex) {
    result += fmt::format(R"(

def rotary_table(positions, dtype):
    turn = angles(positions)
    return torch.polar(torch.ones_like(turn), turn)


def rotate(x, table):  # x: [batch, positions, heads, elements]
    y = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table[{}]
    return torch.view_as_real(y).flatten(3).type_as(x)
)",
                          row);
  } else {
    result += R"(

def rotary_table(positions, dtype):
    turn = torch.cat([angles(positions)] * 2, dim=-1)
    return torch.stack([turn.cos(), turn.sin()]).to(dtype)


def rotate(x, table):  # x: [batch, positions, heads, elements]
    cos, sin = table[:, None, :, None]
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
)";
  }
  if (dims.rotary_dim > 0 && dims.rotary_dim != dims.head_dim) {
    result += R"(

def rotate_part(x, table):
    return torch.cat([rotate(x[..., :ROTARY], table), x[..., ROTARY:]], dim=-1)
)";
  }
  return result;
}

std::string attention_function(const ModelDims& dims, const Plan& plan) {
  const bool alibi = dims.positions == Positions::kAlibi;
  const bool grouped = dims.kv_heads != dims.heads;
  std::string result = R"(

def attend(q, k, v)" + std::string(alibi ? ", bias" : "") +
                       R"():  # [batch, positions, heads, elements]; causal
)";
  if (plan.batch.documents > 1) {
    result +=
        R"(    q, k, v = (t.reshape(-1, SEQUENCE // DOCUMENTS, *t.shape[2:]) for t in (q, k, v))
)";
  }
  std::string options = alibi ? "attn_mask=bias" : "is_causal=True";
  result += "    q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n";
  if (grouped) {
    // The memory-efficient kernel takes no groups.
    const bool repeats = plan.attention == AttentionKernel::kEfficient ||
                         plan.attention == AttentionKernel::kFlashAllHeads || alibi;
    if (repeats) {
      result += "    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))\n";
    } else {
      result += R"(    groups = {"enable_gqa": True}
    if VERSION < (2, 5):
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        groups = {}
)";
      options += ", **groups";
    }
  }
  const bool ring = plan.mesh.cp > 1;
  if (ring) {
    result +=
        "    q, k, v = (DTensor.from_local(t, CP_MESH, [Shard(2)]) for t in (q, k, v))  # a ring\n";
  }
  const char* backend = nullptr;
  if (plan.attention == AttentionKernel::kCudnn) backend = "CUDNN_ATTENTION";
  if (plan.attention == AttentionKernel::kEfficient) backend = "EFFICIENT_ATTENTION";
  if (plan.attention == AttentionKernel::kMath) backend = "MATH";
  std::string indent = "    ";
  if (backend != nullptr) {
    result += fmt::format(R"(    kernel = contextlib.nullcontext()
    if q.is_cuda:
        kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{})
    with kernel:
)",
                          backend);
    indent += "    ";
  }
  result += fmt::format("{}y = F.scaled_dot_product_attention(q, k, v, {}){}\n", indent, options,
                        ring ? ".to_local()" : "");
  result +=
      fmt::format("    return y.transpose(1, 2).reshape(-1, SEQUENCE{}, HEADS * HEAD_DIM{})\n",
                  ring ? " // CP" : "", plan.mesh.tp > 1 ? " // TP" : "");
  return result;
}

std::string conv1d_class(const ModelDims& dims) {
  if (!dims.conv1d) return "";
  return R"(

class Conv1D(nn.Module):
    """A linear layer whose weight is stored [in, out], as in Hugging Face's GPT-2."""

    def __init__(self, size_in, size_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_in, size_out))
        self.bias = nn.Parameter(torch.zeros(size_out))

    def forward(self, x):
        y = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return y.reshape(*x.shape[:-1], -1)
)";
}

std::string expert_class(const ModelDims& dims, const Plan& plan) {
  if (dims.moe.experts == 0) return "";
  const ParameterNames& names = parameter_names(dims);
  const auto gate = names.expert_gate, up = names.expert_up, down = names.expert_down;
  const bool spread = plan.mesh.ep > 1;
  std::string result = spread ? python_exchange() : "";
  result += fmt::format(R"(

class Experts(nn.Module):
    """{3}"""

    def __init__(self):
        super().__init__()
        self.{0} = nn.Parameter(torch.empty(EXPERTS, EXPERT_FFN, HIDDEN))
        self.{1} = nn.Parameter(torch.empty(EXPERTS, EXPERT_FFN, HIDDEN))
        self.{2} = nn.Parameter(torch.empty(EXPERTS, HIDDEN, EXPERT_FFN))

    def {4}(self, rows, counts):
)",
                        gate, up, down,
                        spread ? "Experts of a block, a part on each rank of EP_MESH."
                               : "All experts of a block; each runs the rows that were sent to it.",
                        spread ? "_run" : "forward");
  const std::string own = spread ? ".to_local()" : "";
  result += fmt::format("        gate, up, down = self.{0}{3}, self.{1}{3}, self.{2}{3}\n", gate,
                        up, down, own);
  if (plan.experts == ExpertKernels::kGrouped) {
    result +=
        R"(        if rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
            ends = counts.cumsum(0).to(torch.int32)

            def product(x, weight):
                return torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)

            return product(F.silu(product(rows, gate)) * product(rows, up), down)
)";
  }
  result += R"(        results = []
        weights = zip(gate.unbind(), up.unbind(), down.unbind())
        for x, (gate, up, down) in zip(rows.split(counts.tolist()), weights):
            results.append(F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down))
        return torch.cat(results)
)";
  if (spread) result += python_dispatch();
  return result;
}

}  // namespace

std::string python_functions(const ModelDims& dims, const Plan& plan) {
  return norm_classes(dims, plan) + rotary_functions(dims, plan) + attention_function(dims, plan) +
         conv1d_class(dims) + expert_class(dims, plan);
}

}  // namespace foreshard
