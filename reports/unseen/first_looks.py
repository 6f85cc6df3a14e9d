#!/usr/bin/env python3
"""What first looks say of training codes that nobody has read: how much longer they take, and how much more they
hold, than their description says, and how far off a forecast of one may be. Fits the logarithm of measured over forecast
of the sets beside this file, writes calibration/evidence/first_looks.json, and prints of each set what the others make
of it: its errors before and after, and how well its intervals hold. A table whose rows are of few sources is a set of
each.

usage: reports/unseen/first_looks.py [build/bin/foreshard] [--write]

The logarithm is t-distributed (4 degrees of freedom) around shift = sum of shifts * facts, with scales
hypot(interval of the machine, exp(base + slopes * facts) * exp(+-skew)) above and below. Spreads are those of the frozen
forecasts of the day before anybody had read the codes; of the five oldest tables OLD of the weight, today's the rest: what was
missing then was repaired since. Shifts are of today's forecasts, before any. Slopes and shifts are 0 unless the looks say
otherwise; that of a share, which nobody has described, is hardly known. A shift `stack NAME` is that of the codes of a preset,
of which there are few: its prior is narrower. INFLATION is how much wider the scales are than fitted: codes of another set are
not of the sets that were fitted; of time nothing is added.
"""
import csv
import json
import math
import pathlib
import sys
import typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from ask import ask  # noqa: E402

FILE = HERE.parent.parent / "calibration/evidence/first_looks.json"


class Table(typing.NamedTuple):
    name: str
    stem: str
    by_family: bool = False  # rows of one source share what is odd of it: a set each
    has_level: bool = True  # the frozen forecasts have shifts and spreads that first looks said until then
    frozen: float = 1  # of a row's weight, its frozen error's; today's has the rest
    has_say: bool = True  # in the fit, or a set that it is judged by


OLD = 0.4  # of each later set by those before it alone 92 % inside, CRPS 15.3 and half widths 47; with 0.7 for all 93, 15.4, 49
TABLES = [Table("2026-11-21", "unseen_steps", has_level=False, frozen=OLD),
          Table("2026-11-22", "unseen_steps_second", has_level=False, frozen=OLD),
          Table("2026-11-23", "unseen_steps_third", has_level=False, frozen=OLD),
          Table("2026-11-26", "unseen_steps_fourth"),
          Table("2026-11-23 axes", "steps_axes", by_family=True, frozen=OLD),
          Table("2026-11-25 axes", "steps_axes_second", frozen=OLD),
          Table("2026-11-26 fifth", "unseen_steps_fifth"),
          Table("2026-11-28 sixth", "unseen_steps_sixth"),
          Table("2026-11-28 seventh", "unseen_steps_seventh"),
          Table("2026-11-28 eighth", "unseen_steps_eighth"),
          Table("2026-11-29 ninth", "unseen_steps_ninth"),
          Table("2026-11-29 tenth", "unseen_steps_tenth"),
          Table("2026-11-29 eleventh", "unseen_steps_eleventh"),
          Table("2026-11-29 twelfth", "unseen_steps_twelfth"),
          Table("2026-11-30 thirteenth", "unseen_steps_thirteenth", has_say=False),
          Table("2026-11-30 fourteenth", "unseen_steps_fourteenth", has_say=False),
          Table("2026-11-30 fifteenth", "unseen_steps_fifteenth", has_say=False),
          Table("2026-11-30 sixteenth", "unseen_steps_sixteenth", has_say=False),
          Table("2026-12-01 seventeenth", "unseen_steps_seventeenth", has_say=False),
          Table("2026-12-01 eighteenth", "unseen_steps_eighteenth", has_say=False)]
KINDS = ("time", "memory")
FACTS = {
    "time": ["rests_on_readings", "below_half_peak", "zero3", "before_torch_2"],
    "memory": ["rests_on_readings"],
}
SHIFT_FACTS = {"time": ["rests_on_readings", "hopper_compiled", "fp8"], "memory": ["no_preset"]}
BY_STACK = {"time": True, "memory": False}
BASE = {"time": math.log(0.06), "memory": math.log(0.04)}
SLOPE_SD, SHARE_SD, SKEW_SD, SHIFT_SD, STACK_SD = 0.3, 1, 0.5, 0.1, 0.08
INFLATION = {"time": 1, "memory": 1.3}
NINETY_FIVE = 2.131847  # of Student's t with 4 degrees of freedom
LEVELS = {50: 0.740697, 80: 1.533206, 90: NINETY_FIVE}
PROBES = [(i + 0.5) / 60 for i in range(60)]


def answer(program, stem, *more):
    return {(row["id"], row["quantity"]): row for row in ask(program, "accuracy", HERE / f"{stem}.csv", *more)["rows"]}


def error(row, shift):
    """Before `shift`; None where the row was not forecast."""
    if not row or row["predicted"] <= 0 or row["measured"] <= 0 or row["reason"] == "was not frozen":
        return None
    return math.log(row["measured"] / row["predicted"]) + shift


