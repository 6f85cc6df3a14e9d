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
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

// In transformers 5 a router's weight is a parameter of its module, no nn.Linear.
bool is_bare(const Plan& plan, const LayerSpec& layer, const Operation& op) {
  return plan.experts == ExpertKernels::kTransformers &&
         layer.tensors[at(op.outputs.front())].name == "router_logits";
}

bool is_target(const Plan& plan, const LayerSpec& layer, const Operation& op) {
  if (!takes_adapter(layer, op) || is_bare(plan, layer, op)) return false;
  const Lora& lora = plan.lora;
  return std::any_of(lora.targets.begin(), lora.targets.end(), [&](const std::string& target) {
    if (target == Lora::kAllLinear) return layer.role != LayerRole::kHead;
    return is_module(op.name, target);
  });
}

class Adapter {
 public:
  Adapter(LayerSpec layer, const Plan& plan)
      : plan_(plan), lora_(plan.lora), layer_(std::move(layer)) {}

  LayerSpec run() {
    std::vector<Operation> operations = std::exchange(layer_.operations, {});
    renamed_.resize(layer_.tensors.size());
    for (std::size_t t = 0; t < renamed_.size(); ++t) renamed_[t] = static_cast<Index>(t);
    for (Operation& op : operations) {
      for (Indices* list : {&op.inputs, &op.saved, &op.released}) {
        for (Index& t : *list) t = renamed_[at(t)];
      }
      const bool target = is_target(plan_, layer_, op);
      layer_.operations.push_back(std::move(op));
      if (target) adapt();
    }
    layer_.output = renamed_[at(layer_.output)];
    order_parameters();
    return std::move(layer_);
  }

 private:
  Index tensor(std::string name, std::int64_t per_token, ElementType type = ElementType::kCompute) {
    layer_.tensors.push_back({.name = std::move(name), .per_token = per_token, .type = type});
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  Operation& add(std::string name, OperationKind kind, Function function, std::int8_t part) {
    Operation& op = layer_.operations.emplace_back(
        Operation{.name = std::move(name), .kind = kind, .function = function, .part = part});
    return op;
  }

  Index product(const std::string& name, std::int8_t part, Index input, std::int64_t n) {
    const std::int64_t k = layer_.tensors[at(input)].per_token;
    const Index output = tensor(name, n);
    layer_.parameters.push_back({.name = name + ".default.weight", .shape = {n, k}, .part = part});
    layer_.parameters.back().stored_as_computed = lora_.base == Lora::Base::kNf4Master;
    Operation& op = add(name, OperationKind::kGemm, Function::kMatrixProduct, part);
    op.inputs = op.saved = {input};
    op.outputs = {output};
    op.parameters = {static_cast<Index>(layer_.parameters.size() - 1)};
    op.n = n;
    op.k = k;
    return output;
  }

  // Behind the operation added last.
  void adapt() {
    const std::string name = layer_.operations.back().name;
    const std::int8_t part = layer_.operations.back().part;
    const Index base = layer_.operations.back().outputs.front();
    const std::int64_t width = layer_.operations.back().n;
    const Index read = layer_.operations.back().inputs.front();
    Index input = read;
    Indices released = std::exchange(layer_.operations.back().released, {});
    // "base_layer" stands between the module's name and its parameters'.
    for (const Index p : layer_.operations.back().parameters) {
      ParameterSpec& parameter = layer_.parameters[at(p)];
      if (parameter.tied) continue;
      const std::size_t dot = parameter.name.rfind('.');
      if (dot != std::string::npos) parameter.name.insert(dot, ".base_layer");
      base_of_.push_back({p, layer_.parameters.size()});
    }
    if (lora_.dropout > 0)
      input = lora_.fused ? drop_once(name, part, read) : drop(name, part, read);
    const Index low = product(name + ".lora_A", part, input, lora_.rank);
    if (lora_.fused && input != read) layer_.operations.back().saved.push_back(read);
    const Index high = product(name + ".lora_B", part, low, width);
    layer_.operations.back().released = {low};
    const Index scaled = tensor(name + ".scaled", width);
    Operation& scale = add(name + ".scaling", OperationKind::kElementwise, Function::kScale, part);
    scale.inputs = {high};
    scale.outputs = {scaled};
    scale.released = {high};
    const Index sum = tensor(name + ".sum", width);
    Operation& total = add(name + ".sum", OperationKind::kElementwise, Function::kAdd, part);
    total.inputs = {base, scaled};
    total.outputs = {sum};
    total.gradient = GradientRule::kAlias;
    total.released = {base, scaled};
    if (lora_.dropout > 0 && !lora_.fused) total.released.push_back(input);
    total.released.insert(total.released.end(), released.begin(), released.end());
    renamed_[at(base)] = sum;
  }

  // Axolotl's kernels take one dropped input for all that read it, and none of silu(gate) * up.
  Index drop_once(const std::string& name, std::int8_t part, Index input) {
    for (const Operation& op : layer_.operations) {
      const bool made_it = op.outputs.front() == input;
      if (made_it && op.function == Function::kMultiply) return input;
      if (op.function == Function::kDropout && op.inputs.front() == input)
        return op.outputs.front();
    }
    return drop(name, part, input);
  }

  Index drop(const std::string& name, std::int8_t part, Index input) {
    const std::int64_t width = layer_.tensors[at(input)].per_token;
    const Index output = tensor(name + ".dropout", width);
    const Index mask = tensor(name + ".dropout_mask", width, ElementType::kByte);
    Operation& op = add(name + ".dropout", OperationKind::kElementwise, Function::kDropout, part);
    op.inputs = {input};
    op.outputs = {output, mask};
    op.saved = {mask};
    op.released = {mask};
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
        const bool last_of_module =
            base_of_[b].base == static_cast<Index>(p) &&
            (b + 1 == base_of_.size() || base_of_[b + 1].adapter != base_of_[b].adapter);
        if (!last_of_module) continue;
        list(base_of_[b].adapter);
        list(base_of_[b].adapter + 1);
      }
    }
    std::vector<ParameterSpec> parameters;
    std::vector<Index> place(count);
    for (std::size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = static_cast<Index>(i);
      parameters.push_back(std::move(layer_.parameters[order[i]]));
    }
    layer_.parameters = std::move(parameters);
    for (Operation& op : layer_.operations) {
      for (Index& p : op.parameters) p = place[at(p)];
    }
  }

  struct Base {
    Index base = 0;
    std::size_t adapter = 0;  // lora_A; lora_B follows
  };
  const Plan& plan_;
  const Lora& lora_;
  LayerSpec layer_;
  std::vector<Index> renamed_;
  std::vector<Base> base_of_;
};

