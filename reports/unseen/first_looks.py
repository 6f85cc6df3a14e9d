#!/usr/bin/env python3
"""What first looks say of training codes that nobody has read: fits the spread of measured over forecast of
the three frozen sets beside this file (the forecasts of the day before anybody had read the codes, never
today's), writes calibration/evidence/first_looks.json and prints how well the intervals of each set hold that
the other two make.

usage: reports/unseen/first_looks.py [build/bin/foreshard] [--write]

The logarithm of measured over forecast is t-distributed (4 degrees of freedom) around 0, with scales
hypot(interval of the machine, exp(base + slopes * facts) * exp(+-skew)) above and below. Slopes have a prior: what is
described less is wider, by exp(PRIOR) a fact, unless the looks say otherwise. INFLATION is how much wider the scales
are than fitted: codes of another set are not of the sets that were fitted.
"""
import json
import math
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE.parent.parent / "calibration/evidence/first_looks.json"
SETS = [("2026-11-21", "unseen_steps"), ("2026-11-22", "unseen_steps_second"), ("2026-11-23", "unseen_steps_third")]
FACTS = {
    "time": ["no_preset", "rests_on_readings", "fp8", "chip_without_steps", "short_kernels", "unfused_attention",
             "zero"],
    "memory": ["rests_on_readings"],
}
SKEW_FACTS = {"time": ["rests_on_readings"], "memory": []}
BASE = {"time": math.log(0.06), "memory": math.log(0.06)}
PRIOR, PRIOR_SD, SKEW_SD = 0.6, 0.3, 0.5
INFLATION = {"time": 1.3, "memory": 1.9}
NINETY_FIVE = 2.131847  # of Student's t with 4 degrees of freedom
LEVELS = {50: 0.740697, 80: 1.533206, 90: NINETY_FIVE}


def read(program):
    rows = []
    for name, stem in SETS:
        answer = subprocess.run(
            [program, "accuracy", "--json", str(HERE / f"{stem}.csv"), "--frozen",
             str(HERE / f"{stem}_first_look.json")], check=True, capture_output=True, text=True)
        for row in json.loads(answer.stdout)["rows"]:
            if row["predicted"] <= 0 or row["measured"] <= 0:
                continue
            kind = "time" if row["quantity"] == "step_time_s" else "memory"
            reserved = row["quantity"].endswith("reserved_GiB")
            rows.append({
                "set": name, "family": row["id"].split("-")[0], "id": row["id"], "kind": kind,
                "group": (name, row["id"].split("-")[0], row["quantity"], row.get("facts", {}).get("rests_on_readings")),
                "error": math.log(row["measured"] / row["predicted"]), "facts": row.get("facts", {}),
                "low": machine(math.log(row["predicted"] / row["low"]), kind, reserved),
                "high": machine(math.log(row["high"] / row["predicted"]), kind, reserved),
            })
    return rows


def machine(reach, kind, reserved):
    """The scale of a frozen interval; of memory what recordings leave open (reports/conformance.md)."""
    if kind == "memory":
        return 0.048 if reserved else 0.006
    return max(reach, 1e-6) / NINETY_FIVE


def scales(row, kind, theta):
    facts = FACTS[kind]
    base = math.exp(theta[0] + sum(theta[1 + i] * row["facts"].get(f, 0) for i, f in enumerate(facts)))
    skews = theta[1 + len(facts):]
    skew = math.exp(skews[0] + sum(s * row["facts"].get(f, 0) for s, f in zip(skews[1:], SKEW_FACTS[kind])))
    kept = row["facts"].get("kept_besides", 0) / NINETY_FIVE if kind == "memory" else 0
    return base / skew, math.hypot(base * skew, kept)


