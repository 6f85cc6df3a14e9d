#!/usr/bin/env python3
"""A job that `foreshard export --to fsdp2` wrote, with a fault planted, recorded for `foreshard diagnose --run`.

    foreshard export --model llama-3.2-1b --cluster 1xh200 --sequence 2048 --micro-batch 4 --to fsdp2 --out train.py
    python3 fault_steps.py train.py --out faults [--only NAME,...] [--steps 3]

One rank, a process a fault. faults/NAME has the trace and what lies beside it; the cause that is planted is of
reports/diagnose/causes.yaml (reports/diagnose/planted.py asks diagnose for it).
"""
import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

KEPT = []  # what a fault holds


def wrapped(job, name, before=None, behind=None):
    """The job's function, with something done before it, or with its result."""
    original = getattr(job, name)

    def call(*args):
        if before:
            before()
        result = original(*args)
        return behind(result) if behind else result
    setattr(job, name, call)


def waits_for_data(job):
    wrapped(job, "train_step", lambda: time.sleep(0.06))


def slow_host(job):
    def spin(*_):
        until = time.perf_counter() + 4e-4
        while time.perf_counter() < until:
            pass

    def hooks(model):
        for module in model.modules():
            module.register_forward_pre_hook(spin)
        return model
    wrapped(job, "build", behind=hooks)


def items_in_layers(job):
    def hooks(model):
        for module in model.modules():
            module.register_forward_hook(lambda _, inputs, out: (out.flatten()[0].item(), None)[1])
        return model
    wrapped(job, "build", behind=hooks)


def unfused_attention(job):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    step = job.train_step

    def call(*args):
        with sdpa_kernel(SDPBackend.MATH):
            return step(*args)
    job.train_step = call


def fp32(job):
    import torch
    policy = job.MixedPrecisionPolicy
    job.MixedPrecisionPolicy = lambda param_dtype, **more: policy(param_dtype=torch.float32, **more)


def checkpointed(job):
    from torch.utils.checkpoint import checkpoint

    def blocks(model):
        for block in model.model.layers:
            block.forward = lambda *args, forward=block.forward: checkpoint(forward, *args, use_reentrant=False)
        return model
    wrapped(job, "build", behind=blocks)


def holds_logits(job):
    loss_of = job.loss_of

    def call(logits, labels):
        KEPT[:] = [logits.float()]
        return loss_of(logits, labels)
    job.loss_of = call


def grows(job):
    loss_of = job.loss_of

    def call(logits, labels):
        KEPT.append(logits.detach()[:1].clone())
        return loss_of(logits, labels)
    job.loss_of = call


def copies_parameters(job):
    def copies(optimizer):
        KEPT[:] = [p.detach().clone() for group in optimizer[0].param_groups for p in group["params"]]
        return optimizer
    wrapped(job, "optimizer_of", behind=copies)


def narrow_memory(job):
    """Less than the allocator's cache asks for, more than tensors do: it gives back and asks again."""
    import torch
    step, done = job.train_step, []

    def call(*args):
        loss = step(*args)
        done.append(loss)
        if len(done) == 2:
            share = 1.06 * torch.cuda.max_memory_allocated() / torch.cuda.mem_get_info()[1]
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share)
        return loss
    job.train_step = call


def loops_optimizer(job):
    import torch
    adamw = torch.optim.AdamW
    torch.optim.AdamW = lambda *args, fused=None, **more: adamw(*args, foreach=False, **more)


# Name: the cause, what plants it.
FAULTS = {
    "none": ("as_forecast", lambda job: None), "waits-for-data": ("data_loader", waits_for_data), "slow-host": ("host_bound", slow_host),
    "items-in-layers": ("host_bound", items_in_layers), "unfused-attention": ("eager_attention", unfused_attention), "fp32": ("wider_dtype", fp32),
    "checkpointed": ("recompute_on", checkpointed), "holds-logits": ("kept_logits", holds_logits), "grows": ("memory_growth", grows),
    "copies-parameters": ("second_copy", copies_parameters), "narrow-memory": ("allocator_retries", narrow_memory),
    "loops-optimizer": ("host_bound", loops_optimizer)}


def run(script, name, out, steps):
    spec = importlib.util.spec_from_file_location("exported", script)
    job = importlib.util.module_from_spec(spec)
    sys.modules["exported"] = job
    spec.loader.exec_module(job)
    FAULTS[name][1](job)
    job.start(0, 1, 29500, argparse.Namespace(steps=steps, record=str(out / name)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return run(args.script, args.one, args.out, args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in args.only.split(","):
        begin = time.monotonic()
        with open(args.out / f"{name}.log", "wb") as log:
            done = subprocess.run([sys.executable, __file__, args.script, "--out", args.out, "--steps", str(args.steps), "--one", name],
                                  stdout=log, stderr=subprocess.STDOUT, timeout=120, env=dict(os.environ, OMP_NUM_THREADS="4"))
        bad += done.returncode != 0
        print(name, FAULTS[name][0], done.returncode, f"{time.monotonic() - begin:.1f} s", flush=True)
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
