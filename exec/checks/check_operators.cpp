// References are computed on the CPU by ATen in fp32 from the same operands. A tolerance is what
// the dtype's rounding gives on operands of order 1: bf16 has 8 bits, so sums of products of bf16
// values kept in fp32 and rounded once differ by some 2^-8 of the largest.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <vector>

#include "exec/checks/checks.h"
#include "exec/compute/device_operations.h"
#include "exec/compute/rotary_table.h"

namespace foreshard {

std::string Checks::gemm_fp32() {
  const at::Tensor a = randn({256, 512}), b = randn({512, 384});
  return near("error", at::mm(put(a), put(b)), at::mm(a, b), 1e-5);
}

std::string Checks::gemm_bf16() {
  const at::Tensor a = randn({256, 512}), b = randn({384, 512});
  at::Tensor out = at::empty({256, 384}, at::TensorOptions().dtype(at::kBFloat16).device(on_));
  at::mm_out(out, put_bf16(a), put_bf16(b).t());
  return near("error", out, at::mm(rounded(a), rounded(b).t()), 1e-2);
}

std::string Checks::gemm_rate() {
  needs_gpu();
  constexpr std::int64_t kSize = 8192;
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(on_);
  const at::Tensor a = at::randn({kSize, kSize}, options), b = at::randn({kSize, kSize}, options);
  at::Tensor c = at::empty({kSize, kSize}, options);
  for (int i = 0; i < 3; ++i) at::mm_out(c, a, b);
  const double seconds = median_of(10, [&] { at::mm_out(c, a, b); });
  const double size = as_double(kSize);
  return fmt::format(
      "8192^3 in bf16: {:.0f} us, {:.0f} TFLOP/s", seconds * 1e6, 2 * size * size * size / seconds * 1e-12);
}

// Grouped queries, causal, 2 sequences, against plain arithmetic in fp32.
std::string Checks::attention(DeviceAttention kernel, std::int64_t head_dim) {
  constexpr std::int64_t kBatch = 2, kHeads = 8, kKvHeads = 2, kLength = 256;
  // As the engine has them: rows of tokens, heads inside.
  const auto tokens = [&](std::int64_t heads) { return randn({kBatch, kLength, heads, head_dim}).to(at::kBFloat16); };
  const at::Tensor q = tokens(kHeads), k = tokens(kKvHeads), v = tokens(kKvHeads);
  const at::Tensor dy = tokens(kHeads);
  const auto heads = [](const at::Tensor& t) { return t.transpose(1, 2); };
  const AttentionTensors in{heads(put(q)), heads(put(k)), heads(put(v))};
  auto [out, logsumexp] = device_attention(kernel, in, true);
  auto [dq, dk, dv] = device_attention_backward(kernel, heads(put(dy)), in, out, logsumexp, true);

  const auto wide = [&](const at::Tensor& t) { return heads(t).to(at::kFloat).contiguous(); };
  const at::Tensor fq = wide(q), fk = wide(k).repeat_interleave(kHeads / kKvHeads, 1),
                   fv = wide(v).repeat_interleave(kHeads / kKvHeads, 1), fdy = wide(dy);
  const double scale = 1 / std::sqrt(as_double(head_dim));
  const at::Tensor hidden = at::full({kLength, kLength}, -INFINITY, at::TensorOptions().dtype(at::kFloat)).triu(1);
  const at::Tensor scores = at::matmul(fq, fk.transpose(2, 3)) * scale + hidden;
  const at::Tensor p = at::softmax(scores, 3);
  const at::Tensor wanted = at::matmul(p, fv);
  const at::Tensor dp = at::matmul(fdy, fv.transpose(2, 3));
  const at::Tensor ds = p * (dp - (dp * p).sum(3, true)) * scale;
  const auto grouped = [&](const at::Tensor& t) {
    return t.view({kBatch, kKvHeads, kHeads / kKvHeads, kLength, head_dim}).sum(2);
  };
  return fmt::format("head_dim {}: {}, {}, {}, {}", head_dim, near("out", out, wanted, 2e-2),
      near("dq", dq, at::matmul(ds, fk), 3e-2), near("dk", dk, grouped(at::matmul(ds.transpose(2, 3), fq)), 3e-2),
      near("dv", dv, grouped(at::matmul(p.transpose(2, 3), fdy)), 3e-2));
}

std::string Checks::both_head_dims(DeviceAttention kernel) {
  needs_gpu();
  return attention(kernel, 64) + "; " + attention(kernel, 128);
}

std::string Checks::flash() {
  if (!device_.is_gpu()) return attention(DeviceAttention::kCpu, 64);
  return both_head_dims(DeviceAttention::kFlash);
}

std::string Checks::cudnn() { return both_head_dims(DeviceAttention::kCudnn); }

std::string Checks::efficient() { return both_head_dims(DeviceAttention::kEfficient); }

std::string Checks::rms_norm() {
  const at::Tensor x = randn({64, 512}), w = randn({512}), dy = randn({64, 512});
  const auto reference = [&](const at::Tensor& in, const at::Tensor& weight) {
    return in * (in.square().mean(1, true) + 1e-5).rsqrt() * weight;
  };
  auto [y, rstd] = device_rms_norm(device_, put(x), put(w), 1e-5);
  const at::Tensor addend = randn({64, 512});
  auto [dx, dw] = device_rms_norm_backward(device_, {put(dy), put(x), put(w), rstd, {}});
  auto [sum, same] = device_rms_norm_backward(device_, {put(dy), put(x), put(w), rstd, put(addend)});
  const at::Tensor r = (x.square().mean(1, true) + 1e-5).rsqrt(), normed = x * r;
  const at::Tensor scaled = dy * w;
  auto [y16, rstd16] = device_rms_norm(device_, put_bf16(x), put_bf16(w), 1e-5);
  const at::Tensor wanted = r * (scaled - normed * (scaled * normed).mean(1, true));
  near("dx and more", sum, wanted + addend, 1e-5);
  return fmt::format("{}, {}, {}, {}", near("y", y, reference(x, w), 1e-5), near("dx", dx, wanted, 1e-5),
      near("dw", dw, (dy * normed).sum(0), 1e-5), near("bf16", y16, reference(rounded(x), rounded(w)), 1e-2));
}

// As wide as models are: a row in one to eight packs of every thread's registers.
std::string Checks::wide_rms_norm() {
  std::string text;
  for (const std::int64_t width : {2048, 4096, 8192, 16384}) {
    const at::Tensor x = randn({96, width}), w = randn({width}), dy = randn({96, width});
    const at::Tensor addend = randn({96, width});
    const at::Tensor v = rounded(x), g = rounded(dy), weight = rounded(w);
    auto [y, rstd] = device_rms_norm(device_, put_bf16(x), put_bf16(w), 1e-5);
    auto [dx, dw] = device_rms_norm_backward(device_, {put_bf16(dy), put_bf16(x), put_bf16(w), rstd, put_bf16(addend)});
    const at::Tensor r = (v.square().mean(1, true) + 1e-5).rsqrt(), normed = v * r;
    const at::Tensor scaled = g * weight;
    const at::Tensor wanted = r * (scaled - normed * (scaled * normed).mean(1, true));
    near("y", y, normed * weight, 1e-2);
    text += near(fmt::format("{} wide: dx", width).c_str(), dx, wanted + rounded(addend), 1e-2) + ", " +
            near("dw", dw, (g * normed).sum(0), 1e-2) + "; ";
  }
  return text.substr(0, text.size() - 2);
}

std::string Checks::layer_norm() {
  const at::Tensor x = randn({64, 512}), w = randn({512}), b = randn({512}), dy = randn({64, 512});
  const auto both = [&](const std::function<at::Tensor(const at::Tensor&)>& as) {
    auto [y, mean, rstd] = at::native_layer_norm(as(x), {512}, as(w), as(b), 1e-5);
    auto [dx, dw, db] =
        at::native_layer_norm_backward(as(dy), as(x), {512}, mean, rstd, as(w), as(b), {true, true, true});
    return std::vector<at::Tensor>{y, dx, dw, db};
  };
  const auto got = both([&](const at::Tensor& t) { return put(t); });
  const auto got16 = both([&](const at::Tensor& t) { return put_bf16(t); });
  const auto wanted = both([](const at::Tensor& t) { return t; });
  const auto wanted16 = both([&](const at::Tensor& t) { return rounded(t); });
  std::string text;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    static constexpr const char* kNames[] = {"y", ", dx", ", dw", ", db"};
    text += near(kNames[i], got[i], wanted[i], 1e-5);
    near(kNames[i], got16[i], wanted16[i], 2e-2);
  }
  return text;
}

