// Operations are cut into layers: what comes before the first block, each block, what comes behind
// the last one, and the loss, from where no parameter is used any more. A layer hands one tensor
// on: those between which more travel that want a gradient are one layer. Inside a layer tensors
// get names; one that comes from the layer before is its input, and what only prepares constants
// (masks, tables of positions) is left out. What an operation keeps for backward is what autograd
// kept, what backward takes beside the gradients what its node took. Two blocks are alike where all
// of this is, once their own prefix is taken off the parameters' names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "interop/capture/capture_import.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

struct Word {
  std::string_view aten, op;
};
// ATen's operations as a model.yaml calls them; of others nothing matters but what they read, make
// and keep.
constexpr Word kWords[] = {
    {"embedding", "embedding"},
    {"addmm", "linear"},
    {"mm", "linear"},
    {"convolution", "linear"},
    {"native_layer_norm", "layer_norm"},
    {"native_group_norm", "layer_norm"},
    {"native_batch_norm", "layer_norm"},
    {"cudnn_batch_norm", "layer_norm"},
    {"_fused_rms_norm", "rms_norm"},
    {"add", "add"},
    {"sub", "add"},
    {"sum", "add"},
    {"mul", "multiply"},
    {"bmm", "multiply"},
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
    {"topk", "top_k"},
    {"sort", "sort"},
    {"index", "gather"},
    {"gather", "gather"},
    {"index_select", "gather"},
    {"index_add", "scatter_add"},
    {"scatter_add", "scatter_add"},
    {"_log_softmax", "log_softmax"},
    {"nll_loss_forward", "negative_log_likelihood"},
};
std::string word_of(std::string_view aten) {
  if (aten.find("scaled_dot_product") != aten.npos) return "attention";
  for (const Word& word : kWords) {
    if (word.aten == aten) return std::string(word.op);
  }
  return "scale";
}

bool is_differentiated(const Json& operation) { return operation.contains("node"); }

// Element counts of one tensor in all captures, as what they grow with.
class Sizes {
 public:
  explicit Sizes(const std::vector<CapturedModules>& captures) : captures_(captures) {}

  // Of a tensor by its extents, where these tell what grows: batch and sequence may do so alike.
  // Nothing where they do not; false where no form is of them.
  Json shaped(const std::vector<std::vector<std::int64_t>>& shapes,
              const std::vector<std::int64_t>& elements, const std::string& dtype) const {
    if (captures_.size() < 2 || fixed_sequence() > 0) return {};
    std::size_t batches = 0, sequences = 0, samples = 0;
    for (std::size_t d = 0; d < shapes[0].size(); ++d) {
      const auto grows_with = [&](bool batch, bool sequence) {
        const auto unit = [&](const CapturedModules& c) {
          return (batch ? c.batch : 1) * (sequence ? c.sequence : 1);
        };
        const std::int64_t each = shapes[0][d] / unit(captures_[0]);
        for (std::size_t c = 0; c < captures_.size(); ++c) {
          if (d >= shapes[c].size() || each * unit(captures_[c]) != shapes[c][d]) return false;
        }
        return each > 0;
      };
      if (grows_with(false, false)) continue;
      const bool both = grows_with(true, true);
      if (!both && !grows_with(false, true) && !grows_with(true, false)) return {};
      const bool sequence = both || grows_with(false, true);
      batches += both || !sequence ? 1 : 0;
      sequences += sequence ? 1 : 0;
      samples += shapes[0][d] == captures_[0].batch ? 1 : 0;  // (half a sequence is none)
    }
    if (batches > 1 && samples == batches) return false;
    for (const Form& form : kForms) {
      const std::int64_t each = elements[0] / form.unit(captures_[0]);
      const bool is_it = form.batches == batches && form.sequences == sequences;
      if (is_it && each > 0 && fits(elements, form, each, form, 0)) return typed(form, each, dtype);
    }
    return {};
  }

