#!/usr/bin/env python3
"""TRL's SFTTrainer under Accelerate's FSDP2, DDP or DeepSpeed, as `accelerate launch` would set it up, on a model of a few blocks and words of zeros.

    trl_train.py CASE.json      `run`: arguments of SFTConfig, `seq`, `env` (what accelerate launch sets), `dtype` of the model, `attn`, `lora` (PEFT's arguments); `model` is a config.json
"""
import os
import tempfile

from watch import said

case = said()
run = dict(case["run"])
os.environ.update(run.pop("env", {}))
length, dtype, attention, lora = run.pop("seq"), run.pop("dtype", "float32"), run.pop("attn", "sdpa"), run.pop("lora", None)

import datasets  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

config = transformers.AutoConfig.for_model(**case["model"])
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
model = model.to_empty(device="cpu")
model.tie_weights()
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
rows = datasets.Dataset.from_list([{"input_ids": [2] * length}] * 512)
with tempfile.TemporaryDirectory() as folder:
    args = trl.SFTConfig(output_dir=folder, max_length=length, max_steps=3, report_to="none", save_strategy="no", disable_tqdm=True, **run)
    adapters = {}
    if lora:
        import peft

        adapters["peft_config"] = peft.LoraConfig(**lora)
    trainer = trl.SFTTrainer(model=model, args=args, **adapters, train_dataset=rows, processing_class=tokenizer)
    del model
    trainer.train()
