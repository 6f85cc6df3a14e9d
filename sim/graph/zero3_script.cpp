// Parameters are numbered and modules named layer by layer; then the places are written in the
// order in which one forward and one backward meet them.
//
// A module is entered in backward when the gradient of its output is there and left when that of
// its input is; where no input has one (token ids, a frozen front), it is never left. With
// activation checkpointing the recomputation starts inside the first node that unpacks a saved
// tensor: after the block and its last modules were entered.
#include "sim/graph/zero3_script.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {
namespace {

using Kind = Zero3Place::Kind;

std::string parent_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace

Zero3Script::Zero3Script(const StepBuilder& builder, const ModelSpec& model, const Plan& plan)
    : builder_(builder), model_(model), plan_(plan) {
  add_parameters();
  add_modules();
  write_forward();
  write_backward();
}

bool Zero3Script::is_block(std::int32_t layer) const {
  return spec_of(layer).role == LayerRole::kBlock;
}

// --- parameters and modules ---

void Zero3Script::add_parameters() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  std::int64_t persistent = 0;
  std::int32_t token_table = -1;
  bool trained_before = false;
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerSpec& spec = spec_of(l);
    const std::int32_t same = model_.order[static_cast<std::size_t>(l)].same_as;
    input_needs_gradient_.push_back(trained_before);
    if (same >= 0) {
      first_slot_.push_back(first_slot_[static_cast<std::size_t>(same)]);
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
      p.partition = (p.numel + plan_.mesh.shard - 1) / plan_.mesh.shard;
      p.layer = l;
      p.index = static_cast<std::int16_t>(i);
      p.trained = builder_.is_trained(l, spec.parameters[i]);
      p.in_leaf = plan_.zero.leaf_blocks && spec.role == LayerRole::kBlock;
      p.persists = p.numel <= plan_.zero.stage3_param_persistence_threshold &&
                   p.numel <= plan_.zero.stage3_model_persistence_threshold - persistent;
      if (p.persists) persistent += p.numel;
      trained_before |= p.trained;
    }
  }
}

std::int32_t Zero3Script::container(const std::string& name) {
  const auto known = std::find(containers_.begin(), containers_.end(), name);
  if (known != containers_.end()) return static_cast<std::int32_t>(known - containers_.begin());
  const std::int32_t parent = name.empty() ? -1 : container(parent_name(name));
  containers_.push_back(name);
  parents_.push_back(parent);
  Zero3Module& module = modules.emplace_back();
  module.is_container = true;
  return static_cast<std::int32_t>(modules.size()) - 1;
}

// All containers come first, so that the modules of a layer have consecutive numbers.
void Zero3Script::add_modules() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  container("");
  std::vector<bool> has_first(1, false);
  for (std::int32_t l = 0; l < layers; ++l) {
    std::vector<std::int32_t> inside;
    if (is_block(l)) {
      inside.push_back(block_container_ = container(parent_name(model_.block_prefix)));
    } else {
      for (const LayerModule& module : modules_of(spec_of(l))) {
        inside.push_back(container(parent_name(module.name)));
      }
    }
    has_first.resize(containers_.size(), false);
    for (std::int32_t c : inside) {
      for (; c >= 0; c = parents_[static_cast<std::size_t>(c)]) {
        const auto at = static_cast<std::size_t>(c);
        if (!has_first[at])
          modules[at].has_input_gradient = input_needs_gradient_[static_cast<std::size_t>(l)];
        has_first[at] = true;
      }
    }
  }
  owner_.assign(parameters.size(), -1);
  for (std::int32_t l = 0; l < layers; ++l) add_layer_modules(l);
  numel_below_.assign(modules.size(), 0);
  for (std::int32_t p = 0; p < parameter_count(); ++p) {
    for (std::int32_t m = owner_[static_cast<std::size_t>(p)]; m >= 0; m = parent_of(m)) {
      numel_below_[static_cast<std::size_t>(m)] += parameter(p).numel;
    }
  }
}

void Zero3Script::own(std::int32_t module, std::int32_t layer, std::int16_t index) {
  Zero3Module& m = modules[static_cast<std::size_t>(module)];
  const std::int32_t p = parameter_of(layer, index);
  if (m.owned == 0) m.first_owned = static_cast<std::int32_t>(owned.size());
  owned.push_back(p);
  ++m.owned;
  if (owner_[static_cast<std::size_t>(p)] < 0) owner_[static_cast<std::size_t>(p)] = module;
}

