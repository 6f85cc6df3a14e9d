// Modules are created by their Hugging Face names ("self_attn.q_proj" is attribute q_proj of a
// container self_attn), sizes are written with the script's constants. A block's forward calls them
// in the order of models/layers/layers.cpp.
#include <fmt/format.h>

#include <set>
#include <string>

#include "interop/export/export_fsdp2.h"
#include "interop/export/export_fsdp2_parts.h"
#include "models/parameter_names.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

// Lines of a constructor: `self.a.b = ...`, containers first.
class Constructor {
 public:
  void add(std::string_view module, const std::string& value) {
    for (std::size_t dot = module.find('.'); dot != std::string_view::npos;
         dot = module.find('.', dot + 1)) {
      const std::string container(module.substr(0, dot));
      if (!containers_.insert(container).second) continue;
      line(fmt::format("self.{} = nn.Module()", container));
    }
    line(fmt::format("self.{} = {}", module, value));
  }
  void line(const std::string& content) { text_ += indent_ + content + "\n"; }
  void indent(int levels) { indent_ = std::string(at(levels) * 4, ' '); }
  const std::string& text() const { return text_; }

 private:
  std::set<std::string> containers_;
  std::string text_;
  std::string indent_ = "        ";
};

class ModelWriter {
 public:
  ModelWriter(const ModelDims& dims, const Plan& plan)
      : dims_(dims), plan_(plan), names_(parameter_names(dims)) {}

  std::string write() { return python_functions(dims_, plan_) + block_class() + model_class(); }

 private:
  bool is_gated() const {
    return dims_.activation == Activation::kSwiGlu || dims_.activation == Activation::kGeGlu;
  }
  bool has_dense() const {
    for (std::int64_t i = 0; i < dims_.layers; ++i) {
      if (!has_experts(dims_, i)) return true;
    }
    return false;
  }
  bool is_rotary() const { return dims_.positions == Positions::kRotary; }
  bool shares_sequences() const { return plan_.mesh.cp > 1; }
  // Rows of the whole table, gathered in each block; else the table is of the rank's positions.
  bool gathers_rows() const {
    return shares_sequences() && is_rotary() && plan_.kernels.rope == ModuleKernels::Rope::kComplex;
  }

  std::string norm(const std::string& size) const {
    if (dims_.norm == NormKind::kRms) return fmt::format("RMSNorm({})", size);
    if (plan_.kernels.norm == ModuleKernels::Norm::kFp32) return fmt::format("LayerNorm({})", size);
    return fmt::format("nn.LayerNorm({}, eps=EPSILON{})", size,
                       dims_.norm == NormKind::kLayerWithoutBias ? ", bias=False" : "");
  }
  std::string linear(const std::string& in, const std::string& out, bool bias) const {
    if (dims_.conv1d) return fmt::format("Conv1D({}, {})", in, out);
    return fmt::format("nn.Linear({}, {}{})", in, out, bias ? "" : ", bias=False");
  }

  void add_attention(Constructor& init) const {
    const bool bias = dims_.qkv_bias;
    const std::string q = "HEADS * HEAD_DIM", kv = "KV_HEADS * HEAD_DIM";
    if (dims_.fused_qkv) {
      init.add(names_.qkv, linear("HIDDEN", "(HEADS + 2 * KV_HEADS) * HEAD_DIM", bias));
    } else {
      init.add(names_.q, linear("HIDDEN", q, bias));
      init.add(names_.k, linear("HIDDEN", kv, bias));
      init.add(names_.v, linear("HIDDEN", kv, bias));
    }
    if (dims_.qk_norm != HeadNorm::kNone) {
      init.add(names_.q_norm, "RMSNorm(HEAD_DIM)");
      init.add(names_.k_norm, "RMSNorm(HEAD_DIM)");
    }
    init.add(names_.o, linear(q, "HIDDEN", dims_.output_bias));
  }

  void add_gated(Constructor& init, std::string_view gate, std::string_view up,
                 std::string_view down, const std::string& width) const {
    init.add(gate, linear("HIDDEN", width, dims_.mlp_bias));
    init.add(up, linear("HIDDEN", width, dims_.mlp_bias));
    init.add(down, linear(width, "HIDDEN", dims_.mlp_bias));
  }

  void add_dense(Constructor& init) const {
    if (is_gated() && !dims_.fused_gate_up) {
      add_gated(init, names_.gate, names_.up, names_.down, "FFN");
      return;
    }
    init.add(is_gated() ? names_.gate_up : names_.up,
             linear("HIDDEN", is_gated() ? "2 * FFN" : "FFN", dims_.mlp_bias));
    init.add(names_.down, linear("FFN", "HIDDEN", dims_.mlp_bias));
  }

