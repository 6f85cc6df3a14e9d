// A module's name is what stands before the last dot of a parameter's name, an outer module's what
// stands before an inner one's.
#include "sim/graph/layer_modules.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string prefix_of(const ModelSpec& model, std::int32_t layer) {
  const LayerInstance& instance = model.order[static_cast<std::size_t>(layer)];
  const LayerSpec& spec = model.kinds[static_cast<std::size_t>(instance.kind)];
  if (spec.role != LayerRole::kBlock) return "";
  // A block that runs again carries the name of its weights' layer.
  std::int32_t module = instance.same_as >= 0 ? instance.same_as : layer;
  std::int64_t number = 0;
  for (std::int32_t l = 0; l < module; ++l) {
    const LayerInstance& before = model.order[static_cast<std::size_t>(l)];
    const bool counts =
        before.same_as < 0 &&
        model.kinds[static_cast<std::size_t>(before.kind)].role == LayerRole::kBlock;
    number += counts ? 1 : 0;
  }
  return model.block_prefix + "." + std::to_string(number);
}

std::int16_t module_at(std::vector<LayerModule>& modules, const std::string& name, bool is_block) {
  const auto known = std::find_if(modules.begin(), modules.end(),
                                  [&](const LayerModule& m) { return m.name == name; });
  if (known != modules.end()) return static_cast<std::int16_t>(known - modules.begin());
  const std::size_t dot = name.rfind('.');
  LayerModule module;
  module.name = name;
  if (is_block && dot != std::string::npos) {
    module.parent = module_at(modules, name.substr(0, dot), is_block);
  }
  modules.push_back(std::move(module));
  return static_cast<std::int16_t>(modules.size() - 1);
}

}  // namespace

std::vector<LayerModule> modules_of(const LayerSpec& layer) {
  std::vector<LayerModule> modules;
  for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
    const std::string& name = layer.parameters[p].name;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) continue;  // the layer's own
    const std::int16_t module =
        module_at(modules, name.substr(0, dot), layer.role == LayerRole::kBlock);
    modules[static_cast<std::size_t>(module)].parameters.push_back(static_cast<std::int16_t>(p));
  }
  return modules;
}

std::string parameter_name(const ModelSpec& model, std::int32_t layer, std::int16_t parameter) {
  const auto kind = static_cast<std::size_t>(model.order[static_cast<std::size_t>(layer)].kind);
  const std::string& name = model.kinds[kind].parameters[static_cast<std::size_t>(parameter)].name;
  const std::string prefix = prefix_of(model, layer);
  return prefix.empty() ? name : prefix + "." + name;
}

std::string module_name(const ModelSpec& model, std::int32_t layer, const LayerModule& module) {
  const std::string prefix = prefix_of(model, layer);
  if (prefix.empty()) return module.name;
  return module.name.empty() ? prefix : prefix + "." + module.name;
}

}  // namespace foreshard
