#!/usr/bin/env python3
"""Training steps of codes that nobody here had looked at (unseen_steps*.csv): what was forecast of
them at first sight, frozen before the first of them was read closely, and what is forecast now.

usage: reports/unseen/unseen_steps.py [build/bin/foreshard] > reports/unseen/unseen_steps.md
"""
import csv
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from ask import ask  # noqa: E402

QUANTITY = "step_time_s"
HEAD = """\
# Training codes that nobody here had looked at

Five sets of published training steps, none of which was known when the costs were fitted. Each row has its source;
columns that the source leaves open are `unknown`. Rows of which more than one or two fields rest on a reading, or
whose source contradicts itself, are `score: flag`. The rows were collected without a look at any forecast; the
forecasts of the version of that day were then frozen (`foreshard accuracy ROWS --frozen FIRST_LOOK` compares). **No
coefficient of a mechanism is fitted to these rows**, then or now, and none informs a latent factor. The first look is what a code
that nobody here has read may expect; what it showed was set right from source code, from micro-measurements and from
published figures that are none of these rows, so that today's figures are the optimistic end. How much longer a
code at first sight takes than it is described, and how wide its interval is, is fitted to these sets and steps_axes.csv (docs/axes.md), of a row by the
other sets alone (first_looks.py); tables of today here are of before that.
"""
FIRST = """
# The first set, 2026-11-21

[unseen_steps.csv](unseen_steps.csv) has 133 steps of 26 families: PyTorch on A100, H100, H200 and B200 (fms-fsdp,
torchao, LitGPT, KempnerForge, dlrover, fms-acceleration and others), JAX (MaxText, Paxml), NeMo and Megatron-Bridge,
and MI300X and MI355X. Frozen in [unseen_steps_first_look.json](unseen_steps_first_look.json). What it showed:

- refused or ignored words (FSDP1 with compiled blocks, DDP in fp32, losses in bf16, `save_dot_except_mlp` and others)
- scaled_dot_product_attention before PyTorch 2.2 is FlashAttention-1, cuDNN in 2.5 on Hopper
- fp8: products slowed down like those in bf16 on a hot chip. Codes that fuse norm, rotary embedding and loss by hand
  (Megatron-Core, Liger) fuse SwiGLU and casts too; TransformerEngine keeps transposes; Megatron's FSDP gathers in place
- H100 and H200 share the rate of a hot product; MI300X had H100's shares of its peaks
- optimizer states of parameters in bf16 are in bf16 (memory)
- norms that are compiled (or fused by hand) are two kernels in backward; Megatron's distributed optimizer adds gradients
  up inside the product and reduces beside backward; XLA reduces gradients where products write them, and copies what a
  scan over layers keeps into a stack and out of it (openxla/xla#15265): Paxml's GPT-5B on A100 -18 -> -5 %
- PyTorch's attention on AMD is AOTriton, whose backward is slow: torchao on MI300X -28 to -20 % -> -7 to +1 %

Still wrong: Paxml's GPT-5B and 126M of 2023 on H100 (network not published); torchao on a B200 "power limited" to what
is not said; MXFP8, told as scaling by tensors; GPT-2 124M on eight A100, 10 to 20 % too fast.
"""
SECOND = """
# The second set, 2026-11-22

[unseen_steps_second.csv](unseen_steps_second.csv) has 99 steps of 19 other families: flash-attention's GPT,
MiniTrainBench, OLMo-core, llm.c, MaxText and Paxml of dgxc-benchmarking, Megatron on H100, B200 and MI325X, ms-swift,
ColossalAI, BigScience, fairseq and others, on A100, A800, H100 (SXM, PCIe), GH200, B200, B300, GB200, L40S, V100,
MI300X and MI325X. Frozen in [unseen_steps_second_first_look.json](unseen_steps_second_first_look.json) before any of
them was read. What it showed:

- Megatron's distributed optimizer holds one gradient of the whole model (memory -30 %)
- H100 PCIe had a share of H100's rate by its power; published products of its own say 25 % more of the peak
- MiniTrainBench (12 steps of 0.02 to 3 B models on 512 tokens) waits for its host: 25 to 50 us a kernel, where the costs
  allow 5 to 25; its steps are 2 to 4 times as long as forecast. The figures without it stand beside the others.

Still wrong besides: codes that fuse more than a column can say (flash-attention's GPT, 8 to 14 % too slow), TinyLlama on
H100 PCIe (7 to 16 % too slow), fp8 on MI325X (20 % too slow: its `fa2` is probably aiter's).
"""
THIRD = """
# The third set, 2026-11-23

[unseen_steps_third.csv](unseen_steps_third.csv) has 104 steps of 24 more families: torchtitan as Crusoe, Nebius and
others ran it (GB200, B200, H200, H100), YaFSDP's baselines, Modalities, nanotron, a GPT-2 script on 16 kinds of GPU
(RP), small language models on A6000, A100 and B200 (AL), torch-mojo-backend's PyTorch rows (TM), swiss-ai's Megatron on
GH200, torchtitan on Frontier's MI250X and others. Frozen in
[unseen_steps_third_first_look.json](unseen_steps_third_first_look.json). RP and AL are one author each on many GPUs. What it showed:

- products of an odd width (a feed-forward network of 5461) are padded by the compiler: +93 and +102 -> -7 and -6 %
- norms are not slower than other kernels where a multiprocessor has little bandwidth to fill (A6000, L4, L40S, A40)
- GPT-2 XL with one sequence of 1,024 tokens per GPU (TM) waits for its host: a third of the measured time is forecast

Still wrong besides: Megatron on GH200 (-25 %; its power is shared with the CPU), small models on consumer boards (up to +22 %).
"""
FOURTH = """
# The fourth set, 2026-11-26

[unseen_steps_fourth.csv](unseen_steps_fourth.csv) has 60 steps of 13 more families, 28 with memory: VectorLM (VL), Qwen's fine-tuning (QW),
minGPT under Lightning's FSDP on V100 (LL), TransformerEngine's Llama (TE), GPT-Simple (GS), Falcon-7B under FSDP and ZeRO with
offload (DF), torchtune's flags (TN), XTuner (XB) and LLaMA-Factory (LA) on up to 32 A100, CS336 on a 5090 (RX),
build-nanogpt on H800 and V100 (BN) and A100 (DT), torchtitan in fp8 on B200 (TZ). Every row leaves something open: none is `score: yes`.
Frozen in [unseen_steps_fourth_first_look.json](unseen_steps_fourth_first_look.json) before any forecast of them was seen. What it showed:

- a hook of DeepSpeed's ZeRO-3 was priced as one of `fully_shard`, a gather as one of a unit; measured alone they take a fifth and a third
  (docs/host.md), and Qwen-1.8B and 7B in micro-batches of one sequence +200 .. +337 -> +5 .. +38 %
- before the shift of first looks eight families on one node with fused attention are -9 .. +8 % off; with it -5 .. +33 %

Still wrong besides: GPT-2 XL on V100 (half of the measured time; hosts of 2016, GELU of eight kernels and dropout have no word),
Falcon-7B (-40 %: sequences per GPU are not stated), optimizers on its host (half), 34B and 70B over four nodes whose network is not stated (-13 to -27 %).
"""
FIFTH = """
# The fifth set, 2026-11-26

[unseen_steps_fifth.csv](unseen_steps_fifth.csv) has 60 steps of 17 more families, 49 with memory, on 15 kinds of GPU: FlagPerf's Llama, ChatGLM, Baichuan and
Aquila on A800 and H800 (HZ, GZ, BZ, MZ, LZ, AQ), prime-rl (PR), PaddleNLP (PN), Transformer-Bench (TB), TransformerEngine on
MI300X, H100 and H200 (RT), small models on 4090, A40 and RTX 6000 Ada (RTX, NZ, PL, SN), OpenLM (OZ), ezpz (EZ), FIRE (FI). None is `score: yes`.
Frozen in [unseen_steps_fifth_first_look.json](unseen_steps_fifth_first_look.json). What it showed:

- A800, H800, H200 and GH200 counted as chips that no step informs; they are A100's and H100's
- FlagScale's norms, left open, are apex's kernels: Aquila +31 .. +39 -> +12 .. +19 %

Still wrong: lit-gpt's 70 M model (half; batches are drawn in the training process), fp8 on MI300X in 2024 (-59 %; not tuned, its source says),
prime-rl (-10 .. -34 %; what of transformers is compiled was not read), Llama-3 with tensor parallelism (+17 .. +21 %, by the shift of Hoppers and readings).
"""
SETS = [
    (FIRST, "unseen_steps", []),
    (SECOND, "unseen_steps_second", ["MT"]),  # families that stand apart
    (THIRD, "unseen_steps_third", ["TM"]),
    (FOURTH, "unseen_steps_fourth", ["QW"]),
    (FIFTH, "unseen_steps_fifth", ["PL"]),
]


