// Writes what the reader would not fill in by itself, names in place of numbers. Where two tensors
// or kinds share a name, later ones get a key of their own and say their name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "models/yaml/model_fields.h"
#include "models/yaml/model_yaml.h"
#include "models/yaml/model_yaml_layer.h"
#include "sim/base/json.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

bool is_plain(const std::string& text) {
  static const std::set<std::string> kWords = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"};
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0) &&
         std::ranges::all_of(text, is_name_letter) && kWords.count(lower(text)) == 0;
}

std::string as_yaml(const std::string& text) {
  if (is_plain(text)) return text;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "{heads: 8, causal: false}", or a value of it; names may need quotes, other texts are words.
std::string flow(const Json& value, std::string_view key = "") {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return key == "name" || key == "part" ? as_yaml(text) : text;
  }
  if (!value.is_object() && !value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& [name, each] : value.items())
    parts.push_back((value.is_object() ? name + ": " : "") + flow(each, name));
  const std::string joined = fmt::format("{}", fmt::join(parts, ", "));
  return value.is_object() ? "{" + joined + "}" : "[" + joined + "]";
}

// A key for each name, different from all others.
std::vector<std::string> keys_of(const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  std::set<std::string> taken(names.begin(), names.end());
  std::set<std::string> used;
  for (const std::string& name : names) {
    std::string key = name;
    for (int i = 2; used.count(key) > 0 || (key != name && taken.count(key) > 0); ++i)
      key = fmt::format("{} ({})", name, i);
    used.insert(key);
    keys.push_back(std::move(key));
  }
  return keys;
}

class LayerText {
 public:
  explicit LayerText(const LayerSpec& layer) : layer_(layer) {
    auto names = list_of<std::string>(layer.tensors, &TensorSpec::name);
    tensors_ = keys_of(names);
    names.clear();
    for (const ParameterSpec& parameter : layer.parameters) names.push_back(parameter.name);
    parameters_ = keys_of(names);
  }

