#!/usr/bin/env python3
"""usage: hf_types.py PROGRAM [KIND ...]   (with transformers): which model types it reads, from each class's default config.json, and of
those that are read which have other parameters than the class (of a model with images or audio: than its language model and head)"""
import json, pathlib, subprocess, sys, tempfile
import torch, transformers
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

KINDS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION")


def parameters(name, config):
    """Of the class, or of what it answers by; None where it cannot be made of its defaults."""
    try:
        with torch.device("meta"):
            model = getattr(transformers, name)._from_config(config)
            text = [model.get_decoder(), *[m for n, m in model.named_children() if n != "model"]] if hasattr(config, "text_config") else [model]
        return {sum(p.numel() for p in {q for part in parts for q in part.parameters()}) for parts in (text, [*text[:1], model.get_output_embeddings() or text[0]], [model])}
    except Exception:
        return None


file = pathlib.Path(tempfile.mkdtemp()) / "config.json"
for kind in sys.argv[2:] or KINDS:
    types, refused, differ = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"), [], []
    for name, classes in types.items():
        try:
            config = AutoConfig.for_model(name)
        except Exception:  # no default sizes
            refused.append(name)
            continue
        named = classes if isinstance(classes, str) else classes[0]
        file.write_text(json.dumps(config.to_dict() | {"architectures": [named], "model_type": name}, default=str))
        done = subprocess.run([sys.argv[1], "models", str(file), "--json"], capture_output=True, text=True)
        if done.returncode:
            refused.append(name)
        elif (its := parameters(named, config)) and json.loads(done.stdout)["parameters"] not in its:
            differ.append(f"{name} by {min((json.loads(done.stdout)['parameters'] - n for n in its), key=abs):+}")
    print(f"{kind}: {len(types) - len(refused)} of {len(types)}; not {' '.join(refused)}; other parameters: {', '.join(differ) or 'none'}", flush=True)
