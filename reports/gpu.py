#!/usr/bin/env python3
"""reports/gpu.md: what rounds on GPUs said, from the rows that reports/validation keeps.

    reports/gpu.py [build/bin/foreshard]

Forecasts of rows were computed before their case ran and stand in the rows. Steps of codes (codes.jsonl) are forecast
by the program that is given, with the words of reports/gpu_codes.py.
"""
import json
import pathlib
import re
import statistics
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
ROOT = pathlib.Path(__file__).resolve().parents[1]
FRESH = ROOT / "reports" / "validation" / "fresh_codes.jsonl"
sys.path.insert(0, str(ROOT / "exec" / "gpu"))
from round_plans import BESIDE  # noqa: E402
from round_tools import read_rows  # noqa: E402


def percent(x):
    return f"{100 * x:.1f} %"


def of_errors(rows, kind, quantity):
    """How many, median and largest error, how many were inside the 90 % interval."""
    found = [f["error"] for r in rows if (f := (r.get("forecast") or {}).get(kind, {}).get(quantity, {})).get("error") is not None]
    hits = sum(bool(r["forecast"][kind][quantity].get("hit")) for r in rows
               if (r.get("forecast") or {}).get(kind, {}).get(quantity, {}).get("error") is not None)
    sizes = [abs(x) for x in found]
    return f"{len(found)}: {percent(statistics.median(sizes))}, {percent(max(sizes))}; {hits}" if found else ""


def furthest(rows, most=2):
    """Of a table's rows those whose steps are furthest off, as they stand."""
    off = {row: abs(float(re.search(r"([+-][0-9.]+)%", row)[1])) for row in rows}
    kept = sorted(rows, key=off.get)[-most:]
    return [row for row in rows if row in kept] + ([f"... and {len(rows) - most} more"] if len(rows) > most else [])


def of_programs(folder):
    """Programs of many libraries (exec/gpu/program_steps.py), as their captures forecast them before they ran."""
    rows = [r for r in read_rows(folder / "programs" / "codes.jsonl") if r["status"] == "ok"]
    if not rows:
        return []
    lines = [f"{folder.name}:", "", "```",
             f"{'program':30} {'step ms':>9} {'forecast':>9} {'off':>7} in  {'kernels':>8} {'off':>7} {'GiB':>6} {'off':>8} {'reserved':>8}"]
    errors = {name: [] for name in ("step", "kernels", "allocated", "reserved")}
    inside, table = 0, []
    for r in rows:
        f = r["forecast"]
        value, low, high = f["step_s"]
        found = [value / r["step_s"] - 1, f["kernels_s"] / r["kernels_s"] - 1,
                 *(f[k][0] / r[k] - 1 for k in ("peak_allocated_bytes", "peak_reserved_bytes"))]
        for of, e in zip(errors.values(), found):
            of.append(abs(e))
        hit = low <= r["step_s"] <= high
        inside += hit
        table.append(f"{r['name']:30} {r['step_s'] * 1e3:9.1f} {value * 1e3:9.1f} {100 * found[0]:+6.1f}% {'y' if hit else 'n'}  {r['kernels_s'] * 1e3:8.1f} "
                     f"{100 * found[1]:+6.1f}% {r['peak_allocated_bytes'] / 2**30:6.2f} {100 * found[2]:+7.2f}% {100 * found[3]:+7.1f}%")
    lines += furthest(table)
    lines += [f"{name}: median {100 * statistics.median(e):.2f} %, p90 {100 * sorted(e)[int(0.9 * (len(e) - 1))]:.2f} %, worst {100 * max(e):.1f} %"
              for name, e in errors.items()]
    return [*lines, f"inside the 90 % interval: {inside} of {len(rows)}", "```", ""]


