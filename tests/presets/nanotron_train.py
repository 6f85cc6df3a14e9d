"""Three steps of nanotron's DistributedTrainer on a small Llama, for foreshard-null: `run` has keys of its YAML, dotted.

nanotron of GitHub (2411b022) or of PyPI (0.4), whose zero_stage 1 alone runs with accumulate_grad_in_fp32; flash-attn's Python (2.8),
whose extension is PyTorch's copy of the same kernels here."""
import importlib.util
import os
import sys
import tempfile
import types

import torch
import watch  # noqa: F401
import yaml

os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
case = watch.said()
aten = torch.ops.aten


def forward(q, k, v, out, cu_q, cu_k, used, leftpad, table, alibi, max_q, max_k, dropout, scale, zero, causal, *_):
    out, lse, seed, *_ = aten._flash_attention_forward(q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, False, scale=scale)
    return out, lse, q.new_empty(0), seed


def backward(dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, alibi, max_q, max_k, dropout, scale, zero, causal, *rest):
    nothing = torch.empty(0, dtype=torch.uint64, device=q.device)
    return *aten._flash_attention_backward(dout, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout, causal, rest[-1], nothing, scale=scale), None


sys.modules["flash_attn_2_cuda"] = types.SimpleNamespace(varlen_fwd=forward, varlen_bwd=backward)
sys.modules["grouped_gemm"] = types.ModuleType("grouped_gemm")  # of mixtures
sys.modules["grouped_gemm.ops"] = sys.modules["grouped_gemm"].ops = types.ModuleType("grouped_gemm.ops")
OLD = importlib.util.find_spec("nanotron.dataloader") is not None
CONFIG = ("nanotron.config", "nanotron.config.config") if OLD else ()
for name in CONFIG:  # 0.4 imports itself in a circle
    sys.modules[name] = types.SimpleNamespace(LoggingArgs=None, ParallelismArgs=None)
from nanotron import logging  # noqa: E402, F401

for name in CONFIG:
    del sys.modules[name]
from nanotron import helpers, trainer as trainers  # noqa: E402
from nanotron.config import get_config_from_file  # noqa: E402
from nanotron.models import llama  # noqa: E402
from nanotron.parallel.pipeline_parallel.utils import get_input_output_pp_ranks  # noqa: E402

if OLD:
    from nanotron.dataloader import dummy_infinite_data_generator
else:
    from nanotron.data.dataloader import dummy_infinite_data_generator
    from nanotron.scaling.parametrization import StandardParametrizator

    llama.StandardParametrizator = lambda config: StandardParametrizator(get_config_from_file(file))  # its Llama hands on a part
trainers.log_memory = lambda *_, **__: None  # it resets the peak inside of a step
trainers.DistributedTrainer.save_checkpoint = lambda self: None
helpers.get_synced_random_state = lambda random_state, pg: random_state  # the other ranks' is not known

sizes = {key: case["model"][key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
                                             "rms_norm_eps", "tie_word_embeddings", "vocab_size", "max_position_embeddings")}
adam = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True}
schedule = {"learning_rate": 3e-4, "lr_decay_steps": 3, "lr_decay_style": "cosine", "lr_warmup_steps": 1, "lr_warmup_style": "linear", "min_decay_lr": 1e-5}
data = {"dataset": None, "seed": 42}
written = {
    "general": {"project": "debug", "run": "case", "seed": 42, "ignore_sanity_checks": True}, "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
    "logging": {}, "tokenizer": {"tokenizer_name_or_path": "none"}, "tokens": {"train_steps": 3}, "parallelism": {"pp": 1, "pp_engine": "1f1b"},
    "model": {"dtype": "bfloat16", "init_method": {"std": 0.025}, "model_config": sizes | {"is_llama_config": True}},
    "optimizer": {"weight_decay": 0.01, "learning_rate_scheduler": schedule} | (adam if OLD else {"optimizer_factory": {"name": "adamW"} | adam}),
} | ({"data": data} if OLD else {"data_stages": [{"name": "all", "start_training_step": 1, "data": data}]})
for path, value in case["run"].items():
    section, key = path.split(".")
    written[section][key] = value
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as yaml_file:
    file = yaml_file.name
    yaml.safe_dump(written, yaml_file)
    yaml_file.flush()
    trainer = trainers.DistributedTrainer(file)
first, last = get_input_output_pp_ranks(model=trainer.model)
words = dummy_infinite_data_generator(trainer.micro_batch_size, trainer.sequence_length, first, last, trainer.model_config.vocab_size, 1,
                                      trainer.parallel_context, **({} if OLD else {"cp_pg": trainer.parallel_context.cp_pg}))()
trainer.train(words if OLD else {"all": words})
