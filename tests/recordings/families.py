"""Blocks of model families in plain PyTorch, to record with interop/record/fsdp2.py.

"model": "families:mixtral", for example. Experts are torchtitan's grouped path;
latent attention is torchtitan's deepseek_v3; encoder blocks are Hugging Face's BertLayer.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from models import LayerNorm, RMSNorm, Workload, cross_entropy, rope

_lib = torch.library.Library("families", "DEF")
_lib.define("dropout(Tensor x) -> (Tensor, Tensor)")
_lib.impl("dropout", lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)), "Meta")
_lib.define("dropout_backward(Tensor grad, Tensor mask) -> Tensor")
_lib.impl("dropout_backward", lambda g, m: torch.empty_like(g), "Meta")

# aten::histc of integers, which only CUDA has.
_lib.define("histc(Tensor x, int bins) -> Tensor")
_lib.impl("histc", lambda x, bins: x.new_empty(bins), "Meta")


class Dropout(torch.autograd.Function):  # one kernel, as aten::native_dropout on CUDA
    @staticmethod
    def forward(ctx, x):
        y, mask = torch.ops.families.dropout(x)
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.families.dropout_backward(grad, *ctx.saved_tensors)


def attend(q, k, v, causal=True):  # (B, S, H, hd)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
    return o.transpose(1, 2).contiguous()


class Attention(nn.Module):
    def __init__(self, c, bias=False, fused=False, part=1.0):
        super().__init__()
        self.h, self.kv, self.hd = c["heads"], c["kv_heads"], c["dim"] // c["heads"]
        self.part, d = part, c["dim"]
        self.widths = [self.h * self.hd, self.kv * self.hd, self.kv * self.hd]
        self.fused = fused
        if fused:
            self.qkv = nn.Linear(d, sum(self.widths), bias=bias)
        else:
            self.q, self.k, self.v = (nn.Linear(d, w, bias=bias) for w in self.widths)
        self.o = nn.Linear(self.h * self.hd, d, bias=bias)

    def turn(self, x, freqs):
        if self.part == 1.0:
            return rope(x, freqs)
        n = int(self.part * self.hd)
        turned, passed = x.split([n, self.hd - n], dim=-1)
        return torch.cat([rope(turned, freqs[:, : n // 2]), passed], dim=-1)

    def forward(self, x, freqs):
        B, S, _ = x.shape
        if self.fused:
            q, k, v = self.qkv(x).split(self.widths, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = q.view(B, S, -1, self.hd), k.view(B, S, -1, self.hd), v.view(B, S, -1, self.hd)
        if self.part > 0:
            q, k = self.turn(q, freqs), self.turn(k, freqs)
        return self.o(attend(q, k, v, freqs is not None).view(B, S, -1))


class LatentAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h = c["dim"], c["heads"]
        self.nope, self.rope, self.value, self.rank = 32, 16, 32, 64
        self.q_a = nn.Linear(d, 96, bias=False)
        self.q_norm = RMSNorm(96, c["norm"])
        self.q_b = nn.Linear(96, self.h * (self.nope + self.rope), bias=False)
        self.kv_a = nn.Linear(d, self.rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(self.rank, c["norm"])
        self.kv_b = nn.Linear(self.rank, self.h * (self.nope + self.value), bias=False)
        self.o = nn.Linear(self.h * self.value, d, bias=False)

    def forward(self, x, freqs):
        B, S, _ = x.shape
        q = self.q_a(x)
        q = self.q_b(self.q_norm(q))
        q = q.view(B, S, -1, self.nope + self.rope)
        q_nope, q_pe = torch.split(q, [self.nope, self.rope], dim=-1)
        q_pe = rope(q_pe, freqs[:, : self.rope // 2])
        q = torch.cat([q_nope, q_pe], dim=-1)
        kv = self.kv_a(x)
        kv, k_pe = torch.split(kv, [self.rank, self.rope], dim=-1)
        k_pe = rope(k_pe.unsqueeze(2), freqs[:, : self.rope // 2])
        kv = self.kv_b(self.kv_norm(kv))
        kv = kv.view(B, S, -1, self.nope + self.value)
        k_nope, v = torch.split(kv, [self.nope, self.value], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, self.h, -1)], dim=-1)
        # Flash attention wants equal widths; its values here are the first of wider ones.
        o = latent_attend(q, k, v)
        return self.o(o.view(B, S, -1))


_lib.define("attend(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor, Tensor)")
_lib.define(
    "attend_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor o, Tensor l, Tensor r, Tensor u)"
    " -> (Tensor, Tensor, Tensor)"
)


def _attend(q, k, v):
    B, S, H, _ = q.shape
    return (
        v.new_empty(B, S, H, v.shape[-1]),
        q.new_empty((B, H, S), dtype=torch.float32),
        q.new_empty((2,), dtype=torch.int64),
        q.new_empty((), dtype=torch.int64),
    )


_lib.impl("attend", _attend, "Meta")
_lib.impl(
    "attend_backward",
    lambda g, q, k, v, o, l, r, u: (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)),
    "Meta",
)


class LatentAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        o, l, r, u = torch.ops.families.attend(q, k, v)
        ctx.save_for_backward(q, k, v, o, l, r, u)
        return o

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.families.attend_backward(grad, *ctx.saved_tensors)


def latent_attend(q, k, v):
    return LatentAttend.apply(q, k, v)


class LoraLinear(nn.Module):
    """Linear.forward of peft/tuners/lora/layer.py, one adapter."""

    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        result = self.base_layer(x)
        result = result + self.lora_B(self.lora_A(x)) * 2.0
        return result


class GatedMlp(nn.Module):
    def __init__(self, d, f, gelu=False, fused=False):
        super().__init__()
        self.fused, self.gelu = fused, gelu
        if fused:
            self.gate_up = nn.Linear(d, 2 * f, bias=False)
        else:
            self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def act(self, x):
        return F.gelu(x, approximate="tanh") if self.gelu else F.silu(x)

    def forward(self, x):
        if self.fused:
            up_states = self.gate_up(x)
            gate, up_states = up_states.chunk(2, dim=-1)
            up_states = up_states * self.act(gate)
            return self.down(up_states)
        return self.down(self.act(self.gate(x)) * self.up(x))


class Mlp(nn.Module):
    def __init__(self, d, f, bias=False):
        super().__init__()
        self.up, self.down = nn.Linear(d, f, bias=bias), nn.Linear(f, d, bias=bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    def __init__(self, e, d, f):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(e, f, d))
        self.w2 = nn.Parameter(torch.empty(e, d, f))
        self.w3 = nn.Parameter(torch.empty(e, f, d))

    def forward(self, x, counts):
        offsets = torch.cumsum(counts, dim=0, dtype=torch.int32)
        h = F.silu(torch._grouped_mm(x, self.w1.transpose(-2, -1), offs=offsets))
        h = h * torch._grouped_mm(x, self.w3.transpose(-2, -1), offs=offsets)
        return torch._grouped_mm(h, self.w2.transpose(-2, -1), offs=offsets)


class Router(nn.Module):
    def __init__(self, c, sigmoid, corrected, normalized, scaled):
        super().__init__()
        self.gate = nn.Linear(c["dim"], c["experts"], bias=False)
        self.k, self.e = c["top_k"], c["experts"]
        self.sigmoid, self.normalized, self.scaled = sigmoid, normalized, scaled
        self.register_buffer("bias", torch.zeros(self.e) if corrected else None)

    def forward(self, x):
        scores = self.gate(x)
        if self.sigmoid:
            scores = torch.sigmoid(scores.to(torch.float32))
        else:
            scores = F.softmax(scores.to(torch.float32), dim=1)
        if self.bias is not None:
            _, chosen = torch.topk(scores + self.bias, k=self.k, dim=1)
            top = scores.gather(dim=1, index=chosen)
        else:
            top, chosen = torch.topk(scores, k=self.k, dim=1)
        if self.normalized:
            top = top / (top.sum(dim=-1, keepdim=True) + 1e-20)
        if self.scaled:
            top = top * 2.5
        counts = torch.ops.families.histc(chosen.view(-1), self.e)
        return top, chosen, counts


class MoE(nn.Module):
    def __init__(self, c, shared=0, shared_gate=False, **router):
        super().__init__()
        self.k, d = c["top_k"], c["dim"]
        self.router = Router(c, **router)
        self.experts = Experts(c["experts"], d, c["ffn"])
        self.shared = GatedMlp(d, shared) if shared else None
        self.shared_gate = nn.Linear(d, 1, bias=False) if shared_gate else None

    def reorder(self, top, chosen):
        order = torch.argsort(chosen.view(-1), stable=True)
        return top.view(-1)[order], order // self.k

    def forward(self, x):
        B, S, d = x.shape
        x = x.view(-1, d)
        top, chosen, counts = self.router(x)
        top_sorted, tokens = self.reorder(top, chosen)
        tokens = tokens.reshape(-1, 1).expand(-1, d)
        rows = torch.gather(x, dim=0, index=tokens)
        made = self.experts(rows, counts)
        if self.shared is not None:
            out = self.shared(x)
            if self.shared_gate is not None:
                out = out * torch.sigmoid(self.shared_gate(x))
        else:
            out = torch.zeros_like(x)
        made = (made.to(torch.float32) * top_sorted.reshape(-1, 1)).to(x.dtype)
        out = out.scatter_add(dim=0, index=tokens, src=made)
        return out.reshape(B, S, d)


class PreNorm(nn.Module):
    def __init__(self, c, norm, attention, mlp, sandwich=False):
        super().__init__()
        self.norm1, self.attention = norm(c["dim"], c["norm"]), attention
        self.norm2, self.mlp = norm(c["dim"], c["norm"]), mlp
        self.norm3 = norm(c["dim"], c["norm"]) if sandwich else None
        self.norm4 = norm(c["dim"], c["norm"]) if sandwich else None

    def forward(self, x, freqs):
        if self.norm3 is not None:
            h = x + self.norm3(self.attention(self.norm1(x), freqs))
            return h + self.norm4(self.mlp(self.norm2(h)))
        h = x + self.attention(self.norm1(x), freqs)
        return h + self.mlp(self.norm2(h))


class Parallel(nn.Module):
    def __init__(self, c, attention, mlp, norms):
        super().__init__()
        self.norm1 = LayerNorm(c["dim"], c["norm"])
        self.norm2 = LayerNorm(c["dim"], c["norm"]) if norms == 2 else None
        self.attention, self.mlp = attention, mlp

    def forward(self, x, freqs):
        if self.norm2 is None:
            n1 = self.norm1(x)
            a = self.attention(n1, freqs)
            return self.mlp(n1) + a + x
        a = self.attention(self.norm1(x), freqs)
        return self.mlp(self.norm2(x)) + a + x


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h = c["dim"], c["heads"]
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.norm2 = LayerNorm(d, c["norm"]), LayerNorm(d, c["norm"])
        self.up, self.down = nn.Linear(d, c["ffn"]), nn.Linear(c["ffn"], d)

    def attention_part(self, x):
        B, S, d = x.shape
        q, k, v = (m(x).view(B, S, self.h, -1) for m in (self.q, self.k, self.v))
        o = attend(q, k, v, False).view(B, S, d)
        return self.output(o, x)

    def output(self, o, x):
        o = self.o(o)
        o = Dropout.apply(o)
        return self.norm1(o + x)

    def forward(self, x, freqs):
        a = self.attention_part(x)
        y = self.down(F.gelu(self.up(a)))
        y = Dropout.apply(y)
        return self.norm2(y + a)


def block(c, family):
    d, f = c["dim"], c["ffn"]
    mixtral = dict(sigmoid=False, corrected=False, normalized=True, scaled=False)
    if family == "mixtral":
        return PreNorm(c, RMSNorm, Attention(c), MoE(c, **mixtral))
    if family == "qwen2_moe":
        plain = dict(mixtral, normalized=False)
        return PreNorm(c, RMSNorm, Attention(c, bias=False), MoE(c, 2 * f, True, **plain))
    if family == "deepseek_v3":
        third = dict(sigmoid=True, corrected=True, normalized=True, scaled=True)
        return PreNorm(c, RMSNorm, LatentAttention(c), MoE(c, f, **third))
    if family == "phi3":
        return PreNorm(c, RMSNorm, Attention(c, fused=True), GatedMlp(d, f, fused=True))
    if family == "gemma2":
        return PreNorm(c, RMSNorm, Attention(c), GatedMlp(d, f, gelu=True), sandwich=True)
    if family == "gpt_neox":
        return Parallel(c, Attention(c, bias=True, fused=True, part=0.25), Mlp(d, f, True), 2)
    if family == "falcon":
        return Parallel(c, Attention(c, fused=True), Mlp(d, f), 1)
    if family == "bert":
        return Encoder(c)
    if family == "lora":
        made = PreNorm(c, RMSNorm, Attention(c), GatedMlp(d, f))
        made.attention.q = LoraLinear(made.attention.q, 16)
        made.attention.v = LoraLinear(made.attention.v, 16)
        made.mlp.down = LoraLinear(made.mlp.down, 16)
        return made
    raise ValueError(family)


class Model(nn.Module):
    def __init__(self, c, family):
        super().__init__()
        self.embedding = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList(block(c, family) for _ in range(c["layers"]))
        self.norm = RMSNorm(c["dim"], c["norm"])
        self.head = nn.Linear(c["dim"], c["vocab"], bias=False)
        hd = c["dim"] // c["heads"]
        f = 1.0 / (500000.0 ** (torch.arange(0, hd, 2, dtype=torch.float32) / hd))
        f = torch.outer(torch.arange(c["seq"], dtype=torch.float32), f)
        self.register_buffer("freqs", torch.polar(torch.ones_like(f), f), persistent=False)

    def forward(self, tokens):
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h, self.freqs)
        return self.head(self.norm(h))


def build(c, family):
    model = Model(c, family)
    if family == "lora":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def tokens():
        return torch.randint(0, c["vocab"], (c["batch"], c["seq"]))

    return Workload(
        model,
        lambda: (tokens(),),
        tokens,
        cross_entropy,
        units=[model.embedding, *model.layers, [model.norm, model.head]],
    )


def of(family):
    return lambda c: build(c, family)


mixtral, qwen2_moe, deepseek_v3 = of("mixtral"), of("qwen2_moe"), of("deepseek_v3")
phi3, gemma2, gpt_neox, falcon, bert, lora = (
    of(f) for f in ("phi3", "gemma2", "gpt_neox", "falcon", "bert", "lora")
)