// Whether what the module reads has a gradient: token ids and pixels have none.
bool Zero3Script::is_fed_with_gradient(std::int32_t layer, const LayerModule& module) const {
  if (module.parameters.empty() || input_needs_gradient_[static_cast<std::size_t>(layer)]) {
    return true;
  }
  for (const Operation& op : spec_of(layer).operations) {
    if (op.parameters.empty() || op.parameters.front() != module.parameters.front()) continue;
    const bool reads_input = std::find(op.inputs.begin(), op.inputs.end(), 0) != op.inputs.end();
    return op.kind != OperationKind::kEmbedding && !reads_input;
  }
  return true;
}

void Zero3Script::add_layer_modules(std::int32_t layer) {
  const std::int32_t same = model_.order[static_cast<std::size_t>(layer)].same_as;
  if (same >= 0) {
    first_module_.push_back(first_module_[static_cast<std::size_t>(same)]);
    return;
  }
  const LayerSpec& spec = spec_of(layer);
  const bool block = is_block(layer);
  const bool leaf = block && plan_.zero.leaf_blocks;
  first_module_.push_back(static_cast<std::int32_t>(modules.size()) - (block ? 0 : 1));
  if (block) {
    Zero3Module& module = modules.emplace_back();
    module.layer = layer;
    module.is_leaf = leaf;
    module.is_container = true;
    module.has_input_gradient = input_needs_gradient_[static_cast<std::size_t>(layer)];
    parents_.push_back(block_container_);
  }
  const std::vector<LayerModule> list = modules_of(spec);
  for (std::size_t i = 0; i < list.size(); ++i) {
    Zero3Module& module = modules.emplace_back();
    module.layer = layer;
    module.local = static_cast<std::int16_t>(i);
    module.is_container = list[i].parameters.empty();
    module.has_input_gradient = is_fed_with_gradient(layer, list[i]);
    parents_.push_back(block ? module_of(layer, list[i].parent)
                             : container(parent_name(list[i].name)));
  }
  // Parameters of one module have to stand together in `owned`.
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const bool has_module = spec.parameters[i].name.find('.') != std::string::npos;
    if (!leaf && has_module) continue;
    const std::int32_t module = block ? module_of(layer, -1) : 0;
    FORESHARD_CHECK(
        block || modules[0].owned == 0 ||
            modules[0].first_owned + modules[0].owned == static_cast<std::int32_t>(owned.size()),
        "parameters of the root in several layers");
    own(module, layer, static_cast<std::int16_t>(i));
    if (!leaf) modules[static_cast<std::size_t>(module)].is_container = false;
  }
  for (std::size_t i = 0; !leaf && i < list.size(); ++i) {
    for (const std::int16_t p : list[i].parameters) {
      own(module_of(layer, static_cast<std::int16_t>(i)), layer, p);
    }
  }
}

bool Zero3Script::is_above(std::int32_t module, std::int32_t parameter) const {
  for (std::int32_t m = owner_[static_cast<std::size_t>(parameter)]; m >= 0; m = parent_of(m)) {
    if (m == module) return true;
  }
  return false;
}

// --- places ---

void Zero3Script::go_to(std::vector<Zero3Place>& places, EventKind phase, std::int32_t target) {
  std::vector<std::int32_t> path;  // from the target up
  for (std::int32_t c = target; c >= 0; c = parent_of(c)) path.push_back(c);
  while (current_ >= 0 && std::find(path.begin(), path.end(), current_) == path.end()) {
    if (phase == EventKind::kForward ||
        modules[static_cast<std::size_t>(current_)].has_input_gradient) {
      places.push_back({Kind::kExit, phase, 0, -1, current_});
    }
    current_ = parent_of(current_);
  }
  auto next = std::find(path.begin(), path.end(), current_);
  while (next != path.begin()) {
    current_ = *--next;
    places.push_back({Kind::kEnter, phase, 0, -1, current_});
  }
}