// As GPT-2 has it (the tanh form) and exact.
std::string Checks::gelu() {
  const at::Tensor x = randn({64, 512}), dy = randn({64, 512});
  std::string text;
  for (const char* kind : {"tanh", "none"}) {
    text += near(kind, at::gelu(put(x), kind), at::gelu(x, kind), 1e-5) + ", ";
    text += near("dx", at::gelu_backward(put(dy), put(x), kind), at::gelu_backward(dy, x, kind), 1e-5) + "; ";
    near("bf16", at::gelu(put_bf16(x), kind), at::gelu(rounded(x), kind), 1e-2);
  }
  return text.substr(0, text.size() - 2);
}

// A product with a bias and the bias's gradient, both as the engine does them.
std::string Checks::bias() {
  const at::Tensor x = randn({128, 64}), w = randn({64, 96}), b = randn({96});
  at::Tensor out = at::empty({128, 96}, at::TensorOptions().device(on_));
  at::addmm_out(out, put(b), put(x), put(w));
  at::Tensor out16 = at::empty({128, 96}, out.options().dtype(at::kBFloat16));
  at::addmm_out(out16, put_bf16(b), put_bf16(x), put_bf16(w));
  at::Tensor sums = at::empty({96}, out.options());
  at::sum_out(sums, put_bf16(x.narrow(1, 0, 1).expand({128, 96})), 0, false, at::kFloat);
  const at::Tensor column = rounded(x.narrow(1, 0, 1)).expand({128, 96}).sum(0);
  return fmt::format("{}, {}, {}", near("y", out, at::addmm(b, x, w), 1e-5),
      near("bf16", out16, at::addmm(rounded(b), rounded(x), rounded(w)), 1e-2), near("sums", sums, column, 1e-5));
}

