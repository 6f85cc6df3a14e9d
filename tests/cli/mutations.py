#!/usr/bin/env python3
"""Mutated files of every format through the built program: how each call ends, how long it takes, and
whether what is refused says the line where the format has lines.

    python3 tests/cli/mutations.py build/bin/foreshard [--each 100] [--seed 1] [--only NAME] [--show]

Seeds are the fuzzers' (tests/fuzz/corpus) and files of the repository. Exits with 1 where a call crashed,
took longer than --limit seconds, or was an internal error.
"""
import argparse
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
JOB = ["--model", "gpt2", "--cluster", "8xh100"]

# name, file name, arguments (@ is the file), seeds, bytes dropped from the front of a seed
FORMATS = [
    ("plan, YAML", "plan.yaml", ["predict", "--plan", "@"], [CORPUS / "plan/design.yaml"], 0),
    ("cluster, YAML", "cluster.yaml", ["predict", "--model", "gpt2", "--cluster", "./@"],
     ["gpus: 16\nmachine: h100-sxm\nnode: {nic_rate: 200Gbit/s}\nnetwork: {oversubscription: 2}\n"], 0),
    ("model, YAML", "model.yaml", ["predict", "--model", "./@", "--cluster", "8xh100"],
     [CORPUS / "model_yaml/small.yaml"], 0),
    ("config.json", "config.json", ["models", "./@"],
     sorted((ROOT / "tests/interop/configs").glob("*.json")), 0),
    ("profile", "profile.json", ["predict", *JOB, "--profile", "@"],
     [CORPUS / "profile/h100-sxm.json"], 0),
    ("local profile", "local.json", ["predict", "--model", "gpt2", "--cluster", "local", "--profile", "@"],
     sorted((CORPUS / "local_profile").glob("*")), 0),
    ("measurements", "raw.json", ["calibrate", "@", "--out", "out.json"],
     sorted((CORPUS / "measurements").glob("*")), 0),
    ("table of products", "gemm.csv", ["calibrate", "@", "--out", "out.json"],
     [CORPUS / "tables/gemm_measured.csv"], 0),
    ("table of attention", "attention.csv", ["accuracy", "@"], [CORPUS / "tables/attention_measured.csv"], 0),
    ("table of steps", "steps.csv", ["accuracy", "@"], [CORPUS / "tables/training_steps.csv"], 0),
    ("prices", "prices.csv",
     ["recommend", "--model", "gpt2", "--tokens", "1B", "--cluster", "8xh100", "--prices", "@"],
     [CORPUS / "tables/prices.csv"], 0),
    ("log of nccl-tests", "all_gather_perf.log", ["calibrate", "@", "--machine", "h100", "--out", "out.json"],
     sorted((CORPUS / "nccl_tests").glob("*.txt")), 0),
    ("nccl-tests, JSON", "all_gather_perf.json",
     ["calibrate", "@", "--machine", "h100", "--out", "out.json"], [CORPUS / "nccl_tests/answer.json"], 0),
    ("nvidia-smi", "topo.txt", ["import", "@", "--machine", "h100"], [CORPUS / "topology/smi.txt"], 0),
    ("NCCL topology", "topo.xml", ["import", "@", "--machine", "h100"], [CORPUS / "topology/nccl.xml"], 0),
    ("Slurm topology", "topology.conf", ["import", "@", "--machine", "h100"],
     [CORPUS / "topology/slurm.conf"], 0),
    ("TorchTitan", "job.toml", ["import", "@", *JOB], [CORPUS / "trainer_settings/torchtitan.toml"], 1),
    ("Accelerate", "accelerate.yaml", ["import", "@", *JOB], [CORPUS / "trainer_settings/accelerate.yaml"], 1),
    ("DeepSpeed", "deepspeed.json", ["import", "@", *JOB], [CORPUS / "trainer_settings/deepspeed.json"], 1),
    ("search state", "state.txt",
     ["search", "--model", "gpt2", "--cluster", "8xh100", "--global-batch", "8", "--resume", "@"],
     [CORPUS / "search_state/whole.txt"], 0),
    ("answer", "answer.json", ["report", "@", "--html", "out.html"], sorted((CORPUS / "answer").glob("*")), 0),
    ("trace", "trace.json", ["explain", "--run", "@"], sorted((CORPUS / "trace").glob("*.json")), 0),
]
WORDS = [b"-1", b"0", b"1e999", b"nan", b"9" * 40, b"", b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"]", b",",
         b":", b"\n", b"#", b"<", b">", b"null", b"true", b" " * 50, b"x" * 300]


def mutated(seed, draw):
    data = bytearray(seed)
    for _ in range(draw.randint(1, 3)):
        kind = draw.randrange(6)
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.randrange(1, 20))
        if kind == 0:
            data[at:end] = draw.choice(WORDS)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[draw.randrange(len(data) + 1):][:40]
        elif kind == 3 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 4:
            del data[at:]
        else:  # a number for another
            numbers = list(re.finditer(rb"\d+", data))
            if numbers:
                n = draw.choice(numbers)
                data[n.start():n.end()] = draw.choice([b"0", b"-7", b"3.5", b"1e30", b"99999999999", b"x"])
    return bytes(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true", help="each refusal without a line")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    sums = [0] * 5
    bad = 0
    print(f"{'format':20} inputs answered refused no line  slowest")
    for name, file, arguments, seeds, skip in FORMATS:
        if options.only not in name:
            continue
        draw = random.Random(f"{options.seed} {name}")
        answered = refused = without = 0
        slowest = 0
        for _ in range(options.each):
            seed = draw.choice(seeds)
            text = seed.encode() if isinstance(seed, str) else seed.read_bytes()[skip:]
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / file).write_bytes(mutated(text, draw))
                command = [program] + [a.replace("@", file) for a in arguments]
                start = time.monotonic()
                try:
                    done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL,
                                          timeout=options.limit, check=False)
                except subprocess.TimeoutExpired:
                    bad += 1
                    print(f"  {name}: more than {options.limit} s")
                    continue
                slowest = max(slowest, time.monotonic() - start)
                error = done.stderr.decode(errors="replace")
                if done.returncode in (0, 4, 5):
                    answered += 1
                elif done.returncode in (2, 3, 6):
                    refused += 1
                    if not re.search(re.escape(file) + r":\d+", error):
                        without += 1
                        if options.show:
                            print(f"  {name}: {error.strip()[:200]}")
                else:
                    bad += 1
                    print(f"  {name}: exit {done.returncode}: {error.strip()[:200]}")
                    keep = pathlib.Path(f"mutation-{bad}-{file}")
                    keep.write_bytes((pathlib.Path(folder) / file).read_bytes())
        row = [options.each, answered, refused, without, slowest]
        sums = [a + b for a, b in zip(sums, row)]
        print(f"{name:20} {row[0]:6} {row[1]:8} {row[2]:7} {row[3]:7} {row[4]:8.2f} s", flush=True)
    print(f"{'all':20} {sums[0]:6} {sums[1]:8} {sums[2]:7} {sums[3]:7}          {bad} crashed, hung or internal")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
