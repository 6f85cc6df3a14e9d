// A layer is read in the order tensors, parameters, operations: each names what stands before it. Checks that need the
// whole layer follow, then those of the whole model: that each layer reads what the one before it hands on, that chains
// are joined, and that every layer can be differentiated, for which sim/graph/layers/layer_program.h is asked.
#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "models/yaml/model_yaml.h"
#include "models/yaml/model_yaml_layer.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

// A mapping, or true: there is some.
RopeScaling read_rope_scaling(const ConfigNode& node) {
  RopeScaling scaling;
  if (!node.is_mapping()) {
    if (node.as_bool()) scaling.kind = RopeScaling::Kind::kOther;
    return scaling;
  }
  static constexpr std::array<std::string_view, 2> kKinds = {"linear", "llama3"};
  node.allow_only({"kind", "factor", "low_frequency_factor", "high_frequency_factor", "original_positions"});
  const std::size_t kind = node.at("kind", "linear or llama3").as_choice(std::span(kKinds));
  scaling.kind = kind == 0 ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kLlama3;
  scaling.factor = node.at("factor").as_double(1, 1e6);
  if (const ConfigNode* value = node.find("low_frequency_factor"))
    scaling.low_frequency_factor = value->as_double(1e-3, 1e6);
  if (const ConfigNode* value = node.find("high_frequency_factor"))
    scaling.high_frequency_factor = value->as_double(1e-3, 1e6);
  scaling.original_positions = read_size(node, "original_positions", 1, 1 << 30, scaling.original_positions);
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor)
    throw node.error("has no band between its factors", "high_frequency_factor above low_frequency_factor");
  return scaling;
}

Numerics read_numerics(const ConfigNode& node) {
  node.allow_only({"norm_epsilon", "rope_theta", "rope_scaling", "gelu_tanh", "gelu_new", "alibi"});
  Numerics numerics;
  if (const ConfigNode* value = node.find("norm_epsilon")) numerics.norm_epsilon = value->as_double(0, 1);
  if (const ConfigNode* value = node.find("rope_theta")) numerics.rope_theta = value->as_double(1, 1e12);
  if (const ConfigNode* value = node.find("rope_scaling")) numerics.rope_scaling = read_rope_scaling(*value);
  numerics.gelu_tanh = read_flag(node, "gelu_tanh", true);
  numerics.gelu_new = read_flag(node, "gelu_new", false);
  numerics.alibi = read_flag(node, "alibi", false);
  return numerics;
}

// `kinds` and the layers so far are names that later entries may use.
class OrderReader {
 public:
  OrderReader(const DeclaredNames& kinds, ModelSpec& model) : kinds_(kinds), model_(model) {}

  void read(const ConfigNode& node) {
    if (!node.is_mapping()) return add(node, kinds_.find(node), node.as_string(), -1);
    node.allow_only({"kind", "name", "repeat", "from", "same_as"});
    const Index kind = kinds_.find(node.at("kind", "a layer declared above"));
    const std::string name = read_text(node, "name", kinds_.name(kind));
    if (!node.has("repeat")) return add(node, kind, name, same_as(node, kind));
    const std::int64_t repeat = node.at("repeat").as_int(1, model_limits::kLayers);
    const std::int64_t from = read_size(node, "from", 0, model_limits::kLayers, 0);
    const std::size_t place = name.find("{}");
    if (place == std::string::npos || node.has("same_as")) {
      throw node.error("layers that are repeated have numbers in their names",
          "a name with {}, for example layers.{}, and no same_as");
    }
    for (std::int64_t i = 0; i < repeat; ++i) {
      std::string numbered = name;
      add(node, kind, numbered.replace(place, 2, std::to_string(from + i)), -1);
    }
  }

  const std::vector<ConfigNode>& nodes() const { return nodes_; }

