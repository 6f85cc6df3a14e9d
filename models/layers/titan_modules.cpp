#include "models/layers/titan_modules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/base/units.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// What the experts made goes back into the order of the tokens, k rows each, and these are added up, weighed
// by a batched product where scores come last (MoE.forward).
void combine_in_token_order(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  const auto named = [&](std::string_view name) { return std::ranges::find(ops, name, &Operation::name); };
  const auto tensor = [&](std::string_view name) {
    const auto found = std::ranges::find(layer.tensors, name, &TensorSpec::name);
    return static_cast<Index>(found - layer.tensors.begin());
  };
  if (named("scatter_add") == ops.end()) return;
  std::vector<Operation> combined;
  LayerWriter out(layer, combined);
  Operation last = *named("scatter_add");
  const Index narrow = last.inputs.back(), order = tensor("order"), made = tensor("expert_output");
  const std::int64_t rows = out.width(made), hidden = out.width(last.outputs.front());
  const Index unsorted = out.activation("rows in order", rows);
  const Index sum = out.activation("rows summed", hidden);
  // Into zeros that are there before the rows are waited for.
  const Index zeros = out.activation("zeros of rows", rows);
  out.constant("zeros_of_rows", Function::kCopy, {}, {zeros});
  out.pass("unsort", Function::kGather, {zeros, made}, {unsorted}).in_place = true;
  out.last().saved = {order};
  if (narrow == made) {  // scores came first
    out.pass("sum_rows", Function::kAdd, {unsorted}, {sum});
    // Of one row a token the gradient is a view; of more it is copied for each.
    if (rows == hidden) out.last().gradient = GradientRule::kAlias;
  } else {
    const Index scores = named("index_scores")->inputs.front();
    const Index wide = out.activation("rows in order fp32", rows, ElementType::kFp32);
    const Index product = out.activation("rows weighed fp32", hidden, ElementType::kFp32);
    out.pass("rows_to_fp32", Function::kCast, {unsorted}, {wide});
    out.pass("weigh_rows", Function::kMultiply, {wide, scores}, {product}).saved = {scores, wide};
    out.release({wide});
    out.pass("weighed_cast", Function::kCast, {product}, {sum}).released = {product};
    for (const char* name : {"expert_output_to_fp32", "weigh_rows", "weighed_rows_cast"}) ops.erase(named(name));
  }
  for (Operation& op : ops) std::erase(op.released, order);
  last.released.push_back(order);
  // What the rows are gathered by is a temporary.
  std::erase(last.released, tensor("token_of_row"));
  std::erase(last.inputs, narrow);
  std::erase_if(last.inputs, [&](Index t) { return t == tensor("token_of_row"); });
  last.inputs.push_back(sum);
  last.gradient = GradientRule::kAlias;
  last.saved.clear();
  std::ranges::replace(last.released, narrow, unsorted);
  last.released.push_back(made);
  last.released.push_back(sum);
  // Without shared experts there is nothing to add to.
  if (named("zeros_like") != ops.end()) {
    std::erase(last.released, tensor("zeros"));
    ops.erase(named("zeros_like"));
    last.inputs = {sum};
    last.view = true;
  }
  const auto place = named("scatter_add");
  *place = std::move(last);
  ops.insert(place, combined.begin(), combined.end());
}

// Experts are chosen with a bias of each, which the trainer moves, and what was chosen is scaled, if by 1, whatever the
// model's own router does (TokenChoiceTopKRouter.forward; load_balance_coeff is 1e-3 unless told otherwise).
class BiasedRouter : LayerWriter {
 public:
  // (Qwen 3's optimizer moves none: models/qwen3/__init__.py.)
  BiasedRouter(LayerSpec& layer, bool is_moved) : LayerWriter(layer), correct_(is_moved ? "correct" : "add_bias") {}

  void run() {
    for (Operation& op : std::exchange(operations_, {})) {
      part_ = op.part;
      if (op.name == "topk" && spec_of(op.inputs.front()).name == "router_scores") choose(op);
      else if (op.name == "histc" && !is_scaled_) scale(), operations_.push_back(std::move(op));
      else operations_.push_back(std::move(op));
      Operation& made = last();
      is_scaled_ |= made.name == "scale_scores";
      if (made.name == "gather_scores" || made.name == "normalize") chosen_ = made.outputs.front();
      if (scaled_ == 0 || made.outputs.front() == scaled_) continue;
      for (Indices* list : {&made.inputs, &made.saved, &made.released}) std::ranges::replace(*list, chosen_, scaled_);
    }
  }

 private:
  void choose(const Operation& op) {
    const Index scores = op.inputs.front(), chosen = op.outputs.front(), expert = op.outputs.back();
    const Index corrected = activation("corrected_scores", width(scores), ElementType::kFp32);
    constant(correct_, Function::kAdd, {scores}, {corrected});
    const Index best = activation("best", width(chosen), ElementType::kFp32);
    constant("topk", Function::kTopK, {corrected}, {best, expert}).released = {best, corrected};
    pass("gather_scores", Function::kGather, {scores, expert}, {chosen}).saved = {expert};
    release(op.released);
  }

