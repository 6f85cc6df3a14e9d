#!/usr/bin/env python3
"""Steps of codes that no preset was made from: transformers' models under Accelerate and plain PyTorch, on one GPU.

    python3 code_steps.py --out codes.jsonl [--only NAME,...] [--seconds 300]

Each case is a process forked before CUDA starts. It writes one row: the step (median of eight), the same code on
64 tokens (what the host needs for a step: nothing else is left), peaks of the allocator, and one profiled step's
kernels by name. `configs/NAME/config.json` beside the rows is what `foreshard predict --model` is given,
`predict` of a row the other words (reports/gpu_codes.py joins the two). A world above 1 is rank 0 of it over the
fake process group, as in fsdp2_steps.py: collectives move their bytes inside the GPU.

--of takes another list of code_cases.json; of the fresh ones some are over axes (axes_steps.py). Without a round.json
beside the rows' folder one is written that names the GPU.

Needs torch 2.11, transformers 5 and accelerate 1.13 or newer; random weights and tokens.
"""
import argparse
import collections
import json
import os
import pathlib
import signal
import statistics
import sys
import time

# Asking whether there is a GPU must not start CUDA before a fork.
os.environ.update(PYTORCH_NVML_BASED_CUDA_CHECK="1", HF_HUB_OFFLINE="1", TORCH_NCCL_ENABLE_MONITORING="0",
                  TOKENIZERS_PARALLELISM="false")

HOST_TOKENS = 64
WARMUP, STEPS = 3, 8


def case(name, model, sequence, batch, **more):
    """loop: trainer (as Trainer.compute_loss: outputs dropped, the number of items given) or loop (outputs held);
    plain: not wrapped, `dtype` parameters. runtime: who wraps it under Accelerate. checkpoint: gradient checkpointing.
    compiled: True (blocks) or model. padded: a mask comes with each batch. replicas: of HSDP. offload: shards on the
    host. wraps: class of the blocks, else transformers' own list. axes: of axes_steps.py, whose own model this is. predict: words beyond model and sizes."""
    return dict(name=name, model=model, sequence=sequence, batch=batch, **{**dict(
        world=1, loop="trainer", checkpoint=False, accumulation=1, attention="sdpa", optimizer="adamw", fused=True,
        plain=None, compiled=False, lora=False, task="clm", runtime="fsdp2", padded=False, replicas=1, offload=False,
        experts=None, wraps=None, axes=None, predict=[]), **more})


def class_of(transformers, c):
    kind = c["model"][0]
    heads = {"mlm": "ForMaskedLM", "seq2seq": "ForConditionalGeneration", "image": "ForImageClassification"}
    return getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else heads.get(c["task"], "ForCausalLM")))


def config_of(transformers, c):
    kind, shape = c["model"]
    config = getattr(transformers, kind + ("TextConfig" if kind in ("Gemma3", "Gemma4") else "Config"))
    return config(**shape, attn_implementation=c["attention"] if not c["axes"] else None)


def read_lists():
    """The cases of code_cases.json by list, which says what each is of; a model is written out or named there."""
    said = json.loads(pathlib.Path(__file__).with_name("code_cases.json").read_text(encoding="utf-8"))

    def read(row):
        model = row["model"]
        return case(**dict(row, model=said["models"][model] if isinstance(model, str) else model))
    return {name: [read(row) for row in rows["cases"]] for name, rows in said["lists"].items()}


LISTS = read_lists()