std::string Checks::rotate() {
  constexpr std::int64_t kPositions = 32, kHeads = 4, kDim = 64;
  const RotaryTable table = rotary_table(kPositions, kDim, 10000.0);
  const at::Tensor x = randn({2 * kPositions, kHeads * kDim});
  std::string text;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor values = put(x.to(type)).clone();
    device_rotate(device_, values, put(table.cos), put(table.sin), kDim, false);
    const at::Tensor heads = x.to(type).to(at::kFloat).view({2, kPositions, kHeads, kDim});
    const at::Tensor a = heads.narrow(3, 0, kDim / 2), b = heads.narrow(3, kDim / 2, kDim / 2);
    const at::Tensor c = table.cos.view({1, kPositions, 1, kDim / 2});
    const at::Tensor s = table.sin.view({1, kPositions, 1, kDim / 2});
    const at::Tensor wanted = at::cat({a * c - b * s, b * c + a * s}, 3).view(x.sizes());
    text += near(type == at::kFloat ? "fp32" : ", bf16", values, wanted, type == at::kFloat ? 1e-6 : 1e-2);
    device_rotate(device_, values, put(table.cos), put(table.sin), kDim, true);
    near("undone", values, x, type == at::kFloat ? 1e-5 : 2e-2);
  }
  return text;
}

std::string Checks::silu() {
  const at::Tensor gate = randn({64, 256}), up = randn({64, 256}), dy = randn({64, 256});
  std::string text;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto as = [&](const at::Tensor& t) { return put(t.to(type)); };
    const auto exact = [&](const at::Tensor& t) { return t.to(type).to(at::kFloat); };
    const at::Tensor g = exact(gate), u = exact(up), d = exact(dy), s = at::sigmoid(g);
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
    const at::Tensor y = silu_multiply(&device_, as(gate), as(up));
    const auto grads = silu_multiply_backward(&device_, as(dy), as(gate), as(up));
    text += near(type == at::kFloat ? "fp32" : ", bf16", y, g * s * u, tolerance);
    near("d_gate", grads[0], d * u * s * (1 + g * (1 - s)), 2 * tolerance);
    near("d_up", grads[1], d * g * s, tolerance);
  }
  return text;
}

