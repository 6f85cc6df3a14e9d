#!/usr/bin/env python3
"""A loop as Accelerate's examples have it over DeepSpeed, on a model of transformers and words of zeros.

    accelerate_train.py CASE.json      `run`: `deepspeed` (arguments of DeepSpeedPlugin), `batch`, `seq`, `accum`, `checkpointing`, `fused`; `model` is a config.json
"""
import torch
import transformers
from accelerate import Accelerator, DeepSpeedPlugin
from watch import Words, said

case = said()
run = case["run"]


def main():
    accum = run.get("accum", 1)
    plugin = DeepSpeedPlugin(**{"gradient_accumulation_steps": accum, **run["deepspeed"]})
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=accum, deepspeed_plugin=plugin)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**case["model"]), dtype=torch.float32)
    if run.get("checkpointing"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=run.get("fused"))
    loader = torch.utils.data.DataLoader(Words(run["seq"]), batch_size=run["batch"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        if step == 3 * accum:
            break
        with accelerator.accumulate(model):
            outputs = model(**batch)
            loss = outputs.loss
            del outputs
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


main()
