#!/usr/bin/env python3
"""What captures of large models cost: seconds and the host's memory of the program, of reading and forecasting.

    tests/fleet/capture_cost.py BIN [NAME ...]  BIN has foreshard-null and foreshard; needs PyTorch with CUDA's libraries
                                                and transformers; prints a table in Markdown

The largest process's resident memory is what the kernel says of children that have ended.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TRAIN = pathlib.Path(__file__).resolve().parent / "cost_train.py"

# As published beside the weights.
CASES = {
    "Llama-3.1-8B": (64, 8192, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "use_cache": False}),
    "Qwen3-Coder-480B-A35B": (512, 8192, {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 6144, "num_hidden_layers": 62, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "moe_intermediate_size": 2560, "num_experts": 160,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "norm_topk_prob": True, "vocab_size": 151936, "max_position_embeddings": 262144,
        "tie_word_embeddings": False, "use_cache": False}),
}


def timed(*words):
    """Standard output, seconds, and the largest resident memory in bytes of the command's processes."""
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as said, tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(["/usr/bin/time", "-f", "%M", "-o", said.name, *map(str, words)], stdout=out, stderr=subprocess.PIPE, text=True)
        error = child.communicate()[1]
        seconds = time.monotonic() - begin
        if child.returncode != 0:
            return None, error.strip().splitlines()[-1][:200] if error.strip() else f"exit {child.returncode}", 0
        out.seek(0)
        return out.read(), seconds, int(said.read().split()[-1]) * 1024


def row(program, name):
    world, length, config = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        capture = pathlib.Path(folder) / "capture"
        out, seconds, memory = timed(program / "foreshard-null", "--world", world, "--gpu", "b300", "--out", capture, "--", sys.executable, TRAIN, folder, length)
        if out is None:
            return f"| {name} | {world} | {seconds} | | | | |"
        peak = next(int(line.split()[1]) for line in out.splitlines() if line.startswith("PEAK"))
        parameters = sum(math.prod(p["shape"]) for p in json.loads((capture / "model.json").read_text())["parameters"])
        report, forecast_seconds, forecast_memory = timed(program / "foreshard", "predict", "--json", "--capture", capture, "--cluster", f"{world}xb300")
        if report is None:
            return f"| {name} | {world} | {seconds:.1f} | {memory / 2**30:.2f} | {forecast_seconds} | | |"
        report = json.loads(report)
        same = report["memory"]["peak_allocated_bytes"]["value"] == peak
        return (f"| {name}, {parameters / 1e9:.1f}B | {world} | {seconds:.1f} | {memory / 2**30:.2f} | {forecast_seconds:.1f} | {forecast_memory / 2**30:.2f} | "
                f"{report['step']['seconds']['value']:.2f} s, {peak / 2**30:.1f} GiB{' to the byte' if same else ', NOT the allocator’s'} |")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| model | ranks | capture, s | its memory, GiB | forecast, s | its memory, GiB | step, peak |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in sys.argv[2:] or CASES:
        print(row(program, name), flush=True)


if __name__ == "__main__":
    main()
