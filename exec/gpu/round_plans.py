"""What the round runs: models, plans, FSDP2's configurations, and which of them stand beside each other."""

ONE = dict(model="tinyllama-1.1b", sequence=2048, micro_batch=4)
EIGHT = dict(model="llama-3-8b", sequence=8192, micro_batch=1)
# Models and shapes that `measure` never saw.
THREE = dict(model="llama-3.2-3b", sequence=4096, micro_batch=2)
SEVEN = dict(model="llama-2-7b", sequence=4096, micro_batch=2)
GPT2 = dict(model="gpt2-large", sequence=1024, micro_batch=8)


def plan(name, base, gpus, pace=1, graph=False, **keys):
    return dict(base, name=name, gpus=gpus, pace=pace, graph=graph, set=keys)


# What runs again in backward is bound by memory alone; gradients lie where activations did, in segments that grow.
DOTS = {"recompute": "selective", "recompute_keeps": "dots", "allocator": "expandable_segments:True"}

# The fixed set of plans, most useful first. One GPU runs rank 0 of each; more than one rank is paced.
PLANS = [
    plan("1b-world-1", ONE, 1),
    plan("8b-shard-64", EIGHT, 64),
    plan("8b-shard-64-free", EIGHT, 64, pace=0),
    plan("8b-shard-64-free-cudnn", EIGHT, 64, pace=0, attention="cudnn"),
    plan("1b-world-1-cudnn", ONE, 1, attention="cudnn"),
    plan("8b-shard-64-free-cudnn-dots", EIGHT, 64, pace=0, attention="cudnn", **DOTS),
    plan("8b-shard-64-free-cudnn-some", EIGHT, 64, pace=0, attention="cudnn",
         **dict(DOTS, recompute="[{layers: 0-16, value: selective}, {layers: 17-31, value: none}]")),
    plan("1b-world-1-cudnn-dots", ONE, 1, attention="cudnn", **DOTS),
    plan("1b-world-1-cudnn-lean", ONE, 1, attention="cudnn", **dict(DOTS, recompute="[{layers: 0-3, value: full}, {layers: 4-21, value: selective}]")),
    plan("3b-shard-16", THREE, 16),
    plan("7b-shard-32-cudnn", SEVEN, 32, attention="cudnn"),
    plan("gpt2-large-world-1", GPT2, 1),
    plan("8b-shard-64-cudnn", EIGHT, 64, attention="cudnn"),
    plan("8b-shard-64-recompute", EIGHT, 64, recompute="full"),
    plan("8b-shard-64-graph", EIGHT, 64, graph=True),
    plan("1b-world-1-graph", ONE, 1, graph=True),
    plan("8b-shard-64-offload", EIGHT, 64, offload="cpu"),
    plan("8b-shard-64-prefetch-0", EIGHT, 64, **{"prefetch.forward": 0, "prefetch.backward": 0}),
    plan("1b-shard-8", ONE, 8),
    plan("8b-shard-512", EIGHT, 512),
    plan("8b-hsdp-8x8", EIGHT, 64, **{"mesh.shard": 8, "mesh.replicate": 8}),
    plan("1b-shard-64-accumulate-4", ONE, 64, **{"batch.accumulation": 4}),
    plan("1b-world-1-again", ONE, 1),
    plan("8b-shard-64-prefetch-2", EIGHT, 64, **{"prefetch.forward": 2, "prefetch.backward": 2}),
    plan("1b-shard-64", ONE, 64),
    plan("1b-hsdp-8x8", ONE, 64, **{"mesh.shard": 8, "mesh.replicate": 8}),
    plan("8b-shard-256", EIGHT, 256),
    plan("8b-shard-64-never", EIGHT, 64, reshard_after_forward="never"),
    plan("1b-shard-64-prefetch-0", ONE, 64, **{"prefetch.forward": 0, "prefetch.backward": 0}),
    plan("1b-shard-64-prefetch-2", ONE, 64, **{"prefetch.forward": 2, "prefetch.backward": 2}),
    plan("1b-shard-64-accumulate-4-kept", ONE, 64, **{"batch.accumulation": 4, "accumulation.mode": "keep_unsharded"}),
    plan("1b-shard-64-reduce-bf16", ONE, 64, **{"dtype.reduce": "bf16"}),
    plan("1b-shard-512", ONE, 512),
    plan("1b-shard-8-recompute", ONE, 8, recompute="full"),
]

