// Low-rank adapters on a frozen base (plan keys lora.*): LoRA, and QLoRA with a base of 4-bit
// blocks.
//
// y = W x + b becomes y = W x + b + scale * B(A(dropout(x))) as PEFT's LoraLayer computes it, one
// operation each (peft/tuners/lora/layer.py, Linear.forward). Names are PEFT's:
// "self_attn.q_proj.base_layer.weight", "self_attn.q_proj.lora_A.default.weight" [rank, in],
// "self_attn.q_proj.lora_B.default.weight" [out, rank]: rank * (in + out) trainable parameters per
// target. Everything else is frozen: no gradient, no optimizer state; it is gathered, not reduced;
// but copies of embedding or head that are trained whole (modules_to_save).
//
// QLoRA (lora.base: nf4; bitsandbytes Linear4bit with bnb_4bit_use_double_quant, PEFT's and
// Accelerate's FSDP-QLoRA with bnb_4bit_quant_storage equal to dtype.param): every linear layer but
// the head, and every stack of experts, is stored as 4-bit blocks seen as elements of dtype.param,
// which is what FSDP shards and gathers. The scales stay whole on every rank: of each block of 64
// elements one byte, of each 256 scales one fp32, and per matrix a table of 256 fp32, the code of
// 16 fp32 and an fp32 offset (bitsandbytes functional.py, quantize_4bit). Each product of forward,
// and of backward for the input's gradient, first writes the matrix out in dtype.param
// (bitsandbytes autograd/_functions.py, MatMul4Bit).
//
// Assumed: norms, embedding and head stay in dtype.param (no prepare_model_for_kbit_training); the
// adapters' products are not on selective checkpointing's list.
#pragma once

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Precondition: plan.lora.rank > 0 and check(plan, model, cluster) passed.
ModelSpec with_adapters(ModelSpec model, const Plan& plan);

}  // namespace foreshard