// Where gate, up and down all have adapters: what down reads is made again, as is what each first
// product hands to its second.
void fuse_adapters(LayerSpec& layer) {
  const auto is_sum = [&](Index t) { return layer.tensors[at(t)].name.ends_with(".sum"); };
  const auto is_adapters = [&](const Operation& op, const char* which) {
    return op.name.ends_with(which);
  };
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
  for (Operation& op : layer.operations) {
    if (is_adapters(op, ".lora_B")) op.saved.clear();
  }
}

// modules_to_save (peft/utils/other.py, ModulesToSaveWrapper): the parameters of the layer's first
// operation that has any are there twice, the frozen original in front, which nothing reads.
void save_module(LayerSpec& layer) {
  const auto first = std::find_if(layer.operations.begin(), layer.operations.end(),
                                  [](const Operation& op) { return !op.parameters.empty(); });
  if (first == layer.operations.end()) return;
  Indices saved = first->parameters;
  std::sort(saved.begin(), saved.end());
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
    for (Operation& op : layer.operations) {
      for (Index& each : op.parameters) each = static_cast<Index>(each + (each >= p ? 1 : 0));
    }
  }
}

// bitsandbytes' block sizes of absmax and of its second quantization.
constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kScalesBlock = 256;
constexpr std::int64_t kCode = std::int64_t{4} * 16;
constexpr std::int64_t kTables = std::int64_t{4} * (256 + 1) + kCode;

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Every product's weight of the layer becomes 4-bit blocks.
void pack_weights(LayerSpec& layer, const Plan& plan) {
  if (layer.role == LayerRole::kHead) return;
  for (Operation& op : layer.operations) {
    if (op.kind != OperationKind::kGemm || is_bare(plan, layer, op)) continue;
    ParameterSpec& weight = layer.parameters[at(op.parameters.front())];
    if (weight.trainable || weight.tied) continue;
    const std::int64_t count = weight.numel();
    const std::int64_t per_element = 2 * size_of(plan.param_dtype);
    weight.unpacked = count;
    weight.stored_as_computed = true;
    weight.shape = {ceil_divide(count, per_element), 1};
    const std::int64_t scales = ceil_divide(count, kBlock);
    layer.resident_bytes += plan.lora.double_quant
                                ? scales + 4 * ceil_divide(scales, kScalesBlock) + kTables
                                : 4 * scales + kCode;
    op.packed = true;
    layer.tensors.push_back({.name = op.name + ".dequantized", .fixed = count});
    const auto written = static_cast<Index>(layer.tensors.size() - 1);
    op.forward_workspace.push_back(written);
    op.backward_workspace.push_back(written);
  }
}

}  // namespace

ModelSpec with_adapters(ModelSpec model, const Plan& plan) {
  FORESHARD_CHECK(plan.lora.rank > 0, "adapters without a rank");
  for (LayerSpec& layer : model.kinds) {
    for (ParameterSpec& parameter : layer.parameters) {
      parameter.trainable = false;
      parameter.stored_as_computed =
          plan.lora.base == Lora::Base::kParam || plan.lora.base == Lora::Base::kNf4;
    }
    layer = Adapter(std::move(layer), plan).run();
    if (plan.lora.fused) fuse_adapters(layer);
    if (plan.lora.base >= Lora::Base::kNf4) pack_weights(layer, plan);
    const bool embeds = layer.role == LayerRole::kEmbedding && !layer.tower;
    if ((embeds && plan.lora.trains_embedding) ||
        (layer.role == LayerRole::kHead && plan.lora.trains_head)) {
      save_module(layer);
    }
  }
  return model;
}

}  // namespace foreshard
