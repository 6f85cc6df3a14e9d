#!/usr/bin/env python3
"""Models of many libraries through capture and forecast, small: what works, and what fails and why.

  capture_fleet.py BIN [NAME[/VARIANT] ...]     BIN is the folder with foreshard-null and foreshard; needs PyTorch with
                                      CUDA's libraries and the models' libraries; prints a table in Markdown

Each model (fleet_train.py) has a few layers and random weights, runs three optimizer steps on one GPU under bf16
autocast, and is held to what PyTorch's allocator says of its peak. No model's code is touched.
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reports"))
from ask import answer, captured, last_line  # noqa: E402

TRAIN = pathlib.Path(__file__).resolve().parent / "fleet_train.py"


def run(program, name, variant):
    """Whether it is forecast, what came of it, and notes."""
    with tempfile.TemporaryDirectory() as folder:
        capture = pathlib.Path(folder) / "capture"
        try:
            ran = captured(program, capture, ["--gpu", "h100"], [TRAIN, name, variant], timeout=600)
        except subprocess.TimeoutExpired:
            return False, "no end in 10 minutes", ""
        if ran.returncode != 0:
            return False, f"exit {ran.returncode}", last_line(ran.stderr)
        peak = next(int(line.split()[1]) for line in ran.stdout.split("\n") if line.startswith("PEAK"))
        report, error = answer(program / "foreshard", "predict", "--capture", capture, "--cluster", "1xh100")
        if not report:
            return False, "predict", last_line(error)
        forecast = report["memory"]["peak_allocated_bytes"]["value"]
        unknown = sum(kernel["share"] for kernel in report["capture"]["unknown_kernels"])
        notes = "; ".join(f"{kernel['share']:.0%} {kernel['name'][:60]}" for kernel in report["capture"]["unknown_kernels"][:2] if kernel["share"] > 0.01)
        again = ["--values"] if "again, with --values" in ran.stderr else []
        notes = "; ".join([*again, *([notes] if notes else []), *("reads " + place.rsplit('/', 1)[-1] for place in report["capture"]["blind_reads"][:2])])
        memory = "" if forecast == peak else f", peak {forecast / peak - 1:+.2%}"
        return forecast == peak, f"{report['capture']['launches']}, {report['step']['seconds']['value'] * 1e3:.1f}, {unknown:.1%}{memory}", notes


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    listed = subprocess.run(["python3", TRAIN, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    fleet = [tuple(line.split("\t")) for line in listed]
    if sys.argv[2:]:
        fleet = [(name.split("/")[0], (name.split("/") + [""])[1]) for name in sys.argv[2:]]
    print("| model | launches, ms, unknown | kernels priced by bytes, values read, or why not |\n| --- | --- | --- |", flush=True)
    good = 0
    for name, variant in fleet:
        is_good, result, notes = run(program, name, variant)
        good += is_good
        print(f"| {name}{', ' + variant if variant else ''} | {result} | {notes} |", flush=True)
    print(f"\n{good} of {len(fleet)} forecast with the allocator's peak")


if __name__ == "__main__":
    main()