 private:
  void add(const ConfigNode& node, Index kind, const std::string& name, std::int32_t same_as) {
    if (model_.order.size() >= at(model_limits::kLayers))
      throw node.error(fmt::format("there are more than {} layers", model_limits::kLayers));
    if (!names_.emplace(name, static_cast<std::int32_t>(model_.order.size())).second)
      throw node.error(fmt::format("two layers are called {}", quote(name)), "a name of its own for each layer");
    model_.order.push_back({.kind = kind, .name = name, .same_as = same_as});
    nodes_.push_back(node);
  }

  std::int32_t same_as(const ConfigNode& node, Index kind) const {
    const ConfigNode* value = node.find("same_as");
    if (value == nullptr) return -1;
    const auto at = names_.find(value->as_string());
    const auto fits = [&](std::int32_t l) {
      const LayerInstance& other = model_.order[static_cast<std::size_t>(l)];
      const LayerSpec& spec = model_.kinds[static_cast<std::size_t>(kind)];
      const LayerSpec& first = model_.kinds[static_cast<std::size_t>(other.kind)];
      const bool may = spec.role == LayerRole::kBlock || spec.role == LayerRole::kEmbedding;
      return spec.role == first.role && spec.parameters == first.parameters && other.same_as < 0 && may;
    };
    if (at != names_.end() && fits(at->second)) return at->second;
    throw value->error(
        fmt::format("{} is no earlier block or embedding with these weights of its own", quote(value->as_string())),
        "the name of a layer above");
  }

  const DeclaredNames& kinds_;
  ModelSpec& model_;
  std::map<std::string, std::int32_t> names_;
  std::vector<ConfigNode> nodes_;
};

}

ModelSpec parse_model_yaml(const ConfigNode& root) {
  if (!root.is_mapping()) throw root.error("no model stands here", "'key: value' lines, for example model: my-model");
  root.allow_only({"model", "family", "source", "hidden", "vocabulary", "positions", "fixed_sequence", "image_tokens",
      "calls", "tied_embeddings", "head_first", "block_prefix", "numerics", "layers", "order"});
  ModelSpec model;
  model.name = root.at("model", "the model's name").as_string();
  model.family = read_text(root, "family", "custom");
  model.source = read_text(root, "source", "");
  model.hidden = read_size(root, "hidden", 1, model_limits::kExtent, 0);
  model.vocabulary = read_size(root, "vocabulary", 1, model_limits::kExtent, 0);
  model.max_positions =
      root.at("positions", "the longest sequence, for example 4096").as_int(1, model_limits::kPositions);
  model.fixed_sequence = read_size(root, "fixed_sequence", 1, model_limits::kDomain, 0);
  model.image_tokens = read_size(root, "image_tokens", 1, model_limits::kDomain, 0);
  model.calls = read_size(root, "calls", 1, model_limits::kCalls, 1);
  model.tied_embeddings = read_flag(root, "tied_embeddings", false);
  model.head_first = read_flag(root, "head_first", false);
  model.block_prefix = read_text(root, "block_prefix", "");
  if (const ConfigNode* numerics = root.find("numerics")) model.numerics = read_numerics(*numerics);

  const ConfigNode layers = root.at("layers", "the kinds of layers");
  if (layers.items().size() > model_limits::kKinds)
    throw layers.error(fmt::format("there are more than {} kinds", model_limits::kKinds));
  DeclaredNames kinds("layer");
  for (const ConfigItem& item : layers.items()) {
    kinds.declare(item.value, item.key);
    model.kinds.push_back(read_layer(item.value, item.key));
  }
  const ConfigNode order = root.at("order", "the layers of a step, in order");
  OrderReader reader(kinds, model);
  for (const ConfigNode& node : order.elements()) reader.read(node);
  auto kind_nodes = list_of<ConfigNode>(layers.items(), &ConfigItem::value);
  model = with_images(std::move(model), 1);
  check_model(model, {root, order, std::move(kind_nodes), reader.nodes()});
  return model;
}

ModelSpec load_model_yaml(const std::filesystem::path& path) {
  const ConfigNode root = read_yaml_file(path);
  ModelSpec model = parse_model_yaml(root);
  if (model.source.empty()) model.source = path.string();
  return model;
}

}
