#!/usr/bin/env python3
"""usage: hf_types.py PROGRAM [KIND ...]   (with transformers): which model types it reads, from each class's default config.json, and of
those that are read which have other parameters than the class (of a model with images or audio: than its language model and head)

hf_types.py PROGRAM --capture KIND.TYPE ...   by three of its own steps on the null GPU instead (four layers of the default sizes, three
samples): the peak of the imported plan against what it asked for, and against five samples' that the import has not seen"""
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


def few_layers(config):
    keys = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth")
    made = {key: 4 for key in keys if isinstance(config.get(key), int) and config[key] > 4}
    for key, part in config.items():
        if key.endswith("_config") and isinstance(part, dict) and (few := few_layers(part)):
            made[key] = few | ({"model_type": part["model_type"]} if part.get("model_type") else {})
    return made


def by_capture(said):
    kind, name = said.split(".")
    config = AutoConfig.for_model(name, **few_layers(AutoConfig.for_model(name).to_dict()))
    if getattr(config, "vocab_size", 0) is None:  # ESM's
        config.vocab_size = 33
    classes = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")[name]
    keys = json.loads(config.to_json_string(use_diff=True)) | {"architectures": [classes if isinstance(classes, str) else classes[0]], "model_type": name}
    file.write_text(json.dumps(keys))
    captures, program = {n: file.with_name(f"{n}") for n in (3, 5)}, sys.argv[1]
    for n, capture in captures.items():
        words = (program + "-null", "--gpu", "b300", "--config", file, "--batch", n, "--out", capture, "--", sys.executable)
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode:
            return "not captured: " + done.stderr.strip().splitlines()[-1]
    plan = file.with_name("plan.yaml")
    plan.unlink(missing_ok=True)
    _, error = answer(program, "import", captures[3], "--out", file.with_name("model.yaml"), "--plan", plan)
    if not plan.exists():
        return "not imported: " + error.strip().splitlines()[-1]
    off = []
    for n, capture in captures.items():
        here = asked(ask(program, "predict", "--capture", capture, "--cluster", "1xb300"), capture)
        planned = ask(program, "predict", "--plan", plan, "--set", f"batch.micro_batch={n}")["memory"]["peak_allocated_bytes"]["value"]
        off.append(f"{100 * (planned / here - 1):+.2f} %")
    return "peak " + ", ".join(off)


file = pathlib.Path(tempfile.mkdtemp()) / "config.json"
if "--capture" in sys.argv:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reports"))
    from captured_plans import answer, ask, asked

    for said in sys.argv[3:]:
        print(said, by_capture(said), flush=True)
    sys.exit()
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
