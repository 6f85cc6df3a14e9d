#!/usr/bin/env python3
"""Models of transformers through capture and forecast, small: what works, and what fails and why.

  capture_fleet.py BIN [NAME ...]     BIN is the folder with foreshard-null and foreshard; needs PyTorch
                                      with CUDA's libraries and transformers; prints a table in Markdown

Each model has a few layers and random weights, runs three optimizer steps on one GPU under bf16
autocast, and is held to what PyTorch's allocator says of its peak. No model's code is touched.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

TRAIN = """
import json, sys, torch, transformers
name, changes, inputs = json.loads(sys.argv[1])
transformers.logging.set_verbosity_error()
config = getattr(transformers, name + "Config")(**changes)
heads = {"vision": ["ForImageClassification"], "audio": ["ForCTC", "ForAudioClassification"]}
names = heads.get(inputs, ["ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "Model"])
model = getattr(transformers, next(name + n for n in names if hasattr(transformers, name + n)))(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    if inputs == "vision":
        size = changes.get("image_size", 224)
        batch = {"pixel_values": torch.randn(2, 3, size, size, device="cuda"), "labels": torch.zeros(2, dtype=torch.long, device="cuda")}
    elif inputs == "audio":
        batch = {"input_values": torch.randn(2, 16000, device="cuda"), "labels": torch.ones(2, 12, dtype=torch.long, device="cuda")}
    else:
        ids = torch.ones(2, 256, dtype=torch.long, device="cuda")
        batch = {"input_ids": ids, "labels": ids}
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("PEAK", torch.cuda.max_memory_allocated())
"""
DECODER = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=4096)
GPT = dict(n_embd=512, n_layer=4, n_head=8, vocab_size=4096)
ENCODER = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1024)
MOE = dict(DECODER, moe_intermediate_size=256)
FLEET = {
    "Llama": (DECODER, "text"), "Qwen2": (DECODER, "text"), "Qwen3": (dict(DECODER, head_dim=64), "text"), "Qwen3Moe": (dict(MOE, num_experts=8, head_dim=64), "text"),
    "Mistral": (DECODER, "text"), "Mixtral": (dict(DECODER, num_local_experts=4), "text"), "Gemma2": (dict(DECODER, head_dim=64), "text"),
    "Phi3": (dict(DECODER, pad_token_id=0), "text"), "Olmo2": (DECODER, "text"), "Granite": (DECODER, "text"), "GPT2": (GPT, "text"), "GPTNeoX": (dict(ENCODER, vocab_size=4096), "text"),
    "Bloom": (dict(hidden_size=512, n_layer=4, n_head=8, vocab_size=4096), "text"), "OPT": (dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, ffn_dim=1024, vocab_size=4096, word_embed_proj_dim=512), "text"),
    "Falcon": (dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, vocab_size=4096), "text"), "T5": (dict(d_model=512, d_kv=64, num_layers=4, num_heads=8, d_ff=1024, vocab_size=4096), "text"),
    "Bert": (dict(ENCODER, vocab_size=4096), "text"), "Roberta": (dict(ENCODER, vocab_size=4096), "text"), "ModernBert": (dict(ENCODER, vocab_size=4096, pad_token_id=0), "text"),
    "ViT": (ENCODER, "vision"), "Dinov2": (ENCODER, "vision"), "ConvNext": (dict(depths=[1, 1, 2, 1]), "vision"), "Swin": (dict(depths=[1, 1, 2, 1]), "vision"), "ResNet": (dict(depths=[1, 1, 2, 1]), "vision"),
    "Wav2Vec2": (dict(ENCODER, vocab_size=32), "audio"), "Mamba2": (dict(hidden_size=512, num_hidden_layers=2, num_heads=16, head_dim=64, vocab_size=4096), "text"),
    "DeepseekV3": (dict(MOE, n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=128, kv_lora_rank=64), "text"),
    "GptOss": (dict(DECODER, num_local_experts=4, head_dim=64), "text"),
}


def last_line(text):
    lines = [line for line in text.strip().split("\n") if line.strip()]
    return lines[-1][:160] if lines else ""


def run(program, name):
    changes, inputs = FLEET[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "train.py").write_text(TRAIN)
        ran = subprocess.run(
            [program / "foreshard-null", "--gpu", "h100", "--out", folder / "capture", "--", "python3", folder / "train.py", json.dumps([name, changes, inputs])],
            capture_output=True, text=True, timeout=600)
        if ran.returncode != 0:
            return f"exit {ran.returncode}", last_line(ran.stderr)
        peak = next(int(line.split()[1]) for line in ran.stdout.split("\n") if line.startswith("PEAK"))
        said = subprocess.run([program / "foreshard", "predict", "--json", "--capture", folder / "capture", "--cluster", "1xh100"], capture_output=True, text=True)
        if said.returncode != 0:
            return f"predict {said.returncode}", last_line(said.stderr)
        report = json.loads(said.stdout)
        forecast = report["memory"]["peak_allocated_bytes"]["value"]
        unknown = sum(kernel["share"] for kernel in report["capture"]["unknown_kernels"])
        notes = "; ".join(kernel["name"][:60] for kernel in report["capture"]["unknown_kernels"][:2])
        memory = "to the byte" if forecast == peak else f"{forecast / peak - 1:+.2%}"
        return f"{report['capture']['launches']} launches, {report['step']['seconds']['value'] * 1e3:.1f} ms, peak {memory}, {unknown:.1%} unknown", notes


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    print("| model | result | kernels priced by bytes, or why not |\n| --- | --- | --- |", flush=True)
    for name in sys.argv[2:] or FLEET:
        result, notes = run(program, name)
        print(f"| {name} | {result} | {notes} |", flush=True)


if __name__ == "__main__":
    main()
