#!/usr/bin/env python3
"""torchtitan 0.3's own Trainer on a Llama, Qwen 3, DeepSeek-V3 or gpt-oss of a few blocks, words of zeros and no tokenizer.

    torchtitan3_train.py CASE.json [SAVED.json]

`run` holds its settings by their names and, of its registry, attn_backend, loss ("whole": no chunks) and activation_checkpoint; SAVED is what
`debug.save_config_file` writes.
"""
import dataclasses
import importlib
import json
import sys
import tempfile

from watch import said

case = said()
config, run = case["model"], dict(case["run"])

import torch  # noqa: E402
from torch.distributed import pipelining  # noqa: E402
from torch.distributed.pipelining import _utils  # noqa: E402
from torchtitan.components import dataloader, loss, optimizer, tokenizer  # noqa: E402
from torchtitan.distributed import activation_checkpoint as policies  # noqa: E402
from torchtitan.models import common  # noqa: E402
from torchtitan.models.common import attention, token_dispatcher  # noqa: E402
from torchtitan.tools import utils  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


class Words(dataloader.BaseDataLoader):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(dataloader.BaseDataLoader.Config):
        pass

    def __init__(self, config, *, local_batch_size, seq_len, **_):
        self.shape = (local_batch_size, seq_len)

    def __iter__(self):
        while True:
            zeros = torch.zeros(self.shape, dtype=torch.long)
            yield {"input": zeros, "positions": torch.arange(self.shape[1]).expand(self.shape).contiguous()}, zeros.clone()

    state_dict = load_state_dict = lambda *_: {}


class NoTokenizer(tokenizer.BaseTokenizer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(tokenizer.BaseTokenizer.Config):
        pass

    __init__ = encode = decode = get_vocab_size = lambda *_, **__: None


name = {"llama": "llama3", "qwen3_moe": "qwen3", "deepseek_v3": "deepseek_v3", "gpt_oss": "gpt_oss"}.get(config["model_type"], config["model_type"])
module = importlib.import_module(f"torchtitan.models.{name}")
flavors, vocab, backend = getattr(module, f"{name.replace('_', '')}_configs" if name != "qwen3" else "qwen3_configs"), config["vocab_size"], run.pop("attn_backend", "flex")
standard = {"moe_comm_backend": "standard"}


def model(**_):
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", dim // heads)
    sizes = {"n_layers": config["num_hidden_layers"], "dim": dim, "n_heads": heads, "attn_backend": backend}
    grouped, rope = {"n_kv_heads": config["num_key_value_heads"]}, {"dim": head, "max_seq_len": 1 << 17, "theta": 1e6}
    if name == "llama3":
        layers = module._build_llama3_layers(**sizes, **grouped, hidden_dim=config["intermediate_size"], rope=common.ComplexRoPE.Config(**rope, scaling="llama"))
    elif name == "deepseek_v3":
        same = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        layers = module._build_dsv3_layers(
            **sizes, **standard, **{key: config[key] for key in same}, q_lora_rank=config["q_lora_rank"] or 0, non_blocking_capacity_factor=None, mscale=1.0,
            n_dense_layers=config["first_k_dense_replace"], dense_hidden_dim=config["intermediate_size"], moe_hidden_dim=config["moe_intermediate_size"],
            num_experts=config["n_routed_experts"], num_shared_experts=config["n_shared_experts"], router_top_k=config["num_experts_per_tok"],
            router_score_func="sigmoid", router_route_norm=True, router_route_scale=config["routed_scaling_factor"],
            rope=common.ComplexRoPE.Config(**{**rope, "dim": config["qk_rope_head_dim"]}))
    elif name == "gpt_oss":
        del sizes["n_heads"]  # 64 of 64, and 8 of keys
        layers = module._build_gptoss_layers(
            **sizes, **standard, hidden_dim=config["intermediate_size"], num_experts=config["num_local_experts"], top_k=config["num_experts_per_tok"],
            load_balance_coeff=1e-3, rope=common.CosSinRoPE.Config(**{**rope, "dim": 64}))
    else:
        sizes |= {**grouped, "head_dim": head, "rope": common.CosSinRoPE.Config(**rope)}
        if "num_experts" in config:
            layers = module._build_qwen3_moe_layers(**sizes, **standard, moe_hidden_dim=config["moe_intermediate_size"], num_experts=config["num_experts"], top_k=config["num_experts_per_tok"])
        else:
            layers = module._build_qwen3_layers(**sizes, hidden_dim=config["intermediate_size"])
    mixes, part = {} if name in ("llama3", "qwen3") else standard, dataclasses.replace
    like = flavors["debugmodel"](attn_backend=backend, **mixes)
    tied = {"enable_weight_tying": True} if config["tie_word_embeddings"] else {"enable_weight_tying": False} if hasattr(like, "enable_weight_tying") else {}
    return part(
        like, dim=dim, vocab_size=vocab, layers=layers, **tied, norm=part(like.norm, normalized_shape=dim),
        tok_embeddings=part(like.tok_embeddings, num_embeddings=vocab, embedding_dim=dim), lm_head=part(like.lm_head, in_features=dim, out_features=vocab))


flavors["case"] = model
whole, folder = loss.CrossEntropyLoss.Config(global_vocab_size=vocab), tempfile.TemporaryDirectory()
job = Trainer.Config(
    model_spec=module.model_registry("case"), optimizer=optimizer.default_adamw(), dataloader=Words.Config(), tokenizer=NoTokenizer.Config(),
    loss=whole if run.pop("loss", "") == "whole" else loss.ChunkedLossWrapper.Config(loss_fn=whole),
    activation_checkpoint={"none": None, "full": policies.FullAC.Config(), "selective": policies.SelectiveAC.Config()}[run.pop("activation_checkpoint", "selective")])
for path, value in {"dump_folder": folder.name, "training.steps": 3, **run}.items():
    *sections, key = path.split(".")
    holder = job
    for section in sections:
        holder = getattr(holder, section)
    setattr(holder, key, value)
if len(sys.argv) > 2:
    json.dump(job.to_dict(), open(sys.argv[2], "w"))

# Where rows go follows from what no kernel computed: as many to each rank. FlexAttention's blocks are not tried out;
# FlashAttention 3 is not on PyPI.
dispatcher = token_dispatcher.AllToAllTokenDispatcher
exchange = dispatcher._dispatch_token_exchange


def exchanged(self, rows, group, received, sent):
    received[:] = sent[:] = [rows.shape[0] // len(sent)] * len(sent)
    return exchange(self, rows, group, received, sent)


dispatcher._dispatch_token_exchange = exchanged
wrapped = {"wrap_inductor_compiled_regions": True}  # which SelectiveAC saves the results of
attention.FlexAttention._compiled_flex_attn = torch.compile(attention.flex_attention, options=wrapped)
utils.get_cuda_flash_attention_impl = lambda: None


def heard(self, source):
    """What a stage says of its outputs or inputs' gradients, which other ranks do not: the same blocks are on either side."""
    of, metas = job.parallelism, self._stage_meta.outputs
    if source > self.stage_index:
        return _utils._StageBackwardMeta(_utils._derive_grad_metas(metas))
    length = job.training.seq_len // of.context_parallel_degree // (of.tensor_parallel_degree if of.enable_sequence_parallel else 1)
    hidden = torch.empty(of.pipeline_parallel_microbatch_size, length, config["hidden_size"], dtype=torch.bfloat16, device="meta", requires_grad=True)
    return _utils._StageForwardMeta((_utils.extract_tensor_meta(hidden),))


pipelining.PipelineStage._recv_meta = heard
trainer = job.build()
trainer.train()
trainer.close()
