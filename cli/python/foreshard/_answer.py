"""Answers: the program's documents with their keys as attributes, and as a small table in a notebook."""

import html


class Document(dict):
    """A JSON object; `d.key` is `d["key"]` where the key is not a method of dict."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no key {name!r}; there are {', '.join(self)}") from None

    def __dir__(self):
        return [*super().__dir__(), *(key for key in self if key.isidentifier())]


def scaled(value, units):
    """950 ms of 0.95: the largest unit that the value reaches."""
    factor, unit = next((u for u in units if abs(value) >= u[0]), units[-1])
    return f"{value / factor:.3g} {unit}".strip()


def seconds(value):
    return scaled(value, [(86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")])


def count_bytes(value):
    return scaled(value, [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")])


def share(value):
    return f"{100 * value:.3g} %"


def odds(value):
    """Never 100 % of what is not certain."""
    return "more than 99 %" if value > 0.99 else "less than 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def number(value):
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def plain(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


# What a key of a document is counted in, by how its name ends.
ENDINGS = [
    ("_bytes", count_bytes), ("seconds", seconds), ("_s", seconds), ("step_s", seconds),
    ("mfu", share), ("hfu", share), ("efficiency", share), ("goodput", share), ("error", share),
    ("probability", odds), ("coverage", share), ("dollars", lambda v: f"{v:,.0f} USD"),
    ("days", lambda v: seconds(86400 * v)),
]


def told(name, value):
    """A value or a quantity {value, low, high, evidence} in the unit of its name."""
    if isinstance(value, dict):
        if value.get("value") is None:
            return "not measured"
        text = told(name, value["value"])
        if value.get("low") is not None:
            text += f" ({told(name, value['low'])} .. {told(name, value['high'])})"
        return text
    if value is None:
        return "-"
    is_rate = "_per_" in name
    for ending, form in ENDINGS:
        if name.endswith(ending) and not is_rate and isinstance(value, (int, float)):
            return form(value)
    return plain(value)


def fits(memory):
    """"fits with 97 %" of a report's memory."""
    with_odds = memory.get("fit_probability")
    if memory.get("fits"):
        return "fits" + (f" with {odds(with_odds)}" if with_odds is not None else "")
    missing = -(memory.get("margin_bytes") or 0)
    return "does not fit" + (f": {count_bytes(missing)} more than there is" if missing > 0 else "")


def report_rows(report):
    step, memory = report.get("step", {}), report.get("memory", {})
    names = ("seconds", "tokens_per_s_per_gpu", "mfu", "exposed_communication_s")
    rows = [(name, told(name, step[name])) for name in names if name in step]
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "capacity_bytes", "margin_bytes")
    return rows + [(name, told(name, memory[name])) for name in names if name in memory]


def of_report(d):
    step = d["step"]["seconds"]
    return f"{fits(d['memory'])}; step {told('seconds', step)}", [("", "")] + report_rows(d)


def of_search(d):
    if not d.get("best"):
        return "no plan fits" + f": {d['enumerated']} tried", []
    report = d["best"]["report"]
    verdict, table = of_report(report)
    plan = d["best"]["plan"]
    keys = ("batch", "mesh", "reshard_after_forward", "prefetch", "recompute")
    chosen = [(key, plan[key]) for key in keys if key in plan]
    return f"best of {d['enumerated']:,} plans {verdict}", table + [(k, compact(v)) for k, v in chosen]


def compact(value):
    if isinstance(value, dict):
        return ", ".join(f"{key} {compact(one)}" for key, one in value.items())
    return plain(value)


def of_rows(key, columns, verdict):
    """Of a document whose answer is a list of objects: these columns where they are."""

    def of(d):
        rows = d.get(key) or []
        there = [name for name in columns if any(name in row for row in rows)]
        table = [tuple(there)] + [tuple(told(name, row.get(name)) for name in there) for row in rows[:20]]
        return verdict(d, rows), table

    return of


def first_choice(d, rows):
    if not rows:
        return "nothing meets the terms"
    best = rows[0]
    met = "" if d.get("meets_terms", True) else "nothing meets the terms; nearest: "
    return (f"{met}{best['cluster']}: {told('days', best['days'])}, {told('dollars', best['dollars'])}, "
            f"holds with {odds(best['probability'])}")


def passed(d, _rows):
    names = ("step_error", "exposed_communication_error", "memory_error")
    errors = (f"{name.replace('_', ' ')} {told(name, d[name])}" for name in names if d.get(name) is not None)
    return f"{'passed' if d.get('passed') else 'not passed'}: {', '.join(errors)}"


