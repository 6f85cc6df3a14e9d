// Paced collectives, alone and beside products, and NCCL of one rank.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "exec/checks/checks.h"
#include "exec/device/device_communicators.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {

std::string Checks::paced_bytes() {
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
      c.shard_elements = at(shard);
      c.dtype = dtype;
      c.ranks = kRanks;
      c.index = kIndex;
      c.ctas = 4;
      c.kind = PacedCollective::Kind::kReduceScatter;
      device_.paced(c);
      near("reduce_scatter", sum, host.to(at::kFloat).sum(0), dtype == DType::kFp32 ? 1e-5 : 1e-2);
      c.kind = PacedCollective::Kind::kAllGather;
      device_.paced(c);
      const at::Tensor wanted = host.select(0, kIndex).unsqueeze(0).expand({kRanks, shard});
      expect(largest_error(whole, wanted) == 0, "all_gather did not copy the shard");
    }
  }
  return "all_gather copies, reduce_scatter adds, aligned and not";
}

std::string Checks::paced_duration() {
  std::string text;
  double worst = 0;
  for (const int ctas : {1, 8, 24}) {
    const auto communicator = paced(ctas);
    const at::Tensor whole = at::zeros({64, 512}, at::TensorOptions().dtype(at::kBFloat16).device(on_));
    for (const std::int64_t ns : {20'000, 100'000, 1'000'000}) {
      const double seconds = median_of(9, [&] {
        communicator->pace(ns, ctas);
        communicator->all_gather(whole.mutable_data_ptr(), std::size_t{512} * 2, DType::kBf16);
      });
      const double off = seconds * 1e6 - as_double(ns) * 1e-3;
      worst = std::max(worst, std::abs(off) / std::max(2.0, as_double(ns) * 1e-5));
      text += fmt::format("{}{} us x {} blocks: {:+.2f} us", text.empty() ? "" : ", ", ns / 1000, ctas, off);
    }
  }
  // Within 2 us or 1 %; the stand-in sleeps, which a busy machine does not end in time.
  expect(!device_.is_gpu() || worst <= 1, text);
  return text;
}

std::string Checks::paced_beside_gemm() {
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
    communicator->all_gather(whole.mutable_data_ptr(), std::size_t{1} << 21, DType::kBf16);
    device_.record(end);
    device_.enter(main_);
    beside.push_back(device_seconds(device_, products));
    device_.synchronize(end);
    gathers.push_back(device_.seconds_between(begin, end));
  }
  std::ranges::sort(beside);
  std::ranges::sort(gathers);
  // With a block on every multiprocessor: what does not fit beside one waits for its end, as a
  // product does; small blocks of elementwise kernels do fit, as beside NCCL's.
  const int everywhere = device_.info().multiprocessors;
  const auto covered = [&](const std::function<void()>& work) {
    device_.synchronize();
    device_.enter(other_);
    device_.spin(kNs, everywhere);
    device_.enter(main_);
    device_.record(begin);
    work();
    device_.record(end);
    device_.synchronize();
    return device_.seconds_between(begin, end) * 1e6;
  };
  at::Tensor sum = at::empty_like(c);
  const auto add = [&] { at::add_out(sum, c, c); };
  const double add_alone = median_of(5, add) * 1e6, add_covered = covered(add);
  const double product_covered = covered([&] { at::mm_out(c, a, b); });
  device_.free_event(begin);
  device_.free_event(end);
  return fmt::format(
      "4 products {:.0f} us alone, {:.0f} us beside 16 blocks (x{:.2f}); a gather of {} us took {:.1f} us; with blocks "
      "of {} us everywhere an addition of {:.0f} us took {:.0f} us, a product of {:.0f} us {:.0f} us",
      alone * 1e6, beside[2] * 1e6, beside[2] / alone, kNs / 1000, gathers[2] * 1e6, kNs / 1000, add_alone, add_covered,
      alone * 1e6 / 4, product_covered);
}

std::string Checks::nccl() {
  needs_gpu();
  NcclGroup group = {.unique_id = device_.nccl_unique_id(), .name = "self check"};
  const AcceleratorMemory before = device_.memory();
  const auto whole = device_.nccl(group);
  const auto communicator = whole->split({"self check, part", 0, 0, 1, 8});
  at::Tensor values = at::ones({1024}, at::TensorOptions().device(on_));
  communicator->all_gather(values.mutable_data_ptr(), 4096, DType::kFp32);
  communicator->all_reduce(values.mutable_data_ptr<float>(), 1024);
  at::Tensor shard = at::zeros({1024}, at::TensorOptions().device(on_));
  communicator->reduce_scatter(values.const_data_ptr(), shard.mutable_data_ptr(), 1024, DType::kFp32);
  device_.synchronize();
  expect(!communicator->failure(), communicator->failure().value_or(""));
  expect(shard.sum().item<double>() == 1024, "a world of one does not give back its values");
  const AcceleratorMemory after = device_.memory();
  return fmt::format(
      "a communicator of one rank and its part took {:.1f} MiB", as_double(before.free - after.free) / (1024.0 * 1024));
}

std::unique_ptr<DeviceCommunicator> Checks::paced(int ctas) {
  world_ = paced_world(64);
  DeviceGroup group{device_, *world_, "self check", {}, true};
  for (int r = 0; r < 64; ++r) group.ranks.push_back(r);
  auto communicator = make_device_communicator(group);
  communicator->pace(0, ctas);  // measures its overhead
  return communicator;
}

}
