#!/usr/bin/env python3
"""Random plans of the whole schema through the built program, which forecasts each or refuses it by name.

    python3 tests/cli/random_plans.py build/bin/foreshard [--plans 150] [--seed 1] [--seconds 20] [--only PATTERN]

Values come from `foreshard schema plan` alone: a new key is drawn without a line here. Of a forecast it asks
that no figure is negative or not a number, that an interval holds its value, that reserved memory holds what
is allocated, and that the plan it prints, read again, is forecast with the same figures. Exits with 1 where
one does not hold, a call crashed, was an internal error or took more than --seconds of a processor.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile

# Integers are drawn among these and the schema's bounds: divisors, counts that do not divide, a byte count.
INTEGERS = [0, 1, 2, 3, 4, 5, 8, 16, 100000, 50000000]
MOST = {"mesh": 8, "batch": 8, "pipeline": 8, "expert_parallel": 8}  # else nearly all plans are refused
CLUSTERS = ["1xh100", "4xl40s", "8xh100", "8xrtx-4090", "8xb200", "16xmi300x", "32xa100", "64xh100", "72xgb200"]
RUNTIMES = ["fsdp2", "fsdp2@2.6", "fsdp2@2.11", "fsdp1", "fsdp1@2.4", "ddp", "zero1", "zero2", "zero3", "megatron",
            "native"]
DECIDED = {"model", "cluster", "runtime", "trainer", "mesh.shard", "mesh.replicate", "batch.global", "batch.sequence"}
EXPORTS = ["fsdp2", "accelerate", "deepspeed", "torchtitan", "torchtitan-registry", "launch"]


def leaves(node, path=()):
    for name, value in node.get("properties", {}).items():
        if "properties" in value:
            yield from leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def draw(pick, schema, key, spec):
    """One value of the schema; None where it only has a pattern."""
    if "$ref" in spec:
        return draw(pick, schema, key, schema["definitions"][spec["$ref"].rsplit("/", 1)[1]])
    if "oneOf" in spec:
        return draw(pick, schema, key, pick.choice(spec["oneOf"]))
    if "enum" in spec:
        return pick.choice(spec["enum"])
    if "const" in spec:
        return spec["const"]
    if spec.get("type") == "boolean":
        return pick.random() < 0.5
    if spec.get("type") == "integer":
        most = min(spec.get("maximum", 2**62), MOST.get(key.split(".")[0], 2**62))
        return pick.choice([i for i in INTEGERS if spec.get("minimum", 0) <= i <= most])
    if spec.get("type") == "number":
        return pick.choice([x for x in (0.0, 0.1, 0.5, 0.9) if x > spec.get("exclusiveMinimum", -1)])
    if spec.get("type") == "array":
        if "examples" in spec:
            return pick.choice(spec["examples"])
        items = [draw(pick, schema, key, spec["items"]) for _ in range(pick.choice([1, 1, 2]))]
        return None if None in items or any(isinstance(i, dict) for i in items) else list(dict.fromkeys(items))
    words = re.fullmatch(r"\^\(?([a-z0-9-]+(?:\|[a-z0-9-]+)*).*", spec.get("pattern", ""))
    losses = [*words[1].split("|"), "chunked-3", "chunked-head-3"] if words and key == "loss" else None
    return pick.choice(losses or spec.get("examples", [None]))


def command(pick, schema, keys, models):
    runtime = pick.choice(RUNTIMES)
    own = runtime.split("@")[0].rstrip("123") if runtime.startswith("zero") else runtime.split("@")[0]
    other = {"fsdp1", "ddp", "zero", "megatron"} - {own}
    fitting = [k for k in keys if k not in DECIDED and k.split(".")[0] not in other]
    chosen = pick.sample(fitting, pick.choice([1, 2, 3, 4, 5, 6, 8]))
    if own in ("fsdp2", "megatron") and pick.random() < 0.5:
        chosen += pick.sample(["mesh.tp", "mesh.cp", "mesh.ep", "mesh.pp"], pick.choice([1, 2]))
    sets = []
    for key in dict.fromkeys(chosen):
        value = draw(pick, schema, key, keys[key])
        if value is not None:
            sets.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    job = ["--model", pick.choice(models), "--cluster", pick.choice(CLUSTERS), "--runtime", runtime, "--sequence",
           pick.choice(["512", "1024", "2048", "4096"]), *(word for value in sets for word in ("--set", value))]
    verb = pick.choice(["predict"] * 5 + ["explain", "schedule", "export", "compare"])
    if verb == "compare":
        return [verb, *job, "--with", pick.choice([f"runtime={pick.choice(RUNTIMES)}", *sets[:1]]), "--json"]
    return [verb, *job, *(["--to", pick.choice(EXPORTS)] if verb == "export" else ["--json"] if verb != "schedule" else [])]


def figures(node, path=""):
    if isinstance(node, dict):
        for name, value in node.items():
            yield from figures(value, f"{path}.{name}")
    elif isinstance(node, list):
        for value in node:
            yield from figures(value, path)
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        yield path, node


def bands(node, path=""):
    if isinstance(node, dict):
        if {"value", "low", "high"} <= node.keys():
            yield path, node
        for name, value in node.items():
            yield from bands(value, f"{path}.{name}")


def wrong(answer):
    """What a forecast says that cannot be."""
    for path, value in figures({k: answer[k] for k in ("step", "memory", "sharding") if k in answer}):
        if value != value or value < 0:
            return f"{path} is {value}"
    for path, band in bands(answer.get("step", {})):
        if not band["low"] <= band["value"] * (1 + 1e-9) or not band["value"] <= band["high"] * (1 + 1e-9):
            return f"{path}: {band['value']} is not in {band['low']} to {band['high']}"
    memory = answer.get("memory", {})
    if memory and memory["peak_reserved_bytes"]["value"] < memory["peak_allocated_bytes"]["value"]:
        return "reserved less than allocated"
    return ""


def without_refused(arguments, message):
    """The same call without the keys that a refusal names; None where it names none of them."""
    kept = list(arguments)
    for i in reversed([i for i, word in enumerate(kept) if word == "--set"]):
        if kept[i + 1].split("=")[0] in message:
            del kept[i : i + 2]
    return kept if len(kept) < len(arguments) else None


def judge(program, arguments, seconds, folder):
    ended = subprocess.run([program, *arguments], capture_output=True, text=True,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)))
    if ended.returncode == 3:
        kept = without_refused(arguments, ended.stderr)
        if kept:
            return judge(program, kept, seconds, folder)
    line = f"\n  foreshard {shlex.join(arguments)}"
    if ended.returncode not in (0, 2, 3, 4, 6) or "internal error" in ended.stderr:
        return "crash", f"exit {ended.returncode}: {ended.stderr.strip()[:200]}{line}"
    if ended.returncode != 0 or arguments[0] != "predict":
        return "refused" if ended.returncode else "ok", ""
    answer = json.loads(ended.stdout)
    fault = wrong(answer)
    if not fault:
        plan = pathlib.Path(folder) / "plan.yaml"
        plan.write_text(json.dumps(answer["plan"]))
        again = subprocess.run([program, "predict", "--plan", str(plan), "--json"], capture_output=True, text=True)
        if again.returncode != 0:
            fault = f"its plan is refused: {again.stderr.strip()[:200]}"
        else:
            back = json.loads(again.stdout)
            # An interval may be narrower: what was open is said now.
            fault = next((f"its plan gives another {part}" for part in ("fingerprint", "plan") if back[part] != answer[part]), "")
            fault = fault or next((f"its plan gives another {path}" for (path, one), (_, other)
                                   in zip(bands(answer), bands(back)) if one["value"] != other["value"]), "")
    return ("wrong", fault + line) if fault else ("ok", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--plans", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=20, help="of a processor, for one call")
    parser.add_argument("--only", default="", help="models whose name holds this pattern")
    args = parser.parse_args()
    schema = json.loads(subprocess.check_output([args.program, "schema", "plan"]))
    listed = subprocess.check_output([args.program, "models"], text=True).splitlines()[1:]
    models = [line.split()[0] for line in listed if line and not line.startswith(" ")]
    models = [m for m in models if re.search(args.only, m)]
    keys = dict(leaves(schema))
    pick = random.Random(args.seed)
    ends = collections.Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.plans):
            arguments = command(pick, schema, keys, models)
            end, fault = judge(args.program, arguments, args.seconds, folder)
            ends[end] += 1
            if fault:
                bad += 1
                print(fault, flush=True)
    print(", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    return 1 if bad or not ends["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
