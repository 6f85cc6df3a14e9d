#include "exec/device/device_communicators.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "exec/device/device_seconds.h"
#include "exec/device/watched_communicator.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {
namespace {

// --- one rank ---

class SoloCommunicator final : public DeviceCommunicator {
 public:
  explicit SoloCommunicator(Accelerator& accelerator) : device_(accelerator) {}
  int index() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(void* /*whole*/, std::size_t /*shard_bytes*/, DType /*dtype*/) override {}
  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    device_.copy(shard, whole, elements * at(size_of(dtype)));
  }
  void all_reduce(float* /*values*/, std::size_t /*count*/) override {}
  void all_reduce(double* /*values*/, std::size_t /*count*/) override {}

 private:
  Accelerator& device_;
};

// --- paced ---

class PacedCommunicator final : public DeviceCommunicator {
 public:
  PacedCommunicator(Accelerator& accelerator, int index, int size) : device_(accelerator), index_(index), size_(size) {}
  int index() const override { return index_; }
  int size() const override { return size_; }

  void pace(std::int64_t nanoseconds, int ctas) override {
    auto known = overhead_ns_.find(ctas);
    if (known == overhead_ns_.end()) {
      const auto overhead = static_cast<std::int64_t>(paced_overhead(device_, ctas) * 1e9);
      known = overhead_ns_.emplace(ctas, overhead).first;
    }
    next_.nanoseconds = std::max<std::int64_t>(0, nanoseconds - known->second);
    next_.ctas = nanoseconds == 0 ? 0 : ctas;
  }

  void all_gather(void* whole, std::size_t shard_bytes, DType dtype) override {
    PacedCollective c = next(PacedCollective::Kind::kAllGather, dtype);
    c.whole = whole;
    c.shard_elements = shard_bytes / at(size_of(dtype));
    device_.paced(c);
  }
  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    PacedCollective c = next(PacedCollective::Kind::kReduceScatter, dtype);
    c.whole = const_cast<void*>(whole);
    c.shard = shard;
    c.shard_elements = elements;
    device_.paced(c);
  }
  void all_reduce(float* values, std::size_t count) override {
    PacedCollective c = next(PacedCollective::Kind::kAllReduce, DType::kFp32);
    c.whole = values;
    c.shard_elements = count;
    device_.paced(c);
  }
  void all_reduce(double* values, std::size_t count) override {
    all_reduce(reinterpret_cast<float*>(values), 2 * count);
  }

 private:
  PacedCollective next(PacedCollective::Kind kind, DType dtype) const {
    PacedCollective c = next_;
    c.kind = kind;
    c.dtype = dtype;
    c.ranks = size_;
    c.index = index_;
    return c;
  }
  Accelerator& device_;
  int index_, size_;
  PacedCollective next_;
  std::map<int, std::int64_t> overhead_ns_;  // by ctas
};

// --- threads that share a device ---

// Ranks show each other where their buffers are and an event after which they may be read. Copies
// and sums are the reader's own work; a second round of events says when everyone has read.
class SharedDeviceCommunicator final : public DeviceCommunicator {
 public:
  SharedDeviceCommunicator(Accelerator& accelerator, std::unique_ptr<Transport> transport)
      : device_(accelerator),
        transport_(std::move(transport)),
        ready_(accelerator.new_event()),
        read_(accelerator.new_event()) {}
  ~SharedDeviceCommunicator() override {
    device_.free_event(ready_);
    device_.free_event(read_);
  }
  int index() const override { return transport_->index(); }
  int size() const override { return transport_->size(); }

