"""Small configurations of every family that is read, with the parameters that transformers makes of
them: tests/interop/hf_counts.json.

    pip install transformers==5.24.0 torch==2.11.0
    python3 tests/interop/hf_counts.py > tests/interop/hf_counts.json

A case is a config.json as somebody wrote it (keys left out at random, so that the class's defaults
count) or as transformers saves it, and the parameters of the model that is built from it on the
meta device: their number, and for the first case of a family every name and shape.
"""
import json
import random
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

COMMON = dict(num_hidden_layers=[2, 3, 4, 5], num_attention_heads=[4, 8], hidden_size=[64, 128],
              intermediate_size=[96, 160], vocab_size=[200, 311])
# Keys that may be left out: the first is what stands in for "not there".
KV = dict(num_key_value_heads=[4, 2, 1])
TIE = dict(tie_word_embeddings=[None, True, False])
BIAS = dict(attention_bias=[None, True, False])
MLP = dict(mlp_bias=[None, True, False])
HEAD = dict(head_dim=[32, 16])
PARTIAL = dict(partial_rotary_factor=[None, 0.5, 0.25])
EXPERTS = dict(num_local_experts=[4, 8], num_experts_per_tok=[1, 2])
LATE = dict(n_routed_experts=[4, 8], num_experts_per_tok=[2], moe_intermediate_size=[48, None],
            n_shared_experts=[1, 2], n_group=[1], topk_group=[1])

