// Modules are found by what feeds what: attention, the products of experts and the norms are known
// by their kind, and whatever lies between two of them is their module's.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {
namespace {

using Module = MegatronOptions::Module;
using Marks = std::vector<bool>;  // of operations

class Modules {
 public:
  explicit Modules(const LayerSpec& block) : ops_(block.operations), made_by_(block.tensors.size()) {
    for (std::size_t o = 0; o < ops_.size(); ++o)
      for (const std::int16_t t : ops_[o].outputs) made_by_[at(t)] = o + 1;
    attention_ = all_that([](const Operation& op) { return op.kind == OperationKind::kAttention; });
    products_ = all_that([](const Operation& op) { return op.kind == OperationKind::kGemm; });
    experts_ = all_that([](const Operation& op) { return op.groups > 1; });
    mixers_ = either(attention_, all_that([](const Operation& op) { return op.kind == OperationKind::kScan; }));
    norms_ = all_that([](const Operation& op) {
      const bool is_norm = op.function == Function::kRmsNorm || op.function == Function::kLayerNorm;
      return is_norm && op.scan.heads == 0;  // (a mixer's own is within it)
    });
    router_ = all_that([](const Operation& op) { return op.function == Function::kTopK; });
    before_attention_ = before(attention_);
    behind_mixer_ = any(mixers_) ? behind(mixers_) : Marks(ops_.size(), true);
    // Latents are what a product makes of another's result on the way to attention.
    widens_ = both(both(products_, behind(products_)), before_attention_);
  }

  Marks of(Module module) const {
    switch (module) {
      case Module::kCoreAttn: return core_attention();
      case Module::kMoeAct: return without(both(behind(experts_), before(experts_)), experts_);
      case Module::kLayernorm: return layer_norms();
      case Module::kMlaUpProj: return up_projections();
      case Module::kMlp: return is_mixture() ? none() : feed_forward();
      case Module::kMoe: return is_mixture() ? feed_forward() : none();
      case Module::kSharedExperts: return is_mixture() ? shared_experts() : none();
    }
    return none();
  }

 private:
  // With the copies and gathers of what it reads, which TransformerEngine makes.
  Marks core_attention() const {
    Marks marks = attention_;
    for (std::size_t o = ops_.size(); o-- > 0;) {
      if (!marks[o]) continue;
      each_source(o, [&](std::size_t from) {
        const Operation& op = ops_[from];
        if (op.function == Function::kCopy && !op.view && op.inputs.size() == 1) marks[from] = true;
      });
    }
    return marks;
  }
  template <typename Is>
  Marks all_that(const Is& is) const {
    Marks marks(ops_.size());
    std::transform(ops_.begin(), ops_.end(), marks.begin(), is);
    return marks;
  }
  Marks none() const { return Marks(ops_.size()); }
  static bool any(const Marks& marks) { return contains(marks, true); }
  static Marks both(Marks a, const Marks& b) {
    for (std::size_t o = 0; o < a.size(); ++o) a[o] = a[o] && b[o];
    return a;
  }
  static Marks without(Marks a, const Marks& b) {
    for (std::size_t o = 0; o < a.size(); ++o) a[o] = a[o] && !b[o];
    return a;
  }
  static Marks either(Marks a, const Marks& b) {
    for (std::size_t o = 0; o < a.size(); ++o) a[o] = a[o] || b[o];
    return a;
  }
  // Visits the operations that make what the operation reads.
  template <typename Visit>
  void each_source(std::size_t o, const Visit& visit) const {
    for (const std::int16_t t : ops_[o].inputs)
      if (const std::size_t maker = made_by_[at(t)]; maker > 0) visit(maker - 1);
  }
  // Operations that what these make reaches, or that reach these; themselves only by another.
  Marks behind(const Marks& these) const {
    Marks marks = none();
    for (std::size_t o = 0; o < ops_.size(); ++o) {
      each_source(
          o,
          [&](std::size_t from) {
            if (marks[from] || these[from]) marks[o] = true;
          });
    }
    return marks;
  }
  Marks before(const Marks& these) const {
    Marks marks = none();
    for (std::size_t o = ops_.size(); o-- > 0;) {
      if (!marks[o] && !these[o]) continue;
      each_source(o, [&](std::size_t from) { marks[from] = true; });
    }
    return marks;
  }

