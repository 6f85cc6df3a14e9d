#!/usr/bin/env python3
"""transformers' own Trainer, or a loop as Accelerate's examples have it, on a model of a few blocks and words of zeros.

    hf_trainer_train.py CASE.json      `run`: arguments of TrainingArguments, `seq`, `dtype` of the model; with `loop`: accelerate also `accelerator` and `plugin` (its arguments); `model` is a config.json
"""
import tempfile

from watch import Words, said

case = said()
run = dict(case["run"])
length, dtype, loop = run.pop("seq"), run.pop("dtype", "float32"), run.pop("loop", "trainer")

import torch  # noqa: E402
import transformers  # noqa: E402


def model():
    config = transformers.AutoConfig.for_model(**case["model"])
    made = getattr(transformers, case["model"]["architectures"][0])._from_config(config, dtype=getattr(torch, dtype), attn_implementation=run.pop("attn", "sdpa"))
    return made.train()


def trainer():
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(output_dir=folder, max_steps=3, report_to="none", save_strategy="no", disable_tqdm=True, **run)
        transformers.Trainer(model=model(), args=args, train_dataset=[Words(length)[0]] * 512).train()


def accelerate():
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import GradientAccumulationPlugin

    accum = run.get("accum", 1)
    plugin = FullyShardedDataParallelPlugin(**run["plugin"]) if run.get("plugin") else None
    accelerator = Accelerator(fsdp_plugin=plugin, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accum, sync_each_batch=run.get("sync_each_batch", False)), **run.get("accelerator", {}))
    made = model()
    if run.get("gradient_checkpointing"):
        made.gradient_checkpointing_enable()
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[run.get("optim", "adamw")](made.parameters(), lr=1e-4, **run.get("optim_args", {}))
    loader = torch.utils.data.DataLoader(Words(length), batch_size=run["batch"])
    made, optimizer, loader = accelerator.prepare(made, optimizer, loader)
    for step, batch in enumerate(loader):
        if step == 3 * accum:
            break
        with accelerator.accumulate(made):
            loss = made(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients and run.get("clip", True):
                accelerator.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


{"trainer": trainer, "accelerate": accelerate}[loop]()