def forecasts(program, rows):
    return {
        row["id"]: row
        for row in ask(program, "accuracy", rows)["rows"]
        if row["quantity"] == QUANTITY and row.get("predicted")
    }


def quantile(weighted, q):
    weighted = sorted(weighted)
    rest = q * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        rest -= weight
        if rest <= 1e-9:
            return value
    return weighted[-1][0]


def family(row):
    return row["id"].split("-")[0]


def family_and_gpu(row):
    return family(row), row["gpu"]


def line(rows, of, group):
    """Median, p90, bias and coverage of rows that `of` forecasts; balanced over groups."""
    groups = {}
    for row in rows:
        if row["id"] in of:
            groups.setdefault(group(row), []).append(row)
    errors, covered, count = [], 0, 0
    for members in groups.values():
        for row in members:
            forecast, measured = of[row["id"]], float(row["step_time_s"])
            errors.append((forecast["predicted"] / measured - 1, 1 / len(members)))
            covered += forecast["low"] <= measured <= forecast["high"]
            count += 1
    if not errors:
        return ["0", "", "", "", ""]
    sizes = [(abs(error), weight) for error, weight in errors]
    bias = statistics.median(error for error, _ in errors)
    return [
        str(count),
        f"{100 * quantile(sizes, 0.5):.1f}",
        f"{100 * quantile(sizes, 0.9):.1f}",
        f"{100 * bias:+.1f}",
        f"{100 * covered / count:.0f}",
    ]