  void add_experts(Constructor& init) const {
    init.add(names_.router, "nn.Linear(HIDDEN, EXPERTS, bias=False)");
    init.add(names_.experts, "Experts()");
    if (dims_.moe.shared_ffn == 0) return;
    add_gated(init, names_.shared_expert_gate, names_.shared_expert_up, names_.shared_expert_down,
              "SHARED_FFN");
    if (dims_.moe.shared_gate) init.add(names_.shared_gate, "nn.Linear(HIDDEN, 1, bias=False)");
  }

  std::string block_class() const {
    const bool mixed = dims_.moe.experts > 0, dense = has_dense();
    Constructor init;
    init.add(names_.norm1, norm("HIDDEN"));
    add_attention(init);
    if (!names_.post_attention_norm.empty()) init.add(names_.post_attention_norm, norm("HIDDEN"));
    if (dims_.residual != Residual::kParallelOfOneNorm) init.add(names_.norm2, norm("HIDDEN"));
    if (mixed && dense) {
      init.line("self.routes = number not in DENSE_LAYERS");
      init.line("if self.routes:");
      init.indent(3);
      Constructor experts;  // containers of its own: both branches make theirs
      experts.indent(3);
      add_experts(experts);
      Constructor plain;
      plain.indent(3);
      add_dense(plain);
      return block_text(init.text() + experts.text() + "        else:\n" + plain.text());
    }
    if (mixed) add_experts(init);
    if (!mixed) add_dense(init);
    if (!names_.post_mlp_norm.empty()) init.add(names_.post_mlp_norm, norm("HIDDEN"));
    return block_text(init.text());
  }

