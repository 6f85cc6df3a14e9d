#!/usr/bin/env python3
"""The engine beside PyTorch FSDP2 and DDP on two CPU ranks, one thread each, same model, tokens and optimizer.

    reports/engine_fsdp2.py [--rounds 3]     with a Python that has torch 2.11 (FSDP2_PYTHON names another)

Runs alternate, so that a slow spell of the machine hits both. Tokens per second over the median step of
the slowest rank, the first three left out; memory is the peak resident size minus the size right after
`import torch` (PyTorch) or right before the engine's buffers are made. The last share is what plain
computation (the engine on one rank, same tokens per rank) takes of FSDP2's step. Prints a Markdown table.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("FSDP2_PYTHON", sys.executable)
TRAIN = HERE / "reports" / "fsdp2_cpu" / "train.py"
# name, engine's model, FSDP2's dimensions, sequences of 256 tokens per rank, steps
CASES = [
    ("5M, 4 x 256 tokens a rank", "llama-5m", "--dim 256 --layers 6 --heads 8 --kv-heads 4 --ffn 768", 4, 14),
    ("30M, 1 x 256", "llama-30m", "--dim 512 --layers 8 --heads 8 --kv-heads 4 --ffn 1920", 1, 12),
    ("30M, 2 x 256", "llama-30m", "--dim 512 --layers 8 --heads 8 --kv-heads 4 --ffn 1920", 2, 10),
]
# what train.py is told: as it comes; all-gathers that overlap (of its prefetch depths and torch.compile none was faster here); DDP
OTHERS = {"FSDP2": [], "FSDP2 tuned": ["--async-unshard"], "DDP": ["--runtime", "ddp"]}


def run(words, **more):
    done = subprocess.run([str(w) for w in words], cwd=HERE, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr[-2000:]}")
    return done.stdout


def pytorch(case, data, options):
    _, _, dims, batch, steps = case
    out = run([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, TRAIN,
               *dims.split(), "--seq", 256, "--batch", batch, "--steps", steps, "--data", data, *options],
              env={**os.environ, "OMP_NUM_THREADS": "1"})
    summary = next(json.loads(line) for line in out.splitlines() if '"summary"' in line)
    return summary["tokens_per_s"], summary["peak_rss_mib"]


def engine(case, data, ranks, folder):
    _, model, _, batch, steps = case
    out = run([HERE / "build/bin/foreshard-exec", "run", "--model", f"models/examples/{model}.json",
               "--cluster", "local", "--sequence", 256, "--micro-batch", batch, "--spawn", ranks, "--steps",
               steps, "--data", data, "--set", "optimizer.clip_norm=none", "--set",
               "optimizer.learning_rate=0.001", "--out", folder, "--json"])
    record = json.loads((folder / "run.json").read_text())
    memory = max(r["peak_rss_bytes"] - r["rss_before_init_bytes"] for r in record["ranks"])
    return json.loads(out)["run"]["tokens_per_s"], memory / 2**20


def import_size():
    code = ("import torch, torch.distributed.fsdp, os\n"
            "print(int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2**20)")
    return float(run([PYTHON, "-c", code]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    folder = HERE / "build" / "engine-fsdp2"
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "text"
    data.write_bytes(b"".join(p.read_bytes() for p in sorted((HERE / "sim").rglob("*.cpp"))))
    base = import_size()
    print("| case | engine tokens/s |", " | ".join(f"{name} tokens/s, engine's over it" for name in OTHERS), "| engine MiB |",
          " | ".join(f"{name} MiB" for name in OTHERS), "| computing alone, of FSDP2's step |")
    print("| --- " * (4 + 2 * len(OTHERS)) + "|")
    for case in CASES:
        ours, alone = [], []
        theirs = {name: [] for name in OTHERS}
        for round_number in range(a.rounds):
            print(f"{case[0]}: round {round_number + 1}", file=sys.stderr)
            ours.append(engine(case, data, 2, folder / "run"))
            for name, options in OTHERS.items():
                theirs[name].append(pytorch(case, data, options))
            alone.append(engine(case, data, 1, folder / "alone")[0])
        middle = lambda rows, column: statistics.median(row[column] for row in rows)
        mine, memory = middle(ours, 0), middle(ours, 1)
        speeds = [f"{middle(rows, 0):,.0f}, {mine / middle(rows, 0):.2f}x" for rows in theirs.values()]
        sizes = [f"{middle(rows, 1) - base:.0f}, {memory / (middle(rows, 1) - base):.2f}x" for rows in theirs.values()]
        share = middle(theirs["FSDP2"], 0) / 2 / statistics.median(alone)
        print("|", " | ".join([case[0], f"{mine:,.0f}", *speeds, f"{memory:.0f}", *sizes, f"{share:.0%}"]), "|", flush=True)


if __name__ == "__main__":
    main()
