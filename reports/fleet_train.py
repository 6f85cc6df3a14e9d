#!/usr/bin/env python3
"""A model of a library as a training program on one GPU: a few layers, random weights, three optimizer steps.

    fleet_train.py NAME [VARIANT]      prints what PyTorch's allocator says of the last step; --list says the names

No model's code is touched, and nothing in it knows of the null GPU.
"""
import contextlib
import os
import sys

import torch

DECODER = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024, vocab_size=4096)
ENCODER = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1024)
MOE = dict(DECODER, moe_intermediate_size=256)
GPT = dict(n_embd=512, n_layer=4, n_head=8, vocab_size=4096)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


def images(batch=2, size=224):
    return torch.randn(batch, 3, size, size, device="cuda")


# ---- transformers: the class by name, its config's changes, what it is given ----


def text(batch=2, length=256):
    ids = torch.ones(batch, length, dtype=torch.long, device="cuda")
    return {"input_ids": ids, "labels": ids}


def classes(size=224):
    return {"pixel_values": images(size=size), "labels": zeros(2)}


def waves():
    return {"input_values": torch.randn(2, 16000, device="cuda"), "labels": torch.ones(2, 12, dtype=torch.long, device="cuda")}


def mel():
    return {"input_features": torch.randn(2, 80, 3000, device="cuda"), "labels": torch.ones(2, 32, dtype=torch.long, device="cuda")}


def pairs():
    return {"input_ids": torch.ones(2, 16, dtype=torch.long, device="cuda"), "pixel_values": images(), "return_loss": True}


def with_image(model, patches):
    ids = torch.full((1, patches + 64), 5, dtype=torch.long, device="cuda")
    ids[:, :patches] = model.config.image_token_id
    return ids


def llava(model):
    ids = with_image(model, 256)
    return {"input_ids": ids, "labels": ids, "pixel_values": images(batch=1)}


def qwen_vl(model):
    ids = with_image(model, 64)
    return {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(256, 1176, device="cuda"),
            "image_grid_thw": torch.tensor([[1, 16, 16]], device="cuda")}


TOWER = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)
SMALL_TEXT = dict(TOWER, vocab_size=4096)
TRANSFORMERS = {
    "Llama": ("LlamaForCausalLM", DECODER, text), "Qwen2": ("Qwen2ForCausalLM", DECODER, text), "Qwen3": ("Qwen3ForCausalLM", dict(DECODER, head_dim=64), text),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", dict(MOE, num_experts=8, head_dim=64), text), "Mistral": ("MistralForCausalLM", DECODER, text),
    "Mixtral": ("MixtralForCausalLM", dict(DECODER, num_local_experts=4), text), "Gemma-2": ("Gemma2ForCausalLM", dict(DECODER, head_dim=64), text),
    "Gemma-3": ("Gemma3ForCausalLM", dict(DECODER, head_dim=64), text), "Phi-3": ("Phi3ForCausalLM", dict(DECODER, pad_token_id=0), text),
    "OLMo-2": ("Olmo2ForCausalLM", DECODER, text), "gpt-oss": ("GptOssForCausalLM", dict(DECODER, num_local_experts=4, head_dim=64), text),
    "Granite": ("GraniteForCausalLM", DECODER, text),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", dict(MOE, num_key_value_heads=8, n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=128, kv_lora_rank=64), text),
    "GPT-2": ("GPT2LMHeadModel", GPT, text), "GPT-NeoX": ("GPTNeoXForCausalLM", dict(ENCODER, vocab_size=4096), text),
    "BLOOM": ("BloomForCausalLM", dict(hidden_size=512, n_layer=4, n_head=8, vocab_size=4096), text),
    "OPT": ("OPTForCausalLM", dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, ffn_dim=1024, vocab_size=4096, word_embed_proj_dim=512), text),
    "Falcon": ("FalconForCausalLM", dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, vocab_size=4096), text),
    "StarCoder2": ("Starcoder2ForCausalLM", DECODER, text), "Phi": ("PhiForCausalLM", DECODER, text), "Cohere": ("CohereForCausalLM", DECODER, text), "StableLM": ("StableLmForCausalLM", DECODER, text),
    "T5": ("T5ForConditionalGeneration", dict(d_model=512, d_kv=64, num_layers=4, num_heads=8, d_ff=1024, vocab_size=4096, decoder_start_token_id=0), text),
    "BERT": ("BertForMaskedLM", dict(ENCODER, vocab_size=4096), text), "RoBERTa": ("RobertaForMaskedLM", dict(ENCODER, vocab_size=4096), text),
    "ModernBERT": ("ModernBertForMaskedLM", dict(ENCODER, vocab_size=4096, pad_token_id=0), text),
    "ViT": ("ViTForImageClassification", ENCODER, classes), "DINOv2": ("Dinov2ForImageClassification", ENCODER, classes),
    "CLIP": ("CLIPModel", dict(text_config=SMALL_TEXT, vision_config=TOWER, projection_dim=256), pairs),
    "SigLIP": ("SiglipModel", dict(text_config=SMALL_TEXT, vision_config=dict(TOWER, image_size=224, patch_size=16)), pairs),
    "LLaVA": ("LlavaForConditionalGeneration", dict(text_config=dict(DECODER, model_type="llama"), vision_config=dict(TOWER, model_type="clip_vision_model", image_size=224, patch_size=14), image_token_index=4000), llava),
    "Qwen2.5-VL": ("Qwen2_5_VLForConditionalGeneration", dict(text_config=dict(DECODER, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}), vision_config=dict(depth=2, hidden_size=256, num_heads=4, intermediate_size=512, out_hidden_size=512, fullatt_block_indexes=[1]), image_token_id=4000, vision_start_token_id=4001, video_token_id=4002, vision_end_token_id=4003), qwen_vl),
    "Whisper": ("WhisperForConditionalGeneration", dict(d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512), mel),
    "Wav2Vec2": ("Wav2Vec2ForCTC", dict(ENCODER, vocab_size=32), waves),
    "Mamba-2": ("Mamba2ForCausalLM", dict(hidden_size=512, num_hidden_layers=2, num_heads=16, head_dim=64, vocab_size=4096), text),
    "ConvNeXt (transformers)": ("ConvNextForImageClassification", dict(depths=[1, 1, 2, 1]), classes),
    "Swin (transformers)": ("SwinForImageClassification", dict(depths=[1, 1, 2, 1]), classes),
    "ResNet (transformers)": ("ResNetForImageClassification", dict(depths=[1, 1, 2, 1]), classes),
}


