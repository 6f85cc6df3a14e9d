#!/usr/bin/env python3
"""TRL's SFTTrainer, RewardTrainer or DPOTrainer under Accelerate's FSDP2, DDP or DeepSpeed, as `accelerate launch` would set it up, on a model of a few blocks and words of zeros.

    trl_train.py CASE.json      `run`: arguments of SFTConfig, `seq`, `env` (what accelerate launch sets), `dtype` of the model, `attn`, `lora` (PEFT's arguments), `kind` (sft, reward, dpo: with a reference model unless there are adapters), `prompt` of `seq` tokens (sft, dpo); `model` is a config.json
"""
import os
import tempfile

from watch import said

case = said()
run = dict(case["run"])
os.environ.update(run.pop("env", {}))
length, dtype, attention, lora = run.pop("seq"), run.pop("dtype", "float32"), run.pop("attn", "sdpa"), run.pop("lora", None)
kind, prompt = run.pop("kind", "sft"), run.pop("prompt", 1)

import datasets  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

config = transformers.AutoConfig.for_model(**case["model"])


def made():
    with torch.device("meta"):
        model = getattr(transformers, case["model"]["architectures"][0])._from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    return model


model = made()
reference = made() if kind == "dpo" and not lora else None  # (before ZeRO-3 is said: transformers 5.24 then makes weights while a model is made)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
ids = [2] * length
row = {"sft": {"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}, "reward": {"chosen_ids": ids, "rejected_ids": ids}, "dpo": {"prompt_ids": ids[:prompt], "chosen_ids": ids[prompt:], "rejected_ids": ids[prompt:]}}[kind]
rows = datasets.Dataset.from_list([row] * 2048)
arguments, code = {"sft": (trl.SFTConfig, trl.SFTTrainer), "reward": (trl.RewardConfig, trl.RewardTrainer), "dpo": (trl.DPOConfig, trl.DPOTrainer)}[kind]
if kind != "sft":
    code._prepare_dataset = lambda self, dataset, *rest, **more: dataset  # rows are tokens
with tempfile.TemporaryDirectory() as folder:
    args = arguments(output_dir=folder, max_length=length, max_steps=3, report_to="none", save_strategy="no", disable_tqdm=True, **run)
    adapters = {}
    if lora:
        import peft

        adapters["peft_config"] = peft.LoraConfig(**lora)
    if reference is not None:
        adapters["ref_model"] = reference
    trainer = code(model=model, args=args, **adapters, train_dataset=rows, processing_class=tokenizer)
    del model, reference
    trainer.train()
