#!/usr/bin/env python3
"""Collectives of plans of runtime megatron, in order and bytes, against what Megatron-Core itself asked of NCCL.

    tests/presets/megatron_core.py BIN [NAME ...]            against megatron_core.json.xz, as recorded
    tests/presets/megatron_core.py BIN [NAME ...] --record   runs megatron_train.py under BIN/foreshard-null and keeps what it did

A case of megatron_core.json is run as each of its `ranks`; its name begins with its layers and model; what it does not say is Megatron-Core's default. `within_layers`:
buckets end inside of layers, where a plan reduces them behind the layer; their order is not compared. `layers: te`: with
TransformerEngine's layers, whose peak is compared, too. Recorded with megatron-core 0.16.1, TransformerEngine 2.11 and
PyTorch 2.11. Of experts' rows, rings and heads for positions NCCL sees sends: their bytes are summed. Not compared: exchanges
between stages, sums that one rank makes alone.
"""
import argparse
import json
import lzma
import os
import pathlib
import sys
import tempfile

from held import KINDS, ask, captured, last_lines, same, scheduled, step_collectives

MEMORY = 0.0015  # of the peak (tables of positions are not modelled)
STEPS = 3
HERE = pathlib.Path(__file__).parent
KEPT = HERE / "megatron_core.json.xz"
COMMON = {"num_attention_heads": 8, "vocab_size": 51200}
LLAMA = COMMON | {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_key_value_heads": 4,
                  "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}
CONFIGS = {
    "gpt": COMMON | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 512,
                     "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True},
    "llama": LLAMA | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mixtral": LLAMA | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek": LLAMA | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 256,
                         "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8,
                         "num_experts_per_tok": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 4, "n_shared_experts": 0}}


def filled(name, case):
    words = name.replace(",", "").split(" ")
    te = words[0] == "te"
    return {"model": words[te], "bucket": 8000000, "ranks": [1]} | ({"layers": "te"} if te else {}) | case


def plan(case, rank, config):
    """The words of `foreshard schedule` that say the same."""
    of = case.get
    axes = {axis: of(axis, 1) for axis in ("tp", "pp", "cp", "ep", "etp", "replicate")}
    keys = {f"mesh.{axis}": size for axis, size in axes.items()}
    keys["mesh.shard"] = case["world"] // (axes["tp"] * axes["pp"] * axes["cp"] * axes["replicate"])
    keys |= {"megatron.bucket_size": case["bucket"], "megatron.overlap_param_gather": of("gathers_beside", False),
             "megatron.overlap_grad_reduce": of("reduces_beside", True), "megatron.distributed_optimizer": of("shards", True),
             "dtype.reduce": of("reduce", "fp32"), "rank": rank, "recompute": of("recompute", "none")}
    if of("layers") != "te":
        keys |= {"attention": "eager", "compile": "none"}
    fused = {"te": "fused", "native": "compiled"}[of("entropy", "native")]
    keys["loss"] = fused if of("layers") == "te" and not of("experts") else "eager"
    if of("fp8"):
        keys["float8"] = {"tensorwise": "current"}.get(case["fp8"], case["fp8"])
    if axes["cp"] > 1:
        keys["context_parallel.rotate"] = {"p2p": "alltoall", "all_gather": "allgather", "a2a": "ulysses"}[of("cp_comm", "p2p")]
    if axes["tp"] > 1:
        keys["tensor_parallel.sequence"] = of("sequence", True)
    if of("chunks", 1) > 1:
        keys |= {"pipeline.schedule": "Interleaved1F1B", "pipeline.stages_per_rank": case["chunks"]}
    said = ["--model", config, "--cluster", f"{case['world']}x{of('gpu', 'h100')}", "--runtime", "megatron", "--sequence", of("sequence_length", 512), "--micro-batch", 2,
            "--accumulation", of("micro_batches", 4)]
    return said + [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value) if isinstance(value, bool) else value}")]


