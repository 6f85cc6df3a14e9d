"""Three steps of Megatron-Core's GPTModel as MEGATRON_CASE (JSON; megatron_core.json has its words) says, for
foreshard-null, and the peak of each: `layers: te`, TransformerEngine's, fused as pretrain_gpt.py sets them up; else
layers of torch alone, whose norms, unlike TransformerEngine's, do not know sequence parallelism."""
import json
import os
import sys
import types

import torch
from megatron.core import parallel_state as ranks
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import torch_norm
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

case = json.loads(os.environ["MEGATRON_CASE"])
TP, PP, EP, CP, CHUNKS = (case.get(key, 1) for key in ("tp", "pp", "ep", "cp", "chunks"))
EXPERTS, SEQUENCE, SAMPLES, WIDTH = case.get("experts", 0), case.get("sequence_length", 512), 2, 512
GPT, LATENTS, TE = case["model"] == "gpt", case["model"] == "deepseek", case.get("layers") == "te"
ETP = case.get("etp", 1 if EP > 1 else None)


def norm(cls, config, hidden_size, eps=1e-5, **_):
    kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
    made = kind(normalized_shape=hidden_size, eps=eps)
    for parameter in made.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return made


torch_norm.WrappedTorchNorm.__new__ = norm
if not hasattr(moe_utils, "te_general_gemm"):  # 0.16 reads it without TransformerEngine, too
    moe_utils.te_general_gemm = None

if TE:  # Apex's kernel for the weight of the head, whose product adds to the gradient
    from megatron.core.tensor_parallel import layers
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    def add_product(given, gradient, kept):
        general_gemm(given, gradient, out_dtype=kept.dtype, layout="NT", out=kept, accumulate=True, grad=True)

    apex = types.SimpleNamespace(wgrad_gemm_accum_fp32=add_product, wgrad_gemm_accum_fp16=add_product)
    sys.modules["fused_weight_gradient_mlp_cuda"] = layers.fused_weight_gradient_mlp_cuda = apex
    layers._grad_accum_fusion_available = True

torch.cuda.set_device(0)
torch.distributed.init_process_group("nccl")
ranks.initialize_model_parallel(
    TP, PP, CHUNKS if CHUNKS > 1 else None, context_parallel_size=CP, expert_model_parallel_size=EP, expert_tensor_parallel_size=ETP,
    num_distributed_optimizer_instances=case.get("replicate", 1))
model_parallel_cuda_manual_seed(1)
words = {"normalization": "LayerNorm", "add_bias_linear": True, "ffn_hidden_size": 4 * WIDTH} if GPT else {
    "normalization": "RMSNorm", "add_bias_linear": False, "ffn_hidden_size": 1408, "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu, "num_query_groups": 4}
if LATENTS:
    words |= {"num_query_groups": 8, "q_lora_rank": 256, "kv_lora_rank": 128, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64,
              "rope_type": "yarn", "qk_layernorm": True}
if EXPERTS:
    words |= {"num_moe_experts": EXPERTS, "moe_router_topk": 2, "moe_token_dispatcher_type": "alltoall", "moe_ffn_hidden_size": 1408,
              "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1e-2}
recompute = case.get("recompute")
fused = {"gradient_accumulation_fusion": TE, "masked_softmax_fusion": TE, "bias_activation_fusion": TE, "bias_dropout_fusion": TE}
if TE:
    fused |= {"apply_rope_fusion": not GPT, "cross_entropy_loss_fusion": not EXPERTS, "cross_entropy_fusion_impl": case.get("entropy", "native"), "moe_permute_fusion": EXPERTS > 0, "moe_grouped_gemm": EXPERTS > 0}
if case.get("fp8"):
    fused |= {"fp8": "hybrid", "fp8_recipe": case["fp8"]}
config = (MLATransformerConfig if LATENTS else TransformerConfig)(
    num_layers=4, hidden_size=WIDTH, num_attention_heads=8, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
    pipeline_model_parallel_size=PP, virtual_pipeline_model_parallel_size=CHUNKS if CHUNKS > 1 else None,
    tensor_model_parallel_size=TP, expert_model_parallel_size=EP, expert_tensor_parallel_size=ETP,
    sequence_parallel=TP > 1 and case.get("sequence", True), hidden_dropout=0.0, attention_dropout=0.0,
    context_parallel_size=CP, cp_comm_type=case.get("cp_comm") if CP > 1 else None, deallocate_pipeline_outputs=True, overlap_p2p_comm=CHUNKS > 1, batch_p2p_comm=CHUNKS == 1, recompute_granularity=recompute,
    recompute_method="uniform" if recompute == "full" else None, recompute_num_layers=1 if recompute == "full" else None, **fused, **words)
if TE:
    spec = get_gpt_layer_with_transformer_engine_spec(EXPERTS or None, EXPERTS > 0, qk_layernorm=LATENTS, multi_latent_attention=LATENTS)
else:
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS or None, moe_grouped_gemm=False, normalization=words["normalization"])
gathers, reduces, shards = (case.get(key, default) for key, default in (("gathers_beside", False), ("reduces_beside", True), ("shards", True)))
settings = DistributedDataParallelConfig(
    grad_reduce_in_fp32=case.get("reduce", "fp32") == "fp32", overlap_grad_reduce=reduces, overlap_param_gather=gathers,
    use_distributed_optimizer=shards, num_distributed_optimizer_instances=case.get("replicate", 1), bucket_size=case["bucket"])
chunks = []
for chunk in range(CHUNKS):
    ends = {"ignore_virtual": False, "vp_stage": chunk} if CHUNKS > 1 else {}
    model = GPTModel(
        config, spec, 51200, SEQUENCE, pre_process=ranks.is_pipeline_first_stage(**ends), post_process=ranks.is_pipeline_last_stage(**ends),
        share_embeddings_and_output_weights=GPT, position_embedding_type="learned_absolute" if GPT else "rope",
        vp_stage=chunk if CHUNKS > 1 else None).cuda().bfloat16()
    chunks.append(DistributedDataParallel(config, settings, model, disable_bucketing=chunk > 0))
optimizer = get_megatron_optimizer(
    OptimizerConfig(lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=shards, overlap_param_gather=gathers,
                    clip_grad=1.0), chunks)
one = (lambda of: of) if CHUNKS > 1 else (lambda of: of[0])
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss
if reduces:
    config.no_sync_func = one([c.no_sync for c in chunks])
if gathers:
    config.param_sync_func = one([c.start_param_sync for c in chunks])


def forward(_, model):
    here = SEQUENCE // CP
    tokens = torch.zeros(SAMPLES, here, dtype=torch.long).cuda()
    positions = torch.arange(here).expand(SAMPLES, here).contiguous().cuda()
    mask = None if TE else torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1).cuda()

    def loss(output):
        mean = output.float().mean()
        return mean, {"loss": mean.detach()}

    return model(tokens, positions, mask, labels=tokens), loss


for _ in range(3):
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward, data_iterator=one([None] * CHUNKS), model=one(chunks), num_microbatches=case.get("micro_batches", 4),
        seq_length=SEQUENCE, micro_batch_size=SAMPLES, forward_only=False)
    optimizer.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    print("STEP", json.dumps({"peak": stats["allocated_bytes.all.peak"], "requested": stats["requested_bytes.all.peak"]}), flush=True)
    torch.cuda.reset_peak_memory_stats()
