// The order of things, the same on every rank: kernels model by model, then collectives, then contention.
#include "calibration/measure/measure.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <numeric>
#include <utility>

#include "exec/comm/communicator.h"
#include "exec/engine/stream.h"
#include "exec/memory/allocator.h"

namespace foreshard {
namespace {

// Collectives over all ranks, and what they and computation do to each other.
// A collective is timed as the step sees it: handed to a stream's thread, done there (for a gather, with the copy of
// the own shard into place), waited for. Buffers alternate, so that none stays in the cache.
constexpr std::size_t kSmallest = 512;
constexpr std::size_t kBuffers = 3;

class Bed {
 public:
  // Of every `size` ranks in a row.
  Bed(World& world, int size, std::size_t largest, DType wire)
      : size_(at(size)),
        wire_(wire),
        group_(world.connect(
            fmt::format("measure/{}/{}", size, world.rank() / size), members(world.rank() / size * size, size))),
        stream_([] {}) {
    for (auto& buffer : buffers_) buffer.assign(largest / sizeof(float), 1e-3F);
    shard_.assign(largest / sizeof(float) / size_ + 1, 0.0F);
  }

  void gather(std::size_t bytes) {
    auto* whole = reinterpret_cast<std::byte*>(next());
    const std::size_t part = bytes / size_;
    std::memcpy(whole + at(group_.index()) * part, shard_.data(), part);
    group_.all_gather(whole, part);
  }
  void reduce_scatter(std::size_t bytes, SumInto into) {
    group_.reduce_scatter(next(), wire_, elements(bytes) / size_, shard_.data(), into);
  }
  void all_reduce(std::size_t bytes) { group_.all_reduce(std::span(next(), bytes / sizeof(float))); }
  // From issue to end, as the host sees it. What the row throws is thrown here.
  void on_stream(const std::function<void()>& row) {
    begin(row);
    finish();
  }
  void begin(const std::function<void()>& row) {
    stream_.issue([this, row] {
      try {
        row();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
  }
  void finish() {
    stream_.drain();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  std::size_t elements(std::size_t bytes) const { return bytes / at(size_of(wire_)); }

 private:
  static std::vector<int> members(int first, int size) {
    std::vector<int> ranks(at(size));
    std::iota(ranks.begin(), ranks.end(), first);
    return ranks;
  }
  float* next() { return buffers_[turn_++ % kBuffers].data(); }

  std::size_t size_;
  DType wire_;
  GroupCommunicator group_;
  std::array<std::vector<float>, kBuffers> buffers_;
  std::vector<float> shard_;
  std::size_t turn_ = 0;
  std::exception_ptr failure_;
  StreamThread stream_;  // last: its rows use the others
};

// A product of the size of a small block's, over and over, with and without gathers beside it.
Json contention(World& world, Bed& bed, Bench& bench, std::size_t bytes, DType dtype) {
  const auto options = at::TensorOptions().dtype(dtype == DType::kFp32 ? at::kFloat : at::kBFloat16);
  const at::Tensor a = at::randn({512, 512}, options);
  const at::Tensor b = at::randn({512, 1536}, options);
  at::Tensor c = at::empty({512, 1536}, options);
  const auto compute = [&] { at::mm_out(c, a, b); };
  const double compute_alone = bench.run("contention/compute", compute).median;
  const double gather_alone = bench.run("contention/gather", [&] { bed.on_stream([&] { bed.gather(bytes); }); }).median;

  // Both at once for a fixed number of gathers, every rank the same.
  // The same number on every rank, or one would wait for the other for ever.
  const double agreed = std::stod(world.gather("contention", std::to_string(gather_alone))[0]);
  const auto gathers = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.5 / std::max(agreed, 1e-6)), 4, 4000);
  std::vector<double> compute_beside, gather_beside;
  for (int repeat = 0; repeat < 5; ++repeat) {
    bench.meet();
    std::atomic<bool> done = false;
    double seconds = 0;
    bed.begin([&] {
      const auto over = [&](void*) { done = true; };
      const std::unique_ptr<void, decltype(over)> whatever_happens(&done, over);
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < gathers; ++i) bed.gather(bytes);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    const auto begin = std::chrono::steady_clock::now();
    std::int64_t products = 0;
    for (; !done; ++products) compute();
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bed.finish();
    compute_beside.push_back(all / as_double(std::max<std::int64_t>(1, products)));
    gather_beside.push_back(seconds / as_double(gathers));
  }
  return {{"kind", "contention"}, {"ranks", world.size()}, {"compute_alone_s", compute_alone},
      {"compute_beside_s", summary_of(compute_beside).median}, {"collective_alone_s", gather_alone},
      {"collective_beside_s", summary_of(gather_beside).median}};
}

// Rows of kinds collective and contention.
void measure_collectives(World& world, const MeasureRequest& request, std::size_t largest, Bench& bench, Json& rows) {
  const int ranks = world.size();
  for (const int size : measured_groups(ranks)) {
    Bed bed(world, size, largest, DType::kFp32);
    const auto add = [&](const char* operation, const char* order, std::size_t bytes,
                         const std::function<void()>& row) {
      const BenchResult result =
          bench.run(fmt::format("{}/{}/{}/{}", operation, order, size, bytes), [&] { bed.on_stream(row); });
      rows.push_back({{"kind", "collective"}, {"ranks", ranks}, {"operation", operation}, {"order", order},
          {"group", size}, {"bytes", bytes}, {"seconds", result.to_json()}, {"repeats", result.repeats}});
    };
    const std::size_t step = 32 * sizeof(float) * at(size);
    for (std::size_t wanted = kSmallest;; wanted *= 4) {
      const std::size_t bytes = std::max(step, std::min(wanted, largest) / step * step);
      add(
          "all_gather", "microbatch", bytes, [&] { bed.gather(bytes); });
      add(
          "reduce_scatter", "microbatch", bytes, [&] { bed.reduce_scatter(bytes, SumInto::kContinue); });
      add(
          "reduce_scatter", "library", bytes, [&] { bed.reduce_scatter(bytes, SumInto::kOverwrite); });
      add("all_reduce", "microbatch", bytes, [&] { bed.all_reduce(bytes); });
      if (wanted >= largest) break;
    }
    if (size < ranks) continue;
    const std::size_t usual = std::min<std::size_t>(largest, std::size_t{4} << 20) / step * step;
    rows.push_back(contention(world, bed, bench, std::max(step, usual), request.dtype));
  }
}

std::int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

// The largest unit's bytes in fp32, as a unit of one block each.
std::size_t largest_unit(const std::vector<MeasuredJob>& jobs) {
  std::int64_t largest = 1 << 20;
  for (const MeasuredJob& job : jobs)
    for (const LayerSpec& kind : job.model.kinds) largest = std::max(largest, kind.numel());
  return at(largest) * sizeof(float);
}

}

Json measure_machine(World& world, const MeasureRequest& request) {
  install_allocator();
  const int ranks = world.size();
  Json rows = Json::array();
  rows.push_back({{"kind", "memory_outside"}, {"ranks", ranks}, {"bytes", resident_bytes()}});
  Bench bench(world, request.seconds);
  const auto progress = [&](const std::string& what) {
    if (world.rank() == 0 && request.progress)
      request.progress(fmt::format("{} rank{}: {}", ranks, ranks == 1 ? "" : "s", what));
  };
  for (const MeasuredJob& whole : request.jobs) {
    for (const MeasuredJob& job : over_tp(whole, request.dtype, ranks)) {
      progress(fmt::format(
          "layers of {} over tp {} at {} x {} tokens", job.model.name, job.tp, job.micro_batch, job.sequence));
      measure_kernels(job, request, bench, world, rows);
    }
  }
  if (ranks > 1) progress("collectives, and computation beside them");
  measure_collectives(
      world, request, request.largest_bytes > 0 ? request.largest_bytes : largest_unit(request.jobs), bench, rows);
  return rows;
}

}