  void all_gather(void* whole, std::size_t shard_bytes, DType /*dtype*/) override {
    const std::vector<View> views = show(whole);
    for (int p = 0; p < size(); ++p) {
      if (p == index()) continue;
      const std::size_t place = at(p) * shard_bytes;
      device_.copy(static_cast<std::byte*>(whole) + place, static_cast<const std::byte*>(views[at(p)].memory) + place,
          shard_bytes);
    }
    finish();
  }

  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    const std::size_t place = at(index()) * elements * at(size_of(dtype));
    add_up(show(whole), place, shard, elements, scalar_type(dtype));
    finish();
  }

  void all_reduce(float* values, std::size_t count) override { all_reduce_any(values, count, at::kFloat); }
  void all_reduce(double* values, std::size_t count) override { all_reduce_any(values, count, at::kDouble); }
  void abort() noexcept override { transport_->abort(); }

 private:
  struct View {
    const void* memory = nullptr;
    DeviceEvent event = nullptr;
  };

  std::vector<View> exchange(const View& own) {
    std::vector<View> views(at(size()));
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    views[at(index())] = own;
    for (int p = 0; p < size(); ++p) {
      if (p == index()) continue;
      sends.push_back({p, &own, sizeof own});
      receives.push_back({p, &views[at(p)], sizeof(View)});
    }
    transport_->exchange(sends, receives);
    return views;
  }

  std::vector<View> show(const void* memory) {
    device_.record(ready_);
    return await(exchange({memory, ready_}));
  }
  void finish() {
    device_.record(read_);
    await(exchange({nullptr, read_}));
  }
  std::vector<View> await(std::vector<View> views) {
    for (int p = 0; p < size(); ++p)
      if (p != index()) device_.wait(views[at(p)].event);
    return views;
  }

  // In rank order, in fp32 (or double).
  void add_up(const std::vector<View>& views, std::size_t place, void* to, std::size_t elements, at::ScalarType type) {
    const auto count = static_cast<std::int64_t>(elements);
    const auto piece = [&](const View& view) {
      auto* memory = const_cast<std::byte*>(static_cast<const std::byte*>(view.memory) + place);
      return tensor_over(memory, count, type, device_.device());
    };
    const at::ScalarType wide = type == at::kBFloat16 ? at::kFloat : type;
    at::Tensor sum = piece(views.front()).to(wide, /*non_blocking=*/false, /*copy=*/true);
    for (std::size_t p = 1; p < views.size(); ++p) sum.add_(piece(views[p]));
    tensor_over(to, count, type, device_.device()).copy_(sum);
  }

  void all_reduce_any(void* values, std::size_t count, at::ScalarType type) {
    const std::vector<View> views = show(values);
    const at::Tensor sum =
        at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions().dtype(type).device(device_.device()));
    add_up(views, 0, sum.mutable_data_ptr(), count, type);
    finish();  // everyone has read before anyone writes
    device_.copy(values, sum.const_data_ptr(), sum.nbytes());
  }

  Accelerator& device_;
  std::unique_ptr<Transport> transport_;
  DeviceEvent ready_, read_;
};

// --- NCCL ---

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}
std::string unhex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Of the whole world; rank 0 makes the id.
std::unique_ptr<DeviceCommunicator> nccl_world(Accelerator& accelerator, World& world) {
  const std::string own = world.rank() == 0 ? hex(accelerator.nccl_unique_id()) : "";
  NcclGroup whole;
  whole.unique_id = unhex(world.gather("nccl", own).front());
  whole.name = "world";
  whole.index = world.rank();
  whole.size = world.size();
  return accelerator.nccl(whole);
}

int place_in(const DeviceGroup& group) {
  const auto place = std::ranges::find(group.ranks, group.world.rank());
  FORESHARD_CHECK(place != group.ranks.end(), "a rank connects to groups it is in");
  return static_cast<int>(place - group.ranks.begin());
}

}

double paced_overhead(Accelerator& accelerator, int ctas) {
  constexpr double kRequest = 50'000;  // ns
  constexpr int kRuns = 11;
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    least = std::min(least, device_seconds(
                                accelerator, [&] { accelerator.spin(static_cast<std::int64_t>(kRequest), ctas); }));
  }
  return std::max(0.0, least - kRequest * 1e-9);  // others on the machine only add to it
}

std::unique_ptr<DeviceCommunicator> make_device_communicator(const DeviceGroup& group) {
  const int index = place_in(group);
  const auto size = static_cast<int>(group.ranks.size());
  if (size == 1) return std::make_unique<SoloCommunicator>(group.accelerator);
  if (group.paced) return std::make_unique<PacedCommunicator>(group.accelerator, index, size);
  if (!group.world.one_process()) {
    throw Error(
        ExitCode::kMissingCapability, "ranks in several processes need a GPU each: the stand-in's memory is their own");
  }
  return std::make_unique<SharedDeviceCommunicator>(group.accelerator, group.world.connect(group.name, group.ranks));
}

std::vector<std::unique_ptr<DeviceCommunicator>> split_world(
    DeviceCommunicator& whole, const std::vector<DeviceGroup>& groups, double call_timeout_s) {
  std::vector<std::unique_ptr<DeviceCommunicator>> parts;
  for (const DeviceGroup& group : groups) {
    CommunicatorPart part;
    part.name = group.name;
    part.colour = group.ranks.front();
    part.index = place_in(group);
    part.size = static_cast<int>(group.ranks.size());
    part.max_ctas = group.max_ctas;
    parts.push_back(watched(whole.split(part), part.name, call_timeout_s));
  }
  return parts;
}

std::vector<std::unique_ptr<DeviceCommunicator>> make_device_communicators(const std::vector<DeviceGroup>& groups) {
  std::vector<std::unique_ptr<DeviceCommunicator>> made;
  if (groups.empty()) return made;
  const DeviceGroup& first = groups.front();
  if (!first.paced && first.accelerator.is_gpu() && !first.world.one_process() && first.world.size() > 1) {
    try {
      return split_world(*nccl_world(first.accelerator, first.world), groups);
    } catch (const std::exception& error) {
      throw Error(ExitCode::kLaunchFailure, error.what());
    }
  }
  for (const DeviceGroup& group : groups) made.push_back(make_device_communicator(group));
  return made;
}

}
