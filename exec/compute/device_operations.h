// What operations.h does differently on a device: ATen's operators instead of loops over CPU memory, the accelerator's
// fused kernels where it has them, and nothing that the host would have to wait for.
//
// All of it also runs on CPU tensors (the stand-in of exec/device/host_accelerator.h), which is how it is tested.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "exec/device/accelerator.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// The kernel that runs: the one the plan names where the device has it for this head size and
// dtype; the memory-efficient one takes all.
struct AttentionNeed {
  AttentionKernel wanted = AttentionKernel::kFlash;
  DType compute = DType::kBf16;
  std::int64_t head_dim = 0;
};
DeviceAttention attention_kernel(const AttentionNeed& need, const AcceleratorInfo& device);

// [sequences, heads, sequence, head_dim]; key and value may have fewer heads (grouped queries).
struct AttentionTensors {
  at::Tensor q, k, v;
};
// Output and log-sum-exp ([sequences, heads, sequence], fp32).
std::tuple<at::Tensor, at::Tensor> device_attention(DeviceAttention kernel, const AttentionTensors& in, bool causal);
std::tuple<at::Tensor, at::Tensor, at::Tensor> device_attention_backward(DeviceAttention kernel, const at::Tensor& dy,
    const AttentionTensors& in, const at::Tensor& out, const at::Tensor& logsumexp, bool causal);

// y and rstd (fp32, one per row) of rows as wide as `weight`.
std::tuple<at::Tensor, at::Tensor> device_rms_norm(
    Accelerator& device, const at::Tensor& x, const at::Tensor& weight, double epsilon);
// dx (plus `addend`, where there is one) and the weight's gradient in the weight's dtype.
std::tuple<at::Tensor, at::Tensor> device_rms_norm_backward(Accelerator& device, const NormGradient& of);

// Rows of tokens, head by head, in place; cos and sin are [positions, head_dim / 2].
void device_rotate(Accelerator& device, const at::Tensor& values, const at::Tensor& cos, const at::Tensor& sin,
    std::int64_t head_dim, bool inverse);

// nullptr: no device.
at::Tensor silu_multiply(Accelerator* device, const at::Tensor& gate, const at::Tensor& up);
std::vector<at::Tensor> silu_multiply_backward(
    Accelerator* device, const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up);

// table[ids[r]] += rows[r]
void device_add_rows(Accelerator& device, const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows);

// Logits become their gradient, (probability - [is label]) * scale; the negative log likelihoods
// are added to loss_sum (fp32, one element).
void device_cross_entropy(
    Accelerator& device, const at::Tensor& logits, const at::Tensor& labels, double scale, const at::Tensor& loss_sum);

}