  std::string text(const std::string& key) {
    out_ = fmt::format("  {}:\n", as_yaml(key));
    if (key != layer_.name) line("name: {}", as_yaml(layer_.name));
    line("role: {}", word_in(kRoleWords, layer_.role));
    if (layer_.domain != Domain{}) line("domain: {}", flow(fields_json(layer_.domain)));
    if (layer_.tower) line("tower: true");
    if (layer_.unread) line("unread: true");
    if (layer_.resident_bytes > 0) line("resident_bytes: {}", layer_.resident_bytes);
    if (!layer_.nested.empty()) {
      auto nested = list_of<std::string>(layer_.nested, [&](const std::string& name) { return as_yaml(name); });
      line("nested: [{}]", fmt::join(nested, ", "));
    }
    line("tensors:");
    for (std::size_t t = 0; t < layer_.tensors.size(); ++t) tensor(t);
    if (layer_.joins >= 0) line("joins: {}", name(layer_.joins));
    if (!layer_.parameters.empty()) line("parameters:");
    for (std::size_t p = 0; p < layer_.parameters.size(); ++p) parameter(p);
    line("operations:");
    for (const Operation& op : layer_.operations) operation(op);
    line("output: {}", name(layer_.output));
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_ += "    " + fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  std::string name(Index t) const { return as_yaml(tensors_[at(t)]); }

  void tensor(std::size_t t) {
    TensorSpec spec = layer_.tensors[t];
    const Json parts = fields_json([&](auto& io) { tensor_fields(io, spec, tensors_[t]); });
    const bool brief = parts.size() == 1 && spec.per_token > 0;
    line("  {}: {}", as_yaml(tensors_[t]), brief ? std::to_string(spec.per_token) : flow(parts));
  }

  void parameter(std::size_t p) {
    ParameterSpec spec = layer_.parameters[p];
    std::string part = spec.part > 0 ? layer_.nested[at(spec.part - 1)] : "";
    const Json parts = fields_json([&](auto& io) { parameter_fields(io, spec, part, parameters_[p]); });
    line("  {}: {}", as_yaml(parameters_[p]), flow(parts.size() == 1 ? parts["shape"] : parts));
  }

  std::string part(std::int8_t number) const { return as_yaml(layer_.nested[at(number - 1)]); }

  static std::string listed(const std::vector<std::string>& names) {
    return names.size() == 1 ? names.front() : fmt::format("[{}]", fmt::join(names, ", "));
  }
  std::string listed(const Indices& tensors) const {
    auto names = list_of<std::string>(tensors, [&](const Index t) { return name(t); });
    return listed(names);
  }

  void operation(const Operation& op) {
    Operation usual;
    usual.function = op.function;
    usual.kind = usual_kind(op.function);
    std::vector<std::string> parts = {fmt::format("op: {}", operation_word(op.function))};
    const auto say = [&](const char* key, const std::string& value) {
      parts.push_back(fmt::format("{}: {}", key, value));
    };
    if (op.kind != usual.kind) say("kind", std::string(word_in(kKindWords, op.kind)));
    usual.kind = op.kind;
    usual.inputs = op.inputs;
    usual.outputs = op.outputs;
    usual.parameters = op.parameters;
    usual.transposed_weight = op.transposed_weight;
    usual = with_defaults(std::move(usual), layer_);

    if (op.name != usual.name) say("name", as_yaml(op.name));
    if (!op.inputs.empty()) say("inputs", listed(op.inputs));
    say("outputs", listed(op.outputs));
    if (!op.parameters.empty()) {
      auto names = list_of<std::string>(op.parameters, [&](const Index p) { return as_yaml(parameters_[at(p)]); });
      say("parameters", listed(names));
    }
    const auto tensors = [&](const char* key, const Indices& value, const Indices& otherwise) {
      if (value != otherwise) say(key, listed(value));
    };
    tensors("saved", op.saved, usual.saved);
    tensors("released", op.released, usual.released);
    tensors("backward_temporaries", op.backward_temporaries, {});
    tensors("forward_workspace", op.forward_workspace, {});
    tensors("backward_workspace", op.backward_workspace, {});
    for (const bool backward : {false, true}) {
      std::vector<std::string> products;
      for (const SideProduct& p : op.products) {
        if (p.backward != backward) continue;
        products.push_back(fmt::format("{{n: {}, k: {}, rows: {}, steps: {}}}", p.n, p.k, as_yaml(tensors_[at(p.rows)]),
            as_yaml(tensors_[at(p.steps)])));
      }
      const std::string list = fmt::format("[{}]", fmt::join(products, ", "));
      if (!products.empty()) say(backward ? "backward_products" : "products", list);
    }
    Operation own = op;
    FieldWriter others;
    operation_fields(others, own, usual);
    for (const auto& [key, value] : others.out.items()) say(key.c_str(), flow(value));
    if (op.part > 0) say("part", part(op.part));
    line("  - {{{}}}", fmt::join(parts, ", "));
  }

  const LayerSpec& layer_;
  std::vector<std::string> tensors_, parameters_;
  std::string out_;
};

struct Numbered {
  std::string prefix;
  std::int64_t number = 0;
};

// "layers.17" is number 17 of "layers."; none where it would not be written so.
std::optional<Numbered> numbered(const std::string& name) {
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  const std::string text = name.substr(digits);
  if (text.empty() || text.size() > 6 || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  if (name.find_first_of("{}") != std::string::npos) return std::nullopt;
  return Numbered{name.substr(0, digits), std::stoll(text)};
}

std::string order_text(const ModelSpec& model, const std::vector<std::string>& keys) {
  std::string text = "order:\n";
  for (std::size_t l = 0; l < model.order.size();) {
    const LayerInstance& layer = model.order[l];
    const std::string& key = keys[at(layer.kind)];
    std::size_t end = l + 1;
    const std::optional<Numbered> first = numbered(layer.name);
    while (first && layer.same_as < 0 && end < model.order.size()) {
      const LayerInstance& next = model.order[end];
      const std::optional<Numbered> number = numbered(next.name);
      const auto wanted = first->number + static_cast<std::int64_t>(end - l);
      if (next.kind != layer.kind || next.same_as >= 0 || !number || number->prefix != first->prefix ||
          number->number != wanted)
        break;
      ++end;
    }
    if (end - l > 1) {
      text += fmt::format("  - {{kind: {}, name: {}, repeat: {}", as_yaml(key), as_yaml(first->prefix + "{}"), end - l);
      if (first->number != 0) text += fmt::format(", from: {}", first->number);
    } else {
      text += fmt::format("  - {{kind: {}, name: {}", as_yaml(key), as_yaml(layer.name));
      if (layer.same_as >= 0) text += ", same_as: " + as_yaml(model.order[at(layer.same_as)].name);
    }
    text += "}\n";
    l = end;
  }
  return text;
}

std::string rope_scaling_text(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kOther) return "rope_scaling: true";
  if (scaling.kind == RopeScaling::Kind::kLinear)
    return fmt::format("rope_scaling: {{kind: linear, factor: {}}}", scaling.factor);
  return fmt::format(
      "rope_scaling: {{kind: llama3, factor: {}, low_frequency_factor: {}, high_frequency_factor: "
      "{}, original_positions: {}}}",
      scaling.factor, scaling.low_frequency_factor, scaling.high_frequency_factor, scaling.original_positions);
}

std::string numerics_text(const Numerics& numerics) {
  const Numerics usual;
  std::vector<std::string> parts;
  const auto number = [&](const char* key, double value, double otherwise) {
    if (value != otherwise) parts.push_back(fmt::format("{}: {}", key, value));
  };
  number("norm_epsilon", numerics.norm_epsilon, usual.norm_epsilon);
  number("rope_theta", numerics.rope_theta, usual.rope_theta);
  if (numerics.rope_scaling.kind != RopeScaling::Kind::kNone) parts.push_back(rope_scaling_text(numerics.rope_scaling));
  if (!numerics.gelu_tanh) parts.emplace_back("gelu_tanh: false");
  if (numerics.gelu_new) parts.emplace_back("gelu_new: true");
  if (numerics.alibi) parts.emplace_back("alibi: true");
  return parts.empty() ? "" : fmt::format("numerics: {{{}}}\n", fmt::join(parts, ", "));
}

}

