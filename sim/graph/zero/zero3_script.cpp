// Parameters are numbered and modules found layer by layer, blocks like the one before copied.
#include "sim/graph/zero/zero3_script.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/torch_words.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

std::string parent_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}

Zero3Script::Zero3Script(const StepBuilder& builder, const ModelSpec& model, const Plan& plan)
    : builder_(&builder), model_(model), plan_(&plan) {
  add_parameters();
  add_modules();
  write_forward();
  write_backward();
  builder_ = nullptr;
  plan_ = nullptr;
}

bool Zero3Script::is_block(std::int32_t layer) const { return spec_of(layer).role == LayerRole::kBlock; }

// --- parameters and modules ---

void Zero3Script::add_parameters() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  std::int64_t persistent = 0;
  std::int32_t token_table = -1;
  bool trained_before = false;
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerSpec& spec = spec_of(l);
    const std::int32_t same = model_.order[at(l)].same_as;
    input_needs_gradient_.push_back(trained_before);
    if (same >= 0) {
      first_slot_.push_back(first_slot_[at(same)]);
      continue;
    }
    first_slot_.push_back(static_cast<std::int32_t>(parameter_of_.size()));
    for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
      if (spec.parameters[i].tied) {
        parameter_of_.push_back(token_table);
        continue;
      }
      if (spec.role == LayerRole::kEmbedding && i == 0) token_table = parameter_count();
      parameter_of_.push_back(parameter_count());
      Zero3Parameter& p = parameters.emplace_back();
      p.numel = spec.parameters[i].numel();
      p.size = size_of(p.numel);
      p.layer = l;
      p.index = static_cast<std::int16_t>(i);
      p.trained = builder_->is_trained(l, spec.parameters[i]);
      p.is_wide = p.trained && has_wide_adapters(*plan_);
      p.in_leaf = plan_->zero.leaf_blocks && spec.role == LayerRole::kBlock;
      p.persists = p.numel <= plan_->zero.stage3_param_persistence_threshold &&
                   p.numel <= plan_->zero.stage3_model_persistence_threshold - persistent;
      if (p.persists) persistent += p.numel;
      trained_before |= p.trained;
    }
  }
}

std::vector<std::int32_t> Zero3Script::as_defined() const {
  std::vector<PlacedParameter> placed;
  for (const Zero3Parameter& p : parameters) placed.push_back({p.layer, p.index});
  return foreshard::as_defined(model_, placed);
}

std::int32_t Zero3Script::size_of(std::int64_t numel) {
  const auto known = std::ranges::find(sizes, numel);
  if (known == sizes.end()) sizes.push_back(numel);
  return static_cast<std::int32_t>(std::ranges::find(sizes, numel) - sizes.begin());
}

std::int32_t Zero3Script::container(const std::string& name) {
  const auto known = std::ranges::find(containers_, name);
  if (known != containers_.end()) return static_cast<std::int32_t>(known - containers_.begin());
  const std::int32_t parent = name.empty() ? -1 : container(parent_name(name));
  containers_.push_back(name);
  parents_.push_back(parent);
  Zero3Module& module = modules.emplace_back();
  module.is_container = true;
  return static_cast<std::int32_t>(modules.size()) - 1;
}

// A tied head's weight carries the name of the table; its module is the head.
std::vector<LayerModule> Zero3Script::layer_modules(std::int32_t layer) const {
  const LayerSpec& spec = spec_of(layer);
  std::vector<LayerModule> list = modules_of(spec);
  for (LayerModule& module : list) {
    const bool tied =
        std::ranges::any_of(module.parameters, [&](std::int16_t p) { return spec.parameters[at(p)].tied; });
    if (tied) module.name = "lm_head";
  }
  return list;
}

// All containers come first, so that the modules of a layer have consecutive numbers.
void Zero3Script::add_modules() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  container("");
  if (plan_->lora.rank > 0) {  // PEFT's model calls it
    containers_.push_back("peft");
    parents_.front() = 1;
    parents_.push_back(-1);
    modules.emplace_back().is_container = true;
  }
  std::vector<bool> has_first(1, false);
  for (std::int32_t l = 0; l < layers; ++l) {
    std::vector<std::int32_t> inside;
    if (l > 0 && is_block(l) && is_block(l - 1)) continue;
    if (is_block(l)) inside.push_back(block_container_ = container(parent_name(model_.block_prefix)));
    else
      for (const LayerModule& module : layer_modules(l))
        if (module.parent < 0) inside.push_back(container(parent_name(module.name)));
    has_first.resize(containers_.size(), false);
    for (std::int32_t c : inside) {
      for (; c >= 0; c = parents_[at(c)]) {
        if (!has_first[at(c)]) modules[at(c)].has_input_gradient = input_needs_gradient_[at(l)];
        has_first[at(c)] = true;
      }
    }
  }
  owner_.assign(parameters.size(), -1);
  for (std::int32_t l = 0; l < layers; ++l) add_layer_modules(l);
  numel_below_.assign(modules.size(), 0);
  for (std::int32_t p = 0; p < parameter_count(); ++p)
    for (std::int32_t m = owner_[at(p)]; m >= 0; m = parent_of(m)) numel_below_[at(m)] += parameter(p).numel;
}

void Zero3Script::own(std::int32_t module, std::int32_t layer, std::int16_t index) {
  Zero3Module& m = modules[at(module)];
  const std::int32_t p = parameter_of(layer, index);
  if (m.owned == 0) m.first_owned = static_cast<std::int32_t>(owned.size());
  owned.push_back(p);
  ++m.owned;
  if (owner_[at(p)] < 0) owner_[at(p)] = module;
}

