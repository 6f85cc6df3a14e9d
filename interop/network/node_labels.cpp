// Nodes that say by labels what they hang on, from the nearest switch up. Which label is which
// level is a table of who writes it; the first family whose lowest label the nodes have is taken.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "calibration/clusters/host_list.h"
#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "interop/network/topology_lines.h"
#include "sim/base/json_document.h"

namespace foreshard {
namespace {

struct Family {
  const char* who;
  std::vector<std::string_view> levels;  // from the leaf up
};

// Documentation of NVIDIA topograph (docs/k8s.md), Amazon EKS and EC2 (describe-instance-topology), Google Kubernetes
// Engine (gce-topology labels), Oracle OKE (RDMA topology), CoreWeave (node labels), Kueue (topology-aware scheduling).
const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"topograph", {"network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine",
                        "network.topology.nvidia.com/core"}},
      {"topograph", {"network.topology.nvidia.com/block", "network.topology.nvidia.com/spine",
                        "network.topology.nvidia.com/datacenter"}},
      {"Amazon", {"topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2",
                     "topology.k8s.aws/network-node-layer-1"}},
      {"Google", {"cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"}},
      {"Google", {"cloud.google.com/gce-topology-block"}},
      {"Oracle", {"oci.oraclecloud.com/rdma.local_block_id", "oci.oraclecloud.com/rdma.network_block_id",
                     "oci.oraclecloud.com/rdma.hpc_island_id"}},
      {"CoreWeave", {"ib.coreweave.cloud/leafgroup", "ib.coreweave.cloud/superpod", "ib.coreweave.cloud/fabric"}},
      {"CoreWeave",
          {"backend.coreweave.cloud/leafgroup", "backend.coreweave.cloud/superpod", "backend.coreweave.cloud/fabric"}},
      {"Kueue", {"cloud.provider.com/topology-rack", "cloud.provider.com/topology-block",
                    "cloud.provider.com/topology-zone"}},
  };
  return kFamilies;
}

std::string text_of(const Json& object, std::string_view key) {
  if (!object.is_object()) return "";
  const auto found = object.find(std::string(key));
  if (found == object.end() || !found->is_string()) return "";
  return found->get<std::string>();
}

