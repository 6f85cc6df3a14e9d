#!/usr/bin/env python3
"""Record the order and the memory of PyTorch FSDP2 (fully_shard) for `foreshard conform`.

    python3 fsdp2.py --out DIR --configs FILE [--only ID ...] [--jobs N]
    torchrun --nproc-per-node 2 fsdp2.py --gloo --out DIR --configs FILE     real tensors and ranks

It records the PyTorch that is installed, 2.4 or later, with or without a GPU. FILE is a JSON list
of configurations; each has an "id" and the settings that differ from DEFAULTS below. One process
per configuration plays one rank of a world of any size: the "fake" process group communicates
nothing, fake tensors have a shape, a dtype and a lifetime but no data.
README.md explains the files that are written, and how to record a model of your own.
"""

import argparse
import csv
import json
import multiprocessing
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist

import versions as V
from training import record
from vocabulary import (
    ALLOCATION_COLUMNS,
    CATEGORIES,
    EVENT_COLUMNS,
    MEMORY_COLUMNS,
    PEAK_COLUMNS,
    UNIT_COLUMNS,
)

DEFAULTS = dict(
    model="llama",  # llama | moe | gpt2 | MODULE:FUNCTION, a model of your own
    layers=4,
    dim=512,
    ffn=1536,
    heads=8,
    kv_heads=4,
    vocab=4096,
    seq=128,
    batch=2,
    experts=8,
    top_k=2,
    tied=False,  # True: [embedding, norm, output] are one unit; "root": they lie in the root
    repeat=1,  # the stack of blocks runs so often in one forward (shared weights)
    attention="flash",  # flash | efficient (for fp32) | sdpa (for real CPU tensors)
    norm="fused",  # fused | composite (for real CPU tensors)
    mesh="8",  # "8": shard over 8; "4x8": HSDP, replicate 4 x shard 8
    rank=0,
    # titan: embedding | blocks | [norm, output] | empty root; blocks: the rest in the root;
    # root: one unit
    grouping="titan",
    layers_per_unit=1,  # fully_shard([block, block, ...])
    expert_units=False,  # the experts of a block are a nested unit
    # reshard_after_forward of blocks and embedding, of [norm, output], of the root; None: not given
    reshard=None,
    reshard_head=False,
    reshard_root=None,
    param_dtype="bf16",  # bf16 | fp16 | fp32 | None, here and in the next three
    reduce_dtype="fp32",
    orig_dtype="fp32",
    output_dtype=None,
    forward_prefetch=0,  # units named in explicit prefetch lists; 0: PyTorch's default
    backward_prefetch=0,
    accumulate=1,  # micro-batches
    # reduce | no_sync | no_sync_no_reshard | no_sync_not_last_backward | not_last_backward |
    # no_all_reduce
    accumulate_mode="reduce",
    recompute="none",  # none | full | every2 (blocks 0, 2, ...) | selective
    recompute_outside=False,  # checkpoint(fully_shard(block)), not fully_shard(checkpoint())
    frozen="none",  # none | first_half (and the embedding) | alternate | embedding
    offload=False,
    embed_unshard_in_backward=True,
    shard_dim1=False,  # matrices are sharded by columns
    ignore_norms=False,
    clip=False,
    optimizer="adamw_foreach",  # adamw_foreach | adamw_fused | sgd
    async_unshard=False,
    divide_factor=None,
    force_sum=False,
    eval_forward=False,  # a forward without gradients before each step
    steps=3,
    trace=False,  # allocations.csv has every allocation (keep such models small)
)
# Knobs of PyTorch 2.13 and later; index.csv has their columns only where a configuration sets them.
NEWER = dict(reduce_scatter_buffers=1, separate_reduce_scatter_group=False)
# Settings that a model of your own does not have: its function does such things itself.
OF_OUR_MODELS = (
    *("tied", "repeat", "grouping", "layers_per_unit", "expert_units"),
    *("recompute", "recompute_outside", "frozen", "embed_unshard_in_backward", "ignore_norms"),
)
KIND, MEM_D = EVENT_COLUMNS.index("kind"), EVENT_COLUMNS.index("mem_D")


# ---- one configuration ----


def complete(config):
    return {**DEFAULTS, **NEWER, **config}


def by_step(rows, steps):
    return {s: [r for r in rows if r[1] == s] for s in range(1, steps + 1)}


def without_step(rows):
    return [[r[0], *r[2:]] for r in rows]


def peaks_of_step(s, p):
    return {
        f"step{s}_peak": p["peak"],
        f"step{s}_peak_unrounded": p["peak_unrounded"],
        **dict(
            zip((f"step{s}_peak_in", f"step{s}_peak_unit", f"step{s}_peak_operator"), p["place"])
        ),
        f"step{s}_end": p["end"],
        f"step{s}_garbage": p["garbage"],
        **{f"step{s}_peak_{pool}": size for pool, size in p["pools"].items()},
    }