def prepare(c):
    """Model, optimizer and the step's function."""
    import torch
    import transformers
    config = config_of(transformers, c)
    if c["experts"]:
        config._experts_implementation = c["experts"]
    cls = class_of(transformers, c)
    config.architectures = [cls.__name__]
    config.use_cache = False
    dtype = getattr(torch, c["plain"]) if c["plain"] else torch.float32
    with torch.device("meta"):
        model = cls._from_config(config, dtype=dtype)
    model.to_empty(device="cuda")
    model.tie_weights()
    refill(model, config)
    if c["lora"]:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"))
    if c["checkpoint"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    if c["plain"]:
        optimizer = optimizer_of(c, model)
        loop = Plain(torch.compile(model) if c["compiled"] else model, optimizer)
    else:
        loop = accelerated(c, model)
    return config, loop


def optimizer_of(c, model):
    import torch
    trained = [p for p in model.parameters() if p.requires_grad]
    if c["optimizer"] == "sgd-momentum":
        return torch.optim.SGD(trained, lr=1e-6, momentum=0.9, fused=c["fused"] or None)
    if c["optimizer"] == "adafactor":
        from transformers.optimization import Adafactor  # as Trainer makes it
        return Adafactor(trained, lr=1e-6, scale_parameter=False, relative_step=False)
    return torch.optim.AdamW(trained, lr=1e-6, fused=c["fused"] or None)


def refill(model, config):
    """Weights as a fresh initialisation has them, without its time on the host; buffers by transformers' own code."""
    import torch
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.fill_(1.0) if p.ndim == 1 and name.endswith("weight") else p.zero_() if p.ndim == 1 else p.normal_(0, 0.02)
        for name, buffer in model.named_buffers():
            if "inv_freq" in name:
                size = buffer.numel() * 2
                theta = getattr(config, "rope_theta", None) or 1e4
                fresh = 1.0 / theta ** (torch.arange(0, size, 2, device="cuda").float() / size)
            elif "position_ids" in name:
                fresh = torch.arange(buffer.numel(), device="cuda").view_as(buffer)
            else:
                fresh = torch.zeros_like(buffer)
            buffer.copy_(fresh)


class Plain:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def accumulate(self):
        import contextlib
        return contextlib.nullcontext()

    def backward(self, loss):
        loss.backward()

    def clip(self):
        import torch
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class Accelerated(Plain):
    def __init__(self, accelerator, model, optimizer):
        super().__init__(model, optimizer)
        self.accelerator = accelerator

    def accumulate(self):
        return self.accelerator.accumulate(self.model)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def clip(self):
        if self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)


def accelerated(c, model):
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.parallelism_config import ParallelismConfig
    from torch.distributed.fsdp import FSDPModule

    import fsdp2_steps
    os.environ.update(RANK="0", WORLD_SIZE=str(c["world"]), LOCAL_RANK="0", LOCAL_WORLD_SIZE="8", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0")  # as `accelerate launch` leaves them
    torch.cuda.set_device(0)
    fsdp2_steps.make_group(c["world"], "cuda")
    more = {}
    if c["runtime"] != "ddp":
        version = c["runtime"][-1]
        os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION=version, FSDP_OFFLOAD_PARAMS=str(c["offload"]).lower())
        more["fsdp_plugin"] = FullyShardedDataParallelPlugin(fsdp_version=int(version), auto_wrap_policy="transformer_based_wrap",
                                                             cpu_ram_efficient_loading=False, cpu_offload=c["offload"],
                                                             transformer_cls_names_to_wrap=c["wraps"] and [c["wraps"]])
    if c["replicas"] > 1:
        more["parallelism_config"] = ParallelismConfig(dp_replicate_size=c["replicas"], dp_shard_size=c["world"] // c["replicas"])
    if c["compiled"]:
        from accelerate.utils import TorchDynamoPlugin
        more["dynamo_plugin"] = TorchDynamoPlugin(backend="inductor", use_regional_compilation=True)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=c["accumulation"], **more)
    if c["runtime"] == "fsdp1":  # its flat parameters are new ones
        model = accelerator.prepare(model)
        optimizer = accelerator.prepare(optimizer_of(c, model))
    else:
        model, optimizer = accelerator.prepare(model, optimizer_of(c, model))
    kind = {"fsdp2": FSDPModule, "fsdp1": torch.distributed.fsdp.FullyShardedDataParallel, "ddp": torch.nn.parallel.DistributedDataParallel}
    if not any(isinstance(m, kind[c["runtime"]]) for m in model.modules()):
        raise RuntimeError("Accelerate did not wrap the model")
    if c["world"] > 1:
        {"fsdp2": fsdp2_steps.wire, "fsdp1": wire_functions, "ddp": wire_buckets}[c["runtime"]](model)
    return Accelerated(accelerator, model, optimizer)


