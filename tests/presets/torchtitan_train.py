#!/usr/bin/env python3
"""torchtitan 0.2's own Trainer on a model of a few blocks, words of zeros and no tokenizer.

    torchtitan_train.py CASE.json      `run` holds torchtitan's options by their names, `model` is a config.json
"""
import sys
import tempfile

from watch import said

case = said()
config, folder = case["model"], tempfile.TemporaryDirectory()
options = {"model.name": "llama3" if config["model_type"] == "llama" else "qwen3", "model.flavor": "case", "job.dump_folder": folder.name, "training.steps": 3, **case["run"]}
sys.argv[1:] = [word for name, value in options.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]

import torch  # noqa: E402
from torchtitan import train  # noqa: E402; reads sys.argv
from torchtitan.models import llama3, moe, qwen3  # noqa: E402


class Words:
    """A dataloader: the same zeros again and again."""

    def __init__(self, *, job_config, **_):
        self.shape = (job_config.training.local_batch_size, job_config.training.seq_len)

    def __iter__(self):
        while True:
            yield {"input": torch.zeros(self.shape, dtype=torch.long)}, torch.zeros(self.shape, dtype=torch.long)


def sizes():
    width = config["hidden_size"]
    common = {"dim": width, "n_layers": config["num_hidden_layers"], "n_heads": config["num_attention_heads"], "n_kv_heads": config["num_key_value_heads"], "vocab_size": config["vocab_size"]}
    if config["model_type"] == "llama":  # its width of an MLP is a multiple of `multiple_of`, here the first
        return llama3.TransformerModelArgs(**common, multiple_of=config["intermediate_size"], ffn_dim_multiplier=0.1)
    if config["model_type"] == "qwen3_moe":
        routes = moe.MoEArgs(num_experts=config["num_experts"], num_shared_experts=0, top_k=config["num_experts_per_tok"], score_func="softmax", route_norm=True, score_before_experts=False)
        common |= {"moe_enabled": True, "moe_inter_dim": config["moe_intermediate_size"], "moe_args": routes}
    return qwen3.Qwen3ModelArgs(**common, hidden_dim=config["intermediate_size"], head_dim=config["head_dim"], enable_weight_tying=config["tie_word_embeddings"])


model_sizes = sizes()
for module, flavors in ((llama3, llama3.llama3_args), (qwen3, qwen3.qwen3_args)):
    module.build_text_dataloader = Words
    module.build_hf_tokenizer = lambda *_: None
    flavors["case"] = model_sizes
train.main(train.Trainer)
