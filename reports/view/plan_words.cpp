#include "reports/view/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

std::string with_exceptions(std::string words, std::size_t ranges) {
  if (ranges == 1) return words + " with 1 exception";
  if (ranges > 1) return words + fmt::format(" with {} exceptions", ranges);
  return words;
}

struct Leaf {
  std::string key;
  std::string value;
};

void flatten(const Json& value, const std::string& key, std::vector<Leaf>& leaves) {
  if (!value.is_object()) {
    leaves.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
    return;
  }
  for (const auto& [name, child] : value.items())
    flatten(child, key.empty() ? name : fmt::format("{}.{}", key, name), leaves);
}

std::vector<Leaf> leaves_of(const Plan& plan) {
  std::vector<Leaf> leaves;
  flatten(to_json(plan), "", leaves);
  return leaves;
}

}

std::string words_of(const Mesh& mesh) {
  const bool is_transposed = mesh.inner == MeshInner::kReplicate && mesh.shard > 1 && mesh.replicate > 1;
  std::string words =
      fmt::format("shard {} x replicate {}{}", mesh.shard, mesh.replicate, is_transposed ? " (inner)" : "");
  if (mesh.cp > 1) words += fmt::format(" x cp {}", mesh.cp);
  if (mesh.tp > 1) words += fmt::format(" x tp {}", mesh.tp);
  if (mesh.pp > 1) words += fmt::format(" x pp {}", mesh.pp);
  if (mesh.ep > 1) words += fmt::format(", ep {}", mesh.ep);
  if (mesh.etp > 1) words += fmt::format(" x etp {}", mesh.etp);
  return words;
}

std::string words_of(const Prefetch& prefetch) {
  const std::string forward = prefetch.forward == Prefetch::kImplicit ? "implicit" : std::to_string(prefetch.forward);
  return forward + "/" + std::to_string(prefetch.backward);
}

std::string words_of(const Reshard& reshard) {
  switch (reshard.kind) {
    case Reshard::Kind::kAlways: return "always";
    case Reshard::Kind::kNever: return "never";
    case Reshard::Kind::kGroup: return fmt::format("to groups of {}", reshard.group);
  }
  return "?";
}

std::string reshard_words(const Plan& plan) {
  const auto& policy = plan.reshard_after_forward;
  return with_exceptions(words_of(policy.value), policy.ranges.size());
}

std::string recompute_words(const Plan& plan) {
  return with_exceptions(to_string(plan.recompute.value), plan.recompute.ranges.size());
}

std::string cluster_words(const Cluster& cluster) {
  const std::string gpus = fmt::format("{} x {}", format_count(cluster.gpus), cluster.gpu.name);
  std::string links = cluster.node.gpu_link_name;
  if (cluster.nodes() > 1 && cluster.node.nics > 0)
    links += fmt::format(", {} x {}", cluster.node.nics, cluster.node.nic_name);
  const std::string nodes = cluster.nodes() > 1
                                ? fmt::format("{} nodes of {}", format_count(cluster.nodes()), cluster.node.gpus)
                                : std::string("one node");
  return fmt::format("{}, {} ({})", gpus, nodes, links);
}

std::vector<PlanDifference> plan_differences(const Plan& a, const Plan& b) {
  const std::vector<Leaf> of_a = leaves_of(a), of_b = leaves_of(b);
  const auto value_in = [](const std::vector<Leaf>& leaves, const std::string& key) {
    const auto it = std::ranges::find(leaves, key, &Leaf::key);
    return it == leaves.end() ? std::string("-") : it->value;
  };
  std::vector<PlanDifference> differences;
  for (const Leaf& leaf : of_a) {
    std::string other = value_in(of_b, leaf.key);
    if (other != leaf.value) differences.push_back({leaf.key, leaf.value, std::move(other)});
  }
  for (const Leaf& leaf : of_b)
    if (value_in(of_a, leaf.key) == "-" && leaf.value != "-") differences.push_back({leaf.key, "-", leaf.value});
  return differences;
}

}
