#!/usr/bin/env python3
"""usage: hf_types.py PROGRAM   (with transformers): which model types it reads, from each class's default config.json"""
import json, pathlib, subprocess, sys, tempfile
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

KINDS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION")
file = pathlib.Path(tempfile.mkdtemp()) / "config.json"
for kind in KINDS:
    types, refused = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"), []
    for name, classes in types.items():
        try:
            config = AutoConfig.for_model(name).to_dict()
        except Exception:  # no default sizes
            refused.append(name)
            continue
        config |= {"architectures": [classes if isinstance(classes, str) else classes[0]], "model_type": name}
        file.write_text(json.dumps(config, default=str))
        if subprocess.run([sys.argv[1], "models", str(file)], capture_output=True).returncode:
            refused.append(name)
    print(f"{kind}: {len(types) - len(refused)} of {len(types)}; not {' '.join(refused)}")