def tables_of(config, real):
    """The rows of each file: step 2, and steps 1 and 3 as far as they differ from it."""
    rec, steps, units = record(config, real)
    n, name = config["steps"], config["id"]
    events, memory = by_step(rec.events, n), by_step(rec.memory, n)

    def content(step):
        return without_step(events[step]), without_step(memory[step])

    order = {s: [row[KIND:MEM_D] for row in events[s]] for s in (1, 2) if s in events}
    differ = [s for s in range(3, n + 1) if content(s) != content(2)]
    index = {
        **config,
        "process_groups": rec.process_groups,
        "torch": torch.__version__.split("+")[0],
        "events_per_step": len(events[min(2, n)]),
        "step1_order_equals_step2": order.get(1) == order.get(2),
        "step3_equals_step2": not differ,
    }
    for s, p in enumerate(steps[:2], 1):
        index.update(peaks_of_step(s, p))
    kept = [2, *differ] if index["step1_order_equals_step2"] else [1, 2, *differ]
    return {
        "index": index,
        "events": [row for s in kept for row in events.get(s, [])],
        "memory": [row for s in (1, 2, *differ) for row in memory.get(s, [])],
        "peaks": [
            [name, s, category, p["at_peak"][category], p["categories"][category]]
            for s, p in enumerate(steps[:2], 1)
            for category in CATEGORIES
            if p["categories"][category]
        ],
        "units": [[name, *unit] for unit in units],
        "allocations": rec.allocations,
    }


def work(config, real):
    """tables_of in a process of its own; an error is told as text, not every one can be sent."""
    torch.set_num_threads(1)
    try:
        return tables_of(config, real), None
    except Exception as error:  # noqa: BLE001  a configuration that fails must not lose the others
        return None, "".join(traceback.format_exception(type(error), error, error.__traceback__))


def record_all(configs, jobs):
    """Yields (configuration, tables, reason why there are none); a process for each."""
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        pending = [
            (c, pool.apply_async(work, (c, False)) if V.unsupported(c) is None else None)
            for c in configs
        ]
        for c, result in pending:
            yield (c, *result.get()) if result else (c, None, V.unsupported(c))


# ---- files ----


def read_configs(path, only):
    """The configurations of a JSON file; a model of your own is looked for beside it."""
    sys.path.append(os.path.dirname(os.path.abspath(path)))
    with open(path) as f:
        configs = json.load(f)
    if not all("id" in c for c in configs):
        sys.exit(f"{path}: every configuration needs an id")
    configs = [c for c in configs if not only or c["id"] in only]
    unknown = {k for c in configs for k in c} - set(DEFAULTS) - set(NEWER) - {"id", "note"}
    if unknown:
        sys.exit(
            f"{path}: unknown settings: {', '.join(sorted(unknown))}; "
            f"known: {', '.join([*DEFAULTS, *NEWER])}"
        )
    for c in configs:
        useless = [k for k in OF_OUR_MODELS if k in c]
        if ":" in c.get("model", "") and useless:
            sys.exit(f"{path}: {c['id']}: only the models of models.py have {', '.join(useless)}")
    return configs


def write_configs(directory, configs):
    with open(os.path.join(directory, "configs.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in configs) + "\n]\n")


def write(directory, name, header, rows):
    with open(os.path.join(directory, name + ".csv"), "w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_all(directory, configs, results, skipped):
    newer = list(NEWER) if any(c[k] != NEWER[k] for c in configs for k in NEWER) else []
    columns = ["id", *DEFAULTS, *newer, "note"]
    columns += [
        k
        for k in dict.fromkeys(k for r in results for k in r["index"])
        if k not in columns and k not in NEWER
    ]
    write(directory, "index", columns, [[r["index"].get(k, "") for k in columns] for r in results])
    headers = {
        "events": EVENT_COLUMNS,
        "memory": MEMORY_COLUMNS,
        "peaks": PEAK_COLUMNS,
        "units": UNIT_COLUMNS,
        "allocations": ALLOCATION_COLUMNS,
    }
    for name, header in headers.items():
        write(directory, name, header, [row for r in results for row in r[name]])
    write(directory, "skipped", ["config", "reason"], skipped)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="directory to write into")
    parser.add_argument(
        "--configs", required=True, metavar="FILE", help="JSON list of configurations"
    )
    parser.add_argument("--only", nargs="*", metavar="ID")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--gloo",
        action="store_true",
        help="run on real tensors in the process group that torchrun describes",
    )
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    given = read_configs(args.configs, args.only)
    configs = [complete(c) for c in given]
    os.makedirs(args.out, exist_ok=True)
    if args.gloo:
        dist.init_process_group("gloo")
        done = [(c, *work(c, True)) for c in configs]
        rank = dist.get_rank()
        dist.destroy_process_group()
        if rank:
            return
    else:
        done = record_all(configs, args.jobs)
    results, skipped = [], []
    for c, tables, reason in done:
        if tables is not None:
            results.append(tables)
        else:
            skipped.append((c["id"], reason.strip().splitlines()[-1]))
        print("recorded" if tables else "SKIPPED", c["id"], reason or "", flush=True)
    write_all(args.out, configs, results, skipped)
    write_configs(args.out, given)


if __name__ == "__main__":
    main()
