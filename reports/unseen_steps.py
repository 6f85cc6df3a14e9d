#!/usr/bin/env python3
"""Training steps of codes that nobody here had looked at (unseen_steps.csv): what was forecast of
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
ROWS = HERE / "unseen_steps.csv"
FROZEN = HERE / "unseen_steps_first_look.json"
QUANTITY = "step_time_s"
HEAD = """\
# Training codes that nobody here had looked at

[unseen_steps.csv](unseen_steps.csv) has 133 published training steps of 26 families, none of which was known when the
costs were fitted: PyTorch on A100, H100, H200 and B200 (fms-fsdp, torchao, LitGPT, KempnerForge, dlrover,
fms-acceleration and others), JAX (MaxText, Paxml), NeMo and Megatron-Bridge, and MI300X and MI355X. Each row has its
source; columns that the source leaves open are `unknown`. Rows of which more than one or two fields rest on a reading,
or whose source contradicts itself, are `score: flag`.

The rows were collected without a look at any forecast. The forecasts of the version of that day were then frozen in
[unseen_steps_first_look.json](unseen_steps_first_look.json) (`foreshard accuracy reports/unseen_steps.csv --frozen
reports/unseen_steps_first_look.json` compares). **No coefficient is fitted to these rows**, then or now, and none
informs a latent factor. What the first look showed was set right from source code, from micro-measurements and from
published figures that are none of these rows:

- refused or ignored words: FSDP1 with compiled blocks or an embedding unit of its own, DDP in fp32, ZeRO with
  parameters on the host, losses in bf16, MaxText's `save_dot_except_mlp`; XLA's FSDP was told as an eager FSDP2
- scaled_dot_product_attention before PyTorch 2.2 is FlashAttention-1, and cuDNN in 2.5 on Hopper
- fp8: products slowed down like those in bf16 on a hot chip (their own tables say by less), and narrow ones by what is
  the amax in front of them (products alone on H100: pytorch/pytorch#143465). Codes that fuse norm, rotary embedding and
  loss by hand (Megatron-Core, Liger) fuse SwiGLU and casts too, and have one product for queries, keys and values;
  TransformerEngine keeps transposes; Megatron's FSDP gathers in place. cuDNN's backward on B200
- H100 and H200 are one chip at one power and share the rate of a hot product
- MI300X had H100's shares of its peaks in attention and bandwidth; now what is published of itself, and wide intervals
- optimizer states of parameters in bf16 are in bf16 (memory)

Still wrong: MI300X, 20 to 30 % too fast (no table of its products is public); Paxml's GPT-5B and 126M of 2023 on H100
(network not published); torchao on a B200 "power limited" to what is not said; H100 hosts that do not say whether they
are limited to 500 W; NeMo and Megatron-Bridge on H100, 5 to 12 % too slow (they keep fp8 weights over micro-batches and
add gradients up inside the product); MXFP8, told as scaling by tensors; GPT-2 124M on eight A100, 10 to 20 % too fast.
"""


def forecasts(program):
    answer = subprocess.run(
        [program, "accuracy", "--json", str(ROWS)], check=True, capture_output=True, text=True
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


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
    with open(ROWS, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = {
        row["id"]: row
        for row in json.loads(FROZEN.read_text())["forecasts"]
        if row["quantity"] == QUANTITY and row["predicted"] > 0  # not refused
    }
    now = forecasts(program)
    sure = [row for row in rows if row["score"] == "yes"]
    print(HEAD, end="")
    print("\n## All\n\nErrors in per cent, balanced over family and GPU; coverage of the 90 % interval by rows.\n")
    table("rows", [("published in full", sure), ("all", rows)], first, now)
    for title, part in (("published in full", sure), ("with those that leave something open", rows)):
        print(f"\n## By family and GPU, rows {title}\n")
        groups = {}
        for row in part:
            groups.setdefault(f"{row['id'].split('-')[0]} {row['gpu']}", []).append(row)
        table("family", sorted(groups.items()), first, now)


if __name__ == "__main__":
    main()