std::string to_model_yaml(const ModelSpec& model) {
  std::string text = fmt::format("model: {}\nfamily: {}\n", as_yaml(model.name), as_yaml(model.family));
  if (!model.source.empty()) text += fmt::format("source: {}\n", as_yaml(model.source));
  const auto size = [&](const char* key, std::int64_t value) {
    if (value != 0) text += fmt::format("{}: {}\n", key, value);
  };
  size("hidden", model.hidden);
  size("vocabulary", model.vocabulary);
  size("positions", model.max_positions);
  size("fixed_sequence", model.fixed_sequence);
  size("image_tokens", model.image_tokens);
  if (model.calls > 1) size("calls", model.calls);
  if (model.tied_embeddings) text += "tied_embeddings: true\n";
  if (model.head_first) text += "head_first: true\n";
  if (!model.block_prefix.empty()) text += fmt::format("block_prefix: {}\n", as_yaml(model.block_prefix));
  text += numerics_text(model.numerics);
  auto names = list_of<std::string>(model.kinds, &LayerSpec::name);
  const std::vector<std::string> keys = keys_of(names);
  text += "layers:\n";
  for (std::size_t k = 0; k < model.kinds.size(); ++k) text += LayerText(model.kinds[k]).text(keys[k]);
  return text + order_text(model, keys);
}

}
