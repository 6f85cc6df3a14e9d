#!/usr/bin/env python3
"""Captures of transformers with Accelerate, PEFT and FSDP2 against what PyTorch's own allocator said elsewhere: a table.

    reports/hf_captures.py BIN tests/hf_cases [NAME ...] [--keep FOLDER]
    reports/hf_captures.py BIN CASES --record FOLDER      cases of one's own: files with `case` and `config` alone


BIN has foreshard-null and foreshard. A file of the folder is a case as reports/hf_cases.py takes it; hf_train.py runs
it under foreshard-null, and `foreshard predict|schedule --capture` are held to its `result`: bytes requested at the
peak of the last step, allocated, reserved, and every collective in order and bytes. Needs PyTorch with CUDA's
libraries, transformers, accelerate (of the case's version, or --accelerate FOLDER for cases of 1.13) and peft.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hf_cases import KINDS, recorded, same, scheduled  # noqa: E402

TRAIN = pathlib.Path(__file__).parent / "hf_train.py"


NCCL = {2: "int32", 4: "int64", 6: "fp16", 7: "fp32", 9: "bf16"}  # ncclDataType_t
NORM = 1 << 16  # bytes: norms and losses have fewer


def step_collectives(capture):
    """Of the steady step: kind, unit, bytes in, bytes out, dtype, ranks, where; the last is not known here."""
    names, ranks, rows, steps, threads = {}, {}, [], [], set()
    for line in (capture / "calls.txt").read_text().splitlines():
        letter, *rest = line.split(" ")
        if letter == "N":
            names[int(rest[0])] = rest[1]
        elif letter == "K":
            ranks[rest[2]] = int(rest[3])
        elif letter in "LG":
            threads.add(rest[1])
        elif letter == "H" and names[int(rest[2])] == "step":
            if steps and not threads - {rest[1]}:  # no backward since: the step's next optimizer, or group of parameters
                rows = steps.pop() + rows
            steps.append(rows)
            rows, threads = [], set()
        elif letter == "X" and names[int(rest[4])] in KINDS:
            kind, whole, group = names[int(rest[4])], int(rest[5]), ranks[rest[3]]
            sent = whole // group if kind == "all_gather" else whole
            received = whole // group if kind == "reduce_scatter" else whole
            is_norm = kind == "all_reduce" and whole < NORM
            rows.append(["functional_all_reduce" if is_norm else kind, "", sent, received, NCCL.get(int(rest[6]), "?"), 0 if is_norm else group, ""])
    return [rows for rows in steps if rows][-1]


def record(file, data, program, capture):
    """The case with its result in the form of tests/hf_cases."""
    versions = json.loads((capture / "model.json").read_text())["versions"]
    return {"id": file.stem, **data, "result": {"versions": versions, "steps": [program], "collectives": step_collectives(capture)}}


def score(folder, file, args):
    data = json.loads(file.read_text(encoding="utf-8"))
    case = data["case"]
    result = data.get("result", {"versions": {"accelerate": ""}})
    world = case.get("world", 8)
    environment = dict(os.environ)
    if result["versions"]["accelerate"].startswith("1.13") and args.accelerate:
        environment["PYTHONPATH"] = args.accelerate + ":" + environment.get("PYTHONPATH", "")
    config = file.parent / case["config"]
    if "config" in data:
        config = folder / "config"
        config.mkdir()
        (config / "config.json").write_text(json.dumps(data["config"]))
    (folder / "case.json").write_text(json.dumps(case))
    capture = folder / "capture"
    ran = subprocess.run(
        [args.bin / "foreshard-null", "--rank", str(case.get("rank", 0)), "--world", str(world), "--gpu", "h100", "--out", capture, *(["--padded"] if case.get("mask") == "padded" else []),
         "--", "python3", TRAIN, folder / "case.json", config],
        capture_output=True, text=True, env=environment)
    if ran.returncode != 0:
        return {"failed": f"exit {ran.returncode}: " + " | ".join(ran.stderr.strip().splitlines()[-3:])[-300:]}
    program = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("STEP"))[5:])
    cluster = f"{world}xh100"
    if args.record:
        args.record.mkdir(parents=True, exist_ok=True)
        (args.record / file.name).write_text(json.dumps(record(file, data, program, capture)))
        return {"failed": f"recorded, {program['requested'] / 2**20:.1f} MiB"}
    done = subprocess.run([args.bin / "foreshard", "predict", "--json", "--capture", capture, "--cluster", cluster], capture_output=True, text=True)
    if not done.stdout:
        return {"failed": "predict: " + done.stderr.strip()[-300:]}
    on_gpu = recorded(result)
    if case.get("fsdp", {}).get("cpu_offload"):
        on_gpu = [row for row in on_gpu if row[1] is not None]  # gradients, and so their norm, are on the host: gloo's
    memory, step = json.loads(done.stdout)["memory"], result["steps"][-1]
    return {
        "measured": step["requested"],
        "requested": program["requested"] - step["requested"],
        "peak": memory["peak_allocated_bytes"]["value"] - step["peak"],
        "own_peak": memory["peak_allocated_bytes"]["value"] - program["peak"],
        "reserved": memory["peak_reserved_bytes"]["value"] / step["reserved"] - 1,
        "difference": same(on_gpu, scheduled(args.bin / "foreshard", ["--capture", capture, "--cluster", cluster])),
    }


def main():
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("bin", type=pathlib.Path)
    said.add_argument("folder", type=pathlib.Path)
    said.add_argument("names", nargs="*")
    said.add_argument("--accelerate", help="folder with accelerate 1.13, for cases of it")
    said.add_argument("--record", type=pathlib.Path, help="where cases go with what this run said")
    said.add_argument("--keep", type=pathlib.Path, help="where the captures stay")
    args = said.parse_args()
    args.bin = args.bin.resolve()
    files = [f for f in sorted(args.folder.resolve().glob("*.json")) if not args.names or f.stem in args.names]
    print("| case | requested, MiB | off, bytes | allocated | reserved | collectives |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    rows = []
    for file in files:
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            if args.keep:
                folder = args.keep / file.stem
                folder.mkdir(parents=True, exist_ok=True)
            row = score(folder, file, args)
        rows.append(row)
        if "failed" in row:
            print(f"| {file.stem} | {row['failed']} | | | | |", flush=True)
        else:
            print(f"| {file.stem} | {row['measured'] / 2**20:.1f} | {row['requested']:+d} | {row['peak']:+d} | {100 * row['reserved']:+.3f} % | {row['difference'] or 'same'} |", flush=True)
    told = [row for row in rows if "failed" not in row]
    print(f"\n{len(told)} of {len(rows)} ran; requested to the byte {sum(row['requested'] == 0 for row in told)}, reserved within 0.1 % {sum(abs(row['reserved']) <= 1e-3 for row in told)}, "
          f"collectives the same {sum(not row['difference'] for row in told)}; the forecast's peak is the program's in {sum(row['own_peak'] == 0 for row in told)}")


if __name__ == "__main__":
    main()
