// Two layers fit if what the one hands on and the other reads have equal sizes in two batches that
// tell tokens, positions, samples and images apart.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "models/yaml/model_yaml_layer.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {
namespace {

struct Shape {
  std::int64_t samples, sequence, images;
};
constexpr Shape kShapes[] = {{2, 640, 1}, {3, 1024, 2}};

// Allocations less frees of every slot of the layer, over a whole step.
std::map<std::int32_t, int> balance_of(const LayerProgram& program) {
  std::map<std::int32_t, int> alive;
  const auto visit = [&](const LayerPhaseProgram& phase) {
    for (const std::int32_t action : phase.actions) {
      if (action >= LayerPhaseProgram::kStore) continue;
      alive[(action > 0 ? action : -action) - 1] += action > 0 ? 1 : -1;
    }
  };
  for (const LayerPhaseProgram* phase :
      {&program.forward, &program.recompute, &program.backward, &program.free_ignored_gradients})
    visit(*phase);
  for (const LayerPhaseProgram& phase : program.free_gradients) visit(phase);
  for (const LayerPhaseProgram& phase : program.free_last_gradient) visit(phase);
  return alive;
}

// What is allocated is freed, the layer's input too, and nothing else.
void check_balance(const LayerSpec& layer, const LayerProgram& program) {
  std::map<std::int32_t, int> alive = balance_of(program);
  const auto own = static_cast<std::int32_t>(program.slots.size());
  const int reads = layer.role == LayerRole::kEmbedding ? 0 : 1;
  const int hands_on = layer.role == LayerRole::kLoss ? 0 : 1;
  const int arrives = program.backward.actions.empty() ? 0 : hands_on;
  const int joins = layer.joins >= 0 ? 1 : 0;
  alive[0] += reads;
  alive[1] -= reads;
  alive[own] -= hands_on;
  alive[own + 1] += arrives;
  alive[LayerPhaseProgram::kWaiting] += joins;
  alive[LayerPhaseProgram::kWaiting + 1] -= joins;
  for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
    // The embedding adds a tied head's gradient to its own and lets go of it.
    const std::int32_t slot = program.weight_gradients[p];
    if (layer.role == LayerRole::kHead && layer.parameters[p].tied && slot >= 0) --alive[slot];
  }
  for (const auto& [slot, count] : alive) {
    const std::string name = slot < own ? program.slots[at(slot)].name : "its output";
    FORESHARD_CHECK(count == 0, (count > 0 ? "nothing lets go of " : "there is no ") + name);
  }
}

// What a failed check says, without the words it begins with and the line of ours it ends with
// (fail_check): here it is the user's layer that is wrong.
std::string_view reason_of(const Error& error) {
  constexpr std::string_view kBegins = "internal error: ";
  std::string_view what = error.what();
  if (error.exit_code() != ExitCode::kInternal || !what.starts_with(kBegins)) return what;
  what.remove_prefix(kBegins.size());
  return what.substr(0, what.rfind(" ("));
}

class Checker {
 public:
  Checker(const ModelSpec& model, const ModelPlaces& places) : model_(model), places_(places) {}

  void run() const {
    check_roles();
    check_use_of_kinds();
    check_chains();
    check_tying();
    for (std::size_t k = 0; k < model_.kinds.size(); ++k) check_derivation(k);
    located(places_.root, [&] { model_.parameters(); });
  }

 private:
  const LayerSpec& kind(std::size_t layer) const { return model_.kinds[at(model_.order[layer].kind)]; }
  LayerRole role(std::size_t layer) const { return kind(layer).role; }

