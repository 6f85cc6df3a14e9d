// A layer is rewritten operation by operation. Behind a target come the adapter's two products, the
// scaling and the sum; what read the target's output reads the sum. Names that ended with the
// target end with the sum, because the adapter reads the same input.
#include "models/layers/lora.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/compiled.h"
#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/graph/layers/layer_writer.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

bool is_router(const LayerSpec& layer, const Operation& op) {
  return layer.tensors[at(op.outputs.front())].name == "router_logits";
}

// In transformers 5 a router's weight is a parameter of its module, no nn.Linear.
bool is_bare(const Plan& plan, const LayerSpec& layer, const Operation& op) {
  return plan.transformers() == 5 && is_router(layer, op);
}

// Whether PEFT (0.19 on; utils/transformers_weight_conversion.py, _convert_peft_config_moe) takes
// the modules that transformers 4 had for parameters: of the experts' stacks and the router, and so
// of no linear module of these names (a shared expert's, a dense block's).
bool adapts_stacks(const Plan& plan, const ModelSpec& model) {
  constexpr std::string_view kFamilies =
      " mixtral minimax_m2 qwen3_moe qwen3_next afmoe deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe glm4_moe "
      "glm4_moe_lite glm_moe_dsa solar_open mellum hunyuan_v1_moe flex_olmo olmoe exaone_moe cohere2_moe ";
  return plan.transformers() == 5 && contains(kFamilies, ' ' + model.family + ' ');
}

// Whether a target says one of the words.
bool targets_any(const Lora& lora, std::string_view words) {
  return std::ranges::any_of(
      lora.targets,
      [&](const std::string& target) { return target == Lora::kAllLinear || contains(words, ' ' + target + ' '); });
}

bool is_target(const Plan& plan, bool stacks, const LayerSpec& layer, const Operation& op) {
  if (!takes_adapter(layer, op) || is_bare(plan, layer, op)) return false;
  for (const char* each : {"gate_proj", "up_proj", "down_proj"})
    if (stacks && is_module(op.name, each)) return false;
  return std::ranges::any_of(plan.lora.targets, [&](const std::string& target) {
    if (target == Lora::kAllLinear) return layer.role != LayerRole::kHead;
    return is_module(op.name, target);
  });
}

class Adapter : LayerWriter {
 public:
  Adapter(LayerSpec& layer, const Plan& plan, bool stacks)
      : LayerWriter(layer), plan_(plan), lora_(plan.lora), stacks_(stacks) {}

  void run() {
    std::vector<Operation> operations = std::exchange(layer_.operations, {});
    renamed_.resize(layer_.tensors.size());
    for (std::size_t t = 0; t < renamed_.size(); ++t) renamed_[t] = static_cast<Index>(t);
    for (Operation& op : operations) {
      for (Indices* list : {&op.inputs, &op.saved, &op.released})
        for (Index& t : *list) t = renamed_[at(t)];
      const bool target = is_target(plan_, stacks_, layer_, op);
      layer_.operations.push_back(std::move(op));
      if (target) adapt();
    }
    layer_.output = renamed_[at(layer_.output)];
    order_parameters();
  }

 private:
  Index product(const std::string& name, Index input, std::int64_t n) {
    const std::int64_t k = width(input);
    const Index output = activation(name, n);
    Operation& op = operation(name, OperationKind::kGemm, Function::kMatrixProduct, {input}, {output});
    op.saved = {input};
    op.parameters = {parameter(name + ".default.weight", {n, k})};
    const bool as_loaded = plan_.runtime.kind == RuntimeKind::kDdp && !lora_.autocast_adapter_dtype;
    layer_.parameters.back().stored_as_computed = as_loaded || lora_.base == Lora::Base::kNf4Master;
    op.n = n;
    op.k = k;
    return output;
  }

  // Behind the operation added last.
  void adapt() {
    const std::string name = last().name;
    part_ = last().part;
    const Index base = last().outputs.front();
    const std::int64_t width = last().n;
    const Index read = last().inputs.front();
    Index input = read;
    const Indices released = std::exchange(last().released, {});
    // "base_layer" stands between the module's name and its parameters'.
    for (const Index p : last().parameters) {
      ParameterSpec& parameter = layer_.parameters[at(p)];
      if (parameter.tied) continue;
      const std::size_t dot = parameter.name.rfind('.');
      if (dot != std::string::npos) parameter.name.insert(dot, ".base_layer");
      base_of_.push_back({p, layer_.parameters.size()});
    }
    if (lora_.dropout > 0) input = lora_.fused ? drop_once(name, read) : drop(name, read);
    const Index low = product(name + ".lora_A", input, lora_.rank);
    if (input != read && lora_.fused) last().saved.push_back(read);
    else if (input != read) release({input});
    const Index high = product(name + ".lora_B", low, width);
    last().released = {low};
    const Index scaled = activation(name + ".scaled", width);
    pass(name + ".scaling", Function::kScale, {high}, {scaled}).released = {high};
    const Index sum = made(name + ".sum", Function::kAdd, {base, scaled}, width);
    last().gradient = GradientRule::kAlias;
    release({base, scaled});
    release(released);
    renamed_[at(base)] = sum;
  }

