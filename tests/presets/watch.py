"""What PyTorch's allocator says between the ends of optimizer steps, whoever's loop it is; no code of the trainer is touched for it."""
import json
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def said():
    """The case's options: {"run": {...}, "model": config.json's keys}."""
    return json.load(open(sys.argv[1]))


class Words(torch.utils.data.Dataset):
    def __init__(self, sequence):
        self.ids = torch.zeros(sequence, dtype=torch.long)

    def __len__(self):
        return 4096

    def __getitem__(self, at):
        return {"input_ids": self.ids, "labels": self.ids}


def step_ended(optimizer, *_):
    if hasattr(optimizer, "optimizers"):  # torchtitan's list of optimizers is one, too
        return
    stats = torch.cuda.memory_stats()
    print("STEP", json.dumps({"peak": stats["allocated_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"], "requested": stats["requested_bytes.all.peak"]}), flush=True)
    torch.cuda.reset_peak_memory_stats()


register_optimizer_step_post_hook(step_ended)