  void check_roles() const {
    if (model_.order.size() < 2)
      throw places_.order.error("there are not enough layers", "an embedding and a loss at least");
    const std::size_t last = model_.order.size() - 1;
    if (role(0) != LayerRole::kEmbedding)
      throw places_.layers[0].error("the first layer reads the batch", "role: embedding");
    if (role(last) != LayerRole::kLoss) throw places_.layers[last].error("the last layer makes the loss", "role: loss");
    std::size_t norms = 0, heads = 0;
    for (std::size_t l = 0; l <= last; ++l) {
      const ConfigNode& node = places_.layers[l];
      if (role(l) == LayerRole::kLoss && l != last)
        throw node.error("a loss stands before the last layer", "role: inner");
      // (A head's transform may lie between.)
      const auto leads_to_head = [&](std::size_t norm) {
        const std::size_t next = norm + (role(norm + 1) == LayerRole::kInner ? 2 : 1);
        return next <= last && role(next) == LayerRole::kHead;
      };
      if (role(l) == LayerRole::kFinalNorm && !leads_to_head(l))
        throw node.error("the final norm stands before the head", "role: inner for other norms");
      norms += role(l) == LayerRole::kFinalNorm ? 1 : 0;
      heads += role(l) == LayerRole::kHead ? 1 : 0;
      if (norms > 1 || heads > 1)
        throw node.error("there are two final norms or two heads", "role: inner for the others");
      if (role(l) == LayerRole::kLoss && !kind(l).parameters.empty())
        throw node.error("a loss has no parameters", "a head with them");
    }
  }

  void check_use_of_kinds() const {
    for (std::size_t k = 0; k < model_.kinds.size(); ++k) {
      const bool used =
          std::ranges::any_of(model_.order, [&](const LayerInstance& layer) { return at(layer.kind) == k; });
      if (!used)
        throw places_.kinds[k].error("no layer of the order is of this kind", "an entry of order that names it");
      const Domain& domain = model_.kinds[k].domain;
      if (domain.of_images && model_.image_tokens == 0)
        throw places_.kinds[k].at("domain").error("the model's samples have no images", "image_tokens of the model");
    }
  }

  // Elements of a tensor of the layer.
  static std::int64_t count(const LayerSpec& layer, std::int16_t tensor, const Shape& shape) {
    Domain domain = layer.domain;
    domain.images = shape.images;
    TensorSpec spec = layer.tensors[at(tensor)];
    if (spec.per_image > 0) spec.per_sequence = checked_multiply(spec.per_image, shape.images);
    return elements(spec, domain.sequences(shape.samples), domain.length(shape.sequence));
  }

  void check_fit(std::size_t from, std::size_t to, std::int16_t tensor) const {
    const LayerSpec& writer = kind(from);
    const LayerSpec& reader = kind(to);
    const ConfigNode& node = places_.layers[to];
    located(
        node,
        [&] {
          for (Shape shape : kShapes) {
            if (model_.fixed_sequence > 0) shape.sequence = model_.fixed_sequence;
            const std::int64_t written = count(writer, writer.output, shape);
            const std::int64_t read = count(reader, tensor, shape);
            if (written == read) continue;
            throw node.error(fmt::format("{} reads {} elements where {} hands on {} ({} samples of {} positions, "
                                         "{} images each)",
                                 quote(model_.order[to].name), read, quote(model_.order[from].name), written,
                                 shape.samples, shape.sequence, shape.images),
                "tensors of equal size");
          }
        });
    const auto type = [](const LayerSpec& layer, std::int16_t t) { return layer.tensors[at(t)].type; };
    if (type(writer, writer.output) == type(reader, tensor)) return;
    throw node.error(fmt::format("{} reads {} where {} hands on {}", quote(model_.order[to].name),
                         word_in(kTypeWords, type(reader, tensor)), quote(model_.order[from].name),
                         word_in(kTypeWords, type(writer, writer.output))),
        "tensors of one type");
  }