def table(groups, first, now):
    print("| rows | forecast | median | p90 | bias | covered | now: forecast | median | p90 | bias | covered |")
    print("| --- |" + " ---: |" * 10)
    for name, rows, group in groups:
        print("| " + " | ".join([name] + line(rows, first, group) + line(rows, now, group)) + " |")


def show(program, name, apart):
    path = HERE / f"{name}.csv"
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    frozen = json.loads((HERE / f"{name}_first_look.json").read_text())
    first = {
        row["id"]: row
        for row in frozen["forecasts"]
        if row["quantity"] == QUANTITY and row["predicted"] > 0  # not refused
    }
    now = forecasts(program, path)
    sure = [row for row in rows if row["score"] == "yes"]
    print("\nErrors in per cent, balanced over family and GPU; coverage of the 90 % interval by rows.\n")
    parts = [("published in full", sure, family_and_gpu)]
    for name in apart:
        rest = [row for row in sure if family(row) != name]
        parts.append((f"published in full, without {name}", rest, family_and_gpu))
        parts.append(("the same, balanced over families", rest, family))
    parts.append(("all", rows, family_and_gpu))
    if not sure:
        rest = [row for row in rows if family(row) not in apart]
        parts = [("all", rows, family_and_gpu), (f"without {apart[0]}", rest, family_and_gpu)]
    table(parts, first, now)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
    print(HEAD, end="")
    for text, name, apart in SETS:
        print(text, end="")
        show(program, name, apart)


if __name__ == "__main__":
    main()
