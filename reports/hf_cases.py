#!/usr/bin/env python3
"""Forecasts against what transformers with Accelerate, PEFT and FSDP2 did on PyTorch's own allocator: a table.

    reports/hf_cases.py tests/hf_cases [build/bin/foreshard] [--json FILE]

A file of DIR is a case: `case` (what was run), `config` (of the model; or its folder's name) and `result` (peaks,
reserved bytes and collectives of the last step). Each is forecast from the model's config.json and what somebody who
started the run would say: stack, trainer and their versions, sizes, checkpointing, adapters. Measured: the bytes that
tensors asked for at the peak, less 64 MiB of cuBLAS workspaces, and the reserved bytes.
"""
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

WORKSPACES = 64 << 20
ENTRY = {"runtime": "fsdp2", "precision": "bf16", "world": 8, "seq": 1024, "batch": 2, "accum": 1, "attn": "sdpa", "loop": "accelerate",
         "opt": "adamw", "fsdp": {}, "hold": True, "clip": True, "gc_reentrant": None}
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def words(case, version):
    """What is typed, but for the model."""
    c = {**ENTRY, **case}
    # (hf_train.py makes the model on the device and empties the cache.)
    keys = {"stack": "hf_trainer", "built_on": "meta", "trainer": "torchtitan" if c["loop"] == "titan" else f"accelerate@{version}"}
    if c["loop"] == "titan":
        keys["recompute"] = "none"
    if c["runtime"] == "ddp":
        del keys["trainer"]
    if c["precision"] == "no":
        keys["dtype.param"] = "fp32"
    if c["attn"] == "eager":
        keys["attention"] = "eager"
    if c["accum"] > 1:
        keys["batch.accumulation"] = c["accum"]
    if c["opt"] == "adamw":
        keys["optimizer.implementation"] = "foreach"
    if not c["clip"]:
        keys["optimizer.clip_norm"] = "none"
    if c.get("gc"):
        keys["recompute"] = "full"
        if c["gc_reentrant"]:
            keys["recompute_reentrant"] = "true"
    if c["loop"] == "accelerate" and c["hold"]:
        keys["logits"] = "held"
    if c.get("mask") == "padded":
        keys["batch.padded"] = "true"
    if c.get("hsdp"):
        keys["mesh.replicate"], keys["mesh.shard"] = c["hsdp"]
    if c["fsdp"].get("transformer_cls_names_to_wrap"):
        keys["units.blocks"] = "own"
    if c["fsdp"].get("cpu_offload"):
        keys["offload"] = "cpu"
    if c["fsdp"].get("reshard_after_forward") is False:
        keys["reshard_after_forward"] = "never"
    if c.get("lora"):
        targets = c["lora"]["target_modules"]
        keys["lora.rank"] = c["lora"]["r"]
        keys["lora.targets"] = targets if isinstance(targets, str) else f"[{', '.join(targets)}]"
        keys["lora.dropout"] = c["lora"].get("lora_dropout", 0)
        keys["lora.base"] = "param" if c.get("dtype") else "master"
    said = ["--cluster", f"{c['world']}xh100", "--runtime", f"{c['runtime']}@2.11", "--micro-batch", str(c["batch"])]
    if c.get("task") != "vit":
        said += ["--sequence", str(c["seq"])]
    for key, value in keys.items():
        said += ["--set", f"{key}={value}"]
    return said


def recorded(result):
    """(kind, bytes) in the host's order; clipping's all-reduce has no bytes."""
    rows = []
    for kind, _, sent, received, *_ in result["collectives"]:
        if kind.startswith("functional"):
            rows.append(("all_reduce", None))
        else:
            rows.append((kind, max(sent, received)))
    return rows


def scheduled(program, said):
    """(kind, bytes) of a forecast; norms and their likes have a few bytes, for which recordings say none."""
    done = subprocess.run([program, "schedule", *said, "--csv"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if not lines:
        return []
    head = lines[0].split(",")
    kind, size = head.index("kind"), head.index("bytes")
    return [(f[kind], int(f[size])) for f in (line.split(",") for line in lines[1:]) if f[kind] in KINDS]


def same(seen, told):
    if len(seen) != len(told):
        return f"{len(told)} instead of {len(seen)}"
    for i, ((kind, size), (kind2, size2)) in enumerate(zip(seen, told)):
        if kind != kind2 or (size is not None and size != size2):
            return f"{i}: {kind2} {size2} instead of {kind} {size}"
    return ""


def score(file, program):
    data = json.loads(file.read_text(encoding="utf-8"))
    case, result = data["case"], data["result"]
    version = ".".join(result["versions"]["accelerate"].split(".")[:2])
    with tempfile.TemporaryDirectory() as made:
        model = file.parent / case["config"] / "config.json"
        if "config" in data:
            model = pathlib.Path(made) / "config.json"
            model.write_text(json.dumps(data["config"]), encoding="utf-8")
        said = ["--model", str(model), *words(case, version)]
        done = subprocess.run([program, "predict", *said, "--json"], capture_output=True, text=True)
        row = {"id": file.stem, "said": said}
        if not done.stdout:
            row["refused"] = done.stderr.strip().splitlines()[:2]
            return row
        memory = json.loads(done.stdout)["memory"]
        step = result["steps"][-1]
        row["measured"] = step["requested"] - WORKSPACES
        row["peak"] = memory["peak_allocated_bytes"]["value"] / row["measured"] - 1
        row["reserved"] = memory["peak_reserved_bytes"]["value"] / step["reserved"] - 1
        row["difference"] = same(recorded(result), scheduled(program, said))
        return row


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    program = sys.argv[2] if len(sys.argv) > 2 and not sys.argv[2].startswith("-") else "build/bin/foreshard"
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda f: score(f, program), files))
    print(f"{'case':20} {'MiB':>9} {'peak':>8} {'reserved':>9}  collectives")
    for r in rows:
        if "refused" in r:
            print(f"{r['id']:20} {r['refused']}")
        else:
            print(f"{r['id']:20} {r['measured'] / 2**20:9.1f} {100 * r['peak']:+7.2f}% {100 * r['reserved']:+8.2f}%  {r['difference'] or 'same'}")
    told = [r for r in rows if "refused" not in r]
    for name in ("peak", "reserved"):
        sizes = sorted(abs(r[name]) for r in told) or [0]
        print(f"{name}: median {100 * statistics.median(sizes):.2f} %, worst {100 * sizes[-1]:.2f} %")
    print(f"collectives: {sum(not r['difference'] for r in told)} of {len(rows)}")
    if "--json" in sys.argv:
        pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
