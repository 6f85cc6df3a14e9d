#!/usr/bin/env python3
"""Memory forecast against published figures: `reports/memory_accuracy.py [--rows FILE] [--id PREFIX] [--as fsdp2]`.

Turns every row of reports/published_memory.csv into a plan, asks `foreshard predict` for its memory and
prints two Markdown tables: rows with published memory, one by one, and for all rows that ran whether the
forecast says so too. Nothing is fitted: a plan follows from the row's columns and from what its training
code did at that date (trainer_habits), with the source of each habit.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import statistics
import sys
import tempfile

from ask import answer

HERE = pathlib.Path(__file__).resolve().parent.parent
GIB = 1 << 30

# h100-96gb-500w: 95.04 GiB visible (pytorch/torchtitan commit 83c879f1: 23.58 GiB = 24.81 %).
GPUS = {"h100-96gb-500w": ("h100-sxm", "95.04GiB")}
ATTENTION = {"fa1": "flash", "fa2": "flash", "fa3": "flash", "triton": "flash", "sdpa_flash": "flash",
             "sdpa": "flash", "cudnn": "cudnn", "sdpa_efficient": "efficient", "math": "math"}
LOSS = {"eager_fp32": "eager", "eager_bf16": "eager-compute", "chunked_fp32": "chunked-8", "fused": "fused",
        "compiled": "compiled"}
COMPILE = {"none": "none", "block": "blocks", "full": "model", "loss_only": "none"}
RECOMPUTE = {"none": "none", "full": "full", "selective_op": "selective"}


def trainer_habits(row):
    """What the training code did that no column says."""
    habits = {}
    # The model returned fp32 logits and the loop kept them until pytorch/torchtitan#391 (2024-06-12).
    if row["stack"] == "torchtitan_2024" and row["commit_date"] < "2024-06-12" and row["loss_impl"] == "eager_fp32":
        habits["logits"] = "held"
    return habits


def model_config(row, path):
    d, heads = int(row["d_model"]), int(row["n_heads"])
    if row["arch"] == "mpt":
        config = {"model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": d, "n_heads": heads,
                  "n_layers": int(row["n_layers"]), "expansion_ratio": int(row["d_ff"]) // d,
                  "vocab_size": int(row["vocab"]), "max_seq_len": max(2048, int(row["seq_len"])),
                  "no_bias": False, "attn_config": {"alibi": True}, "tie_word_embeddings": True}
    else:
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": d,
                  "intermediate_size": int(row["d_ff"]), "num_hidden_layers": int(row["n_layers"]),
                  "num_attention_heads": heads, "num_key_value_heads": int(row["n_kv_heads"] or heads),
                  "vocab_size": int(row["vocab"]), "max_position_embeddings": 131072,
                  "attention_bias": row["arch"] == "internlm",
                  "tie_word_embeddings": row["tied_embeddings"] == "1"}
    path.write_text(json.dumps(config))


def plan_of(row, folder):
    name = row["id"].split()[0]
    model = folder / f"{name}-config.json"
    model_config(row, model)
    cluster = f"{row['n_gpus']}x{row['gpu']}"
    if row["gpu"] in GPUS:
        machine, memory = GPUS[row["gpu"]]
        path = folder / f"{name}-cluster.yaml"
        path.write_text(f"gpus: {row['n_gpus']}\nmachine: {machine}\ngpu: {{memory: {memory}}}\n")
        cluster = str(path)
    recompute = row["recompute"]
    blocks = int(row["n_layers"])
    per_rank = int(row["micro_batch_per_gpu"])
    keys = {
        "runtime": row["runtime"],
        "batch": {"sequence": int(row["seq_len"]), "micro_batch": per_rank,
                  "accumulation": int(row["grad_accum"] or 1)},
        "mesh": {"shard": int(row["shard_group"]), "replicate": int(row["replicate_group"])},
        "recompute": RECOMPUTE.get(recompute, recompute.replace("every_", "every-")),
        "compile": COMPILE[row["compile"]],
        "attention": ATTENTION[row["attention_kernel"]],
        "loss": LOSS[row["loss_impl"]],
        "float8": row["fp8"] if row["fp8"] in ("none", "rowwise") else "tensorwise",
        # Composer gathered in fp32 and computed in bf16 under autocast: what is saved is bf16.
        "dtype": {"param": row["gather_dtype"] if row["arch"] != "mpt" else "bf16",
                  "reduce": row["reduction_dtype"], "master": row["master_dtype"]},
        "optimizer": {"implementation": row["optimizer_impl"].replace("adamw_", "")},
        "host_sync": "step",  # loss.item()
    }
    if row["embedding_unit"] == "root":
        keys["units"] = {"embedding": "root", "head": "root"}
        last = blocks  # behind the root
    else:
        keys["units"] = {"embedding": "own", "head": "with_norm"}
        last = blocks + 1
    keys["reshard_after_forward"] = row["reshard"] if row["reshard"] != "always_except_last" else [
        {"units": "all", "value": "always"}, {"units": last, "value": "never"}]
    keys.update(trainer_habits(row))
    path = folder / f"{name}-plan.json"
    path.write_text(json.dumps({"model": str(model), "cluster": cluster, **keys}))
    return path


def forecast(row, folder, program):
    """The report's memory, or the sentence why there is none."""
    plan = plan_of(row, folder)
    report, error = answer(program, "predict", "--plan", plan)
    return report["memory"] if report else error.splitlines()[-1].replace(str(folder) + "/", "")


