// Tensors, parameters, operations: each names what stands before it. What can be told of an
// operation is checked as it is read, the rest when the layer is whole.
#include "models/yaml/model_yaml_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/yaml/model_fields.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {

void DeclaredNames::declare(const ConfigNode& node, const std::string& name) {
  if (names_.size() >= model_limits::kNames)
    throw node.error(fmt::format("there are more than {} {}s", model_limits::kNames, noun_));
  numbers_.emplace(name, static_cast<std::int16_t>(names_.size()));
  names_.push_back(name);
  nodes_.push_back(node);
}

std::int16_t DeclaredNames::find(const ConfigNode& node) const {
  const std::string name = node.as_string();
  const auto at = numbers_.find(name);
  if (at != numbers_.end()) return at->second;
  throw node.error(fmt::format("there is no {} {}", noun_, quote(name)), fmt::format("a {} declared above", noun_),
      nearest_spelling(name, names_));
}

namespace {

class LayerReader {
 public:
  LayerReader(const ConfigNode& node, std::string name) : node_(node) {
    node.allow_only({"name", "role", "domain", "tower", "unread", "resident_bytes", "nested", "tensors", "joins",
        "parameters", "operations", "output"});
    layer_.name = read_text(node, "name", std::move(name));
  }

  LayerSpec read() {
    layer_.role = read_choice<LayerRole>(node_.at("role", "block"), kRoleWords);
    if (const ConfigNode* domain = node_.find("domain")) read_fields(*domain, layer_.domain);
    layer_.tower = read_flag(node_, "tower", false);
    layer_.unread = read_flag(node_, "unread", false);
    layer_.resident_bytes = read_size(node_, "resident_bytes", 0, model_limits::kElements, 0);
    read_nested();
    read_tensors();
    read_parameters();
    const ConfigNode operations = node_.at("operations", "a list of operations");
    if (operations.elements().empty() || operations.elements().size() > model_limits::kNames) {
      throw operations.error(
          "there are no operations, or too many", fmt::format("1 to {} operations", model_limits::kNames));
    }
    for (const ConfigNode& each : operations.elements()) read_operation(each);
    const ConfigNode output = node_.at("output", "the tensor that the next layer reads");
    layer_.output = tensors_.find(output);
    check_whole(output);
    return std::move(layer_);
  }

 private:
  void read_nested() {
    const ConfigNode* node = node_.find("nested");
    if (node == nullptr) return;
    const std::size_t most = layer_.role == LayerRole::kBlock       ? kMostParts
                             : layer_.role == LayerRole::kEmbedding ? 1
                                                                    : 0;
    if (node->elements().size() > most) {
      throw node->error(
          "too many modules that may be units", fmt::format("at most {} in a block, 1 in an embedding", kMostParts));
    }
    for (const ConfigNode& each : node->elements()) {
      const std::string name = each.as_string();
      if (contains(layer_.nested, name))
        throw each.error(fmt::format("{} stands twice", quote(name)), "a name of its own");
      layer_.nested.push_back(name);
    }
  }

  // The number of a module inside the layer, from 1.
  std::int8_t read_part(const ConfigNode& node) const {
    const ConfigNode* value = node.is_mapping() ? node.find("part") : nullptr;
    if (value == nullptr) return 0;
    const std::string name = value->as_string();
    const auto at = std::ranges::find(layer_.nested, name);
    if (at == layer_.nested.end()) {
      throw value->error(fmt::format("{} is no module inside the layer", quote(name)), "a name of nested",
          nearest_spelling(name, layer_.nested));
    }
    return static_cast<std::int8_t>(at - layer_.nested.begin() + 1);
  }

  void read_tensors() {
    const ConfigNode tensors = node_.at("tensors", "the layer's tensors, its input first");
    for (const ConfigItem& item : tensors.items()) {
      const ConfigNode& node = item.value;
      TensorSpec spec = {.name = item.key};
      if (node.is_mapping()) {
        read_fields(node, [&](auto& io) { tensor_fields(io, spec, item.key); });
        if (spec.per_image > 0 && (spec.per_sequence > 0 || layer_.domain.of_images))
          throw node.at("per_image").error("per_image is of layers whose sequences are samples", "per_sequence alone");
      } else {
        spec.per_token = node.as_int(1, model_limits::kPerToken);
      }
      tensors_.declare(node, item.key);
      layer_.tensors.push_back(std::move(spec));
    }
    if (layer_.tensors.empty()) throw tensors.error("there are no tensors", "the input at least");
    states_.resize(layer_.tensors.size());
    for (std::size_t t = 0; t < states_.size(); ++t) states_[t].buffer = static_cast<Index>(t);
    states_[0].is_written = true;
    if (const ConfigNode* joins = node_.find("joins")) {
      layer_.joins = tensors_.find(*joins);
      if (layer_.joins == 0 || layer_.role == LayerRole::kEmbedding) {
        throw joins->error("a layer joins a second tensor to its input",
            "a tensor behind the first one, in a layer that is no embedding");
      }
      state(layer_.joins).is_written = true;
    }
  }