  void scale() {
    scaled_ = activation("scaled_scores", width(chosen_), ElementType::kFp32);
    Operation& before = last();
    Operation op{.name = "scale_scores", .function = Function::kScale, .inputs = {chosen_}, .outputs = {scaled_}};
    op.part = part_;
    op.released = {chosen_};
    for (const Index t : Indices(before.released)) {
      if (spec_of(t).name != "router_scores") continue;
      std::erase(before.released, t);
      op.released.push_back(t);
    }
    operations_.push_back(std::move(op));
    is_scaled_ = true;
  }

  const char* correct_;
  Index chosen_ = 0, scaled_ = 0;
  bool is_scaled_ = false;
};

// Llama 4: gate and up are a tensor each, and rows are weighed before they are multiplied (score_before_experts).
class PartedExperts : LayerWriter {
 public:
  using LayerWriter::LayerWriter;

  void run() {
    for (Operation& op : std::exchange(operations_, {})) {
      if (op.name == "expert_chunk") {
        part_gate(last(), op);
      } else {
        if (op.name == "expert_silu" && up_.groups > 1) op.released.push_back(op.inputs.front());
        if (op.name == "expert_silu_times_up" && up_.groups > 1) {
          for (const Index t : {both_, gate_}) std::erase(op.released, t);
          operations_.push_back(std::exchange(up_, {}));
        }
        operations_.push_back(std::move(op));
      }
    }
    weigh_before();
  }

 private:
  void part_gate(Operation& gate, const Operation& chunk) {
    both_ = gate.outputs.front();
    gate_ = chunk.outputs.front();
    gate.n /= 2;
    gate.outputs = {gate_};
    ParameterSpec half = layer_.parameters[at(gate.parameters.front())];
    half.shape[1] /= 2;
    layer_.parameters[at(gate.parameters.front())] = half;
    half.name += " up";
    layer_.parameters.push_back(half);
    up_ = gate;
    up_.outputs = {chunk.outputs.back()};
    up_.parameters = {static_cast<Index>(layer_.parameters.size() - 1)};
  }

  void weigh_before() {
    const auto named = [&](std::string_view name) { return std::ranges::find(operations_, name, &Operation::name); };
    std::vector<Operation> moved;
    for (const char* name : {"expert_output_to_fp32", "weigh_rows", "weighed_rows_cast"}) {
      const auto found = named(name);
      moved.push_back(*found);
      operations_.erase(found);
    }
    const Index made = moved.front().inputs.front(), weighed = moved.back().outputs.front();
    const auto gathers = named("gather_rows");
    const Index rows = gathers->outputs.front();
    for (Operation& op : operations_) {
      for (Indices* list : {&op.inputs, &op.saved, &op.released}) {
        std::ranges::replace(*list, weighed, made);
        std::ranges::replace(*list, rows, weighed);
      }
    }
    moved.front().inputs = {rows};
    for (Operation& op : moved) {
      std::ranges::replace(op.released, made, rows);
      op.part = gathers->part;
    }
    operations_.insert(gathers + 1, moved.begin(), moved.end());
  }

  Operation up_;
  Index both_ = 0, gate_ = 0;
};

// apply_rotary_emb(xq, xk): both are cast before either is multiplied, and its names end together.
void rotate_together(LayerSpec& layer) {
  std::vector<Operation>& ops = layer.operations;
  for (std::size_t o = 0; o + 5 < ops.size(); ++o) {
    if (ops[o + 1].function != Function::kRotary || ops[o + 4].function != Function::kRotary) continue;
    Operation &q = ops[o + 2], &k = ops[o + 5];
    const Indices ended = std::exchange(q.released, {});  // wide, product
    k.released.insert(k.released.begin() + 1, ended.back());
    k.released.insert(k.released.begin(), ended.front());
    const auto first = ops.begin() + static_cast<std::ptrdiff_t>(o);
    std::rotate(first + 1, first + 3, first + 4);
    std::iter_swap(first + 3, first + 4);
    return;
  }
}

// Qwen 3's blocks take the table of cosines and sines as an argument, in fp32, which FSDP's hook
// casts for each of them (MixedPrecisionPolicy.cast_forward_inputs); without one the rotation casts
// either half. It is done in the compute dtype, x cos + (-x2, x1) sin (models/qwen3/model/model.py,
// apply_rotary_emb); ranks of cp gather their own positions' rows first.
class HalvesRotation : LayerWriter {
 public:
  HalvesRotation(LayerSpec& layer, const Plan& plan) : LayerWriter(layer), rows_(plan.batch.sequence) {
    const auto attends = std::ranges::find(layer.operations, OperationKind::kAttention, &Operation::kind);
    if (attends != layer.operations.end()) width_ = attends->attention.head_dim;
    const Mesh& mesh = plan.mesh;
    is_wrapped_ = mesh.is_wrapped();
    gathers_ = mesh.cp > 1;
    is_cast_ = plan.compute_dtype() != DType::kFp32;
  }