def read(program):
    rows = []
    for table in TABLES:
        with (HERE / f"{table.stem}.csv").open(encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            gpus = {reader.line_num: row["gpu"] for row in reader}
        today = answer(program, table.stem)
        frozen = answer(program, table.stem, "--frozen", str(HERE / f"{table.stem}_first_look.json"))
        for key, row in today.items():
            if row["reason"].startswith("score: no"):
                continue
            kind = "time" if key[1] == "step_time_s" else "memory"
            facts, look, family = row.get("facts", {}), frozen[key], key[0].split("-")[0]
            name = f"{table.name} {family}" if table.by_family else table.name
            rows.append({
                "has_say": table.has_say, "set": name, "family": family, "gpu": gpus[row["line"]], "kind": kind,
                "quantity": key[1], "facts": facts, "group": (name, family, key[1], facts.get("rests_on_readings")),
                "share": {"frozen": table.frozen, "today": 1 - table.frozen},
                "frozen": error(look, 0), "today": error(row, facts.get(f"{kind}_shift", 0)),
                "shifted": {"frozen": {} if table.has_level else facts, "today": facts},
                "machine": machine(row, kind, facts) if table.has_level else machine(look, kind, {})})
    return [row for row in rows if row["today"] is not None]


def machine(look, kind, level):
    """Scales below and above of an interval, less the level of first looks in it, which a frozen one does not tell; of
    memory what recordings leave open (reports/conformance.md)."""
    if kind == "memory":
        scale = 0.006 if look["quantity"].endswith("alloc_GiB") else 0.048
        return scale, scale
    if look["predicted"] <= 0 or look["low"] <= 0:
        return 0.05, 0.05
    reach = math.log(look["predicted"] / look["low"]), math.log(look["high"] / look["predicted"])
    own = level.get("time_down", 0), level.get("time_up", 0)
    return tuple(max(each ** 2 - part ** 2, 1e-12) ** 0.5 / NINETY_FIVE for each, part in zip(reach, own))


def weights_of(rows):
    """Rows of a code share their error."""
    counts = {}
    for row in rows:
        counts[row["group"]] = counts.get(row["group"], 0) + 1
    return [counts[row["group"]] ** -0.5 for row in rows]


def linear(coefficients, names, facts):
    return sum(c * facts.get(name, 0) for c, name in zip(coefficients, names))


def surprise(off, scale):
    return math.log(scale) + 2.5 * math.log1p((off / scale) ** 2 / 4)


def quantile_of_t(p):
    """Of Student's t with 4 degrees of freedom."""
    a = math.sqrt(4 * p * (1 - p))
    return math.copysign(2 * math.sqrt(max(math.cos(math.acos(a) / 3) / a - 1, 0)), p - 0.5)


QUANTILES = [quantile_of_t(p) for p in PROBES]


def crps(off, down, up):
    """The continuous ranked probability score of a logarithm, by quantiles."""
    ends = [z * (up if z > 0 else down) for z in QUANTILES]
    return sum(2 * ((off < end) - p) * (end - off) for end, p in zip(ends, PROBES)) / len(PROBES)


def minimize(function, theta):
    """Pattern search: one parameter after the other, with steps that shrink."""
    theta, step, best = list(theta), 0.2, function(theta)
    while step > 0.003:
        moved = False
        for i in range(len(theta)):
            for sign in (1, -1):
                tried = theta[:i] + [theta[i] + sign * step] + theta[i + 1:]
                value = function(tried)
                if value < best - 1e-9:
                    theta, best, moved = tried, value, True
                    break
        if not moved:
            step /= 2
    return theta


class Fit:
    """Of the rows of one kind: `shifts` of today's forecasts, `frozen_shifts`, scales."""

    def __init__(self, rows, kind):
        self.kind, self.facts = kind, FACTS[kind]
        rows = [row for row in rows if row["has_say"]]
        stacks = sorted({fact for row in rows for fact in row["facts"] if fact.startswith("stack ")})
        self.shift_facts = SHIFT_FACTS[kind] + (stacks if BY_STACK[kind] else [])
        self.theta = [BASE[kind]] + [0.0] * (len(self.facts) + 1)
        seen = {of: [row for row in rows if row[of] is not None] for of in ("frozen", "today")}
        for _ in range(2):
            self.shifts = self.shifts_around(seen["today"])
            self.theta = minimize(self.sides(seen), self.theta)
        self.theta[0] += math.log(INFLATION[kind])

    def shifts_around(self, rows):
        """As if the spread were the same above and below."""
        known = [(row["today"], sum(self.spread(row)) / 2, row["facts"], weight) for row, weight in zip(rows, weights_of(rows))]
        return minimize(lambda shifts: self.penalty_of_shifts(shifts) + sum(
            weight * surprise(off - linear(shifts, self.shift_facts, facts), spread)
            for off, spread, facts, weight in known), [0.0] * len(self.shift_facts))

    def sides(self, seen):
        known = [(row, row[of] - linear(self.shifts, self.shift_facts, row["shifted"][of]), weight * row["share"][of])
                 for of, rows in seen.items() for row, weight in zip(rows, weights_of(rows))]

        def total(theta):
            self.theta = theta
            return self.penalty_of_scales(theta[:-1]) + (theta[-1] / SKEW_SD) ** 2 / 2 + sum(
                weight * surprise(off, self.spread(row)[off > 0]) for row, off, weight in known)
        return total

    def penalty_of_shifts(self, shifts):
        return sum((shift / (STACK_SD if name.startswith("stack ") else SHIFT_SD)) ** 2 / 2
                   for shift, name in zip(shifts, self.shift_facts))

    def penalty_of_scales(self, scales):
        total = (scales[0] - BASE[self.kind]) ** 2 / 2
        for slope, name in zip(scales[1:], self.facts):
            total += (slope / (SHARE_SD if name == "below_half_peak" else SLOPE_SD)) ** 2 / 2
        return total

    def spread(self, row):
        """Scales below and above, the machine's in it."""
        base = math.exp(self.theta[0] + linear(self.theta[1:-1], self.facts, row["facts"]))
        skew = math.exp(self.theta[-1])
        kept = row["facts"].get("kept_besides", 0) / NINETY_FIVE if self.kind == "memory" else 0
        return math.hypot(row["machine"][0], base / skew), math.hypot(row["machine"][1], base * skew, kept)

    def as_json(self, without):
        named = lambda names, values: {n: round(v, 3) for n, v in zip(names, values) if abs(v) >= 0.005}
        return {"without": without, "base": round(self.theta[0], 3), "skew": round(self.theta[-1], 3),
                "slopes": named(self.facts, self.theta[1:-1]),
                "shifts": named(self.shift_facts, self.shifts)}

    def line(self, name, rows, of):
        rows = [row for row in rows if row[of] is not None]
        if not rows:
            return
        held, widths, before, after, score = {level: 0 for level in LEVELS}, [], [], [], 0
        for row in rows:
            shift = linear(self.shifts, self.shift_facts, row["shifted"][of])
            down, up = self.spread(row)
            for level, z in LEVELS.items():
                held[level] += -z * down <= row[of] - shift <= z * up
            score += crps(row[of] - shift, down, up)
            widths.append((math.exp(NINETY_FIVE * up) - math.exp(-NINETY_FIVE * down)) / 2)
            before.append(math.exp(-row[of]) - 1)
            after.append(math.exp(shift - row[of]) - 1)
        cells = [str(len(rows)), errors(rows, before), errors(rows, after)]
        cells += [f"{100 * held[level] / len(rows):.0f}" for level in LEVELS]
        width = 100 * sorted(widths)[len(widths) // 2]
        print(f"| {name} | {' | '.join(cells)} | {width:.0f} | {100 * score / len(rows):.1f} |")


def errors(rows, signed):
    """Median and 90 % quantile of the size, and median: balanced over family, GPU and quantity."""
    keys = [(row["family"], row["gpu"], row["quantity"]) for row in rows]
    weights = [1 / keys.count(key) for key in keys]

    def quantile(values, p):
        ordered, reached = sorted(zip(values, weights)), 0
        for value, weight in ordered:
            reached += weight
            if reached >= p * sum(weights):
                return 100 * value
        return 100 * ordered[-1][0]
    sizes = [abs(each) for each in signed]
    return f"{quantile(sizes, 0.5):.1f}, {quantile(sizes, 0.9):.1f}, {quantile(signed, 0.5):+.1f}"


def print_set(fit, name, own):
    sure = [row for row in own if "rests_on_readings" not in row["facts"]]
    for of in ("frozen", "today"):
        fit.line(f"{name}, {of}", own, of)
        if len(sure) < len(own):
            fit.line("... published in full", sure, of)
        preset = [row for row in sure if "no_preset" not in row["facts"]]
        if len(preset) < len(sure):
            fit.line("... and by a code with a preset", preset, of)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    rows = read(arguments[0] if arguments else "build/bin/foreshard")
    sets = list(dict.fromkeys(row["set"] for row in rows))
    document = {
        "schema": "foreshard.first_looks/1",
        "source": "reports/unseen/first_looks.py on the sets in reports/unseen",
        "sets": [{"set": name, "families": sorted({r["family"] for r in rows if r["set"] == name})} for name in sets],
    }
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        fits = [Fit(of_kind, kind).as_json("")]
        print(f"\n{kind}: each set by the others, in per cent; errors are median, 90 % quantile, bias\n")
        print("| set | rows | before | shifted | in 50 % | in 80 % | in 90 % | half width | crps |\n| --- |" + " ---: |" * 8)
        for name in sets:
            fit = Fit([row for row in of_kind if row["set"] != name], kind)
            fits.append(fit.as_json(name))
            print_set(fit, name, [row for row in of_kind if row["set"] == name])
        document[kind] = fits
        print("\n" + json.dumps(fits[0]))
    if "--write" in sys.argv:
        text = json.dumps(document, separators=(",", ":")).replace("},{", "},\n{")  # a fit a line
        FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