  void read_parameters() {
    const ConfigNode* parameters = node_.find("parameters");
    if (parameters == nullptr) return;
    for (const ConfigItem& item : parameters->items()) {
      const ConfigNode& node = item.value;
      ParameterSpec spec = {.name = item.key};
      if (node.is_mapping()) {
        std::string part;  // (read_part says where it is none)
        read_fields(node, [&](auto& io) { parameter_fields(io, spec, part, item.key); });
      } else {
        for (const ConfigNode& extent : node.elements()) spec.shape.push_back(extent.as_int(1, model_limits::kExtent));
      }
      spec.part = read_part(node);
      const ConfigNode shape = node.is_mapping() ? node.at("shape") : node;
      if (spec.shape.empty() || spec.shape.size() > 8)
        throw shape.error("a parameter has 1 to 8 dimensions", "for example [4096]");
      located(shape, [&] {
        if (spec.numel() > model_limits::kParameter)
          throw shape.error("the parameter is too large", fmt::format("at most {} elements", model_limits::kParameter));
      });
      parameters_.declare(node, item.key);
      layer_.parameters.push_back(std::move(spec));
    }
    is_used_.assign(layer_.parameters.size(), false);
  }

  // A name or a list of names.
  static Indices listed(const ConfigNode& node, auto find) {
    Indices numbers;
    if (node.is_sequence())
      for (const ConfigNode& each : node.elements()) numbers.push_back(find(each));
    else numbers.push_back(find(node));
    return numbers;
  }
  Indices tensor_list(const ConfigNode& node, std::string_view key, Indices otherwise) const {
    const ConfigNode* value = node.find(key);
    if (value == nullptr) return otherwise;
    return listed(*value, [&](const ConfigNode& each) { return tensors_.find(each); });
  }

  void read_operation(const ConfigNode& node) {
    FieldNames names{{"op", "name", "kind", "inputs", "outputs", "parameters", "saved", "released",
        "backward_temporaries", "forward_workspace", "backward_workspace", "products", "backward_products", "part"}};
    Operation op;
    operation_fields(names, op, op);
    node.allow_only(std::span<const std::string_view>(names.names));
    const std::vector<std::string_view> words = operation_words();
    const ConfigNode op_node = node.at("op", "what is computed, for example op: linear");
    op.function = function_of(words[op_node.as_choice(std::span<const std::string_view>(words))]);
    op.kind = usual_kind(op.function);
    if (const ConfigNode* kind = node.find("kind")) op.kind = read_choice<OperationKind>(*kind, kKindWords);
    op.inputs = read_inputs(node);
    op.outputs = read_outputs(node);
    if (const ConfigNode* parameters = node.find("parameters"))
      op.parameters = listed(*parameters, [&](const ConfigNode& each) { return use(each); });
    op.transposed_weight = read_flag(node, "transposed_weight", false);
    op = with_defaults(std::move(op), layer_);
    op.name = read_text(node, "name", op.name);
    op.saved = tensor_list(node, "saved", op.saved);
    op.released = tensor_list(node, "released", op.released);
    op.backward_temporaries = tensor_list(node, "backward_temporaries", {});
    op.forward_workspace = tensor_list(node, "forward_workspace", {});
    op.backward_workspace = tensor_list(node, "backward_workspace", {});
    for (const bool backward : {false, true}) {
      const ConfigNode* products = node.find(backward ? "backward_products" : "products");
      if (products == nullptr) continue;
      for (const ConfigNode& each : products->elements()) {
        each.allow_only({"n", "k", "rows", "steps"});
        op.products.push_back(
            {read_size(each, "n", 0, model_limits::kWidth, 0), read_size(each, "k", 0, model_limits::kWidth, 0),
                tensors_.find(each.at("rows", "a tensor, whose bytes are the number")),
                tensors_.find(each.at("steps", "a tensor, whose bytes are the number")), backward});
      }
    }
    FieldReader reader(node);
    operation_fields(reader, op, op);
    op.part = read_part(node);
    check_operation(node, op);
    layer_.operations.push_back(std::move(op));
  }

