import os, sys

import torch, transformers, deepspeed
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
config = transformers.LlamaConfig(hidden_size=512, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=1024, use_cache=False)
settings = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": int(sys.argv[1])}, "steps_per_print": 1000}
settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
engine, *_ = deepspeed.initialize(model=transformers.LlamaForCausalLM(config), config=settings)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.ones(4, 256, dtype=torch.long, device="cuda")
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
