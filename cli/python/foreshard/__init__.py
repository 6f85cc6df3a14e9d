"""Forecasts of sharded training: step time, memory, the best plan; as dicts and NumPy arrays.

    import foreshard

    report = foreshard.predict(model="llama-3.1-8b", cluster="64xh100", mesh={"shard": 8})
    report["step"]["seconds"]["value"], report["memory"]["fits"]
    found = foreshard.search(model="llama-3.1-8b", cluster="64xh100", global_batch=128)
    events = foreshard.schedule(plan="plan.yaml")              # a structured array
    events["bytes"][events["kind"] == "all_gather"].sum()

A job is named as on the command line: `plan=` is a file or a dict of plan keys; further keywords are
keys of the plan (`mesh={"shard": 8}`, `reshard_after_forward="never"`). Answers are the program's
JSON documents (`foreshard schema report`). What the program refuses is a ForeshardError with its
exit code; an answer whose plan does not fit or is outside a tolerance is returned, with its exit
code under "exit_code".
"""

import csv
import io
import json
import os

import numpy as np

from . import _core

__version__ = _core.__version__
__all__ = [
    "ForeshardError",
    "accuracy",
    "command",
    "compare",
    "curve",
    "explain",
    "export",
    "import_files",
    "launch",
    "machines",
    "models",
    "pareto",
    "predict",
    "recommend",
    "scale",
    "schedule",
    "search",
]

ANSWERED = (0, 4, 5)  # fits, does not fit, outside a tolerance: each with an answer


class ForeshardError(RuntimeError):
    """What the program refused, in its own sentence; `exit_code` as of the program."""

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code


def command(*arguments):
    """`foreshard ARGUMENTS`: (exit code, standard output, standard error)."""
    return _core.run([os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments])


def _answer(arguments):
    code, out, errors = command(*arguments)
    if code not in ANSWERED or not out:
        raise ForeshardError(errors.strip() or f"exit code {code}", code)
    return code, out


def _document(*arguments):
    code, out = _answer([*arguments, "--json"])
    document = json.loads(out)
    document["exit_code"] = code
    return document


def _assignment(key, value):
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{key}={'none' if value is None else text}"


def _job(plan=None, model=None, cluster=None, runtime=None, profile=None, **keys):
    arguments = []
    if isinstance(plan, dict):
        keys = {**plan, **keys}
        model, cluster = model or keys.pop("model", None), cluster or keys.pop("cluster", None)
        runtime = runtime or keys.pop("runtime", None)
        for name in ("model", "cluster", "runtime"):
            keys.pop(name, None)
    elif plan is not None:
        arguments += ["--plan", plan]
    for flag, value in (
        ("--model", model),
        ("--cluster", cluster),
        ("--runtime", runtime),
        ("--profile", profile),
    ):
        if value is not None:
            arguments += [flag, value]
    for key, value in keys.items():
        arguments += ["--set", _assignment(key, value)]
    return arguments


def predict(plan=None, **job):
    """Step time and memory of a job, each with its interval (`foreshard predict`)."""
    return _document("predict", *_job(plan, **job))


def explain(plan=None, **job):
    """Where the time and the memory of a step go (`foreshard explain`)."""
    return _document("explain", *_job(plan, **job))


def schedule(plan=None, **job):
    """Every event of the step in the order the host issues it, as a structured array."""
    _, text = _answer(["schedule", *_job(plan, **job), "--csv"])
    rows = list(csv.reader(io.StringIO(text)))
    names, rows = rows[0], rows[1:]
    whole = {"id", "unit", "microbatch", "bytes", "flops"}
    words = {"kind", "unit_name", "stream", "communicator"}

    def column(name, values):
        if name in words:
            return np.array(values, dtype=str)
        if name in whole:
            return np.array([int(v) if v else -1 for v in values], dtype=np.int64)
        return np.array([float(v) if v else np.nan for v in values], dtype=np.float64)

    columns = [column(name, [row[i] for row in rows]) for i, name in enumerate(names)]
    table = np.empty(len(rows), dtype=[(n, c.dtype) for n, c in zip(names, columns)])
    for name, values in zip(names, columns):
        table[name] = values
    return table


def _options(**options):
    """--global-batch 512 of global_batch=512; a list is told as many times, True is a switch."""
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        else:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                arguments += [flag, one]
    return arguments


def search(
    plan=None,
    *,
    fix=None,
    global_batch=None,
    objective=None,
    max_memory=None,
    deep=False,
    robust=False,
    vary=None,
    threads=None,
    **job,
):
    """The fastest plan that fits, and the best trade-offs (`foreshard search`)."""
    arguments = _job(plan, **job)
    for key, value in (fix or {}).items():
        arguments += ["--fix", _assignment(key, value)]
    arguments += _options(
        global_batch=global_batch,
        objective=objective,
        max_memory=max_memory,
        deep=deep,
        robust=robust,
        vary=vary,
        threads=threads,
    )
    return _document("search", *arguments)


