#include "exec/compute/device_operations.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

namespace foreshard {
namespace {

// Seeds of a dropout that does not happen: kernels want the tensors all the same.
at::Tensor no_seed(const at::Tensor& like) {
  return at::empty({2}, at::TensorOptions().dtype(at::kLong).device(like.device()));
}

// A kernel without grouped queries reads keys and values of every head.
at::Tensor of_all_heads(const AttentionTensors& in, const at::Tensor& t) {
  const std::int64_t repeats = in.q.size(1) / in.k.size(1);
  return repeats == 1 ? t : t.repeat_interleave(repeats, 1);
}

}

DeviceAttention attention_kernel(const AttentionNeed& need, const AcceleratorInfo& device) {
  if (device.capability == 0) return DeviceAttention::kCpu;
  const std::int64_t head_dim = need.head_dim;
  const bool half = need.compute != DType::kFp32;  // what both kernels are made for
  // cuDNN's kernels: Hopper and newer gain by them; multiples of 8 up to 128 in both directions
  // (ATen/native/transformers/cuda/sdp_utils.cpp, check_cudnn_tensor_shapes).
  const bool cudnn = half && device.capability >= 80 && head_dim % 8 == 0 && head_dim <= 128;
  const bool flash = half && device.capability >= 80 && head_dim % 8 == 0 && head_dim <= 256;
  if (need.wanted == AttentionKernel::kCudnn && cudnn) return DeviceAttention::kCudnn;
  if (need.wanted == AttentionKernel::kEfficient || !flash) return DeviceAttention::kEfficient;
  return DeviceAttention::kFlash;
}

std::tuple<at::Tensor, at::Tensor> device_attention(DeviceAttention kernel, const AttentionTensors& in, bool causal) {
  switch (kernel) {
    case DeviceAttention::kCpu: {
      auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v, 0.0, causal);
      return {out, logsumexp};
    }
    case DeviceAttention::kCudnn: {
      auto result = at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt,
          /*compute_log_sumexp=*/true, 0.0, causal,
          /*return_debug_mask=*/false);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case DeviceAttention::kFlash: {
      auto result = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0, causal,
          /*return_debug_mask=*/false);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case DeviceAttention::kEfficient: break;
  }
  auto result = at::_scaled_dot_product_efficient_attention(
      in.q, of_all_heads(in, in.k), of_all_heads(in, in.v), std::nullopt, true, 0.0, causal);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> device_attention_backward(DeviceAttention kernel, const at::Tensor& dy,
    const AttentionTensors& in, const at::Tensor& out, const at::Tensor& logsumexp, bool causal) {
  const std::int64_t q_length = in.q.size(2), k_length = in.k.size(2);
  switch (kernel) {
    case DeviceAttention::kCpu:
      return at::_scaled_dot_product_flash_attention_for_cpu_backward(
          dy, in.q, in.k, in.v, out, logsumexp, 0.0, causal);
    case DeviceAttention::kCudnn: {
      const at::Tensor seed = no_seed(in.q);
      return at::_scaled_dot_product_cudnn_attention_backward(dy, in.q, in.k, in.v, out, logsumexp, seed.select(0, 0),
          seed.select(0, 1), at::Tensor(), at::Tensor(), at::Tensor(), q_length, k_length, 0.0, causal);
    }
    case DeviceAttention::kFlash: {
      const at::Tensor seed = no_seed(in.q);
      return at::_scaled_dot_product_flash_attention_backward(dy, in.q, in.k, in.v, out, logsumexp, at::Tensor(),
          at::Tensor(), q_length, k_length, 0.0, causal, seed, seed);
    }
    case DeviceAttention::kEfficient: break;
  }
  const std::int64_t repeats = in.q.size(1) / in.k.size(1);
  const at::Tensor seed = no_seed(in.q);
  auto [dq, dk, dv, bias] =
      at::_scaled_dot_product_efficient_attention_backward(dy, in.q, of_all_heads(in, in.k), of_all_heads(in, in.v),
          at::Tensor(), out, logsumexp, seed.select(0, 0), seed.select(0, 1), 0.0, {true, true, true, false}, causal);
  if (repeats == 1) return {dq, dk, dv};
  const auto fewer = [&](const at::Tensor& t) {
    return t.view({t.size(0), in.k.size(1), repeats, t.size(2), t.size(3)}).sum(2);
  };
  return {dq, fewer(dk), fewer(dv)};
}

std::tuple<at::Tensor, at::Tensor> device_rms_norm(
    Accelerator& device, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const std::int64_t width = weight.numel();
  if (device.is_gpu()) {
    const at::Tensor y = at::empty_like(x);
    const at::Tensor rstd = at::empty({x.numel() / width}, x.options().dtype(at::kFloat));
    if (device.rms_norm(y, rstd, x, weight, epsilon)) return {y, rstd};
  }
  auto [y, rstd] = at::_fused_rms_norm(x.view({-1, width}), {width}, weight, epsilon);
  return {y.view(x.sizes()), rstd.view({-1})};
}

std::tuple<at::Tensor, at::Tensor> device_rms_norm_backward(Accelerator& device, const NormGradient& of) {
  if (device.is_gpu() && of.dy.is_contiguous()) {
    const at::Tensor dx = at::empty_like(of.x), dw = at::empty_like(of.weight);
    if (device.rms_norm_backward(dx, dw, of)) return {dx, dw};
  }
  const std::int64_t width = of.weight.numel();
  const at::Tensor incoming = of.dy.reshape({-1, width}), rows = of.x.view({-1, width});
  const auto summed = [&](const at::Tensor& dx) {
    const at::Tensor whole = dx.view(of.x.sizes());
    return of.addend.defined() ? whole.add(of.addend) : whole;
  };
  if (of.x.is_cuda()) {
    auto [dx, dw] =
        at::_fused_rms_norm_backward(incoming, rows, {width}, of.rstd.view({-1, 1}), of.weight, {true, true});
    return {summed(dx), dw};
  }
  // The CPU has no kernel for it.
  const at::Tensor g = incoming.to(at::kFloat), v = rows.to(at::kFloat);
  const at::Tensor r = of.rstd.view({-1, 1}), normed = v * r;
  const at::Tensor scaled = g * of.weight.to(at::kFloat);
  const at::Tensor dx = r * (scaled - normed * (scaled * normed).mean(1, true));
  return {summed(dx.to(of.x.scalar_type())), (g * normed).sum(0).to(of.weight.scalar_type())};
}

void device_rotate(Accelerator& device, const at::Tensor& values, const at::Tensor& cos, const at::Tensor& sin,
    std::int64_t head_dim, bool inverse) {
  if (device.rotate(values, cos, sin, head_dim, inverse)) return;
  const std::int64_t half = head_dim / 2, positions = cos.size(0);
  const at::Tensor heads = values.view({values.size(0) / positions, positions, -1, head_dim});
  const at::Tensor c = cos.view({1, positions, 1, half}), s = sin.view({1, positions, 1, half});
  const at::Tensor first = heads.narrow(3, 0, half).to(at::kFloat).clone();
  const at::Tensor second = heads.narrow(3, half, half).to(at::kFloat).clone();
  const at::Tensor sine = inverse ? -s : s;
  heads.narrow(3, 0, half).copy_(first * c - second * sine);
  heads.narrow(3, half, half).copy_(second * c + first * sine);
}

at::Tensor silu_multiply(Accelerator* device, const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty_like(gate);
  if (device != nullptr && device->silu_multiply(out, gate, up)) return out;
  at::silu_out(out, gate);
  return out.mul_(up);
}

std::vector<at::Tensor> silu_multiply_backward(
    Accelerator* device, const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor d_gate = at::empty_like(gate);
  at::Tensor d_up = at::empty_like(up);
  if (device != nullptr && device->silu_multiply_backward(d_gate, d_up, dy, gate, up)) return {d_gate, d_up};
  at::mul_out(d_gate, dy, up);
  at::silu_backward_out(d_gate, d_gate, gate);
  at::silu_out(d_up, gate);
  d_up.mul_(dy);
  return {d_gate, d_up};
}

void device_add_rows(Accelerator& device, const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  if (device.add_rows(table, ids, rows)) return;
  table.index_add_(0, ids, rows.to(table.scalar_type()));
}

void device_cross_entropy(
    Accelerator& device, const at::Tensor& logits, const at::Tensor& labels, double scale, const at::Tensor& loss_sum) {
  if (device.cross_entropy(logits, labels, scale, loss_sum)) return;
  constexpr std::int64_t kElements = std::int64_t{1} << 26;  // fp32 values held at once
  const std::int64_t rows = logits.size(0);
  const std::int64_t chunk = std::clamp<std::int64_t>(kElements / logits.size(1), 1, rows);
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t count = std::min(chunk, rows - begin);
    at::Tensor source = logits.narrow(0, begin, count);
    const at::Tensor wanted = labels.narrow(0, begin, count).unsqueeze(1);
    at::Tensor likelihood = at::log_softmax(source, 1, at::kFloat);
    loss_sum.sub_(likelihood.gather(1, wanted).sum());
    likelihood.exp_();
    likelihood.scatter_add_(1, wanted, at::full_like(wanted, -1.0, likelihood.options()));
    source.copy_(likelihood.mul_(scale));
  }
}

}
