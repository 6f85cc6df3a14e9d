// A module's name is what stands before the last dot of a parameter's name, an outer module's what
// stands before an inner one's.
#include "sim/graph/layers/layer_modules.h"

#include <algorithm>

#include "sim/base/lookup.h"

namespace foreshard {
namespace {

std::string prefix_of(const ModelSpec& model, std::int32_t layer) {
  const LayerInstance& instance = model.order[at(layer)];
  const LayerSpec& spec = model.kinds[at(instance.kind)];
  if (spec.role != LayerRole::kBlock) return "";
  // A block that runs again carries the name of its weights' layer.
  std::int32_t module = instance.same_as >= 0 ? instance.same_as : layer;
  std::int64_t number = 0;
  for (std::int32_t l = 0; l < module; ++l) {
    const LayerInstance& before = model.order[at(l)];
    const bool counts = before.same_as < 0 && model.kinds[at(before.kind)].role == LayerRole::kBlock;
    number += counts ? 1 : 0;
  }
  return model.block_prefix + "." + std::to_string(number);
}

// Outside of blocks only what PEFT's layer holds (of a head with adapters) has a parent here.
std::int16_t module_at(std::vector<LayerModule>& modules, const std::string& name, bool is_block) {
  const auto known = std::ranges::find(modules, name, &LayerModule::name);
  if (known != modules.end()) return static_cast<std::int16_t>(known - modules.begin());
  const std::size_t dot = name.rfind('.');
  LayerModule module = {.name = name};
  const bool nests = is_block || name.ends_with(".base_layer") || contains(name, ".lora_");
  if (nests && dot != std::string::npos) module.parent = module_at(modules, name.substr(0, dot), is_block);
  modules.push_back(std::move(module));
  return static_cast<std::int16_t>(modules.size() - 1);
}

}

std::vector<LayerModule> modules_of(const LayerSpec& layer) {
  std::vector<LayerModule> modules;
  for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
    const std::string& name = layer.parameters[p].name;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) continue;  // the layer's own
    const std::int16_t module = module_at(modules, name.substr(0, dot), layer.role == LayerRole::kBlock);
    modules[at(module)].parameters.push_back(static_cast<std::int16_t>(p));
  }
  return modules;
}

ModuleSpans::ModuleSpans(const LayerSpec& layer)
    : modules_(modules_of(layer)), first_(modules_.size(), layer.operations.size()), last_(modules_.size(), 0) {
  const auto owner_of = [&](std::int16_t parameter) {
    const auto owner =
        std::ranges::find_if(modules_, [&](const LayerModule& m) { return contains(m.parameters, parameter); });
    return owner == modules_.end() ? -1 : static_cast<int>(owner - modules_.begin());
  };
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    const Indices& weights = layer.operations[o].parameters;
    module_of_.push_back(weights.empty() ? std::int16_t{-1} : static_cast<std::int16_t>(owner_of(weights.front())));
    for (std::int16_t each : around(o)) {
      const auto m = at(each);
      first_[m] = std::min(first_[m], o);
      last_[m] = o;
    }
  }
}

Indices ModuleSpans::around(std::size_t operation) const {
  Indices modules;
  if (modules_.empty()) return modules;
  for (std::int16_t m = module_of_[operation]; m >= 0; m = modules_[at(m)].parent) modules.push_back(m);
  return modules;
}

Indices ModuleSpans::around_where(std::size_t operation, const std::vector<std::size_t>& place) const {
  Indices modules = around(operation);
  std::erase_if(modules, [&](auto m) { return place[at(m)] != operation; });
  return modules;
}

std::string parameter_name(const ModelSpec& model, std::int32_t layer, std::int16_t parameter) {
  const auto kind = at(model.order[at(layer)].kind);
  const std::string& name = model.kinds[kind].parameters[at(parameter)].name;
  const std::string prefix = prefix_of(model, layer);
  return prefix.empty() ? name : prefix + "." + name;
}

std::string module_name(const ModelSpec& model, std::int32_t layer, const LayerModule& module) {
  const std::string prefix = prefix_of(model, layer);
  if (prefix.empty()) return module.name;
  return module.name.empty() ? prefix : prefix + "." + module.name;
}

}