def pareto(found):
    """The trade-offs of search() as a structured array: step_s, peak_reserved_bytes, index."""
    rows = [
        (
            entry["report"]["step"]["seconds"]["value"],
            entry["report"]["memory"]["peak_reserved_bytes"]["value"],
            i,
        )
        for i, entry in enumerate(found["pareto"])
    ]
    kinds = [("step_s", np.float64), ("peak_reserved_bytes", np.float64), ("index", np.int64)]
    return np.array(rows, dtype=kinds)


def compare(plan=None, *, with_=None, runtimes=None, **job):
    """Two plans side by side, or one job under several runtimes (`foreshard compare`)."""
    arguments = _job(plan, **job)
    for key, value in (with_ or {}).items():
        arguments += ["--with", _assignment(key, value)]
    if runtimes:
        arguments += ["--runtimes", ",".join(runtimes)]
    return _document("compare", *arguments)


def accuracy(*files, anchor=None):
    """How far forecasts are from tables of measurements (`foreshard accuracy`)."""
    arguments = list(files)
    if anchor is not None:
        arguments += ["--anchor", anchor]
    return _document("accuracy", *arguments)


def _sizes(gpus):
    return None if gpus is None else ",".join(str(n) for n in gpus)


def recommend(
    model,
    *,
    tokens,
    deadline=None,
    budget=None,
    clusters=None,
    gpus=None,
    global_batch=None,
    batch_tokens=None,
    prices=None,
    what_if=False,
    threads=None,
    **keys,
):
    """What to buy or rent (`foreshard recommend`). `clusters`: "64xh100", "h100", files; default: the
    whole catalogue, in likely sizes or in those of `gpus`."""
    arguments = _options(
        tokens=tokens,
        deadline=deadline,
        budget=budget,
        cluster=[clusters] if isinstance(clusters, str) else clusters,
        gpus=_sizes(gpus),
        global_batch=global_batch,
        batch_tokens=batch_tokens,
        prices=prices,
        what_if=what_if,
        threads=threads,
    )
    return _document("recommend", *_job(model=model, **keys), *arguments)


def scale(
    model,
    cluster,
    *,
    gpus=None,
    global_batch=None,
    batch_tokens=None,
    weak=None,
    prices=None,
    threads=None,
    **keys,
):
    """How a job scales with the number of GPUs of a machine such as "h100" (`foreshard scale`)."""
    arguments = _options(
        gpus=_sizes(gpus),
        global_batch=global_batch,
        batch_tokens=batch_tokens,
        weak=weak,
        prices=prices,
        threads=threads,
    )
    return _document("scale", *_job(model=model, cluster=cluster, **keys), *arguments)


def curve(scaled):
    """The points of scale() as a structured array: gpus, tokens_per_s and its interval, efficiency."""
    rows = [
        (
            point["gpus"],
            point["tokens_per_s"]["value"],
            point["tokens_per_s"]["low"],
            point["tokens_per_s"]["high"],
            point["efficiency"],
        )
        for point in scaled["points"]
    ]
    names = ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "efficiency")
    return np.array(rows, dtype=[("gpus", np.int64), *((name, np.float64) for name in names)])


def export(to, plan=None, *, launcher=None, program=None, **job):
    """The plan as a file of `to` (fsdp2, accelerate, ...): {"text": ..., "ledger": [...]}."""
    arguments = _job(plan, **job)
    for flag, value in (("--launcher", launcher), ("--program", program)):
        if value is not None:
            arguments += [flag, value]
    return _document("export", "--to", to, *arguments)


def launch(plan=None, *, launcher="torchrun", program=None, **job):
    """The line that starts the plan's ranks, and how many there are."""
    arguments = [*_job(plan, **job), "--launcher", launcher]
    if program is not None:
        arguments += ["--program", program]
    return _document("launch", *arguments)


def import_files(*files, model=None, cluster=None):
    """A plan of others' files: {"plan": YAML, "ledger": [...]} (`foreshard import`)."""
    arguments = list(files)
    for flag, value in (("--model", model), ("--cluster", cluster)):
        if value is not None:
            arguments += [flag, value]
    return _document("import", *arguments)


def models(name=None):
    """The models known by name, or one in full."""
    return _document("models", *([name] if name else []))


def machines(name=None):
    """The GPUs and nodes known by name, or one with its sources."""
    return _document("machines", *([name] if name else []))