  std::string block_text(const std::string& constructor) const {
    return fmt::format(R"(

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
{}
    def forward(self, x{}):
{}{}{})",
                       constructor, extra(), block_forward(), attention_method(),
                       feed_forward_method());
  }

  // The further argument of a block: the rotary table or ALiBi's bias.
  std::string extra() const {
    if (dims_.positions == Positions::kLearned) return "";
    if (gathers_rows()) return ", table, positions";
    return is_rotary() ? ", table" : ", bias";
  }

  std::string block_forward() const {
    const std::string more = extra();
    const auto n1 = names_.norm1, n2 = names_.norm2;
    switch (dims_.residual) {
      case Residual::kSandwich:
        return fmt::format(R"(        x = x + self.{2}(self._attend(self.{0}(x){4}))
        return x + self.{3}(self._feed_forward(self.{1}(x)))
)",
                           n1, n2, names_.post_attention_norm, names_.post_mlp_norm, more);
      case Residual::kParallel:
        return fmt::format(
            "        return x + (self._feed_forward(self.{1}(x)) + self._attend(self.{0}(x){2}))\n",
            n1, n2, more);
      case Residual::kParallelOfOneNorm:
        return fmt::format(R"(        y = self.{0}(x)
        return x + (self._feed_forward(y) + self._attend(y{1}))
)",
                           n1, more);
      default:
        return fmt::format(R"(        x = x + self._attend(self.{0}(x){2})
        return x + self._feed_forward(self.{1}(x))
)",
                           n1, n2, more);
    }
  }

  // What a norm makes of the rank's positions, of all for the projections that read it.
  std::string gathered() const {
    return plan_.mesh.tp > 1 ? "        x = x.redistribute(placements=[Replicate()])\n" : "";
  }

  std::string attention_method() const {
    std::string result = fmt::format("\n    def _attend(self, x{}):\n{}", extra(), gathered());
    if (dims_.fused_qkv) {
      result += fmt::format(
          R"(        sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        q, k, v = self.{}(x).split(sizes, dim=-1)
)",
          names_.qkv);
    } else {
      result += fmt::format("        q, k, v = self.{}(x), self.{}(x), self.{}(x)\n", names_.q,
                            names_.k, names_.v);
    }
    result += "        q, k, v = (t.unflatten(-1, (-1, HEAD_DIM)) for t in (q, k, v))\n";
    if (dims_.qk_norm != HeadNorm::kNone) {
      result +=
          fmt::format("        q, k = self.{}(q), self.{}(k)\n", names_.q_norm, names_.k_norm);
    }
    if (gathers_rows()) result += "        table = table[positions]\n";
    if (is_rotary()) {
      const bool part = dims_.rotary_dim > 0 && dims_.rotary_dim != dims_.head_dim;
      result += fmt::format("        q, k = {0}(q, table), {0}(k, table)\n",
                            part ? "rotate_part" : "rotate");
    }
    const bool alibi = dims_.positions == Positions::kAlibi;
    return result + fmt::format("        return self.{}(attend(q, k, v{}))\n", names_.o,
                                alibi ? ", bias" : "");
  }

  std::string gelu() const {
    return dims_.numerics.gelu_tanh ? "F.gelu({}, approximate=\"tanh\")" : "F.gelu({})";
  }

  std::string activated(const std::string& x) const {
    switch (dims_.activation) {
      case Activation::kSwiGlu:
        return fmt::format("F.silu({})", x);
      case Activation::kRelu:
        return fmt::format("F.relu({})", x);
      case Activation::kRelu2:
        return fmt::format("F.relu({}).square()", x);
      case Activation::kGeGlu:
      case Activation::kGelu:
      case Activation::kXielu:
      case Activation::kReGlu2:
        break;
    }
    return fmt::format(fmt::runtime(gelu()), x);
  }

  std::string dense_body() const {
    if (!is_gated()) {
      return fmt::format("        return self.{}({})\n", names_.down,
                         activated(fmt::format("self.{}(x)", names_.up)));
    }
    if (dims_.fused_gate_up) {
      return fmt::format(R"(        gate, up = self.{}(x).chunk(2, dim=-1)
        return self.{}(up * {})
)",
                         names_.gate_up, names_.down, activated("gate"));
    }
    return fmt::format("        return self.{}({} * self.{}(x))\n", names_.down,
                       activated(fmt::format("self.{}(x)", names_.gate)), names_.up);
  }

  std::string feed_forward_method() const {
    std::string result = "\n    def _feed_forward(self, x):\n" + gathered();
    if (dims_.moe.experts == 0) return result + dense_body();
    if (has_dense()) {
      result += "        if self.routes:\n            return self._route(x)\n" + dense_body();
      result += "\n    def _route(self, x):\n";
    }
    const Experts& moe = dims_.moe;
    result += fmt::format(R"(        shape, x = x.shape, x.reshape(-1, HIDDEN)
        every = self.{}(x).float().{}
        scores, chosen = every.topk(TOP_K, dim=-1)
)",
                          names_.router, moe.sigmoid ? "sigmoid()" : "softmax(dim=-1)");
    if (plan_.mesh.ep > 1) {
      result += R"(        if BALANCED:
            chosen = torch.arange(chosen.numel(), device=x.device).view_as(chosen) % EXPERTS
            scores = every.gather(1, chosen)
)";
    }
    if (moe.normalized) result += "        scores = scores / scores.sum(dim=-1, keepdim=True)\n";
    result += fmt::format(R"(        chosen, scores = chosen.flatten(), scores.flatten()
        order = chosen.argsort(stable=True)
        token = order // TOP_K
        y = self.{}(x[token], torch.bincount(chosen, minlength=EXPERTS))
        y = (y.float() * scores[order, None]).type_as(x)
)",
                          names_.experts);
    std::string base = "torch.zeros_like(x)";
    if (moe.shared_ffn > 0) {
      base = "shared";
      result += fmt::format("        shared = self.{}(F.silu(self.{}(x)) * self.{}(x))\n",
                            names_.shared_expert_down, names_.shared_expert_gate,
                            names_.shared_expert_up);
      if (moe.shared_gate) {
        result += fmt::format("        shared = shared * torch.sigmoid(self.{}(x))\n",
                              names_.shared_gate);
      }
    }
    return result + fmt::format("        return {}.index_add(0, token, y).reshape(shape)\n", base);
  }

  std::string model_class() const {
    Constructor init;
    init.add(names_.embedding, "nn.Embedding(VOCABULARY, HIDDEN)");
    const bool learned = dims_.positions == Positions::kLearned;
    if (learned) init.add(names_.positions, "nn.Embedding(POSITION_ROWS, HIDDEN)");
    if (dims_.embedding_norm) init.add(names_.embedding_norm, norm("HIDDEN"));
    init.add(names_.blocks, "nn.ModuleList(Block(i) for i in range(LAYERS))");
    init.add(names_.final_norm, norm("HIDDEN"));
    init.add(names_.head, "nn.Linear(HIDDEN, VOCABULARY, bias=False)");
    if (dims_.tied)
      init.line(fmt::format("self.{}.weight = self.{}.weight", names_.head, names_.embedding));
    if (!learned) init.line("self.table = None");
    std::string forward = fmt::format("        x = self.{}(tokens)\n", names_.embedding);
    const std::string all =
        "torch.arange(SEQUENCE, device=tokens.device) % (SEQUENCE // DOCUMENTS)";
    if (learned) {
      if (!shares_sequences()) forward += fmt::format("        positions = {}\n", all);
      forward += fmt::format(
          "        x = x + self.{}(positions{})\n", names_.positions,
          dims_.position_rows > dims_.max_positions ? " + (POSITION_ROWS - POSITIONS)" : "");
    }
    if (dims_.embedding_scale) forward += "        x = x * HIDDEN**0.5\n";
    if (dims_.embedding_norm) {
      forward += fmt::format("        x = self.{}(x)\n", names_.embedding_norm);
    }
    if (!learned) forward += "        if self.table is None:\n";
    if (is_rotary()) {
      const bool own = shares_sequences() && !gathers_rows();
      forward += fmt::format("            places = {}\n", own ? "positions[0]" : all);
      forward += "            self.table = rotary_table(places, x.dtype)\n";
    } else if (!learned) {
      forward += "            self.table = position_bias(tokens, x.dtype)\n";
    }
    std::string more = learned ? "" : ", self.table";
    if (gathers_rows()) more += ", positions";
    forward += fmt::format(R"(        for block in self.{}:
            x = block(x{})
)",
                           names_.blocks, more);
    const std::string head = fmt::format("self.{}(self.{}(x))", names_.head, names_.final_norm);
    if (dims_.logit_softcap) {
      forward += fmt::format("        return torch.tanh({} / 30.0) * 30.0\n", head);
    } else {
      forward += fmt::format("        return {}\n", head);
    }
    return fmt::format(R"(

class Model(nn.Module):
    """The modules and parameters of Hugging Face's {} of this size, under the same names."""

    def __init__(self):
        super().__init__()
{}
    def forward(self, tokens{}):
{})",
                       dims_.family, init.text(), shares_sequences() ? ", positions" : "", forward);
  }

  const ModelDims& dims_;
  const Plan& plan_;
  const ParameterNames& names_;
};

