// Parts run in the order of their use to a forecast; each is tried by itself, a failure is an extra
// row of kind `failed`, and what was measured before stays.

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"
#include "exec/device/device_communicators.h"
#include "exec/device/device_seconds.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "exec/memory/arena.h"
#include "sim/base/lookup.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

constexpr std::int64_t kDeviceBlocks = 2;
constexpr int kHopper = 90;  // from which on cuDNN's attention is the faster one

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Events between kernels; times are read when the step is done.
class EventCollector final : public StepObserver {
 public:
  explicit EventCollector(Accelerator& device) : device_(device) {}
  ~EventCollector() override {
    for (DeviceEvent event : pool_) device_.free_event(event);
  }
  void begin(std::span<const Kernel> kernels) override {
    if (!kernels.empty()) steps_.push_back({kernels, {stamp()}});
    open_ = !kernels.empty();
  }
  void mark() override {
    if (open_) steps_.back().stamps.push_back(stamp());
  }
  void end() override { mark(); }

  // Precondition: the device has done all of it.
  void harvest(KernelTimes& times) {
    for (const Step& step : steps_) {
      std::vector<double> parts;
      for (std::size_t i = 0; i + 1 < step.stamps.size(); ++i)
        parts.push_back(std::max(0.0, device_.seconds_between(step.stamps[i], step.stamps[i + 1])));
      times.add_step(step.kernels, parts);
    }
    forget();
  }
  void forget() {
    steps_.clear();
    used_ = 0;
  }

 private:
  struct Step {
    std::span<const Kernel> kernels;
    std::vector<DeviceEvent> stamps;
  };
  DeviceEvent stamp() {
    // A step begins on an idle device: its first kernels would last as long as the host needs.
    if (used_ == 0) give_head_start(device_, kHeadStart);
    if (used_ == pool_.size()) pool_.push_back(device_.new_event());
    device_.record(pool_[used_]);
    return pool_[used_++];
  }
  // ns: the host's for a hundred launches. Not more: what waits cools, and on the H100 20 ms of it
  // made products 4 % faster than a step's.
  static constexpr std::int64_t kHeadStart = 2'000'000;
  Accelerator& device_;
  std::vector<DeviceEvent> pool_;
  std::size_t used_ = 0;
  std::vector<Step> steps_;
  bool open_ = false;
};

Plan device_plan(const MeasuredJob& job, DType dtype) {
  Plan plan;
  plan.runtime = {RuntimeKind::kNative, "1"};
  plan.param_dtype = dtype;
  plan.host_sync = HostSync::kStep;
  plan.batch = {job.sequence, job.micro_batch, 1};
  if (job.model.tied_embeddings) plan.units = {1, UnitPlacement::kRoot, UnitPlacement::kRoot};
  return plan;
}

class DeviceMeasuring {
 public:
  DeviceMeasuring(Accelerator& device, const DeviceMeasureRequest& request)
      : device_(device), request_(request), begin_(Clock::now()) {
    lane_ = device.open_lane(false);
    load_ = device.open_lane(true);
    device.enter(lane_);
  }

  DeviceMeasurements run() {
    fixed_memory("context");
    for (const MeasuredJob& job : request_.jobs) {
      const std::string name =
          fmt::format("layers of {} at {} x {} tokens", job.model.name, job.micro_batch, job.sequence);
      part(name, [&] { layers(job, AttentionKernel::kFlash); });
      if (device_.info().capability >= kHopper) part(name + ", cudnn", [&] { layers(job, AttentionKernel::kCudnn); });
    }
    part(
        "copies", [&] { copies(); });
    part(
        "contention", [&] { contention(); });
    part(
        "sustained clocks", [&] { sustained(); });
    part("allocator calls", [&] { allocator_calls(); });
    DeviceMeasurements all;
    all.rows = rows_;
    all.extra = extra_;
    return all;
  }

 private:
  void part(const std::string& name, auto work) {
    if (seconds_since(begin_) > request_.seconds) {
      extra_.push_back({{"kind", "left_out"}, {"part", name}});
      return;
    }
    if (request_.progress) request_.progress(name);
    const auto begin = Clock::now();
    try {
      work();
      device_.synchronize();
    } catch (const c10::Error& error) {
      failed(name, error.what_without_backtrace());
    } catch (const std::exception& error) {
      failed(name, error.what());
    }
    const AcceleratorClocks c = device_.clocks();
    extra_.push_back({{"kind", "part"}, {"part", name}, {"seconds", seconds_since(begin)}, {"sm_mhz", c.sm_mhz},
        {"temperature_c", c.temperature_c}, {"watts", c.watts}, {"throttle_mask", c.throttle_mask}});
    device_.enter(lane_);
    if (request_.keep) request_.keep(rows_, extra_);
  }
  void failed(const std::string& name, const std::string& why) {
    extra_.push_back({{"kind", "failed"}, {"part", name}, {"reason", why}});
  }

  BenchResult repeated(int runs, auto work) {
    work();
    std::vector<double> seconds;
    for (int i = 0; i < runs; ++i) seconds.push_back(device_seconds(device_, work));
    return summary_of(std::move(seconds));
  }
  at::TensorOptions options(at::ScalarType type) const {
    return at::TensorOptions().dtype(type).device(device_.device());
  }