FAMILIES = {
    "llama": [KV, TIE, BIAS, MLP, dict(head_dim=[None, 32])],
    "mistral": [KV, TIE, dict(head_dim=[None, 32], sliding_window=[None, 512])],
    "ministral3": [KV, TIE, HEAD],
    "qwen2": [KV, TIE],
    "qwen3": [KV, TIE, BIAS, dict(head_dim=[None, 32])],
    "gemma": [KV, TIE, BIAS, dict(head_dim=[None, 32])],
    "gemma2": [KV, TIE, BIAS, dict(head_dim=[None, 32])],
    "gemma3_text": [KV, TIE, BIAS, dict(head_dim=[None, 32])],
    "phi3": [KV, TIE, PARTIAL],
    "phi": [KV, TIE, PARTIAL],
    "starcoder2": [KV, TIE, dict(use_bias=[None, True, False])],
    "olmo2": [KV, TIE, BIAS],
    "olmo3": [KV, TIE, BIAS],
    "exaone4": [KV, TIE],
    "smollm3": [KV, TIE, BIAS, MLP, dict(no_rope_layer_interval=[None, 2])],
    "granite": [KV, TIE, BIAS, MLP, dict(embedding_multiplier=[None, 12.0],
                                         logits_scaling=[None, 8.0])],
    "cohere": [KV, TIE, BIAS, dict(use_qk_norm=[None, True])],
    "cohere2": [KV, TIE, BIAS],
    "stablelm": [KV, TIE, PARTIAL, dict(use_qkv_bias=[None, True],
                                        use_parallel_residual=[None, True])],
    "glm": [KV, TIE, BIAS, HEAD],
    "glm4": [KV, TIE, BIAS, HEAD],
    "seed_oss": [KV, TIE, BIAS, MLP, HEAD, dict(attention_out_bias=[None, True])],
    "ernie4_5": [KV, TIE, dict(use_bias=[None, True], head_dim=[None, 32])],
    "helium": [KV, TIE, BIAS, MLP, dict(head_dim=[16], hidden_size=[64], num_attention_heads=[4])],
    "hunyuan_v1_dense": [KV, TIE, BIAS, HEAD],
    "mixtral": [KV, TIE, EXPERTS],
    "qwen2_moe": [KV, TIE, dict(num_experts=[4, None], num_experts_per_tok=[2, None],
                                moe_intermediate_size=[48, None],
                                shared_expert_intermediate_size=[80, None],
                                decoder_sparse_step=[None, 2], mlp_only_layers=[None, [1]])],
    "qwen3_moe": [KV, TIE, BIAS, dict(num_experts=[4, None], num_experts_per_tok=[2, None],
                                      moe_intermediate_size=[48, None],
                                      decoder_sparse_step=[None, 2])],
    "olmoe": [KV, TIE, BIAS, dict(num_experts=[4, None], num_experts_per_tok=[2, None])],
    "granitemoe": [KV, TIE, BIAS, EXPERTS],
    "gpt_oss": [KV, TIE, BIAS, EXPERTS, dict(head_dim=[16, None])],
    "llama4_text": [KV, TIE, BIAS, EXPERTS, dict(
        head_dim=[16, None], intermediate_size_mlp=[112, 80], use_qk_norm=[None, False],
        interleave_moe_layer_step=[None, 2], no_rope_layers=[None, []])],
    "glm4_moe": [KV, TIE, BIAS, dict(
        head_dim=[16, None], n_routed_experts=[4, None], num_experts_per_tok=[2],
        moe_intermediate_size=[48, None], n_shared_experts=[None, 2], use_qk_norm=[None, True],
        first_k_dense_replace=[None, 2])],
    "deepseek_v2": [TIE, dict(
        num_key_value_heads=["heads"], n_routed_experts=[4, None], num_experts_per_tok=[2],
        moe_intermediate_size=[48, None], n_shared_experts=[None, 1], q_lora_rank=[24, "null"],
        kv_lora_rank=[32, None], first_k_dense_replace=[None, 2])],
    "deepseek_v3": [TIE, dict(
        num_key_value_heads=["heads"], n_routed_experts=[4, None], num_experts_per_tok=[2],
        moe_intermediate_size=[48, None], n_shared_experts=[None, 2], q_lora_rank=[24, "null"],
        kv_lora_rank=[32, None], first_k_dense_replace=[None, 1], n_group=[1], topk_group=[1])],
    "bitnet": [KV, BIAS],
    "nanochat": [KV, TIE, BIAS],
    "granite_swa": [KV, TIE, BIAS, MLP],
    "granitemoe_swa": [KV, TIE, BIAS, EXPERTS, dict(shared_intermediate_size=[None, 80])],
    "afmoe": [KV, TIE, BIAS, dict(head_dim=[16, None], num_experts=[4, None], num_experts_per_tok=[2],
                                  moe_intermediate_size=[48, None], num_shared_experts=[None, 1],
                                  num_dense_layers=[None, 2])],
    "laguna": [KV, TIE, BIAS, dict(head_dim=[16, None], num_experts=[4, None], num_experts_per_tok=[2],
                                   moe_intermediate_size=[48, None], gating=[None, "per-element"],
                                   shared_expert_intermediate_size=[80, None])],
    "cohere2_moe": [KV, TIE, BIAS, dict(
        head_dim=[16, None], num_experts=[4, None], num_experts_per_tok=[1, 2],
        num_shared_experts=[None, 2], expert_selection_fn=[None, "sigmoid"])],
    "minicpm3": [TIE, dict(num_key_value_heads=["heads"], q_lora_rank=[24, None, "null"],
                           kv_lora_rank=[32, None], v_head_dim=[None, 16])],
    "deepseek_v32": [TIE, LATE, dict(num_key_value_heads=["heads"], q_lora_rank=[24, None],
                                     index_n_heads=[4, None], first_k_dense_replace=[None, 1])],
    "axk1": [TIE, LATE, dict(num_key_value_heads=["heads"], q_lora_rank=[24, None],
                             kv_lora_rank=[32, None])],
    "gemma4_text": [KV, TIE, BIAS, dict(
        head_dim=[16, 32], hidden_size_per_layer_input=[0, 16], vocab_size_per_layer_input=[200],
        num_kv_shared_layers=[0, 1], use_double_wide_mlp=[None, True], attention_k_eq_v=[None, True],
        global_head_dim=[64], num_global_key_value_heads=[1], enable_moe_block=[None, True],
        num_experts=[4], top_k_experts=[2], moe_intermediate_size=[48])],
    "eurobert": [KV, TIE, BIAS, MLP],
    "nomic_bert": [dict(type_vocab_size=[None, 3])],
    "deberta-v2": [dict(relative_attention=[True], position_buckets=[None, 16], share_att_key=[True, None],
                        pos_att_type=[["p2c", "c2p"], "c2p|p2c"], norm_rel_ebd=["layer_norm", None],
                        position_biased_input=[False, None], type_vocab_size=[None, 2])],
    "gpt_neox": [TIE, dict(attention_bias=[None, False], use_parallel_residual=[None, False],
                           rotary_pct=[None, 0.5])],
    "exaone": [KV, TIE, BIAS, MLP],
    "cwm": [KV, TIE, MLP, dict(head_dim=[None, 32])],
    "olmo": [KV, TIE, BIAS],
    "persimmon": [TIE, dict(qk_layernorm=[None, False])],
    "granitemoeshared": [KV, TIE, BIAS, EXPERTS, dict(shared_intermediate_size=[None, 80])],
    "phimoe": [KV, TIE, BIAS, EXPERTS, dict(lm_head_bias=[None, True])],
    "minimax_m2": [KV, TIE, EXPERTS, dict(head_dim=[16, None])],
    "hunyuan_v1_moe": [KV, TIE, BIAS, dict(num_experts=[4, 8], moe_topk=[2, 1], head_dim=[16, 32])],
    "solar_open": [KV, TIE, BIAS, LATE, dict(head_dim=[16, None])],
    "dots1": [KV, TIE, BIAS, LATE, dict(first_k_dense_replace=[None, 2])],
    "exaone_moe": [KV, TIE, dict(
        num_experts=[4, 8], num_experts_per_tok=[2], moe_intermediate_size=[48, None],
        num_shared_experts=[None, 2], first_k_dense_replace=[None, 2], n_group=[1], topk_group=[1])],
    "glm4_moe_lite": [TIE, LATE, dict(
        num_key_value_heads=["heads"], q_lora_rank=[24, None, "null"], kv_lora_rank=[32, None])],
    "youtu": [TIE, dict(num_key_value_heads=["heads"], q_lora_rank=[24, None], kv_lora_rank=[32, None],
                        v_head_dim=[None, 16])],
    "gpt_bigcode": [TIE, dict(n_positions=[None, 64], n_inner=[None, 96], multi_query=[None, False])],
    "gpt_neo": [TIE, dict(num_layers=[2, 4], attention_types=["layers"])],
    "gptj": [TIE, dict(rotary_dim=[8, 4], n_inner=[None, 96])],
    "codegen": [TIE, dict(rotary_dim=[8, 4], n_inner=[None, 96])],
    "distilbert": [dict(max_position_embeddings=[None, 64], hidden_dim=[96, 160])],
    "electra": [dict(embedding_size=[None, 64, 32], type_vocab_size=[None, 3])],
    # Untied, transformers makes a second bias of the head, which nothing reads.
    "bert": [dict(max_position_embeddings=[None, 64], type_vocab_size=[None, 3])],
    "roberta": [dict(max_position_embeddings=[None, 66])],
    "opt": [TIE, dict(max_position_embeddings=[None, 64], enable_bias=[None, False],
                      ffn_dim=[96, 160])],
    "gpt2": [dict(n_positions=[None, 64], n_inner=[None, 96])],
    "bloom": [],
    "falcon": [dict(bias=[None, True], alibi=[None, True], parallel_attn=[None, False],
                    new_decoder_architecture=[None, True], multi_query=[None, False])],
    "mpt": [],
}
# Names of the common sizes where a family has others.
RENAMED = {
    "opt": {"intermediate_size": None},
    "gpt2": {"intermediate_size": None, "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
             "num_attention_heads": "n_head"},
    "bloom": {"intermediate_size": None, "num_hidden_layers": "n_layer",
              "num_attention_heads": "n_head"},
    "gpt_neo": {"num_hidden_layers": None, "num_attention_heads": "num_heads"},
    "distilbert": {"intermediate_size": None, "num_hidden_layers": "n_layers",
                   "num_attention_heads": "n_heads", "hidden_size": "dim"},
    "solar_open": {"intermediate_size": None},
    "falcon": {"intermediate_size": None},
    "mpt": {"intermediate_size": None, "hidden_size": "d_model", "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads"},
}
for name in ("gpt_bigcode", "gptj", "codegen"):
    RENAMED[name] = RENAMED["gpt2"]