def transformer(name):
    import transformers

    transformers.logging.set_verbosity_error()
    model_class, changes, inputs = TRANSFORMERS[name]
    model_class = getattr(transformers, model_class)
    model = model_class(model_class.config_class(**changes)).cuda().train()
    takes_model = inputs in (llava, qwen_vl)
    return model, lambda: model(**(inputs(model) if takes_model else inputs())).loss


# ---- other libraries ----


def timm_model(kind):
    import timm

    model = timm.create_model(kind, num_classes=100).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(images()), zeros(2))


def detector():
    import torchvision

    model = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).cuda().train()
    boxes = [{"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]]).cuda(), "labels": torch.ones(1, dtype=torch.long).cuda()}]
    return model, lambda: sum(model([images(1, 320)[0]], boxes).values())


def segmenter():
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(images())["out"], zeros(2, 224, 224))


def dit():
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=4, sample_size=32).cuda().train()

    def loss():
        noise = torch.randn(2, 4, 32, 32, device="cuda")
        return torch.nn.functional.mse_loss(model(noise, timestep=zeros(2), class_labels=zeros(2)).sample.float(), noise)

    return model, loss


def sdxl():
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(sample_size=32, in_channels=4, out_channels=4, block_out_channels=(64, 128), layers_per_block=1, attention_head_dim=(4, 8), cross_attention_dim=256,
                                 down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                                 transformer_layers_per_block=(1, 2), use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=32,
                                 projection_class_embeddings_input_dim=32 * 6 + 64).cuda().train()

    def loss():
        noise = torch.randn(2, 4, 32, 32, device="cuda")
        said = {"text_embeds": torch.randn(2, 64, device="cuda"), "time_ids": torch.zeros(2, 6, device="cuda")}
        made = model(noise, timestep=zeros(2), encoder_hidden_states=torch.randn(2, 77, 256, device="cuda"), added_cond_kwargs=said).sample
        return torch.nn.functional.mse_loss(made.float(), noise)

    return model, loss


def torch_transformer():
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(4096, 512), torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(512, 4096)).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(2, 256)).flatten(0, 1), zeros(512))