std::string Checks::add_rows() {
  const at::Tensor ids = at::randint(50, {128}, at::kLong), rows = randn({128, 64});
  const at::Tensor wanted = at::zeros({50, 64}).index_add(0, ids, rows);
  at::Tensor table = at::zeros({50, 64}, at::TensorOptions().device(on_));
  device_add_rows(device_, table, put(ids), put(rows));
  at::Tensor mixed = at::zeros({50, 64}, at::TensorOptions().device(on_));
  device_add_rows(device_, mixed, put(ids), put_bf16(rows));
  return near("fp32", table, wanted, 1e-5) + near(", bf16 to fp32", mixed, wanted, 1e-2);
}

std::string Checks::cross_entropy() {
  constexpr std::int64_t kRows = 64, kWidth = 1000;
  const at::Tensor logits = randn({kRows, kWidth}) * 3;
  const at::Tensor labels = at::randint(kWidth, {kRows}, at::kLong);
  std::string text;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor in = logits.to(type).to(at::kFloat);
    const at::Tensor likelihood = at::log_softmax(in, 1);
    const double loss = -likelihood.gather(1, labels.unsqueeze(1)).sum().item<double>();
    at::Tensor gradient = likelihood.exp();
    gradient.scatter_add_(1, labels.unsqueeze(1), at::full({kRows, 1}, -1.0));
    const at::Tensor values = put(logits.to(type)).clone();
    at::Tensor sum = at::zeros({1}, at::TensorOptions().device(on_));
    device_cross_entropy(device_, values, put(labels), 0.5, sum);
    text += near(type == at::kFloat ? "fp32" : ", bf16", values, gradient * 0.5, type == at::kFloat ? 1e-5 : 1e-2);
    const double got = sum.item<double>();
    expect(std::abs(got - loss) < 1e-3 * loss, fmt::format("a loss of {} instead of {}", got, loss));
  }
  return text;
}

std::string Checks::adamw() {
  const at::Tensor p = randn({1000}), g = randn({1000});
  std::vector<at::Tensor> results;
  for (const c10::Device where : {c10::Device(c10::DeviceType::CPU), on_}) {
    std::vector<at::Tensor> parameter = {p.to(where).clone()}, gradient = {g.to(where).clone()},
                            first = {at::zeros_like(parameter[0])}, second = {at::zeros_like(parameter[0])},
                            step = {at::full({}, 1.0, parameter[0].options())};
    at::_fused_adamw_(parameter, gradient, first, second, {}, step, 1e-3, 0.9, 0.95, 0.1, 1e-8, false, false);
    results.push_back(parameter[0]);
  }
  return near("parameters", results[1], results[0], 1e-5) + fused_adamw(p, g, results[0]);
}

// The same step from twice the gradient with half of it taken, in the device's own kernel.
std::string Checks::fused_adamw(const at::Tensor& p, const at::Tensor& g, const at::Tensor& wanted) {
  const at::Tensor parameter = put(p).clone(), gradient = put(g * 2);
  const at::Tensor first = at::zeros_like(parameter), second = at::zeros_like(parameter);
  const at::Tensor shadow = at::empty_like(parameter, at::kBFloat16);
  Optimizer numbers = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
  const AdamWPiece piece{parameter.mutable_data_ptr<float>(), nullptr, first.mutable_data_ptr<float>(),
      second.mutable_data_ptr<float>(), shadow.mutable_data_ptr(), p.numel(), 0.1F};
  const auto fused = device_.fused_adamw({&piece, 1}, numbers);
  if (!fused) return "";
  const float* const place = gradient.const_data_ptr<float>();
  fused->find_gradients({&place, 1});
  const auto number = [&](double value) { return at::full({}, value, parameter.options()); };
  fused->step(number(1.0), number(1e-3), number(0.5));
  return ", " + near("fused", parameter, wanted, 1e-5) + ", " + near("shadow", shadow, wanted, 1e-2);
}

}
