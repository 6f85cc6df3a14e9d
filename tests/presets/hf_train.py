#!/usr/bin/env python3
"""A case of tests/hf_cases as a training program: transformers under Accelerate and FSDP2, FSDP1 or DDP, or wrapped as torchtitan does.

    hf_train.py CASE.json CONFIG_FOLDER      three optimizer steps on random tokens; prints what PyTorch's allocator says

One rank of the world that its environment names, as torchrun starts it. Nothing in it knows of the null GPU.
cuDNN's attention and ViT's cuDNN convolutions are off, as they were where the cases were recorded.
"""
import gc
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

ENTRY = {"config": None, "runtime": "fsdp2", "precision": "bf16", "world": 8, "rank": 0, "seq": 1024, "batch": 2, "accum": 1, "attn": "sdpa", "loop": "accelerate", "opt": "adamw",
         "fsdp": {}, "hold": True, "clip": True, "gc": None, "gc_reentrant": None, "use_cache": None, "lora": None, "dtype": None, "mask": None,
         "task": "clm", "hsdp": None, "steps": 3, "cudnn": False, "experts": None, "titan_reshard": "default", "collect": True}


def build(case, config):
    if case["experts"]:
        config._experts_implementation = case["experts"]
    dtype = getattr(torch, case["dtype"]) if case["dtype"] else torch.float32
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=dtype, attn_implementation=case["attn"])
    model = model.to_empty(device="cuda")
    model.tie_weights()
    if case["lora"]:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(**case["lora"]))
    if case["use_cache"] is not None:
        model.config.use_cache = case["use_cache"]
    if case["gc"]:
        said = {} if case["gc_reentrant"] is None else {"gradient_checkpointing_kwargs": {"use_reentrant": case["gc_reentrant"]}}
        model.gradient_checkpointing_enable(**said)
    return model.train()


def wrap_as_titan(case, model, tied):
    """torchtitan's units: the embedding, [norm, head] (kept; tied: with the embedding), blocks, the root."""
    said = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)}
    decoder, after = model.model, case["titan_reshard"] != "never"
    last = [decoder.norm, model.lm_head]
    if tied:
        fully_shard([decoder.embed_tokens, *last], reshard_after_forward=case["titan_reshard"] == "always", **said)
    else:
        fully_shard(decoder.embed_tokens, reshard_after_forward=after, **said)
        fully_shard(last, reshard_after_forward=case["titan_reshard"] == "always", **said)
    for block in decoder.layers:
        fully_shard(block, reshard_after_forward=after, **said)
    fully_shard(model, **said)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
    return model


def adamw(case, parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-4, **({"fused": True} if case["opt"] == "fused" else {}))


def prepare(case, model):
    if case["runtime"] == "ddp":
        accelerator = Accelerator(mixed_precision=case["precision"], gradient_accumulation_steps=case["accum"])
        return accelerator, *accelerator.prepare(model, adamw(case, model.parameters()))
    plugin = FullyShardedDataParallelPlugin(**{"fsdp_version": int(case["runtime"][-1]), "auto_wrap_policy": "transformer_based_wrap", "cpu_ram_efficient_loading": False, **case["fsdp"]})
    more = {}
    if case["hsdp"]:
        from accelerate.parallelism_config import ParallelismConfig

        more["parallelism_config"] = ParallelismConfig(dp_replicate_size=case["hsdp"][0], dp_shard_size=case["hsdp"][1])
    accelerator = Accelerator(mixed_precision=case["precision"], fsdp_plugin=plugin, gradient_accumulation_steps=case["accum"], **more)
    if case["runtime"] == "fsdp1":  # flat parameters are new ones: the optimizer comes after them
        model = accelerator.prepare(model)
        return accelerator, model, accelerator.prepare(adamw(case, model.parameters()))
    return accelerator, *accelerator.prepare(model, adamw(case, model.parameters()))


def batch_of(case, config):
    if case["task"] == "vit":
        return {"pixel_values": torch.empty(case["batch"], 3, config.image_size, config.image_size, device="cuda"),
                "labels": torch.zeros(case["batch"], dtype=torch.long, device="cuda")}
    ids = torch.zeros(case["batch"], case["seq"], dtype=torch.long, device="cuda")
    batch = {"input_ids": ids, "labels": ids.clone()}
    if case["mask"]:
        batch["attention_mask"] = torch.ones_like(ids)
    return batch


def titan_step(case, config, model, optimizer):
    batch = batch_of(case, config)
    logits = model(input_ids=batch["input_ids"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(0, 1), reduction="sum", ignore_index=-100)
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()


def accelerate_step(case, config, accelerator, model, optimizer):
    for _ in range(case["accum"]):
        with accelerator.accumulate(model):
            batch = batch_of(case, config)
            if case["loop"] == "trainer":  # as Trainer.compute_loss: the number of items is given, outputs are dropped
                if case["task"] == "clm":
                    outputs = model(**batch, num_items_in_batch=torch.ones((), dtype=torch.long, device="cuda"))
                else:
                    outputs = model(**batch)
                loss = outputs.loss
                del outputs
            else:
                outputs = model(**batch)
                loss = outputs.loss
                if not case["hold"]:
                    del outputs
            accelerator.backward(loss)
            if case["clip"] and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    case = {**ENTRY, **json.load(open(sys.argv[1]))}
    if case["runtime"] != "ddp":
        os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION=case["runtime"][-1])
    os.environ["FSDP_OFFLOAD_PARAMS"] = str(bool(case["fsdp"].get("cpu_offload"))).lower()  # as accelerate launch
    config = transformers.AutoConfig.from_pretrained(sys.argv[2])
    torch.backends.cuda.enable_cudnn_sdp(case["cudnn"])
    torch.backends.cudnn.enabled = case["task"] != "vit"
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = build(case, config)
    if case["loop"] == "titan":
        dist.init_process_group("nccl")
        optimizer = adamw(case, model.parameters())  # recorded so: whole parameters lived until the next line but one
        model = wrap_as_titan(case, model, config.tie_word_embeddings)
        optimizer = adamw(case, model.parameters())
        step = lambda: titan_step(case, config, model, optimizer)
    else:
        accelerator, model, optimizer = prepare(case, model)
        step = lambda: accelerate_step(case, config, accelerator, model, optimizer)
    gc.collect()
    torch.cuda.empty_cache()
    for _ in range(case["steps"]):
        if case["collect"]:  # recorded so; it takes the host more than the step
            gc.collect()
        torch.cuda.reset_peak_memory_stats()
        step()
    said = torch.cuda.memory_stats()
    print("STEP", json.dumps({"peak": said["allocated_bytes.all.peak"], "reserved": said["reserved_bytes.all.peak"], "requested": said["requested_bytes.all.peak"]}))


if __name__ == "__main__":
    main()
