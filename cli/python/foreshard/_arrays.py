"""Answers as structured arrays of NumPy, which only these need: pip install foreshard[arrays]."""

import csv
import io

from . import _verbs

WHOLE = {"id", "unit", "microbatch", "bytes", "flops"}
WORDS = {"kind", "unit_name", "stream", "communicator"}


def _array(rows, kinds):
    import numpy  # here, so that the rest does without

    return numpy.array(rows, dtype=kinds)


def schedule(*args, **keys):
    """Every event of the step in the order the host issues it (`foreshard schedule`)."""
    rows = list(csv.reader(io.StringIO(_verbs.call("schedule", *args, **keys))))
    names, rows = rows[0], rows[1:]

    def value(name, text):
        if name in WORDS:
            return text
        if name in WHOLE:
            return int(text) if text else -1
        return float(text) if text else float("nan")

    def kind(name, at):
        if name in WORDS:
            return f"U{max((len(row[at]) for row in rows), default=1) or 1}"
        return "i8" if name in WHOLE else "f8"

    return _array(
        [tuple(map(value, names, row)) for row in rows],
        [(name, kind(name, at)) for at, name in enumerate(names)],
    )


def pareto(found):
    """The trade-offs of search(): step_s, peak_reserved_bytes, index."""
    return _array(
        [
            (
                entry["report"]["step"]["seconds"]["value"],
                entry["report"]["memory"]["peak_reserved_bytes"]["value"],
                at,
            )
            for at, entry in enumerate(found["pareto"])
        ],
        [("step_s", "f8"), ("peak_reserved_bytes", "f8"), ("index", "i8")],
    )


def curve(scaled):
    """The points of scale(): gpus, tokens_per_s and its interval, efficiency."""
    rows = []
    for point in scaled["points"]:
        rate = point["tokens_per_s"]
        rows.append((point["gpus"], rate["value"], rate["low"], rate["high"], point["efficiency"]))
    names = ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "efficiency")
    return _array(rows, [("gpus", "i8"), *((name, "f8") for name in names)])
