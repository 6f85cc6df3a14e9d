#include "interop/capture/module_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

bool uses_parameter(const Json& operation) { return std::ranges::any_of(operation.at("in"), &Json::is_string); }

class LayerFinder {
 public:
  explicit LayerFinder(const CapturedModules& capture) : capture_(capture), document_(capture.document) {
    for (const Json& block : document_.at("blocks")) found_.blocks.push_back(block.get<std::string>());
  }

  ModuleLayers find() {
    find_tensors();
    find_layers();
    return std::move(found_);
  }

 private:
  // Whose block an operation is: by number; -1: nobody's.
  std::int64_t block_of(const Json& operation) const {
    const Json& said = operation.at("module");
    const std::string module = said.is_string() ? said.get<std::string>() : "";
    for (std::size_t b = 0; b < found_.blocks.size(); ++b)
      if (module == found_.blocks[b] || module.starts_with(found_.blocks[b] + ".")) return static_cast<std::int64_t>(b);
    return -1;
  }
  // Runs of operations of one block or between lists of blocks. What stands between two blocks of
  // one list is the first one's; what a block that ran before does without a parameter (a method of
  // its own) is nobody's, with parameters it is called again.
  void find_parts() {
    std::set<std::int64_t> seen;
    const Json& operations = document_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const std::int64_t block = block_of(operations[i]);
      const bool is_between = found_.parts.size() > 1 && found_.parts.back().block < 0 && block >= 0;
      const std::int64_t before = is_between ? found_.parts[found_.parts.size() - 2].block : -1;
      const bool resumes = is_between && block == before;
      const bool again = !resumes && seen.contains(block) && block != found_.parts.back().block;
      const bool is_called = again && uses_parameters_from(i);
      const std::int64_t of = again && !is_called ? -1 : block;
      const bool resumes_list = of >= 0 && before >= 0 && (resumes || before < block) &&
                                list_of(found_.blocks[at(before)]) == list_of(found_.blocks[at(block)]);
      if (resumes_list) found_.parts.pop_back();
      if (found_.parts.empty() || of != found_.parts.back().block)
        found_.parts.push_back({.begin = i, .block = of, .again = is_called});
      if (block >= 0) seen.insert(block);
    }
    part_calls();
  }
  // Calls of one block behind each other, which are the same operations again and again.
  void part_calls() {
    const std::size_t count = document_.at("operations").size();
    std::vector<ModulePart> parts;
    for (std::size_t p = 0; p < found_.parts.size(); ++p) {
      const std::size_t end = p + 1 < found_.parts.size() ? found_.parts[p + 1].begin : count;
      parts.push_back(found_.parts[p]);
      if (parts.back().block < 0) continue;
      const std::size_t period = period_of(parts.back().begin, end);
      for (std::size_t i = parts.back().begin + period; i < end; i += period)
        parts.push_back({.begin = i, .block = parts.back().block, .again = true});
    }
    found_.parts = std::move(parts);
  }
  // Of how many operations a call is: all of them where nothing is done again.
  std::size_t period_of(std::size_t begin, std::size_t end) const {
    const Json& operations = document_.at("operations");
    const auto parameters_of = [&](std::size_t from, std::size_t to) {
      std::set<std::string> names;
      for (std::size_t i = from; i < to; ++i)
        for (const Json& in : operations[i].at("in"))
          if (in.is_string()) names.insert(in.get<std::string>());
      return names;
    };
    const std::set<std::string> all = parameters_of(begin, end);
    for (std::size_t period = 1; 2 * period <= end - begin; ++period) {
      if ((end - begin) % period > 0) continue;
      std::size_t i = begin + period;
      while (i < end && is_alike(operations[i], operations[i - period])) ++i;
      if (i == end && parameters_of(begin, begin + period) == all) return period;
    }
    return end - begin;
  }
  static bool is_alike(const Json& a, const Json& b) {
    return a.at("op") == b.at("op") && a.at("module") == b.at("module");
  }
  // The run of one block's operations that begins here.
  bool uses_parameters_from(std::size_t i) const {
    const Json& operations = document_.at("operations");
    const std::int64_t block = block_of(operations[i]);
    while (i < operations.size() && block_of(operations[i]) == block)
      if (uses_parameter(operations[i++])) return true;
    return false;
  }
  void find_layers() {
    const Json& operations = document_.at("operations");
    find_parts();
    std::size_t behind = 0;  // the last use of a parameter
    for (std::size_t i = 0; i < operations.size(); ++i)
      if (uses_parameter(operations[i])) behind = i + 1;
    if (behind == 0) refuse_operation(capture_, operations.back(), "no operation uses a parameter of the model");
    std::size_t loss = behind;
    const auto is_of_loss = [&](std::size_t i) {
      return operations[i].at("module").is_null() || operations[i].at("op") == "_log_softmax";
    };
    while (loss < operations.size() && !is_of_loss(loss)) ++loss;
    if (loss == operations.size()) loss = behind;
    if (loss == operations.size() || found_.crossing(loss).empty())
      refuse_operation(capture_, operations.back(), "it uses a parameter, and nothing makes a loss of its result");
    while (hands_on_alone(loss)) ++loss;
    while (document_.value("is_compiled", false) && is_in_registers(loss - 1)) --loss;
    std::erase_if(found_.parts, [&](const ModulePart& part) { return part.begin >= loss; });
    found_.parts.push_back({.begin = loss});
    // (Not what only metrics look at: attention's weights that a program draws.)
    std::vector<std::int64_t> given = found_.crossing(loss);
    std::erase_if(given, [&](std::int64_t t) { return !reads(found_.parts.size() - 1, t); });
    found_.parts.back().handed = largest(given.empty() ? found_.crossing(loss) : given);
    // What only hands a gradient through (an order of dimensions between lists) is the part's before.
    for (std::size_t p = found_.parts.size() - 2; p > 0; --p)
      if (found_.parts[p].block < 0 && is_passage(p)) found_.parts.erase(found_.parts.begin() + p);
    // From behind: what a part hands on, it has made.
    const auto join = [&](std::size_t p) {
      if (found_.parts[p].block != found_.parts[p - 1].block) found_.parts[p - 1].block = -1;
      found_.parts[p - 1].again &= found_.parts[p - 1].block >= 0;
      found_.parts.erase(found_.parts.begin() + p);
    };
    const std::size_t result = place_of_tensor(found_.parts.back().handed);
    while (found_.parts.size() > 2 && found_.parts[found_.parts.size() - 2].begin > result)
      join(found_.parts.size() - 2);
    for (std::size_t p = found_.parts.size() - 2; p > 0; --p) {
      std::vector<std::int64_t> made = found_.crossing(found_.parts[p].begin);
      const bool is_fed = std::ranges::any_of(
          made, [&](std::int64_t t) { return reads(p, t); });
      std::erase_if(made, [&](std::int64_t t) { return p > 1 && place_of_tensor(t) < found_.parts[p - 1].begin; });
      // Of two blocks the second one may read what came before the first alone (scales).
      const std::vector<std::int64_t> all = made;
      std::erase_if(made, [&](std::int64_t t) { return !reads(p, t); });
      if (made.empty() && is_fed && found_.parts[p].block >= 0 && found_.parts[p - 1].block >= 0) made = all;
      // Another tower begins: the block before keeps its unit.
      if (made.empty() && found_.parts[p].block < 0 && found_.parts[p - 1].block >= 0) made = all;
      if (made.empty()) join(p);
      else found_.parts[p].handed = largest(made);
    }
    forget_joined();
  }
  // What the program makes of the result alone and keeps in its place (logits in fp32) is the layer's before the loss.
  bool hands_on_alone(std::size_t i) const {
    const Json& operations = document_.at("operations");
    if (i + 1 >= operations.size() || !is_differentiated(operations[i]) || operations[i].at("op") == "_log_softmax")
      return false;
    const Json &in = operations[i].at("in"), &out = operations[i].at("out");
    if (in.size() != 1 || !in[0].is_number() || out.size() != 1 ||
        found_.crossing(i) != std::vector{in[0].get<std::int64_t>()})
      return false;
    const auto made = found_.made_at.find(in[0]);
    if (made == found_.made_at.end() || out[0].at("elements") != found_.elements.at(in[0])) return false;
    const auto is_gone = [&](const Json& of) {
      return of.at("tensor") == in[0] && of.value("freed", -1) == std::int64_t(i);
    };
    return std::ranges::any_of(operations[made->second].at("out"), is_gone);
  }
  // What stands between the last product and a loss that is compiled with it (a cast, a cap) has no tensor.
  bool is_in_registers(std::size_t i) const {
    const Json& operation = document_.at("operations")[i];
    const Json &in = operation.at("in"), &out = operation.at("out");
    return is_differentiated(operation) && in.size() == 1 && in[0].is_number() && found_.made_at.contains(in[0]) &&
           found_.read_at.at(in[0]) == i && out.size() == 1 && out[0].at("elements") == found_.elements.at(in[0]);
  }
  // Of what is called again, the first call stands by itself.
  void forget_joined() {
    std::set<std::int64_t> first;
    for (ModulePart& part : found_.parts) {
      if (!part.again) first.insert(part.block);
      if (!first.contains(part.block)) part.block = -1, part.again = false;
    }
  }
  bool is_passage(std::size_t p) const {
    const Json& operations = document_.at("operations");
    for (std::size_t i = found_.parts[p].begin; i < found_.parts[p + 1].begin; ++i) {
      const Json made = operations[i].value("backward", Json::array());
      if (uses_parameter(operations[i]) || !made.empty()) return false;
    }
    return true;
  }
  // (What only looks at a tensor that has a gradient is a metric.)
  bool reads(std::size_t p, std::int64_t tensor) const {
    const Json& operations = document_.at("operations");
    const bool is_last = p + 1 == found_.parts.size();
    const std::size_t end = is_last ? operations.size() : found_.parts[p + 1].begin;
    for (std::size_t i = found_.parts[p].begin; i < end; ++i) {
      const Json& in = operations[i].at("in");
      const bool looks = found_.made_at.contains(tensor) && !is_differentiated(operations[i]);
      if (!looks && contains(in, Json(tensor))) return true;
    }
    return false;
  }
  // The operation that made it, of what the batch has a part in; else the first.
  std::size_t place_of_tensor(std::int64_t tensor) const { return value_of(found_.batch_at, tensor, 0); }
  // The last of the largest, of those that samples have a part in (a bias of positions is none).
  std::int64_t largest(const std::vector<std::int64_t>& tensors) const {
    return *std::ranges::max_element(
        tensors, {},
        [&](std::int64_t t) {
          return std::tuple(found_.of_samples.contains(t), found_.elements.at(t), place_of_tensor(t));
        });
  }

  void find_tensors() {
    const Json& operations = document_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) {
      bool is_of_batch = uses_parameter(operations[i]), is_of_samples = false;
      for (const Json& in : operations[i].at("in")) {
        if (!in.is_number()) continue;
        found_.read_at[in] = i;
        is_of_samples |=
            found_.of_samples.contains(in) || document_.at("given").contains(std::to_string(in.get<std::int64_t>()));
        is_of_batch |= found_.batch_at.contains(in);
      }
      for (const Json& out : operations[i].at("out")) {
        if (is_differentiated(operations[i])) found_.made_at[out.at("tensor")] = i;
        const std::string dtype = out.at("dtype");
        const bool is_float = contains(dtype, "float");
        if (is_of_batch && is_float) found_.batch_at[out.at("tensor")] = i;
        found_.elements[out.at("tensor")] = out.at("elements");
        if (is_of_samples) found_.of_samples.insert(out.at("tensor").get<std::int64_t>());
      }
    }
  }

  const CapturedModules& capture_;
  const Json& document_;
  ModuleLayers found_;
};

}

