// Inside a layer (module_layers.h) tensors get names; one that comes from the layer before is its input, and what only
// prepares constants (masks, tables of positions) is left out. What an operation keeps for backward is what autograd
// kept, what backward takes beside the gradients what its node took. Two blocks are alike where all of this is, once
// their own prefix is taken off the parameters' names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "interop/capture/capture_import.h"
#include "interop/capture/module_layers.h"
#include "interop/capture/module_sizes.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::string_view kInput = "input";
constexpr std::int64_t kLeastHeld = 1 << 12;  // elements

struct Layer {
  std::string name, role, prefix;             // of parameters
  std::string same_as;                        // the layer whose weights run again
  std::map<std::string, std::int64_t> sizes;  // of tensors, in the first capture
  std::set<std::string> owned;                // buffers of its own
  Json tensors = Json::object(), parameters = Json::object(), operations = Json::array();
  std::string output;
  std::map<std::int64_t, std::string> names;  // tensors by number
  std::vector<std::size_t> places;            // of operations, in the first capture
  Json kind() const {
    Json made = {{"role", role}};
    if (const auto positions = own_positions(); positions > 0) made["domain"] = {{"positions", positions}};
    made.update({{"tensors", tensors}, {"parameters", parameters}, {"operations", operations}, {"output", output}});
    return made;
  }
  // Of a layer that no position of the batch has a part in (latents): rows of its products.
  std::int64_t own_positions() const {
    for (const Json& tensor : tensors)
      if (tensor.contains("per_token") || tensor.contains("per_position")) return 0;
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

// Whatever is added to a layer meanwhile stands where the captured operation does.
struct OperationPlace {
  Layer& layer;
  std::size_t place;
  ~OperationPlace() { layer.places.resize(layer.operations.size(), place); }
};

// Where the storage of a tensor was given back: behind an operation, or in backward behind an
// operation's node; neither: later, or nobody saw it.
struct Ended {
  std::int64_t forward = -1, backward = -1;
};

class ModuleWriter {
 public:
  ModuleWriter(const std::vector<CapturedModules>& captures, const std::string& name)
      : captures_(captures), document_(captures[0].document), sizes_(captures), name_(name) {
    for (const CapturedModules& other : captures) check_same(other);
    for (const Json& operation : document_.at("operations")) {
      for (const Json& in : operation.at("in")) {
        if (!is_differentiated(operation)) continue;
        if (in.is_string()) differentiated_.insert(in);
        else wanted_.insert(in.get<std::int64_t>());
      }
    }
    const Json& operations = document_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const bool is_of_host =
          std::ranges::all_of(operations[i].at("in"), [](const Json& in) { return in == Json(-1); });
      if (!is_of_host || operations[i].at("op") == "arange") continue;
      for (std::size_t out = 0; out < operations[i].at("out").size(); ++out)
        constants_[operations[i]["out"][out].at("tensor")] = {i, out};
    }
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].at("op") != "batch_norm_elemt") continue;
      for (std::size_t o = i; o-- > 0 && operations[o + 1].at("op") != "batch_norm_stats";) statistics_.insert(o);
    }
    find_ends();
    for (const Json& parameter : document_.at("parameters")) {
      const std::string dtype = parameter.value("dtype", "");
      has_fp32_ |= dtype == "torch.float32";
      if (dtype == "torch.float64") refuse_layers(captures_[0].path, "parameters in float64, which no plan has");
    }
    first_differentiated_ = at(std::ranges::find_if(operations, is_differentiated) - operations.begin());
  }

  std::string write() {
    const Json& operations = document_.at("operations");
    found_ = find_module_layers(captures_[0]);
    for (std::size_t i = 0; i < operations.size(); ++i) add(i, operations[i]);
    end_names(operations.size());
    finish_layer();
    hold_step_before();
    add_unread();
    for (const auto& [name, tensor] : through_) hold_through(name, tensor);
    add_others();
    return file();
  }

 private:
  [[noreturn]] void refuse(const Json& operation, const std::string& why) const {
    refuse_operation(captures_[0], operation, why);
  }

  void check_same(const CapturedModules& other) const {
    const Json& theirs = other.document.at("operations");
    const Json& ours = document_.at("operations");
    const std::size_t both = std::min(ours.size(), theirs.size());
    std::map<std::int64_t, std::int64_t> numbers;  // of theirs, by ours
    const auto is_same = [&](const Json& a, const Json& b) {
      return a.is_number() && b.is_number() ? numbers.emplace(a, b).first->second == b : a == b;
    };
    std::size_t i = 0;
    while (i < both && theirs[i].at("op") == ours[i].at("op") &&
           std::ranges::equal(ours[i].at("in"), theirs[i].at("in"), is_same))
      ++i;
    if (i == both && theirs.size() == ours.size()) return;
    const bool is_one = std::min(captures_[0].batch, other.batch) == 1;  // (whose products PyTorch folds)
    throw invalid_input(
        "{}: computes other operations than {} from {} on; expected captures of one program that differ in batch and "
        "sequence alone ({}where sizes choose what runs: two batches of the sequence that you train at)",
        other.path, captures_[0].path, i < ours.size() ? place_of(ours[i]) : std::string("its end"),
        is_one ? "not a batch of 1; " : "");
  }

  void begin_layer(std::size_t i) {
    const std::size_t part = layers_.size();
    if (part >= found_.parts.size() || i < found_.parts[part].begin) return;
    const auto [begin, block, handed, again] = found_.parts[part];
    if (part > 0) {
      end_names(begin);
      hand_on(begin, handed);
    }
    handed_ = handed;
    Layer layer;
    const bool is_last = part + 2 == found_.parts.size() && !looks_up_again(part);
    layer.role = part == 0                         ? "embedding"
                 : part + 1 == found_.parts.size() ? "loss"
                 : block >= 0                      ? "block"
                 : is_last                         ? "head"
                                                   : "inner";
    layer.name = block >= 0 && part > 0 ? found_.blocks[at(block)] : layer.role;
    if (block >= 0 && part > 0) layer.prefix = found_.blocks[at(block)] + ".";
    if (again && part > 0) {
      layer.same_as = layer.name;
      layer.name += fmt::format(" again in {}", part);
    }
    if (layer.role == "inner") layer.name += std::to_string(part);
    layers_.push_back(std::move(layer));
    if (part > 0 && layers_.back().role != "loss") hold_over(static_cast<std::int64_t>(begin));
  }

  // What names hold of the layer before while this one runs (attention's weights, until the next
  // ones have their name) is there from its start.
  void hold_over(std::int64_t begin) {
    Layer& layer = layers_.back();
    for (const auto& [tensor, before] : layers_[layers_.size() - 2].names) {
      const auto ended = ends_.find(tensor);
      const bool is_there = ended != ends_.end() && ended->second.forward >= begin;
      if (!is_there || kept_beside_.contains(tensor) || found_.is_read_from(tensor, at(begin)) ||
          storage(tensor) != tensor || !described_.contains(tensor) || found_.elements.at(tensor) < kLeastHeld)
        continue;
      const std::string name = fmt::format("held_{}", layer.tensors.size());
      layer.tensors[name] = described_.at(tensor);
      layer.sizes[name] = found_.elements.at(tensor);
      layer.names[tensor] = name;
      layer.operations.push_back({{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}});
    }
  }

  // Rows of a table that an earlier layer has, or weights of another use, whose gradients add up.
  bool looks_up_again(std::size_t part) const {
    const Json& operations = document_.at("operations");
    const auto place = [&](std::size_t p) {
      return operations.begin() + static_cast<std::ptrdiff_t>(found_.parts[p].begin);
    };
    return std::any_of(place(part), place(part + 1), [&](const Json& operation) {
      const Json& in = operation.at("in");
      return operation.at("op") == "embedding" && in[0].is_string() &&
             seen_parameters_.contains(in[0].get<std::string>());
    });
  }

  // Tensors that are no part of the forward (models, averages) are there for good; what grows of
  // them with the samples (a teacher's batch), through the step.
  void add_others() {
    std::vector<std::int64_t> bytes;
    for (const CapturedModules& capture : captures_) bytes.push_back(capture.document.value("others", std::int64_t{0}));
    Json there = sizes_.tensor(bytes, "torch.uint8");
    const bool grows = bytes[0] > 0 && (there.contains("per_token") || there.contains("per_sequence"));
    resident_ = grows ? there.value("fixed", std::int64_t{0}) : bytes[0];
    if (grows && sizes_.fixed_sequence() > 0)
      resident_ += there.value("per_position", std::int64_t{0}) * sizes_.fixed_sequence();
    if (!grows) return;
    for (const char* key : {"fixed", "per_position"}) there.erase(key);
    hold_through("others", there);
  }
  void hold_through(const std::string& name, const Json& tensor) {
    Json& operations = layers_.front().operations;
    const auto first =
        std::ranges::find_if(operations, [](const Json& operation) { return operation.contains("saved"); });
    if (first == operations.end()) return;
    for (const char* key : {"released", "saved"}) (*first)[key].push_back(name);
    layers_.front().tensors[name] = tensor;
    const Json made = {{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}};
    operations.insert(operations.begin(), made);
  }

  // What names hold of the step before, until calls of the program's rebind them.
  void hold_step_before() {
    const Json first = document_.value("held", Json::array());
    for (std::size_t k = 0; k < first.size(); ++k) {
      std::vector<std::int64_t> bytes;
      for (const CapturedModules& capture : captures_) {
        const Json held = capture.document.value("held", Json::array());
        if (held.size() != first.size()) return;
        const bool is_last = k + 1 == held.size();
        bytes.push_back(held[k][1].get<std::int64_t>() - (is_last ? 0 : held[k + 1][1].get<std::int64_t>()));
      }
      const Json tensor = sizes_.tensor(bytes, "torch.uint8");
      if (bytes[0] < kLeastHeld || tensor.is_null()) continue;
      const std::size_t end =
          k + 1 < first.size() ? first[k + 1][0].get<std::size_t>() : document_.at("operations").size();
      hold_until(end, fmt::format("step before {}", k), tensor);
    }
  }
  void hold_until(std::size_t end, const std::string& name, const Json& tensor) {
    const Json made = {{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}};
    for (Layer& layer : layers_) {
      if (layer.role == "loss" || layer.places.front() >= end) continue;
      layer.tensors[name] = tensor;
      const auto last = std::ranges::lower_bound(layer.places, end) - layer.places.begin() - 1;
      layer.operations[at(last)]["released"].push_back(name);
      layer.operations.insert(layer.operations.begin(), made);
      layer.places.insert(layer.places.begin(), layer.places.front());
    }
  }

  // What other models that run first (an autoencoder, a text's encoder) take and give back.
  void add_before() {
    std::vector<std::int64_t> bytes;
    for (const CapturedModules& capture : captures_) bytes.push_back(capture.document.value("before", std::int64_t{0}));
    const Json taken = sizes_.tensor(bytes, "torch.uint8");
    if (bytes[0] <= 0 || taken.is_null()) return;
    layers_.back().tensors["before"] = {{"fixed", 1}};
    layers_.back().tensors["taken before"] = taken;
    layers_.back().operations.push_back({{"op", "copy"}, {"name", "before"}, {"outputs", {"before"}},
        {"forward_workspace", {"taken before"}}, {"gradient", "none"}});
    add_products({}, layers_.back().operations.back());
  }

  // What has a gradient was read. (Of numbers that scale others the operations are left out.)
  void check_read() const {
    constexpr std::int64_t kLittle = 100;  // of a hundred parameters one
    std::int64_t all = 0, unseen = 0, most = 0;
    std::string largest;
    for (const auto& [name, said] : document_.at("parameters").items()) {
      const std::int64_t elements = numel_of(said);
      all += elements;
      if (seen_parameters_.contains(name) || !said.value("gradient", false)) continue;
      unseen += elements;
      if (elements > most) {
        most = elements;
        largest = name;
      }
    }
    if (unseen * kLittle <= all) return;
    throw Error(ExitCode::kMissingCapability,
        "{} has a gradient, but what reads it was not seen: of no rows, where the host read from the GPU how many "
        "there are (a grouped product, experts_implementation of transformers, does not)",
        largest);
  }

  // As a model.yaml has it.
  static Json parameter_of(const Json& said, bool has_gradient) {
    Json made = {{"shape", said.at("shape").empty() ? Json({1}) : said.at("shape")}};
    if (has_gradient) return made;
    made["trainable"] = false;
    if (said.value("trainable", true)) made["unused"] = true;
    return made;
  }

  // Parameters that no operation reads are their layer's all the same: units gather them.
  void add_unread() {
    check_read();
    for (const auto& [name, said] : document_.at("parameters").items()) {
      if (seen_parameters_.contains(name)) continue;
      Layer* nearest = &layers_.front();
      std::size_t longest = 0;
      for (Layer& layer : layers_) {
        if (layer.role == "loss" || !layer.same_as.empty()) continue;
        for (const auto& [own, unused] : layer.parameters.items()) {
          const std::string whole = layer.prefix + own;
          const auto differs = std::ranges::mismatch(whole, name).in1 - whole.begin();
          const std::size_t common = whole.rfind('.', at(differs)) + 1;
          if (common > longest) nearest = &layer, longest = common;
        }
      }
      Json& operations = nearest->operations;
      const std::string result = "unread_" + name;
      const std::string input = operations.front().value("inputs", Json::array()).empty()
                                    ? operations.front().at("outputs")[0]
                                    : operations.front()["inputs"][0];
      const bool is_own = !nearest->prefix.empty() && name.starts_with(nearest->prefix);
      const std::string key = is_own ? name.substr(nearest->prefix.size()) : name;
      nearest->parameters[key] = parameter_of(said, false);
      nearest->tensors[result] = {{"fixed", 1}};
      const Json reads = {{"op", "scale"}, {"name", result}, {"inputs", {input}}, {"outputs", {result}},
          {"parameters", {key}}, {"gradient", "none"}};
      operations.insert(operations.begin() + (input == kInput ? 0 : 1), reads);
    }
  }

  void find_ends() {
    const auto end_of = [](const Json& made) {
      return Ended{made.value("freed", std::int64_t{-1}), made.value("freed_backward", std::int64_t{-1})};
    };
    const Json& operations = document_.at("operations");
    for (const Json& operation : operations) {
      for (const Json& out : operation.at("out")) {
        const std::int64_t tensor = out.at("tensor");
        ends_[tensor] = end_of(out);
        saw_ends_ |= out.contains("freed");
        const bool is_written = operation.value("in_place", false);
        const bool is_same = (is_written || operation.value("view", false)) && operation.at("in")[0].is_number();
        storage_of_[tensor] = is_same ? storage(operation.at("in")[0]) : tensor;
        if (is_written) ends_.erase(storage_of_[tensor]);  // what it held is gone before
      }
    }
    for (const auto& [number, given] : document_.at("given").items()) ends_[std::stoll(number)] = end_of(given);
    for (std::size_t i = 0; i < operations.size(); ++i)
      for (const Json& kept : operations[i].value("saved", Json::array()))
        kept_by_.emplace(storage(kept), i);  // the first one's node runs last
  }
  std::int64_t storage(std::int64_t tensor) const { return value_of(storage_of_, tensor, tensor); }

  // Names of the program's that outlast what reads and keeps a tensor, as the allocator saw it.
  // `next`: the first operation behind the layer.
  void end_names(std::size_t next) {
    Layer& layer = layers_.back();
    if (layer.operations.empty()) return;
    const auto behind = [&](std::int64_t place) {  // the last operation there or before
      return std::ranges::upper_bound(layer.places, at(place)) - layer.places.begin() - 1;
    };
    for (const auto& [tensor, name] : layer.names) {
      const auto ended = ends_.find(tensor);
      if (ended == ends_.end() || storage(tensor) != tensor || name == layer.output || name == kInput ||
          layer.sizes.at(name) < kLeastHeld || found_.is_read_from(tensor, next))
        continue;
      const auto [forward, backward] = ended->second;
      const bool is_kept = saw_ends_ && forward < 0 && backward < 0 && described_.contains(tensor);
      std::ptrdiff_t first = -1, last = -1;
      for (std::size_t o = 0; o < layer.operations.size(); ++o) {
        for (const char* key : {"inputs", "outputs"}) {
          const Json& of = layer.operations[o].value(key, Json::array());
          if (!contains(of, Json(name))) continue;
          last = static_cast<std::ptrdiff_t>(o);
          if (first < 0) first = last;
        }
      }
      if (last < 0) continue;
      if (const auto o = forward < 0 ? last : behind(forward); o > last)
        layer.operations[at(o)]["released"].push_back(name);
      const auto kept = kept_by_.find(tensor);
      const bool is_longer = kept == kept_by_.end() || std::cmp_greater(kept->second, backward);
      if (!is_kept && (backward < 0 || !is_longer || at(backward) >= next)) continue;
      for (std::size_t o = 0; o < layer.operations.size(); ++o) {
        Json& operation = layer.operations[o];
        const bool is_before = std::cmp_less(layer.places[o], backward) || std::cmp_less(o, first);
        if (is_before || !operation.contains("saved")) continue;
        if (is_kept && std::cmp_greater(o, last)) operation["released"].push_back(name);
        Json& saved = operation["saved"];
        if (!contains(saved, Json(name))) saved.push_back(name);
        break;
      }
    }
  }

  // Whether gradients go from one tensor of the layer to the other one.
  bool leads(const std::string& from, const std::string& to) const {
    std::set<std::string> reached = {from};
    for (const Json& operation : layers_.back().operations) {
      const Json in = operation.value("inputs", Json::array());
      const bool is_path = operation.value("gradient", "") != "none" && std::ranges::any_of(in, [&](const Json& each) {
        return reached.contains(each.get<std::string>());
      });
      if (!is_path) continue;
      for (const Json& out : operation.at("outputs")) reached.insert(out.get<std::string>());
    }
    return reached.contains(to);
  }

  // What else of a layer later ones read is kept until its own backward, and its gradient is there
  // from then on: the layer's output is a view that stands for all of them.
  void hand_on(std::size_t begin, std::int64_t handed) {
    Layer& layer = layers_.back();
    const auto main = layer.names.find(handed);
    if (main == layer.names.end()) return;
    layer.output = main->second;
    std::vector<std::string> all = {main->second}, kept;
    for (const std::int64_t tensor : found_.crossing(begin)) {
      const auto name = layer.names.find(tensor);
      const bool is_own =
          found_.made_at.contains(tensor) && found_.made_at.at(tensor) >= found_.parts[layers_.size() - 1].begin;
      if (tensor == handed || !is_own || name == layer.names.end()) continue;
      all.push_back(name->second);
      // What the loss alone reads and nothing keeps is gone when backward begins.
      const auto ended = ends_.find(tensor);
      const bool is_gone = ended != ends_.end() && ended->second.forward >= 0 &&
                           described_.at(tensor) == described_.at(handed) && !is_read_before_loss(tensor, begin);
      if (is_gone) continue;
      kept.push_back(name->second);
      kept_beside_.insert(tensor);
    }
    // (Of a tower that begins, the one before passes by.)
    if (layers_.size() > 1 && !leads(std::string(kInput), main->second) && known(handed_)) {
      layer.tensors["passes"] = {{"fixed", 1}};
      layer.operations.push_back(
          {{"op", "copy"}, {"name", "passes"}, {"inputs", {kInput}}, {"outputs", {"passes"}}, {"gradient", "own"}});
      all.emplace_back("passes");
    }
    // A view of what the layer before made (one position of each sample) is no result of its own.
    const auto made = found_.made_at.find(storage(handed));
    const bool is_given = made != found_.made_at.end() && made->second < found_.parts[layers_.size() - 1].begin;
    if (all.size() == 1 && !is_given) return;
    layer.tensors["handed_on"] = described_.at(handed);
    layer.operations.push_back({{"op", "copy"}, {"name", "handed_on"}, {"inputs", all}, {"outputs", {"handed_on"}},
        {"view", !is_given}, {"gradient", is_given ? "own" : "alias"}, {"saved", kept}});
    layer.output = "handed_on";
  }

  bool is_read_before_loss(std::int64_t tensor, std::size_t from) const {
    const Json& operations = document_.at("operations");
    for (std::size_t i = from; i < found_.parts.back().begin; ++i) {
      const Json& in = operations[i].at("in");
      if (contains(in, Json(tensor))) return true;
    }
    return false;
  }

  // In the place of what a layer before the last one made stands a view of the input, whose
  // gradient goes the same way where it is as large.
  std::optional<std::string> stand_in(std::int64_t tensor, bool is_needed) {
    Layer& layer = layers_.back();
    const std::size_t begin = found_.parts[layers_.size() - 1].begin;
    const bool is_beside = layers_.size() > 1 && tensor != handed_ && described_.contains(tensor) &&
                           found_.made_at.contains(tensor) && found_.made_at.at(tensor) < begin;
    if (!is_beside) return std::nullopt;
    const bool is_equal = described_.at(tensor) == described_.at(handed_);
    if ((!is_equal && !is_needed) || !known(handed_)) return std::nullopt;
    const std::string name = fmt::format("beside_{}", layer.tensors.size());
    layer.tensors[name] = described_.at(tensor);
    layer.sizes[name] = found_.elements.at(tensor);
    layer.operations.push_back({{"op", "copy"}, {"name", name}, {"inputs", {kInput}}, {"outputs", {name}},
        {"view", true}, {"gradient", "alias"}});
    return layer.names[tensor] = name;
  }

  std::vector<std::int64_t> elements(std::size_t operation, std::size_t out) const {
    std::vector<std::int64_t> all;
    for (const CapturedModules& capture : captures_)
      all.push_back(capture.document.at("operations")[operation].at("out")[out].at("elements"));
    return all;
  }

  std::string growth_of(const std::vector<std::int64_t>& counts) const {
    std::vector<std::string> said;
    for (std::size_t c = 0; c < counts.size(); ++c) {
      said.push_back(fmt::format(
          "{} elements of {} samples of {} positions", counts[c], captures_[c].batch, captures_[c].sequence));
    }
    return fmt::format(
        "its result grows with something else than samples, positions and their pairs ({}): capture two batches of the "
        "sequence that you train at",
        fmt::join(said, ", "));
  }

  // Whose a name is, for messages and reports.
  std::string of_module(const Json& operation) const {
    const Json& module = operation.at("module");
    const std::string name = module.is_string() ? short_name(module.get<std::string>()) : "";
    return name.empty() || name + "." == layers_.back().prefix ? "" : " of " + name;
  }

  std::string add_tensor(std::size_t i, const Json& operation, std::size_t out, const std::string& label) {
    Layer& layer = layers_.back();
    const Json& made = operation.at("out")[out];
    const Json width = operation.value("n", Json(1));
    Json tensor;
    if (made.contains("shape")) {
      std::vector<std::vector<std::int64_t>> shapes;
      for (const CapturedModules& capture : captures_)
        shapes.push_back(capture.document.at("operations")[i].at("out")[out].at("shape"));
      tensor = sizes_.shaped(shapes, elements(i, out), made.at("dtype"));
    }
    if (tensor.is_null()) tensor = sizes_.tensor(elements(i, out), made.at("dtype"), width);
    if (tensor.is_null()) refuse(operation, growth_of(elements(i, out)));
    std::string name = fmt::format("{}_{}{}", label, layer.tensors.size(), of_module(operation));
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
    const bool hands_on = layers_.size() > 1 && tensor == handed_ && layers_[layers_.size() - 2].names.contains(tensor);
    if (auto name = stand_in(tensor, false)) return name;
    Json first = Json::object();
    if (layers_.size() == 1 && !layer.tensors.contains(kInput)) first = batch_of(tensor);
    const bool is_batch = !first.empty();
    if (!is_batch) {
      if (auto name = constant(tensor)) return name;
      if (!hands_on || layer.tensors.contains(kInput)) return given_name(tensor);
      first[std::string(kInput)] = described_.at(tensor);
    }
    for (const auto& [name, value] : layer.tensors.items()) first[name] = value;
    layer.tensors = std::move(first);
    layer.sizes[std::string(kInput)] =
        is_batch ? there(tensor, 0)->at("elements").get<std::int64_t>() : found_.elements.at(tensor);
    return layer.names[tensor] = kInput;
  }

  // What a capture says of a tensor that the program gives its model, or that this has of the host; else null.
  const Json* there(std::int64_t tensor, std::size_t capture) const {
    const Json& document = captures_[capture].document;
    const std::string number = std::to_string(tensor);
    if (document.at("given").contains(number)) return &document.at("given").at(number);
    const auto made = constants_.find(tensor);
    if (made == constants_.end()) return nullptr;
    const Json& operation = document.at("operations")[made->second.first];
    return operation.at("in").empty() ? nullptr : &operation.at("out")[made->second.second];
  }
  // As the first layer's input; empty where samples have no part in it.
  Json batch_of(std::int64_t tensor) const {
    if (there(tensor, 0) == nullptr) return Json::object();
    std::vector<std::int64_t> all;
    for (std::size_t c = 0; c < captures_.size(); ++c) all.push_back(there(tensor, c)->at("elements"));
    const std::string dtype = there(tensor, 0)->at("dtype");
    Json made = sizes_.tensor(all, dtype);
    if (!made.contains("per_token") && !made.contains("per_sequence")) return Json::object();
    if (dtype == "torch.bfloat16") made["type"] = "bf16";  // as the program makes it
    return {{std::string(kInput), made}};
  }

  // What the layer itself makes of nothing (zeros that a mask is written into), or has of the host
  // (a mask by lengths), is there, too.
  std::optional<std::string> constant(std::int64_t tensor) {
    constexpr std::int64_t kLeast = 1 << 12;  // elements: scalars and indices are no matter
    const auto made = constants_.find(tensor);
    if (made == constants_.end()) return std::nullopt;
    const auto [i, out] = made->second;
    const std::size_t part = layers_.size() - 1;
    const Json& operation = document_.at("operations")[i];
    if (part >= found_.parts.size() || i < found_.parts[part].begin || operation.at("out")[out].at("elements") < kLeast)
      return std::nullopt;
    // Where nobody saw the end of what a module had of the host, it is there for good.
    const Json& result = operation.at("out")[out];
    const bool is_freed = result.contains("freed") || result.contains("freed_backward");
    const bool is_of_module = !operation.at("in").empty() && operation.at("module").is_string();
    if (saw_ends_ && is_of_module && !is_freed) return std::nullopt;
    const std::string name = add_tensor(i, operation, out, "made");
    layers_.back().operations.push_back({{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}});
    return name;
  }

  // The layer's name of it.
  std::string add_parameter(const std::string& parameter, const Json& operation) {
    Layer& layer = layers_.back();
    const Json& said = document_.at("parameters").at(parameter);
    // (Of a result that nothing reads no gradient arrives.)
    Json made = parameter_of(said, said.value("gradient", said.value("trainable", true)));
    const std::string op = operation.at("op");
    if (contains(op, "norm") && parameter.ends_with("weight")) made["norm"] = true;
    if (has_fp32_ && said.value("dtype", "torch.float32") != "torch.float32")
      made["stored_as_computed"] = true;  // tables in 16 bits beside weights in fp32
    std::string name = short_name(parameter);
    const bool is_called = !layer.same_as.empty() && name != parameter;
    const bool is_again = is_called ? layer.parameters.contains(name) : !seen_parameters_.insert(parameter).second;
    if (is_again) {
      made["tied"] = true;
      if (layer.role == "head") {
        is_tied_ = true;
        layer.parameters[name] = made;
        for (Json* of : {&layer.parameters, &layers_[0].parameters}) {  // as a model.yaml has it
          Json first = {{name, of->at(name)}};
          first.update(*of);
          *of = first;
        }
        return name;
      }
      name += fmt::format(" again {}", layer.parameters.size());
    }
    layer.parameters[name] = made;
    return name;
  }
  std::string short_name(const std::string& parameter) const {
    const std::string& prefix = layers_.back().prefix;
    return parameter.starts_with(prefix) ? parameter.substr(prefix.size()) : parameter;
  }

  // What an operation reads and makes, by the layer's names.
  struct Operands {
    std::vector<std::string> inputs, weights;
    std::set<std::string> wanted = {};  // inputs that have a gradient
    std::vector<std::string> outputs = {};
    bool view = false;
    bool sums = false;  // its second input's gradient, which is narrower
  };

  Operands read_operands(const Json& operation) {
    const Layer& layer = layers_.back();
    Operands of;
    of.view = operation.value("view", false);
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) {
        const std::string weight = in.get<std::string>();
        // Used again in the head it is a constant, but for the table; and where another use has its gradient.
        const bool is_table =
            layers_[0].parameters.contains(weight) && document_.at("parameters").at(weight).at("shape").size() > 1;
        const bool again = (layer.role == "head" && seen_parameters_.contains(weight) && !is_table) ||
                           (!is_differentiated(operation) && differentiated_.contains(weight));
        const bool has = contains(of.weights, weight);
        if (!again && !has) of.weights.push_back(weight);
        continue;
      }
      std::optional<std::string> name = known_or_position(in.get<std::int64_t>(), operation);
      if (name && !contains(of.inputs, *name)) of.inputs.push_back(*name);
      if (name && found_.made_at.contains(in)) of.wanted.insert(*name);
    }
    for (const Json& in : operation.at("in")) {
      if (!of.inputs.empty() || !in.is_number()) continue;
      if (const auto name = stand_in(in.get<std::int64_t>(), true)) of.inputs.push_back(*name);
    }
    return of;
  }

  std::string operation_of(const Json& operation, const Operands& of) const {
    std::string op = word_of(operation.at("op").get<std::string>());
    if (of.inputs.empty() && op != "embedding") op = "scale";  // of parameters alone
    // (A weight that is computed, as of a normed one, is an input beside its bias.)
    const bool has_bias_alone = std::ranges::all_of(of.weights,
        [&](const std::string& weight) { return document_.at("parameters").at(weight).at("shape").size() < 2; });
    // (Of a part of a weight, as attention's of keys and values, the product is no layer's.)
    const bool is_of_part = std::ranges::any_of(of.weights, [&](const std::string& weight) {
      const Json& said = document_.at("parameters").at(weight);
      const std::int64_t each = operation.value("n", 1) * operation.value("k", std::int64_t{1});
      return said.at("shape").size() > 1 && numel_of(said) % each != 0;
    });
    if (op == "linear" &&
        (of.weights.empty() || of.inputs.empty() || is_of_part || (has_bias_alone && !operation.contains("n"))))
      op = "multiply";
    if (op == "embedding" && of.weights.empty()) op = "gather";
    return op;
  }

  void add(std::size_t i, const Json& operation) {
    const std::string aten = operation.at("op");
    if (aten == "arange") {
      positions_.insert(operation.at("out")[0].at("tensor").get<std::int64_t>());
      return;
    }
    begin_layer(i);
    if (i == 0) add_before();
    if (statistics_.contains(i)) return;
    Layer& layer = layers_.back();
    const OperationPlace stands{layer, i};
    Operands of = read_operands(operation);
    auto& [inputs, weights, wanted, outputs, view, sums] = of;
    // Before all that is differentiated (a tower under no_grad) gradients go as they would.
    const bool is_frozen = layers_.size() > 1 && i < first_differentiated_;
    // Autograd does not see what is written in place behind its back (a sum over ranks): the gradient passes by.
    const bool is_unseen = operation.value("in_place", false) && !is_differentiated(operation) && !wanted.empty();
    const bool counts = is_differentiated(operation) || is_frozen || is_unseen;
    if (inputs.empty() && (weights.empty() || !counts)) return;
    const std::string op = operation_of(operation, of);
    // Biases come first in ATen, behind their weights in a model.yaml.
    std::ranges::stable_sort(weights,
        [](const std::string& a, const std::string& b) { return a.ends_with("weight") > b.ends_with("weight"); });
    std::vector<std::string> parameters;
    for (const std::string& weight : weights) parameters.push_back(add_parameter(weight, operation));
    for (std::size_t out = 0; out < operation.at("out").size(); ++out)
      outputs.push_back(add_tensor(i, operation, out, view ? "view" : op));
    // The gradient comes to the one of which a loss follows (a determinant's logarithm, not its sign).
    for (std::size_t out = 0; out < outputs.size() && !view; ++out) {
      if (!wanted_.contains(operation.at("out")[out].at("tensor"))) continue;
      std::swap(outputs[0], outputs[out]);
      break;
    }
    const std::string result = outputs[0];
    const auto size = [&](const std::string& name) { return layer.sizes.at(name); };
    const auto is_narrow = [&](const std::string& name) { return size(name) < size(result); };
    // What is broadcast stands last, where its gradient is summed.
    if (inputs.size() == 2 && is_narrow(inputs[0]) && !is_narrow(inputs[1])) std::swap(inputs[0], inputs[1]);
    sums = !view && aten != "bmm" && inputs.size() == 2 && is_differentiated(operation) && is_narrow(inputs[1]) &&
           !is_narrow(inputs[0]) && wanted.contains(inputs[1]);
    if (op == "negative_log_likelihood" || (view && !inputs.empty())) inputs.resize(1);
    const bool is_scaled = (op == "multiply" || op == "add") && inputs.size() < 2;
    const std::string word = is_scaled ? "scale" : op;
    Json made = {{"op", word}, {"name", fmt::format("{}_{}{}", word, layer.operations.size(), of_module(operation))},
        {"inputs", inputs}, {"outputs", outputs}};
    if (!parameters.empty()) made["parameters"] = parameters;
    if (op == "attention") add_attention(operation, made);
    if (op == "linear") {
      add_product(operation, made);
      widen(inputs[0], made.value("k", std::int64_t{1}));
    }
    if (view) made["view"] = true;
    if (aten == "batch_norm_elemt")
      made.update({{"synchronized", true}, {"n", found_.elements.at(operation.at("in").back())}});
    if (aten == "allreduce_") made.update({{"op", "copy"}, {"all_reduce", true}});
    add_gradient(i, operation, of, is_frozen, made);
    if (is_unseen) made["gradient"] = "alias";
    if (aten == "allreduce_") made.erase("in_place");
    if (is_differentiated(operation) && word != "embedding") add_saved(i, operation, of, made);
    if (aten == "bmm") add_head_product(made);
    add_workspace(i, "workspace", "forward_workspace", made);
    add_products(i, made);
    // What a bias's gradient takes is known, and grows less than the rows that it is summed over.
    const bool is_biased = aten == "addmm" && parameters.size() == 2;
    const bool is_bias = aten == "add" && parameters.size() == 1;
    if (is_bias) add_column_sums(i, parameters[0], result, made);
    else if (is_differentiated(operation) && !view && !is_biased)
      add_workspace(i, "backward_workspace", "backward_workspace", made);
    if (!view && op != "cast") layer.owned.insert(outputs.begin(), outputs.end());
    if (view || op == "cast") layer.owned.erase(inputs.empty() ? result : inputs[0]);
    layer.operations.push_back(made);
    if (counts || layer.output.empty()) layer.output = result;  // (metrics are none)
    // (The first operation of a loss is known by what it is.)
    if (layer.role == "loss" && layer.operations.size() == 1) hold_over(static_cast<std::int64_t>(i));
  }

  // Whose gradient it hands on, or makes.
  void add_gradient(std::size_t i, const Json& operation, const Operands& of, bool is_frozen, Json& made) {
    const std::string op = made.at("op");
    const Layer& layer = layers_.back();
    if (!is_differentiated(operation)) {
      if (!is_frozen) made["gradient"] = "none";
    } else if (of.view) {
      const bool is_part = of.outputs.size() == 1 && layer.sizes.at(of.outputs[0]) < layer.sizes.at(of.inputs[0]);
      if (is_part) made["gradient"] = "alias_first";
    } else if (op == "embedding") {
      return;
    } else if (op != "cast" && !of.inputs.empty() && (operation.at("backward").empty() || op == "add")) {
      made["gradient"] = "alias";  // one that makes nothing in backward hands on what arrives
    } else if (op == "scatter_add") {
      made["gradient"] = "alias_first";
    } else {
      made["gradient"] = "own";
      if (of.sums) made["sums_last"] = true;
      if (operation.value("in_place", false) && layer.owned.contains(of.inputs[0])) made["in_place"] = true;
      const bool is_plain = op == "scale" || op == "multiply" || !has_own_kernel(op);
      if (is_plain) add_temporaries(i, operation, of.sums, made);
    }
  }

  void add_saved(std::size_t i, const Json& operation, const Operands& of, Json& made) const {
    std::vector<std::string> saved;
    for (const Json& kept : operation.at("saved")) {
      const auto name = kept_name(kept);
      if (!name || contains(saved, *name)) continue;
      saved.push_back(*name);
      // (The last of a function's operations keeps what earlier ones made.)
      const bool is_read = contains(of.inputs, *name) || found_.is_read_from(kept, i + 1);
      if (!is_read && !contains(of.outputs, *name)) made["released"].push_back(*name);
    }
    made["saved"] = saved;
  }

  // The batch is the runtime's; what stands beside is kept by the layer that made it.
  std::optional<std::string> kept_name(std::int64_t tensor) const {
    const Layer& layer = layers_.back();
    const auto it = layer.names.find(tensor);
    const bool of_batch = layers_.size() == 1;
    if (it == layer.names.end() || (of_batch && it->second == kInput)) return std::nullopt;
    if (it->second.starts_with("beside_") && kept_beside_.contains(tensor)) return std::nullopt;
    return it->second;
  }

  // What the program gives the loss (a target, a teacher's logits), and what else the batch has, is
  // there from where it is read; through the step if it grows with the batch, and nobody gives it
  // back. (What the first layer reads the runtime holds.)
  std::optional<std::string> given_name(std::int64_t tensor) {
    Layer& layer = layers_.back();
    const bool is_loss = layer.role == "loss";
    const std::string number = std::to_string(tensor);
    const Json& given = document_.at("given");
    if (!given.contains(number) ||
        (is_loss && given.at(number).at("dtype").get_ref<const std::string&>().starts_with("torch.int")))
      return std::nullopt;
    std::vector<std::int64_t> all;
    for (const CapturedModules& capture : captures_) {
      const Json& there = capture.document.at("given");
      if (!there.contains(number)) return std::nullopt;
      all.push_back(there.at(number).at("elements"));
    }
    const Json made = sizes_.tensor(all, given.at(number).at("dtype"));
    if (made.is_null()) return std::nullopt;
    const std::string name = "given_" + number;
    const bool is_held = layers_[0].names.contains(tensor);
    const Ended& ended = ends_.at(tensor);
    const bool stays = !is_held && captures_.size() > 1 && layers_.size() > 1 && layer.role != "inner" && saw_ends_ &&
                       ended.forward < 0 && ended.backward < 0 &&
                       (made.contains("per_token") || made.contains("per_sequence"));
    if (stays) through_[name] = made;
    if (!is_loss && layer.role != "inner" && layers_.size() > 1) return std::nullopt;
    layer.tensors[name] = is_held || stays ? Json({{"fixed", 1}}) : made;
    layer.sizes[name] = all[0];
    layer.operations.push_back({{"op", "copy"}, {"name", name}, {"outputs", {name}}, {"gradient", "none"}});
    return layer.names[tensor] = name;
  }

  static bool has_own_kernel(std::string_view op) {
    constexpr std::string_view kOwn[] = {
        "linear", "attention", "layer_norm", "rms_norm", "log_softmax", "negative_log_likelihood", "embedding", "cast"};
    return contains(kOwn, op);
  }

  // What backward made but for the gradients themselves and their sums.
  void add_temporaries(std::size_t i, const Json& operation, bool sums, Json& made) {
    Layer& layer = layers_.back();
    std::multiset<std::int64_t> gradients;
    for (const Json& in : operation.at("in")) {
      if (in.is_string()) {
        gradients.insert(numel_of(document_.at("parameters").at(in.get<std::string>())));
        continue;
      }
      const auto name = layer.names.find(in.get<std::int64_t>());
      if (name == layer.names.end() || !found_.made_at.contains(in)) continue;
      gradients.insert(layer.sizes.at(name->second));
      if (found_.read_at.at(in) > i) gradients.insert(layer.sizes.at(name->second));  // added up here
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
    const std::int64_t length = captures_.size() == 1 ? captures_[0].sequence : sizes_.fixed_sequence();
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
    std::int64_t pairs = 1;  // of the batch's positions for one of the scores
    for (const std::string& name : {left, right, out}) {
      const Json& tensor = tensors.at(name);
      if (tensor.contains("by_pairs")) pairs = tensor.value("split", std::int64_t{1});
    }
    std::int64_t split = 1;
    while (split * split < pairs) ++split;
    if (split * split > pairs) return;
    const auto each = [&](const std::string& name, bool of_pairs) {
      const Json& tensor = tensors.at(name);
      if (tensor.contains("by_pairs") != of_pairs) return std::int64_t{0};
      const std::int64_t of = tensor.value("per_token", std::int64_t{0});
      return of_pairs ? of : of * split / tensor.value("split", std::int64_t{1});
    };
    const std::int64_t scores = std::max({each(left, true), each(right, true), each(out, true)});
    const std::int64_t wide = std::max(each(left, false), each(out, false));
    if (scores == 0 || wide % scores != 0 || wide == 0) return;
    made["op"] = "linear";
    made["kind"] = "attention";
    made["attention"] = {{"heads", scores}, {"head_dim", wide / scores}};
    if (split > 1) made["split"] = split;
    made["kept_by_selective"] = false;
  }

  // Of operation `i`, or of what runs before: what other kernels it has than its own.
  void add_products(std::optional<std::size_t> i, Json& made) {
    const auto of = [&](std::size_t c, const char* key) {
      const Json& document = captures_[c].document;
      return (i ? document.at("operations")[*i] : document).value(key, Json::array());
    };
    const auto tensor = [&](const std::vector<std::int64_t>& all) {
      Layer& layer = layers_.back();
      const std::string name = fmt::format("count_{}", layer.tensors.size());
      layer.tensors[name] = sizes_.tensor(all, "torch.uint8");
      return name;
    };
    for (const char* key : {"products", "backward_products"}) {
      for (std::size_t e = 0; e < of(0, key).size(); ++e) {
        std::vector<std::int64_t> rows, steps;
        std::size_t grows = 3;  // the first of m, n and k (a convolution's k stands for more)
        const Json first = of(0, key)[e];
        for (std::size_t c = 0; c < captures_.size(); ++c) {
          if (of(c, key).size() != of(0, key).size()) return;
          for (std::size_t d = 0; d < 3; ++d)
            if (of(c, key)[e][d] != first[d]) grows = std::min(grows, d);
        }
        const std::size_t d = grows % 3;
        const std::int64_t n = first[d == 1 ? 0 : 1], k = first[d == 2 ? 0 : 2];
        for (std::size_t c = 0; c < captures_.size(); ++c) {
          steps.push_back(of(c, key)[e][3]);
          rows.push_back(of(c, key)[e][d].get<std::int64_t>() * (n > 0 ? steps.back() : 1));
        }
        if (steps[0] == 0 || sizes_.tensor(rows, "torch.uint8").is_null() ||
            sizes_.tensor(steps, "torch.uint8").is_null())
          continue;
        const std::string in_all = tensor(rows), times = tensor(steps);
        made[key].push_back({{"n", n}, {"k", k}, {"rows", in_all}, {"steps", times}});
      }
    }
  }

  // What an operation took of the allocator and gave back.
  void add_workspace(std::size_t i, const char* of, const char* key, Json& made) {
    std::vector<std::int64_t> bytes;
    for (const CapturedModules& capture : captures_)
      bytes.push_back(capture.document.at("operations")[i].value(of, std::int64_t{0}));
    constexpr std::int64_t kLeast = 1 << 16;
    if (std::ranges::any_of(bytes, [](std::int64_t each) { return each < kLeast; })) return;
    Json tensor = sizes_.tensor(bytes, "torch.uint8");
    // A result that was made behind the peak (a bias's gradient) is counted off.
    std::set<std::int64_t> behind;
    for (const Json& result : document_.at("operations")[i].value("backward", Json::array()))
      behind.insert(result.at("elements").get<std::int64_t>() * (result.at("dtype") == "torch.float32" ? 4 : 2));
    for (const std::int64_t each : behind) {
      std::vector<std::int64_t> whole = bytes;
      for (std::int64_t& of : whole) of += each;
      if (tensor.is_null()) tensor = sizes_.tensor(whole, "torch.uint8");
    }
    if (tensor.is_null()) return;
    const std::string name = fmt::format("workspace_{}", layers_.back().tensors.size());
    layers_.back().tensors[name] = tensor;
    made[key] = {name};
  }

  // Of a bias that is added by itself: a workspace that model.yaml has by this name (sim/graph/layers/column_sums.h).
  void add_column_sums(std::size_t i, const std::string& bias, const std::string& result, Json& made) {
    Layer& layer = layers_.back();
    const Json& shape = layer.parameters.at(bias).at("shape");
    const bool has_any = document_.at("operations")[i].value("backward_workspace", 0) > 0;
    if (shape.size() != 1 || !has_any) return;
    const std::int64_t columns = shape[0];
    Json rows = layer.tensors.at(result);
    if (rows.value("fixed", 0) != 0) return;
    rows["split"] = rows.value("split", std::int64_t{1}) * columns;
    rows["fixed"] = columns;
    rows["type"] = "byte";
    rows["name"] = "column sums";
    const std::string name = fmt::format("workspace_{}", layer.tensors.size());
    layer.tensors[name] = rows;
    made["backward_workspace"] = {name};
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
    for (const Json& in : operation.at("in"))
      if (in.is_string()) tables_.insert(in.get<std::string>());
    layer.tensors["positions"] = {{"per_position", 1}, {"type", "int64"}};
    layer.sizes["positions"] = captures_[0].sequence;
    layer.operations.push_back({{"op", "arange"}, {"name", "arange"}, {"outputs", "positions"}});
    return layer.names[tensor] = "positions";
  }

  // Over fewer positions than the samples have, or over several runs of them each.
  void add_attention(const Json& operation, Json& made) const {
    const Json& q = operation.at("query");
    made["attention"] = {
        {"heads", q[1]}, {"kv_heads", operation.at("key")[1]}, {"head_dim", q[3]}, {"causal", operation.at("causal")}};
    const std::int64_t samples = q[0], positions = q[2];
    const std::int64_t runs = std::max<std::int64_t>(1, samples / captures_[0].batch);
    const std::int64_t each = runs * positions;
    const std::int64_t split = (captures_[0].sequence + each / 2) / each;
    if (runs > 1) made["attention"]["documents"] = runs;
    if (split > 1) made["split"] = split;
  }

  void finish_layer() {
    if (layers_.empty()) return;
    if (layers_.back().operations.empty()) layers_.pop_back();
  }

  std::string file() const {
    std::int64_t positions = 1;
    for (const CapturedModules& capture : captures_) positions = std::max(positions, capture.sequence);
    // Without a table of positions sequences may be as long as one likes.
    if (!has_table_ && sizes_.fixed_sequence() == 0) positions = std::int64_t{1} << 20;
    for (const auto& [name, said] : document_.at("parameters").items())
      if (has_table_ && tables_.contains(name)) positions = said.at("shape")[0];
    Json kinds = Json::object(), order = Json::array();
    std::map<std::string, std::string> kind_of;  // layers
    for (std::size_t l = 0; l < layers_.size();) {
      std::size_t end = l + 1;
      while (end < layers_.size() && layers_[end].role == "block" && layers_[end].same_as.empty() &&
             stem_of(layers_[end].name) == stem_of(layers_[l].name) && layers_[end].kind() == layers_[l].kind())
        ++end;
      if (!layers_[l].same_as.empty()) {
        std::string kind = kind_of.at(layers_[l].same_as);
        if (kinds[kind]["parameters"] != layers_[l].parameters)
          refuse_layers(captures_[0].path, "{} reads other weights when it is called again", layers_[l].same_as);
        if (kinds[kind] != layers_[l].kind())  // for other samples, or longer ones
          kinds[kind = fmt::format("block {}", kinds.size())] = layers_[l].kind();
        order.push_back({{"kind", kind}, {"name", layers_[l].name}, {"same_as", layers_[l].same_as}});
        ++l;
        continue;
      }
      const std::string kind =
          end - l > 1 || layers_[l].role == "block" ? fmt::format("block {}", kinds.size()) : layers_[l].name;
      kinds[kind] = layers_[l].kind();
      for (std::size_t same = l; same < end; ++same) kind_of[layers_[same].name] = kind;
      if (l == 0 && resident_ > 0) kinds[kind]["resident_bytes"] = resident_;
      Json entry = {{"kind", kind}, {"name", layers_[l].name}};
      if (layers_[l].role == "block") {
        const std::string stem = stem_of(layers_[l].name), number = layers_[l].name.substr(stem.size());
        if (!number.empty()) entry["name"] = stem + "{}";
        entry["repeat"] = end - l;
        if (const auto first = std::atoll(number.c_str()); first > 0) entry["from"] = first;
      }
      order.push_back(entry);
      l = end;
    }
    Json model = {{"model", name_}, {"family", document_.at("class")}, {"source", "modules.json of a capture"},
        {"positions", positions}, {"block_prefix", document_.at("block_list")}, {"layers", kinds}, {"order", order}};
    if (is_tied_) model["tied_embeddings"] = true;
    if (const auto calls = document_.value("calls", std::int64_t{1}); calls > 1) model["calls"] = calls;
    if (const auto length = sizes_.fixed_sequence()) model["fixed_sequence"] = length;
    std::string text = "# What the modules of a captured program compute: foreshard schema model has every key.\n";
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
  // "blocks." of "blocks.0"
  static std::string stem_of(const std::string& block) {
    return block.substr(0, block.find_last_not_of("0123456789") + 1);
  }

  const std::vector<CapturedModules>& captures_;
  const Json& document_;
  const ModuleSizes sizes_;
  const std::string name_;
  std::vector<Layer> layers_;
  bool is_tied_ = false, has_table_ = false, has_fp32_ = false, saw_ends_ = false;
  std::set<std::string> tables_;  // of positions
  ModuleLayers found_;
  std::int64_t handed_ = -1;             // by the layer before
  std::int64_t resident_ = 0;            // bytes
  std::map<std::string, Json> through_;  // by name, what the program holds all the step
  std::set<std::int64_t> positions_;
  std::map<std::int64_t, Ended> ends_;
  std::map<std::int64_t, std::int64_t> storage_of_;  // a view's
  std::map<std::int64_t, std::size_t> kept_by_;      // storages
  std::map<std::int64_t, Json> described_;
  std::set<std::int64_t> kept_beside_;  // by the layer that made them, until its backward
  std::set<std::string> seen_parameters_, differentiated_;
  std::set<std::int64_t> wanted_;         // that have a gradient
  std::set<std::size_t> statistics_;      // operations: what a synchronized norm makes of all ranks' samples
  std::size_t first_differentiated_ = 0;  // operation
  std::map<std::int64_t, std::pair<std::size_t, std::size_t>> constants_;  // operation, output
};

}

std::string model_of_modules(const std::vector<CapturedModules>& captures, const std::string& name) {
  return ModuleWriter(captures, name).write();
}

}