  bool is_mixture() const { return any(experts_); }
  bool has_latents() const { return any(widens_); }
  // The last norm behind what mixes tokens, if anything does, that products come behind.
  Marks last_norm() const {
    Marks marks = none();
    for (std::size_t o = ops_.size(); o-- > 0;) {
      if (!norms_[o] || !behind_mixer_[o]) continue;
      marks[o] = any(both(behind(only(o)), products_));
      if (marks[o]) break;
    }
    return marks;
  }
  Marks only(std::size_t o) const {
    Marks marks = none();
    marks[o] = true;
    return marks;
  }
  // Others are a part of the linear layer that reads them (TELayerNormColumnParallelLinear).
  Marks layer_norms() const {
    Marks marks = is_mixture() ? last_norm() : none();
    if (!has_latents()) return marks;
    for (std::size_t o = 0; o < ops_.size(); ++o) {
      if (!norms_[o] || !before_attention_[o]) continue;
      marks[o] = !behind(products_)[o];
    }
    return marks;
  }
  // What widens latents, and all from there to attention; of positions, too.
  Marks up_projections() const {
    if (!has_latents()) return none();
    const Marks narrow = without(both(products_, before_attention_), widens_);
    Marks marks = without(both(behind(narrow), before_attention_), norms_);
    // The split of a latent and its norm come before.
    const Marks latents = both(before(both(norms_, before_attention_)), behind(narrow));
    return without(marks, latents);
  }
  // Behind the last norm, with a dense layer's norm, up to what is added to the residual.
  Marks feed_forward() const {
    const Marks norm = last_norm();
    Marks marks = behind(norm);
    if (!is_mixture()) marks = either(std::move(marks), norm);
    for (std::size_t o = ops_.size(); o-- > 0;) {
      if (ops_[o].function != Function::kAdd || !marks[o]) continue;
      marks[o] = false;  // to the residual
      break;
    }
    return marks;
  }
  Marks shared_experts() const {
    const Marks routed = either(either(behind(experts_), experts_), either(before(experts_), before(router_)));
    const Marks all = without(feed_forward(), either(routed, behind(router_)));
    return both(all, either(products_, behind(both(all, products_))));
  }

  const std::vector<Operation>& ops_;
  std::vector<std::size_t> made_by_;  // of tensors, from 1 on
  Marks attention_, mixers_, products_, experts_, norms_, router_, before_attention_, behind_mixer_, widens_;
};

// What a checkpoint returned is there when its module runs again (CheckpointWithoutOutput's is not):
// that makes tensors of its own.
void keep_result(LayerSpec& block, std::size_t o, const Marks& module) {
  const Index made = block.operations[o].outputs.front();
  const auto is_outside = [&](std::size_t other) { return !module[other]; };
  bool is_saved = false;
  for (std::size_t other = o + 1; other < block.operations.size(); ++other)
    is_saved |= is_outside(other) && contains(block.operations[other].saved, made);
  if (!is_saved) return;
  const Index kept = add_tensor(block, block.tensors[at(made)]);
  Operation result;
  result.name = block.operations[o].name + "_result";
  result.function = Function::kCopy;
  result.gradient = GradientRule::kAlias;
  result.view = result.kept_by_selective = true;
  result.part = block.operations[o].part;
  result.inputs = {made};
  for (std::size_t other = o + 1; other < block.operations.size(); ++other) {
    if (!is_outside(other)) continue;
    Operation& op = block.operations[other];
    if (contains(op.released, made)) result.released = {made};
    renumber(op, [&](Index t) { return t == made ? kept : t; });
  }
  result.outputs = {kept};
  block.operations.insert(block.operations.begin() + static_cast<std::ptrdiff_t>(o) + 1, std::move(result));
}

}

void recompute_modules(LayerSpec& block, std::span<const MegatronOptions::Module> modules) {
  const Modules found(block);
  for (Operation& op : block.operations) op.kept_by_selective = true;
  Marks attention(block.operations.size());
  for (const Module module : modules) {
    const Marks marks = found.of(module);
    if (module == Module::kCoreAttn) attention = marks;
    for (std::size_t o = 0; o < marks.size(); ++o)
      if (marks[o]) block.operations[o].kept_by_selective = false;
  }
  // (What the other modules that return theirs make is summed, and nobody saves it.)
  for (std::size_t o = attention.size(); o-- > 0;)
    if (attention[o]) keep_result(block, o, attention);
}

}
