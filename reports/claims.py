#!/usr/bin/env python3
"""Answers published claims about FSDP with forecasts: runs one command for each and writes
reports/claims.md with its numbers. Usage, from the repository's root:

    reports/claims.py [build/bin/foreshard]
"""

import shlex
import sys

from ask import ask

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
OUT = "reports/claims.md"


def run(command):
    """The JSON answer of `foreshard COMMAND --json`."""
    return ask(PROGRAM, *shlex.split(command))


def ms(seconds):
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def interval(quantity, shape=ms):
    return f"{shape(quantity['value'])} ({shape(quantity['low'])} .. {shape(quantity['high'])})"


def percent(ratio):
    return f"{ratio * 100:.1f} %"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def section(title, published, command, body):
    return (f"## {title}\n\nPublished: {published}\n\n    foreshard {command}\n\n"
            f"Predicted: {body}\n")


def step(answer):
    return answer["step"]["seconds"]["value"]


def half_the_time():
    port = ("--model llama-2-7b --cluster reports/claims/64xa100_one_port.yaml --sequence 2048 "
            "--micro-batch 8 --set recompute=full --runtime native")
    none = "--set prefetch.forward=0 --set prefetch.backward=0"
    command = f"compare {port} {none} --with prefetch.forward=1 --with prefetch.backward=1"
    slow = run(f"predict {port} {none}")
    fast = run(f"predict {port} --set prefetch.forward=1 --set prefetch.backward=1")
    job = "--model llama-3.1-8b --cluster 8xh100 --runtime native"
    best = run(f"search {job} --global-batch 8")["best"]["report"]["step"]["seconds"]["value"]
    worst = step(run(f"predict {job} {none} --set recompute=full"))
    default = step(run("predict --model llama-3.1-8b --cluster 64xh100"))
    fsdp1 = step(run("predict --model llama-3.1-8b --cluster 64xh100 --runtime fsdp1"))
    rows = [
        ["prefetch against none, 64 x A100 with one 100 Gbit/s port a node", ms(step(slow)),
         ms(step(fast)), percent(1 - step(fast) / step(slow))],
        ["the best plan against one without prefetch and with full recompute, 8 x H100", ms(worst),
         ms(best), percent(1 - best / worst)],
        ["FSDP2 against FSDP1, both as they come, 64 x H100", ms(fsdp1), ms(default),
         percent(1 - default / fsdp1)],
    ]
    return section(
        "FSDP2 cuts training time by up to 50 %",
        "said of FSDP2 in talks and posts, without what it is compared with.", command,
        "it depends on what it is compared with. Overlap can hide at most the shorter of compute "
        "and communication, so half is the limit of what prefetch alone can bring, where both take "
        f"equally long; here communication takes {ms(slow['step']['communication_s']['value'])} of "
        f"{ms(step(slow))}. Against FSDP1 there is no such gain.\n\n" +
        table(["against", "step before", "step after", "saved"], rows))


def linear_to_512():
    command = ("scale --model llama-2-7b --cluster a100 --gpus 8,32,128,512 --sequence 4096 "
               "--global-batch 1024")
    curve = run(command)
    weak = run("scale --model mpt-7b --cluster h100 --gpus 128,256,512 --sequence 2048 --weak 8")
    rows = [[p["gpus"], interval(p["step_s"]), f"{p['tokens_per_s']['value']:,.0f}",
             percent(p["efficiency"]), percent(p["mfu"]["value"])] for p in curve["points"]]
    losses = ", ".join(f"{p['gpus']}: {percent(p['efficiency'])}" for p in weak["points"])
    return section(
        "512 GPUs scale nearly linearly",
        "near-linear TFLOPS per GPU to 512 A100 (arXiv 2304.11277, section 5.3); MPT-7B on H100: MFU "
        "45.7, 44.2, 42.2 % at 128, 256, 512 GPUs, so 100, 96.7, 92.3 % of the smallest "
        "(mosaicml/llm-foundry:scripts/train/benchmarking/README.md).", command,
        "strong scaling at a fixed step, against 8 GPUs.\n\n" +
        table(["GPUs", "step", "tokens/s", "efficiency", "MFU"], rows) +
        f"\n\nWeak scaling of MPT-7B on H100 (`scale --model mpt-7b --cluster h100 --gpus "
        f"128,256,512 --sequence 2048 --weak 8`): {losses}. The forecast knows neither stragglers "
        "beyond the spread of GPUs nor other jobs on the network: it loses less than was measured.")


