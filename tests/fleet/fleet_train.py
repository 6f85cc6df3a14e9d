#!/usr/bin/env python3
"""A model of a library as a training program on one GPU: a few layers, random weights, three optimizer steps.

    fleet_train.py [--real] NAME [VARIANT]      prints what PyTorch's allocator says of the last step; --list says the names

--real: at a size that people train (REAL), as exec/gpu/program_steps.py times it on a GPU. No model's code is touched, and nothing in
it knows of the null GPU.
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


def classes(batch=2, size=224):
    return {"pixel_values": images(batch, size), "labels": zeros(batch)}


def waves(batch=2, samples=16000):
    return {"input_values": torch.randn(batch, samples, device="cuda"), "labels": torch.ones(batch, 12, dtype=torch.long, device="cuda")}


def mel(batch=2, length=32):
    return {"input_features": torch.randn(batch, 80, 3000, device="cuda"), "labels": torch.ones(batch, length, dtype=torch.long, device="cuda")}


def pairs(batch=2, length=16):
    return {"input_ids": torch.ones(batch, length, dtype=torch.long, device="cuda"), "pixel_values": images(batch), "return_loss": True}


def with_image(model, patches, batch=1, words=64):
    ids = torch.full((batch, patches + words), 5, dtype=torch.long, device="cuda")
    ids[:, :patches] = model.config.image_token_id
    return ids


def llava(model, batch=1, words=64):
    ids = with_image(model, 256, batch, words)
    return {"input_ids": ids, "labels": ids, "pixel_values": images(batch)}


def qwen_vl(model, side=16, words=64):
    ids = with_image(model, side * side // 4, 1, words)
    return {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(side * side, 1176, device="cuda"),
            "image_grid_thw": torch.tensor([[1, side, side]], device="cuda")}


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


def transformer(name, *real):
    import inspect

    import transformers

    transformers.logging.set_verbosity_error()
    model_class, changes, inputs = TRANSFORMERS[name]
    if real:
        changes, inputs = real
    model_class = getattr(transformers, model_class)
    with torch.device("cuda") if real else contextlib.nullcontext():
        model = model_class(model_class.config_class(**changes)).cuda().train()
    takes_model = "model" in inspect.signature(inputs).parameters
    return model, lambda: model(**(inputs(model) if takes_model else inputs())).loss


# ---- other libraries ----


def timm_model(kind, batch=2, size=224):
    import timm

    model = timm.create_model(kind, num_classes=100).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(images(batch, size)), zeros(batch))


def detector(batch=1, size=320):
    import torchvision

    model = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).cuda().train()
    boxes = [{"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]]).cuda(), "labels": torch.ones(1, dtype=torch.long).cuda()}] * batch
    return model, lambda: sum(model(list(images(batch, size)), boxes).values())


def segmenter(batch=2, size=224):
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(images(batch, size))["out"], zeros(batch, size, size))


def dit(batch=2, **changes):
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(**{**dict(num_attention_heads=4, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=4, sample_size=32), **changes}).cuda().train()

    def loss():
        noise = torch.randn(batch, 4, 32, 32, device="cuda")
        return torch.nn.functional.mse_loss(model(noise, timestep=zeros(batch), class_labels=zeros(batch)).sample.float(), noise)

    return model, loss


SMALL_UNET = dict(sample_size=32, block_out_channels=(64, 128), layers_per_block=1, attention_head_dim=(4, 8), cross_attention_dim=256,
                  down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                  transformer_layers_per_block=(1, 2), addition_time_embed_dim=32, projection_class_embeddings_input_dim=32 * 6 + 64)


def sdxl(batch=2, said=64, **changes):
    from diffusers import UNet2DConditionModel

    shape = changes or SMALL_UNET
    with torch.device("cuda"):
        model = UNet2DConditionModel(in_channels=4, out_channels=4, use_linear_projection=True, addition_embed_type="text_time", **shape).train()

    def loss():
        noise = torch.randn(batch, 4, shape["sample_size"], shape["sample_size"], device="cuda")
        more = {"text_embeds": torch.randn(batch, said, device="cuda"), "time_ids": torch.zeros(batch, 6, device="cuda")}
        words = torch.randn(batch, 77, shape["cross_attention_dim"], device="cuda")
        return torch.nn.functional.mse_loss(model(noise, timestep=zeros(batch), encoder_hidden_states=words, added_cond_kwargs=more).sample.float(), noise)

    return model, loss


def torch_transformer(width=512, layers=4, words=4096, batch=2, length=256):
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(words, width), torch.nn.TransformerEncoder(layer, layers), torch.nn.Linear(width, words)).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(batch, length)).flatten(0, 1), zeros(batch * length))


def lstm(width=256, batch=2, length=64):
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.body, self.head = torch.nn.Embedding(4096, width), torch.nn.LSTM(width, width, 2, batch_first=True), torch.nn.Linear(width, 10)

        def forward(self, ids):
            return self.head(self.body(self.words(ids))[0])

    model = Tagger().cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(batch, length)).flatten(0, 1), zeros(batch * length))


def own_kernel(width=512, batch=2, length=256):
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
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(SquaredRelu.apply(self.up(x)))

    model = torch.nn.Sequential(torch.nn.Embedding(4096, width), *[Layer() for _ in range(4)], torch.nn.Linear(width, 4096)).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(zeros(batch, length)).flatten(0, 1), zeros(batch * length))


def classifier(kind, batch=2, size=224, frames=()):
    """Of torchvision; frames: (count,) of a video."""
    import torchvision

    model = torchvision.models.get_model(kind, weights=None, num_classes=100).cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(torch.randn(batch, 3, *frames, size, size, device="cuda")), zeros(batch))


def sd3(batch=2, words=77, **changes):
    from diffusers import SD3Transformer2DModel

    shape = {**dict(sample_size=32, num_layers=4, attention_head_dim=64, num_attention_heads=4, joint_attention_dim=256, caption_projection_dim=256, pooled_projection_dim=128), **changes}
    with torch.device("cuda"):
        model = SD3Transformer2DModel(in_channels=16, out_channels=16, pos_embed_max_size=192, **shape).train()

    def loss():
        noise = torch.randn(batch, 16, shape["sample_size"], shape["sample_size"], device="cuda")
        said = torch.randn(batch, words, shape["joint_attention_dim"], device="cuda")
        pooled = torch.randn(batch, shape["pooled_projection_dim"], device="cuda")
        made = model(noise, timestep=zeros(batch), encoder_hidden_states=said, pooled_projections=pooled).sample
        return torch.nn.functional.mse_loss(made.float(), noise)

    return model, loss


def autoencoder(batch=2, size=64, widths=(32, 64), layers=1):
    from diffusers import AutoencoderKL

    blocks = len(widths)
    model = AutoencoderKL(block_out_channels=widths, layers_per_block=layers, latent_channels=4, sample_size=size, down_block_types=("DownEncoderBlock2D",) * blocks,
                          up_block_types=("UpDecoderBlock2D",) * blocks).cuda().train()

    def loss():
        given = images(batch, size)
        return torch.nn.functional.mse_loss(model(given).sample.float(), given)

    return model, loss


def click_model(batch=64, tables=4, rows=1000, width=16, hidden=(64, 64)):
    """Categories in tables, sums of each bag, their products in pairs, two stacks of layers: what recommends."""
    class Clicks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
            self.below = self.stack(13, *hidden, width)
            self.above = self.stack(width + (tables + 1) * tables // 2, *hidden, 1)

        @staticmethod
        def stack(*sizes):
            return torch.nn.Sequential(*[layer for i, o in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1])

        def forward(self, numbers, bags):
            dense = self.below(numbers)
            found = torch.stack([dense] + [table(bag) for table, bag in zip(self.tables, bags)], 1)
            pairs = torch.bmm(found, found.transpose(1, 2))
            i, j = torch.tril_indices(tables + 1, tables + 1, -1, device="cuda")
            return self.above(torch.cat([dense, pairs[:, i, j]], 1)).squeeze(1)

    with torch.device("cuda"):
        model = Clicks().train()

    def loss():
        bags = torch.randint(rows, (tables, batch, 8), device="cuda")
        return torch.nn.functional.binary_cross_entropy_with_logits(model(torch.randn(batch, 13, device="cuda"), bags), torch.rand(batch, device="cuda"))

    return model, loss


def volumes(batch=1, size=32, widths=(8, 16)):
    """A U-Net over volumes, as medicine segments with."""
    def block(i, o):
        return torch.nn.Sequential(torch.nn.Conv3d(i, o, 3, padding=1), torch.nn.InstanceNorm3d(o, affine=True), torch.nn.LeakyReLU(0.01, inplace=True))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = list(zip((1, *widths), widths))
            self.down = torch.nn.ModuleList(torch.nn.Sequential(block(i, o), block(o, o)) for i, o in sizes)
            self.up = torch.nn.ModuleList(torch.nn.ConvTranspose3d(o, i, 2, 2) for i, o in sizes[:0:-1])
            self.join = torch.nn.ModuleList(block(2 * i, i) for i, _ in sizes[:0:-1])
            self.head = torch.nn.Conv3d(widths[0], 4, 1)

        def forward(self, x):
            kept = []
            for i, level in enumerate(self.down):
                x = level(x if not i else torch.nn.functional.max_pool3d(x, 2))
                kept.append(x)
            for up, join, beside in zip(self.up, self.join, kept[-2::-1]):
                x = join(torch.cat([up(x), beside], 1))
            return self.head(x)

    model = Net().cuda().train()
    return model, lambda: torch.nn.functional.cross_entropy(model(torch.randn(batch, 1, size, size, size, device="cuda")), zeros(batch, size, size, size))


OTHERS = {
    "timm RegNet": lambda: timm_model("regnety_002"), "timm MobileNet": lambda: timm_model("mobilenetv3_small_050"), "timm MLP-Mixer": lambda: timm_model("mixer_s32_224"),
    "timm EfficientNetV2": lambda: timm_model("efficientnetv2_rw_t"), "torchvision VGG": lambda: classifier("vgg11_bn", size=64),
    "torchvision video ResNet": lambda: classifier("r3d_18", size=64, frames=(8,)), "torchvision DenseNet": lambda: classifier("densenet121", size=64),
    "diffusers SD3": sd3, "diffusers AutoencoderKL": autoencoder, "a model of clicks": click_model, "a U-Net over volumes": volumes,
    "timm ConvNeXt": lambda: timm_model("convnext_atto"), "timm Swin": lambda: timm_model("swin_tiny_patch4_window7_224"), "timm ResNet-50": lambda: timm_model("resnet50"),
    "timm ViT": lambda: timm_model("vit_tiny_patch16_224"), "timm EfficientNet": lambda: timm_model("efficientnet_b0"),
    "torchvision RetinaNet": detector, "torchvision DeepLabV3": segmenter, "diffusers DiT": dit, "diffusers SDXL UNet": sdxl,
    "torch.nn.TransformerEncoder": torch_transformer, "torch.nn.LSTM": lstm, "a Triton kernel of one's own": own_kernel,
}

# ---- sizes that people train, by their authors' configurations; of the largest some layers ----

LLAMA = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True)
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
REAL = {name: lambda name=name, real=real: transformer(name, *real) for name, real in {
    "Llama": (LLAMA, lambda: text(4, 2048)),
    "ModernBERT": (dict(pad_token_id=0), lambda: text(32, 1024)),
    "ViT": (LARGE, lambda: classes(64)), "DINOv2": (dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, patch_size=14), lambda: classes(64)),
    "CLIP": (dict(text_config=dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12), vision_config=dict(LARGE, patch_size=14), projection_dim=768), lambda: pairs(64, 77)),
    "SigLIP": (dict(), lambda: pairs(64, 64)),
    "LLaVA": (dict(text_config=dict(LLAMA, model_type="llama"), vision_config=dict(LARGE, model_type="clip_vision_model", image_size=224, patch_size=14), image_token_index=4000), lambda model: llava(model, 8, 256)),
    "Qwen2.5-VL": (dict(text_config=dict(hidden_size=2048, intermediate_size=11008, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=2, vocab_size=151936, rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}), vision_config=dict(depth=32, hidden_size=1280, num_heads=16, intermediate_size=3420, out_hidden_size=2048, fullatt_block_indexes=[7, 15, 23, 31]), image_token_id=4000, vision_start_token_id=4001, video_token_id=4002, vision_end_token_id=4003), lambda model: qwen_vl(model, 64, 1024)),
    "Whisper": (dict(d_model=1024, encoder_layers=24, decoder_layers=24, encoder_attention_heads=16, decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096), lambda: mel(8, 128)),
    "Wav2Vec2": (dict(LARGE, vocab_size=32, feat_extract_norm="layer", do_stable_layer_norm=True), lambda: waves(8, 160000)),
    "Mamba-2": (dict(hidden_size=1024, num_hidden_layers=12, num_heads=32, head_dim=64), lambda: text(2, 512)),
    "ConvNeXt (transformers)": (dict(depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024]), lambda: classes(64)),
    "Swin (transformers)": (dict(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]), lambda: classes(64)),
    "ResNet (transformers)": (dict(), lambda: classes(128)),
    "T5": (dict(d_model=1024, d_kv=64, num_layers=24, num_heads=16, d_ff=4096, decoder_start_token_id=0), lambda: text(8, 512)),
    "GPT-2": (dict(n_embd=1024, n_layer=24, n_head=16), lambda: text(8, 1024)),
    "gpt-oss": (dict(hidden_size=2880, intermediate_size=2880, num_hidden_layers=3, num_attention_heads=64, num_key_value_heads=8, head_dim=64, num_local_experts=32, num_experts_per_tok=4), lambda: text(1, 2048)),
    "Qwen3-MoE": (dict(hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=64, num_experts_per_tok=8), lambda: text(4, 2048)),
    "BLOOM": (dict(hidden_size=1536, n_layer=24, n_head=16), lambda: text(2, 2048)),
    "BERT": (LARGE, lambda: text(16, 512)),
    "OPT": (dict(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192, word_embed_proj_dim=2048), lambda: text(2, 2048)),
    "Phi-3": (dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=10, num_attention_heads=32, num_key_value_heads=32, pad_token_id=0), lambda: text(2, 2048)),
    "Gemma-3": (dict(hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144, sliding_window=512), lambda: text(2, 1024)),
    "Mixtral": (dict(hidden_size=2048, intermediate_size=7168, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8), lambda: text(4, 2048)),
    "DeepSeek-V3": (dict(hidden_size=2048, intermediate_size=6144, moe_intermediate_size=1024, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=16, n_routed_experts=32, num_experts_per_tok=4, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=768, kv_lora_rank=512, vocab_size=102400), lambda: text(2, 2048)),
    "GPT-NeoX": (dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16), lambda: text(4, 2048)),
}.items()} | {
    "timm RegNet": lambda: timm_model("regnety_064", 128), "timm MobileNet": lambda: timm_model("mobilenetv3_large_100", 256),
    "timm MLP-Mixer": lambda: timm_model("mixer_l16_224", 64), "timm EfficientNetV2": lambda: timm_model("efficientnetv2_rw_m", 32, 320),
    "torchvision VGG": lambda: classifier("vgg16_bn", 64), "torchvision video ResNet": lambda: classifier("r3d_18", 16, 112, (16,)),
    "torchvision DenseNet": lambda: classifier("densenet161", 64),
    "diffusers SD3": lambda: sd3(8, 333, sample_size=64, num_layers=12, num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048),
    "diffusers AutoencoderKL": lambda: autoencoder(4, 256, (128, 256, 512, 512), 2), "a model of clicks": lambda: click_model(32768, 26, 200000, 128, (512, 256)),
    "a U-Net over volumes": lambda: volumes(2, 128, (32, 64, 128, 256)),
    "timm ConvNeXt": lambda: timm_model("convnextv2_base", 64), "timm Swin": lambda: timm_model("swinv2_base_window8_256", 32, 256),
    "timm ResNet-50": lambda: timm_model("resnet50", 256), "timm ViT": lambda: timm_model("vit_large_patch16_224", 64),
    "timm EfficientNet": lambda: timm_model("efficientnet_b4", 64, 320), "torchvision RetinaNet": lambda: detector(8, 800),
    "torchvision DeepLabV3": lambda: segmenter(16, 512),
    "diffusers DiT": lambda: dit(32, num_attention_heads=16, attention_head_dim=72, num_layers=28),
    "diffusers SDXL UNet": lambda: sdxl(2, 1280, sample_size=64, block_out_channels=(320, 640, 1280), attention_head_dim=(5, 10, 20), cross_attention_dim=2048, transformer_layers_per_block=(1, 2, 10),
                                        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                                        addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816),
    "torch.nn.TransformerEncoder": lambda: torch_transformer(1024, 12, 32000, 16, 512), "torch.nn.LSTM": lambda: lstm(1024, 64, 256),
    "a Triton kernel of one's own": lambda: own_kernel(4096, 4, 2048),
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


def build(name, variant, real):
    if variant == "qlora":
        return quantized(name)
    model, loss = REAL[name]() if real else transformer(name) if name in TRANSFORMERS else OTHERS[name]()
    if variant == "lora":
        model = low_rank(model)
        return model, lambda: model(**(text(4, 2048) if real else text())).loss
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


def program(name, variant="", real=False):
    """What runs a step of it."""
    model, loss = build(name, variant, real)
    optimizer = optimizer_of(variant, model)
    autocast = contextlib.nullcontext if variant in ("fp32", "bf16") else lambda: torch.autocast("cuda", torch.bfloat16)

    def step():
        for _ in range(4 if variant == "accumulation" else 1):
            with autocast():
                made = loss()
            made.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main():
    real = "--real" in sys.argv
    said = [word for word in sys.argv[1:] if word != "--real"]
    if said == ["--list"]:
        print("\n".join(f"{name}\t{variant}" for name, variant in FLEET if not real or name in REAL))
        return
    name, variant = said[0], said[1] if len(said) > 1 else ""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    step = program(name, variant, real)
    for _ in range(6 if variant == "CUDA graphs" else 3):  # which are captured in their second step
        torch.cuda.reset_peak_memory_stats()
        step()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
