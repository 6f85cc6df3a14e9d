// Shards are cut at multiples of 128 bytes, and so are parameters, so the pieces that a shard holds
// are whole blocks of 32 elements: kernels see no ragged ends that depend on the cut.
#include "exec/engine/update.h"

#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <thread>

#include "exec/compute/kernels.h"
#include "exec/memory/flat_storage.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlock = 32;

const LayerSpec& kind_of(const ModelSpec& model, const FlatParameter& p) {
  return model.kinds[at(model.order[at(p.layer)].kind)];
}

const ParameterSpec& spec_of(const ModelSpec& model, const FlatParameter& p) {
  return kind_of(model, p).parameters[at(p.parameter)];
}

at::Tensor part(std::byte* base, DType dtype, std::int64_t begin, std::int64_t count,
    c10::Device device = c10::Device(c10::DeviceType::CPU)) {
  return tensor_over(base + begin * size_of(dtype), count, scalar_type(dtype), device);
}

// --- initial values ---

bool is_residual_projection(const LayerSpec& layer, std::int32_t parameter) {
  for (const Operation& product : layer.operations) {
    if (product.function != Function::kMatrixProduct || product.parameters.front() != parameter) continue;
    for (const Operation& sum : layer.operations)
      if (sum.function == Function::kAdd && contains(sum.inputs, product.outputs.front())) return true;
  }
  return false;
}

bool is_norm_weight(const LayerSpec& layer, std::int32_t parameter) {
  return std::ranges::any_of(
      layer.operations,
      [&](const Operation& op) { return op.kind == OperationKind::kNorm && op.parameters.front() == parameter; });
}

// Two of four standard normals per counter: Box and Muller's transform of Philox words.
void fill_normal(std::uint64_t key, std::int64_t first, std::span<float> values, double deviation) {
  for (std::size_t i = 0; i < values.size();) {
    const std::int64_t element = first + static_cast<std::int64_t>(i);
    at::Philox4_32 engine(key, static_cast<std::uint64_t>(element / 4));
    float normals[4];
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const double u = (as_double(engine()) + 0.5) / 4294967296.0;
      const double v = (as_double(engine()) + 0.5) / 4294967296.0;
      const double radius = std::sqrt(-2 * std::log(u)) * deviation;
      normals[2 * pair] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * v));
      normals[2 * pair + 1] = static_cast<float>(radius * std::sin(2 * std::numbers::pi * v));
    }
    for (std::int64_t lane = element % 4; lane < 4 && i < values.size(); ++lane, ++i) values[i] = normals[lane];
  }
}

// Pieces of whole counters: an element's value does not depend on who makes it.
void fill_normal_in_parallel(
    std::uint64_t key, std::int64_t first, std::span<float> values, double deviation, int threads) {
  constexpr std::size_t kLeast = std::size_t{1} << 16;  // elements worth a thread
  const std::size_t parts = std::clamp<std::size_t>(values.size() / kLeast, 1, at(threads));
  const std::size_t each = (values.size() + parts - 1) / parts;
  std::vector<std::jthread> helpers;
  for (std::size_t p = 1; p < parts; ++p) {
    const std::size_t begin = p * each;
    if (begin >= values.size()) break;
    helpers.emplace_back([=] {
      fill_normal(key, first + static_cast<std::int64_t>(begin),
          values.subspan(begin, std::min(each, values.size() - begin)), deviation);
    });
  }
  fill_normal(key, first, values.subspan(0, std::min(each, values.size())), deviation);
}

// --- optimizer ---

// Tensors of one fused update, all fp32.
struct UpdateLists {
  std::vector<at::Tensor> parameters, gradients, first, second, steps;
};

void run_update(const UpdateLists& lists, const Optimizer& o, double rate, double decay) {
  if (lists.parameters.empty()) return;
  if (o.kind == Optimizer::Kind::kAdamW) {
    at::_fused_adamw_(lists.parameters, lists.gradients, lists.first, lists.second, {}, lists.steps, rate, o.beta1,
        o.beta2, decay, o.epsilon, false, false);
    return;
  }
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    if (decay != 0) lists.parameters[i].mul_(1 - rate * decay);
    lists.parameters[i].add_(lists.gradients[i], -rate);
  }
}