def wire_functions(model):
    """fsdp2_steps.wire for FSDP1, which calls torch.distributed's functions."""
    import torch.distributed as dist

    import fsdp2_steps

    def gather(output, shard, group=None, async_op=False):
        fsdp2_steps.gathered(output, shard, group.size())

    def scatter(output, whole, op=None, group=None, async_op=False):
        fsdp2_steps.summed(output, whole, group.size())
    dist.all_gather_into_tensor, dist.reduce_scatter_tensor = gather, scatter


def wire_buckets(model):
    """DDP's own hook asks the fake group's Work for a result, which it has not."""
    import torch

    def reduced(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    model.register_comm_hook(None, reduced)


def batches_of(c, config, sequence, batch):
    """Four of the model's keyword arguments."""
    import torch
    if c["task"] == "image":
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        dtype = getattr(torch, c["plain"] or "float32")
        return [dict(pixel_values=torch.randn(shape, device="cuda", dtype=dtype),
                     labels=torch.randint(config.num_labels, (batch,), device="cuda")) for _ in range(4)]
    data = [torch.randint(config.vocab_size, (batch, sequence), device="cuda") for _ in range(4)]
    if not c["padded"]:
        return [dict(input_ids=ids, labels=ids) for ids in data]
    ends = torch.linspace(sequence // 2, sequence, batch, device="cuda").long()
    mask = (torch.arange(sequence, device="cuda") < ends[:, None]).long()
    return [dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)) for ids in data]


def step_of(c, loop, config, sequence, batch, mark=lambda part: None):
    """mark(part) is called as each part of a step is done."""
    import torch
    data = batches_of(c, config, sequence, batch)
    more = dict(num_items_in_batch=torch.tensor(batch * sequence, device="cuda")) if c["loop"] == "trainer" and c["task"] == "clm" else {}

    def update():
        loop.clip()
        mark("clip")
        loop.optimizer.step()
        mark("optimizer")
        loop.optimizer.zero_grad()
        mark("zero_grad")

    def step(turn=[0]):
        for _ in range(c["accumulation"]):
            with loop.accumulate():
                outputs = loop.model(**data[turn[0] % 4], **more)
                turn[0] += 1
                loss = outputs.loss
                if c["loop"] == "trainer":
                    del outputs
                mark("forward")
                loop.backward(loss)
                mark("backward")
                if not c["plain"]:
                    update()
        if c["plain"]:
            update()
    return step