def of_compare(d):
    rows = [(name, told(name, x["a"]), told(name, x["b"]), f"{x['ratio']:.3f}" if x.get("ratio") else "-")
            for name, x in d.get("step", {}).items() if isinstance(x, dict) and "a" in x]
    changed = ", ".join(f"{x['key']} {compact(x['a'])} -> {compact(x['b'])}" for x in d.get("plan", []))
    return changed or "the same plan", [("", "a", "b", "b / a")] + rows


def of_summary(d):
    summary = d.get("summary", {})
    return ", ".join(f"{key} {told(key, value)}" for key, value in summary.items()), []


FORMS = {
    "report": of_report,
    "explain": lambda d: of_report(d["report"]) if "report" in d else of_any(d),
    "search": of_search,
    "recommend": of_rows(
        "choices", ("cluster", "gpus", "days", "dollars", "step_s", "mfu", "probability"), first_choice),
    "fit": of_rows(
        "curve", ("budget_bytes", "seconds", "tokens_per_s_per_gpu", "fit_probability"),
        lambda d, rows: (f"{told('seconds', d['best']['report']['step']['seconds']['value'])} a step" if d.get("best")
                         else "no plan fits") + f" within {told('budget_bytes', d['budget_bytes'])}"),
    "scale": of_rows(
        "points", ("cluster", "gpus", "global_batch", "tokens_per_s", "efficiency", "step_s"),
        lambda d, rows: f"scales to {d['knee_gpus']} GPUs" if d.get("knee_gpus") else f"{len(rows)} sizes"),
    "validate": of_rows("by_kind", ("kind", "rows", "measured_s", "predicted_s", "error"), passed),
    "compare": of_compare,
    "accuracy": of_summary,
    "conform": of_summary,
    "diagnose": of_rows(
        "causes", ("name", "probability", "test"),
        lambda d, rows: "explained" if d.get("explained") else "not explained by what is known"),
    "ask": of_rows(
        "facts", ("name", "half_width", "minutes", "ask"),
        lambda d, rows: f"+-{100 * d.get('half_width', 0):.1f} % of the step; {len(rows)} facts would narrow it"),
    "doctor": of_rows(
        "capabilities", ("name", "available", "detail"),
        lambda d, rows: f"{sum(bool(row['available']) for row in rows)} of {len(rows)} capabilities are there"),
    "models": of_rows("models", ("name", "family", "parameters", "layers", "hidden"),
                      lambda d, rows: f"{len(rows)} models"),
    "machines": of_rows("machines", ("machine", "gpus", "nodes"), lambda d, rows: f"{len(rows)} machines"),
}


def of_any(d):
    rows = [(key, compact(value)) for key, value in d.items()
            if not isinstance(value, (dict, list)) and key not in ("schema", "created", "host")]
    return d.get("name") or d.get("machine") or d.get("schema", "answer"), [("", "")] + rows


class Answer(Document):
    """A verb's document. `exit_code` is the program's, `notes` what it said beside the answer."""

    def __init__(self, document, exit_code=0, notes=()):
        super().__init__(document)
        self.exit_code = exit_code  # attributes of the object, not keys of the document
        self.notes = list(notes)

    def _told(self):
        kind = str(self.get("schema", "")).partition(".")[2].partition("/")[0]
        try:
            return FORMS.get(kind, of_any)(self)
        except (KeyError, TypeError):  # a form that is younger than this file
            return of_any(self)

    @property
    def verdict(self):
        """The answer in one line."""
        return self._told()[0]

    def _repr_html_(self):
        verdict, table = self._told()
        lines = [f"<p><strong>{html.escape(verdict)}</strong></p>"]
        if len(table) > 1:
            head, rows = table[0], table[1:]
            lines.append("<table>")
            if any(head):
                lines.append("<tr>" + "".join(f"<th>{html.escape(words(c))}</th>" for c in head) + "</tr>")
            for row in rows:
                cells = [row[0] if head[0] else words(row[0]), *row[1:]]
                lines.append("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>")
            lines.append("</table>")
        lines += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self):
        return f"<foreshard {self.get('schema', 'answer')}: {self.verdict}>"


def words(key):
    """A key as words: its unit is in the value."""
    for ending in ("_bytes", "_s"):
        if key.endswith(ending) and "_per_" not in key:
            key = key[: -len(ending)]
    known = {"seconds": "step time", "mfu": "MFU", "gpus": "GPUs", "margin": "to spare", "days": "time"}
    return known.get(key, key.replace("per_s", "/ s").replace("per_gpu", "/ GPU").replace("_", " "))
