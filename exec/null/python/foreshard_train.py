"""Three training steps of a model of transformers, by its config.json alone: what foreshard-null --config runs.

The class is the first of `architectures`, else the first of transformers' tasks that has one; the batch is what its forward takes;
random weights, AdamW, one GPU; in fp32 under bf16 autocast (the Trainer's bf16=True), all in bf16, or all in fp32.
"""

import argparse
import contextlib
import inspect
import json
import sys

import torch

TASKS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION", "CTC", "SPEECH_SEQ_2_SEQ", "AUDIO_CLASSIFICATION",
         "SEMANTIC_SEGMENTATION", "ZERO_SHOT_IMAGE_CLASSIFICATION")
ON_THE_HOST = 3e8  # parameters up to which a model is made on the host, where its own code can read what it computes


def note(text):
    sys.stderr.write("foreshard-null: %s\n" % text)


def class_of(config):
    import transformers
    from transformers.models.auto import modeling_auto

    named = [name for name in config.architectures or () if hasattr(transformers, name)]
    for task in TASKS:
        named += [getattr(modeling_auto, "MODEL_FOR_%s_MAPPING_NAMES" % task).get(config.model_type, ())]
    named = [name if isinstance(name, str) else name[0] for name in named if name]
    if not named:
        raise SystemExit("foreshard-null: transformers %s has no class that is trained for model_type %r; write the step as a program of its own (docs/capture.md)"
                         % (transformers.__version__, config.model_type))
    return getattr(transformers, named[0])


def made(kind, config):
    with torch.device("meta"), contextlib.suppress(Exception):
        if sum(p.numel() for p in kind(config).parameters()) > ON_THE_HOST:
            with torch.device("cuda"):
                return kind(config)
    return kind(config).cuda()


def first(*values):
    return next((v for v in values if v is not None), None)


def pair(size):
    return tuple(size)[-2:] if isinstance(size, (list, tuple)) else (size["height"], size["width"]) if isinstance(size, dict) else (size, size)


class Batch:
    def __init__(self, model, batch, sequence):
        self.model, self.config, self.batch = model, model.config, batch
        self.takes = inspect.signature(model.forward).parameters
        self.text = self.config.get_text_config()
        self.vision = first(getattr(self.config, "vision_config", None), self.config)
        longest = first(*(getattr(self.text, key, None) for key in ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length")), 2048)
        self.sequence = sequence or min(2048, max(8, longest // 8 * 8))

    def ids(self):
        return torch.ones(self.batch, self.sequence, dtype=torch.long, device="cuda")

    def zeros(self, *shape):
        return torch.zeros(*shape, dtype=torch.long, device="cuda")

    def images(self):
        """Names and tensors; of models that take patches in one row, of one square of them for each sample."""
        of = lambda *keys: first(*(getattr(self.vision, key, None) for key in keys))
        channels = first(of("num_channels", "in_channels", "in_chans"), 3)
        if "image_grid_thw" in self.takes:
            merge, patch = first(of("spatial_merge_size"), 2), of("patch_size")
            side = 16 * merge
            row = channels * first(of("temporal_patch_size"), 1) * patch * patch
            return {"pixel_values": torch.zeros(self.batch * side * side, row, device="cuda"), "image_grid_thw": torch.tensor([[1, side, side]] * self.batch, device="cuda")}
        return {"pixel_values": torch.zeros(self.batch, channels, *pair(first(of("image_size"), 224)), device="cuda")}

    def with_images(self):
        """Tokens of an image stand before the text's, as many as the model makes of one."""
        images, ids = self.images(), self.ids()
        token = first(getattr(self.config, "image_token_id", None), getattr(self.config, "image_token_index", None))
        with torch.no_grad():
            made = self.model.get_image_features(**images)
        made = first(getattr(made, "pooler_output", None), made)
        rows = sum(t.numel() // t.shape[-1] for t in (made if isinstance(made, (list, tuple)) else [made]))
        before = torch.full((self.batch, rows // self.batch), token, dtype=torch.long, device="cuda")
        return {"input_ids": torch.cat([before, ids], 1), **images}

    def inputs(self):
        main = getattr(self.model, "main_input_name", "input_ids")
        if "input_ids" in self.takes and hasattr(self.model, "get_image_features") and "pixel_values" in self.takes:
            try:
                return self.with_images()
            except Exception as error:
                note("no image is given, for how many tokens one has is not known (%s: %s); the text is trained alone" % (type(error).__name__, str(error).splitlines()[:1]))
        given = {}
        if "input_ids" in self.takes and main not in ("input_features", "input_values"):
            given["input_ids"] = self.ids()
        if main == "pixel_values" or ("pixel_values" in self.takes and "return_loss" in self.takes):
            given |= self.images()
        if main == "input_values":
            given["input_values"] = torch.zeros(self.batch, self.sequence * 320, device="cuda")
        if main == "input_features":
            bins = first(getattr(self.config, "num_mel_bins", None), getattr(self.config, "feature_projection_input_dim", None), 80)
            frames = 2 * first(getattr(self.config, "max_source_positions", None), 1500)
            given["input_features"] = torch.zeros(self.batch, bins, frames, device="cuda")
        return given

    def labels(self, inputs):
        if "return_loss" in self.takes and "labels" not in self.takes:
            return {"return_loss": True}
        name = type(self.model).__name__
        if "start_positions" in self.takes:
            return {"start_positions": self.zeros(self.batch), "end_positions": self.zeros(self.batch)}
        if "labels" not in self.takes or "Detection" in name or "MultipleChoice" in name:
            return {}
        if "TokenClassification" in name:
            return {"labels": self.zeros(self.batch, self.sequence)}
        if "Segmentation" in name:
            return {"labels": self.zeros(self.batch, *inputs["pixel_values"].shape[-2:])}
        if "Classification" in name or "NextSentence" in name:
            return {"labels": self.zeros(self.batch)}
        return {"labels": first(inputs.get("input_ids"), torch.ones(self.batch, 32, dtype=torch.long, device="cuda"))}


def loss_of(output):
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    tensors = [t for t in (output.values() if hasattr(output, "values") else output) if torch.is_tensor(t) and t.requires_grad]
    return tensors[0].float().mean()


def main():
    import transformers

    said = argparse.ArgumentParser(prog="foreshard-null --config")
    said.add_argument("config")
    said.add_argument("--batch", type=int, default=1)
    said.add_argument("--sequence", type=int)
    said.add_argument("--dtype", default="autocast")
    said = said.parse_args()
    transformers.logging.set_verbosity_error()
    with open(said.config) as file:
        keys = json.load(file)
    config = transformers.CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    for key in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, key, None) is None:
            setattr(config, key, 0)
    for part in (config, config.get_text_config()):
        part.use_cache = False  # as Trainer has it
    model = made(class_of(config), config).train()
    if said.dtype == "bf16":
        model.bfloat16()
    batch = Batch(model, said.batch, said.sequence)
    inputs = batch.inputs()
    inputs |= batch.labels(inputs)
    inputs = {name: t.to(model.dtype) if torch.is_tensor(t) and t.is_floating_point() else t for name, t in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16, enabled=said.dtype == "autocast"):
            loss = loss_of(model(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("%s: %s, allocated %d bytes at the most" % (type(model).__name__, ", ".join("%s %s" % (k, list(v.shape)) for k, v in inputs.items() if torch.is_tensor(v)),
                                                   torch.cuda.max_memory_allocated()))


if __name__ == "__main__":
    main()
