#!/usr/bin/env python3
"""Fits what the host's calls take to steps measured by exec/gpu/host_steps.py, and holds forecasts against others.

    reports/host_calls.py fit ROWS... [--write calibration/evidence/host_calls.json]
    reports/host_calls.py score ROWS...
    reports/host_calls.py machine ROWS...

ROWS are folders (rows.jsonl and configs/, as host_steps.py leaves them); of several rows of a case the median counts.
The counts are `foreshard explain`'s (host_work.phases); the fit is non-negative least squares of relative errors, one
equation per case and part of the step, so that no case weighs more for being long. `score` prints the host's seconds of
other steps against the fit. `machine` prints what a profile holds of a machine (host.python): how many times as long its
processor takes, and what the driver takes per launch. fit and machine need numpy and scipy.
"""
import argparse
import json
import pathlib
import statistics

import gpu_codes
from ask import ask

# What was measured together, and which of a phase's calls are meant.
PARTS = {"forward": ("forward",), "backward": ("backward",), "clip": ("clip",), "optimizer": ("optimizer", "zero_grad")}
CLIP = ("clipped_tensor", "clipped_shard", "collective")
PROGRAM = "build/bin/foreshard"


def rows_of(folders, clock):
    """{name: row with `seconds` by phase}, medians over folders of the least of each part."""
    found = {}
    for folder in map(pathlib.Path, folders):
        for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["status"] == "ok":
                found.setdefault(row["name"], []).append((folder, row))
    rows = {}
    for name, list_ in found.items():
        folder, row = list_[0]
        seconds = {phase: sum(statistics.median(r[clock][part][1] for _, r in list_) for part in parts)
                   for phase, parts in PARTS.items()}
        rows[name] = dict(row, folder=folder, seconds=seconds)
    return rows


def phases_of(row):
    said = gpu_codes.words(row["name"], row["case"], row["folder"], "h100")
    for option, value in (("--sequence", "64"), ("--micro-batch", "1")):
        said[said.index(option) + 1] = value
    return ask(PROGRAM, "explain", *said)["host_work"]["phases"]


def calls_of(row):
    """{part: {call: count}}."""
    phases = phases_of(row)
    calls = {phase: dict(found["calls"]) for phase, found in phases.items()}
    if row["case"]["plain"]:  # the words name DDP; this ran without
        calls["backward"] = {n: c for n, c in calls["backward"].items() if not n.startswith("bucket")}
    for part, wanted in (("clip", True), ("optimizer", False)):
        calls[part] = {n: c for n, c in phases["optimizer"]["calls"].items() if (n in CLIP) == wanted}
    # The loss belongs to the forward that was measured; the phases have it with backward.
    calls["forward"]["pass"] = calls["backward"].pop("pass", 0)
    return calls


def told(calls, evidence):
    return {part: sum(count * evidence["calls"][name] for name, count in calls[part].items()) for part in PARTS}


def fit(rows, write):
    import numpy
    from scipy.optimize import nnls
    evidence = json.loads(pathlib.Path(write or "calibration/evidence/host_calls.json").read_text(encoding="utf-8"))
    names = list(evidence["calls"])
    matrix, sizes = [], []
    for row in rows.values():
        calls, seconds = calls_of(row), dict(row["seconds"])
        if row["case"]["checkpoint"]:  # its hooks run in both, and are counted where the layer runs again
            seconds["forward"] += seconds["backward"]
            for name, count in calls.pop("backward").items():
                calls["forward"][name] = calls["forward"].get(name, 0) + count
        for part in filter(calls.__contains__, PARTS):
            matrix.append([calls[part].get(name, 0) / seconds[part] for name in names])
            sizes.append(f"{row['name']} {part}")
    matrix = numpy.array(matrix)
    values, _ = nnls(matrix, numpy.ones(len(matrix)))
    errors = matrix @ values - 1
    # What no row calls keeps its value: it is assumed (`assumed` in the file).
    values = [value if column.any() else evidence["calls"][name] for name, value, column in zip(names, values, matrix.T)]
    for name, value in zip(names, values):
        print(f"{name:20} {value * 1e6:9.2f} us")
    for phase in PARTS:
        own = [abs(e) for e, size in zip(errors, sizes) if size.endswith(phase)]
        print(f"{phase}: median {100 * statistics.median(own):.1f} %, worst {100 * max(own):.1f} %")
    for size, error in sorted(zip(sizes, errors), key=lambda pair: -abs(pair[1]))[:12]:
        print(f"  {size:45} {100 * error:+6.1f} %")
    if write:
        evidence["calls"] = {name: float(f"{value:.4g}") for name, value in zip(names, values)}
        pathlib.Path(write).write_text(json.dumps(evidence, indent=1) + "\n", encoding="utf-8")


def score(rows, evidence):
    print(f"{'code':32} {'host ms':>8} {'forecast':>9} {'off':>7}   forward backward     clip optimizer")
    errors = []
    for row in rows.values():
        says = told(calls_of(row), evidence)
        seen = sum(row["seconds"].values())
        errors.append(sum(says.values()) / seen - 1)
        parts = " ".join(f"{100 * (says[p] / row['seconds'][p] - 1):+8.1f}" for p in PARTS)
        print(f"{row['name']:32} {seen * 1e3:8.1f} {sum(says.values()) * 1e3:9.1f} {100 * errors[-1]:+6.1f}% {parts}")
    sizes = [abs(e) for e in errors]
    print(f"{len(errors)} codes: median {100 * statistics.median(sizes):.1f} %, worst {100 * max(sizes):.1f} %, "
          f"mean {100 * statistics.mean(errors):+.1f} %, within 15 %: {sum(s <= 0.15 for s in sizes)}")


def machine(rows, evidence):
    """One processor ratio and one driver's launch for all rows, by least squares of relative errors."""
    import numpy
    from scipy.optimize import nnls
    matrix = []
    for row in rows.values():
        phases = phases_of(row)
        seen = sum(row["seconds"].values())
        matrix.append([sum(told(calls_of(row), evidence).values()) / seen,
                       sum(found["launches"] for found in phases.values()) / seen])
    matrix = numpy.array(matrix)
    (ratio, launch), _ = nnls(matrix, numpy.ones(len(matrix)))
    for row, value in zip(rows.values(), matrix @ numpy.array([ratio, launch])):
        print(f"{row['name']:32} {sum(row['seconds'].values()) * 1e3:8.1f} ms {100 * (value - 1):+6.1f} %")
    print(f"processor {ratio:.3f}, per_driver_launch_s {launch:.3g}; reference piece "
          f"{min(row['reference_s'] for row in rows.values()) * 1e3:.3f} ms, a small kernel "
          f"{min(row['launch_s'][0] for row in rows.values()) * 1e6:.2f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("fit", "score", "machine"))
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--clock", choices=("cpu_s", "wall_s"), help="default: wall_s of a machine, else cpu_s")
    parser.add_argument("--write", help="puts the fit into this file")
    args = parser.parse_args()
    rows = rows_of(args.rows, args.clock or ("wall_s" if args.verb == "machine" else "cpu_s"))
    if args.verb == "fit":
        fit(rows, args.write)
        return
    evidence = json.loads(pathlib.Path("calibration/evidence/host_calls.json").read_text(encoding="utf-8"))
    {"score": score, "machine": machine}[args.verb](rows, evidence)


if __name__ == "__main__":
    main()