const Json& part_of(const Json& object, const char* key) {
  static const Json kNone = Json::object();
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

struct LabelledNode {
  std::string name;
  std::vector<std::string> above;  // from the leaf up
  std::string gpu;
  std::string count;
};

class LabelReader {
 public:
  explicit LabelReader(std::string_view file) : importer_(file) {}

  TopologyImport run(std::string_view text) {
    const Json document = parse_json_document(text, importer_.file());
    if (part_of(document, "Instances").is_array()) read_instances(part_of(document, "Instances"));
    else read_nodes(document);
    if (nodes_.empty()) importer_.fail(1, "lists no node with GPUs", "kubectl get nodes -o json");
    add_tree();
    tell_machine();
    return std::move(importer_.out);
  }

 private:
  // EC2: three layers from the top down.
  void read_instances(const Json& instances) {
    for (const Json& instance : instances) {
      LabelledNode node{plain_name(text_of(instance, "InstanceId")), {}, text_of(instance, "InstanceType"), ""};
      const Json& layers = part_of(instance, "NetworkNodes");
      if (!layers.is_array()) continue;
      for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
        if (layer->is_string()) node.above.push_back(plain_name(layer->get<std::string>()));
      add(std::move(node));
    }
    importer_.note(Mapping::kMapped, "NetworkNodes of EC2", "switches", "", 1);
  }

  void read_nodes(const Json& document) {
    const Json& items = part_of(document, "items");
    if (!items.is_array()) importer_.fail(1, "has no items", "a list of nodes: kubectl get nodes -o json");
    const Family* family = family_of(items);
    if (family == nullptr) {
      importer_.fail(
          1, "has nodes without labels of a network's topology", "labels such as network.topology.nvidia.com/leaf");
    }
    importer_.note(Mapping::kMapped, fmt::format("labels of {}", family->who), "switches", "", 1);
    for (const Json& item : items) {
      const Json& metadata = part_of(item, "metadata");
      const Json& labels = part_of(metadata, "labels");
      LabelledNode node{plain_name(text_of(metadata, "name")), {}, text_of(labels, "nvidia.com/gpu.product"),
          text_of(labels, "nvidia.com/gpu.count")};
      for (const std::string_view level : family->levels) {
        const std::string name = text_of(labels, level);
        if (!name.empty()) node.above.push_back(plain_name(name));
      }
      add(std::move(node));
    }
  }

  static const Family* family_of(const Json& items) {
    for (const Family& family : families()) {
      for (const Json& item : items) {
        const Json& labels = part_of(part_of(item, "metadata"), "labels");
        if (!text_of(labels, family.levels.front()).empty()) return &family;
      }
    }
    return nullptr;
  }

  void add(LabelledNode node) {
    if (node.name.empty()) return;
    if (node.above.empty()) {
      importer_.note(Mapping::kIgnored, node.name, "", "has no label of the network's", 0);
      return;
    }
    if (nodes_.size() >= kMostHosts) importer_.fail(1, "has too many nodes", "one cluster");
    nodes_.push_back(std::move(node));
  }

  // The same name on two levels is two switches.
  static std::string switch_name(const LabelledNode& node, std::size_t level) {
    return level == 0 ? node.above[0] : fmt::format("{}.{}", node.above[level], level);
  }

  void add_tree() {
    ImportedNetwork& network = importer_.out.network;
    std::map<std::string, std::string> parent;
    std::set<std::string> known;
    std::set<std::string> tops;
    std::set<std::string> names;
    for (const LabelledNode& node : nodes_) {
      if (!names.insert(node.name).second)
        importer_.fail(1, fmt::format("node {} is there twice", node.name), "each node once");
      network.hosts.push_back({node.name, {node.above[0]}, {}, {}, importer_.file(), 1});
      for (std::size_t level = 0; level < node.above.size(); ++level) {
        const std::string name = switch_name(node, level);
        if (known.insert(name).second) network.switches.push_back(name);
        if (level + 1 == node.above.size()) {
          tops.insert(name);
          continue;
        }
        const std::string up = switch_name(node, level + 1);
        const auto [found, is_new] = parent.emplace(name, up);
        if (is_new) {
          network.links.push_back({name, up, 0});
        } else if (found->second != up) {
          importer_.fail(
              1, fmt::format("{} lies below {} and below {} ({})", name, found->second, up, node.name), "a tree");
        }
      }
    }
    if (tops.size() > 1) {
      network.switches.push_back("above_all");
      for (const std::string& top : tops)
        if (!parent.contains(top)) network.links.push_back({top, "above_all", 0});
      importer_.note(Mapping::kDefaulted, "what joins the topmost", "one switch", "no label says it", 1);
    }
    importer_.out.nodes = std::ssize(nodes_);
    importer_.note(Mapping::kDefaulted, "width of the links", "links: rate",
        "labels say nothing of it: as wide as the ports below", 1);
  }

  void tell_machine() {
    const LabelledNode& first = nodes_.front();
    if (first.gpu.empty()) return;
    const std::vector<Machine> machines = list_machines();
    if (const auto machine = machine_named(first.gpu)) {
      importer_.out.machine = first.gpu;
    } else if (const Machine* match = match_gpu(first.gpu, machines)) {
      importer_.out.machine = match->key;
    } else {
      importer_.note(Mapping::kUnsupported, plain_name(first.gpu), "machine", "no machine of the catalogue", 1);
      return;
    }
    importer_.note(Mapping::kMapped, plain_name(first.gpu), "machine: " + importer_.out.machine, "", 1);
    const bool is_count = !first.count.empty() && first.count.size() < 4 &&
                          std::ranges::all_of(first.count, [](char c) { return c >= '0' && c <= '9'; });
    if (is_count) importer_.figure("node.gpus", first.count, "nvidia.com/gpu.count", 1);
  }

  Importer importer_;
  std::vector<LabelledNode> nodes_;
};

}

TopologyImport parse_node_labels(std::string_view json, std::string_view file_name) {
  return LabelReader(file_name).run(json);
}

}
