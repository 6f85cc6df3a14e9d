import functools, os, torch, transformers, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
config = transformers.LlamaConfig(hidden_size=512, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=1024, use_cache=False)
bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
model = FullyShardedDataParallel(transformers.LlamaForCausalLM(config), auto_wrap_policy=policy, mixed_precision=bf16, device_id=torch.cuda.current_device(), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.ones(4, 256, dtype=torch.long, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
