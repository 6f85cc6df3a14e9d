#!/usr/bin/env python3
"""Training steps of codes that nobody here had looked at (unseen_steps*.csv): what was forecast of
them at first sight, frozen before the first of them was read closely, and what is forecast now.

usage: reports/unseen_steps.py [build/bin/foreshard] > reports/unseen_steps.md
"""
import csv
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
QUANTITY = "step_time_s"
HEAD = """\
# Training codes that nobody here had looked at

Two sets of published training steps, none of which was known when the costs were fitted. Each row has its source;
columns that the source leaves open are `unknown`. Rows of which more than one or two fields rest on a reading, or
whose source contradicts itself, are `score: flag`. The rows were collected without a look at any forecast; the
forecasts of the version of that day were then frozen (`foreshard accuracy ROWS --frozen FIRST_LOOK` compares). **No
coefficient is fitted to these rows**, then or now, and none informs a latent factor. The first look is what a code
that nobody here has read may expect; what it showed was set right from source code, from micro-measurements and from
published figures that are none of these rows, so that today's figures are the optimistic end.
"""
FIRST = """
# The first set, 2026-11-21

[unseen_steps.csv](unseen_steps.csv) has 133 steps of 26 families: PyTorch on A100, H100, H200 and B200 (fms-fsdp,
torchao, LitGPT, KempnerForge, dlrover, fms-acceleration and others), JAX (MaxText, Paxml), NeMo and Megatron-Bridge,
and MI300X and MI355X. Frozen in [unseen_steps_first_look.json](unseen_steps_first_look.json). What it showed:

- refused or ignored words: FSDP1 with compiled blocks or an embedding unit of its own, DDP in fp32, ZeRO with
  parameters on the host, losses in bf16, MaxText's `save_dot_except_mlp`; XLA's FSDP was told as an eager FSDP2
- scaled_dot_product_attention before PyTorch 2.2 is FlashAttention-1, and cuDNN in 2.5 on Hopper
- fp8: products slowed down like those in bf16 on a hot chip (their own tables say by less), and narrow ones by what is
  the amax in front of them (products alone on H100: pytorch/pytorch#143465). Codes that fuse norm, rotary embedding and
  loss by hand (Megatron-Core, Liger) fuse SwiGLU and casts too, and have one product for queries, keys and values;
  TransformerEngine keeps transposes; Megatron's FSDP gathers in place. cuDNN's backward on B200
- H100 and H200 are one chip at one power and share the rate of a hot product
- MI300X had H100's shares of its peaks; now its own, from published products, attention and bandwidth
- optimizer states of parameters in bf16 are in bf16 (memory)
- norms that are compiled (or fused by hand) are two kernels at 2 TB/s in backward, not PyTorch's slow one; Megatron's
  distributed optimizer adds gradients up inside the product and reduces beside backward

Still wrong: Paxml's GPT-5B and 126M of 2023 on H100 (network not published); torchao on a B200 "power limited" to what
is not said; H100 hosts that do not say whether they are limited to 500 W; MXFP8, told as scaling by tensors; GPT-2 124M
on eight A100, 10 to 20 % too fast.
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
- MiniTrainBench (12 steps of 0.02 to 3 B models on 512 tokens, 3 measured after 1) waits for its host: 25 to 50 us a
  kernel, where the costs allow 5 to 25; its steps are 2 to 4 times as long as forecast, and its own repeats differ by
  10 to 19 %. The figures without it stand beside the others.

Still wrong besides: codes that fuse more than a column can say (flash-attention's GPT, 8 to 13 % too slow), MaxText's
70B in bf16 (8 % too slow: a policy of recomputation without a word of its own).
"""
SETS = [
    (FIRST, "unseen_steps", []),
    (SECOND, "unseen_steps_second", ["MT"]),  # families that stand apart
]


def forecasts(program, rows):
    answer = subprocess.run(
        [program, "accuracy", "--json", str(rows)], check=True, capture_output=True, text=True
    )
    return {
        row["id"]: row
        for row in json.loads(answer.stdout)["rows"]
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


def line(rows, of):
    """Median, p90, bias and coverage of rows that `of` forecasts; balanced over groups."""
    groups = {}
    for row in rows:
        if row["id"] in of:
            groups.setdefault((row["id"].split("-")[0], row["gpu"]), []).append(row)
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


def table(title, groups, first, now):
    print(f"| {title} | forecast | median | p90 | bias | covered | now: forecast | median | p90 | bias | covered |")
    print("| --- |" + " ---: |" * 10)
    for name, rows in groups:
        print("| " + " | ".join([name] + line(rows, first) + line(rows, now)) + " |")


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
    parts = [("published in full", sure), ("all", rows)]
    for family in apart:
        parts.insert(1, (f"published in full, without {family}", [r for r in sure if not r["id"].startswith(family)]))
    table("rows", parts, first, now)
    for title, part in (("published in full", sure), ("with those that leave something open", rows)):
        print(f"\n## By family and GPU, rows {title}\n")
        groups = {}
        for row in part:
            groups.setdefault(f"{row['id'].split('-')[0]} {row['gpu']}", []).append(row)
        table("family", sorted(groups.items()), first, now)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
    print(HEAD, end="")
    for text, name, apart in SETS:
        print(text, end="")
        show(program, name, apart)


if __name__ == "__main__":
    main()
