// As nccl-tests does it: after a few that do not count, events around a run of the same collective,
// as many as the size asks for, and the run's time divided by them. Every rank does the same
// number; before each run the ranks meet, so that none waits long in its first collective.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibration/measure/bench.h"
#include "calibration/measure/measure.h"
#include "exec/device/device_communicators.h"
#include "exec/device/device_seconds.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

constexpr int kWarmUp = 3;

int calls_of(std::size_t bytes) { return bytes <= std::size_t{1} << 20 ? 50 : bytes <= std::size_t{64} << 20 ? 20 : 5; }

// Exact: what one rank writes the others read.
double mean_over_ranks(World& world, double own) {
  double sum = 0;
  for (const std::string& text : world.gather("seconds", fmt::format("{}", own))) sum += leading_number<double>(text);
  return sum / world.size();
}

class Curves {
 public:
  Curves(Accelerator& device, World& world, const DeviceCollectivesRequest& request)
      : device_(device), world_(world), request_(request) {
    device.enter(device.open_lane(true));
    const auto bytes = static_cast<std::int64_t>(request.largest);
    const auto options = at::TensorOptions().device(device.device());
    // Zeros: however often they are added up, they stay numbers.
    whole_ = at::zeros({bytes / 2}, options.dtype(at::kBFloat16));
    shard_ = at::zeros({bytes / 4}, options.dtype(at::kBFloat16));
    const std::vector<int> sizes = measured_groups(world.size());
    std::vector<DeviceGroup> groups;
    for (const int size : sizes) {
      DeviceGroup group{device, world, "", {}, false, 0};
      const int first = world.rank() / size * size;
      for (int i = 0; i < size; ++i) group.ranks.push_back(first + i);
      group.name = fmt::format("curve{}/{}/{}", size, size, first);
      groups.push_back(std::move(group));
    }
    communicators_ = make_device_communicators(groups);
  }

  Json rows() {
    for (const auto& communicator : communicators_) {
      const auto group = at(communicator->size());
      if (world_.rank() == 0 && request_.progress) request_.progress(fmt::format("collectives of {} GPUs", group));
      const std::size_t unit = 128 * group;  // shards of whole cache lines
      for (std::size_t size = request_.smallest; size <= request_.largest; size *= 4) {
        const std::size_t bytes = std::max(unit, size / unit * unit);
        void* whole = whole_.mutable_data_ptr();
        void* shard = shard_.mutable_data_ptr();
        add(
            "all_gather", group, bytes, [&] { communicator->all_gather(whole, bytes / group, DType::kBf16); });
        add(
            "reduce_scatter", group, bytes,
            [&] { communicator->reduce_scatter(whole, shard, bytes / group / 2, DType::kBf16); });
        add("all_reduce", group, bytes, [&] { communicator->all_reduce(static_cast<float*>(whole), bytes / 4); });
      }
    }
    return std::move(rows_);
  }

 private:
  void add(const char* operation, std::size_t group, std::size_t bytes, auto collective) {
    const int calls = calls_of(bytes);
    for (int i = 0; i < kWarmUp; ++i) collective();
    std::vector<double> seconds;
    for (int repeat = 0; repeat < request_.repeats; ++repeat) {
      device_.synchronize();
      world_.gather("repeat", "");
      const double all = device_seconds(device_, [&] {
        for (int i = 0; i < calls; ++i) collective();
      });
      seconds.push_back(mean_over_ranks(world_, all / calls));
    }
    const BenchResult result = summary_of(std::move(seconds));
    Json row = {{"kind", "collective"}, {"ranks", world_.size()}, {"operation", operation}, {"order", "library"},
        {"group", group}, {"bytes", bytes}, {"seconds", result.to_json()}, {"repeats", result.repeats}};
    const auto on_node = at(request_.ranks_per_node);
    if (on_node > 0 && group > on_node) row["nodes"] = (group + on_node - 1) / on_node;
    rows_.push_back(std::move(row));
  }

  Accelerator& device_;
  World& world_;
  const DeviceCollectivesRequest& request_;
  at::Tensor whole_, shard_;
  std::vector<std::unique_ptr<DeviceCommunicator>> communicators_;
  Json rows_ = Json::array();
};

}

std::vector<int> measured_groups(int ranks) {
  std::vector<int> sizes;
  for (int size = 2; size < ranks; size *= 2)
    if (ranks % size == 0) sizes.push_back(size);
  if (ranks > 1) sizes.push_back(ranks);
  return sizes;
}

Json measure_device_collectives(Accelerator& accelerator, World& world, const DeviceCollectivesRequest& request) {
  return Curves(accelerator, world, request).rows();
}

}
