#!/usr/bin/env python3
"""torchtitan 0.2's own Trainer on a model of a few blocks, words of zeros and no tokenizer.

    torchtitan_train.py CASE.json      `run` holds torchtitan's options by their names, `model` is a config.json
"""
import sys
import tempfile

from watch import said

case = said()
config, folder = case["model"], tempfile.TemporaryDirectory()
options = {"model.name": {"llama": "llama3", "llama4_text": "llama4", "deepseek_v3": "deepseek_v3"}.get(config["model_type"], "qwen3"), "model.flavor": "case", "job.dump_folder": folder.name, "training.steps": 3, **case["run"]}
sys.argv[1:] = [word for name, value in options.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]

import torch  # noqa: E402
from torchtitan import train  # noqa: E402; reads sys.argv
from torch import distributed  # noqa: E402
from torchtitan.models import deepseek_v3, llama3, llama4, moe, qwen3  # noqa: E402


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
    if config["model_type"] == "llama4_text":  # widths follow from `dim`
        routes = moe.MoEArgs(num_experts=config["num_local_experts"], top_k=config["num_experts_per_tok"])
        return llama4.TransformerModelArgs(**common, moe_args=routes, interleave_moe_layer_step=config["interleave_moe_layer_step"])
    if config["model_type"] == "deepseek_v3":
        del common["n_kv_heads"]
        routes = moe.MoEArgs(
            num_experts=config["n_routed_experts"], num_shared_experts=config["n_shared_experts"], top_k=config["num_experts_per_tok"], score_func="sigmoid",
            route_norm=True, route_scale=config["routed_scaling_factor"], score_before_experts=False)
        same = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return deepseek_v3.DeepSeekV3ModelArgs(
            **common, **{key: config[key] for key in same}, q_lora_rank=config["q_lora_rank"] or 0, inter_dim=config["intermediate_size"],
            moe_inter_dim=config["moe_intermediate_size"], n_dense_layers=config["first_k_dense_replace"], moe_args=routes)
    if config["model_type"] == "qwen3_moe":
        routes = moe.MoEArgs(num_experts=config["num_experts"], num_shared_experts=0, top_k=config["num_experts_per_tok"], score_func="softmax", route_norm=True, score_before_experts=False)
        common |= {"moe_enabled": True, "moe_inter_dim": config["moe_intermediate_size"], "moe_args": routes}
    return qwen3.Qwen3ModelArgs(**common, hidden_dim=config["intermediate_size"], head_dim=config["head_dim"], enable_weight_tying=config["tie_word_embeddings"])


model_sizes = sizes()
for module, flavors in ((llama3, llama3.llama3_args), (qwen3, qwen3.qwen3_args), (llama4, llama4.llama4_args), (deepseek_v3, deepseek_v3.deepseekv3_args)):
    module.build_text_dataloader = Words
    module.build_hf_tokenizer = lambda *_: None
    flavors["case"] = model_sizes


def heard(objects, *_, **__):
    """What a stage says of its output: the same blocks are on either side."""
    of, (cp, tp) = options.get, (options.get(f"parallelism.{axis}_parallel_degree", 1) for axis in ("context", "tensor"))
    shards = cp * of("parallelism.data_parallel_shard_degree", 1) * of("parallelism.expert_parallel_degree", 1)
    shape = (of("parallelism.pipeline_parallel_microbatch_size", 1), of("training.seq_len") // cp // tp, config["hidden_size"])
    objects[0] = (torch.empty(shape, dtype=torch.bfloat16 if shards > 1 else torch.float32, device="meta"),)


distributed.recv_object_list = heard
train.main(train.Trainer)