  Indices read_inputs(const ConfigNode& node) {
    const ConfigNode* inputs = node.find("inputs");
    if (inputs == nullptr) return {};
    return listed(*inputs, [&](const ConfigNode& each) {
      const Index t = tensors_.find(each);
      if (!state(t).is_written)
        throw each.error(fmt::format("nothing has written {} yet", quote(tensors_.name(t))),
            "the layer's input, what it joins, or an output of an operation above");
      if (state(t).is_taken)
        throw each.error(fmt::format("{} was overwritten by an in_place operation above", quote(tensors_.name(t))));
      if (state(t).is_released)
        throw each.error(fmt::format("{} was released above", quote(tensors_.name(t))),
            "released in the last operation that reads it, or later");
      return t;
    });
  }

  Indices read_outputs(const ConfigNode& node) {
    const ConfigNode outputs = node.at("outputs", "the tensors that the operation writes");
    Indices numbers = listed(outputs, [&](const ConfigNode& each) {
      const Index t = tensors_.find(each);
      if (state(t).is_written)
        throw each.error(fmt::format("{} is written twice, or is the layer's input", quote(tensors_.name(t))),
            "a tensor of its own for each result");
      state(t).is_written = true;
      return t;
    });
    if (numbers.empty()) throw outputs.error("the list is empty", "a tensor at least");
    return numbers;
  }

  Index use(const ConfigNode& node) {
    const Index p = parameters_.find(node);
    if (is_used_[at(p)]) {
      throw node.error(fmt::format("two operations of the layer use {}", quote(parameters_.name(p))),
          "a parameter of its own for each operation");
    }
    is_used_[at(p)] = true;
    return p;
  }

  void check_operation(const ConfigNode& node, const Operation& op) {
    const auto place = [&](std::string_view key) {
      const ConfigNode* value = node.find(key);
      return value == nullptr ? node : *value;
    };
    const bool reads = op.kind != OperationKind::kElementwise && op.kind != OperationKind::kEmbedding;
    const bool needs_input = reads || op.view || op.in_place || op.sums_last || op.function == Function::kCast ||
                             op.gradient == GradientRule::kAlias;
    if (needs_input && op.inputs.empty())
      throw place("inputs").error("the operation reads nothing", "an input at least");
    // (The gradient of one that stands for several is each one's.)
    const bool is_joint = op.gradient == GradientRule::kAlias && op.outputs.size() == 1;
    if (op.view && ((op.inputs.size() != 1 && !is_joint) || !op.parameters.empty()))
      throw place("view").error("a view is of one tensor and reads no parameter", "one input");
    const auto require_written = [&](std::string_view key, const Indices& list) {
      for (const Index t : list) {
        if (state(t).is_written) continue;
        throw place(key).error(fmt::format("{} is not there yet", quote(tensors_.name(t))),
            "tensors that this operation or one above has written");
      }
    };
    require_written("saved", op.saved);
    require_written("released", op.released);
    for (const Index t : op.saved) state(t).is_saved = true;
    for (const Index t : op.released) state(t).is_released = true;
    for (const Indices* list : {&op.backward_temporaries, &op.forward_workspace, &op.backward_workspace})
      for (const Index t : *list) state(t).is_workspace = true;
    for (const SideProduct& p : op.products) state(p.rows).is_workspace = state(p.steps).is_workspace = true;
    if (op.kind == OperationKind::kGemm) check_product(node, op);
    if (op.kind == OperationKind::kAttention && op.attention.heads == 0)
      throw node.error("attention without its heads", "attention: {heads: 32, kv_heads: 8, head_dim: 128}");
    if (op.kind == OperationKind::kScan && op.scan.heads == 0)
      throw node.error("a scan without its heads", "scan: {heads: 128, head_dim: 64, state: 128}");
    if (op.kind == OperationKind::kNorm && op.parameters.size() > 2)
      throw place("parameters").error("a norm has a weight and a bias at most");
    if (op.in_place) {
      State& input = state(op.inputs.front());
      const bool of_batch = op.inputs.front() == 0 && layer_.role == LayerRole::kEmbedding;
      const bool shares = input.is_shared || input.buffer != op.inputs.front();
      if (of_batch || shares || op.view || op.inputs.front() == layer_.joins)
        throw place("in_place").error("the operation's input is not a buffer of the layer's own", "in_place: false");
      input.is_taken = true;
    }
    if (!op.view && op.function != Function::kCast) return;
    const Index buffer = state(op.inputs.front()).buffer;
    for (const Index t : op.outputs) state(t).buffer = buffer;
    state(buffer).is_shared = true;
  }

