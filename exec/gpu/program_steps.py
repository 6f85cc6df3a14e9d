#!/usr/bin/env python3
"""Steps of programs of many libraries (tests/fleet/fleet_train.py --real) on one GPU, beside their captures.

    python3 program_steps.py --out programs/codes.jsonl [--only NAME,...] [--seconds 300]

Rows as those of code_steps.py. Each program's capture is made where there is no GPU, before it runs on one, with the versions of the
GPU's machine; reports/capture/gpu_kernels.py holds them against each other:

    foreshard-null --gpu h200 --out CAPTURES/NAME -- python3 tests/fleet/fleet_train.py --real NAME [VARIANT]

Needs torch 2.11 and the libraries of the programs; random weights and data.
"""
import argparse
import pathlib
import re
import sys

import code_steps

VARIANTS = ["lora", "muon", "compiled", "CUDA graphs", "bf16", "fp32", "checkpointed", "accumulation"]  # of Llama


def cases():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "fleet"))
    import fleet_train
    return [dict(name=re.sub("[^A-Za-z0-9.]+", "-", f"{name} {variant}").strip("-"), program=name, variant=variant, world=1)
            for name, variant in [(name, "") for name in fleet_train.REAL] + [("Llama", variant) for variant in VARIANTS]]


def import_known(_):
    code_steps.import_beside()
    import diffusers  # noqa: F401
    import peft  # noqa: F401
    import timm  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    import fsdp2_steps  # noqa: F401


def run(c, folder):
    import fleet_train
    import torch
    torch.manual_seed(0)
    row = {"name": c["name"], "case": {k: v for k, v in c.items() if k != "name"}, "torch": torch.__version__}
    return code_steps.measured(row, fleet_train.program(c["program"], c["variant"], real=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="file of rows, one JSON object a line")
    parser.add_argument("--only", help="names of programs")
    parser.add_argument("--seconds", type=float, default=300, help="for all; what does not begin by then is left out")
    parser.add_argument("--list", action="store_true", help="name, program, variant")
    args = parser.parse_args()
    chosen = [c for c in cases() if not args.only or c["name"] in args.only.split(",")]
    if args.list:
        print("\n".join("\t".join((c["name"], c["program"], c["variant"])) for c in chosen))
        return 0
    if not args.out:
        parser.error("--out is missing")
    return code_steps.run_all(chosen, code_steps.rows_file(args.out), args.seconds, run, import_known)


if __name__ == "__main__":
    sys.exit(main())