def lstm():
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.body, self.head = torch.nn.Embedding(4096, 256), torch.nn.LSTM(256, 256, 2, batch_first=True), torch.nn.Linear(256, 10)

        def forward(self, ids):
            return self.head(self.body(self.words(ids))[0])

    model = Tagger().cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(2, 64)).flatten(0, 1), zeros(128))


def own_kernel():
    """A kernel in Triton that its author tunes, as a layer of its own."""
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"SIZE": size}) for size in (256, 1024)], key=["count"])
    @triton.jit
    def squared_relu(source, result, count, SIZE: tl.constexpr):
        at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        value = tl.maximum(tl.load(source + at, mask=at < count), 0)
        tl.store(result + at, value * value, mask=at < count)

    class SquaredRelu(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            out = torch.empty_like(x)
            squared_relu[lambda said: (triton.cdiv(x.numel(), said["SIZE"]),)](x, out, x.numel())
            return out

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return 2 * gradient * x.clamp(min=0)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)

        def forward(self, x):
            return x + self.down(SquaredRelu.apply(self.up(x)))

    model = torch.nn.Sequential(torch.nn.Embedding(4096, 512), *[Layer() for _ in range(4)], torch.nn.Linear(512, 4096)).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(2, 256)).flatten(0, 1), zeros(512))


OTHERS = {
    "timm ConvNeXt": lambda: timm_model("convnext_atto"), "timm Swin": lambda: timm_model("swin_tiny_patch4_window7_224"), "timm ResNet-50": lambda: timm_model("resnet50"),
    "timm ViT": lambda: timm_model("vit_tiny_patch16_224"), "timm EfficientNet": lambda: timm_model("efficientnet_b0"),
    "torchvision RetinaNet": detector, "torchvision DeepLabV3": segmenter, "diffusers DiT": dit, "diffusers SDXL UNet": sdxl,
    "torch.nn.TransformerEncoder": torch_transformer, "torch.nn.LSTM": lstm, "a Triton kernel of one's own": own_kernel,
}

# ---- how it is trained ----


def low_rank(model):
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))


def quantized(name):
    import transformers

    _, changes, inputs = TRANSFORMERS[name]
    import bitsandbytes

    model, _ = transformer(name)
    for module in list(model.model.layers.modules()):
        for child, of in list(module.named_children()):
            if isinstance(of, torch.nn.Linear):
                packed = bitsandbytes.nn.Linear4bit(of.in_features, of.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
                packed.weight = bitsandbytes.nn.Params4bit(of.weight.data.cpu(), requires_grad=False, quant_type="nf4")
                setattr(module, child, packed.cuda())
    model = low_rank(model)
    del transformers
    return model, lambda: model(**inputs()).loss


def optimizer_of(variant, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    if variant == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    if variant == "muon":
        inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
        return torch.optim.Muon(inner, lr=1e-3)
    return torch.optim.AdamW(trained, lr=1e-4)


def build(name, variant):
    if variant == "qlora":
        return quantized(name)
    model, loss = transformer(name) if name in TRANSFORMERS else OTHERS[name]()
    if variant == "lora":
        model = low_rank(model)
        return model, lambda: model(**text()).loss
    if variant == "checkpointed":
        model.gradient_checkpointing_enable()
    if variant == "bf16":
        model.bfloat16()
    if variant == "compiled":
        model.compile()
    if variant == "CUDA graphs":
        model.compile(mode="reduce-overhead")
    return model, loss


VARIANTS = ["checkpointed", "compiled", "CUDA graphs", "fp32", "bf16", "accumulation", "lora", "qlora", "adam8bit", "muon"]
FLEET = [(name, "") for name in [*TRANSFORMERS, *OTHERS]] + [("Llama", variant) for variant in VARIANTS]


def main():
    if "--list" in sys.argv:
        print("\n".join(f"{name}\t{variant}" for name, variant in FLEET))
        return
    name, variant = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model, loss = build(name, variant)
    optimizer = optimizer_of(variant, model)
    autocast = contextlib.nullcontext if variant in ("fp32", "bf16") else lambda: torch.autocast("cuda", torch.bfloat16)
    for _ in range(6 if variant == "CUDA graphs" else 3):  # which are captured in their second step
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4 if variant == "accumulation" else 1):
            with autocast():
                made = loss()
            made.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