def megabytes_per_gpu():
    command = "predict --model llama-2-70b --cluster 512xa100 --sequence 4096 --set recompute=full"
    report = run(command)
    sharding = report["sharding"]
    allocated = report["memory"]["peak_allocated_bytes"]["value"]
    return section(
        "280 MB per GPU",
        "a 70B model's bf16 parameters over 512 GPUs: 140 GB / 512, rounded up.", command,
        f"{sharding['per_gpu_bytes'] / 1e6:.1f} MB of bf16 parameters per GPU, of "
        f"{sharding['whole_bytes'] / 1e9:.1f} GB. That is what is gathered from, not what a GPU "
        f"needs: the step's peak is {allocated / 2**30:.1f} GiB allocated, with fp32 parameters and "
        "optimizer state, two unsharded units, gradients and activations.")


def small_models_lose():
    command = ("scale --model gpt2 --cluster a100 --gpus 8,32,128,512 --global-batch 512")
    small = run(command)
    large = run("scale --model llama-2-7b --cluster a100 --gpus 8,32,128,512 --sequence 1024 "
                "--global-batch 512")
    rows = []
    for a, b in zip(small["points"], large["points"]):
        rows.append([a["gpus"], percent(a["efficiency"]), percent(a["exposed_communication"]),
                     percent(b["efficiency"]), percent(b["exposed_communication"])])
    return section(
        "Small models lose to communication",
        "FSDP's authors see the rate per GPU of a small model fall with the number of GPUs, that of "
        "a large one hardly (arXiv 2304.11277, section 5).", command,
        "steps of 512 sequences of 1,024 tokens; beside it llama-2-7b on the same GPUs.\n\n" +
        table(["GPUs", "gpt2 efficiency", "gpt2 exposed", "llama-2-7b efficiency",
               "llama-2-7b exposed"], rows))


def inside_the_node():
    job = ("--model llama-2-7b --cluster reports/claims/64xa100_one_port.yaml --sequence 4096 "
           "--micro-batch 4 --set recompute=full")
    command = f"compare {job} --accumulation 4 --with mesh.shard=8 --with accumulation.all_reduce=last"

    def pair(flags, shard="--set mesh.shard=8"):
        full = step(run(f"predict {job} {flags}"))
        inside = step(run(f"predict {job} {flags} {shard}"))
        return full, inside

    rows = []
    for what, flags, shard in [
            ("fp32 gradients", "", "--set mesh.shard=8"),
            ("bf16 gradients", "--set dtype.reduce=bf16", "--set mesh.shard=8"),
            ("fp32, 4 micro-batches, all-reduce in the last", "--accumulation 4",
             "--set mesh.shard=8 --set accumulation.all_reduce=last"),
            ("fp32, 16 micro-batches, all-reduce in the last", "--accumulation 16",
             "--set mesh.shard=8 --set accumulation.all_reduce=last")]:
        full, inside = pair(flags, shard)
        rows.append([what, ms(full), ms(inside), f"{(inside / full - 1) * 100:+.1f} %"])
    return section(
        "Sharding inside the node beats full sharding on slow networks",
        "the reason for hybrid sharding (arXiv 2304.11277, section 3.2.2; pytorch.org, FSDP "
        "tutorial).", command,
        "not by itself. With fp32 gradients and one micro-batch the all-reduce between nodes moves "
        "as many bytes through a node's port as gathering twice in bf16 and reducing once in fp32, "
        "and it is exposed at the end of backward. With bf16 gradients both take as "
        "long. It wins where several micro-batches share one all-reduce.\n\n" +
        table(["64 x A100, one 100 Gbit/s port a node", "shard 64", "shard 8", "change"], rows))


def deeper_prefetch():
    command = "search --model gpt3-175b --cluster 1024xh100 --global-batch 1024"
    found = run(command)
    cells = {}
    for cell in found["heatmap"]:
        if cell["seconds"] is None:
            continue
        word = f"{cell['prefetch']['forward']}/{cell['prefetch']['backward']}"
        cells.setdefault(cell["shard"], []).append((word, cell["seconds"]))
    rows = []
    for shard, list_ in sorted(cells.items()):
        times = dict(list_)
        fastest, slowest = min(times.values()), max(times.values())
        rows.append([shard, ms(times["implicit/1"]), ms(fastest),
                     min(times, key=times.get), percent(slowest / fastest - 1)])
    return section(
        "Deeper prefetch may not help",
        "forward prefetch \"may or may not help, needs a sweep\" (facebookresearch/d2go#492).",
        command,
        "GPT-3 175B on 1,024 H100, best of everything else for each shard group; the last column is "
        "all that prefetch decides.\n\n" +
        table(["shard group", "implicit/1", "best", "with", "slowest over fastest"], rows))


def main():
    parts = [half_the_time(), linear_to_512(), megabytes_per_gpu(), small_models_lose(),
             inside_the_node(), deeper_prefetch()]
    text = ("# Published claims, answered by forecasts\n\nEvery section names what was published "
            "and where, the command, and what it predicts (90 % intervals in brackets). Nothing on "
            "this page was measured by Foreshard. Written by `reports/claims.py`.\n\n")
    with open(OUT, "w", encoding="utf-8") as file:
        file.write(text + "\n".join(parts))


main()
