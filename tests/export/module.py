"""The installed Python module: run by `./x check module` with the Python that has it."""

import numpy as np

import foreshard

JOB = dict(model="llama-3.1-8b", cluster="16xh100", runtime="fsdp2@2.11")

report = foreshard.predict(**JOB, mesh={"shard": 8})
assert report["schema"] == "foreshard.report/1" and report["exit_code"] == 0, report["schema"]
assert report["plan"]["mesh"] == {"shard": 8, "replicate": 2}, report["plan"]["mesh"]
seconds = report["step"]["seconds"]
assert seconds["low"] <= seconds["value"] <= seconds["high"], seconds

events = foreshard.schedule({**JOB, "mesh": {"shard": 8}})
assert events.dtype["bytes"] == np.int64 and events.dtype["end_s"] == np.float64
assert (np.diff(events["id"]) == 1).all()
# Every unit is gathered in forward and in backward, but for the root, which keeps what it has.
gathers = events[events["kind"] == "all_gather"]
assert len(gathers) == 2 * len(np.unique(gathers["unit_name"])) - 1, len(gathers)
assert gathers["bytes"].min() > 0

found = foreshard.search(**JOB, threads=1, fix={"recompute": "none", "prefetch.forward": "implicit"})
best = found["best"]["report"]["step"]["seconds"]["value"]
points = foreshard.pareto(found)
assert len(points) == len(found["pareto"]) and np.isclose(points["step_s"].min(), best)

deep = foreshard.search(**JOB, threads=1, deep=True, fix={"recompute": "none", "prefetch.forward": "implicit"})
assert deep["best"]["report"]["step"]["seconds"]["value"] <= best

bought = foreshard.recommend("gpt2", tokens="10B", deadline="30d", clusters=["8xh100", "a100"], gpus=[8, 16], what_if=True)
assert bought["meets_terms"] and len(bought["choices"]) == 3, bought["choices"]
worth = [one["worth_usd_per_gpu_hour"] for one in bought["what_if"]]
assert worth == sorted(worth, reverse=True)
scaled = foreshard.scale("gpt2", "a100", gpus=[8, 16, 32], global_batch=64)
points = foreshard.curve(scaled)
assert list(points["gpus"]) == [8, 16, 32] and (points["tokens_per_s_low"] <= points["tokens_per_s"]).all()

exported = foreshard.export("torchtitan", **JOB)
assert "[parallelism]" in exported["text"]
assert foreshard.launch(**JOB)["ranks"] == 16

try:
    foreshard.predict(model="llama-3.1-9b", cluster="16xh100")
    raise SystemExit("a model that nobody knows was forecast")
except foreshard.ForeshardError as error:
    assert error.exit_code == 3 and "did you mean" in str(error), error
infeasible = foreshard.predict(model="llama-3.1-405b", cluster="8xh100")
assert infeasible["exit_code"] == 4 and not infeasible["memory"]["fits"]
print("ok module", foreshard.__version__)