void Zero3Script::write_hook(std::vector<Zero3Place>& places, EventKind phase, std::int32_t layer,
                             const LayerHook& hook) {
  if (hook.kind == LayerHook::Kind::kGradient) {
    const std::int32_t p = parameter_of(layer, hook.index);
    places.push_back({Kind::kGradient, phase, hook.segment, layer, p});
    return;
  }
  const std::int32_t module = module_of(layer, hook.index);
  if (is_block(layer) && plan_.zero.leaf_blocks) return;
  if (hook.kind == LayerHook::Kind::kEnter) {
    if (!is_block(layer)) go_to(places, phase, parent_of(module));
    places.push_back({Kind::kEnter, phase, hook.segment, layer, module});
    return;
  }
  const bool leaves =
      phase != EventKind::kBackward || modules[static_cast<std::size_t>(module)].has_input_gradient;
  if (leaves) places.push_back({Kind::kExit, phase, hook.segment, layer, module});
}

// Forward or recomputation. What recomputes stops before the block ends.
void Zero3Script::write_phase(std::vector<Zero3Place>& places, EventKind phase,
                              std::int32_t layer) {
  const LayerPhaseProgram& program = builder_.phase(phase, layer);
  const bool block = is_block(layer);
  if (block) places.push_back({Kind::kEnter, phase, 0, layer, module_of(layer, -1)});
  for (const LayerHook& hook : program.hooks) write_hook(places, phase, layer, hook);
  const auto end = static_cast<std::uint16_t>(program.segments.size());
  places.push_back({Kind::kPhaseEnd, phase, end, layer, -1});
  if (block && phase == EventKind::kForward) {
    places.push_back({Kind::kExit, phase, end, layer, module_of(layer, -1)});
  }
}

bool Zero3Script::repeats(std::int32_t layer, std::int32_t like) const {
  if (like < 0 || !is_block(layer) || !is_block(like)) return false;
  const LayerInstance& a = model_.order[static_cast<std::size_t>(layer)];
  const LayerInstance& b = model_.order[static_cast<std::size_t>(like)];
  return a.kind == b.kind && a.same_as < 0 && b.same_as < 0 &&
         &builder_.phase(EventKind::kForward, layer) ==
             &builder_.phase(EventKind::kForward, like) &&
         input_needs_gradient_[static_cast<std::size_t>(layer)] ==
             input_needs_gradient_[static_cast<std::size_t>(like)];
}

// The places of `like`, which are the last ones, once more for `layer`.
void Zero3Script::copy_places(std::vector<Zero3Place>& places, std::size_t begin,
                              std::int32_t layer, std::int32_t like) {
  const std::int32_t modules_apart = module_of(layer, -1) - module_of(like, -1);
  const std::int32_t parameters_apart =
      spec_of(layer).parameters.empty() ? 0 : parameter_of(layer, 0) - parameter_of(like, 0);
  const std::size_t end = places.size();
  places.resize(end + (end - begin));
  for (std::size_t i = begin; i < end; ++i) {
    Zero3Place place = places[i];
    place.layer = layer;
    if (place.id >= 0) place.id += place.kind == Kind::kGradient ? parameters_apart : modules_apart;
    places[end + i - begin] = place;
  }
}

void Zero3Script::write_forward() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  std::int32_t like = -1;
  std::size_t begin = 0;
  std::size_t expected = 64;
  for (const LayerSpec& kind : model_.kinds) expected += kind.parameters.size() * 4;
  forward.reserve(expected * model_.order.size());
  backward.reserve(expected * model_.order.size());
  go_to(forward, EventKind::kForward, 0);
  for (std::int32_t l = 0; l < layers; ++l) {
    if (spec_of(l).role == LayerRole::kLoss) continue;
    if (is_block(l)) go_to(forward, EventKind::kForward, block_container_);
    const std::size_t start = forward.size();
    if (repeats(l, like)) {
      copy_places(forward, begin, l, like);
    } else {
      write_phase(forward, EventKind::kForward, l);
    }
    like = l;
    begin = start;
  }
  go_to(forward, EventKind::kForward, -1);
  if (spec_of(layers - 1).role == LayerRole::kLoss) {
    forward.push_back({Kind::kLoss, EventKind::kForward, 0, layers - 1, -1});
  }
}

