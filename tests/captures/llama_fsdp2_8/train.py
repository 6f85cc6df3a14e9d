import os, torch, transformers, torch.distributed as dist
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
config = transformers.LlamaConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=4096, use_cache=False)
model = transformers.LlamaForCausalLM(config).cuda().train()
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for layer in [model.model.embed_tokens, *model.model.layers]:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard([model.model.norm, model.lm_head], mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    for micro in range(2):
        ids = torch.ones(2, 512, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, torch.cuda.max_memory_allocated())