  // Two factors and a place for their product.
  std::array<at::Tensor, 3> product_of(std::int64_t size) const {
    const at::TensorOptions made = options(device_.is_gpu() ? at::kBFloat16 : at::kFloat);
    return {at::randn({size, size}, made), at::randn({size, size}, made), at::empty({size, size}, made)};
  }

  void fixed_memory(const std::string& after) {
    const AcceleratorMemory m = device_.memory();
    extra_.push_back(
        {{"kind", "fixed_memory"}, {"after", after}, {"used_bytes", m.total - m.free}, {"reserved_bytes", m.reserved}});
  }

  // --- kernels of layers, and host work ---

  // Of another kernel than flash only attention itself is new.
  void layers(const MeasuredJob& job, AttentionKernel attention) {
    const MeasuredJob shortened{few_blocks(job.model, kDeviceBlocks), job.sequence, job.micro_batch};
    Plan plan = device_plan(shortened, request_.dtype);
    plan.attention = attention;
    const EventGraph graph = build_training_step(shortened.model, plan);
    const auto alone = std::move(thread_worlds(1).front());
    Engine engine(shortened.model, plan, graph, *alone, {.device = &device_});
    engine.initialise();
    std::vector<MicroBatch> batches = {random_batch(job)};
    EventCollector collector(device_);
    KernelTimes times;
    MeasuredStep step;
    std::int64_t number = 0;
    HostTimes host;
    // Without the observer first: what the host needs for a row.
    for (int i = 0; i < kWarmUp + kHostSteps; ++i) {
      engine.step(++number, batches, &step);
      if (i >= kWarmUp) host.add(graph, step);
    }
    engine.observe(&collector);
    const auto begin = Clock::now();
    for (int i = 0; i < kMostSteps && (i < kFewestSteps || seconds_since(begin) < kLayerSeconds); ++i) {
      engine.step(++number, batches, &step);
      collector.harvest(times);
      if (i == 0) times.forget();  // events were made in it
      add_row_kernels(graph, step, times);
    }
    engine.observe(nullptr);
    for (const auto& [key, samples] : times.samples()) {
      const bool is_attention = samples.kernel.function == Function::kAttention;
      if (samples.kernel.function == Function::kArange) continue;
      if (!is_attention && attention != AttentionKernel::kFlash) continue;
      rows_.push_back(kernel_row(samples, 1, request_.dtype, shortened));
      if (is_attention && device_.is_gpu()) rows_.back()["kernel"] = to_string(attention);
    }
    if (attention != AttentionKernel::kFlash) return;
    host.write(rows_, extra_);
    const AcceleratorMemory m = device_.memory();
    rows_.push_back({{"kind", "memory_outside"}, {"ranks", 1},
        {"bytes", std::max<std::int64_t>(0, m.total - m.free - m.reserved - engine.units().arena_bytes())}});
    fixed_memory("engine of " + job.model.name);
  }

  // Host seconds from the issue of a row to that of the next: compute rows by their launches.
  struct HostTimes {
    std::map<int, std::vector<double>> compute;  // by launches
    std::vector<double> collective;
    void add(const EventGraph& graph, const MeasuredStep& step) {
      for (std::size_t i = 0; i + 1 < graph.rows.size(); ++i) {
        const double gap = (step.spans[i + 1].issue - step.spans[i].issue).seconds();
        if (graph.rows[i].stream == Stream::kCompute) compute[graph.works[graph.rows[i].work].launches].push_back(gap);
        else collective.push_back(gap);
      }
    }
    void write(Json& rows, Json& extra) const {
      std::vector<double> all;
      for (const auto& [launches, seconds] : compute) {
        const BenchResult result = summary_of(seconds);
        extra.push_back({{"kind", "host_row"}, {"launches", launches}, {"seconds", result.to_json()}});
        append(all, seconds);
      }
      add_host_row(rows, "row", 1, std::move(all));
      add_host_row(rows, "collective", 1, collective);
    }
  };

  // --- extra rows ---

  void copies() {
    const std::size_t most = device_.is_gpu() ? std::size_t{256} << 20 : std::size_t{1} << 20;
    const at::Tensor a = at::empty({static_cast<std::int64_t>(most)}, options(at::kByte));
    const at::Tensor b = at::empty({static_cast<std::int64_t>(most)}, options(at::kByte));
    std::vector<std::byte> host(std::min<std::size_t>(most, std::size_t{64} << 20));
    PinnedMemory pinned_memory(device_);
    const Arena pinned(host.size(), pinned_memory);
    for (std::size_t bytes = std::size_t{64} << 10; bytes <= most; bytes *= 8) {
      const auto add = [&](const char* way, const BenchResult& result) {
        extra_.push_back({{"kind", "copy"}, {"way", way}, {"bytes", bytes}, {"seconds", result.to_json()}});
      };
      add("device", repeated(9, [&] { device_.copy(b.mutable_data_ptr(), a.const_data_ptr(), bytes); }));
      if (bytes > host.size()) continue;
      add("pageable_to_device", repeated(
                                    5, [&] { device_.to_device(a.mutable_data_ptr(), host.data(), bytes); }));
      add("device_to_pageable", repeated(
                                    5, [&] { device_.to_host(host.data(), a.const_data_ptr(), bytes); }));
      add("pinned_to_device", repeated(
                                  9, [&] { device_.copy(a.mutable_data_ptr(), pinned.at(0), bytes); }));
      add("device_to_pinned", repeated(9, [&] { device_.copy(pinned.at(0), a.const_data_ptr(), bytes); }));
    }
  }

