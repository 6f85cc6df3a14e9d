#!/usr/bin/env python3
"""Exported files against the programs they are for: run by `./x check exports` and `./x test`.

    check.py PROGRAM [--accelerate] [--script] [--skip]

--script: for a few plans, the script of `export --to fsdp2` runs on CPU ranks under Python's torch and
records itself; `validate` then must find every event of the plan in the recording, in the plan's
order, and every collective with its bytes. Over mesh.tp and mesh.ep those inside layers are compared, with their groups; over
mesh.cp, whose attention no host has, one rank runs on the null GPU, and memory is compared too. --accelerate: Accelerate's own
parser reads the YAML. What is not installed is an error, with --skip a printed reason and exit status 77.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

MODELS = {
    "llama": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    # Memory of tensors beside which cuBLAS' workspace is small: on the null GPU they cost nothing.
    "wide": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 128},
    "mixtral": {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 3,
        "mlp_only_layers": [1],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
}

BASE = ["runtime=fsdp2@2.11", "dtype.param=fp32", "mesh.shard=2", "mesh.replicate=1"]
# name, model, ranks, plan keys
PLANS = [
    ("plain", "llama", 2, ["units.head=with_norm"]),
    (
        "lists",
        "llama",
        2,
        ["units.layers_per_unit=2", "prefetch.forward=1", "prefetch.backward=2", "prefetch.blocks_only=true",
         "recompute=every-2"],
    ),
    (
        "deep lists",
        "llama",
        4,
        [
            "mesh.replicate=2",
            "prefetch.forward=2",
            "prefetch.backward=3",
            "batch.accumulation=2",
            "accumulation.all_reduce=last",
        ],
    ),
    (
        "root in lists",
        "gpt2",
        2,
        ["units.embedding=root", "units.head=root", "prefetch.forward=2", "prefetch.backward=2"],
    ),
    (
        "accumulated",
        "gpt2",
        2,
        ["units.embedding=root", "units.head=root", "batch.accumulation=2", "accumulation.mode=keep_unsharded"],
    ),
    ("experts", "mixtral", 2, ["recompute=selective", "reshard_after_forward=never"]),
    ("torchtitan", "llama", 2, ["trainer=torchtitan"]),
    ("tensor parallel", "llama", 4, ["mesh.tp=2"]),
    ("whole logits", "llama", 4, ["mesh.tp=2", "units.head=with_norm", "tensor_parallel.loss=false"]),
    ("gradients kept beside tp", "llama", 4, ["mesh.tp=2", "batch.accumulation=3", "accumulation.mode=keep_unsharded"]),
    ("parts made again", "llama", 4, ["mesh.tp=2", "recompute=[{layers: all, value: full}, {layers: 0-1, value: selective}]"]),
    ("expert parallel", "mixtral", 4, ["mesh.shard=4", "mesh.ep=2", "recompute=selective"]),
    ("experts of some layers", "qwen3_moe", 4, ["mesh.shard=4", "mesh.ep=4", "batch.accumulation=2"]),
    (
        "gradients of experts kept",
        "mixtral",
        4,
        ["mesh.shard=4", "mesh.ep=2", "batch.accumulation=3", "accumulation.mode=keep_unsharded"],
    ),
    ("expert replicas", "mixtral", 8, ["mesh.shard=4", "mesh.replicate=2", "mesh.ep=2", "recompute=full"]),
    ("hsdp", "llama", 4, ["mesh.replicate=2", "optimizer.clip_norm=none", "dtype.param=bf16"]),
    ("transposed", "llama", 4, ["mesh.replicate=2", "mesh.inner=replicate"]),
    (
        "groups",
        "llama",
        4,
        ["mesh.shard=4", "reshard_after_forward=[{units: all, value: 2}, {units: 2, value: never}]"],
    ),
]


# Context parallel on the null GPU, in bf16: rank, world, plan keys.
RING_BASE = ["runtime=fsdp2@2.11", "attention=flash", "mesh.replicate=1"]
RINGS = [
    ("ring", 0, 4, ["mesh.cp=4", "mesh.shard=1", "recompute=selective"]),
    ("ring of exchanges", 3, 4, ["mesh.cp=4", "mesh.shard=1", "context_parallel.rotate=alltoall"]),
    ("ring without balance", 2, 4, ["mesh.cp=4", "mesh.shard=1", "context_parallel.balance=none"]),
    ("rings of shards", 5, 8, ["mesh.cp=2", "mesh.shard=2", "mesh.replicate=2", "recompute=full", "kernels.rope=complex"]),
    (
        "rings of parts",
        3,
        8,
        [
            "mesh.cp=2",
            "mesh.tp=2",
            "mesh.shard=2",
            "batch.accumulation=3",
            "accumulation.mode=keep_unsharded",
            "accumulation.reshard_after_backward=last",
            "accumulation.is_last_backward=last",
        ],
    ),
]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    return done.returncode, done.stdout, done.stderr


def measured_here(program, folder):
    """A profile of this machine, without which nothing recorded on CPU ranks is judged. Its figures are
    rough: times are not what is checked."""
    raw = os.path.join(folder, "raw.json")
    example = os.path.join("models", "examples", "llama-5m.json")
    for command in (
        [program + "-exec", "measure", "--spawn", "2", "--seconds", "0.001", "--model", example,
         "--tokens", "32x1", "--out", raw],
        [program, "calibrate", raw],
    ):  # fmt: skip
        code, _, errors = run(command)
        if code:
            sys.exit(f"{' '.join(command)}: {errors.strip()}")


def judged(program, name, where, recording, job):
    """Over axes: what validate says of the collectives of a step and, on a GPU, of its peak."""
    code, out, errors = run([program, "validate", "--run", recording, "--no-history", "--json", "--max-memory-error", "0.01", *job])
    if not out:
        print(f"FAILED {name}: {errors.strip()}")
        return False
    answer = json.loads(out)
    wrong, memory = answer["collectives"]["differences"], answer["memory"]
    off = f", memory {100 * memory['error']:+.2f} %" if memory else ""
    passed = code == 0 and answer["passed"]
    print(f"{'ok' if passed else 'FAILED'} {name}: {answer['collectives']['compared']} collectives {where}{off} {'; '.join(wrong)}")
    return passed


def words_of(keys):
    return [word for key in keys for word in ("--set", key)]


def check_rings(program, folder):
    """Context parallel, on the null GPU: one rank each."""
    import torch

    null = program + "-null"
    if torch.version.cuda is None or not os.path.exists(null):
        print("not checked: context parallel, which needs a torch with CUDA and foreshard-null")
        return 0
    failures = 0
    config = os.path.join(folder, "wide.json")
    with open(config, "w") as file:
        json.dump(MODELS["wide"], file)
    for name, rank, world, keys in RINGS:
        keys = [*RING_BASE, *keys, f"rank={rank}"]
        job = ["--model", config, "--cluster", f"{world}xh100", "--sequence", "8192", *words_of(keys)]
        script, recording = os.path.join(folder, name + ".py"), os.path.join(folder, name)
        code, _, errors = run([program, "export", "--to", "fsdp2", "--out", script, *job])
        if code == 0:
            play = [null, "--rank", str(rank), "--world", str(world), "--gpu", "h100", "--out", os.path.join(folder, "capture"), "--"]
            code, _, errors = run([*play, sys.executable, script, "--record", recording])
        if code:
            print(f"FAILED {name}: {errors.strip()[-2000:]}")
            failures += 1
            continue
        failures += not judged(program, name, f"of rank {rank} of {world} on the null GPU", recording, job)
    return failures


def check_script(program, folder):
    failures = 0
    os.environ["XDG_DATA_HOME"] = folder
    measured_here(program, folder)
    for name, model, ranks, keys in PLANS:
        config = os.path.join(folder, model + ".json")
        with open(config, "w") as file:
            json.dump(MODELS[model], file)
        job = ["--model", config, "--cluster", "local", "--sequence", "32", *words_of([*BASE, *keys])]
        script, recording = os.path.join(folder, name + ".py"), os.path.join(folder, name)
        code, _, errors = run([program, "export", "--to", "fsdp2", "--out", script, *job])
        if code == 0:
            balanced = ["--balanced"] if any(key.startswith("mesh.ep=") for key in keys) else []
            code, _, errors = run([sys.executable, script, "--record", recording, *balanced])
        if code:
            print(f"FAILED {name}: {errors.strip()[-2000:]}")
            failures += 1
            continue
        if any(key.startswith(("mesh.tp=", "mesh.ep=")) for key in keys):
            failures += not judged(program, name, f"on {ranks} ranks", recording, job)
            continue
        code, out, errors = run([program, "validate", "--run", recording, "--no-history", "--json", *job])
        if code not in (0, 5):  # times are those of another machine
            print(f"FAILED {name}: {errors.strip()}")
            failures += 1
            continue
        trace = json.loads(out)["trace"]
        wrong = trace["order"] + trace["missing"] + trace["collectives"]["differences"]
        wrong += [] if trace["collectives"]["compared"] else ["no collective was recorded"]
        print(
            f"{'FAILED' if wrong else 'ok'} {name}: {trace['collectives']['compared']} collectives "
            f"on {ranks} ranks {'; '.join(wrong)}"
        )
        failures += bool(wrong)
    return failures + check_rings(program, folder)


def plugin_of(path):
    """What `accelerate launch` makes of a file, and FullyShardedDataParallelPlugin of that: (plugin,
    environment). The plugin of FSDP1 is None: it wants a GPU."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    parsed = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    environment = prepare_multi_gpu_env(_validate_launch_command(parsed)[0])
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        plugin = FullyShardedDataParallelPlugin() if environment.get("FSDP_VERSION") == "2" else None
        return plugin, environment
    finally:
        os.environ.clear()
        os.environ.update(before)


