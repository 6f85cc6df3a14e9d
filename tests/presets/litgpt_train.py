#!/usr/bin/env python3
"""LitGPT's own pretrain.setup on a model of a few blocks and words of zeros.

    litgpt_train.py CASE.json      `run`: arguments of setup, those of TrainArgs in `train`; compile: false leaves torch.compile out; `model` is a config.json
"""
import pathlib
import tempfile

import torch
from watch import said
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config


class Words:
    """A data module: the same zeros again and again."""

    def connect(self, tokenizer, batch_size, max_seq_length):
        self.shape = (batch_size, max_seq_length + 1)

    def prepare_data(self):
        pass

    def setup(self):
        pass

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(self.shape[0] * 64, self.shape[1], dtype=torch.long), batch_size=self.shape[0])

    val_dataloader = train_dataloader


def main():
    case = said()
    config, run = case["model"], dict(case["run"])
    sizes = Config(
        name="case", block_size=run["train"]["max_seq_length"], vocab_size=config["vocab_size"], padded_vocab_size=config["vocab_size"], n_layer=config["num_hidden_layers"],
        n_head=config["num_attention_heads"], n_embd=config["hidden_size"], n_query_groups=config["num_key_value_heads"], intermediate_size=config["intermediate_size"],
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP")
    if not run.pop("compile", True):
        torch.compile = lambda model: model
    train = TrainArgs(**{**vars(TrainArgs(save_interval=None, log_interval=1, global_batch_size=512, micro_batch_size=4, max_norm=1.0, min_lr=4e-5, lr_warmup_steps=2000)), **run.pop("train")})
    train.max_tokens = 3 * train.global_batch_size * train.max_seq_length
    pretrain.save_checkpoint = lambda *unused: None
    with tempfile.TemporaryDirectory() as folder:
        pretrain.setup("case", model_config=sizes, out_dir=pathlib.Path(folder), data=Words(), train=train, eval=EvalArgs(interval=1000, max_iters=1), devices=8, logger_name="csv", **run)


main()
