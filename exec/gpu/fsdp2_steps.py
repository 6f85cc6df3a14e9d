#!/usr/bin/env python3
"""Steps of PyTorch's FSDP2 on one GPU: the other side of the engine's comparison.

    python3 fsdp2_steps.py --model llama-3-8b --sequence 8192 --micro-batch 1 --world 64 --out row.json

World 1 is a real NCCL group of one rank. A larger world is rank 0 of it: FSDP2's own code with that world's shards,
padding, buffers and streams over the fake process group; collectives move their bytes inside the GPU in one kernel
each (all-gather: the own shard into every slot; reduce-scatter: the sum of all slices) instead of over links. So its memory is
that of a real rank, its time that of the rank with a network that is as fast as the GPU's memory.

--variant default: PyTorch as it comes (its own choice of the attention kernel, eager). flash: FlashAttention-2. tuned:
cuDNN attention and torch.compile per block, loss included. --record DIR leaves a trace for `foreshard validate`. Random tokens and weights.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "interop" / "record"))

# Published shapes: hidden, layers, heads, kv heads, head dim, ffn, vocabulary, rope theta.
MODELS = {
    "tinyllama-1.1b": (2048, 22, 32, 4, 64, 5632, 32000, 1e4),
    "llama-2-7b": (4096, 32, 32, 32, 128, 11008, 32000, 1e4),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256, 5e5),
    "tiny": (64, 2, 4, 2, 16, 128, 256, 1e4),
}


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, d, heads, kv, hd):
        super().__init__()
        self.hd, self.grouped = hd, kv != heads
        self.q_proj, self.k_proj = nn.Linear(d, heads * hd, bias=False), nn.Linear(d, kv * hd, bias=False)
        self.v_proj, self.o_proj = nn.Linear(d, kv * hd, bias=False), nn.Linear(heads * hd, d, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (proj(x).view(batch, length, -1, self.hd) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (rotate(y, cos, sin).transpose(1, 2) for y in (q, k))
        o = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(o.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, ffn, bias=False), nn.Linear(d, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, d, heads, kv, hd, mlp):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.self_attn, self.mlp = Attention(d, heads, kv, hd), mlp

    def forward(self, x, cos, sin):
        h = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class Transformer(nn.Module):
    def __init__(self, shape, mlp=FeedForward):
        super().__init__()
        d, layers, heads, kv, hd, ffn, vocabulary, _ = shape
        self.embed_tokens = nn.Embedding(vocabulary, d)
        self.layers = nn.ModuleList(Block(d, heads, kv, hd, mlp(d, ffn)) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(d, eps=1e-5), nn.Linear(d, vocabulary, bias=False)

    def forward(self, tokens, cos, sin):
        h = self.embed_tokens(tokens)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.lm_head(self.norm(h))

    def fill(self):
        """Weights as they are before training, but for the memory they have."""
        with torch.no_grad():
            for p in self.parameters():
                local = p.to_local()
                local.fill_(1.0) if p.ndim == 1 else local.normal_(0, 0.02)


def table(shape, length, device):
    """Cosines and sines of the rotary embedding."""
    *_, hd, _, _, theta = shape
    angles = torch.outer(torch.arange(length, device=device).float(), theta ** (-torch.arange(0, hd, 2, device=device).float() / hd))
    return angles.cos()[:, None].bfloat16(), angles.sin()[:, None].bfloat16()


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def make_group(world, device):
    if world > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        return
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=30), wait_for_workers=False)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1, store=store)


def gathered(output, shard, world):
    """What a rank without peers moves in an all-gather: its shard into every slot."""
    output.view(world, -1).copy_(shard.view(1, -1).expand(world, -1))


def summed(output, whole, world):
    """In a reduce-scatter: all slices are read, the sum is written."""
    torch.sum(whole.view(world, -1), 0, out=output.view(-1))


def wire(model):
    """One copy per collective: the fake group itself would launch one per rank."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    class Allocates:
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

    class Gather(Allocates, AllGather):
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            gathered(output_tensor, input_tensor, group.size())
            # FSDP2 asks for a Work of an asynchronous gather; the fake group hands one out at no cost.
            return dist.all_reduce(output_tensor[:1], group=group, async_op=True) if async_op else None

    class Scatter(Allocates, ReduceScatter):
        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            summed(output_tensor, input_tensor, group.size())

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(Gather())
            module.set_custom_reduce_scatter(Scatter())


def shard(model, args, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(device, (args.world,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    fully_shard(model.embed_tokens, mesh=mesh, mp_policy=policy)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard([model.norm, model.lm_head], mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if args.world > 1:
        wire(model)


def build(args, device):
    with torch.device("meta"):
        model = Transformer(MODELS[args.model])
    if args.recompute == "full":
        checkpointed(model)
    if args.variant == "tuned":
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer, fullgraph=args.recompute == "none")
    shard(model, args, device)
    model.to_empty(device=device)
    model.fill()
    return model


def attention(args, device):
    if device != "cuda" or args.variant == "default":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    tuned = args.variant == "tuned" and torch.cuda.get_device_capability()[0] >= 9
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION if tuned else SDPBackend.FLASH_ATTENTION)


def run(args):
    device = args.device
    if device == "cuda":
        torch.cuda.set_device(0)
    torch.manual_seed(0)
    make_group(args.world, device)
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_function = torch.compile(loss_of) if args.variant == "tuned" else loss_of
    vocabulary = MODELS[args.model][6]
    cos, sin = table(MODELS[args.model], args.sequence, device)
    data = torch.randint(vocabulary, (args.micro_batch, args.sequence + 1), device=device)

    def step():
        loss = loss_function(model(data[:, :-1], cos, sin), data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    row = {"model": args.model, "sequence": args.sequence, "micro_batch": args.micro_batch, "world": args.world,
           "variant": args.variant, "recompute": args.recompute, "torch": torch.__version__}
    with attention(args, device):
        for _ in range(args.warmup):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        times = timed_steps(step, args.steps, device)
        row.update(step_s=statistics.median(times), steps_s=times)
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            row.update(gpu=torch.cuda.get_device_name(), peak_allocated_bytes=torch.cuda.max_memory_allocated(),
                       peak_reserved_bytes=torch.cuda.max_memory_reserved(), device_used_bytes=total - free)
        if args.record:
            import timed
            with timed.record(args.record, warmup=2, steps=3) as recorder:
                while not recorder.done:
                    step()
                    recorder.step()
    row["tokens_per_s_per_gpu"] = args.sequence * args.micro_batch / row["step_s"]
    return row


def timed_steps(step, count, device):
    """Seconds from one optimizer end to the next, the host running ahead as in training."""
    if device != "cuda":
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, choices=sorted(MODELS))
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--variant", choices=["default", "flash", "tuned"], default="default")
    parser.add_argument("--recompute", choices=["none", "full"], default="none")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--record", help="folder for a trace")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", help="file for the row; default: standard output")
    args = parser.parse_args()
    try:
        row = run(args)
        row["status"] = "ok"
    except torch.cuda.OutOfMemoryError as error:
        row = {"status": "oom", "reason": str(error).splitlines()[0]}
    text = json.dumps(row)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0 if row["status"] == "ok" else 4


if __name__ == "__main__":
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    sys.exit(main())