def main():
    lines = ["# What GPUs said", "", "Written by `reports/gpu.py` from `reports/validation/` (raw rows with date, versions, command and clocks; how they",
             "came about: [exec/gpu/README.md](../exec/gpu/README.md)). **Measured** unless it says forecast.", "",
             "## Forecasts before the run", "",
             "Of steps whose forecast was computed before they ran, with the profile that was shipped then: rows: median and largest error; rows inside",
             "the 90 % interval. Engine: plans of 1B to 8B models on 1 to 512 ranks, of which one GPU runs rank 0, collectives paced as forecast. The forecast",
             "held what it says of the slowest of that many GPUs (2 to 4 %), which one GPU does not show, until `predict --paced` (2026-11-27, the last round). FSDP2: steps at world 1,",
             "memory at 1 to 512.",
             "The first round's rows set constants of the profile that the later ones were forecast with; the H200 had no say in anything.", "",
             "| round | engine: step | allocated | reserved | FSDP2: step | allocated | reserved |", "| --- | --- | --- | --- | --- | --- | --- |"]
    folders = sorted(p for p in (ROOT / "reports" / "validation").iterdir() if p.is_dir())
    for folder in folders:
        plans = [r for r in read_rows(folder / "plans.jsonl") if r["status"] == "ok"]
        fsdp2 = [r for r in read_rows(folder / "fsdp2.jsonl") if r["status"] == "ok"]
        cells = [of_errors(rows, "blind", q) for rows in (plans, fsdp2) for q in ("step_s", "peak_allocated_bytes", "peak_reserved_bytes")]
        if any(cells):
            lines.append(f"| {folder.name} | " + " | ".join(cells) + " |")
    lines += ["", "The same with the profile that `foreshard calibrate` made of the machine's own measurements, minutes before: median and largest error of",
              "`validate` (the last round: with each product's heat taken off before a plan's is put on, which was no better and is gone).", "",
              "| round | engine: step | FSDP2: step |", "| --- | --- | --- |"]
    for folder in folders:
        errors = [abs(r["step_error"]) for r in read_rows(folder / "plans.jsonl") if "calibrated" in (r.get("forecast") or {}) and r.get("step_error") is not None]
        if errors:
            cell = f"{len(errors)}: {percent(statistics.median(errors))}, {percent(max(errors))}"
            lines.append(f"| {folder.name} | {cell} | {of_errors(read_rows(folder / 'fsdp2.jsonl'), 'calibrated', 'step_s')} |")
    lines += ["", "## The engine beside PyTorch's FSDP2", "",
              "Same GPU, same round; collectives move their bytes inside the GPU on both sides. Best attention kernel of each side; *tuned*: cuDNN attention and",
              "`torch.compile` per block, loss included; *default*: PyTorch 2.11 as it comes, which chooses cuDNN's attention here.", "",
              "| round | | engine tokens/s | FSDP2 default | tuned | engine over default | over tuned | GiB: engine | default | tuned |",
              "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for folder in folders:
        plans = {r["name"]: r for r in read_rows(folder / "plans.jsonl") if r["status"] == "ok"}
        fsdp2 = {r["name"]: r for r in read_rows(folder / "fsdp2.jsonl") if r["status"] == "ok"}
        for name, ours, theirs in BESIDE:
            mine = [plans[p] for p in ours if p in plans]
            other = {v: next((fsdp2[t] for t in theirs if t in fsdp2 and t.endswith(v)), None) for v in ("default", "tuned")}
            if not mine or not any(other.values()):
                continue
            best = max(mine, key=lambda row: row["tokens_per_s_per_gpu"])
            speed, gib = best["tokens_per_s_per_gpu"], 2**30
            def cell(row, show):
                return show(row) if row else ""
            lines.append(f"| {folder.name} | {name} | {speed:.0f} | " + " | ".join(
                [cell(other[v], lambda r: f"{r['tokens_per_s_per_gpu']:.0f}") for v in other]
                + [cell(other[v], lambda r: f"{speed / r['tokens_per_s_per_gpu']:.2f}") for v in other]
                + [f"{best['peak_allocated_bytes'] / gib:.1f}"]
                + [cell(other[v], lambda r: f"{r['peak_allocated_bytes'] / gib:.1f}") for v in other]) + " |")
    lines += ["", "## Codes that no preset was made from", "",
              "Models of transformers under Accelerate's FSDP2, and plain PyTorch, one GPU as rank 0 (`exec/gpu/code_steps.py`), forecast by this program from",
              "their config.json and words (`reports/gpu_codes.py`). The GPU's machines differ: the first H100's host needed",
              "twice as long for a launch as the H200's. `y`: the measured step is inside the 90 % interval. Of each round the steps that are furthest off, and",
              "what all say; every row: `reports/gpu_codes.py FOLDER build/bin/foreshard`.", ""]
    fresh = {json.loads(line)["name"] for line in FRESH.read_text(encoding="utf-8").splitlines()}
    for folder in folders:
        if (folder / "codes" / "codes.jsonl").exists():
            named = {json.loads(line)["name"] for line in (folder / "codes" / "codes.jsonl").read_text(encoding="utf-8").splitlines()}
            first = [("as it was forecast before it ran:", ["--frozen", str(FRESH)]), ("the same by this program:", [])]
            held = ", cases that nobody had looked at when they ran:" if "101920Z" in folder.name else ":"
            for title, more in [(f", {said}", m) for said, m in first] if named & fresh else [(held, [])]:
                text = subprocess.run([sys.executable, ROOT / "reports" / "gpu_codes.py", folder / "codes", PROGRAM, *more], capture_output=True,
                                      text=True, check=True).stdout
                head, *table = text.rstrip().splitlines()
                rows = table[-4:] if "this program" in title else [head, *furthest(table[:-4]), *table[-4:]]
                lines += [f"{folder.name}{title}", "", "```", *rows, "```", ""]
    lines += ["## Programs of many libraries", "",
              "`tests/fleet/fleet_train.py --real` under bf16 autocast, captured on the null GPU and forecast before they ran (`exec/gpu/program_steps.py`); in the last",
              "round public repositories' own training code. What was mended since: [docs/capture.md](../docs/capture.md).", ""]
    for folder in folders:
        lines += of_programs(folder)
    (ROOT / "reports" / "gpu.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
