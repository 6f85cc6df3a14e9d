#include "sim/graph/torch_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/lookup.h"

namespace foreshard {

std::string_view torch_word(DType dtype) { return word_at(dtype, {"bfloat16", "float16", "float32"}); }

std::string span_of(const std::string& first, const std::string& last, std::size_t count) {
  return count == 1 ? first : first + ".." + last;
}

std::string span_of(const std::vector<std::string>& names) {
  return names.empty() ? "" : span_of(names.front(), names.back(), names.size());
}

std::string group_word(std::int64_t first, std::int64_t size, std::int64_t stride, std::int64_t world) {
  if (size == world) return "world";
  return fmt::format("{}:{}:{}", first, first + (size - 1) * stride, size > 1 ? stride : 1);
}

std::vector<std::int32_t> as_defined(const ModelSpec& model, const std::vector<PlacedParameter>& parameters) {
  const auto spec_of = [&](std::int32_t p) -> const LayerSpec& {
    const std::int32_t layer = parameters[at(p)].layer;
    return model.kinds[at(model.order[at(layer)].kind)];
  };
  std::vector<std::string> names;
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(parameters.size()); ++p) {
    const LayerSpec& layer = spec_of(p);
    const auto index = at(parameters[at(p)].index);
    names.push_back(layer.role == LayerRole::kBlock ? "" : layer.parameters[index].name);
  }
  const auto name = [&](std::int32_t p) -> const std::string& { return names[at(p)]; };
  std::vector<std::int32_t> order;
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(names.size()); ++p) {
    const std::size_t dot = name(p).rfind('.');
    auto place = order.end();
    if (dot != std::string::npos) {
      const std::string module = name(p).substr(0, dot + 1);
      place = std::ranges::find_if(order, [&](std::int32_t other) {
        return name(other).starts_with(module) && name(other).find('.', module.size()) != std::string::npos;
      });
    }
    order.insert(place, p);
  }
  // BartEncoder and BartDecoder define it behind their layers, whose names are left out.
  std::vector<std::int32_t> given = std::exchange(order, {}), norms;
  for (const std::int32_t p : given) {
    const bool is_norm = contains(name(p), ".layernorm_embedding.");
    if (!is_norm && !name(p).empty()) {
      append(order, norms);
      norms.clear();
    }
    (is_norm ? norms : order).push_back(p);
  }
  append(order, norms);
  // A tower and what projects its features stand in front of the words' model.
  if (model.image_tokens > 0) {
    std::ranges::stable_partition(
        order,
        [&](std::int32_t p) {
          const LayerSpec& layer = spec_of(p);
          return layer.tower || (layer.role == LayerRole::kInner && layer.domain.of_images);
        });
  }
  if (!model.head_first) return order;
  const auto of_head = [&](std::int32_t p) {
    const LayerRole role = spec_of(p).role;
    return role == LayerRole::kFinalNorm || role == LayerRole::kHead;
  };
  const auto behind = std::stable_partition(order.begin(), order.end(), of_head);
  // Then what the head shares: the table of tokens, which is the first parameter.
  const bool shares = model.tied_embeddings && behind != order.end();
  if (shares) std::stable_partition(behind, order.end(), [](std::int32_t p) { return p == 0; });
  return order;
}

}
