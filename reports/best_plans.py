#!/usr/bin/env python3
"""The best plan against what a runtime and a trainer do by themselves, on published clusters:
writes reports/best_plans.md. Usage, from the repository's root:

    reports/best_plans.py [build/bin/foreshard]
"""

import itertools
import sys

from ask import answer

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
OUT = "reports/best_plans.md"

# Model, cluster, sequence, sequences of a step, where it was published.
JOBS = [
    ("llama-3.1-8b", "8xh100", 8192, 8, "torchtitan, 8 H100"),
    ("llama-3.1-8b", "128xh100", 8192, 256, "torchtitan, 128 H100"),
    ("llama-3.1-70b", "256xh100", 8192, 512, "torchtitan, 256 H100"),
    ("llama-2-7b", "128xa100", 4096, 256, "foundation-model-stack/fms-fsdp, 128 A100"),
    ("llama-2-70b", "128xa100", 4096, 256, "foundation-model-stack/fms-fsdp, 128 A100"),
    ("mpt-7b", "128xh100", 2048, 2048, "mosaicml/llm-foundry, 128 H100"),
    ("mpt-7b", "512xh100", 2048, 2048, "mosaicml/llm-foundry, 512 H100"),
    ("mpt-30b", "64xa100-40gb", 2048, 256, "mosaicml/llm-foundry, A100"),
    ("gpt3-175b", "1024xh100", 2048, 1024, "NVIDIA/Megatron-LM, 1,024 H100"),
]


def run(arguments):
    # One training code for all: the plans alone are compared.
    return answer(PROGRAM, *arguments, "--set", "stack=torchtitan_2025")[0]


def default_step(job, settings):
    """The job as it comes; where it does not fit, with more recomputation."""
    model, cluster, sequence, batch, _ = job
    for recompute in ("none", "selective", "full"):
        arguments = ["predict", "--model", model, "--cluster", cluster, "--sequence", str(sequence),
                     "--set", f"batch.global={batch}", "--set", f"recompute={recompute}"]
        for setting in settings:
            arguments += ["--set", setting]
        report = run(arguments)
        if report and report["memory"]["fits"] and report["memory"]["fit_probability"] >= CONFIDENCE:
            return report["step"]["seconds"]["value"], recompute
    return None, None


CONFIDENCE = 0.95  # that a plan fits, of all that are compared

# What an expert would try by hand: every combination of these.
HAND = {
    "mesh.shard": ["node", "all"],
    "reshard_after_forward": ["always", "never"],
    "recompute": ["none", "selective", "full"],
    "batch.micro_batch": [1, 2, 4],
    "loss": ["eager", "chunked-8"],
    "allocator": ["default", "expandable_segments:True"],
}


def tuned_by_hand(job):
    """The fastest combination of HAND that fits as surely as search asks."""
    model, cluster, sequence, batch, _ = job
    gpus = int(cluster.split("x")[0])
    best, how = None, None
    for values in itertools.product(*HAND.values()):
        chosen = dict(zip(HAND, values))
        shard = min(8, gpus) if chosen["mesh.shard"] == "node" else gpus
        micro_batch = chosen["batch.micro_batch"]
        if batch % (gpus * micro_batch):
            continue
        settings = {**chosen, "mesh.shard": shard, "mesh.replicate": gpus // shard, "batch.global": batch}
        if settings["allocator"] == "default":
            del settings["allocator"]
        if settings["loss"] == "eager":
            del settings["loss"]
        arguments = ["predict", "--model", model, "--cluster", cluster, "--sequence", str(sequence)]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        report = run(arguments)
        if not report or not report["memory"]["fits"] or report["memory"]["fit_probability"] < CONFIDENCE:
            continue
        step = report["step"]["seconds"]["value"]
        if best is None or step < best:
            best, how = step, " ".join(str(value) for value in values)
    return best, how


def policy(value):
    """A reshard or recompute policy in words: "always, 25-33 never"."""
    if isinstance(value, str):
        return value
    parts = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            return str(value)
        where = entry.get("units", entry.get("layers"))
        parts.append(str(entry["value"]) if where == "all" else f"{where} {entry['value']}")
    return ", ".join(parts)


def words(plan):
    mesh, batch = plan["mesh"], plan["batch"]
    prefetch = plan["prefetch"]
    return (f"shard {mesh['shard']} x {mesh['replicate']}, reshard {policy(plan['reshard_after_forward'])}, "
            f"prefetch {prefetch['forward']}/{prefetch['backward']}, recompute {policy(plan['recompute'])}, "
            f"micro-batch {batch['micro_batch']} x {batch['accumulation']}")


def cell(step, recompute, best):
    if step is None:
        return "does not fit"
    return f"{step:.3f} s ({recompute}): {(best / step - 1) * 100:+.1f} %"


def main():
    lines = ["| job | FSDP2 as it comes | torchtitan's units | tuned by hand | best | its plan |",
             "|---|---|---|---|---|---|"]
    slower = slower_than_hand = 0
    for job in JOBS:
        model, cluster, sequence, batch, source = job
        found = run(["search", "--model", model, "--cluster", cluster, "--sequence", str(sequence),
                     "--global-batch", str(batch)])
        deep = run(["search", "--model", model, "--cluster", cluster, "--sequence", str(sequence),
                    "--set", f"batch.global={batch}", "--set", "trainer=torchtitan", "--deep"])
        best = min(answer["best"]["report"]["step"]["seconds"]["value"] for answer in (found, deep)
                   if answer and answer["best"])
        if best < found["best"]["report"]["step"]["seconds"]["value"]:
            found = deep
        runtime = default_step(job, [])
        trainer = default_step(job, ["trainer=torchtitan"])
        hand = tuned_by_hand(job)
        # Of equally fast plans (0.05 %) search names the more usual one.
        slower_than_hand += hand[0] is not None and best > hand[0] * (1 + 5e-4)
        slower += any(step is not None and best > step * (1 + 5e-4) for step, _ in (runtime, trainer))
        lines.append(f"| {model}, {cluster}, {batch} x {sequence} ({source}) | {cell(*runtime, best)} "
                     f"| {cell(*trainer, best)} | {cell(*hand, best)} | {best:.3f} s | {words(found['best']['plan'])} |")
    text = ("# The best plan against defaults\n\nPredicted steps at the same global batch, on the "
            "machines of published runs. A default has micro-batch 1 and the least recomputation "
            "with which it fits with 95 %, which is named; the per cent are what the best plan takes more (+) or less "
            f"(-). Tuned by hand: the fastest of up to 144 combinations that fits with 95 %, as the best plan "
            f"does. Slower than a default: {slower}; than what is tuned by hand: {slower_than_hand}. Written by `reports/best_plans.py`.\n\n")
    with open(OUT, "w", encoding="utf-8") as file:
        file.write(text + "\n".join(lines) + "\n")


main()
