#include "sim/spec/size_units.h"

#include <algorithm>
#include <map>

#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

bool is_inside(const std::string& name, const std::string& module) {
  return name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.';
}

}

SizeUnits units_by_size(const LayerSpec& layer, std::int64_t least) {
  const bool is_block = layer.role == LayerRole::kBlock;
  std::map<std::string, std::int64_t> left;  // of modules, "" the layer
  for (const ParameterSpec& parameter : layer.parameters) {
    if (parameter.tied && layer.role != LayerRole::kHead) continue;
    std::string module = parameter.tied ? "head" : parent_of(parameter.name);
    left[module] += parameter.numel();
    while (is_block && !module.empty()) left[module = parent_of(module)] += 0;
  }
  SizeUnits units;
  // Names of what is inside come behind their module's.
  for (auto each = left.rbegin(); each != left.rend(); ++each) {
    const auto& [module, numel] = *each;
    if (module.empty()) units.whole = numel >= least;
    else if (numel >= least) units.modules.push_back(module);
    else if (is_block) left[parent_of(module)] += numel;
  }
  const auto place = [&](const std::string& module) {
    return std::ranges::find_if(
        layer.parameters, [&](const ParameterSpec& p) { return is_inside(p.name, module); });
  };
  std::ranges::stable_sort(units.modules, [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return units;
}

SizeUnits units_of_adapters(const LayerSpec& layer) {
  SizeUnits units;
  for (const ParameterSpec& parameter : layer.parameters)
    if (parameter.trainable) units.modules.push_back(parent_of(parameter.name));
  if (units.modules.size() == layer.parameters.size()) units.modules.clear();
  return units;
}

bool flattens_twice(const Plan& plan) {
  const UnitPlacement table = plan.units.embedding;
  return plan.runtime.kind == RuntimeKind::kFsdp1 && table != UnitPlacement::kWithHead &&
         (table != UnitPlacement::kRoot || !in_root(plan.units, LayerRole::kHead));
}

std::int32_t unit_of_name(const SizeUnits& units, const std::string& name) {
  std::int32_t found = -1;
  for (std::size_t m = 0; m < units.modules.size(); ++m) {
    const std::string& module = units.modules[m];
    const bool deeper = found < 0 || module.size() > units.modules[at(found)].size();
    if (is_inside(name, module) && deeper) found = static_cast<std::int32_t>(m);
  }
  return found;
}

}
