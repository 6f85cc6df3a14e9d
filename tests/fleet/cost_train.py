#!/usr/bin/env python3
"""A model of transformers at full size under fully_shard, as torchtitan makes it: on the meta device, sharded, then
given memory. Three optimizer steps on one rank of the world that its environment names.

    cost_train.py CONFIG_FOLDER SEQUENCE
"""
import os
import sys
import warnings

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    config, length = transformers.AutoConfig.from_pretrained(sys.argv[1]), int(sys.argv[2])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.gradient_checkpointing_enable()
    # Experts are fewer than ranks: along dimension 0 they would be padded to one a rank.
    said = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            "shard_placement_fn": lambda parameter: Shard(1) if parameter.ndim == 3 else None}
    for block in model.model.layers:
        fully_shard(block, **said)
    fully_shard(model, **said)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.zeros(1, length, dtype=torch.long, device="cuda")
    for _ in range(3):
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