  void check_product(const ConfigNode& node, const Operation& op) const {
    if (op.parameters.empty()) throw node.error("a matrix product needs its weight", "parameters");
    const std::int64_t weight = layer_.parameters[at(op.parameters.front())].numel();
    if (op.n < 1 || op.k < 1 || op.n > model_limits::kWidth || op.k > model_limits::kWidth)
      throw node.error("n and k do not follow from the weight's shape", "n and k, or [n, k]");
    if (weight % checked_multiply(op.n, op.k) != 0) {
      throw node.error(fmt::format("a weight of {} elements is no matrix of {} x {}, nor several", weight, op.n, op.k),
          "n x k = elements of the weight");
    }
    // (A filter reads what lies around a position, too.)
    const bool is_filter = op.groups == 1 && layer_.parameters[at(op.parameters.front())].shape.size() > 2;
    if (op.rows != 1 || op.split != 1 || is_filter) return;
    const auto width = [&](Index t) { return layer_.tensors[at(t)].per_token; };
    const auto check = [&](Index t, const char* what, std::int64_t features) {
      if (width(t) == 0 || width(t) % features == 0) return;
      throw node.error(fmt::format("{} has {} features per token, the weight's {} is {}", quote(tensors_.name(t)),
                           width(t), what, features),
          "sizes that the product fits");
    };
    check(op.inputs.front(), "k", op.k);
    check(op.outputs.front(), "n", op.n);
  }

  void check_whole(const ConfigNode& output) const {
    if (layer_.output == 0 || !states_[at(layer_.output)].is_written) {
      throw output.error(
          fmt::format("no operation writes {}", quote(tensors_.name(layer_.output))), "an output of an operation");
    }
    const Index buffer = states_[at(layer_.output)].buffer;
    if (buffer == 0 || buffer == layer_.joins) {
      throw output.error(fmt::format("{} is a view (or, in one dtype, no cast) of what the layer reads",
                             quote(tensors_.name(layer_.output))),
          "a tensor of the layer's own");
    }
    std::size_t parts = 1;
    for (std::size_t o = 1; o < layer_.operations.size(); ++o)
      parts += layer_.operations[o].part != layer_.operations[o - 1].part ? 1 : 0;
    if (parts > kMostParts) {
      throw node_.at("operations")
          .error("the modules inside the layer take turns too often", fmt::format("at most {} turns", kMostParts));
    }
    for (std::size_t t = 0; t < states_.size(); ++t) {
      const State& s = states_[t];
      if (s.is_written || s.is_workspace) continue;
      const auto i = static_cast<Index>(t);
      throw tensors_.node(i).error(fmt::format("no operation uses {}", quote(tensors_.name(i))),
          "an operation that writes it, or no such tensor");
    }
    for (std::size_t t = 0; t < states_.size(); ++t) {
      const State& s = states_[t];
      const auto i = static_cast<Index>(t);
      if (!s.is_taken) continue;
      if (!s.is_saved && i != layer_.output) continue;
      throw tensors_.node(i).error(
          fmt::format("{} is kept, but an in_place operation overwrites it", quote(tensors_.name(i))),
          "in_place: false");
    }
    for (std::size_t p = 0; p < is_used_.size(); ++p) {
      if (is_used_[p]) continue;
      const auto i = static_cast<Index>(p);
      throw parameters_.node(i).error(
          fmt::format("no operation uses {}", quote(parameters_.name(i))), "an operation with it among its parameters");
    }
  }

  static constexpr std::size_t kMostParts = 5;  // segments that a phase may be cut into

  struct State {
    bool is_written = false, is_saved = false, is_workspace = false, is_released = false;
    bool is_taken = false;   // by an operation in place
    bool is_shared = false;  // something is, or may be, a view of it
    Index buffer = 0;        // the tensor whose buffer it is
  };
  State& state(Index t) { return states_[at(t)]; }

  const ConfigNode& node_;
  LayerSpec layer_;
  DeclaredNames tensors_{"tensor"};
  DeclaredNames parameters_{"parameter"};
  std::vector<State> states_;
  std::vector<bool> is_used_;
};

}

LayerSpec read_layer(const ConfigNode& node, std::string name) { return LayerReader(node, std::move(name)).read(); }

}
