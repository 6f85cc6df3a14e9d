// The places of one forward and one backward, in the order in which they are met.
//
// A module is entered in backward when the gradient of its output is there and left when that of its input is; where no
// input has one (token ids, a frozen front), it is never left. With activation checkpointing the recomputation starts
// inside the first node that unpacks a saved tensor: after the block and its last modules were entered.
#include <algorithm>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/zero/zero3_script.h"

namespace foreshard {
namespace {

using PlaceKind = Zero3Place::Kind;

}

void Zero3Script::go_to(std::vector<Zero3Place>& places, EventKind phase, std::int32_t target) {
  std::vector<std::int32_t> path;  // from the target up
  for (std::int32_t c = target; c >= 0; c = parent_of(c)) path.push_back(c);
  while (current_ >= 0 && !contains(path, current_)) {
    if (phase == EventKind::kForward || modules[at(current_)].has_input_gradient)
      places.push_back({PlaceKind::kExit, phase, 0, -1, current_});
    current_ = parent_of(current_);
  }
  auto next = std::ranges::find(path, current_);
  while (next != path.begin()) {
    current_ = *--next;
    places.push_back({PlaceKind::kEnter, phase, 0, -1, current_});
  }
}

void Zero3Script::write_hook(
    std::vector<Zero3Place>& places, EventKind phase, std::int32_t layer, const LayerHook& hook) {
  if (hook.kind == LayerHook::Kind::kGradient) {
    const std::int32_t p = parameter_of(layer, hook.index);
    places.push_back({PlaceKind::kGradient, phase, hook.segment, layer, p});
    return;
  }
  if (is_read_aside(layer)) return;
  const std::int32_t module = module_of(layer, hook.index);
  if (is_block(layer) && plan_->zero.leaf_blocks) return;
  if (hook.kind == LayerHook::Kind::kEnter) {
    if (!is_block(layer) && modules[at(parent_of(module))].local < 0) go_to(places, phase, parent_of(module));
    places.push_back({PlaceKind::kEnter, phase, hook.segment, layer, module});
    return;
  }
  const bool leaves = phase != EventKind::kBackward || modules[at(module)].has_input_gradient;
  if (leaves) places.push_back({PlaceKind::kExit, phase, hook.segment, layer, module});
}

// Forward or recomputation. What recomputes stops before the block ends.
void Zero3Script::write_phase(std::vector<Zero3Place>& places, EventKind phase, std::int32_t layer) {
  const LayerPhaseProgram& program = builder_->phase(phase, layer);
  const bool block = is_block(layer);
  if (block) places.push_back({PlaceKind::kEnter, phase, 0, layer, module_of(layer, -1)});
  for (const LayerHook& hook : program.hooks) write_hook(places, phase, layer, hook);
  const auto end = static_cast<std::uint16_t>(program.segments.size());
  places.push_back({PlaceKind::kPhaseEnd, phase, end, layer, -1});
  if (block && phase == EventKind::kForward)
    places.push_back({PlaceKind::kExit, phase, end, layer, module_of(layer, -1)});
}

bool Zero3Script::repeats(std::int32_t layer, std::int32_t like) const {
  return like >= 0 && repeats_modules(layer, like) &&
         &builder_->phase(EventKind::kForward, layer) == &builder_->phase(EventKind::kForward, like);
}

// The places of `like`, which are the last ones, once more for `layer`.
void Zero3Script::copy_places(
    std::vector<Zero3Place>& places, std::size_t begin, std::int32_t layer, std::int32_t like) {
  const std::int32_t modules_apart = module_of(layer, -1) - module_of(like, -1);
  const std::int32_t parameters_apart =
      spec_of(layer).parameters.empty() ? 0 : parameter_of(layer, 0) - parameter_of(like, 0);
  const std::size_t end = places.size();
  places.resize(end + (end - begin));
  for (std::size_t i = begin; i < end; ++i) {
    Zero3Place place = places[i];
    place.layer = layer;
    if (place.id >= 0) place.id += place.kind == PlaceKind::kGradient ? parameters_apart : modules_apart;
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
    if (repeats(l, like)) copy_places(forward, begin, l, like);
    else write_phase(forward, EventKind::kForward, l);
    like = l;
    begin = start;
  }
  go_to(forward, EventKind::kForward, -1);
  if (spec_of(layers - 1).role == LayerRole::kLoss)
    forward.push_back({PlaceKind::kLoss, EventKind::kForward, 0, layers - 1, -1});
}

std::vector<Zero3Place> Zero3Script::base() const {
  std::vector<Zero3Place> places = forward;
  std::vector<LayerModule> list;
  std::int32_t layer = -1;  // whose they are
  std::erase_if(places, [&](const Zero3Place& place) {
    const Zero3Module& m = modules[at(std::max(place.id, 0))];
    if (place.id < 0 || m.local < 0) return false;
    if (std::exchange(layer, m.layer) != m.layer) list = layer_modules(layer);
    return contains(list[at(m.local)].name, ".lora_");
  });
  return places;
}

void Zero3Script::write_backward_layer(std::int32_t layer) {
  const LayerPhaseProgram& program = builder_->phase(EventKind::kBackward, layer);
  if (program.segments.empty()) {  // nothing before it is trained
    // Checkpoints of adapters want a gradient of the embedding's output (enable_input_require_grads).
    if (spec_of(layer).role == LayerRole::kEmbedding && plan_->lora.rank > 0 &&
        plan_->recompute.value != Recompute::kNone) {
      const std::int32_t module = module_of(layer, 0);
      go_to(backward, EventKind::kBackward, parent_of(module));
      backward.push_back({PlaceKind::kEnter, EventKind::kBackward, 0, -1, module});
    }
    return;
  }
  const bool block = is_block(layer);
  const bool recomputes = builder_->recompute_of(layer) != Recompute::kNone;
  constexpr EventKind kPhase = EventKind::kBackward;
  if (block) backward.push_back({PlaceKind::kEnter, kPhase, 0, layer, module_of(layer, -1)});
  const std::size_t begin = backward.size();
  std::size_t h = 0;
  // (A reentrant checkpoint runs its forward first.)
  while (recomputes && !plan_->recompute_reentrant && h < program.hooks.size() && program.hooks[h].segment == 0 &&
         program.hooks[h].kind == LayerHook::Kind::kEnter)
    write_hook(backward, kPhase, layer, program.hooks[h++]);
  if (recomputes) write_phase(backward, EventKind::kRecompute, layer);
  for (; h < program.hooks.size(); ++h) write_hook(backward, kPhase, layer, program.hooks[h]);
  sort_gradients(begin);
  const auto end = static_cast<std::uint16_t>(program.segments.size());
  backward.push_back({PlaceKind::kPhaseEnd, kPhase, end, layer, -1});
  if (!block) return;
  const std::int32_t module = module_of(layer, -1);
  if (modules[at(module)].is_leaf) backward.push_back({PlaceKind::kLeafGradients, kPhase, end, layer, module});
  if (modules[at(module)].has_input_gradient) backward.push_back({PlaceKind::kExit, kPhase, end, layer, module});
}

// DeepSpeed replaces F.linear by a function of its own (memory_efficient_linear,
// deepspeed/runtime/zero/linear.py), which returns the weight's gradient before the bias'. Both
// wait for the later segment. A matrix that is stored [in, out] does not go through F.linear.
void Zero3Script::sort_gradients(std::size_t begin) {
  for (std::size_t i = begin + 1; i < backward.size(); ++i) {
    Zero3Place& first = backward[i - 1];
    Zero3Place& second = backward[i];
    if (first.kind != PlaceKind::kGradient || second.kind != PlaceKind::kGradient) continue;
    const std::int16_t bias = parameter(first.id).index;
    const std::int16_t weight = parameter(second.id).index;
    const auto& operations = spec_of(second.layer).operations;
    const bool is_linear = std::ranges::any_of(operations, [&](const Operation& op) {
      return op.kind == OperationKind::kGemm && !op.transposed_weight && op.parameters.size() == 2 &&
             op.parameters.front() == weight && op.parameters.back() == bias;
    });
    if (!is_linear) continue;
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
    const bool copies = repeats(l, like) && builder_->recompute_of(l) == builder_->recompute_of(like);
    if (copies) copy_places(backward, begin, l, like);
    else write_backward_layer(l);
    like = l;
    begin = start;
  }
  go_to(backward, EventKind::kBackward, -1);
  for (std::size_t i = backward.size(); i-- > 0 && last_gradient < 0;) {
    const PlaceKind kind = backward[i].kind;
    const bool reduces =
        (kind == PlaceKind::kGradient && !parameter(backward[i].id).in_leaf) || kind == PlaceKind::kLeafGradients;
    if (reduces) last_gradient = static_cast<std::int32_t>(i);
  }
}

}