// One piece, a chunk at a time in fp32 where something is stored in another dtype.
void update_converted(
    UnitMemory& unit, const Plan& plan, const ShardPiece& piece, double rate, double decay, const at::Tensor& step) {
  constexpr std::int64_t kChunk = 1 << 16;
  const Optimizer& o = plan.optimizer;
  for (std::int64_t done = 0; done < piece.count; done += kChunk) {
    const std::int64_t begin = piece.begin + done;
    const std::int64_t count = std::min(kChunk, piece.count - done);
    at::Tensor stored = part(unit.master, plan.master_dtype, begin, count);
    UpdateLists lists = {
        .parameters = {stored.to(at::kFloat)}, .gradients = {tensor_over(unit.gradient + begin, count, at::kFloat)}};
    std::vector<at::Tensor> moments;
    for (std::byte* moment : unit.moments) moments.push_back(part(moment, o.state, begin, count));
    if (!moments.empty()) {
      lists.first = {moments[0].to(at::kFloat)};
      lists.second = {moments[1].to(at::kFloat)};
    }
    lists.steps = {step};
    run_update(lists, o, rate, decay);
    stored.copy_(lists.parameters[0]);
    if (!moments.empty()) {
      moments[0].copy_(lists.first[0]);
      moments[1].copy_(lists.second[0]);
    }
  }
}

}

std::vector<ShardPiece> pieces_of(const UnitMemory& unit) {
  std::vector<ShardPiece> pieces;
  for (std::size_t i = 0; i < unit.layout.parameters.size(); ++i) {
    const FlatParameter& p = unit.layout.parameters[i];
    const std::int64_t end = p.offset + (p.numel + kBlock - 1) / kBlock * kBlock;
    const std::int64_t from = std::max(p.offset, unit.first);
    const std::int64_t until = std::min(end, unit.first + unit.shard);
    if (from < until) pieces.push_back({&p, from - unit.first, until - from, from - p.offset, unit.cuts[i]});
  }
  return pieces;
}

bool decays(const ModelSpec& model, const FlatParameter& parameter) {
  return spec_of(model, parameter).shape.size() > 1;
}

std::string parameter_name(const ModelSpec& model, const FlatParameter& parameter) {
  const LayerInstance& layer = model.order[at(parameter.layer)];
  const ParameterSpec& spec = spec_of(model, parameter);
  if (kind_of(model, parameter).role != LayerRole::kBlock) return spec.name;
  return layer.name + "." + spec.name;
}

void initialise_shard(UnitMemory& unit, const ModelSpec& model, const Plan& plan, RankMemory& memory, int threads) {
  constexpr double kDeviation = 0.02;
  const double residual = 1 / std::sqrt(2.0 * as_double(model.block_count()));
  std::vector<float> values;
  for (const ShardPiece& piece : pieces_of(unit)) {
    const LayerSpec& layer = kind_of(model, *piece.parameter);
    const ParameterSpec& spec = spec_of(model, *piece.parameter);
    values.assign(at(piece.count), 0.0F);
    const auto inside = at(std::min(piece.count, piece.parameter->numel - piece.first));
    const std::span<float> real(values.data(), inside);
    if (spec.shape.size() > 1) {
      Fingerprint key;
      key.add(plan.seed).add(parameter_name(model, *piece.parameter));
      const double deviation =
          is_residual_projection(layer, piece.parameter->parameter) ? kDeviation * residual : kDeviation;
      for (std::size_t done = 0; done < inside;) {
        const std::int64_t at = piece.first + static_cast<std::int64_t>(done);
        const auto run = static_cast<std::size_t>(piece.cut.run(at, static_cast<std::int64_t>(inside - done)));
        fill_normal_in_parallel(key.value(), piece.cut.whole(at), real.subspan(done, run), deviation, threads);
        done += run;
      }
    } else if (is_norm_weight(layer, piece.parameter->parameter)) {
      std::ranges::fill(real, 1.0F);
    }
    part(unit.master, plan.master_dtype, piece.begin, piece.count, memory.device())
        .copy_(tensor_over(values.data(), piece.count, at::kFloat));
  }
  refresh_shadow(unit, plan, memory.device());
}