def loss(rows, kind, theta, weights):
    total = ((theta[0] - BASE[kind]) / 1) ** 2 / 2
    count = len(FACTS[kind])
    total += sum(((slope - PRIOR) / PRIOR_SD) ** 2 / 2 for slope in theta[1:1 + count])
    total += sum((skew / SKEW_SD) ** 2 / 2 for skew in theta[1 + count:])
    for row, weight in zip(rows, weights):
        down, up = scales(row, kind, theta)
        scale = math.hypot(row["high"], up) if row["error"] > 0 else math.hypot(row["low"], down)
        total += weight * (math.log(scale) + 2.5 * math.log1p((row["error"] / scale) ** 2 / 4))
    return total


def fit(rows, kind):
    """Pattern search: one parameter after the other, with steps that shrink."""
    counts = {}
    for row in rows:
        counts[row["group"]] = counts.get(row["group"], 0) + 1
    weights = [counts[row["group"]] ** -0.5 for row in rows]  # rows of a code share their error
    theta = [BASE[kind]] + [PRIOR] * len(FACTS[kind]) + [0.0] * (1 + len(SKEW_FACTS[kind]))
    step, best = 0.4, loss(rows, kind, theta, weights)
    while step > 0.004:
        moved = False
        for i in range(len(theta)):
            for sign in (1, -1):
                tried = theta[:i] + [theta[i] + sign * step] + theta[i + 1:]
                value = loss(rows, kind, tried, weights)
                if value < best - 1e-9:
                    theta, best, moved = tried, value, True
                    break
        if not moved:
            step /= 2
    theta[0] += math.log(INFLATION[kind])
    return theta


def as_json(theta, kind, without):
    facts = FACTS[kind]
    skews = theta[1 + len(facts):]
    return {"without": without, "base": round(theta[0], 3), "skew": round(skews[0], 3),
            "slopes": {f: round(v, 3) for f, v in zip(facts, theta[1:])},
            "skew_slopes": {f: round(v, 3) for f, v in zip(SKEW_FACTS[kind], skews[1:])}}


def line(name, rows, kind, theta):
    if not rows:
        return
    held, widths = {level: 0 for level in LEVELS}, []
    for row in rows:
        down, up = scales(row, kind, theta)
        down, up = math.hypot(row["low"], down), math.hypot(row["high"], up)
        for level, z in LEVELS.items():
            held[level] += -z * down <= row["error"] <= z * up
        widths.append((math.exp(NINETY_FIVE * up) - math.exp(-NINETY_FIVE * down)) / 2)
    widths.sort()
    shares = " | ".join(f"{100 * held[level] / len(rows):.0f}" for level in LEVELS)
    print(f"| {name} | {len(rows)} | {shares} | {100 * widths[len(widths) // 2]:.0f} |")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    rows = read(arguments[0] if arguments else "build/bin/foreshard")
    document = {
        "schema": "foreshard.first_looks/1",
        "source": "reports/unseen/first_looks.py on the three frozen sets in reports/unseen",
        "sets": [{"set": name, "families": sorted({r["family"] for r in rows if r["set"] == name})}
                 for name, _ in SETS],
    }
    for kind in ("time", "memory"):
        of_kind = [row for row in rows if row["kind"] == kind]
        fits = [as_json(fit(of_kind, kind), kind, "")]
        print(f"\n{kind}: intervals of each set by the other two, in per cent\n")
        print("| set | rows | in 50 % | in 80 % | in 90 % | half width |\n| --- |" + " ---: |" * 5)
        for name, _ in SETS:
            theta = fit([row for row in of_kind if row["set"] != name], kind)
            fits.append(as_json(theta, kind, name))
            own = [row for row in of_kind if row["set"] == name]
            line(name, own, kind, theta)
            sure = [row for row in own if "rests_on_readings" not in row["facts"]]
            line(f"{name}, published in full", sure, kind, theta)
            line(f"{name}, and by a code with a preset", [r for r in sure if "no_preset" not in r["facts"]], kind, theta)
        document[kind] = fits
        print("\n" + json.dumps(fits[0]))
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
