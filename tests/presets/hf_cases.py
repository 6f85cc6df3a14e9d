#!/usr/bin/env python3
"""Forecasts against what transformers with Accelerate, PEFT and FSDP2 did on PyTorch's own allocator: a table.

    tests/presets/hf_cases.py tests/hf_cases [build/bin/foreshard] [--json FILE]

A file of DIR is a case: `case` (what was run), `config` (of the model; or its folder's name) and `result` (peaks,
reserved bytes and collectives of the last step). Each is forecast from the model's config.json and what somebody who
started the run would say: stack, trainer and their versions, sizes, checkpointing, adapters. Measured: the bytes that
tensors asked for at the peak, less 64 MiB of cuBLAS workspaces, and the reserved bytes.
"""
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile

from held import compared

ENTRY = {"config": None, "runtime": "fsdp2", "precision": "bf16", "world": 8, "rank": 0, "seq": 1024, "batch": 2, "accum": 1, "attn": "sdpa", "loop": "accelerate", "opt": "adamw",
         "fsdp": {}, "hold": True, "clip": True, "gc": None, "gc_reentrant": None, "use_cache": None, "lora": None, "dtype": None, "mask": None,
         "task": "clm", "hsdp": None, "steps": 3, "cudnn": False, "experts": None, "titan_reshard": "default", "collect": True}


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
    if c["gc"]:
        keys["recompute"] = "full"
        if c["gc_reentrant"]:
            keys["recompute_reentrant"] = "true"
    if c["loop"] == "accelerate" and c["hold"]:
        keys["logits"] = "held"
    if c["use_cache"]:
        keys["kernels.keeps_cache"] = "true"
    if c["mask"] == "padded":
        keys["batch.padded"] = "true"
    if c["hsdp"]:
        keys["mesh.replicate"], keys["mesh.shard"] = c["hsdp"]
    if c["fsdp"].get("transformer_cls_names_to_wrap"):
        keys["units.blocks"] = "own"
    if c["fsdp"].get("cpu_offload"):
        keys["offload"] = "cpu"
    if c["fsdp"].get("reshard_after_forward") is False:
        keys["reshard_after_forward"] = "never"
    if c["lora"]:
        targets = c["lora"]["target_modules"]
        keys["lora.rank"] = c["lora"]["r"]
        keys["lora.targets"] = targets if isinstance(targets, str) else f"[{', '.join(targets)}]"
        keys["lora.dropout"] = c["lora"].get("lora_dropout", 0)
        keys["lora.base"] = "param" if c["dtype"] else "master"
    said = ["--cluster", f"{c['world']}xh100", "--runtime", f"{c['runtime']}@2.11", "--micro-batch", str(c["batch"])]
    if c["task"] != "vit":
        said += ["--sequence", str(c["seq"])]
    for key, value in keys.items():
        said += ["--set", f"{key}={value}"]
    return said


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
        return {"id": file.stem, "said": said, **compared(program, said, result)}


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    program = sys.argv[2] if len(sys.argv) > 2 and not sys.argv[2].startswith("-") else "build/bin/foreshard"
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda f: score(f, program), files))
    print(f"{'case':20} {'MiB':>9} {'peak':>8} {'reserved':>9}  collectives")
    for r in rows:
        if "failed" in r:
            print(f"{r['id']:20} {r['failed']}")
        else:
            print(f"{r['id']:20} {r['measured'] / 2**20:9.1f} {100 * r['peak']:+7.2f}% {100 * r['reserved']:+8.2f}%  {r['difference'] or 'same'}")
    told = [r for r in rows if "failed" not in r]
    for name in ("peak", "reserved"):
        sizes = sorted(abs(r[name]) for r in told) or [0]
        print(f"{name}: median {100 * statistics.median(sizes):.2f} %, worst {100 * sizes[-1]:.2f} %")
    print(f"collectives: {sum(not r['difference'] for r in told)} of {len(rows)}")
    if "--json" in sys.argv:
        pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