bool is_differentiated(const Json& operation) { return operation.contains("node"); }

std::int64_t numel_of(const Json& parameter) {
  std::int64_t numel = 1;
  for (const Json& extent : parameter.at("shape")) numel *= extent.get<std::int64_t>();
  return numel;
}

std::string place_of(const Json& operation) {
  const Json& module = operation.at("module");
  const std::string name = module.is_string() ? module.get<std::string>() : "";
  return fmt::format("{} in {}", operation.at("op").get<std::string>(), name.empty() ? "the program itself" : name);
}

std::string list_of(const std::string& block) {
  const std::size_t dot = block.rfind('.');
  return dot == block.npos ? "" : block.substr(0, dot);
}

void refuse_operation(const CapturedModules& capture, const Json& operation, const std::string& why) {
  throw Error(ExitCode::kMissingCapability,
      "{}: {}: {}; foreshard predict --capture forecasts the step as it is, and models/examples/ has layers to write "
      "by hand",
      capture.path, place_of(operation), why);
}

std::vector<std::int64_t> ModuleLayers::crossing(std::size_t at) const {
  std::vector<std::int64_t> found;
  for (const auto* made : {&made_at, &batch_at}) {
    for (const auto& [tensor, i] : *made)
      if (i < at && is_read_from(tensor, at)) found.push_back(tensor);
    if (!found.empty()) break;
  }
  return found;
}

ModuleLayers find_module_layers(const CapturedModules& capture) { return LayerFinder(capture).find(); }

}