# The engine beside FSDP2, best of each side: collectives move their bytes in the GPU on both, and take no further time.
BESIDE = [("1b, world 1", ["1b-world-1", "1b-world-1-cudnn"], ["1b-world-1-default", "1b-world-1-tuned"]),
          ("8b, shard 64, free network", ["8b-shard-64-free", "8b-shard-64-free-cudnn"],
           ["8b-world-64-default", "8b-world-64-tuned"]),
          ("1b, world 1, dots, four blocks whole", ["1b-world-1-cudnn-lean"], ["1b-world-1-default", "1b-world-1-tuned"]),
          ("1b, world 1, dots", ["1b-world-1-cudnn-dots"], ["1b-world-1-default", "1b-world-1-tuned"]),
          ("8b, shard 64, free network, dots", ["8b-shard-64-free-cudnn-dots"],
           ["8b-world-64-default", "8b-world-64-tuned"]),
          ("8b, shard 64, free network, dots in 17 of 32 blocks", ["8b-shard-64-free-cudnn-some"],
           ["8b-world-64-default", "8b-world-64-tuned"])]

# FSDP2 beside it: (name, base, world, variant, recompute).
FSDP2 = [
    ("1b-world-1-default", ONE, 1, "default", "none"),
    ("8b-world-64-default", EIGHT, 64, "default", "none"),
    ("1b-world-1-tuned", ONE, 1, "tuned", "none"),
    ("8b-world-64-tuned", EIGHT, 64, "tuned", "none"),
    ("1b-world-1-flash", ONE, 1, "flash", "none"),
    ("8b-world-64-flash", EIGHT, 64, "flash", "none"),
    ("8b-world-64-recompute", EIGHT, 64, "default", "full"),
    ("1b-world-8-default", ONE, 8, "default", "none"),
    ("8b-world-512-default", EIGHT, 512, "default", "none"),
]


def fsdp2_plan(base, world, variant, recompute):
    """What fsdp2_steps.py runs, as the forecast is asked for it."""
    keys = {"stack": "none", "recompute": recompute, "units.head": "with_norm", "optimizer.implementation": "fused"}
    if variant == "flash":
        keys["attention"] = "fa2"
    if variant == "tuned":
        keys.update({"attention": "cudnn", "compile": "blocks", "loss": "compiled", "kernels.rope": "real"})
    return dict(base, gpus=world, set=keys)


def words_of(p, runtime, gpu):
    """The plan as words of a command."""
    words = ["--model", p["model"], "--cluster", f"{p['gpus']}x{gpu}", "--runtime", runtime, "--sequence", p["sequence"],
             "--micro-batch", p["micro_batch"]]
    for key, value in p["set"].items():
        words += ["--set", f"{key}={value}"]
    return words


# The stand-in's: models/examples/llama-5m.json. Processors without bf16 take a second for 200 tokens of it.
TINY = dict(model=None, sequence=8, micro_batch=1)
STANDIN_PLANS = [plan("tiny-world-1", TINY, 1), plan("tiny-shard-8", TINY, 8),
                 plan("tiny-shard-8-graph", TINY, 8, graph=True), plan("tiny-shard-8-offload", TINY, 8, offload="cpu"),
                 plan("tiny-hsdp-2x2", TINY, 4, **{"mesh.shard": 2, "mesh.replicate": 2})]
STANDIN_FSDP2 = [("tiny-world-1", dict(model="tiny", sequence=32, micro_batch=1), 1, "default", "none")]
