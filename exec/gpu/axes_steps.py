"""Steps of a loop of one's own over axes: a Llama or Mixtral under PyTorch's parallelism of tensors, sequence or experts.

Cases of code_steps.py with `axes`: {tp: N} parallelises as PyTorch's own pages do (DTensor's styles, loss parallel),
{cp: N} shares the sequence (context_parallel, keys and values gathered), {ep: N} sends rows to the ranks of their experts
and back, whose numbers the host reads; what is left of the world is FSDP2's. The world is rank 0 of it over the fake
process group; a collective is one copy inside the GPU, as fsdp2_steps.wire has it, but of a reduce-scatter over an axis,
of which the own slice is copied.
"""
import contextlib

import code_steps
import fsdp2_steps
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
import torch.nn.functional as F


class Experts(nn.Module):
    """Those of one rank, one grouped product for all."""

    def __init__(self, count, d, ffn):
        super().__init__()
        self.gate, self.up = nn.Parameter(torch.empty(count, ffn, d)), nn.Parameter(torch.empty(count, ffn, d))
        self.down = nn.Parameter(torch.empty(count, d, ffn))

    def forward(self, rows, ends):
        def product(x, weight):
            return torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)
        return product(F.silu(product(rows, self.gate)) * product(rows, self.up), self.down)


class Mixture(nn.Module):
    def __init__(self, d, ffn, experts, chosen, ranks):
        super().__init__()
        self.count, self.chosen, self.ranks, self.group = experts, chosen, ranks, None
        self.router, self.experts = nn.Linear(d, experts, bias=False), Experts(experts // ranks, d, ffn)

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        scores, chosen = F.softmax(self.router(tokens).float(), dim=-1).topk(self.chosen, dim=-1)
        scores = (scores / scores.sum(dim=-1, keepdim=True)).to(x.dtype)
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=self.count)
        arriving = functional.all_to_all_single(counts, None, None, self.group).view(self.ranks, -1)
        sent, received = counts.view(self.ranks, -1).sum(1).tolist(), arriving.sum(1).tolist()
        rows = functional.all_to_all_single_autograd(tokens[order // self.chosen], received, sent, self.group)
        local = torch.arange(arriving.shape[1], device=x.device).repeat(self.ranks).repeat_interleave(arriving.view(-1), output_size=sum(received))
        by_expert = local.argsort(stable=True)
        made = self.experts(rows[by_expert], arriving.sum(0).cumsum(0).int())
        home = functional.all_to_all_single_autograd(torch.empty_like(made).index_copy(0, by_expert, made), sent, received, self.group)
        weighed = home * scores.view(-1)[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.chosen, weighed).view_as(x)


def shape_of(config):
    heads = config.num_attention_heads
    return (config.hidden_size, config.num_hidden_layers, heads, config.num_key_value_heads, config.hidden_size // heads, config.intermediate_size,
            config.vocab_size, 1e4)


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
    library.impl("all_to_all_single", lambda rows, received, sent, group: rows.clone(), "CUDA")


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

    def mixture(d, ffn):
        return Mixture(d, ffn, config.num_local_experts, config.num_experts_per_tok, size)

    with torch.device("meta"):
        model = fsdp2_steps.Transformer(shape_of(config), mixture if axis == "ep" else fsdp2_steps.FeedForward)
    if axis == "tp":
        tensor_parallel(model, mesh["tp"])
    if c["checkpoint"]:
        fsdp2_steps.checkpointed(model)
    # Ranks of a sequence, or of all experts, share the other parameters: FSDP2 shards over them, too.
    said = dict(mesh=mesh["dp"] if axis == "tp" else mesh._flatten("all"), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    experts = [m for m in model.modules() if isinstance(m, Experts)]
    for m in model.modules():
        if isinstance(m, Mixture):
            m.group = mesh["ep"].get_group()
    for m in experts:
        fully_shard(m, **dict(said, mesh=mesh["dp"]))
        m.set_gradient_divide_factor(c["world"])
    for unit in (model.embed_tokens, *model.layers):
        fully_shard(unit, **said)
    fully_shard([model.norm, model.lm_head], reshard_after_forward=True, **said)
    fully_shard(model, **said)
    fsdp2_steps.wire(model)
    model.library = torch.library.Library("_c10d_functional", "IMPL")
    wire(model.library)
    model.to_empty(device="cuda")
    model.fill()
    apart = {id(p) for m in experts for p in m.parameters()}
    groups = [[p for p in model.parameters() if (id(p) in apart) == which] for which in ((False, True) if apart else (False,))]
    loop = Loop(model, torch.optim.AdamW([dict(params=group) for group in groups], lr=1e-6, fused=True))
    loop.mesh, loop.groups = mesh, groups
    return config, loop, step_of


class Loop(code_steps.Plain):
    def clip(self):
        for group in self.groups:  # PyTorch takes no norm of several meshes
            torch.nn.utils.clip_grad_norm_(group, 1.0)


def step_of(c, loop, config, sequence, batch):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    data = torch.randint(config.vocab_size, (batch, sequence + 1), device="cuda")
    cos, sin = fsdp2_steps.table(shape_of(config), sequence, "cuda")

    def frame(tokens, labels):
        if "tp" in c["axes"]:
            return loss_parallel()
        if "ep" in c["axes"]:
            return contextlib.nullcontext()
        return context_parallel(loop.mesh["cp"], buffers=[tokens, labels, cos, sin], buffer_seq_dims=[1, 1, 0, 0],
                                no_restore_buffers={tokens, labels})

    def step():
        tokens, labels = data[:, :-1].contiguous(), data[:, 1:].contiguous()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), frame(tokens, labels):
            loss = fsdp2_steps.loss_of(loop.model(tokens, cos, sin), labels)
            loss.backward()
        loop.clip()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return step
