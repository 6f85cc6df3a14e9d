// References are computed on the CPU by ATen in fp32 from the same operands. A tolerance is what
// the dtype's rounding gives on operands of order 1: bf16 has 8 bits, so sums of products of bf16
// values kept in fp32 and rounded once differ by some 2^-8 of the largest.
#include "exec/device/self_check.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "exec/compute/device_operations.h"
#include "exec/compute/operations.h"
#include "exec/device/device_communicators.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

// Says that a check does not apply.
class Skipped : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

class Checks {
 public:
  explicit Checks(Accelerator& device) : device_(device), on_(device.device()) {
    main_ = device.open_lane(false);
    other_ = device.open_lane(true);
    device.enter(main_);
  }

  using Check = std::string (Checks::*)();
  struct Named {
    const char* name;
    Check check;
  };
  static std::vector<Named> all() {
    return {{"identity", &Checks::identity},
            {"memory", &Checks::memory},
            {"out_of_memory_message", &Checks::out_of_memory},
            {"events", &Checks::events},
            {"lanes_overlap", &Checks::lanes},
            {"lane_waits", &Checks::waits},
            {"gemm_fp32", &Checks::gemm_fp32},
            {"gemm_bf16", &Checks::gemm_bf16},
            {"gemm_rate", &Checks::gemm_rate},
            {"attention_flash", &Checks::flash},
            {"attention_cudnn", &Checks::cudnn},
            {"attention_efficient", &Checks::efficient},
            {"rms_norm", &Checks::rms_norm},
            {"layer_norm", &Checks::layer_norm},
            {"rotate", &Checks::rotate},
            {"silu_multiply", &Checks::silu},
            {"add_rows", &Checks::add_rows},
            {"cross_entropy", &Checks::cross_entropy},
            {"adamw", &Checks::adamw},
            {"swapped_storage", &Checks::swapped_storage},
            {"paced_bytes", &Checks::paced_bytes},
            {"paced_duration", &Checks::paced_duration},
            {"paced_beside_gemm", &Checks::paced_beside_gemm},
            {"nccl_one_rank", &Checks::nccl},
            {"host_cost", &Checks::host_cost},
            {"allocator", &Checks::allocator},
            {"clocks", &Checks::clocks}};
  }

