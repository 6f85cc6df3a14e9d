#!/usr/bin/env python3
"""Forecast against measurement on this machine: `reports/engine_accuracy.py [--rounds 3] [--out FOLDER] [--axes]`.

Measures the machine, calibrates, then runs a set of plans with foreshard-exec, round after round with
the plans interleaved so that a slow spell of the machine hits all of them, and compares each plan's
median step with its forecast. The forecast never sees a step: only `foreshard-exec measure`'s kernels
and collectives. Prints a Markdown table. --axes: four ranks, tensor parallel with its sequence, beside shards.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
BIN = HERE / "build" / "bin"
SMALL, LARGE = "models/examples/llama-5m.json", "models/examples/llama-30m.json"

# name, model, sequences of 256 tokens, ranks, steps, plan keys
PLANS = [
    ("5M, 1 rank", SMALL, 4, 1, []),
    ("5M, shard 2", SMALL, 4, 2, []),
    ("5M, shard 2, no prefetch", SMALL, 4, 2, ["prefetch.forward=0", "prefetch.backward=0"]),
    ("5M, shard 2, prefetch 2", SMALL, 4, 2, ["prefetch.forward=2", "prefetch.backward=2"]),
    ("5M, shard 2, never resharded", SMALL, 4, 2, ["reshard_after_forward=never"]),
    ("5M, shard 2, recompute", SMALL, 4, 2, ["recompute=full"]),
    ("5M, shard 2, 4 micro-batches of 1", SMALL, 1, 2, ["batch.accumulation=4"]),
    ("5M, replicate 2", SMALL, 4, 2, ["mesh.shard=1", "mesh.replicate=2"]),
    ("5M, shard 2, 1 sequence", SMALL, 1, 2, []),
    ("30M, 1 rank", LARGE, 1, 1, []),
    ("30M, shard 2", LARGE, 1, 2, []),
    ("30M, shard 2, no prefetch", LARGE, 1, 2, ["prefetch.forward=0", "prefetch.backward=0"]),
    ("30M, shard 2, never resharded", LARGE, 1, 2, ["reshard_after_forward=never"]),
    ("30M, shard 2, recompute", LARGE, 1, 2, ["recompute=full"]),
    ("30M, shard 2, 2 micro-batches", LARGE, 1, 2, ["batch.accumulation=2"]),
    ("30M, replicate 2", LARGE, 1, 2, ["mesh.shard=1", "mesh.replicate=2"]),
]
AXES = [
    (f"{name}, {words}", model, batch, 4, [f"mesh.{key}={value}" for key, value in mesh.items()])
    for name, model, batch in (("5M", SMALL, 4), ("30M", LARGE, 1))
    for words, mesh in (("shard 4", {}), ("tp 2, shard 2", {"tp": 2, "shard": 2}),
                        ("tp 2, replicate 2", {"tp": 2, "shard": 1, "replicate": 2}), ("tp 4", {"tp": 4, "shard": 1}))
]


def call(*words, check=True):
    done = subprocess.run([str(w) for w in words], cwd=HERE, capture_output=True, text=True)
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done


def job_of(plan):
    _, model, batch, ranks, settings = plan
    keys = {"mesh.shard": ranks, "mesh.replicate": 1, **dict(s.split("=") for s in settings)}
    return ["--model", model, "--cluster", "local", "--runtime", "native", "--sequence", 256, "--micro-batch", batch,
            *itertools.chain(*(("--set", f"{key}={value}") for key, value in keys.items()))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", default="build/engine-accuracy")
    parser.add_argument("--profile", help="use it instead of measuring")
    parser.add_argument("--axes", action="store_true")
    a = parser.parse_args()
    plans = AXES if a.axes else PLANS
    folder = pathlib.Path(a.out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    profile = a.profile
    if not profile:
        profile = folder / "profile.json"
        raw = folder / "raw.json"
        call(BIN / "foreshard-exec", "measure", "--model", SMALL, "--model", LARGE, "--tokens", "256x4",
             "--tokens", "256x1", *(["--spawn", 4] if a.axes else []), "--out", raw)
        call(BIN / "foreshard", "calibrate", raw, "--out", profile)
    results = [[] for _ in plans]
    for round_number in range(a.rounds):
        for i, plan in enumerate(plans):
            run = folder / f"run-{i}-{round_number}"
            call(BIN / "foreshard-exec", "run", *job_of(plan), "--spawn", plan[3], "--data", "sim",
                 "--steps", a.steps, "--out", run, "--json")
            done = call(BIN / "foreshard", "validate", *job_of(plan), "--profile", profile, "--run",
                        run, "--json", "--no-history", check=False)
            if done.returncode not in (0, 5):
                sys.exit(done.stderr)
            results[i].append(json.loads(done.stdout))
            print(f"round {round_number + 1}: {plan[0]}", file=sys.stderr)

    print("| plan | forecast ms | measured ms, median of rounds | spread of rounds | error | exposed: "
          "forecast, measured ms | memory error |\n| --- | --- | --- | --- | --- | --- | --- |")
    errors, spreads, pairs, memory = [], [], [], []
    for plan, runs in zip(plans, results):
        predicted = runs[0]["predicted"]["step"]["seconds"]["value"]
        steps = [r["measured"]["step"]["seconds"]["value"] for r in runs]
        measured = statistics.median(steps)
        spread = max(abs(s / measured - 1) for s in steps)
        error = predicted / measured - 1
        exposed = statistics.median(r["measured"]["step"]["exposed_communication_s"]["value"] for r in runs)
        forecast_exposed = runs[0]["predicted"]["step"]["exposed_communication_s"]["value"]
        off = statistics.median(r["memory_error"] for r in runs)
        errors.append(abs(error))
        spreads.append(spread)
        memory.append(abs(off))
        pairs.append((plan[0], predicted, measured))
        print(f"| {plan[0]} | {predicted * 1e3:.1f} | {measured * 1e3:.1f} | {spread:.1%} | {error:+.1%} | "
              f"{forecast_exposed * 1e3:.1f}, {exposed * 1e3:.1f} | {off:+.1%} |")
    far = [(x, y) for x, y in itertools.combinations(pairs, 2) if abs(x[2] / y[2] - 1) > 0.10]
    wrong = [(x[0], y[0]) for x, y in far if (x[1] - y[1]) * (x[2] - y[2]) < 0]
    print(f"\nmedian absolute error {statistics.median(errors):.1%}, worst {max(errors):.1%}; "
          f"median spread of rounds {statistics.median(spreads):.1%}; "
          f"memory within {max(memory):.1%}; {len(far) - len(wrong)} of {len(far)} pairs of plans that "
          f"differ by more than 10 % ranked as measured" + (f", not {wrong}" if wrong else ""))


if __name__ == "__main__":
    main()
