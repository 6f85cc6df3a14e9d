import os, torch, transformers, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
config = transformers.LlamaConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=4096, use_cache=False)
model = torch.nn.parallel.DistributedDataParallel(transformers.LlamaForCausalLM(config).cuda().train())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.ones(8, 512, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, torch.cuda.max_memory_allocated())
