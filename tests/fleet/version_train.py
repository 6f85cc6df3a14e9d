"""Three steps of a small decoder under fsdp2, fsdp1 or ddp, as any PyTorch from 2.4 on has them; says what its allocator saw in the last step."""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

WIDTH, BLOCKS, HEADS, WORDS, BATCH, LENGTH = 768, 4, 12, 50304, 4, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def fsdp2(model):
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard  # before 2.6
    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    return model


def fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    precision = MixedPrecision(torch.bfloat16, torch.float32)
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision, device_id=torch.cuda.current_device(), use_orig_params=True)


def ddp(model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
runtime = sys.argv[1]
model = {"fsdp2": fsdp2, "fsdp1": fsdp1, "ddp": ddp}[runtime](Decoder().cuda())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
words = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16, enabled=runtime == "ddp"):
        loss = F.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("PEAK", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.__version__, flush=True)
    torch.cuda.reset_peak_memory_stats()
dist.destroy_process_group()