[[noreturn]] void refuse(const ModelDims& dims, const std::string& what) {
  throw Error(ExitCode::kMissingCapability,
              fmt::format("export --to fsdp2: unsupported: {} ({}): {}; the script is written for "
                          "decoders such as llama, qwen, gpt2, mpt and mixtral",
                          dims.name, dims.family, what));
}

}  // namespace

std::string python_model(const ModelDims& dims, const Plan& plan) {
  if (!dims.pattern.empty()) refuse(dims, "layers of several kinds");
  if (dims.bidirectional || dims.residual == Residual::kPostNorm) {
    refuse(dims, "an encoder and its masked-language-model head");
  }
  if (dims.latent.kv_rank > 0) refuse(dims, "multi-head latent attention");
  if (dims.token_types > 0) refuse(dims, "token types");
  if (dims.activation == Activation::kXielu) refuse(dims, "xIELU");
  if (dims.positions == Positions::kSinusoidal) refuse(dims, "sinusoidal positions");
  if (dims.moe.corrected) refuse(dims, "a router with correction biases");
  if (dims.residual == Residual::kPostBranch) refuse(dims, "norms behind the branches alone");
  if (dims.qk_norm == HeadNorm::kWhole || dims.qk_norm == HeadNorm::kUnweighted) {
    refuse(dims, "norms of q and k that are not of each head");
  }
  if (dims.parts != BlockParts{} || dims.activation == Activation::kReGlu2) {
    refuse(dims, "gates and norms inside the branches");
  }
  if (dims.norm == NormKind::kLayerUnweighted || dims.norm == NormKind::kRmsUnweighted)
    refuse(dims, "norms without weights");
  if (dims.qk_norm == HeadNorm::kEach && dims.head_norm != NormKind::kRms) {
    refuse(dims, "LayerNorms of each head");
  }
  if (dims.branch_scale || dims.logit_scale) refuse(dims, "multipliers of branches or logits");
  if (dims.moe.fused_gate_up) refuse(dims, "experts whose gate and up are one tensor");
  if (dims.sinks || dims.moe.bias) refuse(dims, "attention sinks and biases of experts");
  if (!dims.unrotated_layers.empty()) refuse(dims, "layers without positions");
  if (dims.head_bias) refuse(dims, "a head with a bias");
  return ModelWriter(dims, plan).write();
}

}  // namespace foreshard