PER_FAMILY = 4


def draw(model_type, rng):
    renamed = RENAMED.get(model_type, {})
    keys = {}
    for group in [COMMON, *FAMILIES[model_type]]:
        for key, choices in group.items():
            name = renamed.get(key, key)
            value = rng.choice(choices)
            if name is None or value is None:
                continue
            keys[name] = None if value == "null" else value
    if keys.get("num_key_value_heads") == "heads":
        keys["num_key_value_heads"] = keys["num_attention_heads"]
    if "attention_types" in keys:
        keys["attention_types"] = [[["global", "local"], keys["num_layers"] // 2]]
    if "mlp_only_layers" in keys and keys["num_hidden_layers"] < 2:
        del keys["mlp_only_layers"]
    return keys


def parameters(config):
    masked = config.model_type in ("bert", "roberta", "distilbert", "electra", "eurobert", "nomic_bert", "deberta-v2")
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    return {name: list(p.shape) for name, p in model.named_parameters()}


def is_noise(key):
    return (key.endswith("token_id") or key.endswith("dropout") or key.endswith("pdrop") or
            key.startswith(("output_", "summary_", "init", "_")) or
            key in ("id2label", "label2id", "transformers_version", "return_dict", "problem_type",
                    "chunk_size_feed_forward", "is_encoder_decoder", "use_cache", "router_aux_loss_coef"))


def case(model_type, rng, index):
    keys = draw(model_type, rng)
    config = AutoConfig.for_model(model_type, **keys, pad_token_id=0)
    experts = next((getattr(config, k) for k in ("num_local_experts", "num_experts",
                                                 "n_routed_experts") if hasattr(config, k)), None)
    if experts is not None and (getattr(config, "num_experts_per_tok", 0) or 0) > experts:
        raise ValueError("more experts per token than experts")
    shapes = parameters(config)
    total = sum(torch.Size(s).numel() for s in shapes.values())
    saved = index % 2 == 1
    file = json.loads(config.to_json_string(use_diff=False)) if saved else {
        "model_type": model_type, **keys}
    file = {key: value for key, value in file.items() if not is_noise(key)}
    result = {"model_type": model_type, "parameters": total, "config": file}
    if index == 0:
        result["shapes"] = shapes
    return result


def main():
    cases = []
    for model_type in FAMILIES:
        rng = random.Random(model_type)  # another family leaves these draws as they are
        for index in range(PER_FAMILY):
            for _ in range(20):  # some draws are no model
                try:
                    cases.append(case(model_type, rng, index))
                    break
                except Exception as error:  # noqa: BLE001
                    print(f"{model_type}: {type(error).__name__}: {str(error)[:150]}",
                          file=sys.stderr)
    lines = ",\n".join(json.dumps(c, sort_keys=True) for c in cases)
    print('{"transformers": "%s",\n "cases": [\n%s\n]}' % (transformers.__version__, lines))


if __name__ == "__main__":
    main()