  void run() {
    std::vector<Operation> old = std::exchange(layer_.operations, {});
    if (is_wrapped_ || !is_cast_) {
      // In fp32 it is the model's own.
      cosine_ = sine_ = tensor({.name = "rotary table cast", .fixed = is_cast_ ? 2 * rows_ * width_ : 0});
      constant("cast_rotary", Function::kCopy, {}, {cosine_}).part = LayerSegment::kBefore;
    }
    for (std::size_t o = 0; o < old.size(); ++o) {
      const bool rotates = o + 2 < old.size() && old[o + 1].function == Function::kRotary;
      if (!rotates) {
        layer_.operations.push_back(std::move(old[o]));
        continue;
      }
      rotate(old[o], old[o + 2]);
      o += 2;
    }
  }

 private:
  void make_table() {
    if (std::exchange(has_table_, true)) return;
    if (gathers_) {
      const Index own = tensor({.name = "rotary of own positions", .per_token = 2 * width_});
      constant("gather_positions", Function::kGather, {cosine_}, {own});
      cosine_ = sine_ = own;
    } else if (!is_wrapped_ && is_cast_) {
      cosine_ = tensor({.name = "cosines", .fixed = rows_ * width_});
      sine_ = tensor({.name = "sines", .fixed = rows_ * width_});
      constant("cast_cosines", Function::kCopy, {}, {cosine_});
      constant("cast_sines", Function::kCopy, {}, {sine_});
    }
  }

  void rotate(const Operation& to_fp32, const Operation& back) {
    make_table();
    const Index x = to_fp32.inputs.front(), result = back.outputs.front();
    const std::string name = spec_of(result).name;
    const std::int64_t each = width(result);
    const Index first = activation(name + " times cosine", each);
    const Index half = activation(name + " turned", each);
    const Index second = activation(name + " times sine", each);
    const Index zeros = activation(name + " half in zeros", each);
    pass("times_cosine", Function::kMultiply, {x, cosine_}, {first}).saved = {cosine_};
    pass("rotate_half", Function::kCopy, {x}, {half}).backward_temporaries = {zeros};
    Operation& times_sine = pass("times_sine", Function::kMultiply, {half, sine_}, {second});
    times_sine.saved = {sine_};
    times_sine.released = {half};
    Operation& sum = pass("rotary_sum", Function::kAdd, {first, second}, {result});
    sum.gradient = GradientRule::kAlias;
    sum.released = {first, second};
    for (const Index t : back.released) {  // but what is no more
      const bool is_gone = t == to_fp32.outputs.front() || t == back.inputs.front();
      if (!is_gone) sum.released.push_back(t);
    }
  }

  const std::int64_t rows_;
  std::int64_t width_ = 0;
  bool is_wrapped_ = true, gathers_ = false, is_cast_ = true, has_table_ = false;
  Index cosine_ = 0, sine_ = 0;
};

bool is_titan_2(const Plan& plan) {
  const bool is_titan = plan.runtime.kind == RuntimeKind::kFsdp2 && plan.step_frame != StepFrame::kPlain &&
                        plan.experts == ExpertKernels::kGrouped && plan.kernels.rope == ModuleKernels::Rope::kComplex;
  return is_titan && !is_titan_3(plan);
}

// Its models, of which those of one family's name share the code (models/*/model.py and __init__.py).
struct TitanModel {
  explicit TitanModel(const ModelSpec& model)
      : halves(model.family.starts_with("qwen") || model.family == "gpt_oss"),
        balances(!model.family.starts_with("qwen")),
        weighs_first(model.family == "llama4") {}
  const bool halves;        // cosines and sines of each element, instead of complex numbers
  const bool balances;      // its optimizer moves the experts' biases
  const bool weighs_first;  // score_before_experts
};

}

void use_titan_modules(ModelSpec& model, const Plan& plan) {
  if (!is_titan_2(plan) || plan.compile != Compile::kNone) return;
  const TitanModel of(model);
  for (LayerSpec& layer : model.kinds) {
    combine_in_token_order(layer);
    if (layer.role != LayerRole::kBlock) continue;
    of.halves ? HalvesRotation(layer, plan).run() : rotate_together(layer);
  }
}

void use_titan_model(ModelSpec& model, const Plan& plan) {
  if (!is_titan_2(plan)) return;
  const TitanModel of(model);
  std::int64_t table = 0;
  for (LayerSpec& layer : model.kinds) {
    for (const Operation& op : layer.operations)
      for (const Index t : op.backward_temporaries)
        if (op.function == Function::kRotary) table = std::max(table, 4 * tensor(layer, t).per_position);
    const auto has = [&](std::string_view name) {
      return std::ranges::find(layer.operations, name, &Operation::name) != layer.operations.end();
    };
    if (has("index_scores")) BiasedRouter(layer, of.balances).run();
    if (of.weighs_first && has("expert_chunk")) PartedExperts(layer).run();
  }
  for (LayerSpec& layer : model.kinds) {
    if (layer.role != LayerRole::kEmbedding || layer.tower) continue;
    layer.resident_bytes += checked_multiply(plan.batch.sequence, of.halves ? 2 * table : table);
  }
  use_titan_modules(model, plan);
}

}