  // `width`: of the rows that they are, where that is known.
  Json tensor(const std::vector<std::int64_t>& elements, const std::string& dtype,
              std::int64_t width = 1) const {
    for (const Form& form : kForms) {
      const std::int64_t each = elements[0] / form.unit(captures_[0]);
      if (each > 0 && each % width == 0 && fits(elements, form, each, form, 0)) {
        return typed(form, each, dtype);
      }
    }
    if (captures_.size() < 2) return {};
    constexpr std::int64_t kGranule = 64;  // elements that the allocator gives to the smallest
    const auto of_pairs = [&](std::size_t c) {
      return elements[c] % (captures_[c].batch * captures_[c].batch) == 0;
    };
    if (*std::ranges::max_element(elements) <= kGranule && !(of_pairs(0) && of_pairs(1))) {
      return typed(kForms[kFixed], *std::ranges::max_element(elements), dtype);
    }
    for (std::size_t f = 0; f <= kFixed; ++f) {  // a sum of two
      const Form& form = kForms[f];
      for (std::size_t o = f + 1; o <= kFixed; ++o) {
        const Form& other = kForms[o];
        const std::int64_t a = form.unit(captures_[0]), b = other.unit(captures_[0]);
        const std::int64_t c = form.unit(captures_[1]), d = other.unit(captures_[1]);
        const std::int64_t determinant = a * d - b * c;
        if (determinant == 0) continue;
        const std::int64_t x = (elements[0] * d - elements[1] * b) / determinant;
        const std::int64_t y = (elements[1] * a - elements[0] * c) / determinant;
        const bool may_lack = f == 0 && o == 1 && y >= -x;  // logits but the last
        if (x > 0 && (y > 0 || may_lack) && fits(elements, form, x, other, y)) {
          Json made = typed(form, x, dtype);
          made[other.key] = y;
          return made;
        }
      }
    }
    for (const Form& form : kForms) {  // of several positions one
      if (captures_.size() < 2 || (form.sequences == 0 && form.batches == 0)) continue;
      const std::int64_t unit = form.unit(captures_[0]), common = std::gcd(elements[0], unit);
      bool is_it = unit / common <= kMostPositions;
      for (std::size_t c = 1; c < captures_.size(); ++c)
        is_it &= elements[0] / common * form.unit(captures_[c]) == elements[c] * (unit / common);
      if (!is_it) continue;
      Json made = typed(form, elements[0] / common, dtype);
      made["split"] = unit / common;
      return made;
    }
    return {};
  }
  // All captures have it: what grows with its square cannot be told from what grows with it.
  std::int64_t fixed_sequence() const {
    const std::int64_t length = captures_[0].sequence;
    const bool is_one = (captures_.size() > 1 || length == 1) &&
                        std::ranges::all_of(captures_, [&](const CapturedModules& each) {
                          return each.sequence == length;
                        });
    return is_one ? length : 0;
  }

 private:
  struct Form {
    const char* key;
    std::int64_t (*unit)(const CapturedModules&);
    std::size_t batches, sequences;  // times that it grows with each
  };
  static constexpr std::int64_t kMostPositions = 1 << 12;  // of a row: a patch's pixels
  static constexpr std::size_t kFixed = 3;
  static constexpr Form kForms[] = {
      {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence; }, 1, 1},
      {"per_sequence", [](const CapturedModules& c) { return c.batch; }, 1, 0},
      {"per_position", [](const CapturedModules& c) { return c.sequence; }, 0, 1},
      {"fixed", [](const CapturedModules&) { return std::int64_t{1}; }, 0, 0},
      {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence * c.sequence; }, 1,
       2},
      {"per_position", [](const CapturedModules& c) { return c.sequence * c.sequence; }, 0, 2}};

  bool fits(const std::vector<std::int64_t>& elements, const Form& form, std::int64_t each,
            const Form& other, std::int64_t more) const {
    for (std::size_t c = 0; c < captures_.size(); ++c) {
      if (each * form.unit(captures_[c]) + more * other.unit(captures_[c]) != elements[c])
        return false;
    }
    return true;
  }
  Json typed(const Form& form, std::int64_t each, const std::string& dtype) const {
    Json made = {{form.key, each}};
    if (form.sequences > 1) made["by_pairs"] = true;
    if (dtype == "torch.int64") made["type"] = "int64";
    if (dtype == "torch.float32" && !is_compute_fp32()) made["type"] = "fp32";
    if (dtype == "torch.bool" || dtype == "torch.uint8") made["type"] = "byte";
    return made;
  }
  bool is_compute_fp32() const {
    for (const Json& operation : captures_[0].document.at("operations")) {
      const std::string op = operation.at("op");
      if (word_of(op) != "linear") continue;
      return operation.at("out")[0].at("dtype") == "torch.float32";
    }
    return true;
  }
  const std::vector<CapturedModules>& captures_;
};

constexpr std::string_view kInput = "input";

struct Layer {
  std::string name, role, prefix;             // of parameters
  std::map<std::string, std::int64_t> sizes;  // of tensors, in the first capture
  std::set<std::string> owned;                // buffers of its own
  Json tensors = Json::object(), parameters = Json::object(), operations = Json::array();
  std::string output;
  std::map<std::int64_t, std::string> names;  // tensors by number
  Json kind() const {
    Json made = {{"role", role}};
    if (const auto positions = own_positions(); positions > 0)
      made["domain"] = {{"positions", positions}};
    made.update({{"tensors", tensors},
                 {"parameters", parameters},
                 {"operations", operations},
                 {"output", output}});
    return made;
  }
  // Of a layer that no position of the batch has a part in (latents): rows of its products.
  std::int64_t own_positions() const {
    for (const Json& tensor : tensors) {
      if (tensor.contains("per_token") || tensor.contains("per_position")) return 0;
    }
    std::int64_t rows = 0;
    for (const Json& operation : operations) {
      if (!operation.contains("n")) continue;
      const Json& result = tensors.at(operation["outputs"][0].get<std::string>());
      const std::int64_t each = result.value("per_sequence", std::int64_t{0});
      rows = std::max(rows, each / operation["n"].get<std::int64_t>());
    }
    return rows;
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
    find_tensors();
    find_layers();
    for (std::size_t i = 0; i < operations.size(); ++i) add(i, operations[i]);
    finish_layer();
    return file();
  }