  // Axolotl's kernels take one dropped input for all that read it, and none of silu(gate) * up.
  Index drop_once(const std::string& name, Index input) {
    for (const Operation& op : layer_.operations) {
      const bool made_it = op.outputs.front() == input;
      if (made_it && op.function == Function::kMultiply) return input;
      if (op.function == Function::kDropout && op.inputs.front() == input) return op.outputs.front();
    }
    return drop(name, input);
  }

  Index drop(const std::string& name, Index input) {
    const Index output = activation(name + ".dropout", width(input));
    const Index mask = activation(name + ".dropout_mask", width(input), ElementType::kByte);
    Operation& op = pass(name + ".dropout", Function::kDropout, {input}, {output, mask});
    op.saved = op.released = {mask};
    return output;
  }

  // Module.parameters() lists a module's base before its adapter, and both where the module is.
  void order_parameters() {
    std::vector<std::size_t> order;
    const std::size_t count = layer_.parameters.size();
    std::vector<bool> listed(count, false);
    const auto list = [&](std::size_t p) {
      if (!listed[p]) order.push_back(p);
      listed[p] = true;
    };
    for (std::size_t p = 0; p < count; ++p) {
      list(p);
      for (std::size_t b = 0; b < base_of_.size(); ++b) {
        const bool last_of_module = base_of_[b].base == static_cast<Index>(p) &&
                                    (b + 1 == base_of_.size() || base_of_[b + 1].adapter != base_of_[b].adapter);
        if (!last_of_module) continue;
        list(base_of_[b].adapter);
        list(base_of_[b].adapter + 1);
      }
    }
    std::vector<ParameterSpec> parameters;
    Indices place(count);
    for (std::size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = static_cast<Index>(i);
      parameters.push_back(std::move(layer_.parameters[order[i]]));
    }
    layer_.parameters = std::move(parameters);
    for (Operation& op : layer_.operations)
      for (Index& p : op.parameters) p = place[at(p)];
  }

  struct Base {
    Index base = 0;
    std::size_t adapter = 0;  // lora_A; lora_B follows
  };
  const Plan& plan_;
  const Lora& lora_;
  const bool stacks_;
  Indices renamed_;
  std::vector<Base> base_of_;
};

// Where gate, up and down all have adapters: what down reads is made again, as is what each first
// product hands to its second.
void fuse_adapters(LayerSpec& layer) {
  const auto is_sum = [&](Index t) { return layer.tensors[at(t)].name.ends_with(".sum"); };
  const auto is_adapters = [&](const Operation& op, const char* which) { return op.name.ends_with(which); };
  LayerSpec fused = layer;
  fuse_silu(fused);
  Index hidden = -1;
  for (Operation& op : fused.operations) {
    if (op.function == Function::kSiluMultiply && std::ranges::all_of(op.inputs, is_sum)) {
      hidden = op.outputs.front();
    } else if (hidden >= 0 && is_adapters(op, ".lora_A") && op.inputs.front() == hidden) {
      op.saved.clear();
      op.backward_workspace.push_back(hidden);
      layer = fused;
      break;
    }
  }
  for (Operation& op : layer.operations)
    if (is_adapters(op, ".lora_B")) op.saved.clear();
}

// modules_to_save (peft/utils/other.py, ModulesToSaveWrapper): the parameters of the layer's first
// operation that has any are there twice, the frozen original in front, which nothing reads.
void save_module(LayerSpec& layer) {
  const auto first = std::ranges::find_if(layer.operations, [](const Operation& op) { return !op.parameters.empty(); });
  if (first == layer.operations.end()) return;
  Indices saved = first->parameters;
  std::ranges::sort(saved);
  for (std::size_t i = saved.size(); i-- > 0;) {
    const Index p = saved[i];
    const auto original = layer.parameters.begin() + p;
    ParameterSpec copy = *original;
    original->trainable = true;
    original->stored_as_computed = false;  // accelerate's upcast of what is trained
    const auto named = [](std::string name, const char* wrapper) {
      return name.insert(std::min(name.rfind('.'), name.size()), wrapper);
    };
    original->name = named(original->name, ".modules_to_save.default");
    copy.name = named(copy.name, ".original_module");
    layer.parameters.insert(original, std::move(copy));
    for (Operation& op : layer.operations)
      for (Index& each : op.parameters) each = static_cast<Index>(each + (each >= p ? 1 : 0));
  }
}

