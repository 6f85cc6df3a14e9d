"""Steps of a loop of one's own over axes: a Llama under PyTorch's tensor, sequence or context parallelism and FSDP2.

Cases of code_steps.py with `axes`: {tp: N} parallelises as PyTorch's own pages do (DTensor's styles, loss parallel),
{cp: N} shares the sequence (context_parallel, keys and values gathered); what is left of the world is FSDP2's. The world
is rank 0 of it over the fake process group; a collective is one copy inside the GPU, as fsdp2_steps.wire has it.
"""
import contextlib

import code_steps
import fsdp2_steps
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, d, heads, kv, hd):
        super().__init__()
        self.hd, self.grouped = hd, kv != heads
        self.q_proj, self.k_proj = nn.Linear(d, heads * hd, bias=False), nn.Linear(d, kv * hd, bias=False)
        self.v_proj, self.o_proj = nn.Linear(d, kv * hd, bias=False), nn.Linear(heads * hd, d, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (proj(x).view(batch, length, -1, self.hd) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (fsdp2_steps.Block.rotate(y, cos, sin).transpose(1, 2) for y in (q, k))
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
    def __init__(self, d, heads, kv, hd, ffn):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.self_attn, self.mlp = Attention(d, heads, kv, hd), FeedForward(d, ffn)

    def forward(self, x, cos, sin):
        h = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, hd = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        self.layers = nn.ModuleList(Block(d, config.num_attention_heads, config.num_key_value_heads, hd, config.intermediate_size)
                                    for _ in range(config.num_hidden_layers))
        self.norm, self.lm_head = nn.RMSNorm(d, eps=1e-5), nn.Linear(d, config.vocab_size, bias=False)

    def forward(self, tokens, cos, sin):
        h = self.embed_tokens(tokens)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.lm_head(self.norm(h))


def table(config, length):
    hd = config.hidden_size // config.num_attention_heads
    angles = torch.outer(torch.arange(length, device="cuda").float(), 1e4 ** (-torch.arange(0, hd, 2, device="cuda").float() / hd))
    return angles.cos()[:, None].bfloat16(), angles.sin()[:, None].bfloat16()


def tensor_parallel(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                                   parallelize_module)
    parallelize_module(model, mesh, {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)), "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))})


def wire(library):
    """Functional collectives as one copy each: the fake group launches one for each rank, and scatters nothing."""
    def rank_of(group):
        return dist.distributed_c10d._resolve_process_group(group).rank()

    def gather(shard, size, group):
        whole = shard.new_empty(size * shard.shape[0], *shard.shape[1:])
        whole.view(size, *shard.shape).copy_(shard.expand(size, *shard.shape))
        return whole

    def scatter(whole, op, size, group):
        return whole.chunk(size)[rank_of(group)].clone(memory_format=torch.contiguous_format)
    library.impl("all_gather_into_tensor", gather, "CUDA")
    library.impl("reduce_scatter_tensor", scatter, "CUDA")


def prepare(c):
    """Configuration, loop and what makes a step of it."""
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    config = code_steps.config_of(transformers, c)
    config.architectures = [code_steps.class_of(transformers, c).__name__]
    torch.cuda.set_device(0)
    fsdp2_steps.make_group(c["world"], "cuda")
    (axis, size), = c["axes"].items()
    mesh = init_device_mesh("cuda", (c["world"] // size, size), mesh_dim_names=("dp", axis))
    with torch.device("meta"):
        model = Transformer(config)
    if axis == "tp":
        tensor_parallel(model, mesh["tp"])
    if c["checkpoint"]:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
    # Ranks of a sequence share parameters: FSDP2 shards over them, too.
    said = dict(mesh=mesh["dp"] if axis == "tp" else mesh._flatten("dp_cp"), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    for unit in (model.embed_tokens, *model.layers):
        fully_shard(unit, **said)
    fully_shard([model.norm, model.lm_head], reshard_after_forward=True, **said)
    fully_shard(model, **said)
    fsdp2_steps.wire(model)
    model.library = torch.library.Library("_c10d_functional", "IMPL")
    wire(model.library)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for p in model.parameters():
            local = p.to_local()
            local.fill_(1.0) if p.ndim == 1 else local.normal_(0, 0.02)
    loop = code_steps.Plain(model, torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True))
    loop.mesh = mesh
    return config, loop, step_of


def step_of(c, loop, config, sequence, batch):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    data = torch.randint(config.vocab_size, (batch, sequence + 1), device="cuda")
    cos, sin = table(config, sequence)

    def frame(tokens, labels):
        if "tp" in c["axes"]:
            return loss_parallel()
        stack = contextlib.ExitStack()
        stack.enter_context(context_parallel(loop.mesh["cp"], buffers=[tokens, labels, cos, sin], buffer_seq_dims=[1, 1, 0, 0],
                                             no_restore_buffers={tokens, labels}))
        return stack

    def step():
        tokens, labels = data[:, :-1].contiguous(), data[:, 1:].contiguous()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), frame(tokens, labels):
            loss = fsdp2_steps.loss_of(loop.model(tokens, cos, sin), labels)
            loss.backward()
        loop.clip()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return step
