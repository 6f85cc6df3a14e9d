#!/usr/bin/env python3
"""transformers' own Trainer, or a loop as Accelerate's examples have it, on a model of a few blocks and words of zeros.

    hf_trainer_train.py CASE.json      `run`: arguments of TrainingArguments, `seq`, `padded`, `dtype` and `attn` of the model, `lora` (PEFT's arguments); `model` is a config.json
(one of images has no `seq`), with `loop`: accelerate also `accelerator`, `plugin`, `policy` (of mixed precision), `deepspeed`, `ddp` (arguments each), and `hold` the outputs; `frozen`: the table of words is; `parallelism`: arguments of ParallelismConfig
(tp: the model is loaded with its own plan); with `loop`: plain `distributed`: arguments of DistributedConfig; with `loop`: deepspeed `deepspeed` is the configuration of an engine whose attention is deepspeed.sequence's over `ulysses` ranks
"""
import contextlib
import tempfile

from watch import Words, said

case = said()
run = dict(case["run"])
length, frozen, dtype, loop, padded, lora, attention = run.pop("seq", 0), run.pop("frozen", []), run.pop("dtype", "float32"), run.pop("loop", "trainer"), run.pop("padded", False), run.pop("lora", None), run.pop("attn", "sdpa")

import torch  # noqa: E402
import transformers  # noqa: E402


def parallelism():
    sizes = run.get("parallelism", {})
    if not sizes:
        return {}
    from accelerate import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig, TorchContextParallelConfig

    handlers = {"sp_handler": DeepSpeedSequenceParallelConfig, "cp_handler": TorchContextParallelConfig}
    return {"parallelism_config": ParallelismConfig(**{key: handlers[key](**size) if key in handlers else size for key, size in sizes.items()})}


def model(tp=1, mesh=None):
    config = transformers.AutoConfig.for_model(**case["model"])
    made = getattr(transformers, case["model"]["architectures"][0])._from_config(config, attn_implementation=attention, **{"dtype" if hasattr(config, "dtype") else "torch_dtype": getattr(torch, dtype)})
    cuts = {"tp_plan": "auto", "tp_size": tp, "device_mesh": mesh} if tp > 1 else {}
    if run.get("distributed"):
        cuts = {"distributed_config": transformers.distributed.DistributedConfig(**run["distributed"])}
    if cuts:  # from_pretrained does
        with tempfile.TemporaryDirectory() as folder:
            made.save_pretrained(folder)
            made = type(made).from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention, **cuts)
    if lora:
        import peft

        made = peft.get_peft_model(made, peft.LoraConfig(**lora))
    if frozen:
        made.get_input_embeddings().requires_grad_(False)
    return made.train()


