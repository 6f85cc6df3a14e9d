#!/usr/bin/env python3
"""Training steps of codes that nobody here had looked at (unseen_steps*.csv; what they are: unseen_steps.md):
what was forecast of them at first sight, frozen before the first of them was read closely, and what is
forecast now.

usage: reports/unseen/unseen_steps.py [build/bin/foreshard]
"""
import csv
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from ask import ask  # noqa: E402

QUANTITY = "step_time_s"
SETS = [
    ("unseen_steps", []),
    ("unseen_steps_second", ["MT"]),  # families that stand apart
    ("unseen_steps_third", ["TM"]),
    ("unseen_steps_fourth", ["QW"]),
    ("unseen_steps_fifth", ["PL"]),
    ("unseen_steps_sixth", []),
    ("unseen_steps_seventh", []),
    ("unseen_steps_eighth", ["UL8"]),
]


def forecasts(program, rows):
    return {
        row["id"]: row
        for row in ask(program, "accuracy", rows)["rows"]
        if row["quantity"] == QUANTITY and row.get("predicted")
    }


def quantile(weighted, q):
    weighted = sorted(weighted)
    rest = q * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        rest -= weight
        if rest <= 1e-9:
            return value
    return weighted[-1][0]


def family(row):
    return row["id"].split("-")[0]


def family_and_gpu(row):
    return family(row), row["gpu"]


def line(rows, of, group):
    """Median, p90, bias and coverage of rows that `of` forecasts; balanced over groups."""
    groups = {}
    for row in rows:
        if row["id"] in of:
            groups.setdefault(group(row), []).append(row)
    errors, covered, count = [], 0, 0
    for members in groups.values():
        for row in members:
            forecast, measured = of[row["id"]], float(row["step_time_s"])
            errors.append((forecast["predicted"] / measured - 1, 1 / len(members)))
            covered += forecast["low"] <= measured <= forecast["high"]
            count += 1
    if not errors:
        return ["0", "", "", "", ""]
    sizes = [(abs(error), weight) for error, weight in errors]
    bias = statistics.median(error for error, _ in errors)
    return [
        str(count),
        f"{100 * quantile(sizes, 0.5):.1f}",
        f"{100 * quantile(sizes, 0.9):.1f}",
        f"{100 * bias:+.1f}",
        f"{100 * covered / count:.0f}",
    ]


def table(groups, first, now):
    print("| rows | forecast | median | p90 | bias | covered | now: forecast | median | p90 | bias | covered |")
    print("| --- |" + " ---: |" * 10)
    for name, rows, group in groups:
        print("| " + " | ".join([name] + line(rows, first, group) + line(rows, now, group)) + " |")


def show(program, name, apart):
    path = HERE / f"{name}.csv"
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    frozen = json.loads((HERE / f"{name}_first_look.json").read_text())
    first = {
        row["id"]: row
        for row in frozen["forecasts"]
        if row["quantity"] == QUANTITY and row["predicted"] > 0  # not refused
    }
    now = forecasts(program, path)
    sure = [row for row in rows if row["score"] == "yes"]
    print("\nErrors in per cent, balanced over family and GPU; coverage of the 90 % interval by rows.\n")
    parts = [("published in full", sure, family_and_gpu)]
    for name in apart:
        rest = [row for row in sure if family(row) != name]
        parts.append((f"published in full, without {name}", rest, family_and_gpu))
        parts.append(("the same, balanced over families", rest, family))
    parts.append(("all", rows, family_and_gpu))
    if not sure:
        rest = [row for row in rows if family(row) not in apart]
        parts = [("all", rows, family_and_gpu), (f"without {apart[0]}", rest, family_and_gpu)]
    table(parts, first, now)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
    for name, apart in SETS:
        print(f"\n# {name}")
        show(program, name, apart)


if __name__ == "__main__":
    main()
