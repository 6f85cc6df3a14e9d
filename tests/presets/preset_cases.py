#!/usr/bin/env python3
"""Presets of training codes against captures of these codes' own training step: a table.

    tests/presets/preset_cases.py BIN [NAME ...] [--path TRAINER=FOLDER ...] [--keep FOLDER]
    tests/presets/preset_cases.py BIN --record tests/preset_cases      the captures as cases for `foreshard conform`

BIN has foreshard-null and foreshard. A case of tests/preset_cases says what runs (`run`: the code's own options, read by
TRAINER_train.py) and what somebody who plans it would type (`set`: keys of a plan). The code runs three steps as
rank 0 of 8 under foreshard-null; compared are the collectives of the last one in order and bytes, the peak of what tensors
ask for less cuBLAS' workspaces, and what the caching allocator holds. Needs PyTorch 2.11 with the codes: those of --path
are taken from a folder that pip filled (pip install --no-deps --target FOLDER torchtitan==0.2.2), others are python3's.
nanotron is GitHub's src (2411b022) and, of nanotron_zero1, PyPI's 0.4 (nanotron-0.4=...), each with the Python of flash-attn 2.8.
"""
import argparse
import json
import os
import pathlib
import tempfile

from held import captured, compared, last_lines, step_collectives

HERE = pathlib.Path(__file__).resolve().parent

WORLD, STEPS = 8, 3


def run(args, case, folder):
    """What its allocator said of the last step; its collectives; versions."""
    (folder / "case.json").write_text(json.dumps({"run": case["run"], "model": case["config"]}))
    paths = [path for name, path in args.path if name in (case["trainer"], f"{case['trainer']}-{case['version']}")]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths + [os.environ.get("PYTHONPATH", "")]).strip(":")}
    capture = folder / "capture"
    ran = captured(args.bin, capture, ["--rank", case.get("rank", 0), "--world", case.get("world", WORLD), "--gpu", "h100", *case.get("null", [])],
                   [HERE / f"{case['program']}_train.py", folder / "case.json"], env=environment)
    said = [line[5:] for line in ran.stdout.splitlines() if line.startswith("STEP")]
    if ran.returncode != 0 or len(said) < 2:
        return None, last_lines(ran)
    versions = json.loads((capture / "model.json").read_text())["versions"]
    is_nanotron = case["trainer"] == "nanotron"  # groups of one rank are asked, too
    rows = [row for row in step_collectives(capture, coalesced=is_nanotron) if not is_nanotron or row[5] != 1]
    told, left = [], list(case.get("unsaid", []))  # what no plan says, each once
    for row in rows:
        text = f"{row[0].removeprefix('functional_')} {row[4]} {max(row[2:4])}"
        if text in left:
            left.remove(text)
        else:
            told.append(row)
    # A step ends with its optimizer: what gathers behind it is the next one's first. (Of ZeRO-3 that is what persists.)
    said_of_it = case["run"].get("deepspeed", {})  # of DeepSpeedPlugin, or a configuration of DeepSpeed's
    said_of_it = said_of_it.get("hf_ds_config", said_of_it)
    zero = said_of_it.get("zero_optimization", {"stage": said_of_it.get("zero_stage", case["run"].get("optimizer.zero_stage", 0)), **said_of_it})
    stage, persists = zero["stage"], zero.get("stage3_param_persistence_threshold", 100_000)
    if persists == "auto":  # transformers, integrations/deepspeed.py
        persists = 10 * case["config"].get("hidden_size", 0)
    most = persists * (4 if case["set"].get("dtype.param") == "fp32" else 2) if stage == 3 else 1 << 62
    while stage and told and told[0][0] == "all_gather" and max(told[0][2:4]) <= most:
        told.append(told.pop(0))
    last = [json.loads(line) for line in said[-max(1, len(said) // STEPS):]]  # an optimizer may step its groups one by one
    result = {"versions": versions, "steps": [{key: max(row[key] for row in last) for key in last[0]}], "collectives": told, "unsaid": len(rows) - len(told)}
    return result, ""


def words(case, folder):
    """What is typed."""
    model = folder / "config.json"
    model.write_text(json.dumps(case["config"]))
    said = ["--model", str(model), "--cluster", f"{case.get('world', WORLD)}xh100"]
    for key, value in case["set"].items():
        said += ["--set", f"{key}={json.dumps(value) if not isinstance(value, str) else value}"]
    return said


def table():
    """tests/preset_cases, which say all of themselves."""
    for file in sorted((HERE.parent / "preset_cases").glob("*.json")):
        held = json.loads(file.read_text(encoding="utf-8"))
        if "program" in held["case"]:
            yield file.stem, {**held["case"], "config": held["config"]}


def scored(args, name, case, folder):
    result, failure = run(args, case, folder)
    if result is None:
        return {"failed": failure}
    if args.record:
        args.record.mkdir(parents=True, exist_ok=True)
        row = {"id": name, "case": {key: value for key, value in case.items() if key != "config"}, "config": case["config"], "result": result}
        (args.record / f"{name}.json").write_text(json.dumps(row, separators=(",", ":")))
    return compared(args.bin / "foreshard", words(case, folder), result, folder / "capture")


def main():
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("bin", type=lambda word: pathlib.Path(word).resolve())
    said.add_argument("names", nargs="*", help="cases, or trainers")
    said.add_argument("--path", type=lambda word: word.split("=", 1), action="append", default=[], help="TRAINER=FOLDER or TRAINER-VERSION=FOLDER, a folder for PYTHONPATH")
    said.add_argument("--record", type=pathlib.Path, help="where cases go with what this run said")
    said.add_argument("--keep", type=lambda word: pathlib.Path(word).resolve(), help="where the captures stay")
    args = said.parse_args()
    print("| case | code | MiB | peak | reserved | collectives | |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    rows = []
    for name, case in table():
        if args.names and not {name, case["trainer"]} & set(args.names):
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = args.keep / name if args.keep else pathlib.Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            row = scored(args, name, case, folder)
        rows.append(row)
        code = f"{case['trainer']} {case['version']}"
        if "failed" in row:
            print(f"| {name} | {code} | | | | | {row['failed']} |", flush=True)
        else:
            print(f"| {name} | {code} | {row['measured'] / 2**20:.1f} | {100 * row['peak']:+.3f} % | {100 * row['reserved']:+.2f} % | {row['collectives']} | {row['difference'] or 'same'} |", flush=True)
    told = [row for row in rows if "failed" not in row]
    print(f"\n{len(told)} of {len(rows)} ran; collectives the same in {sum(not row['difference'] for row in told)}, memory within 0.2 % in {sum(abs(row['peak']) <= 2e-3 for row in told)}")


if __name__ == "__main__":
    main()
