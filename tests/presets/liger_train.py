#!/usr/bin/env python3
"""hf_train.py's loop under Accelerate's FSDP2, on a Llama with Liger's loss, which has the head's product in it, and none of its other kernels.

    liger_train.py CASE.json      `run`: a case of hf_train.py; `model` is a config.json
"""
import json
import pathlib
import sys
import tempfile

import hf_train
from liger_kernel.transformers import apply_liger_kernel_to_llama
from watch import said

case = said()
apply_liger_kernel_to_llama(rope=False, swiglu=False, rms_norm=False, cross_entropy=False, fused_linear_cross_entropy=True)
hf_train.print = lambda *_: None  # the steps are watched
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(case["model"]))
    (folder / "run.json").write_text(json.dumps(case["run"]))
    sys.argv[1:] = [str(folder / "run.json"), str(folder)]
    hf_train.main()
