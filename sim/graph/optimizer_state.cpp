#include "sim/graph/optimizer_state.h"

#include "sim/base/lookup.h"
#include "sim/base/units.h"

namespace foreshard {

// bitsandbytes (optim/optimizer.py, Optimizer2State.init_state): a byte an element and an fp32 number for each 256, but
// fp32 of small ones and, as transformers' Trainer has it, of tables; paged from 100,000 elements on.
std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const ParameterSpec& parameter, LayerRole role) {
  constexpr std::int64_t kFewest8bit = 4096, kBlock = 256, kFewestPaged = 100'000;
  const std::int64_t numel = parameter.numel();
  const auto bitsandbytes = [&](bool is_8bit, bool is_paged) {
    is_8bit = is_8bit && role != LayerRole::kEmbedding && numel >= kFewest8bit;
    std::vector<StateTensor> list(2, {numel * (is_8bit ? 1 : 4), is_paged && numel >= kFewestPaged});
    if (is_8bit) list.insert(list.end(), 2, {(numel + kBlock - 1) / kBlock * 4});
    return list;
  };
  const DType dtype = parameter.stored_as_computed ? DType::kBf16 : optimizer.state;
  const StateTensor moment{numel * size_of(dtype)};  // as the parameter is (zeros_like)
  switch (optimizer.kind) {
    case Optimizer::Kind::kAdamW: return {moment, moment};
    case Optimizer::Kind::kMuon:
      if (is_of_muon(optimizer, parameter, role)) return {moment};
      return {moment, moment};
    case Optimizer::Kind::kSgd: return {};
    case Optimizer::Kind::kMomentum: return {moment};
    case Optimizer::Kind::kAdafactor: {
      const auto& shape = parameter.shape;
      if (shape.size() < 2) return {{numel * 4}};
      return {{numel / shape.back() * 4}, {numel / shape[shape.size() - 2] * 4}};
    }
    case Optimizer::Kind::kAdamW8bit: return bitsandbytes(true, false);
    case Optimizer::Kind::kPagedAdamW: return bitsandbytes(false, true);
    case Optimizer::Kind::kPagedAdamW8bit: return bitsandbytes(true, true);
    case Optimizer::Kind::kTorchao8bit:  // torchao/optim/adam.py, _new_buffer
      if (numel < kFewest8bit || numel % kBlock != 0) return {moment, moment};
      return {{numel}, {numel}, {numel / kBlock * 4}, {numel / kBlock * 4}};
  }
  return {};
}

// (transformers, trainer.py, get_decay_parameter_names: an RMS norm is known by its name, which Mamba-2's last has
// not.)
bool decays(const ParameterSpec& parameter) {
  const bool is_norm = parameter.is_norm && !parameter.name.ends_with("norm_f.weight");
  return !is_norm && !contains(parameter.name, "bias");
}

Bytes checkpoint_bytes(const ModelSpec& model, const Plan& plan) {
  std::vector<std::int64_t> of_kind;
  for (const LayerSpec& layer : model.kinds) {
    std::int64_t bytes = 0;
    for (const ParameterSpec& parameter : layer.parameters) {
      if (parameter.tied) continue;
      const DType stored = parameter.stored_as_computed ? plan.param_dtype : plan.master_dtype;
      bytes = checked_add(bytes, checked_multiply(parameter.numel(), size_of(stored)));
      if (!parameter.trainable) continue;
      for (const StateTensor& state : optimizer_state(plan.optimizer, parameter, layer.role))
        bytes = checked_add(bytes, state.bytes);
    }
    of_kind.push_back(bytes);
  }
  std::int64_t sum = 0;
  for (const LayerInstance& layer : model.order)
    if (layer.same_as < 0) sum = checked_add(sum, of_kind[at(layer.kind)]);
  return Bytes(sum);
}

}