 private:
  at::Tensor randn(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions().dtype(at::kFloat));
  }
  at::Tensor put(const at::Tensor& t) const { return t.to(on_); }
  at::Tensor put_bf16(const at::Tensor& t) const { return t.to(on_, at::kBFloat16); }
  static at::Tensor rounded(const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); }

  std::string near(const char* what, const at::Tensor& got, const at::Tensor& wanted,
                   double tolerance) const {
    const double error = largest_error(got, wanted);
    const std::string text = fmt::format("{} {:.1e}", what, error);
    expect(error <= tolerance, fmt::format("{}: more than {:.0e}", text, tolerance));
    return text;
  }

  // Device seconds of what `work` gives to the current lane.
  template <typename Work>
  double timed(Work work) {
    const DeviceEvent begin = device_.new_event(), end = device_.new_event();
    device_.record(begin);
    work();
    device_.record(end);
    device_.synchronize(end);
    const double seconds = device_.seconds_between(begin, end);
    device_.free_event(begin);
    device_.free_event(end);
    return seconds;
  }
  template <typename Work>
  double median_of(int runs, Work work) {
    std::vector<double> all;
    for (int i = 0; i < runs; ++i) all.push_back(timed(work));
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }
  void needs_gpu() const {
    if (!device_.is_gpu()) throw Skipped("the stand-in has none");
  }

  std::string identity() {
    const AcceleratorInfo info = device_.info();
    std::string text = fmt::format(
        "{}, sm_{}, {} multiprocessors, {:.1f} GiB, device clock counts in {:.0f} ns", info.name,
        info.capability, info.multiprocessors,
        static_cast<double>(info.memory_bytes) / (1024.0 * 1024 * 1024), info.globaltimer_step_ns);
    for (const auto& [name, version] : info.versions) text += fmt::format(", {} {}", name, version);
    return text;
  }

  std::string memory() {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    std::byte* block = device_.allocate(kBytes);
    std::vector<std::byte> host(4096);
    device_.to_host(host.data(), block + kBytes - host.size(), host.size());
    const bool zeroed =
        std::all_of(host.begin(), host.end(), [](std::byte b) { return b == std::byte{0}; });
    device_.fill(block, 0x5a, kBytes / 2);
    device_.copy(block + kBytes / 2, block, kBytes / 2);
    device_.to_host(host.data(), block + kBytes - host.size(), host.size());
    const bool copied =
        std::all_of(host.begin(), host.end(), [](std::byte b) { return b == std::byte{0x5a}; });
    at::Tensor view = tensor_over(block, 1024, at::kFloat, on_);
    view.fill_(2.5);
    const double sum = view.sum().item<double>();
    device_.release(block, kBytes);
    expect(zeroed, "an allocation is not zeroed");
    expect(copied, "fill and copy did not arrive");
    expect(sum == 2.5 * 1024, fmt::format("a tensor over raw memory sums to {}", sum));
    return "allocate, fill, copy, read back, tensor over raw memory";
  }

  std::string out_of_memory() {
    needs_gpu();
    try {
      std::byte* block = device_.allocate(std::size_t{1} << 46);
      device_.release(block, std::size_t{1} << 46);
    } catch (const std::exception& error) {
      at::Tensor after = at::ones({16}, at::TensorOptions().device(on_));
      expect(after.sum().item<double>() == 16, "the device does not work after it");
      return error.what();
    }
    throw std::runtime_error("64 TiB were given");
  }

  std::string events() {
    const double seconds = timed([&] { device_.spin(1'000'000, 1); });
    expect(seconds > 0.0009 && seconds < 0.01,
           fmt::format("1 ms of spinning took {:.1f} us between events", seconds * 1e6));
    return fmt::format("1000 us of spinning are {:.1f} us between events", seconds * 1e6);
  }

  std::string lanes() {
    needs_gpu();
    const auto begin = Clock::now();
    device_.synchronize();
    device_.enter(main_);
    device_.spin(4'000'000, 2);
    device_.enter(other_);
    device_.spin(4'000'000, 2);
    device_.synchronize();
    device_.enter(main_);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    expect(seconds < 0.007, fmt::format("2 x 4 ms on two lanes took {:.2f} ms", seconds * 1e3));
    return fmt::format("2 x 4 ms on two lanes took {:.2f} ms", seconds * 1e3);
  }

  std::string waits() {
    const DeviceEvent first = device_.new_event(), second = device_.new_event();
    device_.enter(main_);
    device_.spin(2'000'000, 1);
    device_.record(first);
    device_.enter(other_);
    device_.wait(first);
    device_.record(second);
    device_.synchronize(second);
    const double apart = device_.seconds_between(first, second);
    device_.enter(main_);
    device_.free_event(first);
    device_.free_event(second);
    expect(apart >= 0 && apart < 0.001,
           fmt::format("the waiting lane went on {:.1f} us after the event", apart * 1e6));
    return fmt::format("a lane goes on {:.1f} us after the event it waits for", apart * 1e6);
  }

  std::string gemm_fp32() {
    const at::Tensor a = randn({256, 512}), b = randn({512, 384});
    return near("error", at::mm(put(a), put(b)), at::mm(a, b), 1e-5);
  }

  std::string gemm_bf16() {
    const at::Tensor a = randn({256, 512}), b = randn({384, 512});
    at::Tensor out = at::empty({256, 384}, at::TensorOptions().dtype(at::kBFloat16).device(on_));
    at::mm_out(out, put_bf16(a), put_bf16(b).t());
    return near("error", out, at::mm(rounded(a), rounded(b).t()), 1e-2);
  }

  std::string gemm_rate() {
    needs_gpu();
    constexpr std::int64_t kSize = 8192;
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(on_);
    const at::Tensor a = at::randn({kSize, kSize}, options), b = at::randn({kSize, kSize}, options);
    at::Tensor c = at::empty({kSize, kSize}, options);
    for (int i = 0; i < 3; ++i) at::mm_out(c, a, b);
    const double seconds = median_of(10, [&] { at::mm_out(c, a, b); });
    const double size = static_cast<double>(kSize);
    return fmt::format("8192^3 in bf16: {:.0f} us, {:.0f} TFLOP/s", seconds * 1e6,
                       2 * size * size * size / seconds * 1e-12);
  }

  // Grouped queries, causal, 2 sequences, against plain arithmetic in fp32.
  std::string attention(DeviceAttention kernel, std::int64_t head_dim) {
    constexpr std::int64_t kBatch = 2, kHeads = 8, kKvHeads = 2, kLength = 256;
    // As the engine has them: rows of tokens, heads inside.
    const auto tokens = [&](std::int64_t heads) {
      return randn({kBatch, kLength, heads, head_dim}).to(at::kBFloat16);
    };
    const at::Tensor q = tokens(kHeads), k = tokens(kKvHeads), v = tokens(kKvHeads);
    const at::Tensor dy = tokens(kHeads);
    const auto heads = [](const at::Tensor& t) { return t.transpose(1, 2); };
    const AttentionTensors in{heads(put(q)), heads(put(k)), heads(put(v))};
    auto [out, logsumexp] = device_attention(kernel, in, true);
    auto [dq, dk, dv] = device_attention_backward(kernel, heads(put(dy)), in, out, logsumexp, true);

    const auto wide = [&](const at::Tensor& t) { return heads(t).to(at::kFloat).contiguous(); };
    const at::Tensor fq = wide(q), fk = wide(k).repeat_interleave(kHeads / kKvHeads, 1),
                     fv = wide(v).repeat_interleave(kHeads / kKvHeads, 1), fdy = wide(dy);
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
    const at::Tensor hidden =
        at::full({kLength, kLength}, -INFINITY, at::TensorOptions().dtype(at::kFloat)).triu(1);
    const at::Tensor scores = at::matmul(fq, fk.transpose(2, 3)) * scale + hidden;
    const at::Tensor p = at::softmax(scores, 3);
    const at::Tensor wanted = at::matmul(p, fv);
    const at::Tensor dp = at::matmul(fdy, fv.transpose(2, 3));
    const at::Tensor ds = p * (dp - (dp * p).sum(3, true)) * scale;
    const auto grouped = [&](const at::Tensor& t) {
      return t.view({kBatch, kKvHeads, kHeads / kKvHeads, kLength, head_dim}).sum(2);
    };
    return fmt::format("head_dim {}: {}, {}, {}, {}", head_dim, near("out", out, wanted, 2e-2),
                       near("dq", dq, at::matmul(ds, fk), 3e-2),
                       near("dk", dk, grouped(at::matmul(ds.transpose(2, 3), fq)), 3e-2),
                       near("dv", dv, grouped(at::matmul(p.transpose(2, 3), fdy)), 3e-2));
  }
  std::string both_head_dims(DeviceAttention kernel) {
    needs_gpu();
    return attention(kernel, 64) + "; " + attention(kernel, 128);
  }
  std::string flash() {
    if (!device_.is_gpu()) return attention(DeviceAttention::kCpu, 64);
    return both_head_dims(DeviceAttention::kFlash);
  }
  std::string cudnn() { return both_head_dims(DeviceAttention::kCudnn); }
  std::string efficient() { return both_head_dims(DeviceAttention::kEfficient); }

  std::string rms_norm() {
    const at::Tensor x = randn({64, 512}), w = randn({512}), dy = randn({64, 512});
    const auto reference = [&](const at::Tensor& in, const at::Tensor& weight) {
      return in * (in.square().mean(1, true) + 1e-5).rsqrt() * weight;
    };
    auto [y, rstd] = device_rms_norm(put(x), put(w), 1e-5);
    auto [dx, dw] = device_rms_norm_backward(put(dy), put(x), put(w), rstd);
    const at::Tensor r = (x.square().mean(1, true) + 1e-5).rsqrt(), normed = x * r;
    const at::Tensor scaled = dy * w;
    auto [y16, rstd16] = device_rms_norm(put_bf16(x), put_bf16(w), 1e-5);
    return fmt::format(
        "{}, {}, {}, {}", near("y", y, reference(x, w), 1e-5),
        near("dx", dx, r * (scaled - normed * (scaled * normed).mean(1, true)), 1e-5),
        near("dw", dw, (dy * normed).sum(0), 1e-5),
        near("bf16", y16, reference(rounded(x), rounded(w)), 1e-2));
  }

  std::string layer_norm() {
    const at::Tensor x = randn({64, 512}), w = randn({512}), b = randn({512});
    auto [y, mean, rstd] = at::native_layer_norm(put(x), {512}, put(w), put(b), 1e-5);
    auto [wanted, m, r] = at::native_layer_norm(x, {512}, w, b, 1e-5);
    return near("y", y, wanted, 1e-5);
  }

  std::string rotate() {
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
      text += near(type == at::kFloat ? "fp32" : ", bf16", values, wanted,
                   type == at::kFloat ? 1e-6 : 1e-2);
      device_rotate(device_, values, put(table.cos), put(table.sin), kDim, true);
      near("undone", values, x, type == at::kFloat ? 1e-5 : 2e-2);
    }
    return text;
  }

  std::string silu() {
    const at::Tensor gate = randn({64, 256}), up = randn({64, 256}), dy = randn({64, 256});
    std::string text;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const auto as = [&](const at::Tensor& t) { return put(t.to(type)); };
      const auto exact = [&](const at::Tensor& t) { return t.to(type).to(at::kFloat); };
      const at::Tensor g = exact(gate), u = exact(up), d = exact(dy), s = at::sigmoid(g);
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
      const at::Tensor y = device_silu_multiply(device_, as(gate), as(up));
      const auto grads = device_silu_multiply_backward(device_, as(dy), as(gate), as(up));
      text += near(type == at::kFloat ? "fp32" : ", bf16", y, g * s * u, tolerance);
      near("d_gate", grads[0], d * u * s * (1 + g * (1 - s)), 2 * tolerance);
      near("d_up", grads[1], d * g * s, tolerance);
    }
    return text;
  }

  std::string add_rows() {
    const at::Tensor ids = at::randint(50, {128}, at::kLong), rows = randn({128, 64});
    const at::Tensor wanted = at::zeros({50, 64}).index_add(0, ids, rows);
    at::Tensor table = at::zeros({50, 64}, at::TensorOptions().device(on_));
    device_add_rows(device_, table, put(ids), put(rows));
    at::Tensor mixed = at::zeros({50, 64}, at::TensorOptions().device(on_));
    device_add_rows(device_, mixed, put(ids), put_bf16(rows));
    return near("fp32", table, wanted, 1e-5) + near(", bf16 to fp32", mixed, wanted, 1e-2);
  }

  std::string cross_entropy() {
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
      text += near(type == at::kFloat ? "fp32" : ", bf16", values, gradient * 0.5,
                   type == at::kFloat ? 1e-5 : 1e-2);
      const double got = sum.item<double>();
      expect(std::abs(got - loss) < 1e-3 * loss,
             fmt::format("a loss of {} instead of {}", got, loss));
    }
    return text;
  }

  std::string adamw() {
    const at::Tensor p = randn({1000}), g = randn({1000});
    std::vector<at::Tensor> results;
    for (const c10::Device where : {c10::Device(c10::DeviceType::CPU), on_}) {
      std::vector<at::Tensor> parameter = {p.to(where).clone()}, gradient = {g.to(where).clone()},
                              first = {at::zeros_like(parameter[0])},
                              second = {at::zeros_like(parameter[0])},
                              step = {at::full({}, 1.0, parameter[0].options())};
      at::_fused_adamw_(parameter, gradient, first, second, {}, step, 1e-3, 0.9, 0.95, 0.1, 1e-8,
                        false, false);
      results.push_back(parameter[0]);
    }
    return near("parameters", results[1], results[0], 1e-5);
  }

  std::string swapped_storage() {
    constexpr std::size_t kBytes = 4096;
    std::byte* a = device_.allocate(kBytes);
    std::byte* b = device_.allocate(kBytes);
    FlatStorage storage(kBytes / 4, at::kFloat, on_);
    const std::int64_t shape[] = {16, 16};
    const at::Tensor view = storage.view(32, shape);
    tensor_over(a, kBytes / 4, at::kFloat, on_).fill_(1.0);
    tensor_over(b, kBytes / 4, at::kFloat, on_).fill_(2.0);
    storage.attach(a);
    const double first = view.sum().item<double>();
    storage.attach(b);
    const double second = at::mm(view, view).sum().item<double>();
    storage.attach(nullptr);
    device_.release(a, kBytes);
    device_.release(b, kBytes);
    expect(first == 256 && second == 16 * 16 * 16 * 4.0,
           fmt::format("a view saw {} and {}", first, second));
    return "views follow the storage's pointer";
  }

  std::string paced_bytes() {
    constexpr int kRanks = 8, kIndex = 3;
    constexpr std::int64_t kShard = 12'345;  // not a multiple of 16 bytes
    std::string text;
    for (const std::int64_t shard : {kShard, std::int64_t{16'384}}) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) {
        const at::ScalarType type = scalar_type(dtype);
        const at::Tensor host = randn({kRanks, shard}).to(type);
        const at::Tensor whole = put(host).clone();
        const at::Tensor sum = at::zeros({shard}, at::TensorOptions().dtype(type).device(on_));
        PacedCollective c;
        c.whole = whole.mutable_data_ptr();
        c.shard = sum.mutable_data_ptr();
        c.shard_elements = static_cast<std::size_t>(shard);
        c.dtype = dtype;
        c.ranks = kRanks;
        c.index = kIndex;
        c.ctas = 4;
        c.kind = PacedCollective::Kind::kReduceScatter;
        device_.paced(c);
        near("reduce_scatter", sum, host.to(at::kFloat).sum(0),
             dtype == DType::kFp32 ? 1e-5 : 1e-2);
        c.kind = PacedCollective::Kind::kAllGather;
        device_.paced(c);
        const at::Tensor wanted = host.select(0, kIndex).unsqueeze(0).expand({kRanks, shard});
        expect(largest_error(whole, wanted) == 0, "all_gather did not copy the shard");
      }
    }
    return "all_gather copies, reduce_scatter adds, aligned and not";
  }

  std::string paced_duration() {
    std::string text;
    double worst = 0;
    for (const int ctas : {1, 8, 24}) {
      const auto communicator = paced(ctas);
      const at::Tensor whole =
          at::zeros({64, 512}, at::TensorOptions().dtype(at::kBFloat16).device(on_));
      for (const std::int64_t ns : {20'000, 100'000, 1'000'000}) {
        const double seconds = median_of(9, [&] {
          communicator->pace(ns, ctas);
          communicator->all_gather(whole.mutable_data_ptr(), 512 * 2, DType::kBf16);
        });
        const double off = seconds * 1e6 - static_cast<double>(ns) * 1e-3;
        worst = std::max(worst, std::abs(off) / std::max(2.0, static_cast<double>(ns) * 1e-5));
        text += fmt::format("{}{} us x {} blocks: {:+.2f} us", text.empty() ? "" : ", ", ns / 1000,
                            ctas, off);
      }
    }
    // Within 2 us or 1 %; the stand-in sleeps, which a busy machine does not end in time.
    expect(!device_.is_gpu() || worst <= 1, text);
    return text;
  }

  std::string paced_beside_gemm() {
    needs_gpu();
    constexpr std::int64_t kNs = 3'000'000;
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(on_);
    const at::Tensor a = at::randn({8192, 4096}, options), b = at::randn({4096, 4096}, options);
    at::Tensor c = at::empty({8192, 4096}, options);
    const at::Tensor whole = at::randn({64, 1 << 20}, options);
    const auto products = [&] {
      for (int i = 0; i < 4; ++i) at::mm_out(c, a, b);
    };
    products();
    const double alone = median_of(5, products);
    const auto communicator = paced(16);
    const DeviceEvent begin = device_.new_event(), end = device_.new_event();
    std::vector<double> beside, gathers;
    for (int i = 0; i < 5; ++i) {
      device_.synchronize();
      device_.enter(other_);
      communicator->pace(kNs, 16);
      device_.record(begin);
      communicator->all_gather(whole.mutable_data_ptr(), (1 << 20) * 2, DType::kBf16);
      device_.record(end);
      device_.enter(main_);
      beside.push_back(timed(products));
      device_.synchronize(end);
      gathers.push_back(device_.seconds_between(begin, end));
    }
    std::sort(beside.begin(), beside.end());
    std::sort(gathers.begin(), gathers.end());
    device_.free_event(begin);
    device_.free_event(end);
    return fmt::format(
        "4 products {:.0f} us alone, {:.0f} us beside 16 blocks (x{:.2f}); a gather of {} us took "
        "{:.1f} us",
        alone * 1e6, beside[2] * 1e6, beside[2] / alone, kNs / 1000, gathers[2] * 1e6);
  }

  std::string nccl() {
    needs_gpu();
    NcclGroup group;
    group.unique_id = device_.nccl_unique_id();
    group.name = "self check";
    const AcceleratorMemory before = device_.memory();
    const auto communicator = device_.nccl(group);
    at::Tensor values = at::ones({1024}, at::TensorOptions().device(on_));
    communicator->all_gather(values.mutable_data_ptr(), 4096, DType::kFp32);
    communicator->all_reduce(values.mutable_data_ptr<float>(), 1024);
    at::Tensor shard = at::zeros({1024}, at::TensorOptions().device(on_));
    communicator->reduce_scatter(values.const_data_ptr(), shard.mutable_data_ptr(), 1024,
                                 DType::kFp32);
    device_.synchronize();
    expect(!communicator->failure(), communicator->failure().value_or(""));
    expect(shard.sum().item<double>() == 1024, "a world of one does not give back its values");
    const AcceleratorMemory after = device_.memory();
    return fmt::format("a communicator of one rank took {:.1f} MiB",
                       static_cast<double>(before.free - after.free) / (1024.0 * 1024));
  }

  std::string host_cost() {
    constexpr int kRuns = 2000;
    const DeviceEvent event = device_.new_event();
    const at::Tensor small = at::zeros({16}, at::TensorOptions().device(on_));
    const auto cost = [&](auto work) {
      device_.synchronize();
      const auto begin = Clock::now();
      for (int i = 0; i < kRuns; ++i) work();
      const double us = std::chrono::duration<double>(Clock::now() - begin).count() / kRuns * 1e6;
      device_.synchronize();
      return us;
    };
    const double record = cost([&] { device_.record(event); });
    const double wait = cost([&] { device_.wait(event); });
    const double enter = cost([&] { device_.enter(main_); });
    const double fill = cost([&] { small.fill_(1.0); });
    device_.free_event(event);
    return fmt::format("us per call: record {:.2f}, wait {:.2f}, enter {:.2f}, fill_ {:.2f}",
                       record, wait, enter, fill);
  }

  std::string allocator() {
    const AcceleratorMemory before = device_.memory();
    device_.reset_peaks();
    { const at::Tensor t = at::empty({1 << 20}, at::TensorOptions().device(on_)); }
    const AcceleratorMemory after = device_.memory();
    if (device_.is_gpu()) {
      expect(after.allocated_peak - before.allocated >= 4 << 20, "a peak was not counted");
    }
    return fmt::format("allocated {} MiB, reserved {} MiB, free {} of {} MiB on the device",
                       after.allocated >> 20, after.reserved >> 20, after.free >> 20,
                       after.total >> 20);
  }

  std::string clocks() {
    const AcceleratorClocks c = device_.clocks();
    if (c.sm_mhz == 0) throw Skipped("NVML tells nothing");
    return fmt::format("{} MHz, memory {} MHz, {} C, {:.0f} W, throttle mask {:#x}", c.sm_mhz,
                       c.memory_mhz, c.temperature_c, c.watts, c.throttle_mask);
  }

  std::unique_ptr<DeviceCommunicator> paced(int ctas) {
    world_ = paced_world(64);
    DeviceGroup group{device_, *world_, "self check", {}, true};
    for (int r = 0; r < 64; ++r) group.ranks.push_back(r);
    auto communicator = make_device_communicator(group);
    communicator->pace(0, ctas);  // measures its overhead
    return communicator;
  }

  Accelerator& device_;
  c10::Device on_;
  Lane main_ = 0, other_ = 0;
  std::unique_ptr<World> world_;
};

