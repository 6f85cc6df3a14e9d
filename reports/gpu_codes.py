#!/usr/bin/env python3
"""Forecasts of codes that ran on a GPU here and set no constant, against what they took: a table.

    reports/gpu_codes.py ROUND [build/bin/foreshard] [--frozen FILE]
    reports/gpu_codes.py --freeze FILE GPU LIST [build/bin/foreshard]    forecasts of a list of cases before they run (transformers)

ROUND holds codes.jsonl and configs/ as exec/gpu/code_steps.py leaves them; the GPU is the one that round.json beside
it names. Each model is given as its config.json, the plan in the words of somebody who knows the script: runtime,
stack, sizes, checkpointing. Steps at world above 1 ran without a network; the forecast's exposed communication, and what
collectives cost the kernels beside them, are taken off, and what stands for them on the GPU is added.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

PROGRAM = "build/bin/foreshard"
DTYPE = {"bfloat16": "bf16", "float32": "fp32"}


def words(name, c, folder, gpu):
    """Of the case `c`, whose config.json lies in the folder."""
    plain, axes, runtime = c["plain"], c.get("axes"), c.get("runtime", "fsdp2")
    said = ["--model", str(folder / "configs" / name / "config.json"), "--cluster", f"{c['world']}x{gpu}", "--runtime",
            "ddp" if plain else f"{runtime}@2.11", "--micro-batch", str(c["batch"])]
    if c["sequence"]:
        said += ["--sequence", str(c["sequence"])]
    keys = {"stack": "hf_trainer", "host_sync": "none"}
    if axes:  # modules of PyTorch itself, in a loop of one's own
        keys.update({"stack": "none", "units.head": "with_norm", "kernels.rope": "real", "optimizer.implementation": "fused"})
        keys.update({f"mesh.{axis}": size for axis, size in axes.items()})
    if c["attention"] in ("eager", "flash"):  # SDPBackend.FLASH_ATTENTION alone, where PyTorch would take cuDNN's
        keys["attention"] = {"eager": "eager", "flash": "fa2"}[c["attention"]]
    if c["checkpoint"]:
        keys.update({"recompute": "full", "recompute_early_stop": "true"})
    if c["accumulation"] > 1:
        keys["batch.accumulation"] = c["accumulation"]
        if runtime == "ddp" and not plain:  # Accelerator.accumulate
            keys["accumulation.mode"] = "keep_unsharded"
    if c["optimizer"] != "adamw":
        keys["optimizer.kind"] = c["optimizer"]
    if not c["fused"]:
        keys["optimizer.implementation"] = "foreach"
    if plain:
        keys["dtype.param"] = DTYPE[plain]
        keys["dtype.master"] = DTYPE[plain]
    elif not axes and runtime != "ddp":
        keys["trainer"] = "accelerate"
    if c.get("padded"):
        keys["batch.padded"] = "true"
    if c.get("replicas", 1) > 1:
        keys.update({"mesh.replicate": c["replicas"], "mesh.shard": c["world"] // c["replicas"]})
    if c.get("offload"):
        keys["offload"] = "cpu"
    if c.get("experts") == "eager":
        keys["experts"] = "loop"
    if c["compiled"]:
        keys["compile"] = "model" if c["compiled"] == "model" else "blocks"
    if c["loop"] == "loop":
        keys["logits"] = "held"
    if c["lora"]:  # the base in fp32, as the script makes it
        keys.update({"lora.rank": 16, "lora.base": "master", "lora.targets": "[q_proj, k_proj, v_proj, o_proj]"})
    config = json.loads((folder / "configs" / name / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") in ("t5", "mt5", "umt5") and (5, 15) <= tuple(map(int, config["transformers_version"].split(".")[:2])) <= (5, 19):
        keys["kernels.strided_bias"] = "true"  # docs/stacks.md
    keys.update(dict(pair.split("=") for pair in c.get("predict", [])))
    for key, value in keys.items():
        said += ["--set", f"{key}={value}"]
    return said


def stand_ins(explained):
    """Seconds of the kernels that stand for FSDP's collectives (fsdp2_steps.wire), beyond what the GPU waits for its host.

    A gather is an elementwise kernel over a broadcast shard, 2.4 ps for each element of 16 bits that it writes (two codes on an
    H200). A reduce-scatter reads all gradients once. Both fill the GPU: kernels beside them wait.
    """
    if not explained["report"]["plan"]["runtime"].startswith("fsdp"):
        return 0
    busy = {kind: sum(c["busy_s"] for c in explained["communication"] if c["what"].startswith(kind)) for kind in ("all_gather", "reduce_scatter")}
    moved = sum(axis["bytes"] for axis in explained["axes"] if axis["communicator"] == "shard") / (sum(busy.values()) or 1)
    gathered, reduced = (moved * seconds for seconds in busy.values())
    return max(gathered / 2 * 2.4e-12 + reduced / 3e12 - explained["host_work"]["held_up_s"], 0)


def forecast(program, said):
    """What is judged: [value, low, high] of seconds and bytes; a text where it is refused."""
    done = subprocess.run([program, "explain", *said, "--json"], capture_output=True, text=True)
    if not done.stdout:
        return " ".join(done.stderr.split())
    explained = json.loads(done.stdout)
    report = explained["report"]
    step, exposed = report["step"]["seconds"], report["step"]["exposed_communication_s"]
    # Without a network the step is still as long as its host is busy.
    most = max(step["value"] - explained["host_work"]["busy_s"], 0)
    network = {k: min(exposed[k] + explained["overlap_slowdown_s"], most) for k in ("value", "low", "high")}
    copies = {k: stand_ins(explained) for k in network}
    found = {"step_s": step, "exposed_s": network, "copies_s": copies,
             "peak_allocated_bytes": report["memory"]["peak_allocated_bytes"], "peak_reserved_bytes": report["memory"]["peak_reserved_bytes"]}
    return {name: [float(f"{one[k]:.5g}") for k in ("value", "low", "high")] for name, one in found.items()}


def freeze(program, gpu, file, which):
    """Forecasts of a list of exec/gpu/code_steps.py before it runs."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "exec" / "gpu"))
    import code_steps
    import transformers
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for c in code_steps.LISTS[which]:
            config = code_steps.config_of(transformers, c)
            config.architectures = [code_steps.class_of(transformers, c).__name__]
            config.save_pretrained(pathlib.Path(scratch) / "configs" / c["name"])
            said = words(c["name"], c, pathlib.Path(scratch), gpu)
            found = forecast(program, said)
            lines.append(json.dumps({"name": c["name"], "forecast": found}).replace(".0,", ",").replace(".0]", "]"))
            print(c["name"], *said[2:], found)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    args = sys.argv[1:]
    if not args:
        raise SystemExit(__doc__)
    if args[0] == "--freeze":
        return freeze(args[4] if len(args) > 4 else PROGRAM, args[2], pathlib.Path(args[1]), args[3])
    frozen = {}
    if "--frozen" in args:
        at = args.index("--frozen")
        frozen = {row["name"]: row["forecast"] for row in map(json.loads, open(args[at + 1], encoding="utf-8"))}
        del args[at:at + 2]
    folder = pathlib.Path(args[0])
    program = args[1] if len(args) > 1 else PROGRAM
    gpu = json.loads((folder.parent / "round.json").read_text(encoding="utf-8"))["gpu"]
    print(f"{'code':31} {'step ms':>9} {'forecast':>9} {'off':>7} in  {'kernels':>8} {'GiB':>6} {'off':>7} {'reserved':>8}")
    errors, memory, reserved, inside = [], [], [], 0
    for line in (folder / "codes.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["status"] != "ok":
            continue
        said = forecast(program, words(row["name"], row["case"], folder, gpu))
        if frozen and isinstance(said, dict):
            said = frozen.get(row["name"], {}) | {"copies_s": said["copies_s"]}
        if not isinstance(said, dict):
            print(f"{row['name']:31} {said}")
            continue
        alone = said["exposed_s"][0] - said["copies_s"][0] if row["case"]["world"] > 1 else 0
        value, low, high = (seconds - alone for seconds in said["step_s"])
        seen = row["step_s"]
        errors.append(value / seen - 1)
        inside += low <= seen <= high
        a, r = (said[k][0] / row[k] - 1 for k in ("peak_allocated_bytes", "peak_reserved_bytes"))
        memory.append(a)
        reserved.append(r)
        print(f"{row['name']:31} {seen * 1e3:9.1f} {value * 1e3:9.1f} {100 * errors[-1]:+6.1f}% {'y' if low <= seen <= high else 'n'}  {row['kernels_s'] * 1e3:8.1f} "
              f"{row['peak_allocated_bytes'] / 2**30:6.2f} {100 * a:+6.1f}% {100 * r:+6.1f}%")
    for name, e in (("step", errors), ("allocated", memory), ("reserved", reserved)):
        sizes = sorted(abs(x) for x in e)
        print(f"{name}: median {100 * statistics.median(sizes):.1f} %, worst {100 * sizes[-1]:.1f} %, mean {100 * statistics.mean(e):+.1f} %")
    print(f"inside the 90 % interval: {inside} of {len(errors)}")


if __name__ == "__main__":
    main()