# runtime, plan keys, and what Accelerate must make of them
ACCELERATE = [
    ("fsdp2", [], {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": False}),
    (
        "fsdp2",
        ["mesh.shard=8", "reshard_after_forward=never", "recompute=full", "offload=cpu"],
        {
            "fsdp_version": 2,
            "reshard_after_forward": False,
            "activation_checkpointing": True,
            "cpu_offload": "CPUOffloadPolicy",
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": "8",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
        },
    ),
    ("fsdp1", [], {"FSDP_SHARDING_STRATEGY": "FULL_SHARD", "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE"}),
    ("fsdp1", ["reshard_after_forward=never"], {"FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"}),
    ("fsdp1", ["mesh.shard=8"], {"FSDP_SHARDING_STRATEGY": "HYBRID_SHARD"}),
    ("ddp", [], {}),
    ("zero2", [], {}),
    ("zero3", [], {}),
]


def check_accelerate(program, folder):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    failures = 0
    for number, (runtime, keys, wanted) in enumerate(ACCELERATE):
        path = os.path.join(folder, f"accelerate_{number}.yaml")
        job = ["--model", "llama-3.1-8b", "--cluster", "16xh100", "--runtime", runtime]
        for key in keys:
            job += ["--set", key]
        name = " ".join([runtime, *keys])
        code, _, errors = run([program, "export", "--to", "accelerate", "--out", path, *job])
        try:
            if code:
                raise RuntimeError(errors.strip())
            config = load_config_from_file(path)
            assert config.num_processes == 16, config.num_processes
            if wanted:
                plugin, environment = plugin_of(path)
                for key, value in wanted.items():
                    made = environment.get(key) if key.isupper() else getattr(plugin, key)
                    made = getattr(made, "name", made)  # of an enumeration
                    if key == "cpu_offload":
                        made = type(made).__name__
                    assert made == value, f"{key} is {made!r} and not {value!r}"
            if runtime.startswith("zero"):
                settings = path + ".json"
                code, _, errors = run([program, "export", "--to", "deepspeed", "--out", settings, *job])
                if code:
                    raise RuntimeError(errors.strip())
                read = HfDeepSpeedConfig(settings)
                assert read.get_value("zero_optimization.stage") == int(runtime[-1])
                assert read.is_zero3() == (runtime == "zero3") and not read.is_offload()
                assert read.get_value("train_batch_size") == 16
            print(f"ok accelerate {name}: {config.distributed_type}")
        except Exception as error:  # whatever the parser says of the file
            print(f"FAILED accelerate {name}: {type(error).__name__}: {error}")
            failures += 1
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--script", action="store_true")
    parser.add_argument("--skip", action="store_true")
    arguments = parser.parse_args()
    for module, wanted in (("torch", arguments.script), ("accelerate", arguments.accelerate)):
        if wanted and importlib.util.find_spec(module) is None:
            print(f"not checked: {sys.executable} has no {module}")
            return 77 if arguments.skip else 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        if arguments.script:
            failures += check_script(arguments.program, folder)
        if arguments.accelerate:
            failures += check_accelerate(arguments.program, folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