// Whether what the module reads has a gradient: token ids and pixels have none.
bool Zero3Script::is_fed_with_gradient(std::int32_t layer, const LayerModule& module) const {
  if (module.parameters.empty() || input_needs_gradient_[at(layer)]) return true;
  for (const Operation& op : spec_of(layer).operations) {
    if (op.parameters.empty() || op.parameters.front() != module.parameters.front()) continue;
    const bool reads_input = contains(op.inputs, 0);
    return op.kind != OperationKind::kEmbedding && !reads_input;
  }
  return true;
}

// A loss with the head's product in it reads the weight in the model's forward, whose parameter it
// is then, too (register_external_parameter).
bool Zero3Script::is_read_aside(std::int32_t layer) const {
  return plan_->loss.has_product() && spec_of(layer).role == LayerRole::kHead;
}

void Zero3Script::add_layer_modules(std::int32_t layer) {
  const std::int32_t same = model_.order[at(layer)].same_as;
  if (same >= 0) {
    first_module_.push_back(first_module_[at(same)]);
    return;
  }
  if (copy_layer_modules(layer)) return;
  const LayerSpec& spec = spec_of(layer);
  const bool block = is_block(layer);
  const bool leaf = block && plan_->zero.leaf_blocks;
  first_module_.push_back(static_cast<std::int32_t>(modules.size()) - (block ? 0 : 1));
  if (block) {
    modules.push_back({.layer = layer,
        .is_leaf = leaf,
        .is_container = true,
        .has_input_gradient = input_needs_gradient_[at(layer)]});
    parents_.push_back(block_container_);
  }
  const std::vector<LayerModule> list = layer_modules(layer);
  for (std::size_t i = 0; i < list.size(); ++i) {
    modules.push_back({.layer = layer,
        .local = static_cast<std::int16_t>(i),
        .is_container = list[i].parameters.empty(),
        .has_input_gradient = is_fed_with_gradient(layer, list[i])});
    const bool nested = block || list[i].parent >= 0;
    parents_.push_back(nested ? module_of(layer, list[i].parent) : container(parent_name(list[i].name)));
  }
  // Parameters of one module have to stand together in `owned`.
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const bool has_module = contains(spec.parameters[i].name, '.');
    if (!leaf && has_module && !is_read_aside(layer)) continue;
    const std::int32_t module = block ? module_of(layer, -1) : 0;
    FORESHARD_CHECK(block || modules[0].owned == 0 ||
                        modules[0].first_owned + modules[0].owned == static_cast<std::int32_t>(owned.size()),
        "parameters of the root in several layers");
    own(module, layer, static_cast<std::int16_t>(i));
    if (!leaf) modules[at(module)].is_container = false;
  }
  for (std::size_t i = 0; !leaf && !is_read_aside(layer) && i < list.size(); ++i) {
    for (const std::int16_t p : list[i].parameters) {
      // PEFT asks for the dtype of lora_A's weight in its linear layer's forward: that one's, too.
      if (list[i].name.ends_with(".lora_A.default")) {
        const std::int16_t outer = list[at(list[i].parent)].parent;
        own(module_of(layer, outer), layer, p);
        modules[at(module_of(layer, outer))].is_container = false;
      }
      own(module_of(layer, static_cast<std::int16_t>(i)), layer, p);
    }
  }
}

// A block like the one before it: the same modules with other parameters.
bool Zero3Script::copy_layer_modules(std::int32_t layer) {
  if (layer == 0 || !repeats_modules(layer, layer - 1)) return false;
  const std::int32_t first = first_module_[at(layer - 1)];
  const auto end = static_cast<std::int32_t>(modules.size());
  const std::int32_t parameters_apart = parameter_of(layer, 0) - parameter_of(layer - 1, 0);
  first_module_.push_back(end);
  for (std::int32_t m = first; m < end; ++m) {
    Zero3Module module = modules[at(m)];
    module.layer = layer;
    const auto begin = at(module.first_owned);
    module.first_owned = static_cast<std::int32_t>(owned.size());
    for (std::size_t i = begin; i < begin + at(module.owned); ++i) {
      const std::int32_t p = owned[i] + parameters_apart;
      owned.push_back(p);
      owner_[at(p)] = m + end - first;
    }
    modules.push_back(module);
    const std::int32_t parent = parent_of(m);
    parents_.push_back(parent < first ? parent : parent + end - first);
  }
  return true;
}

bool Zero3Script::repeats_modules(std::int32_t layer, std::int32_t like) const {
  const LayerInstance& a = model_.order[at(layer)];
  const LayerInstance& b = model_.order[at(like)];
  return a.kind == b.kind && a.same_as < 0 && b.same_as < 0 && is_block(layer) && !spec_of(layer).parameters.empty() &&
         input_needs_gradient_[at(layer)] == input_needs_gradient_[at(like)];
}

bool Zero3Script::is_above(std::int32_t module, std::int32_t parameter) const {
  for (std::int32_t m = owner_[at(parameter)]; m >= 0; m = parent_of(m))
    if (m == module) return true;
  return false;
}

// --- names ---

std::string Zero3Script::name_of_module(std::int32_t module) const {
  const Zero3Module& m = modules[at(module)];
  if (m.layer < 0) {
    const std::string& name = containers_[at(module)];
    return name.empty() ? "root" : name;
  }
  if (m.local < 0) return module_name(model_, m.layer, {});
  const std::vector<LayerModule> list = layer_modules(m.layer);
  return module_name(model_, m.layer, list[at(m.local)]);
}

std::string Zero3Script::name_of_parameter(std::int32_t p) const {
  return parameter_name(model_, parameter(p).layer, parameter(p).index);
}

}
