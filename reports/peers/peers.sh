#!/bin/bash
# Times one plan in Foreshard and in those peers that pip can install, interleaved; prints medians.
#   reports/peers/peers.sh [ROUNDS=5]     after ./x build and ./x bench; PyTorch takes 5 GB of disk
# WORK (default /tmp/foreshard-peers) keeps the virtual environments; BENCH and FORESHARD name the binaries.
# LARGE=1 adds PyTorch's tracker on GPT-3 175B (minutes).
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
work=${WORK:-/tmp/foreshard-peers}
bench=${BENCH:-build/release/tests/foreshard_bench}
foreshard=${FORESHARD:-build/bin/foreshard}
mkdir -p "$work"

environment() {  # NAME PACKAGE...
  [ -e "$work/$1/ready" ] && return
  python3 -m venv "$work/$1"
  "$work/$1/bin/pip" install -q "${@:2}"
  touch "$work/$1/ready"
}
environment formula llm-analysis==0.2.2
environment torch torch==2.11.0 numpy accelerate==1.15.0 transformers==5.23.0
"$work/torch/bin/pip" show -q deepspeed 2>/dev/null ||
  DS_BUILD_OPS=0 "$work/torch/bin/pip" install -q deepspeed==0.19.8  # its build imports torch

# Each helper prints lines "NAME<TAB>CPU seconds<TAB>wall seconds" of one plan.

cat > "$work/formula.py" <<'PY'
import logging, time
import llm_analysis.analysis as A
from llm_analysis.config import *

A.logger.setLevel(logging.CRITICAL)
model = get_model_config_by_name("megatron-lm-175b")
gpu = get_gpu_config_by_name("h100-sxm-80gb")
dtype = get_dtype_config_by_name("w16a16e16")

def plan(ranks):
    analysis = A.LLMAnalysis(model, gpu, dtype, ParallelismConfig(dp_size=ranks), flops_efficiency=0.5)
    return analysis.training(batch_size_per_gpu=1, seq_len=2048, ds_zero=A.DSZeRO.STAGE_3,
                             activation_recomputation=A.ActivationRecomputation.FULL)

for i in range(100):
    plan(1024)
n, cpu, wall = 1500, time.process_time(), time.perf_counter()
for i in range(n):
    plan(64 << i % 5)  # it refuses fewer ranks: out of memory
print(f"llm-analysis\t{(time.process_time() - cpu) / n}\t{(time.perf_counter() - wall) / n}")
PY

cat > "$work/states.py" <<'PY'
import contextlib, os, sys, time
import torch
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoModel, GPT2Config
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3

def timed(name, n, call):
    call()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(n):
        call()
    print(f"{name}\t{(time.process_time() - cpu) / n}\t{(time.perf_counter() - wall) / n}")

def accelerate():  # what `accelerate estimate-memory` does once it has the configuration
    config = GPT2Config(n_layer=96, n_head=96, n_embd=12288, n_positions=2048)
    with init_empty_weights():
        return calculate_maximum_sizes(AutoModel.from_config(config, dtype=torch.float32))

timed("accelerate estimate-memory", 2, accelerate)
timed("deepspeed ZeRO-3 states", 100000, lambda: zero3(174604259328, 1812369408, 8, 128))
PY

cat > "$work/tracker.py" <<'PY'
import sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # collectives on fake tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

class GPTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(d, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))

class LlamaBlock(nn.Module):
    def __init__(self, d, heads, kv_heads, ffn):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.head, kv = d // heads, kv_heads * d // heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = linear(d, d), linear(d, kv), linear(d, kv), linear(d, d)
        self.w1, self.w2, self.w3 = linear(d, ffn), linear(ffn, d), linear(d, ffn)

    def forward(self, x):
        b, s, d = x.shape
        y = self.n1(x)
        q, k, v = (p(y).view(b, s, -1, self.head).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, d))
        y = self.n2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

class LM(nn.Module):
    def __init__(self, vocab, d, blocks):
        super().__init__()
        self.emb, self.layers = nn.Embedding(vocab, d), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, tokens):
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

