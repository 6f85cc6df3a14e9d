#include "sim/graph/axes/parameter_order.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {
namespace {

void sort_parameters(LayerSpec& layer, const Indices& order) {
  std::vector<ParameterSpec> sorted;
  Indices place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = static_cast<Index>(i);
    sorted.push_back(std::move(layer.parameters[at(order[i])]));
  }
  layer.parameters = std::move(sorted);
  for (Operation& op : layer.operations)
    for (Index& p : op.parameters) p = place[at(p)];
}

}

// Modules register what is inside them before the block registers its norms, DeepSeek's and gpt-oss' between
// attention and feed-forward layer (torchtitan 0.2.2 models/*/model/model.py), a mixture its
// experts before its router (models/moe/moe.py), and feed-forward layers w1, w2, w3: gate, down,
// up. A rank's shards are packed and freed in that order.
void order_as_registered(LayerSpec& layer) {
  if (layer.role != LayerRole::kBlock) return;
  const auto is_direct = [](const ParameterSpec& p) { return std::ranges::count(p.name, '.') == 1; };
  // Norms of heads come first in their module (models/qwen3/model/model.py).
  const auto is_of_heads = [](const ParameterSpec& p) {
    return p.is_norm && (contains(p.name, "q_norm") || contains(p.name, "k_norm"));
  };
  const auto has_sinks = [](const ParameterSpec& p) { return contains(p.name, "sinks"); };
  const bool norms_come_between = has_latents(layer) || std::ranges::any_of(layer.parameters, has_sinks);
  const auto is_fed_forward = [](const ParameterSpec& p) { return contains(p.name, "mlp."); };
  Indices order(layer.parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Index>(i);
  std::ranges::stable_sort(order, [&](Index a, Index b) {
    const auto rank = [&](Index i) {
      const ParameterSpec& p = layer.parameters[at(i)];
      if (is_of_heads(p)) return 0;
      if (is_direct(p)) return norms_come_between ? 2 : 5;
      if (!is_fed_forward(p)) return 1;
      return contains(p.name, ".experts.") ? 3 : 4;
    };
    return rank(a) < rank(b);
  });
  const auto is_named = [&](std::size_t i, std::string_view word) {
    const std::string& name = layer.parameters[at(order[i])].name;
    return contains(name, word);
  };
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    if (is_named(i, "up_proj") && is_named(i + 1, "down_proj")) std::swap(order[i], order[i + 1]);
  sort_parameters(layer, order);
}

// A Megatron-Core layer has what it computes in this order (TransformerEngine's linear layers, of
// which those in front have the norm), but for attention's output projection, which every kind of
// attention makes first (core/transformer/attention.py).
void order_as_executed(LayerSpec& layer) {
  if (layer.role != LayerRole::kBlock) return;
  Indices order, projection;
  bool attends = false;
  const auto add = [&](Indices& to, const Operation& op) {
    for (const Index p : op.parameters)
      if (!contains(order, p) && !contains(projection, p)) to.push_back(p);
  };
  for (const Operation& op : layer.operations) {
    const bool is_product = op.kind == OperationKind::kGemm;
    attends |= op.kind == OperationKind::kAttention || (is_product && op.parameters.empty());
    const bool projects = attends && is_product && !op.parameters.empty() && projection.empty();
    add(projects ? projection : order, op);
  }
  order.insert(order.begin(), projection.begin(), projection.end());
  for (std::size_t p = 0; p < layer.parameters.size(); ++p)
    if (!contains(order, static_cast<Index>(p))) order.push_back(static_cast<Index>(p));
  sort_parameters(layer, order);
}

}