void Zero3Script::write_backward_layer(std::int32_t layer) {
  const LayerPhaseProgram& program = builder_.phase(EventKind::kBackward, layer);
  if (program.segments.empty()) return;  // nothing before it is trained
  const bool block = is_block(layer);
  const bool recomputes = builder_.recompute_of(layer) != Recompute::kNone;
  constexpr EventKind kPhase = EventKind::kBackward;
  if (block) {
    backward.push_back({Kind::kEnter, kPhase, 0, layer, module_of(layer, -1)});
  }
  const std::size_t begin = backward.size();
  std::size_t h = 0;
  while (recomputes && h < program.hooks.size() && program.hooks[h].segment == 0 &&
         program.hooks[h].kind == LayerHook::Kind::kEnter) {
    write_hook(backward, kPhase, layer, program.hooks[h++]);
  }
  if (recomputes) write_phase(backward, EventKind::kRecompute, layer);
  for (; h < program.hooks.size(); ++h) write_hook(backward, kPhase, layer, program.hooks[h]);
  sort_gradients(begin);
  const auto end = static_cast<std::uint16_t>(program.segments.size());
  backward.push_back({Kind::kPhaseEnd, kPhase, end, layer, -1});
  if (!block) return;
  const std::int32_t module = module_of(layer, -1);
  if (modules[static_cast<std::size_t>(module)].is_leaf) {
    backward.push_back({Kind::kLeafGradients, kPhase, end, layer, module});
  }
  if (modules[static_cast<std::size_t>(module)].has_input_gradient) {
    backward.push_back({Kind::kExit, kPhase, end, layer, module});
  }
}

// DeepSpeed replaces F.linear by a function of its own (memory_efficient_linear,
// deepspeed/runtime/zero/linear.py), which returns the weight's gradient before the bias'. Both
// wait for the later segment. A matrix that is stored [in, out] does not go through F.linear.
void Zero3Script::sort_gradients(std::size_t begin) {
  for (std::size_t i = begin + 1; i < backward.size(); ++i) {
    Zero3Place& first = backward[i - 1];
    Zero3Place& second = backward[i];
    if (first.kind != Kind::kGradient || second.kind != Kind::kGradient) continue;
    if (first.id != second.id + 1 ||
        owner_[static_cast<std::size_t>(first.id)] != owner_[static_cast<std::size_t>(second.id)]) {
      continue;
    }
    const std::int16_t weight = parameter(second.id).index;
    const auto& operations = spec_of(second.layer).operations;
    const bool transposed =
        std::any_of(operations.begin(), operations.end(), [&](const Operation& op) {
          return op.transposed_weight && !op.parameters.empty() && op.parameters.front() == weight;
        });
    if (transposed) continue;
    first.segment = second.segment;
    std::swap(first.id, second.id);
  }
}

void Zero3Script::write_backward() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  std::int32_t like = -1;
  std::size_t begin = 0;
  current_ = -1;
  go_to(backward, EventKind::kBackward, 0);
  for (std::int32_t l = layers; l-- > 0;) {
    if (spec_of(l).role == LayerRole::kLoss) continue;
    if (is_block(l)) go_to(backward, EventKind::kBackward, block_container_);
    const std::size_t start = backward.size();
    const bool copies = repeats(l, like) && builder_.recompute_of(l) == builder_.recompute_of(like);
    if (copies) {
      copy_places(backward, begin, l, like);
    } else {
      write_backward_layer(l);
    }
    like = l;
    begin = start;
  }
  go_to(backward, EventKind::kBackward, -1);
  for (std::size_t i = backward.size(); i-- > 0 && last_gradient < 0;) {
    const Kind kind = backward[i].kind;
    const bool reduces = (kind == Kind::kGradient && !parameter(backward[i].id).in_leaf) ||
                         kind == Kind::kLeafGradients;
    if (reduces) last_gradient = static_cast<std::int32_t>(i);
  }
}

// --- names ---

std::string Zero3Script::name_of_module(std::int32_t module) const {
  const Zero3Module& m = modules[static_cast<std::size_t>(module)];
  if (m.layer < 0) {
    const std::string& name = containers_[static_cast<std::size_t>(module)];
    return name.empty() ? "root" : name;
  }
  if (m.local < 0) return module_name(model_, m.layer, {});
  const std::vector<LayerModule> list = modules_of(spec_of(m.layer));
  return module_name(model_, m.layer, list[static_cast<std::size_t>(m.local)]);
}

std::string Zero3Script::name_of_parameter(std::int32_t p) const {
  return parameter_name(model_, parameter(p).layer, parameter(p).index);
}

}  // namespace foreshard