def record(folder, case, rank):
    with tempfile.TemporaryDirectory() as temporary:
        environment = os.environ | {"MEGATRON_CASE": json.dumps(case), "CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUBLAS_WORKSPACE_CONFIG": ":0:0"}
        out = pathlib.Path(temporary) / "capture"
        flags = ["--rank", rank, "--world", case["world"], "--gpu", case.get("gpu", "h100")] + (["--values"] if case.get("experts") else [])
        ran = captured(folder, out, flags, [HERE / "megatron_train.py"], env=environment)
        if ran.returncode != 0:
            sys.exit(last_lines(ran))
        last = [line for line in ran.stdout.splitlines() if line.startswith("STEP ")][-1]
        return {"peak": json.loads(last[5:])["requested"], "sent": sent(out), "collectives": collectives(out)}


def sent(capture):
    """Bytes a step to other ranks one by one: rows of experts, rings, heads for positions (each step is as the others)."""
    names, whole = {}, 0
    for line in (capture / "calls.txt").read_text().splitlines():
        letter, *rest = line.split(" ")
        if letter == "N":
            names[rest[0]] = rest[1]
        elif letter == "X" and names[rest[4]] in ("send", "all_to_all"):
            whole += int(rest[5])
    return whole // STEPS


def collectives(capture):
    return [[kind, max(sent, received)] for kind, _, sent, received, _, ranks, _ in step_collectives(capture, norm=0)
            if kind in KINDS and ranks > 1 and max(sent, received) > 0]


def memory(program, case, words, seen):
    """How far the peak is off; of TransformerEngine's layers, without its workspaces (one, and four for grouped products)."""
    if case.get("layers") != "te" or case.get("pp", 1) > 1:  # a forecast shows the fullest stage
        return None
    workspaces = (5 if case.get("experts") else 1) * (32 * 1024 * 1024 + 1024)
    return ask(program, "predict", *words)["memory"]["peak_allocated_bytes"]["value"] / (seen["peak"] - workspaces) - 1


def from_the_end(seen, told):
    """A capture's step ends with the optimizer, a plan's with the gathers behind it."""
    behind = next((i for i, (kind, _) in enumerate(reversed(told)) if kind != "all_gather"), 0)
    ends_with_them = all(kind == "all_gather" for kind, _ in seen[len(seen) - behind:])  # of the experts' optimizer, too
    return seen[behind:] + ([] if ends_with_them else seen[:behind])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="BIN")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    cases = {name: filled(name, case) for name, case in json.loads((HERE / "megatron_core.json").read_text()).items()}
    kept = json.loads(lzma.decompress(KEPT.read_bytes())) if KEPT.exists() else {}
    wrong = 0
    for name, case in cases.items():
        for rank in case["ranks"] if not args.names or name in args.names else []:
            key = f"{name}/{rank}"
            if args.record:
                kept[key] = record(args.folder, case, rank)
                KEPT.write_bytes(lzma.compress(json.dumps(kept, separators=(",", ":")).encode(), preset=9))
            with tempfile.TemporaryDirectory() as temporary:
                config = pathlib.Path(temporary) / "config.json"
                config.write_text(json.dumps(CONFIGS[case["model"]]))
                words = plan(case, rank, config)
                told = scheduled(args.folder / "foreshard", *words, kinds=KINDS)
                exchanged = sum(size for _, size in scheduled(args.folder / "foreshard", *words, kinds=("all_to_all",)))
                off = memory(args.folder / "foreshard", case, words, kept[key])
            seen = from_the_end([tuple(each) for each in kept[key]["collectives"]], told)
            difference = same(*((sorted(seen), sorted(told)) if case.get("within_layers") else (seen, told)))
            if case.get("pp", 1) == 1 and "sent" in kept[key] and kept[key]["sent"] != exchanged:
                difference += f" {exchanged} bytes exchanged instead of {kept[key]['sent']}"
            wrong += bool(difference) or (off is not None and abs(off) > MEMORY)
            print(f"{key:32} {len(seen):5} collectives  {difference or 'the same'}{f', peak {100 * off:+.2f} %' if off is not None else ''}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
