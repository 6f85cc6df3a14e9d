#!/usr/bin/env python3
"""Plans that `foreshard import` reads off captures, lowered again and held to their captures: a table.

    reports/captured_plans.py build/bin CAPTURE_FOLDER ...      e.g. what tests/presets/hf_captures.py --keep left

Order and bytes of the collectives, the peak of what tensors ask for (else of their blocks) less cuBLAS' workspaces, what the caching
allocator holds, and what a step takes its host (the middle one; `collect: false` of hf_train.py) on the processor of calibration/evidence/host_calls.json, without a driver.
"""
import gzip
import json
import pathlib
import re
import statistics
import sys
import tempfile

from ask import NORM, answer, ask, same, scheduled, workspaces


REPORT = 1 << 10  # bytes
DEEPSPEED = {"hook": 50e-6, "collective": 52e-6}  # of ZeRO-3's modules (sim/cost/host_calls.cpp)


def collectives(program, *said):
    """Clipping's all-reduce is of one number or of one for each tensor, which is no matter here."""
    return [(kind, None if kind == "all_reduce" and size < NORM else size) for kind, size in scheduled(program, *said)]


def without_reports(here, there):
    """Of a program's collectives those that are in no plan, of a few numbers that it reports (a loss's mean), are left out."""
    rest, kept = list(there), []
    for each in here:
        is_next = bool(rest) and each == rest[0]
        if is_next:
            rest.pop(0)
        if is_next or (each[1] or 0) > REPORT or (each[1] is None and each in rest):
            kept.append(each)
    return kept


def same_cycle(here, there):
    """Steps follow each other: where one ends is the program's matter (ZeRO gathers behind its optimizer)."""
    turns = range(len(here)) if len(here) == len(there) else [0]
    return "" if any(here[t:] + here[:t] == there for t in turns) else same(here, there)


def host_seconds(program, plan):
    """Of the calls that `explain` counts; by config, preset and plan alone."""
    takes = json.loads((pathlib.Path(__file__).parents[1] / "calibration/evidence/host_calls.json").read_text(encoding="utf-8"))["calls"]
    if re.search("^runtime: zero3", plan.read_text(), re.M):
        takes |= DEEPSPEED
    phases = ask(program, "explain", "--plan", plan)["host_work"]["phases"].values()
    return sum(count * takes[name] for phase in phases for name, count in phase["calls"].items())


def asked(report, capture):
    """The peak of what tensors ask for; where the program saw a higher one before, that of its blocks."""
    return (report["capture"]["requested_peak_bytes"] or report["memory"]["peak_allocated_bytes"]["value"]) - workspaces(capture)


def usual_host_seconds(capture):
    """What a step takes the program's threads on the processor of the fit: the middle one from the third on, each by how
    fast this machine was before or behind it (what else runs on it only lengthens such a short piece)."""
    speeds = json.loads((capture / "model.json").read_text())["processor"]
    packed = capture / "calls.txt.gz"
    lines = gzip.open(packed, "rt") if packed.exists() else open(capture / "calls.txt")
    names, steps, taken = {}, [], 0
    for line in lines:
        letter, first, rest = line.rstrip("\n").split(" ", 2)
        if letter == "N":
            names[first] = rest
            continue
        taken += int(first)
        if letter == "H" and names[rest.split(" ")[-1]].startswith("step 0 "):
            steps.append(taken * 1e-9)
            taken = 0
    at = [step / min(speeds[max(0, i - 1):i + 1]) for i, step in enumerate(steps)]
    return statistics.median(at[2:] or at)


def score(program, capture):
    head = json.loads((capture / "capture.json").read_text())
    cluster = f"{head['world']}x{head['gpu'].split('-')[0]}"
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.yaml"
        _, error = answer(program, "import", capture, "--out", pathlib.Path(folder) / "model.yaml", "--plan", plan)
        if plan.exists():
            planned, error = answer(program, "predict", "--plan", plan)
        if not plan.exists() or not planned:
            error = error.replace("\n", " | ")
            return f"| {error[:150]} | | | | | | |", False
        report = ask(program, "predict", "--capture", capture, "--cluster", cluster)
        here = asked(report, capture)
        memory = planned["memory"]
        peak = memory["peak_allocated_bytes"]["value"] / here - 1
        held = report["memory"]["peak_reserved_bytes"]["value"]
        reserved = memory["peak_reserved_bytes"]["value"] / held - 1
        times = "- | -"  # a capture that is kept for its memory has none
        if "processor" in json.loads((capture / "model.json").read_text()):
            busy = usual_host_seconds(capture)
            times = f"{1e3 * busy:.1f} | {100 * (host_seconds(program, plan) / busy - 1):+.1f} %"
        told = collectives(program, "--plan", plan)
        different = same_cycle(without_reports(collectives(program, "--capture", capture, "--cluster", cluster), told), told)
        return f"| {here / 2**20:.1f} | {100 * peak:+.3f} % | {held / 2**20:.1f} | {100 * reserved:+.2f} % | {times} | {different or 'same'} |", abs(peak) <= 2e-3 and not different


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "foreshard"
    captures = [pathlib.Path(word) for word in sys.argv[2:]]
    print("| capture | MiB | peak | reserved, MiB | plan's | host, ms | plan's | collectives |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    good = 0
    for capture in captures:
        row, is_good = score(program, capture)
        good += is_good
        print(f"| {capture.parent.name if capture.name == 'capture' else capture.name} {row}", flush=True)
    print(f"\n{good} of {len(captures)} the same, memory within 0.2 %")


if __name__ == "__main__":
    main()