// bitsandbytes' block sizes of absmax and of its second quantization.
constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kScalesBlock = 256;
constexpr std::int64_t kCode = std::int64_t{4} * 16;
constexpr std::int64_t kTables = std::int64_t{4} * (256 + 1) + kCode;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Every linear layer's weight becomes 4-bit blocks (of transformers' mixtures no stack is one).
void pack_weights(LayerSpec& layer, const Plan& plan) {
  if (layer.role == LayerRole::kHead) return;
  for (Operation& op : layer.operations) {
    if (op.kind != OperationKind::kGemm || is_bare(plan, layer, op)) continue;
    if (op.groups > 1 && plan.experts == ExpertKernels::kTransformers) continue;
    ParameterSpec& weight = layer.parameters[at(op.parameters.front())];
    if (weight.trainable || weight.tied) continue;
    const std::int64_t count = weight.numel();
    const std::int64_t per_element = 2 * size_of(plan.param_dtype);
    weight.unpacked = count;
    weight.stored_as_computed = true;
    weight.shape = {ceil_divide(count, per_element), 1};
    const std::int64_t scales = ceil_divide(count, kBlock);
    layer.resident_bytes +=
        plan.lora.double_quant ? scales + 4 * ceil_divide(scales, kScalesBlock) + kTables : 4 * scales + kCode;
    op.packed = true;
    const Index written = add_tensor(layer, {.name = op.name + ".dequantized", .fixed = count});
    op.forward_workspace.push_back(written);
    op.backward_workspace.push_back(written);
  }
}

}

ModelSpec with_adapters(ModelSpec model, const Plan& plan) {
  FORESHARD_CHECK(plan.lora.rank > 0, "adapters without a rank");
  const bool stacks = adapts_stacks(plan, model);
  for (LayerSpec& layer : model.kinds) {
    for (ParameterSpec& parameter : layer.parameters) {
      // PEFT's model is inside of TRL's, whose own head stays.
      parameter.trainable = parameter.name.starts_with("v_head.");
      parameter.unused = false;
      parameter.stored_as_computed =
          !parameter.trainable && (plan.lora.base == Lora::Base::kParam || plan.lora.base == Lora::Base::kNf4);
    }
    Adapter(layer, plan, stacks).run();
    if (plan.lora.fused) fuse_adapters(layer);
    if (plan.lora.base >= Lora::Base::kNf4) pack_weights(layer, plan);
    const bool embeds = layer.role == LayerRole::kEmbedding && !layer.tower;
    if ((embeds && plan.lora.trains_embedding) || (layer.role == LayerRole::kHead && plan.lora.trains_head))
      save_module(layer);
  }
  return model;
}

// peft/tuners/lora/layer.py, ParamWrapper: the weight is made anew of the frozen one and the product of an adapter of
// all experts, and all of it has a gradient. Gate and up are one stack, of twice the rank.
void adapt_experts(LayerSpec& layer, const Plan& plan, const ModelSpec& model) {
  if (!adapts_stacks(plan, model)) return;
  LayerWriter writer(layer);
  for (Operation& op : std::exchange(layer.operations, {})) {
    const bool product = op.kind == OperationKind::kGemm, router = product && is_router(layer, op);
    const bool down = op.name != "experts.gate_up_proj";
    const char* words = router ? " gate " : down ? " down_proj w2 " : " gate_proj w1 ";
    if (product && (router || op.groups > 1) && targets_any(plan.lora, words)) {
      const ParameterSpec weight = layer.parameters[at(op.parameters.front())];
      const std::string module = weight.name.substr(0, weight.name.find(".weight"));
      const std::int64_t rank = plan.lora.rank * op.groups * (router || down ? 1 : 2);
      const Index folded = writer.tensor({.name = module + ".folded", .fixed = weight.numel()});
      Operation& fold = writer.pass(module + ".fold", Function::kAdd, {}, {folded});
      fold.part = op.part;
      fold.parameters = {writer.parameter(module + ".lora_A.default.weight", {rank, op.k}, op.part),
          writer.parameter(module + ".lora_B.default.weight", {op.n, rank}, op.part)};
      op.inputs.push_back(folded);
      op.saved.push_back(folded);
    }
    layer.operations.push_back(std::move(op));
  }
}

}