  void check_chains() const {
    std::vector<std::size_t> open;  // embeddings that began a chain
    for (std::size_t l = 1; l < model_.order.size(); ++l) {
      const LayerSpec& layer = kind(l);
      if (layer.role == LayerRole::kEmbedding) {
        open.push_back(l);
        continue;
      }
      check_fit(l - 1, l, 0);
      if (layer.joins < 0) continue;
      if (open.empty()) {
        throw places_.layers[l].error(
            "no layer's output waits to be joined", "an embedding above, which begins a chain");
      }
      check_fit(open.back() - 1, l, layer.joins);
      open.pop_back();
    }
    if (open.empty()) return;
    throw places_.layers[open.back()].error(
        fmt::format("{} begins a chain, and no layer joins it with {}", quote(model_.order[open.back()].name),
            quote(model_.order[open.back() - 1].name)),
        "a later layer with joins");
  }

  // Of a weight that an earlier operation has.
  void check_again(std::size_t k, const ParameterSpec& again) const {
    for (const LayerSpec& layer : model_.kinds) {
      for (const ParameterSpec& other : layer.parameters)
        if (!other.tied && other.shape == again.shape) return;
    }
    throw places_.kinds[k].error(
        fmt::format("{} is no other parameter again", quote(again.name)), "one of its shape that is not tied");
  }

  void check_tying() const {
    const ParameterSpec* table = nullptr;
    for (std::size_t l = 0; l < model_.order.size(); ++l) {
      const LayerSpec& layer = kind(l);
      if (layer.role != LayerRole::kEmbedding || layer.tower) continue;
      if (!layer.parameters.empty() && table == nullptr) table = &layer.parameters.front();
    }
    bool ties = false;
    for (std::size_t k = 0; k < model_.kinds.size(); ++k) {
      const LayerSpec& layer = model_.kinds[k];
      for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
        if (!layer.parameters[p].tied) continue;
        if (layer.role != LayerRole::kHead) {
          check_again(k, layer.parameters[p]);
          continue;
        }
        const bool fits =
            layer.role == LayerRole::kHead && p == 0 && table != nullptr && table->shape == layer.parameters[p].shape;
        if (!fits || !model_.tied_embeddings) {
          throw places_.kinds[k].error(fmt::format("{} is tied to no table", quote(layer.parameters[p].name)),
              "the head's first parameter, of the shape of the embedding's first, and tied_embeddings: true");
        }
        ties = true;
      }
    }
    if (ties == model_.tied_embeddings) return;
    throw places_.root.at("tied_embeddings").error("the head has no tied parameter", "tied: true there, or false here");
  }

  // Autograd's walk over the layer, as trained and as checkpointed.
  void check_derivation(std::size_t k) const {
    const LayerSpec& layer = model_.kinds[k];
    const ConfigNode& node = places_.kinds[k];
    const std::int64_t sequence = model_.fixed_sequence > 0 ? model_.fixed_sequence : 64;
    for (const Recompute mode : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
      if (mode != Recompute::kNone && layer.role != LayerRole::kBlock) continue;
      ProgramOptions options;
      options.batch = layer.domain.sequences(1);
      options.sequence = layer.domain.length(sequence);
      options.recompute = mode;
      try {
        const LayerProgram program = build_layer_program(layer, options);
        check_balance(layer, program);
        const bool differentiates = layer.role != LayerRole::kEmbedding || layer.has_trainable();
        FORESHARD_CHECK(
            !differentiates || !program.backward.actions.empty(), "no gradient arrives at anything it could go to");
        for (std::size_t p = 0; p < layer.parameters.size() && !layer.unread; ++p) {
          FORESHARD_CHECK(program.weight_gradients[p] >= 0 || !layer.parameters[p].trainable,
              "no gradient arrives at " + layer.parameters[p].name);
        }
      } catch (const Error& error) {
        throw node.error(fmt::format("the layer cannot be differentiated: {}", reason_of(error)),
            "operations that lead from its input to its output");
      }
    }
  }

  const ModelSpec& model_;
  const ModelPlaces& places_;
};

}

void check_model(const ModelSpec& model, const ModelPlaces& places) { Checker(model, places).run(); }

}
