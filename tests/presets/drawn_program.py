"""A training script of one's own, drawn by a seed: SEED --batch B --sequence S --runtime plain|fsdp2|hsdp|fsdp1|ddp.

Seeds below 1000 are chains of blocks (norms, attention and other mixers, residuals, skips, heads, losses), from 1000 on images,
recurrences, experts, encoders with decoders, blocks called again, codebooks, a loss of each block. drawn_programs.py runs them."""
import argparse
import contextlib
import math
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("seed", type=int)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--sequence", type=int, default=128)  # (of images the side)
parser.add_argument("--runtime", default="plain")
parser.add_argument("--describe", action="store_true")
args = parser.parse_args()
IS_CHAIN = args.seed < 1000
R = random.Random(args.seed if IS_CHAIN else args.seed - 1000 + 100000)
pick = R.choice
IMAGES = ("unet", "resnet", "vit", "mixer")
if IS_CHAIN:
    D = pick([256, 384, 512, 768]); H = pick([4, 8]); L = pick([3, 4, 6]); V = pick([1000, 4096, 20011])
    C = dict(
        input=pick(["tokens"] * 4 + ["features", "features"]), norm=pick(["layer", "rms", "own"]), position=pick(["learned", "rotary", "sinus", "none"]),
        mixer=pick(["sdpa", "sdpa", "sdpa", "eager", "conv", "linear", "gated"]), kv=pick([1, 1, 2]), fused=pick([True, False]), bias=pick([True, False]),
        causal=pick([True, False]), qk_norm=pick([False, False, True]), mlp=pick(["gelu", "relu", "swiglu", "relu2", "geglu"]), ratio=pick([2, 3, 4]),
        residual=pick(["pre", "pre", "post", "parallel", "scaled"]), dropout=pick([0, 0, 0.1]), skips=pick(["none", "none", "none", "unet", "first"]),
        condition=pick(["none", "none", "none", "adaln"]), head=pick(["lm", "lm", "lm", "tied", "class", "regress", "contrast"]),
        softcap=pick([False, False, True]), loss=pick(["plain", "float", "smooth", "z"]), aux=pick([False, False, False, True]),
        second=pick([False, False, False, True]), alternate=pick([False, False, True]),
        mode=pick(["bf16", "fp32", "autocast", "autocast"]), optimizer=pick(["adamw", "adamw", "fused", "sgd"]), clip=pick([True, False]),
        accumulate=pick([1, 1, 2]), checkpoint=pick([False, False, True]))
    if C["mixer"] == "conv": C["position"] = "none"
    if C["input"] == "features" and C["head"] in ("lm", "tied"): C["head"] = pick(["class", "regress"])
    if C["head"] in ("class", "contrast", "regress"): C["softcap"] = False
else:
    kind = pick(["unet", "resnet", "vit", "recurrent", "experts", "encdec", "shared", "vq", "deep", "mixer"])
    D = pick([192, 256, 384]); L = pick([2, 3, 4]); V = pick([500, 8000]); H = 4
    C = dict(kind=kind, norm=pick(["layer", "rms"]), act=pick(["gelu", "silu", "relu"]), mode=pick(["bf16", "fp32", "autocast", "autocast"]), optimizer=pick(["adamw", "fused", "sgd"]),
             clip=pick([True, False]), accumulate=pick([1, 1, 2]), checkpoint=pick([False, False, True]), dropout=pick([0, 0.1]), top=pick([1, 2]), experts=pick([4, 8]), cell=pick(["lstm", "gru"]), float=pick([True, False]))
if args.describe:
    print(f"{'images' if not IS_CHAIN and kind in IMAGES else 'rows'} {D} wide, {L} deep:", " ".join(f"{k}={v}" for k, v in C.items()))
    raise SystemExit


class OwnNorm(nn.Module):
    def __init__(self, d):
        super().__init__(); self.weight = nn.Parameter(torch.ones(d))
    def forward(self, x):
        y = x.float(); y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight

norm = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "own": OwnNorm}[C["norm"]]
act = {"gelu": nn.GELU, "silu": nn.SiLU, "relu": nn.ReLU}.get(C.get("act"))


def rotate(x):  # [b, h, s, d]
    s, d = x.shape[-2:]
    f = torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d
    t = torch.outer(torch.arange(s, device=x.device, dtype=torch.float32), 10000.0 ** -f)
    c, n = t.cos().to(x.dtype), t.sin().to(x.dtype)
    one, two = x.chunk(2, -1)
    return torch.cat([one * c - two * n, two * c + one * n], -1)


class ChainAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.kv = max(1, H // C["kv"]); self.d = D // H
        if C["fused"]: self.qkv = nn.Linear(D, D + 2 * self.kv * self.d, bias=C["bias"])
        else: self.q, self.k, self.v = nn.Linear(D, D, bias=C["bias"]), nn.Linear(D, self.kv * self.d, bias=C["bias"]), nn.Linear(D, self.kv * self.d, bias=C["bias"])
        self.out = nn.Linear(D, D, bias=C["bias"])
        if C["qk_norm"]: self.qn, self.kn = norm(self.d), norm(self.d)
    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).split([D, self.kv * self.d, self.kv * self.d], -1) if C["fused"] else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.view(b, s, -1, self.d).transpose(1, 2) for t in (q, k, v))
        if C["qk_norm"]: q, k = self.qn(q), self.kn(k)
        if C["position"] == "rotary": q, k = rotate(q), rotate(k)
        if self.kv != H: k, v = k.repeat_interleave(H // self.kv, 1), v.repeat_interleave(H // self.kv, 1)
        if C["mixer"] == "sdpa": y = F.scaled_dot_product_attention(q, k, v, is_causal=C["causal"], dropout_p=C["dropout"])
        else:
            w = q @ k.transpose(-2, -1) / math.sqrt(self.d)
            if C["causal"]: w = w.masked_fill(torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            y = F.dropout(w.softmax(-1), C["dropout"]) @ v
        return self.out(y.transpose(1, 2).reshape(b, s, D))


class ConvMix(nn.Module):
    def __init__(self):
        super().__init__(); self.up = nn.Linear(D, 2 * D); self.conv = nn.Conv1d(D, D, 5, padding=2, groups=D); self.down = nn.Linear(D, D)
    def forward(self, x):
        x, g = self.up(x).chunk(2, -1)
        return self.down(F.silu(self.conv(x.transpose(1, 2)).transpose(1, 2)) * torch.sigmoid(g))


class LinearMix(nn.Module):
    def __init__(self):
        super().__init__(); self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t(x).view(b, s, H, D // H).transpose(1, 2) for t in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(2, keepdim=True).transpose(-2, -1) + 1e-6)
        return self.out(y.transpose(1, 2).reshape(b, s, D))


class Gated(nn.Module):
    def __init__(self):
        super().__init__(); self.f, self.i, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
    def forward(self, x):
        f = F.logsigmoid(self.f(x).float()).cumsum(1)
        y = (torch.exp(f) * torch.cumsum(self.i(x).float() * torch.exp(-f.clamp(min=-20)), 1)).type_as(x)
        return self.out(y)


class ChainMlp(nn.Module):
    def __init__(self):
        super().__init__()
        wide = C["ratio"] * D; self.gated = C["mlp"] in ("swiglu", "geglu")
        self.up = nn.Linear(D, wide, bias=C["bias"]); self.down = nn.Linear(wide, D, bias=C["bias"])
        if self.gated: self.gate = nn.Linear(D, wide, bias=C["bias"])
    def forward(self, x):
        y = self.up(x)
        y = {"gelu": lambda: F.gelu(y), "relu": lambda: F.relu(y), "relu2": lambda: F.relu(y).square(), "swiglu": lambda: F.silu(self.gate(x)) * y if self.gated else y,
             "geglu": lambda: F.gelu(self.gate(x), approximate="tanh") * y if self.gated else y}[C["mlp"]]()
        return F.dropout(self.down(y), C["dropout"], self.training)


mixers = {"sdpa": ChainAttention, "eager": ChainAttention, "conv": ConvMix, "linear": LinearMix, "gated": Gated}


class ChainBlock(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.n1, self.n2 = norm(D), norm(D)
        self.mix = ConvMix() if C["alternate"] and i % 2 else mixers[C["mixer"]]()
        self.mlp = ChainMlp()
        if C["residual"] == "scaled": self.s1, self.s2 = nn.Parameter(torch.full((D,), 1e-2)), nn.Parameter(torch.full((D,), 1e-2))
        if C["condition"] == "adaln": self.mod = nn.Sequential(nn.SiLU(), nn.Linear(D, 4 * D))
        if C["skips"] == "unet" and i >= (L + 1) // 2: self.join = nn.Linear(2 * D, D)
        if C["skips"] == "first": self.l = nn.Parameter(torch.tensor([1.0, 0.0]))
    def forward(self, x, c=None, skip=None):
        if C["skips"] == "unet" and skip is not None: x = self.join(torch.cat([x, skip], -1))
        if C["skips"] == "first": x = self.l[0] * x + self.l[1] * skip
        if C["condition"] == "adaln":
            h1, g1, h2, g2 = self.mod(c)[:, None].chunk(4, -1)
            x = x + self.mix(self.n1(x) * (1 + h1)) * g1
            return x + self.mlp(self.n2(x) * (1 + h2)) * g2
        if C["residual"] == "post":
            x = self.n1(x + self.mix(x)); return self.n2(x + self.mlp(x))
        if C["residual"] == "parallel": return x + self.mix(self.n1(x)) + self.mlp(self.n2(x))
        if C["residual"] == "scaled":
            x = x + self.s1 * self.mix(self.n1(x)); return x + self.s2 * self.mlp(self.n2(x))
        x = x + self.mix(self.n1(x)); return x + self.mlp(self.n2(x))


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D) if C["input"] == "tokens" else nn.Linear(80, D)
        if C["position"] == "learned": self.pos = nn.Embedding(4096, D)
        if C["condition"] == "adaln": self.time = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D))
        self.blocks = nn.ModuleList(ChainBlock(i) for i in range(L))
        if C["second"]: self.side = nn.ModuleList(nn.Sequential(norm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in range(2))
        self.norm = norm(D)
        self.head = nn.Linear(D, {"lm": V, "tied": V, "class": 100, "regress": 80, "contrast": 256}[C["head"]], bias=False)
        if C["head"] == "tied": self.head.weight = self.embed.weight
        if C["aux"]: self.aux = nn.Linear(D, 16)
    def forward(self, x, y, t):
        s = x.shape[1]
        h = self.embed(x)
        if C["position"] == "learned": h = h + self.pos(torch.arange(s, device=x.device))
        if C["position"] == "sinus":
            f = torch.outer(torch.arange(s, device=x.device).float(), 10000.0 ** -(torch.arange(0, D, 2, device=x.device) / D))
            h = h + torch.cat([f.sin(), f.cos()], -1).to(h.dtype)
        c = None
        if C["condition"] == "adaln":
            f = t[:, None].float() * torch.exp(-torch.arange(0, D, 2, device=x.device) / D)[None]
            c = self.time(torch.cat([f.sin(), f.cos()], -1).to(self.time[0].weight.dtype))
        first, kept, aux = h, [], 0.0
        for i, block in enumerate(self.blocks):
            skip = first if C["skips"] == "first" else None
            if C["skips"] == "unet":
                if i < L // 2: kept.append(h)
                elif i >= (L + 1) // 2: skip = kept.pop()
            h = checkpoint(block, h, c, skip, use_reentrant=False) if C["checkpoint"] and self.training else block(h, c, skip)
        if C["second"]:
            g = first
            for block in self.side: g = g + block(g)
            h = h + g
        h = self.norm(h)
        if C["aux"]: aux = 0.1 * F.cross_entropy(self.aux(h).float().flatten(0, 1), (y if y.dim() == 2 and y.dtype == torch.long else torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)).flatten() % 16)
        if C["head"] in ("lm", "tied"):
            z = self.head(h)
            if C["softcap"]: z = 30 * torch.tanh(z / 30)
            if C["loss"] != "plain": z = z.float()
            loss = F.cross_entropy(z.view(-1, V), y.view(-1), label_smoothing=0.1 if C["loss"] == "smooth" else 0.0)
            if C["loss"] == "z": loss = loss + 1e-4 * z.logsumexp(-1).square().mean()
        elif C["head"] == "class": loss = F.cross_entropy(self.head(h.mean(1)), y[:, 0] if y.dim() > 1 else y)
        elif C["head"] == "regress": loss = F.mse_loss(self.head(h).float(), y.float()) if C["loss"] != "smooth" else F.smooth_l1_loss(self.head(h), y)
        else:
            e = F.normalize(self.head(h[:, 0]), dim=-1); e2 = F.normalize(self.head(h.mean(1)), dim=-1)
            w = e @ e2.T / 0.07
            loss = F.cross_entropy(w, torch.arange(len(w), device=w.device))
        return loss + aux


def maybe(block, *x): return checkpoint(block, *x, use_reentrant=False) if C["checkpoint"] and block.training else block(*x)


class Attn(nn.Module):
    def __init__(self, causal=False):
        super().__init__(); self.causal = causal; self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
    def forward(self, x, y=None):
        y = x if y is None else y; b = x.shape[0]
        q, k, v = (f(t).view(b, -1, H, D // H).transpose(1, 2) for f, t in ((self.q, x), (self.k, y), (self.v, y)))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(x.shape))


class Mlp(nn.Sequential):
    def __init__(self, d=None): super().__init__(nn.Linear(d or D, 4 * (d or D)), act(), nn.Dropout(C["dropout"]), nn.Linear(4 * (d or D), d or D))


class Block(nn.Module):
    def __init__(self, causal=False, cross=False, ff=None):
        super().__init__(); self.n1, self.n2, self.a, self.m = norm(D), norm(D), Attn(causal), ff or Mlp()
        if cross: self.n3, self.c = norm(D), Attn()
    def forward(self, x, y=None):
        x = x + self.a(self.n1(x))
        if y is not None: x = x + self.c(self.n3(x), y)
        return x + self.m(self.n2(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__(); E = C["experts"]; self.gate = nn.Linear(D, E, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(E, D, 2 * D) * 0.02), nn.Parameter(torch.randn(E, 2 * D, D) * 0.02); self.drop = nn.Identity()
    def forward(self, x):
        p = self.gate(x).softmax(-1, dtype=torch.float32); w, i = p.topk(C["top"], -1)
        m = torch.zeros_like(p).scatter(-1, i, w).to(x.dtype)
        h = F.silu(torch.einsum("bsd,edf->bsef", x, self.up.to(x.dtype)))
        return torch.einsum("bsef,efd,bse->bsd", h, self.down.to(x.dtype), m)


class Conv(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__(); self.c1, self.c2 = nn.Conv2d(i, o, 3, stride, 1), nn.Conv2d(o, o, 3, 1, 1); self.n1, self.n2 = nn.GroupNorm(8, o), nn.GroupNorm(8, o)
        self.s = nn.Conv2d(i, o, 1, stride) if i != o or stride > 1 else nn.Identity(); self.act = act()
    def forward(self, x): return self.s(x) + self.act(self.n2(self.c2(self.act(self.n1(self.c1(x))))))


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        k = kind
        if k in IMAGES:
            W = 64
            if k == "resnet": self.stem = nn.Conv2d(3, W, 7, 2, 3); self.blocks = nn.ModuleList(Conv(W * 2 ** max(0, i - 1), W * 2 ** i, 2 if i else 1) for i in range(L)); self.head = nn.Linear(W * 2 ** (L - 1), 100)
            if k == "unet":
                self.stem = nn.Conv2d(3, W, 3, 1, 1); self.blocks = nn.ModuleList([*[Conv(W * 2 ** i, W * 2 ** (i + 1), 2) for i in range(2)], Conv(4 * W, 4 * W), *[Conv(W * 2 ** (2 - i) * 2 if i else 8 * W, W * 2 ** (1 - i)) for i in range(2)]]); self.head = nn.Conv2d(W, 3, 1)
            if k in ("vit", "mixer"): self.stem = nn.Conv2d(3, D, 16, 16); self.pos = nn.Parameter(torch.zeros(1, 4096, D)); self.blocks = nn.ModuleList(Block() for _ in range(L)); self.norm = norm(D); self.head = nn.Linear(D, 100)
            return
        self.embed = nn.Embedding(V, D)
        if k == "recurrent": self.blocks = nn.ModuleList({"lstm": nn.LSTM, "gru": nn.GRU}[C["cell"]](D, D, batch_first=True) for _ in range(L))
        elif k == "experts": self.blocks = nn.ModuleList(Block(True, ff=Experts()) for _ in range(L))
        elif k == "encdec": self.encoder = nn.ModuleList(Block() for _ in range(L)); self.blocks = nn.ModuleList(Block(True, True) for _ in range(L))
        elif k == "shared": self.blocks = nn.ModuleList([Block(True)])
        else: self.blocks = nn.ModuleList(Block(True) for _ in range(L))
        if k == "vq": self.code = nn.Parameter(torch.randn(256, D)); self.decode = nn.ModuleList(Block() for _ in range(2))
        if k == "deep": self.heads = nn.ModuleList(nn.Linear(D, 64) for _ in range(L))
        self.norm = norm(D); self.head = nn.Linear(D, V, bias=False)
    def forward(self, x, y):
        k = kind
        if k == "resnet":
            h = self.stem(x)
            for b in self.blocks: h = maybe(b, h)
            return F.cross_entropy(self.head(h.mean((2, 3))), y)
        if k == "unet":
            h0 = self.stem(x); h1 = maybe(self.blocks[0], h0); h2 = maybe(self.blocks[1], h1); m = maybe(self.blocks[2], h2)
            u = maybe(self.blocks[3], torch.cat([m, h2], 1)); u = F.interpolate(u, scale_factor=2, mode="nearest")
            u = maybe(self.blocks[4], torch.cat([u, h1], 1)); u = F.interpolate(u, scale_factor=2, mode="nearest")
            return F.mse_loss(self.head(u).float(), x.float())
        if k in ("vit", "mixer"):
            h = self.stem(x).flatten(2).transpose(1, 2); h = h + self.pos[:, :h.shape[1]]
            for b in self.blocks: h = maybe(b, h)
            return F.cross_entropy(self.head(self.norm(h).mean(1)), y)
        h = self.embed(x); extra = 0
        if k == "recurrent":
            for b in self.blocks: h = h + b(h)[0]
        elif k == "encdec":
            e = h
            for b in self.encoder: e = maybe(b, e)
            for b in self.blocks: h = maybe(b, h, e)
        elif k == "shared":
            for _ in range(L): h = maybe(self.blocks[0], h)
        else:
            for i, b in enumerate(self.blocks):
                h = maybe(b, h)
                if k == "deep": extra = extra + 0.1 * F.cross_entropy(self.heads[i](h).flatten(0, 1).float(), y.flatten() % 64)
        if k == "vq":
            d = (h.pow(2).sum(-1, keepdim=True) - 2 * h @ self.code.T.to(h.dtype) + self.code.pow(2).sum(-1).to(h.dtype))
            q = F.embedding(d.argmin(-1), self.code).to(h.dtype); extra = F.mse_loss(q, h.detach()) + 0.25 * F.mse_loss(q.detach(), h); h = h + (q - h).detach()
            for b in self.decode: h = maybe(b, h)
        z = self.head(self.norm(h))
        if C["float"]: z = z.float()
        return F.cross_entropy(z.flatten(0, 1), y.flatten()) + extra


def main():
    torch.manual_seed(0)
    if args.runtime != "plain":
        import torch.distributed as dist
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dtype = torch.bfloat16 if C["mode"] == "bf16" else torch.float32
    model = (Chain() if IS_CHAIN else Other()).to("cuda", dtype)
    units = [block for name in ("encoder", "blocks", "side", "decode") for block in getattr(model, name, [])]
    if args.runtime in ("fsdp2", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        world = dist.get_world_size()
        mesh = init_device_mesh("cuda", (world,)) if args.runtime == "fsdp2" else init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("r", "s"))
        for module in [*units, model]:
            fully_shard(module, mesh=mesh)
    if args.runtime == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    if args.runtime == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import CustomPolicy
        chosen = set(units)
        model = FullyShardedDataParallel(model, auto_wrap_policy=CustomPolicy(lambda m: m in chosen), use_orig_params=True, device_id=torch.cuda.current_device())
    parameters = list(model.parameters())
    sgd = C["optimizer"] == "sgd"
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9) if sgd else torch.optim.AdamW(parameters, 1e-4, fused=True if C["optimizer"] == "fused" else None)
    cast = torch.autocast("cuda", torch.bfloat16) if C["mode"] == "autocast" else contextlib.nullcontext()
    b, s = args.batch, args.sequence
    for _ in range(3):
        for _ in range(C["accumulate"]):
            batch = batch_of_chain(b, s, dtype) if IS_CHAIN else batch_of_other(b, s, dtype)
            with cast:
                loss = model(*batch)
            (loss / C["accumulate"]).backward()
        if C["clip"]:
            model.clip_grad_norm_(1.0) if args.runtime == "fsdp1" else nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def batch_of_chain(b, s, dtype):
    x = torch.randint(V, (b, s)).cuda() if C["input"] == "tokens" else torch.randn(b, s, 80).to(dtype).cuda()
    if C["head"] == "class":
        y = torch.randint(100, (b,)).cuda()
    elif C["head"] == "regress":
        y = torch.randn(b, s, 80).to(dtype).cuda()
    else:
        y = torch.randint(V if C["head"] in ("lm", "tied") else 16, (b, s)).cuda()
    return x, y, torch.rand(b).cuda()


def batch_of_other(b, s, dtype):
    if kind in IMAGES:
        return torch.randn(b, 3, s, s).to(dtype).cuda(), torch.randint(100, (b,)).cuda()
    return torch.randint(V, (b, s)).cuda(), torch.randint(V, (b, s)).cuda()


main()