class Padded(Words):
    """With the mask that a tokenizer gives; the last eighth counts for nothing."""

    def __getitem__(self, at):
        mask = torch.ones_like(self.ids)
        mask[-(len(mask) // 8):] = 0
        return {**super().__getitem__(at), "attention_mask": mask}


class Placed(Words):
    """With positions, which Ulysses wants of a batch."""

    def __getitem__(self, at):
        return {**super().__getitem__(at), "position_ids": torch.arange(length)}


class Labelled(torch.utils.data.Dataset):
    """With what the model's head is trained on where that is not a word of each position: a class, or where an answer begins and ends."""

    def __init__(self, rows, labels):
        self.rows, self.labels = rows, labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        given = {name: value for name, value in self.rows[at].items() if name != "labels"}
        return {**given, **{label: torch.zeros((), dtype=torch.long) for label in self.labels}}


class Seen(torch.utils.data.Dataset):
    """Images with a class, or one in front of words (LLaVA)."""

    def __init__(self, config):
        tower = getattr(config, "vision_config", config)
        self.row = {"pixel_values": torch.zeros(3, tower.image_size, tower.image_size), "labels": torch.zeros((), dtype=torch.long)}
        if tower is not config:
            ids = torch.zeros(length, dtype=torch.long)
            ids[:(tower.image_size // tower.patch_size) ** 2] = config.image_token_index
            self.row = {**self.row, "input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}

    def __len__(self):
        return 4096

    def __getitem__(self, at):
        return self.row


def words():
    config = transformers.AutoConfig.for_model(**case["model"])
    if hasattr(config, "image_size") or hasattr(config, "vision_config"):
        return Seen(config)
    rows = (Padded if padded else Placed if run.get("parallelism", {}).get("sp_size") else Words)(length)
    heads = {"ForSequenceClassification": ["labels"], "ForQuestionAnswering": ["start_positions", "end_positions"]}
    labels = next((names for head, names in heads.items() if case["model"]["architectures"][0].endswith(head)), None)
    return Labelled(rows, labels) if labels else rows


def trainer():
    axes = parallelism()
    tp = axes["parallelism_config"].tp_size if axes else 1
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(output_dir=folder, max_steps=3, report_to="none", save_strategy="no", disable_tqdm=True, **axes, **{key: value for key, value in run.items() if key != "parallelism"})
        transformers.Trainer(model=model(tp), args=args, train_dataset=[words()[0]] * 4096).train()


def policy():
    """Of FSDP1 or FSDP2, whose keywords are the same but for outputs'."""
    dtypes = {key: getattr(torch, word) for key, word in run.get("policy", {}).items()}
    if not dtypes:
        return {}
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

    return {"mixed_precision_policy": (MixedPrecision if run["plugin"]["fsdp_version"] == 1 else MixedPrecisionPolicy)(**dtypes)}


def accelerate():
    from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin

    accum, more = run.get("accum", 1), {**run.get("accelerator", {}), **parallelism()}
    axes = more.get("parallelism_config")
    if run.get("plugin"):
        more["fsdp_plugin"] = FullyShardedDataParallelPlugin(**run["plugin"], **policy())
    if run.get("deepspeed"):
        more["deepspeed_plugin"] = DeepSpeedPlugin(gradient_accumulation_steps=accum, **run["deepspeed"])
    if run.get("ddp"):
        more["kwargs_handlers"] = [DistributedDataParallelKwargs(**run["ddp"])]
    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accum, sync_each_batch=run.get("sync_each_batch", False)), **more)
    made = model(axes.tp_size if axes else 1, getattr(accelerator, "torch_device_mesh", None))
    if run.get("gradient_checkpointing"):
        made.gradient_checkpointing_enable(**({"gradient_checkpointing_kwargs": {"use_reentrant": True}} if run.get("reentrant") else {}))
    if "plugin" in run and run["plugin"].get("fsdp_version", 1) == 1:  # an optimizer of the parameters before they are flat would step none
        made = accelerator.prepare(made)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[run.get("optim", "adamw")](made.parameters(), lr=1e-4, **run.get("optim_args", {}))
    loader = torch.utils.data.DataLoader(words(), batch_size=run["batch"])
    made, optimizer, loader = accelerator.prepare(made, optimizer, loader)
    for step, batch in enumerate(loader):
        if step == 3 * accum:
            break
        over_positions = contextlib.nullcontext()
        if axes and axes.cp_size > 1:
            batch["shift_labels"] = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
            buffers = list(batch.values())
            over_positions = accelerator.maybe_context_parallel(buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers))
        with over_positions, accelerator.accumulate(made):
            if axes and axes.sp_size > 1:  # as Accelerate's guide has it
                batch = {key: value.to(accelerator.device) for key, value in batch.items()}
                loss, outputs = transformers.integrations.deepspeed.deepspeed_sp_compute_loss(accelerator, made, batch, True, axes)
            else:
                outputs = made(**batch)
                loss = outputs.loss
            if not run.get("hold"):
                del outputs
            accelerator.backward(loss)
            if accelerator.sync_gradients and run.get("clip", True):
                accelerator.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def deepspeed():
    """A loop of one's own, whose attention DistributedAttention exchanges; each rank has its part of the positions."""
    import deepspeed as library
    import deepspeed.runtime.sequence_parallel.parallel_state_sp as groups
    from deepspeed.sequence.layer import DistributedAttention

    library.init_distributed()
    groups.initialize_sequence_parallel(run["ulysses"])
    sdpa = transformers.AttentionInterface()["sdpa"]
    within = []  # the module that attends

    def local(*queries_keys_values, **more):
        return sdpa(within.pop(), *(each.transpose(1, 2) for each in queries_keys_values), None, **more)[0]

    exchanged = DistributedAttention(local, groups.get_sequence_parallel_group(), scatter_idx=2, gather_idx=1)

    def attend(module, query, key, value, _, **more):
        within.append(module)
        return exchanged(*(each.transpose(1, 2) for each in (query, key, value)), 0, **more), None

    transformers.AttentionInterface.register("sdpa", attend)
    made = model()
    if run.get("gradient_checkpointing"):
        made.gradient_checkpointing_enable()
    engine, *_ = library.initialize(model=made, optimizer=torch.optim.AdamW(made.parameters(), lr=1e-4), config=run["deepspeed"], mpu=groups)
    ids = torch.zeros(engine.train_micro_batch_size_per_gpu(), length // run["ulysses"], dtype=torch.long, device="cuda")
    places = torch.arange(ids.shape[1], device="cuda").expand_as(ids)
    for _ in range(3 * run.get("accum", 1)):
        engine.backward(engine(input_ids=ids, position_ids=places, labels=ids, shift_labels=ids, use_cache=False).loss)
        engine.step()


def plain():
    """A loop of one's own around transformers' own fully_shard and tensor parallel."""
    torch.distributed.init_process_group("nccl")
    made = model()
    if run.get("gradient_checkpointing"):
        made.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-4, **run.get("optim_args", {}))
    ids = torch.zeros(run["batch"], length, dtype=torch.long, device="cuda")
    for _ in range(3):
        for _ in range(run.get("accum", 1)):
            made(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


{"trainer": trainer, "accelerate": accelerate, "deepspeed": deepspeed, "plain": plain}[loop]()
