#include "exec/engine/device_update.h"

#include <ATen/Functions.h>

#include "exec/engine/update.h"
#include "exec/memory/flat_storage.h"

namespace foreshard {

DeviceUpdate::DeviceUpdate(UnitSet& units, const ModelSpec& model, const Plan& plan, Accelerator& accelerator)
    : plan_(plan), units_(units) {
  const c10::Device device = units.states().device();
  number_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
  rate_ = at::zeros_like(number_);
  if (plan.optimizer.clip_norm) factor_ = at::ones_like(number_);
  std::vector<AdamWPiece> fused;
  for (UnitMemory& unit : units.all()) {
    for (const ShardPiece& piece : pieces_of(unit)) {
      Lists& lists = decays(model, *piece.parameter) ? decayed_ : undecayed_;
      const auto offset = at(piece.begin) * sizeof(float);
      lists.parameters.push_back(floats(unit.master + offset, piece.count));
      pieces_.push_back({unit, piece.begin, piece.count, lists});
      if (plan.optimizer.kind == Optimizer::Kind::kAdamW) {
        lists.first.push_back(floats(unit.moments[0] + offset, piece.count));
        lists.second.push_back(floats(unit.moments[1] + offset, piece.count));
        fused.push_back({lists.parameters.back().mutable_data_ptr<float>(), nullptr,
            lists.first.back().mutable_data_ptr<float>(), lists.second.back().mutable_data_ptr<float>(),
            unit.shadow == unit.master ? nullptr : unit.shadow + piece.begin * size_of(plan.param_dtype), piece.count,
            decays(model, *piece.parameter) ? static_cast<float>(plan.optimizer.weight_decay) : 0.0F});
      }
      lists.steps.push_back(number_);
    }
    if (unit.shadow != unit.master) {
      masters_.push_back(floats(unit.master, unit.shard));
      shadows_.push_back(tensor_over(unit.shadow, unit.shard, scalar_type(plan.param_dtype), device));
    }
  }
  if (!fused.empty() && !units.offloads() && plan.param_dtype != DType::kFp16)
    fused_ = accelerator.fused_adamw(fused, plan.optimizer);
}

at::Tensor DeviceUpdate::floats(void* memory, std::int64_t count) const {
  return tensor_over(memory, count, at::kFloat, units_.states().device());
}

void DeviceUpdate::find_gradients() {
  auto places = list_of<const float*>(units_.all(), &UnitMemory::gradient);
  if (places == places_) return;
  places_ = std::move(places);
  for (std::vector<at::Tensor>* list : {&gradients_, &counted_, &decayed_.gradients, &undecayed_.gradients})
    list->clear();
  for (const UnitMemory& unit : units_.all()) {
    gradients_.push_back(floats(unit.gradient, unit.shard));
    if (unit.counted > 0) counted_.push_back(floats(unit.gradient, unit.counted));
  }
  std::vector<const float*> of_pieces;
  for (const Piece& piece : pieces_) {
    float* const place = piece.unit.gradient + piece.begin;
    piece.lists.gradients.push_back(floats(place, piece.count));
    of_pieces.push_back(place);
  }
  if (fused_) fused_->find_gradients(of_pieces);
}

void DeviceUpdate::sum_of_squares(const at::Tensor& sum) {
  find_gradients();
  const std::vector<at::Tensor> norms = at::_foreach_norm(counted_, 2);
  const at::Tensor squares = at::stack(norms).to(at::kDouble).square().sum();
  sum.select(0, 0).copy_(squares);
}

void DeviceUpdate::clip(const at::Tensor& sum, const at::Tensor& norm) {
  norm.copy_(sum.select(0, 0).sqrt());
  const at::Tensor factor = norm.add(1e-6)  // a new tensor: the norm itself is told
                                .reciprocal_()
                                .mul_(*plan_.optimizer.clip_norm)
                                .clamp_max_(1.0);
  factor_.copy_(factor);
}

void DeviceUpdate::update(const Lists& lists, double decay) {
  if (lists.parameters.empty()) return;
  const Optimizer& o = plan_.optimizer;
  if (o.kind == Optimizer::Kind::kAdamW) {
    at::_fused_adamw_(lists.parameters, lists.gradients, lists.first, lists.second, {}, lists.steps, rate_, o.beta1,
        o.beta2, decay, o.epsilon, false, false);
    return;
  }
  if (decay != 0) at::_foreach_mul_(lists.parameters, rate_.mul(-decay).add_(1.0));
  // Nobody reads the gradients after the step.
  at::_foreach_mul_(lists.gradients, rate_.neg());
  at::_foreach_add_(lists.parameters, lists.gradients);
}

void DeviceUpdate::step(const at::Tensor& scalars) {
  find_gradients();
  number_.copy_(scalars.select(0, 0));
  rate_.copy_(scalars.select(0, 1));
  if (fused_) return fused_->step(number_, rate_, factor_);
  if (factor_.defined()) at::_foreach_mul_(gradients_, factor_);
  update(decayed_, plan_.optimizer.weight_decay);
  update(undecayed_, 0);
  if (!masters_.empty()) at::_foreach_copy_(shadows_, masters_);
}

at::Tensor step_scalars(const Plan& plan, std::int64_t number) {
  at::Tensor scalars = at::empty({2}, at::TensorOptions().dtype(at::kFloat));
  scalars.mutable_data_ptr<float>()[0] = static_cast<float>(number);
  scalars.mutable_data_ptr<float>()[1] = static_cast<float>(learning_rate(plan.optimizer, number));
  return scalars;
}

}