def kernels_of(step):
    """[name, count, us] of one step's kernels and copies, most time first."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        step()
        torch.cuda.synchronize()
    found = collections.defaultdict(lambda: [0, 0.0])
    for event in prof.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()):
            row = found[event.name()[:160]]
            row[0] += 1
            row[1] += event.duration_ns() / 1e3
    rows = [[name, count, round(us, 1)] for name, (count, us) in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def started(c):
    """Config and loop of a case, and what makes its step."""
    if c["axes"]:
        import axes_steps
        return axes_steps.prepare(c)
    return *prepare(c), step_of


def import_beside():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    sys.modules["torchao"] = None  # Accelerate imports it where it is installed, and it starts CUDA


def run(c, folder):
    import gc

    import torch
    torch.manual_seed(0)
    row = {"name": c["name"], "case": {k: v for k, v in c.items() if k not in ("name", "model")}, "torch": torch.__version__}
    config, loop, make_step = started(c)
    config.save_pretrained(folder / "configs" / c["name"])
    row["parameters"] = sum(p.numel() for p in loop.model.parameters())
    gc.collect()
    torch.cuda.empty_cache()
    return measured(row, make_step(c, loop, config, c["sequence"], c["batch"]),
                    None if c["compiled"] else lambda: make_step(c, loop, config, HOST_TOKENS, 1))


def measured(row, step, small=None):
    """The row with what a step takes; `small` makes the same on few tokens, what the host needs for it."""
    import torch

    import fsdp2_steps
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = fsdp2_steps.timed_steps(step, STEPS, "cuda")
    stats = torch.cuda.memory_stats()
    row.update(device=torch.cuda.get_device_name(), step_s=statistics.median(times), steps_s=[round(t, 6) for t in times],
               peak_allocated_bytes=stats["allocated_bytes.all.peak"], peak_requested_bytes=stats["requested_bytes.all.peak"],
               peak_reserved_bytes=stats["reserved_bytes.all.peak"], retries=stats["num_alloc_retries"],
               device_used_bytes=torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0])
    if small:  # before the profiler, which slows launches down for good
        small = small()
        small()
        row["host_step_s"] = statistics.median(fsdp2_steps.timed_steps(small, 5, "cuda"))
    row["kernels"] = kernels_of(step)
    row["kernels_s"] = round(sum(k[2] for k in row["kernels"]) / 1e6, 6)
    row["launches"] = sum(k[1] for k in row["kernels"])
    row["kernels"] = row["kernels"][:70]
    row["status"] = "ok"
    return row


def capture(c):
    import_beside()
    config, loop, make_step = started(c)
    step = make_step(c, loop, config, c["sequence"], c["batch"])
    for _ in range(3):
        step()
    return 0


def forked(c, folder, seconds, run):
    """The row of a case, run(c, folder), which runs in a child."""
    file = folder / f"{c['name']}.part"
    log = folder / "logs"
    log.mkdir(exist_ok=True)
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        output = os.open(log / f"{c['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            row = run(c, folder)
        except BaseException as error:
            import traceback
            traceback.print_exc()
            row = {"name": c["name"], "status": "failed", "reason": f"{type(error).__name__}: {error}"[:600]}
        file.write_text(json.dumps(row), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)
    end = begin + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        row = {"name": c["name"], "status": "failed", "reason": f"no row after {time.monotonic() - begin:.0f} s"}
    file.unlink(missing_ok=True)
    return dict(row, seconds=round(time.monotonic() - begin, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="file of rows, one JSON object a line")
    parser.add_argument("--capture", metavar="NAME", help="three steps of this case, for foreshard-null")
    parser.add_argument("--only", help="names of cases")
    parser.add_argument("--seconds", type=float, default=300, help="for all; what does not begin by then is left out")
    parser.add_argument("--of", choices=LISTS, default="first", help="which cases; the later lists were forecast before they ran")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    cases = [c for c in LISTS[args.of] if not args.only or c["name"] in args.only.split(",")]
    if args.list:
        print("\n".join(c["name"] for c in cases))
        return 0
    if args.capture:
        return capture(next(c for cases in LISTS.values() for c in cases if c["name"] == args.capture))
    if not args.out:
        parser.error("--out is missing")
    return run_all(cases, rows_file(args.out), args.seconds, run)


def rows_file(out):
    """The file `out`; beside its folder round.json names the GPU."""
    from round_machine import GPUS, smi
    out = pathlib.Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    record = out.parent.parent / "round.json"
    machine = smi("name,driver_version")
    if record.exists() or not machine:
        return out
    device, driver = machine[0]
    said = {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": device, "driver": driver,
            "gpu": next((key for name, key in GPUS if name in device), device), "command": " ".join(sys.argv[1:])}
    record.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return out


def import_known(cases):
    """What every child would import again."""
    import_beside()
    import accelerate.parallelism_config  # noqa: F401
    import transformers
    import torch._dynamo  # noqa: F401
    for c in cases:
        class_of(transformers, c)
        config_of(transformers, c)
    if any(c["lora"] for c in cases):
        import peft  # noqa: F401
    import fsdp2_steps  # noqa: F401
    if any(c["axes"] for c in cases):
        import torch.distributed.tensor.experimental  # noqa: F401
        import torch.distributed.tensor.parallel  # noqa: F401


def run_all(cases, out, seconds, run, known=import_known):
    """Appends the row of each case to the file `out`; 4 where one failed."""
    end = time.monotonic() + seconds
    out.parent.mkdir(parents=True, exist_ok=True)
    known(cases)
    bad = 0
    for c in cases:
        left = end - time.monotonic()
        if left < 8:
            print(f"{c['name']}: no time", flush=True)
            continue
        row = forked(c, out.parent, min(left, 60), run)
        with open(out, "a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
        bad += row["status"] != "ok"
        print(c["name"], row["status"], row.get("reason", ""), *(f"{k}={row[k]:.6g}" for k in (
            "step_s", "host_step_s", "kernels_s", "launches", "peak_allocated_bytes", "peak_reserved_bytes", "seconds") if k in row), flush=True)
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
