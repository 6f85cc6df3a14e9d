#!/usr/bin/env python3
"""Programs of one's own that nobody wrote (drawn_program.py): captured plain at two sizes, imported, forecast larger on 8
ranks, then captured so. With a Python that has PyTorch:

    tests/presets/drawn_programs.py build/bin --seeds 1-30,1001-1030 --out FOLDER

A line each: peak of what tensors ask for, how far off the plan's is, its reserved memory, and collectives."""
import argparse
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reports"))
import captured_plans  # noqa: E402
from ask import answer, ask  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("drawn_program.py")
RUNTIMES = ["fsdp2", "fsdp2", "ddp", "fsdp1", "hsdp"]
SIZES = {"rows": [(2, 128), (3, 192), (4, 512)], "images": [(2, 64), (3, 128), (4, 128)]}


def run(out, seed, batch, sequence, runtime="plain"):
    """The capture's folder."""
    folder = out / f"{seed}-{runtime}-{batch}"
    if not (folder / "capture.json").exists():
        how = ["--modules"] if runtime == "plain" else ["--world", 8, "--rank", 0]
        said = [BIN / "foreshard-null", "--gpu", "h100", *how, "--out", folder, "--", sys.executable, PROGRAM, seed, "--batch", batch, "--sequence", sequence, "--runtime", runtime]
        done = subprocess.run([str(s) for s in said], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise RuntimeError(f"{folder}: {done.stderr[-300:]}")
    return folder


def words(plan, runtime, batch, length):
    said = re.search(r"sequence: (\d+)", plan.read_text())
    sets = {"ddp": ["mesh.shard=1", "mesh.replicate=8"], "hsdp": ["mesh.shard=4", "mesh.replicate=2"]}.get(runtime, ["mesh.shard=8"])
    sets += ["dtype.reduce=none"] if runtime != "ddp" else []  # it has no policy of dtypes
    sets += ["fsdp1.use_orig_params=true"] if runtime == "fsdp1" else []
    return ["--plan", plan, "--cluster", "8xh100", "--runtime", "fsdp2" if runtime == "hsdp" else runtime, "--micro-batch", batch,
            *(["--sequence", int(said[1]) * length] if said else []), *[w for s in sets for w in ("--set", s)]]


def judge(out, seed):
    """How far off its peak is, and whether its collectives are the same."""
    runtime = random.Random(seed * 7919).choice(RUNTIMES)
    kind = subprocess.run([sys.executable, str(PROGRAM), str(seed), "--describe"], capture_output=True, text=True).stdout
    small, other, large = SIZES[kind.split()[0]]
    captures = [run(out, seed, *small), run(out, seed, *other)]
    there = run(out, seed, *large, runtime)
    plan = out / f"{seed}.plan.yaml"
    _, error = answer(BIN / "foreshard", "import", *captures, "--out", out / f"{seed}.model.yaml", "--plan", plan)
    if not plan.exists():
        return f"is not imported: {error[-300:]}", None, False
    length = large[1] // small[1]
    said = words(plan, runtime, large[0], length if kind.startswith("rows") else length**2)
    planned, error = answer(BIN / "foreshard", "predict", *said)
    if planned is None:
        return f"has no forecast: {error[-300:]}", None, False
    captured = ask(BIN / "foreshard", "predict", "--capture", there, "--cluster", "8xh100")
    asked = captured_plans.asked(captured, there)
    off = planned["memory"]["peak_allocated_bytes"]["value"] / asked - 1
    reserved = planned["memory"]["peak_reserved_bytes"]["value"] / captured["memory"]["peak_reserved_bytes"]["value"] - 1
    told = captured_plans.collectives(BIN / "foreshard", *said)
    is_so = captured_plans.without_reports(captured_plans.collectives(BIN / "foreshard", "--capture", there, "--cluster", "8xh100"), told)
    differs = captured_plans.same_cycle(is_so, told)
    return f"{runtime}: {asked / 2**20:.1f} MiB, {off:+.2%}, reserved {reserved:+.1%}, collectives {differs or 'the same'}", abs(off), not differs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--seeds", default="1-10,1001-1010")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("drawn"))
    a = parser.parse_args()
    global BIN
    BIN = a.bin
    a.out.mkdir(parents=True, exist_ok=True)
    offs, same, count = [], 0, 0
    for part in a.seeds.split(","):
        first, _, last = part.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            text, off, is_same = judge(a.out, seed)
            print(seed, text, flush=True)
            count, same = count + 1, same + is_same
            offs += [] if off is None else [off]
    if offs:
        print(f"{count} programs, {len(offs)} forecast: peaks {statistics.median(offs):.2%} off in the median, {max(offs):.1%} at worst; collectives the same in {same}")


if __name__ == "__main__":
    main()
