// Low-rank adapters on a frozen base (plan keys lora.*): LoRA, and QLoRA with a base of 4-bit blocks.
//
// y = W x + b becomes y = W x + b + scale * B(A(dropout(x))) as PEFT's LoraLayer computes it, one operation each
// (peft/tuners/lora/layer.py, Linear.forward). Names are PEFT's: "self_attn.q_proj.base_layer.weight",
// "self_attn.q_proj.lora_A.default.weight" [rank, in], "self_attn.q_proj.lora_B.default.weight" [out, rank]: rank * (in
// + out) trainable parameters per target. Everything else is frozen: no gradient, no optimizer state; it is gathered,
// not reduced; but copies of embedding or head that are trained whole (modules_to_save).
//
// QLoRA (lora.base: nf4; bitsandbytes Linear4bit, double quantization, storage in dtype.param): every linear layer but
// the head is 4-bit blocks seen as elements of dtype.param, which FSDP shards and gathers. The scales stay whole on
// every rank: of 64 elements one byte, of 256 scales one fp32, and per matrix a table of 256 fp32, the code of 16 fp32
// and an fp32 offset (bitsandbytes functional.py, quantize_4bit). Each product first writes the matrix out in
// dtype.param, in backward for the input's gradient (autograd/_functions.py, MatMul4Bit).
//
// Assumed: norms, embedding and head stay in dtype.param (no prepare_model_for_kbit_training).
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Precondition: plan.lora.rank > 0 and check(plan, model, cluster) passed.
ModelSpec with_adapters(ModelSpec model, const Plan& plan);
// Of experts and their router as transformers has them (transformers_moe.h), behind that.
void adapt_experts(LayerSpec& layer, const Plan& plan, const ModelSpec& model);

}