void refresh_shadow(UnitMemory& unit, const Plan& plan, c10::Device device) {
  if (unit.shadow != unit.master) {
    part(unit.shadow, plan.param_dtype, 0, unit.shard, device)
        .copy_(part(unit.master, plan.master_dtype, 0, unit.shard, device));
  }
}

double learning_rate(const Optimizer& o, std::int64_t number) {
  if (number <= o.warmup_steps) return o.learning_rate * as_double(number) / as_double(o.warmup_steps);
  if (!o.decay_steps) return o.learning_rate;
  const double progress = std::min(1.0, as_double(number - o.warmup_steps) / as_double(*o.decay_steps));
  return o.min_learning_rate +
         (o.learning_rate - o.min_learning_rate) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

void update_parameters(UnitMemory& unit, const ModelSpec& model, const Plan& plan, std::int64_t number) {
  const Optimizer& o = plan.optimizer;
  const double rate = learning_rate(o, number);
  const at::Tensor step = at::scalar_tensor(as_double(number), at::kFloat);
  const bool plain = plan.master_dtype == DType::kFp32 && (o.kind == Optimizer::Kind::kSgd || o.state == DType::kFp32);
  UpdateLists decayed, undecayed;
  for (const ShardPiece& piece : pieces_of(unit)) {
    const bool decaying = decays(model, *piece.parameter);
    if (!plain) {
      update_converted(unit, plan, piece, rate, decaying ? o.weight_decay : 0, step);
      continue;
    }
    UpdateLists& lists = decaying ? decayed : undecayed;
    lists.parameters.push_back(part(unit.master, DType::kFp32, piece.begin, piece.count));
    lists.gradients.push_back(tensor_over(unit.gradient + piece.begin, piece.count, at::kFloat));
    if (o.kind == Optimizer::Kind::kAdamW) {
      lists.first.push_back(part(unit.moments[0], DType::kFp32, piece.begin, piece.count));
      lists.second.push_back(part(unit.moments[1], DType::kFp32, piece.begin, piece.count));
    }
    lists.steps.push_back(step);
  }
  run_update(decayed, o, rate, o.weight_decay);
  run_update(undecayed, o, rate, 0);
  refresh_shadow(unit, plan);
}

std::int64_t first_not_finite(const at::Tensor& values) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // bounds what isfinite() makes
  const std::int64_t count = values.numel();
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const at::Tensor wrong = values.narrow(0, begin, std::min(kChunk, count - begin)).isfinite().logical_not();
    if (!wrong.any().item<bool>()) continue;
    return begin + wrong.to(at::kByte).argmax().item<std::int64_t>();
  }
  return count;
}

void add_squares(const float* values, std::int64_t count, ExactSum& sum) {
  FORESHARD_CHECK(count % kBlock == 0, "a shard is not whole blocks");
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    double lanes[8] = {};
    for (std::int64_t i = 0; i < kBlock; i += 8) {
      for (std::int64_t j = 0; j < 8; ++j) {
        const auto value = static_cast<double>(values[begin + i + j]);
        lanes[j] += value * value;
      }
    }
    sum.add(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
  }
}

std::uint64_t hash_shard(const UnitMemory& unit, const std::byte* master, const ModelSpec& model, const Plan& plan) {
  const std::int64_t size = size_of(plan.master_dtype);
  std::uint64_t sum = 0;
  for (const ShardPiece& piece : pieces_of(unit)) {
    Fingerprint name;
    name.add(parameter_name(model, *piece.parameter));
    const auto* bytes = reinterpret_cast<const char*>(master + piece.begin * size);
    for (std::int64_t i = 0; i < piece.count && piece.begin + i < unit.counted; i += kBlock) {
      Fingerprint block;
      block.add(static_cast<std::int64_t>(name.value())).add(piece.cut.whole(piece.first + i));
      block.add(std::string_view(bytes + i * size, at(kBlock * size)));
      sum += block.value();
    }
  }
  return sum;
}

}