MODELS = {
    "8B": lambda: LM(128256, 4096, [LlamaBlock(4096, 32, 8, 14336) for _ in range(32)]),
    "175B": lambda: LM(50257, 12288, [GPTBlock(12288, 96) for _ in range(96)]),
}

def seconds():
    return time.process_time(), time.perf_counter()

def report(name, start):
    cpu, wall = seconds()
    print(f"{name}\t{cpu - start[0]}\t{wall - start[1]}", flush=True)

name, ranks = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
mesh = init_device_mesh("cpu", (ranks,))
start = seconds()
with FakeTensorMode():
    model = MODELS[name]()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        model.layers[i] = fully_shard(checkpoint_wrapper(layer, preserve_rng_state=False), mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    tokens = torch.zeros(1, 2048, dtype=torch.long)
    built = seconds()
    tracker = FSDPMemTracker(model)
    tracker.track_inputs((tokens,))
    with tracker:
        model(tokens).sum().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
report(f"FSDPMemTracker {name}, forward and backward only", built)
report(f"FSDPMemTracker {name}, with building the model", start)
print(f"FSDPMemTracker {name}: peak {peak} bytes on {ranks} ranks", file=sys.stderr)
PY

ours() {
  "$bench" --benchmark_filter=BM_PlanToMemoryAndTime --benchmark_min_time=0.5 --benchmark_format=csv 2>/dev/null |
    awk -F, '/^"BM_Plan/ { printf "foreshard, in process\t%g\t%g\n", $4 / 1e9, $3 / 1e9 }'
}
process() {  # NAME COMMAND...: seconds of a whole process
  local TIMEFORMAT="%U %S %R" times
  times=$({ time "${@:2}" >/dev/null 2>&1; } 2>&1)
  awk -v name="$1" '{ printf "%s\t%g\t%g\n", name, $1 + $2, $3 }' <<<"$times"
}
predict=("$foreshard" predict --model gpt3-175b --cluster 1024xh100 --set recompute=full --json)
train=("$work/formula/bin/python" -m llm_analysis.analysis train --model_name megatron-lm-175b
  --gpu_name h100-sxm-80gb --ds_zero 3 --dp_size 1024 --total_num_gpus 1024 --activation_recomputation 2
  --flops_efficiency 0.5 --batch_size_per_gpu 1 --seq_len 2048 --log_level ERROR)

export CUDA_VISIBLE_DEVICES= PYTHONWARNINGS=ignore HF_HUB_OFFLINE=1 DS_ACCELERATOR=cpu
for ((round = 1; round <= rounds; ++round)); do
  for pair in 1 2 3 4 5; do
    ours
    "$work/formula/bin/python" "$work/formula.py" 2>/dev/null
  done
  process "foreshard, whole process" "${predict[@]}"
  process "llm-analysis, whole process" "${train[@]}"
  "$work/torch/bin/python" "$work/states.py" 2>/dev/null
  ours
  "$work/torch/bin/python" "$work/tracker.py" 8B 64
  [ -z "${LARGE:-}" ] || "$work/torch/bin/python" "$work/tracker.py" 175B 1024
done | tee "$work/times.tsv" >&2

python3 - "$work/times.tsv" <<'PY'
import collections, statistics, sys
rows = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, cpu, wall = line.rstrip("\n").split("\t")
    rows[name].append((float(cpu), float(wall)))
base = statistics.median(cpu for cpu, _ in rows["foreshard, in process"])
print(f"{'median of one plan':52}{'n':>4}{'CPU ms':>12}{'min':>12}{'max':>12}{'wall ms':>12}{'ratio':>12}")
for name, times in rows.items():
    cpu, wall = (statistics.median(t[i] for t in times) for i in (0, 1))
    low, high = (f(t[0] for t in times) for f in (min, max))
    print(f"{name:52}{len(times):4}" + "".join(f"{1e3 * v:12.4g}" for v in (cpu, low, high, wall)) + f"{cpu / base:12.4g}")
PY
