// One pass over the operations cuts them into layers: what comes before the first block, each
// block, what comes behind the last one, and from log_softmax on the loss. Inside a layer tensors
// get names; one that comes from the layer before is its input, and what only prepares constants
// (masks, tables of positions) is left out. Two blocks are alike where all of this is, once their
// own prefix is taken off the parameters' names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "interop/capture/capture_import.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

struct Word {
  std::string_view aten, op;
};
// ATen's operations as a model.yaml calls them.
constexpr Word kWords[] = {
    {"embedding", "embedding"},
    {"addmm", "linear"},
    {"mm", "linear"},
    {"native_layer_norm", "layer_norm"},
    {"_fused_rms_norm", "rms_norm"},
    {"add", "add"},
    {"sub", "add"},
    {"mul", "multiply"},
    {"div", "scale"},
    {"neg", "scale"},
    {"_to_copy", "cast"},
    {"clone", "copy"},
    {"cat", "copy"},
    {"stack", "copy"},
    {"silu", "silu"},
    {"gelu", "gelu"},
    {"relu", "relu"},
    {"sigmoid", "sigmoid"},
    {"tanh", "tanh"},
    {"_softmax", "softmax"},
    {"native_dropout", "dropout"},
    {"_log_softmax", "log_softmax"},
    {"nll_loss_forward", "negative_log_likelihood"},
};

std::string word_of(std::string_view aten) {
  if (aten.find("scaled_dot_product") != aten.npos) return "attention";
  for (const Word& word : kWords) {
    if (word.aten == aten) return std::string(word.op);
  }
  return "";
}

// Element counts of one tensor in all captures, as what they grow with.
class Sizes {
 public:
  explicit Sizes(const std::vector<CapturedModules>& captures) : captures_(captures) {}

  Json tensor(const std::vector<std::int64_t>& elements, const std::string& dtype) const {
    struct Form {
      const char* key;
      std::int64_t (*unit)(const CapturedModules&);
    };
    constexpr Form kForms[] = {
        {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence; }},
        {"per_sequence", [](const CapturedModules& c) { return c.batch; }},
        {"per_position", [](const CapturedModules& c) { return c.sequence; }},
        {"fixed", [](const CapturedModules&) { return std::int64_t{1}; }}};
    for (const Form& form : kForms) {
      const std::int64_t each = elements[0] / form.unit(captures_[0]);
      bool fits = each > 0;
      for (std::size_t c = 0; c < captures_.size(); ++c) {
        fits &= each * form.unit(captures_[c]) == elements[c];
      }
      if (!fits) continue;
      Json made = {{form.key, each}};
      if (dtype == "torch.int64") made["type"] = "int64";
      if (dtype == "torch.float32" && !is_compute_fp32()) made["type"] = "fp32";
      if (dtype == "torch.bool" || dtype == "torch.uint8") made["type"] = "byte";
      return made;
    }
    return {};
  }

 private:
  bool is_compute_fp32() const {
    for (const Json& operation : captures_[0].document.at("operations")) {
      const std::string op = operation.at("op");
      if (op != "addmm" && op != "mm") continue;
      return operation.at("out")[0].at("dtype") == "torch.float32";
    }
    return true;
  }
  const std::vector<CapturedModules>& captures_;
};

constexpr std::string_view kInput = "input";

struct Layer {
  std::string name, role, prefix;  // of parameters
  Json tensors = Json::object(), parameters = Json::object(), operations = Json::array();
  std::string output;
  std::map<std::int64_t, std::string> names;  // tensors by number
  Json kind() const {
    return {{"role", role},
            {"tensors", tensors},
            {"parameters", parameters},
            {"operations", operations},
            {"output", output}};
  }
};

class ModuleWriter {
 public:
  ModuleWriter(const std::vector<CapturedModules>& captures, const std::string& name)
      : captures_(captures), document_(captures[0].document), sizes_(captures), name_(name) {
    for (const CapturedModules& other : captures) check_same(other);
    for (const Json& block : document_.at("blocks")) blocks_.push_back(block.get<std::string>());
  }

