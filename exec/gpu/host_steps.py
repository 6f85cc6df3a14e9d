#!/usr/bin/env python3
"""Seconds that the host of a training step is busy, by part of the step, for small models of many codes.

    python3 host_steps.py --out host.jsonl [--set fit|gpu|codes] [--only NAME,...] [--seconds 60]

Each case is a process forked before CUDA starts, without any profiler, on 64 tokens: the GPU has almost nothing to do,
so that what a step takes is the host's. A row holds, for each part (forward, backward, clip, optimizer, zero_grad), the
median and the least over the steps of the wall time (`wall_s`) and of the processor time of all threads (`cpu_s`), of
the steps in which nobody else slowed the core down. `reference_s` is a fixed piece of Python and PyTorch's dispatcher on
the CPU: its ratio between two machines is that of their single threads. `launch_s`: one small kernel, and the same on the
CPU. On a GPU read `wall_s`; on the null GPU (exec/null), which runs no kernel, `cpu_s`.

--set fit: what the forecast's host coefficients are fitted to. gpu: a part of it for a real GPU, 60 s. codes: the cases of
code_steps.py, which have no say in the fit. --count adds how many ATen operations each part dispatches.

Needs torch 2.11, transformers 5 and accelerate 1.13 or newer; random weights and tokens.
"""
import argparse
import pathlib
import statistics
import sys
import time

import code_steps

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "null/python"))
import foreshard_reference  # noqa: E402

TOKENS = code_steps.HOST_TOKENS
WARMUP, STEPS = 4, 16
LONGEST = 1.5  # s per case until enough steps were quiet
PARTS = ("forward", "backward", "clip", "optimizer", "zero_grad")