def gib(value):
    return f"{value / GIB:.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default=HERE / "reports" / "published_memory.csv")
    parser.add_argument("--id", default="", help="only rows whose id starts so")
    parser.add_argument("--as", dest="runtime", help="forecast rows of other runtimes as this one: an approximation")
    parser.add_argument("--program", default=HERE / "build" / "bin" / "foreshard")
    a = parser.parse_args()
    with open(a.rows, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith(a.id)]
    if a.runtime:
        for row in rows:
            if row["runtime"] != a.runtime:
                row["runtime"], row["id"] = a.runtime, row["id"] + f" (as {a.runtime})"
    with tempfile.TemporaryDirectory() as name, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = pathlib.Path(name)
        answers = list(pool.map(lambda row: forecast(row, folder, a.program), rows))

    print("| row | what | published | forecast | error | active | allocated | error | fits |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    errors = {"reserved": [], "allocated": []}
    for row, memory in zip(rows, answers):
        if not (row["peak_mem_reserved_GiB"] or row["peak_mem_active_GiB"] or row["peak_mem_alloc_GiB"]):
            continue
        what = (f"{row['model']} {row['n_gpus']} GPUs {row['micro_batch_per_gpu']}x{row['seq_len']} "
                f"{row['runtime']}, recompute {row['recompute']}, compile {row['compile']}, "
                f"fp8 {row['fp8']}, loss {row['loss_impl']}")
        if isinstance(memory, str):
            print(f"| {row['id']} | {what} | {row['peak_mem_reserved_GiB']} | {memory} | | | | | |")
            continue
        cells = []
        active = row["peak_mem_alloc_GiB"] or row["peak_mem_active_GiB"]
        for kind, published in (("reserved", row["peak_mem_reserved_GiB"]), ("allocated", active)):
            predicted = memory[f"peak_{kind}_bytes"]["value"]
            error = ""
            if published:
                errors[kind].append(predicted / GIB / float(published) - 1)
                error = f"{100 * errors[kind][-1]:+.1f} %"
            cells.append(f"{published} | {gib(predicted)} | {error}")
        print(f"| {row['id']} | {what} | {' | '.join(cells)} | {'yes' if memory['fits'] else 'NO'} |")
    for kind, list_of in errors.items():
        if list_of:
            print(f"\n{kind}: {len(list_of)} rows, median error {100 * statistics.median(map(abs, list_of)):.1f} %, "
                  f"bias {100 * statistics.median(list_of):+.1f} %, worst {100 * max(list_of, key=abs):+.1f} %")

    groups = {}
    for row, memory in zip(rows, answers):
        key = (row["id"].split("-")[0], row["runtime"])
        groups.setdefault(key, []).append((row, memory))
    print("\n| rows | runtime | ran | forecast to fit | not expressible | first reason |")
    print("|---|---|---:|---:|---:|---|")
    fits = expressible = 0
    misses = []
    for (prefix, runtime), members in groups.items():
        answered = [(row, m) for row, m in members if not isinstance(m, str)]
        refused = [m for _, m in members if isinstance(m, str)]
        good = sum(m["fits"] for _, m in answered)
        misses += [row["id"] for row, m in answered if not m["fits"]]
        fits, expressible = fits + good, expressible + len(answered)
        reason = refused[0][-110:] if refused else ""
        print(f"| {prefix} | {runtime} | {len(members)} | {good} | {len(refused)} | {reason} |")
    if expressible:
        print(f"\n{fits} of {expressible} expressible rows that ran are forecast to fit "
              f"({100 * fits / expressible:.1f} %); not: {', '.join(misses) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
