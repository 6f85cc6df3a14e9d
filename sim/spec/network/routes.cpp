// The routes of a cluster's axes are laid when they are first asked for, and remembered.
#include "sim/spec/network/routes.h"

#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

namespace foreshard {

struct Routes::Memo {
  std::mutex mutex;
  std::optional<Topology> topology;
  std::map<std::tuple<std::int64_t, std::int64_t, RankPlacement>, std::unique_ptr<AxisRoute>> axes;

  const Topology& of(const Cluster& cluster) {
    if (!topology) topology = build_topology(cluster);
    return *topology;
  }
};

Routes::Routes(const Cluster& cluster) : cluster_(cluster), memo_(std::make_unique<Memo>()) {
  cluster_.routes = nullptr;
}

Routes::~Routes() = default;

const Topology& Routes::topology() const {
  const std::lock_guard lock(memo_->mutex);
  return memo_->of(cluster_);
}

const AxisRoute& Routes::axis(const GroupShape& shape) const {
  const std::lock_guard lock(memo_->mutex);
  std::unique_ptr<AxisRoute>& made = memo_->axes[{shape.size, shape.stride, shape.placement}];
  if (!made) made = std::make_unique<AxisRoute>(route(memo_->of(cluster_), shape));
  return *made;
}

Cluster with_routes(Cluster cluster) {
  const bool needs = cluster.layout != nullptr || !cluster.degraded.empty();
  cluster.routes = needs ? std::make_shared<const Routes>(cluster) : nullptr;
  return cluster;
}

}  // namespace foreshard
