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
  using Key = std::tuple<std::int64_t, std::int64_t, RankPlacement>;
  std::map<Key, std::unique_ptr<AxisRoute>> axes;
  std::map<std::vector<Key>, std::vector<LinkShares>> shared;

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

std::vector<LinkShares> Routes::shared(std::span<const GroupShape> shapes) const {
  std::vector<Memo::Key> key;
  std::vector<const AxisRoute*> axes;
  for (const GroupShape& shape : shapes) {
    key.emplace_back(shape.size, shape.stride, shape.placement);
    axes.push_back(&axis(shape));
  }
  const std::lock_guard lock(memo_->mutex);
  const auto [made, is_new] = memo_->shared.try_emplace(std::move(key));
  if (is_new) made->second = shared_links(axes);
  return made->second;
}

Cluster with_routes(Cluster cluster) {
  const bool needs = cluster.layout != nullptr || !cluster.degraded.empty();
  cluster.routes = needs ? std::make_shared<const Routes>(cluster) : nullptr;
  return cluster;
}

}
