"""Forecasts of sharded training: step time, memory, the best plan.

    import foreshard

    report = foreshard.predict("llama-3.1-8b", cluster="64xh100", sequence=4096, mesh={"shard": 8})
    report.step.seconds.value, report.memory.fits
    found = foreshard.search("llama-3.1-8b", cluster="64xh100", global_batch=128)
    events = foreshard.schedule(plan="plan.yaml")              # a structured array of NumPy
    events["bytes"][events["kind"] == "all_gather"].sum()

Every verb of the program `foreshard` is a function here, with the verb's options as keywords; further
keywords are keys of the plan. Answers are the program's JSON documents (`foreshard schema report`), and
what it refuses is raised with its own sentence: docs/python.md.
"""

import functools

from . import _verbs
from ._answer import Answer
from ._arrays import curve, pareto, schedule
from ._program import (
    ForeshardError,
    Infeasible,
    InvalidInput,
    LaunchFailure,
    MissingCapability,
    OutsideTolerance,
    UsageError,
    command,
)

# Not those whose answer is a server or a script for a shell.
_NOT_HERE = ("serve", "completion")


@functools.lru_cache(maxsize=None)
def _verb(name):
    return _verbs.function_of(name)


def __getattr__(name):
    if name == "__version__":
        return command("--version")[1].split()[-1]
    verb = name.rstrip("_")  # import_
    if name.startswith("_") or verb in _NOT_HERE or verb not in _verbs.tree():
        raise AttributeError(f"module 'foreshard' has no {name!r}; it has: {', '.join(__dir__())}")
    return _verb(verb)


def __dir__():
    verbs = [_verbs.python_name(verb) for verb in _verbs.tree() if verb not in _NOT_HERE]
    return sorted({name for name in globals() if not name.startswith("_")} | set(verbs))
