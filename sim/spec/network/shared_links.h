// What communicators take of the links they share, for when their collectives run at the same time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "sim/spec/cluster.h"

namespace foreshard {

struct AxisRoute;  // sim/spec/network/routes.h

// As many kinds of link as are told apart: those inside nodes, ports, and the two between switches
// that are wanted most.
inline constexpr std::size_t kSharedLinks = 4;

// Of each, the share of its rate that a group fills while the groups of its shape alone run as fast
// as they get: 0 to 1.
using LinkShares = std::array<double, kSharedLinks>;

// One per shape. Links that never have more than they carry (of one shape alone, or of shapes whose
// shares fit side by side) are left out, as are those that another link's shares cover. By the
// graph where the cluster has routes, else by the closed form. Throws as group_link() does.
std::vector<LinkShares> shared_links(const Cluster& cluster, std::span<const GroupShape> shapes);
// Of one cluster's routes.
std::vector<LinkShares> shared_links(std::span<const AxisRoute* const> axes);

}