def case(name, kind, layers, more=None, **case_more):
    small = dict(hidden_size=256, vocab_size=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    if kind == "Bloom":
        small.update(n_layer=layers, n_head=8)
    else:
        small.update(intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
                     max_position_embeddings=256, tie_word_embeddings=False)
    return code_steps.case(name, (kind, dict(small, **(more or {}))), TOKENS, 1, **case_more)


# A factorial over the depth and what varies between codes. None of these families is among the cases that judge.
FIT = [
    case("granite-4", "Granite", 4),
    case("granite-16", "Granite", 16),
    case("granite-16-world8", "Granite", 16, world=8),
    case("granite-16-checkpointed", "Granite", 16, checkpoint=True),
    case("granite-16-foreach", "Granite", 16, fused=False),
    case("granite-16-loop", "Granite", 16, loop="loop"),
    case("granite-8-accumulate-3", "Granite", 8, accumulation=3),
    case("granite-16-plain-bf16", "Granite", 16, plain="bfloat16"),
    case("granite-8-plain-fp32-foreach", "Granite", 8, plain="float32", fused=False),
    case("granite-8-world8-checkpointed", "Granite", 8, world=8, checkpoint=True),
    case("olmo2-12", "Olmo2", 12),
    case("olmo2-12-world16-foreach", "Olmo2", 12, world=16, fused=False),
    case("olmo2-12-plain-bf16", "Olmo2", 12, plain="bfloat16"),
    case("stablelm-12", "StableLm", 12),
    case("stablelm-6-plain-fp32", "StableLm", 6, plain="float32"),
    case("phi-12", "Phi", 12),
    case("phi-12-checkpointed", "Phi", 12, checkpoint=True),
    case("gemma-10", "Gemma", 10, dict(head_dim=32)),
    case("gemma-10-eager", "Gemma", 10, dict(head_dim=32), attention="eager"),
    case("glm-8", "Glm", 8, dict(head_dim=32)),
    case("bloom-12", "Bloom", 12, attention="eager"),
    case("roberta-12-plain-bf16", "Roberta", 12, task="mlm", plain="bfloat16"),
    case("granite-8-lora", "Granite", 8, lora=True),
    case("granite-8-compiled", "Granite", 8, compiled=True),
    case("granitemoe-4", "GraniteMoe", 4, dict(num_local_experts=8, num_experts_per_tok=2)),
]
GPU = ("granite-16", "granite-16-plain-bf16", "granite-4", "granite-8-accumulate-3", "phi-12", "granite-16-world8",
       "olmo2-12", "granite-16-foreach", "granite-16-checkpointed", "bloom-12")


class Reference(foreshard_reference.Reference):
    def __init__(self):
        super().__init__()
        self.best = min(self.seconds() for _ in range(30))

    def is_quiet(self):
        """Whether nobody slows this core down now."""
        now = min(self.seconds(), self.seconds())
        self.best = min(self.best, now)
        return now < 1.08 * self.best


def launch_seconds():
    """What one more kernel costs the host: a zeroing on the device less the same on the host."""
    import torch
    found = []
    for device in ("cuda", "cpu"):
        x = torch.zeros(16, device=device)
        best = 1e9
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                x.zero_()
            best = min(best, (time.perf_counter() - begin) / 200)
        found.append(best)
    return found


class Clock:
    """Wall and processor seconds of the parts of a step."""

    def __init__(self):
        self.steps = []

    def begin(self):
        self.steps.append({part: [0.0, 0.0] for part in PARTS})
        self.last = (time.perf_counter(), time.process_time())

    def part(self, name):
        now = (time.perf_counter(), time.process_time())
        for i in (0, 1):
            self.steps[-1][name][i] += now[i] - self.last[i]
        self.last = now

    def row(self, i):
        """[median, least] of each part and of their sum."""
        def both(values):
            return [round(statistics.median(values), 7), round(min(values), 7)]
        return dict({part: both([step[part][i] for step in self.steps]) for part in PARTS},
                    step=both([sum(v[i] for v in step.values()) for step in self.steps]))


def count_operations(step, clock):
    """ATen operations that each part of a step dispatches below autograd."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    found = dict.fromkeys(PARTS, 0)
    seen = [0]

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[0] += 1
            return func(*args, **(kwargs or {}))

    plain = clock.part

    def part(name):
        found[name] += seen[0]
        seen[0] = 0
        plain(name)
    clock.part = part
    with Counts():
        step()
    clock.part = plain
    clock.steps.pop()
    return found


def run(c, folder, count):
    import gc

    import torch
    torch.manual_seed(0)
    row = {"name": c["name"], "case": {k: v for k, v in c.items() if k not in ("name", "model")}, "torch": torch.__version__}
    config, loop = code_steps.prepare(c)
    config.save_pretrained(folder / "configs" / c["name"])
    clock = Clock()
    work = code_steps.step_of(c, loop, config, TOKENS, 1, lambda part: clock.part(part))

    def step():
        clock.begin()
        work()

    for _ in range(WARMUP):
        step()
    if count:
        row["operations"] = count_operations(step, clock)
    torch.cuda.synchronize()
    gc.collect()
    clock.steps.clear()
    reference = Reference()
    quiet = []
    end = time.monotonic() + LONGEST
    while len(clock.steps) < STEPS or (len(quiet) < STEPS // 2 and time.monotonic() < end):
        before = reference.is_quiet()
        step()
        torch.cuda.synchronize()
        if before and reference.is_quiet():
            quiet.append(clock.steps[-1])
    row["quiet"] = len(quiet)
    clock.steps = quiet or clock.steps
    model = loop.model
    row.update(parameters=len([p for p in model.parameters() if p.requires_grad]), modules=len(list(model.modules())),
               wall_s=clock.row(0), cpu_s=clock.row(1), reference_s=reference.best, launch_s=launch_seconds(), status="ok")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="file of rows, one JSON object a line")
    parser.add_argument("--set", choices=("fit", "gpu", "codes"), default="gpu")
    parser.add_argument("--only", help="names of cases")
    parser.add_argument("--seconds", type=float, default=60, help="for all; what does not begin by then is left out")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds per case until enough steps were quiet")
    args = parser.parse_args()
    by_name = {c["name"]: c for c in FIT}
    cases = {"fit": FIT, "codes": code_steps.LISTS["first"], "gpu": [by_name[name] for name in GPU]}[args.set]
    cases = [c for c in cases if not args.only or c["name"] in args.only.split(",")]
    globals()["LONGEST"] = args.longest
    out = pathlib.Path(args.out).absolute()
    return code_steps.run_all(cases, out, args.seconds, lambda c, folder: run(c, folder, args.count))


if __name__ == "__main__":
    sys.exit(main())