  // Products, and an elementwise pass, beside a paced gather of so many blocks.
  void contention() {
    const std::int64_t size = device_.is_gpu() ? 4096 : 128;
    const auto made = product_of(size);
    const at::Tensor &a = made[0], &b = made[1];
    at::Tensor c = made[2];
    const at::ScalarType type = a.scalar_type();
    const at::Tensor x = at::randn({16 * size * size}, options(type));
    at::Tensor y = at::empty_like(x);
    const at::Tensor whole = at::randn({8, 4 * size * size}, options(type));
    const auto world = paced_world(8);
    DeviceGroup group{device_, *world, "contention", {0, 1, 2, 3, 4, 5, 6, 7}, true};
    const auto communicator = make_device_communicator(group);
    const DType dtype = type == at::kFloat ? DType::kFp32 : DType::kBf16;
    const std::size_t shard = whole.nbytes() / 8;
    for (const bool memory_bound : {false, true}) {
      const auto work = [&] {
        for (int i = 0; i < 8; ++i) memory_bound ? at::mul_out(y, x, x) : at::mm_out(c, a, b);
      };
      const double alone = repeated(7, work).median;
      const auto lasts = static_cast<std::int64_t>(alone * 3e9);
      for (const int ctas : {1, 4, 8, 16, 24, 32}) {
        const DeviceEvent from = device_.new_event(), until = device_.new_event();
        std::vector<double> beside, gather;
        for (int i = 0; i < 5; ++i) {
          device_.synchronize();
          device_.enter(load_);
          communicator->pace(lasts, ctas);
          device_.record(from);
          communicator->all_gather(whole.mutable_data_ptr(), shard, dtype);
          device_.record(until);
          device_.enter(lane_);
          beside.push_back(device_seconds(device_, work));
          device_.synchronize(until);
          gather.push_back(device_.seconds_between(from, until));
        }
        device_.free_event(from);
        device_.free_event(until);
        extra_.push_back({{"kind", "contention"}, {"compute", memory_bound ? "elementwise" : "product"}, {"ctas", ctas},
            {"bytes", whole.nbytes()}, {"compute_alone_s", alone}, {"compute_beside_s", summary_of(beside).median},
            {"collective_asked_s", as_double(lasts) * 1e-9}, {"collective_beside_s", summary_of(gather).median}});
      }
    }
  }

  // One product for seconds: its rate and the clocks as the chip warms up.
  void sustained() {
    const std::int64_t size = device_.is_gpu() ? 8192 : 128;
    const auto made = product_of(size);
    const at::Tensor &a = made[0], &b = made[1];
    at::Tensor c = made[2];
    const auto begin = Clock::now();
    const double length = device_.is_gpu() ? 4.0 : 0.2;
    while (seconds_since(begin) < length) {
      constexpr int kProducts = 50;
      const double seconds = device_seconds(device_, [&] {
        for (int i = 0; i < kProducts; ++i) at::mm_out(c, a, b);
      });
      const AcceleratorClocks clocks = device_.clocks();
      const double n = as_double(size);
      extra_.push_back({{"kind", "sustained"}, {"at_s", seconds_since(begin)}, {"m", size},
          {"tflops", 2 * n * n * n * kProducts / seconds * 1e-12}, {"sm_mhz", clocks.sm_mhz}, {"watts", clocks.watts},
          {"temperature_c", clocks.temperature_c}});
    }
  }

  void allocator_calls() {
    for (const std::size_t mib : {2, 64, 1024}) {
      const std::size_t bytes = device_.is_gpu() ? mib << 20 : mib << 10;
      const auto begin = Clock::now();
      std::byte* block = device_.allocate(bytes);
      const double allocate = seconds_since(begin);
      const auto between = Clock::now();
      device_.release(block, bytes);
      extra_.push_back({{"kind", "allocator_call"}, {"bytes", bytes}, {"allocate_and_zero_s", allocate},
          {"free_s", seconds_since(between)}});
    }
  }

  static constexpr int kWarmUp = 3, kHostSteps = 5, kFewestSteps = 8, kMostSteps = 200;
  static constexpr double kLayerSeconds = 4;  // per model and shape

  Accelerator& device_;
  const DeviceMeasureRequest& request_;
  Clock::time_point begin_;
  Lane lane_ = 0, load_ = 0;
  Json rows_ = Json::array();
  Json extra_ = Json::array();
};

}

DeviceMeasurements measure_device(Accelerator& accelerator, const DeviceMeasureRequest& request) {
  return DeviceMeasuring(accelerator, request).run();
}

}
