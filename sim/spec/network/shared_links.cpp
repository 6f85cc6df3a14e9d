// A link is a row of shares, one per shape. Clusters have thousands of links and few different
// rows: rows are rounded up to 1/256, and only those remain that no other covers shape by shape.
#include "sim/spec/network/shared_links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

using Shares = std::vector<int>;  // in 1/kSteps

constexpr int kSteps = 256;

int steps(double share) {
  constexpr double kRounding = 1e-4;  // of AxisRoute::used, which sums floats
  return static_cast<int>(std::ceil(std::min(1.0, share) * kSteps - kRounding * kSteps));
}

std::set<Shares> rows_of(std::span<const AxisRoute* const> axes) {
  std::set<Shares> rows;
  Shares row(axes.size());
  Shares last;
  for (std::size_t end = 0; end < axes[0]->used.size(); ++end) {
    for (std::size_t i = 0; i < axes.size(); ++i) row[i] = steps(static_cast<double>(axes[i]->used[end]));
    if (row == last) continue;
    rows.insert(row);
    last = row;
  }
  return rows;
}

std::set<Shares> rows_of_closed_form(const Cluster& cluster, std::span<const GroupShape> shapes) {
  Shares inside;
  Shares ports;
  Shares uplinks;
  for (const GroupShape& shape : shapes) {
    const GroupLink link = group_link(cluster, shape);
    double pace = std::numeric_limits<double>::infinity();
    if (link.ranks_per_node > 1) pace = link.link.value();
    if (link.nodes > 1) pace = std::min(pace, link.network.value());
    const auto share = [&](bool passes, BytesPerSecond rate) {
      return passes && rate.value() > 0 ? steps(pace / rate.value()) : 0;
    };
    inside.push_back(share(link.ranks_per_node > 1, link.link));
    ports.push_back(share(link.nodes > 1, link.ports));
    uplinks.push_back(share(link.nodes > 1, link.uplinks));
  }
  return {inside, ports, uplinks};
}

bool covers(const Shares& a, const Shares& b) {
  return std::equal(a.begin(), a.end(), b.begin(), std::greater_equal<>());
}

// Of `shapes` shapes.
std::vector<LinkShares> most_wanted(std::set<Shares> rows, std::size_t shapes) {
  const auto asked = [](const Shares& row) { return std::accumulate(row.begin(), row.end(), 0); };
  std::erase_if(rows, [&](const Shares& row) { return asked(row) <= kSteps; });
  std::vector<Shares> kept;
  for (const Shares& row : rows) {
    const bool is_covered =
        std::ranges::any_of(rows, [&](const Shares& other) { return other != row && covers(other, row); });
    if (!is_covered) kept.push_back(row);
  }
  std::ranges::stable_sort(kept, [&](const Shares& a, const Shares& b) { return asked(a) > asked(b); });
  kept.resize(std::min(kept.size(), kSharedLinks));
  std::vector<LinkShares> result(shapes, LinkShares{});
  for (std::size_t k = 0; k < kept.size(); ++k)
    for (std::size_t i = 0; i < shapes; ++i) result[i][k] = as_double(kept[k][i]) / kSteps;
  return result;
}

}

std::vector<LinkShares> shared_links(std::span<const AxisRoute* const> axes) {
  return most_wanted(axes.size() < 2 ? std::set<Shares>() : rows_of(axes), axes.size());
}

std::vector<LinkShares> shared_links(const Cluster& cluster, std::span<const GroupShape> shapes) {
  if (cluster.routes) return cluster.routes->shared(shapes);
  return most_wanted(rows_of_closed_form(cluster, shapes), shapes.size());
}

}