CheckResult run(Checks& checks, const Checks::Named& named, Accelerator& device) {
  CheckResult result{named.name, CheckStatus::kOk, "", 0};
  const auto begin = Clock::now();
  try {
    result.detail = (checks.*named.check)();
    device.synchronize();
  } catch (const Skipped& reason) {
    result.status = CheckStatus::kSkipped;
    result.detail = reason.what();
  } catch (const c10::Error& error) {
    result.status = CheckStatus::kFailed;
    result.detail = error.what_without_backtrace();
  } catch (const std::exception& error) {
    result.status = CheckStatus::kFailed;
    result.detail = error.what();
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace

const char* to_string(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kFailed:
      return "failed";
    case CheckStatus::kSkipped:
      return "skipped";
    case CheckStatus::kRunning:
      break;
  }
  return "running";
}

double largest_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().to(at::kDouble).contiguous();
  const at::Tensor y = b.detach().cpu().to(at::kDouble).contiguous();
  const double scale = std::max(1e-30, y.abs().max().item<double>());
  const double error = (x - y).abs().max().item<double>() / scale;
  return std::isfinite(error) ? error : INFINITY;
}

void self_check(Accelerator& accelerator, const std::vector<std::string>& skipped,
                const CheckListener& told) {
  Checks checks(accelerator);
  for (const Checks::Named& named : Checks::all()) {
    if (std::find(skipped.begin(), skipped.end(), named.name) != skipped.end()) {
      told({named.name, CheckStatus::kSkipped, "left out by --skip", 0});
      continue;
    }
    told({named.name, CheckStatus::kRunning, "", 0});
    told(run(checks, named, accelerator));
  }
}

}  // namespace foreshard
