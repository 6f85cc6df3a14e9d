#!/usr/bin/env python3
"""torchtune's own recipe full_finetune_distributed on a model of a few blocks and words of zeros.

    torchtune_train.py CASE.json      `run` holds keys of the recipe's configuration over those of its llama3_1/8B_full, and `seq`; `model` is a config.json
"""
import importlib.util
import pathlib
import tempfile
import types

import torch
import torchtune
from omegaconf import OmegaConf
from torchtune.models.llama3 import llama3
from torchtune.training.checkpointing import _checkpoint_client
from watch import said

case = said()
config, run = case["model"], dict(case["run"])
length = run.pop("seq")


def model():
    return llama3(
        vocab_size=config["vocab_size"], num_layers=config["num_hidden_layers"], num_heads=config["num_attention_heads"], num_kv_heads=config["num_key_value_heads"],
        embed_dim=config["hidden_size"], max_seq_len=config["max_position_embeddings"], intermediate_dim=config["intermediate_size"])


def words(tokenizer):
    return [{"tokens": [1] * length, "labels": [1] * length}] * 256


def tokenizer():
    return types.SimpleNamespace(pad_id=0)


def checkpoint(client):
    with torch.device("cpu"):
        return {"model": {name: torch.zeros(value.shape, dtype=torch.bfloat16 if case["run"].get("dtype", "bf16") == "bf16" else torch.float32) for name, value in model().state_dict().items()}}


_checkpoint_client.CheckpointClient.load_base_checkpoint = checkpoint
_checkpoint_client.CheckpointClient.save_checkpoint = lambda *unused, **named: None
recipes = pathlib.Path(torchtune.__file__).parents[1] / "recipes"
found = importlib.util.spec_from_file_location("recipe", recipes / "full_finetune_distributed.py")
recipe = importlib.util.module_from_spec(found)
found.loader.exec_module(recipe)
with tempfile.TemporaryDirectory() as folder:
    usual = OmegaConf.load(recipes / "configs/llama3_1/8B_full.yaml")
    here = {"output_dir": folder, "model": {"_component_": "__main__.model"}, "dataset": {"_component_": "__main__.words"}, "tokenizer": {"_component_": "__main__.tokenizer"}, "max_steps_per_epoch": 3}
    for name in ("dataset", "tokenizer", "model"):
        del usual[name]
    said_config = OmegaConf.merge(usual, here, run)
    job = recipe.FullFinetuneRecipeDistributed(cfg=said_config)
    job.setup(cfg=said_config)
    job.train()
    job.cleanup()
