#!/usr/bin/env python3
"""Forecasts of codes that ran on a GPU here and set no constant, against what they took: a table.

    reports/gpu_codes.py ROUND [build/bin/foreshard]

ROUND holds codes.jsonl and configs/ as exec/gpu/code_steps.py leaves them; the GPU is the one that round.json beside
it names. Each model is given as its config.json, the plan in the words of somebody who knows the script: runtime,
stack, sizes, checkpointing. Steps at world above 1 ran without a network; the forecast's exposed communication is
taken off.
"""
import json
import math
import pathlib
import statistics
import subprocess
import sys

DTYPE = {"bfloat16": "bf16", "float32": "fp32"}


def words(row, folder, gpu):
    c = row["case"]
    plain = c["plain"]
    said = ["--model", str(folder / "configs" / row["name"] / "config.json"), "--cluster", f"{c['world']}x{gpu}", "--runtime",
            "ddp" if plain else "fsdp2@2.11", "--sequence", str(c["sequence"]), "--micro-batch", str(c["batch"])]
    keys = {"stack": "hf_trainer", "host_sync": "none"}
    if c["attention"] == "eager":
        keys["attention"] = "eager"
    if c["checkpoint"]:
        keys.update({"recompute": "full", "recompute_early_stop": "true"})
    if c["accumulation"] > 1:
        keys["batch.accumulation"] = c["accumulation"]
    if not c["fused"]:
        keys["optimizer.implementation"] = "foreach"
    if plain:
        keys["dtype.param"] = DTYPE[plain]
        keys["dtype.master"] = DTYPE[plain]
    else:
        keys["trainer"] = "accelerate"
    if c["compiled"]:
        keys["compile"] = "blocks"
    if c["loop"] == "loop":
        keys["logits"] = "held"
    if c["lora"]:  # the base in fp32, as the script makes it
        keys.update({"lora.rank": 16, "lora.base": "master", "lora.targets": "[q_proj, k_proj, v_proj, o_proj]"})
    keys.update(dict(pair.split("=") for pair in c.get("predict", [])))
    for key, value in keys.items():
        said += ["--set", f"{key}={value}"]
    return said


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    program = sys.argv[2] if len(sys.argv) > 2 else "build/bin/foreshard"
    gpu = json.loads((folder.parent / "round.json").read_text(encoding="utf-8"))["gpu"]
    print(f"{'code':28} {'step ms':>9} {'forecast':>9} {'off':>7} in  {'kernels':>8} {'GiB':>6} {'off':>7} {'reserved':>8}")
    errors, memory, reserved, inside = [], [], [], 0
    for line in (folder / "codes.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["status"] != "ok":
            continue
        said = words(row, folder, gpu)
        done = subprocess.run([program, "predict", *said, "--json"], capture_output=True, text=True)
        if not done.stdout:
            print(f"{row['name']:28} {done.stderr.strip().splitlines()[:2]}")
            continue
        report = json.loads(done.stdout)
        step = report["step"]
        alone = step["exposed_communication_s"]["value"] if row["case"]["world"] > 1 else 0
        value, low, high = (step["seconds"][k] - alone for k in ("value", "low", "high"))
        seen = row["step_s"]
        errors.append(value / seen - 1)
        inside += low <= seen <= high
        a = report["memory"]["peak_allocated_bytes"]["value"] / row["peak_allocated_bytes"] - 1
        r = report["memory"]["peak_reserved_bytes"]["value"] / row["peak_reserved_bytes"] - 1
        memory.append(a)
        reserved.append(r)
        print(f"{row['name']:28} {seen * 1e3:9.1f} {value * 1e3:9.1f} {100 * errors[-1]:+6.1f}% {'y' if low <= seen <= high else 'n'}  {row['kernels_s'] * 1e3:8.1f} "
              f"{row['peak_allocated_bytes'] / 2**30:6.2f} {100 * a:+6.1f}% {100 * r:+6.1f}%")
    for name, e in (("step", errors), ("allocated", memory), ("reserved", reserved)):
        sizes = sorted(abs(x) for x in e)
        print(f"{name}: median {100 * statistics.median(sizes):.1f} %, worst {100 * sizes[-1]:.1f} %, mean {100 * statistics.mean(e):+.1f} %")
    print(f"inside the 90 % interval: {inside} of {len(errors)}")


if __name__ == "__main__":
    main()