 private:
  [[noreturn]] void refuse(const Json& operation, const std::string& why) const {
    throw Error(
        ExitCode::kMissingCapability,
        fmt::format("{}: {}: {}; foreshard predict --capture forecasts the step as it is, and "
                    "models/examples/ has layers to write by hand",
                    captures_[0].path, place_of(operation), why));
  }
  static std::string place_of(const Json& operation) {
    const Json module = operation.at("module");
    return fmt::format("{} in {}", operation.at("op").get<std::string>(),
                       module.is_string() && module != "" ? module.get<std::string>()
                                                          : std::string("the program itself"));
  }

  void check_same(const CapturedModules& other) const {
    const Json& theirs = other.document.at("operations");
    const Json& ours = document_.at("operations");
    const std::size_t both = std::min(ours.size(), theirs.size());
    std::size_t i = 0;
    while (i < both && theirs[i].at("op") == ours[i].at("op") &&
           theirs[i].at("in") == ours[i].at("in"))
      ++i;
    if (i == both && theirs.size() == ours.size()) return;
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: computes other operations than {} from {} on; expected captures "
                            "of one program that differ in batch and sequence alone",
                            other.path, captures_[0].path,
                            i < ours.size() ? place_of(ours[i]) : std::string("its end")));
  }

  static std::string list_of(const std::string& block) {
    const std::size_t dot = block.rfind('.');
    return dot == block.npos ? "" : block.substr(0, dot);
  }
  // Whose block an operation is: by number; -1: nobody's.
  std::int64_t block_of(const Json& operation) const {
    const Json& said = operation.at("module");
    const std::string module = said.is_string() ? said.get<std::string>() : "";
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (module == blocks_[b] || module.starts_with(blocks_[b] + "."))
        return static_cast<std::int64_t>(b);
    }
    return -1;
  }
  // Runs of operations of one block or between lists of blocks. What stands between two blocks of
  // one list is the first one's; a block that is called again is nobody's.
  void find_parts() {
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; const Json& operation : document_.at("operations")) {
      const std::int64_t block = block_of(operation);
      const bool is_between = parts_.size() > 1 && parts_.back().block < 0 && block >= 0;
      const std::int64_t before = is_between ? parts_[parts_.size() - 2].block : -1;
      const bool resumes = is_between && block == before;
      const bool again = !resumes && seen.contains(block) && block != parts_.back().block;
      if (again && uses_parameter(operation)) {
        refuse(operation, fmt::format("{} runs twice in one step, and layers run once: capture a "
                                      "program that calls its model once, for all sequences",
                                      blocks_[at(block)]));
      }
      const std::int64_t of = again ? -1 : block;
      const bool is_alike =
          of >= 0 && before >= 0 && list_of(blocks_[at(before)]) == list_of(blocks_[at(block)]);
      if (is_alike) parts_.pop_back();
      if (parts_.empty() || of != parts_.back().block) parts_.push_back({i, of});
      if (block >= 0) seen.insert(block);
      ++i;
    }
  }
  static bool uses_parameter(const Json& operation) {
    return std::ranges::any_of(operation.at("in"), &Json::is_string);
  }

  struct Part {
    std::size_t begin = 0;     // operation
    std::int64_t block = -1;   // by number; -1: none, or more than it
    std::int64_t handed = -1;  // by the part before
  };

  void find_layers() {
    const Json& operations = document_.at("operations");
    find_parts();
    std::size_t behind = 0;  // the last use of a parameter
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (uses_parameter(operations[i])) behind = i + 1;
    }
    if (behind == 0) refuse(operations.back(), "no operation uses a parameter of the model");
    std::size_t loss = behind;
    const auto is_of_loss = [&](std::size_t i) {
      return operations[i].at("module").is_null() || operations[i].at("op") == "_log_softmax";
    };
    while (loss < operations.size() && !is_of_loss(loss)) ++loss;
    if (loss == operations.size()) loss = behind;
    if (loss == operations.size() || crossing(loss).empty()) {
      refuse(operations.back(), "it uses a parameter, and nothing makes a loss of its result");
    }
    std::erase_if(parts_, [&](const Part& part) { return part.begin >= loss; });
    parts_.push_back({loss, -1, largest(crossing(loss))});
    // From behind: what a part hands on, it has made.
    const auto join = [&](std::size_t p) {
      if (parts_[p].block != parts_[p - 1].block) parts_[p - 1].block = -1;
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(p));
    };
    const std::size_t result = batch_at_[parts_.back().handed];
    while (parts_.size() > 2 && parts_[parts_.size() - 2].begin > result) join(parts_.size() - 2);
    for (std::size_t p = parts_.size() - 2; p > 0; --p) {
      std::vector<std::int64_t> made = crossing(parts_[p].begin);
      std::erase_if(made, [&](std::int64_t t) {
        return (p > 1 && batch_at_[t] < parts_[p - 1].begin) || !reads(p, t);
      });
      if (made.empty()) {
        join(p);
      } else {
        parts_[p].handed = largest(made);
      }
    }
  }
  bool reads(std::size_t p, std::int64_t tensor) const {
    const Json& operations = document_.at("operations");
    for (std::size_t i = parts_[p].begin; i < parts_[p + 1].begin; ++i) {
      const Json& in = operations[i].at("in");
      if (std::ranges::find(in, Json(tensor)) != in.end()) return true;
    }
    return false;
  }
  // The last of the largest, of those that samples have a part in (a bias of positions is none).
  std::int64_t largest(const std::vector<std::int64_t>& tensors) const {
    return *std::ranges::max_element(tensors, {}, [&](std::int64_t t) {
      return std::tuple(of_samples_.contains(t), elements_.at(t),
                        batch_at_.contains(t) ? batch_at_.at(t) : 0);
    });
  }

  void find_tensors() {
    const Json& operations = document_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) {
      bool is_of_batch = uses_parameter(operations[i]), is_of_samples = false;
      for (const Json& in : operations[i].at("in")) {
        if (!in.is_number()) continue;
        read_at_[in] = i;
        is_of_samples |= of_samples_.contains(in) ||
                         document_.at("given").contains(std::to_string(in.get<std::int64_t>()));
        is_of_batch |= batch_at_.contains(in);
      }
      for (const Json& out : operations[i].at("out")) {
        if (is_differentiated(operations[i])) made_at_[out.at("tensor")] = i;
        const std::string dtype = out.at("dtype");
        const bool is_float = dtype.find("float") != dtype.npos;
        if (is_of_batch && is_float) batch_at_[out.at("tensor")] = i;
        elements_[out.at("tensor")] = out.at("elements");
        if (is_of_samples) of_samples_.insert(out.at("tensor").get<std::int64_t>());
      }
    }
  }

  // Tensors that want a gradient, from before an operation to it or behind; where none does (a
  // frozen table), those that the batch has a part in.
  std::vector<std::int64_t> crossing(std::size_t at) const {
    std::vector<std::int64_t> found;
    for (const auto* made : {&made_at_, &batch_at_}) {
      for (const auto& [tensor, i] : *made) {
        const auto last = read_at_.find(tensor);
        if (i < at && last != read_at_.end() && last->second >= at) found.push_back(tensor);
      }
      if (!found.empty()) break;
    }
    return found;
  }

  void begin_layer(std::size_t i) {
    const std::size_t part = layers_.size();
    if (part >= parts_.size() || i < parts_[part].begin) return;
    const auto [begin, block, handed] = parts_[part];
    if (part > 0) hand_on(begin, handed);
    handed_ = handed;
    Layer layer;
    const bool is_last = part + 2 == parts_.size();
    layer.role = part == 0                   ? "embedding"
                 : part + 1 == parts_.size() ? "loss"
                 : block >= 0                ? "block"
                 : is_last                   ? "head"
                                             : "inner";
    layer.name = block >= 0 && part > 0 ? blocks_[at(block)] : layer.role;
    if (block >= 0 && part > 0) layer.prefix = blocks_[at(block)] + ".";
    if (layer.role == "inner") layer.name += std::to_string(part);
    layers_.push_back(std::move(layer));
  }

  // What else of a layer later ones read is kept until its own backward, and its gradient is there
  // from then on: the layer's output is a view that stands for all of them.
  void hand_on(std::size_t begin, std::int64_t handed) {
    Layer& layer = layers_.back();
    const auto main = layer.names.find(handed);
    if (main == layer.names.end()) return;
    layer.output = main->second;
    std::vector<std::string> all = {main->second};
    for (const std::int64_t tensor : crossing(begin)) {
      const auto name = layer.names.find(tensor);
      const bool is_own =
          made_at_.contains(tensor) && made_at_[tensor] >= parts_[layers_.size() - 1].begin;
      if (tensor != handed && is_own && name != layer.names.end()) all.push_back(name->second);
    }
    if (all.size() == 1) return;
    layer.tensors["handed_on"] = described_.at(handed);
    layer.operations.push_back({{"op", "copy"},
                                {"name", "handed_on"},
                                {"inputs", all},
                                {"outputs", {"handed_on"}},
                                {"view", true},
                                {"gradient", "alias"},
                                {"saved", std::vector<std::string>(all.begin() + 1, all.end())}});
    layer.output = "handed_on";
  }

  // In the place of what a layer before the last one made stands a view of the input, whose
  // gradient goes the same way where it is as large.
  std::optional<std::string> stand_in(std::int64_t tensor, bool is_needed) {
    Layer& layer = layers_.back();
    const std::size_t begin = parts_[layers_.size() - 1].begin;
    const bool is_beside = layers_.size() > 1 && tensor != handed_ && described_.contains(tensor) &&
                           made_at_.contains(tensor) && made_at_.at(tensor) < begin;
    if (!is_beside) return std::nullopt;
    const bool is_equal = described_.at(tensor) == described_.at(handed_);
    if ((!is_equal && !is_needed) || !known(handed_)) return std::nullopt;
    const std::string name = fmt::format("beside_{}", layer.tensors.size());
    layer.tensors[name] = described_.at(tensor);
    layer.sizes[name] = elements_.at(tensor);
    Json made = {
        {"op", "copy"}, {"name", name}, {"inputs", {kInput}}, {"outputs", {name}}, {"view", true}};
    if (!is_equal) made["gradient"] = "none";
    layer.operations.push_back(made);
    return layer.names[tensor] = name;
  }

  std::vector<std::int64_t> elements(std::size_t operation, std::size_t out) const {
    std::vector<std::int64_t> all;
    for (const CapturedModules& capture : captures_) {
      all.push_back(capture.document.at("operations")[operation].at("out")[out].at("elements"));
    }
    return all;
  }

  std::string growth_of(const std::vector<std::int64_t>& counts) const {
    std::vector<std::string> said;
    for (std::size_t c = 0; c < counts.size(); ++c) {
      said.push_back(fmt::format("{} elements of {} samples of {} positions", counts[c],
                                 captures_[c].batch, captures_[c].sequence));
    }
    return fmt::format(
        "its result grows with something else than samples, positions and their pairs ({}): "
        "capture two batches of the sequence that you train at",
        fmt::join(said, ", "));
  }

  // Whose a name is, for messages and reports.
  std::string of_module(const Json& operation) const {
    const Json& module = operation.at("module");
    const std::string name = module.is_string() ? short_name(module.get<std::string>()) : "";
    return name.empty() || name + "." == layers_.back().prefix ? "" : " of " + name;
  }

  std::string add_tensor(std::size_t i, const Json& operation, std::size_t out,
                         const std::string& label) {
    Layer& layer = layers_.back();
    const Json& made = operation.at("out")[out];
    const Json width = operation.value("n", Json(1));
    Json tensor;
    if (made.contains("shape")) {
      std::vector<std::vector<std::int64_t>> shapes;
      for (const CapturedModules& capture : captures_)
        shapes.push_back(capture.document.at("operations")[i].at("out")[out].at("shape"));
      tensor = sizes_.shaped(shapes, elements(i, out), made.at("dtype"));
      if (tensor.is_boolean()) refuse(operation, "its result grows with the square of the batch");
    }
    if (tensor.is_null()) tensor = sizes_.tensor(elements(i, out), made.at("dtype"), width);
    if (tensor.is_null()) refuse(operation, growth_of(elements(i, out)));
    const std::string name =
        fmt::format("{}_{}{}", label, layer.tensors.size(), of_module(operation));
    layer.tensors[name] = tensor;
    layer.sizes[name] = made.at("elements");
    layer.names[made.at("tensor")] = name;
    described_[made.at("tensor")] = tensor;
    return name;
  }

  // The layer's name of a tensor; nothing where no operation that counts made it.
  std::optional<std::string> known(std::int64_t tensor) {
    Layer& layer = layers_.back();
    if (const auto it = layer.names.find(tensor); it != layer.names.end()) return it->second;
    const std::string number = std::to_string(tensor);
    const bool is_batch = layers_.size() == 1 && document_.at("given").contains(number);
    const bool hands_on = layers_.size() > 1 && tensor == handed_ &&
                          layers_[layers_.size() - 2].names.contains(tensor);
    if (const auto name = stand_in(tensor, false)) return name;
    if ((!is_batch && !hands_on) || layer.tensors.contains(kInput)) return given_name(tensor);
    Json first = Json::object();
    if (is_batch) {
      std::vector<std::int64_t> all;
      for (const CapturedModules& capture : captures_) {
        all.push_back(capture.document.at("given").at(number).at("elements"));
      }
      first[std::string(kInput)] = sizes_.tensor(all, document_.at("given").at(number).at("dtype"));
      if (first.begin()->is_null()) return std::nullopt;
      if (document_.at("given").at(number).at("dtype") == "torch.bfloat16")
        first[std::string(kInput)]["type"] = "bf16";  // as the program makes it
    } else {
      first[std::string(kInput)] = described_.at(tensor);
    }
    for (const auto& [name, value] : layer.tensors.items()) first[name] = value;
    layer.tensors = std::move(first);
    layer.sizes[std::string(kInput)] =
        is_batch ? document_.at("given").at(number).at("elements").get<std::int64_t>()
                 : elements_.at(tensor);
    return layer.names[tensor] = kInput;
  }

  void add_parameter(const std::string& parameter, const Json& operation) {
    Layer& layer = layers_.back();
    const Json& said = document_.at("parameters").at(parameter);
    Json made = {{"shape", said.at("shape").empty() ? Json({1}) : said.at("shape")}};
    const std::string op = operation.at("op");
    if (op.find("norm") != op.npos && parameter.ends_with("weight")) made["norm"] = true;
    if (!said.value("trainable", true)) made["trainable"] = false;
    if (!seen_parameters_.insert(parameter).second) {
      made["tied"] = true;
      is_tied_ = true;
      Json first = {{short_name(parameter), made}};  // as a model.yaml has it
      first.update(layer.parameters);
      layer.parameters = first;
      return;
    }
    layer.parameters[short_name(parameter)] = made;
  }
  std::string short_name(const std::string& parameter) const {
    const std::string& prefix = layers_.back().prefix;
    return parameter.starts_with(prefix) ? parameter.substr(prefix.size()) : parameter;
  }

  void add(std::size_t i, const Json& operation) {
    const std::string aten = operation.at("op");
    if (aten == "arange") {
      positions_.insert(operation.at("out")[0].at("tensor").get<std::int64_t>());
      return;
    }
    begin_layer(i);
    Layer& layer = layers_.back();
    const bool in_place = operation.value("in_place", false), view = operation.value("view", false);
    std::vector<std::string> inputs, weights;
    std::set<std::string> wanted;  // inputs that have a gradient
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) {
        const std::string weight = in.get<std::string>();
        // Used again it is a constant, but for a tied head.
        const bool again = seen_parameters_.contains(weight) && layer.role != "head";
        const bool has = layer.parameters.contains(short_name(weight)) ||
                         std::ranges::find(weights, weight) != weights.end();
        if (!again && !has) weights.push_back(weight);
        continue;
      }
      std::optional<std::string> name = known_or_position(in.get<std::int64_t>(), operation);
      if (name && std::ranges::find(inputs, *name) == inputs.end()) inputs.push_back(*name);
      if (name && made_at_.contains(in)) wanted.insert(*name);
    }
    for (const Json& in : operation.at("in")) {
      if (!inputs.empty() || !in.is_number()) continue;
      if (const auto name = stand_in(in.get<std::int64_t>(), true)) inputs.push_back(*name);
    }
    if (inputs.empty() && (weights.empty() || !is_differentiated(operation))) return;
    std::string op = word_of(aten);
    if (inputs.empty() && op != "embedding") op = "scale";  // of parameters alone
    if (op == "linear" && (weights.empty() || inputs.empty())) op = "multiply";
    if (op == "embedding" && weights.empty()) op = "gather";
    // Biases come first in ATen, behind their weights in a model.yaml.
    std::ranges::stable_sort(weights, [](const std::string& a, const std::string& b) {
      return a.ends_with("weight") > b.ends_with("weight");
    });
    std::vector<std::string> parameters;
    for (const std::string& weight : weights) {
      add_parameter(weight, operation);
      parameters.push_back(short_name(weight));
    }
    std::vector<std::string> outputs;
    for (std::size_t out = 0; out < operation.at("out").size(); ++out) {
      outputs.push_back(add_tensor(i, operation, out, view ? "view" : op));
    }
    const std::string result = outputs[0];
    const auto size = [&](const std::string& name) { return layer.sizes.at(name); };
    const auto is_narrow = [&](const std::string& name) { return size(name) < size(result); };
    // What is broadcast stands last, where its gradient is summed.
    if (inputs.size() == 2 && is_narrow(inputs[0]) && !is_narrow(inputs[1]))
      std::swap(inputs[0], inputs[1]);
    const bool sums = !view && inputs.size() == 2 && is_differentiated(operation) &&
                      is_narrow(inputs[1]) && !is_narrow(inputs[0]) && wanted.contains(inputs[1]);
    if (op == "negative_log_likelihood" || (view && !inputs.empty())) inputs.resize(1);
    if ((op == "multiply" || op == "add") && inputs.size() < 2) op = "scale";
    Json made = {
        {"op", op},
        {"name", fmt::format("{}_{}{}", op, layer.operations.size(), of_module(operation))},
        {"inputs", inputs},
        {"outputs", outputs}};
    if (!parameters.empty()) made["parameters"] = parameters;
    if (op == "attention") made["attention"] = attention(operation);
    if (op == "linear") {
      add_product(operation, made);
      widen(inputs[0], made.value("k", std::int64_t{1}));
    }
    if (view) made["view"] = true;
    // One that makes nothing in backward hands on what arrives.
    const bool is_alias = is_differentiated(operation) && op != "embedding" && op != "cast" &&
                          !inputs.empty() && (operation.at("backward").empty() || op == "add");
    if (!is_differentiated(operation)) {
      made["gradient"] = "none";
    } else if (view) {
      const bool is_part = outputs.size() == 1 && size(result) < size(inputs[0]);
      if (is_part) made["gradient"] = "alias_first";
    } else if (is_alias) {
      made["gradient"] = "alias";
    } else if (op == "scatter_add") {
      made["gradient"] = "alias_first";
    } else if (op != "embedding") {
      made["gradient"] = "own";
      if (sums) made["sums_last"] = true;
      if (in_place && layer.owned.contains(inputs[0])) made["in_place"] = true;
      const bool is_plain = op == "scale" || op == "multiply" || !has_own_kernel(op);
      if (is_plain) add_temporaries(i, operation, sums, made);
    }
    if (is_differentiated(operation) && op != "embedding") {
      std::vector<std::string> saved;
      for (const Json& kept : operation.at("saved")) {
        if (const auto name = kept_name(kept);
            name && std::ranges::find(saved, *name) == saved.end())
          saved.push_back(*name);
      }
      made["saved"] = saved;
    }
    if (aten == "bmm") add_head_product(made);
    add_workspace(i, "workspace", "forward_workspace", made);
    if (is_differentiated(operation) && !view)
      add_workspace(i, "backward_workspace", "backward_workspace", made);
    if (!view && op != "cast") layer.owned.insert(outputs.begin(), outputs.end());
    if (view || op == "cast") layer.owned.erase(inputs.empty() ? result : inputs[0]);
    layer.operations.push_back(made);
    layer.output = result;
  }

  // The batch is the runtime's.
  std::optional<std::string> kept_name(std::int64_t tensor) const {
    const Layer& layer = layers_.back();
    const auto it = layer.names.find(tensor);
    const bool of_batch = layers_.size() == 1;
    if (it == layer.names.end() || (of_batch && it->second == kInput)) return std::nullopt;
    return it->second;
  }

  // What the program gives the loss (a target, a teacher's logits), and what else the batch has, is
  // there from where it is read.
  std::optional<std::string> given_name(std::int64_t tensor) {
    Layer& layer = layers_.back();
    const bool is_loss = layer.role == "loss";
    if (!is_loss && layers_.size() > 1) return std::nullopt;
    const std::string number = std::to_string(tensor);
    const Json& given = document_.at("given");
    if (!given.contains(number) || (is_loss && given.at(number).at("dtype") == "torch.int64")) {
      return std::nullopt;
    }
    std::vector<std::int64_t> all;
    for (const CapturedModules& capture : captures_) {
      all.push_back(capture.document.at("given").at(number).at("elements"));
    }
    const Json made = sizes_.tensor(all, given.at(number).at("dtype"));
    if (made.is_null()) return std::nullopt;
    const std::string name = "given_" + number;
    layer.tensors[name] = made;
    layer.sizes[name] = all[0];
    layer.operations.push_back(
        {{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}});
    return layer.names[tensor] = name;
  }

  static bool has_own_kernel(std::string_view op) {
    constexpr std::string_view kOwn[] = {"linear",    "attention",   "layer_norm",
                                         "rms_norm",  "log_softmax", "negative_log_likelihood",
                                         "embedding", "cast"};
    return std::ranges::find(kOwn, op) != std::end(kOwn);
  }

  // What backward made but for the gradients themselves and their sums.
  void add_temporaries(std::size_t i, const Json& operation, bool sums, Json& made) {
    Layer& layer = layers_.back();
    std::multiset<std::int64_t> gradients;
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) {
        std::int64_t numel = 1;
        for (const Json& extent : document_.at("parameters").at(in.get<std::string>()).at("shape"))
          numel *= extent.get<std::int64_t>();
        gradients.insert(numel);
        continue;
      }
      const auto name = layer.names.find(in.get<std::int64_t>());
      if (name == layer.names.end() || !made_at_.contains(in)) continue;
      gradients.insert(layer.sizes.at(name->second));
      if (read_at_.at(in) > i) gradients.insert(layer.sizes.at(name->second));  // added up here
    }
    if (sums) gradients.insert(layer.sizes.at(made.at("outputs")[0]));
    const std::vector<Json> all = operation.at("backward");
    std::vector<std::string> names;
    for (std::size_t t = 0; t < all.size(); ++t) {
      if (const auto it = gradients.find(all[t].at("elements")); it != gradients.end()) {
        gradients.erase(it);
        continue;
      }
      std::vector<std::int64_t> counts;
      for (const CapturedModules& capture : captures_) {
        const Json& there = capture.document.at("operations")[i].at("backward");
        if (t < there.size()) counts.push_back(there[t].at("elements"));
      }
      if (counts.size() < captures_.size()) continue;
      const Json tensor = sizes_.tensor(counts, all[t].at("dtype"));
      if (tensor.is_null()) continue;
      names.push_back(fmt::format("temporary_{}", layer.tensors.size()));
      layer.tensors[names.back()] = tensor;
    }
    if (!names.empty()) made["backward_temporaries"] = names;
  }

  // Of samples that are all as long rows may be positions' or samples': a product tells.
  void widen(const std::string& name, std::int64_t width) {
    Json& tensor = layers_.back().tensors[name];
    const std::int64_t length = sizes_.fixed_sequence();
    const std::int64_t each = tensor.value("per_token", std::int64_t{0});
    if (length == 0 || tensor.size() > 2 || each == 0 || each % width == 0) return;
    if (each * length % width != 0) return;
    Json made = {{"per_sequence", each * length}};
    if (tensor.contains("type")) made["type"] = tensor["type"];
    tensor = made;
  }

  // Scores of all pairs, and what reads them, are attention's products.
  void add_head_product(Json& made) const {
    const Json& tensors = layers_.back().tensors;
    if (made.at("inputs").size() != 2) return;
    const std::string left = made["inputs"][0], right = made["inputs"][1], out = made["outputs"][0];
    const auto each = [&](const std::string& name, bool of_pairs) {
      const Json& tensor = tensors.at(name);
      return tensor.contains("by_pairs") == of_pairs ? tensor.value("per_token", std::int64_t{0})
                                                     : 0;
    };
    const std::int64_t scores = std::max({each(left, true), each(right, true), each(out, true)});
    const std::int64_t wide = std::max(each(left, false), each(out, false));
    if (scores == 0 || wide % scores != 0 || wide == 0) return;
    made["op"] = "linear";
    made["kind"] = "attention";
    made["attention"] = {{"heads", scores}, {"head_dim", wide / scores}};
    made["kept_by_selective"] = false;
  }

  // What an operation took of the allocator and gave back.
  void add_workspace(std::size_t i, const char* of, const char* key, Json& made) {
    std::vector<std::int64_t> bytes;
    for (const CapturedModules& capture : captures_)
      bytes.push_back(capture.document.at("operations")[i].value(of, std::int64_t{0}));
    constexpr std::int64_t kLeast = 1 << 16;
    if (std::ranges::any_of(bytes, [](std::int64_t each) { return each < kLeast; })) return;
    const Json tensor = sizes_.tensor(bytes, "torch.uint8");
    if (tensor.is_null()) return;
    const std::string name = fmt::format("workspace_{}", layers_.back().tensors.size());
    layers_.back().tensors[name] = tensor;
    made[key] = {name};
  }

  // Of a convolution each result is a row.
  void add_product(const Json& operation, Json& made) const {
    if (operation.value("transposed", false)) made["transposed_weight"] = true;
    if (operation.contains("n")) {
      made["n"] = operation["n"], made["k"] = operation["k"];
      const Json& result = layers_.back().tensors.at(made["outputs"][0].get<std::string>());
      const std::int64_t each = result.value("per_token", std::int64_t{0}), n = made["n"];
      if (result.contains("by_pairs") || each == 0) return;
      const std::int64_t common = std::gcd(each, n);
      if (each > common) made["rows"] = each / common;
      const std::int64_t split = result.value("split", std::int64_t{1}) * (n / common);
      if (split > 1) made["split"] = split;
    }
    if (operation.at("op") != "convolution") return;
    const CapturedModules& first = captures_[0];
    const std::int64_t tokens = first.batch * first.sequence;
    const std::int64_t rows = operation.at("positions").get<std::int64_t>();
    if (rows > tokens) made["rows"] = rows / tokens;
    if (rows < tokens) made["split"] = tokens / rows;
  }

  std::optional<std::string> known_or_position(std::int64_t tensor, const Json& operation) {
    if (!positions_.contains(tensor)) return known(tensor);
    if (operation.at("op") != "embedding") return std::nullopt;
    Layer& layer = layers_.back();
    if (const auto it = layer.names.find(tensor); it != layer.names.end()) return it->second;
    has_table_ = true;
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) tables_.insert(in.get<std::string>());
    }
    layer.tensors["positions"] = {{"per_position", 1}, {"type", "int64"}};
    layer.sizes["positions"] = captures_[0].sequence;
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
    // Without a table of positions sequences may be as long as one likes.
    if (!has_table_ && sizes_.fixed_sequence() == 0) positions = std::int64_t{1} << 20;
    for (const auto& [name, said] : document_.at("parameters").items()) {
      if (has_table_ && tables_.contains(name)) positions = said.at("shape")[0];
    }
    Json kinds = Json::object(), order = Json::array();
    for (std::size_t l = 0; l < layers_.size();) {
      std::size_t end = l + 1;
      while (end < layers_.size() && layers_[end].role == "block" &&
             list_of(layers_[end].name) == list_of(layers_[l].name) &&
             layers_[end].kind() == layers_[l].kind())
        ++end;
      const std::string kind = end - l > 1 || layers_[l].role == "block"
                                   ? fmt::format("block {}", kinds.size())
                                   : layers_[l].name;
      kinds[kind] = layers_[l].kind();
      const std::int64_t others = document_.value("others", std::int64_t{0});
      if (l == 0 && others > 0) kinds[kind]["resident_bytes"] = others;
      Json entry = {{"kind", kind}, {"name", layers_[l].name}};
      if (layers_[l].role == "block") {
        entry["name"] = list_of(layers_[l].name) + ".{}";
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
    if (const auto length = sizes_.fixed_sequence()) model["fixed_sequence"] = length;
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
  std::vector<Part> parts_;
  bool is_tied_ = false, has_table_ = false;
  std::set<std::string> tables_;                           // of positions
  std::map<std::int64_t, std::size_t> made_at_, read_at_;  // differentiated tensors; operations
  std::map<std::int64_t, std::size_t> batch_at_;           // what the batch has a part in
  std::set<std::int64_t> of_samples_;
  std::map<std::int64_t, std::int64_t> elements_;  // of tensors, in the first capture
  std::int64_t handed_ = -1;                       // by the layer before
  std::set<std::int64_t> positions_;
  std::map<std::int64_t, Json> described_;
  std::set<std::string> seen_parameters_;
};

}  // namespace

std::string model_of_modules(const std::vector<CapturedModules>& captures,
                             const std::string& name) {
  return ModuleWriter(captures, name).write();
}

}  // namespace foreshard