  std::string write() {
    const Json& operations = document_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) add(i, operations[i]);
    finish_layer();
    return file();
  }

 private:
  [[noreturn]] void refuse(const Json& operation, const std::string& why) const {
    const Json module = operation.at("module");
    throw Error(
        ExitCode::kMissingCapability,
        fmt::format("{}: {} in {}: {}; foreshard predict --capture forecasts the step as it "
                    "is, and models/examples/ has layers to write by hand",
                    captures_[0].path, operation.at("op").get<std::string>(),
                    module.is_string() && module != "" ? module.get<std::string>()
                                                       : std::string("the program itself"),
                    why));
  }

  void check_same(const CapturedModules& other) const {
    const Json& theirs = other.document.at("operations");
    const Json& ours = document_.at("operations");
    bool same = theirs.size() == ours.size();
    for (std::size_t i = 0; same && i < ours.size(); ++i) {
      same = theirs[i].at("op") == ours[i].at("op") && theirs[i].at("in") == ours[i].at("in");
    }
    if (same) return;
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: computes other operations than {}; expected captures of one "
                            "program that differ in batch and sequence alone",
                            other.path, captures_[0].path));
  }

  // Whose layer an operation is: 0 before the blocks, 1 to n a block's, n + 1 behind them.
  std::size_t layer_of(const Json& operation) {
    const std::string op = operation.at("op");
    if (op == "_log_softmax") in_loss_ = true;
    if (in_loss_) return blocks_.size() + 2;
    const std::string module =
        operation.at("module").is_string() ? operation.at("module").get<std::string>() : "";
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (module == blocks_[b] || module.starts_with(blocks_[b] + ".")) return b + 1;
    }
    // A cast of the logits is the loss's.
    const bool is_outside = operation.at("module").is_null();
    if (is_outside) return blocks_.size() + 2;
    const bool is_behind = current_ >= blocks_.size() && !blocks_.empty();
    const bool is_last = is_behind && is_parameter_of_end(operation);
    if (is_last || current_ > blocks_.size()) return blocks_.size() + 1;
    return current_;
  }
  static bool is_parameter_of_end(const Json& operation) {
    return std::ranges::any_of(operation.at("in"), &Json::is_string);
  }

  void begin_layer(std::size_t which) {
    if (which != current_ || layers_.empty()) {
      finish_layer();
      current_ = which;
      Layer layer;
      const bool is_block = which > 0 && which <= blocks_.size();
      layer.role = which == 0                    ? "embedding"
                   : is_block                    ? "block"
                   : which == blocks_.size() + 1 ? "head"
                                                 : "loss";
      layer.name = is_block ? blocks_[which - 1] : layer.role;
      if (is_block) layer.prefix = blocks_[which - 1] + ".";
      layers_.push_back(std::move(layer));
    }
  }

  std::vector<std::int64_t> elements(std::size_t operation, std::size_t out) const {
    std::vector<std::int64_t> all;
    for (const CapturedModules& capture : captures_) {
      all.push_back(capture.document.at("operations")[operation].at("out")[out].at("elements"));
    }
    return all;
  }

  std::string add_tensor(std::size_t i, const Json& operation, std::size_t out,
                         const std::string& label) {
    Layer& layer = layers_.back();
    const Json& made = operation.at("out")[out];
    const Json tensor = sizes_.tensor(elements(i, out), made.at("dtype"));
    if (tensor.is_null())
      refuse(operation, "its result grows with something else than tokens, sequences or positions");
    const std::string name = fmt::format("{}_{}", label, layer.tensors.size());
    layer.tensors[name] = tensor;
    layer.names[made.at("tensor")] = name;
    described_[made.at("tensor")] = tensor;
    return name;
  }

  // The layer's name of a tensor; nothing where no operation that counts made it.
  std::optional<std::string> known(std::int64_t tensor) {
    Layer& layer = layers_.back();
    if (const auto it = layer.names.find(tensor); it != layer.names.end()) return it->second;
    const bool is_batch = layers_.size() == 1 && !made_.contains(tensor);
    const bool hands_on = layers_.size() > 1 && described_.contains(tensor);
    if ((!is_batch && !hands_on) || layer.tensors.contains(kInput)) return std::nullopt;
    Json first = Json::object();
    first[std::string(kInput)] =
        is_batch ? Json{{"per_token", 1}, {"type", "int64"}} : described_.at(tensor);
    for (const auto& [name, value] : layer.tensors.items()) first[name] = value;
    layer.tensors = std::move(first);
    if (hands_on) layers_[layers_.size() - 2].output = layers_[layers_.size() - 2].names[tensor];
    return layer.names[tensor] = kInput;
  }

  void add_parameter(const std::string& parameter, const Json& operation) {
    Layer& layer = layers_.back();
    const Json& said = document_.at("parameters").at(parameter);
    Json made = {{"shape", said.at("shape")}};
    const std::string op = operation.at("op");
    if (op.find("norm") != op.npos && parameter.ends_with("weight")) made["norm"] = true;
    if (!said.value("trainable", true)) made["trainable"] = false;
    if (!seen_parameters_.insert(parameter).second) {
      made["tied"] = true;
      is_tied_ = true;
    }
    layer.parameters[short_name(parameter)] = made;
  }
  std::string short_name(const std::string& parameter) const {
    const std::string& prefix = layers_.back().prefix;
    return parameter.starts_with(prefix) ? parameter.substr(prefix.size()) : parameter;
  }

  void add(std::size_t i, const Json& operation) {
    const std::string aten = operation.at("op");
    for (const Json& out : operation.at("out")) made_.insert(out.at("tensor").get<std::int64_t>());
    if (aten == "arange") {
      positions_.insert(operation.at("out")[0].at("tensor").get<std::int64_t>());
      return;
    }
    begin_layer(layer_of(operation));
    Layer& layer = layers_.back();
    Json inputs = Json::array(), parameters = Json::array();
    std::vector<std::string> weights;
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) {
        weights.push_back(in.get<std::string>());
        continue;
      }
      const std::int64_t tensor = in.get<std::int64_t>();
      std::optional<std::string> name = known_or_position(tensor, operation);
      if (name && std::find(inputs.begin(), inputs.end(), *name) == inputs.end())
        inputs.push_back(*name);
    }
    if (inputs.empty()) return;  // of constants alone
    const std::string op = word_of(aten);
    if (op.empty()) refuse(operation, "no operation of a model.yaml");
    if (op == "linear" && weights.empty()) {
      refuse(operation, "a product of two results; expected scaled_dot_product_attention");
    }
    // Biases come first in ATen, behind their weights in a model.yaml.
    std::ranges::stable_sort(weights, [](const std::string& a, const std::string& b) {
      return a.ends_with("weight") > b.ends_with("weight");
    });
    for (const std::string& weight : weights) {
      add_parameter(weight, operation);
      parameters.push_back(short_name(weight));
    }
    Json outputs = Json::array();
    for (std::size_t out = 0; out < operation.at("out").size(); ++out) {
      outputs.push_back(add_tensor(i, operation, out, op));
    }
    Json made = {{"op", op == "multiply" && inputs.size() == 1 ? "scale" : op},
                 {"name", fmt::format("{}_{}", op, layer.operations.size())},
                 {"inputs", op == "negative_log_likelihood" ? Json::array({inputs[0]}) : inputs},
                 {"outputs", outputs}};
    if (op == "add" && inputs.size() == 1) made["op"] = "scale";
    if (!parameters.empty()) made["parameters"] = parameters;
    if (operation.value("transposed", false)) made["transposed_weight"] = true;
    if (op == "attention") made["attention"] = attention(operation);
    layer.operations.push_back(made);
    layer.output = outputs[0];
  }

  std::optional<std::string> known_or_position(std::int64_t tensor, const Json& operation) {
    if (!positions_.contains(tensor)) return known(tensor);
    if (operation.at("op") != "embedding") return std::nullopt;
    Layer& layer = layers_.back();
    if (const auto it = layer.names.find(tensor); it != layer.names.end()) return it->second;
    layer.tensors["positions"] = {{"per_position", 1}, {"type", "int64"}};
    layer.operations.push_back({{"op", "arange"}, {"name", "arange"}, {"outputs", "positions"}});
    return layer.names[tensor] = "positions";
  }

  static Json attention(const Json& operation) {
    const Json& q = operation.at("query");
    return {{"heads", q[1]},
            {"kv_heads", operation.at("key")[1]},
            {"head_dim", q[3]},
            {"causal", operation.at("causal")}};
  }

  void finish_layer() {
    if (layers_.empty()) return;
    if (layers_.back().operations.empty()) layers_.pop_back();
  }

  std::string file() const {
    std::int64_t positions = 1;
    for (const CapturedModules& capture : captures_)
      positions = std::max(positions, capture.sequence);
    // A table of positions is as long as sequences may be.
    Json kinds = Json::object(), order = Json::array();
    for (std::size_t l = 0; l < layers_.size();) {
      std::size_t end = l + 1;
      while (end < layers_.size() && layers_[end].role == "block" &&
             layers_[end].kind() == layers_[l].kind())
        ++end;
      const std::string kind = end - l > 1 || layers_[l].role == "block"
                                   ? fmt::format("block {}", kinds.size())
                                   : layers_[l].name;
      kinds[kind] = layers_[l].kind();
      Json entry = {{"kind", kind}, {"name", layers_[l].name}};
      if (layers_[l].role == "block") {
        const std::string list = document_.at("block_list");
        entry["name"] = list + ".{}";
        entry["repeat"] = end - l;
        if (const auto first = number_of(layers_[l].name); first > 0) entry["from"] = first;
      }
      order.push_back(entry);
      l = end;
    }
    Json model = {{"model", name_},
                  {"family", document_.at("class")},
                  {"source", "modules.json of a capture"},
                  {"positions", positions},
                  {"block_prefix", document_.at("block_list")},
                  {"layers", kinds},
                  {"order", order}};
    if (is_tied_) model["tied_embeddings"] = true;
    std::string text =
        "# What the modules of a captured program compute: foreshard schema model has every key.\n";
    for (const auto& [key, value] : model.items()) {
      if (key != "layers") {
        text += fmt::format("{}: {}\n", key, value.dump());
        continue;
      }
      text += "layers:\n";
      for (const auto& [kind, layer] : value.items()) text += layer_text(kind, layer);
    }
    return text;
  }
  // A line for each tensor, parameter and operation.
  static std::string layer_text(const std::string& kind, const Json& layer) {
    std::string text = fmt::format("  {}:\n", Json(kind).dump());
    for (const auto& [key, value] : layer.items()) {
      if (!value.is_structured()) {
        text += fmt::format("    {}: {}\n", key, value.dump());
        continue;
      }
      if (value.empty()) continue;
      text += fmt::format("    {}:\n", key);
      for (const auto& [name, entry] : value.items()) {
        text += value.is_array() ? fmt::format("      - {}\n", entry.dump())
                                 : fmt::format("      {}: {}\n", Json(name).dump(), entry.dump());
      }
    }
    return text;
  }
  static std::int64_t number_of(const std::string& block) {
    return std::atoll(block.c_str() + block.rfind('.') + 1);
  }

  const std::vector<CapturedModules>& captures_;
  const Json& document_;
  const Sizes sizes_;
  const std::string name_;
  std::vector<std::string> blocks_;
  std::vector<Layer> layers_;
  std::size_t current_ = 0;
  bool in_loss_ = false, is_tied_ = false;
  std::set<std::int64_t> made_, positions_;
  std::map<std::int64_t, Json> described_;
  std::set<std::string> seen_parameters_;
};

}  // namespace

std::string model_of_modules(const std::vector<CapturedModules>& captures,
                             const std::string& name) {
  return ModuleWriter(captures, name).write();
}

}  // namespace foreshard
