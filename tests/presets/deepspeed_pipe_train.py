"""Three train_batch() of DeepSpeed's PipelineModule (0.19.8) over transformers' Llama blocks in bf16, for foreshard-null: `run` has `deepspeed`,
its configuration, and `module`, arguments of the module."""
import deepspeed
import torch
import watch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

case = watch.said()
run, settings = case["run"], case["run"]["deepspeed"]
config = LlamaConfig(**case["model"])
config._attn_implementation = "sdpa"
rotary = []


class ParallelTransformerLayerPipe(LlamaDecoderLayer):
    def forward(self, hidden):
        if not rotary:
            rotary.append(LlamaRotaryEmbedding(config).to(hidden.device)(hidden, torch.arange(run["seq"], device=hidden.device)[None]))
        return super().forward(hidden, position_embeddings=rotary[0])


class GPTModelPipe(PipelineModule):
    """Megatron-DeepSpeed's name, of which blocks alone are checkpointed."""


def loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.float().view(-1, config.vocab_size), labels.view(-1))


width = config.vocab_size, config.hidden_size
ends = LayerSpec(torch.nn.Embedding, *width), LayerSpec(torch.nn.Linear, *reversed(width), bias=False)
if config.tie_word_embeddings:
    ends = [TiedLayerSpec("table", torch.nn.Embedding, *width, forward_fn=use) for use in (None, lambda table, hidden: hidden @ table.weight.T)]
blocks = [LayerSpec(ParallelTransformerLayerPipe, config, number) for number in range(config.num_hidden_layers)]
deepspeed.init_distributed("nccl")
torch.cuda.set_device(0)
torch.set_default_dtype(torch.bfloat16)
model = GPTModelPipe([ends[0], *blocks, LayerSpec(LlamaRMSNorm, config.hidden_size), ends[1]], loss_fn=loss, **run["module"])
torch.set_default_dtype(torch.float32)
engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())
tokens = torch.zeros(settings["train_micro_batch_size_per_gpu"], run["seq"], dtype=torch.long)
for _ in range(3):
    engine.train_batch(data_iter=iter([(tokens, tokens)] * settings["gradient_accumulation_steps"]))
