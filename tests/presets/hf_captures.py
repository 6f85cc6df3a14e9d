#!/usr/bin/env python3
"""Captures of transformers with Accelerate, PEFT and FSDP2 against what PyTorch's own allocator said elsewhere: a table.

    tests/presets/hf_captures.py BIN tests/hf_cases [NAME ...] [--keep FOLDER]
    tests/presets/hf_captures.py BIN CASES --record FOLDER      cases of one's own: files with `case` and `config` alone

BIN has foreshard-null and foreshard. A file of the folder is a case of tests/hf_cases; hf_train.py runs
it under foreshard-null, and `foreshard predict|schedule --capture` are held to its `result`: bytes requested at the
peak of the last step, allocated, reserved, and every collective in order and bytes. Needs PyTorch with CUDA's
libraries, transformers, accelerate (of the case's version, or --accelerate FOLDER for cases of 1.13) and peft.
"""
import argparse
import json
import os
import pathlib
import tempfile

from held import answer, captured, last_lines, recorded, same, scheduled, step_collectives

TRAIN = pathlib.Path(__file__).parent / "hf_train.py"


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
    flags = ["--rank", case.get("rank", 0), "--world", world, "--gpu", "h100", *["--padded"] * (case.get("mask") == "padded")]
    ran = captured(args.bin, capture, flags, [TRAIN, folder / "case.json", config], env=environment)
    if ran.returncode != 0:
        return {"failed": last_lines(ran)}
    program = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("STEP"))[5:])
    if args.record:
        args.record.mkdir(parents=True, exist_ok=True)
        (args.record / file.name).write_text(json.dumps(record(file, data, program, capture)))
        return {"failed": f"recorded, {program['requested'] / 2**20:.1f} MiB"}
    said = ["--capture", capture, "--cluster", f"{world}xh100"]
    report, error = answer(args.bin / "foreshard", "predict", *said)
    if not report:
        return {"failed": "predict: " + error[-300:]}
    on_gpu = recorded(result)
    if case.get("fsdp", {}).get("cpu_offload"):
        on_gpu = [row for row in on_gpu if row[1] is not None]  # gradients, and so their norm, are on the host: gloo's
    memory, step = report["memory"], result["steps"][-1]
    return {
        "measured": step["requested"],
        "requested": program["requested"] - step["requested"],
        "peak": memory["peak_allocated_bytes"]["value"] - step["peak"],
        "own_peak": memory["peak_allocated_bytes"]["value"] - program["peak"],
        "reserved": memory["peak_reserved_bytes"]["value"] / step["reserved"] - 1,
        "difference": same(on_gpu, scheduled(args.bin / "foreshard", *said)),
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
