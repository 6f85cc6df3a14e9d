// What happens to a rank's shards between two steps: initial values, the optimizer, and the sums
// and hashes that must not depend on how the parameters are spread over ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/engine/unit_memory.h"

namespace foreshard {

// A sum of doubles that is exact, so that its bits do not depend on the order of its terms or on
// how they are spread over ranks (after U. Kulisch's long accumulator).
//
// The value is kept as digits of 32 bits, each in a signed 64-bit integer: digit d weighs
// 2^(32 d - kBias). Adding ranks is adding digits; 2^31 additions fit before a carry is due.
class ExactSum {
 public:
  static constexpr std::size_t kDigits = 67;  // 2^-1074 .. 2^1070

  void add(double value);  // finite and >= 0; infinities and NaN make the whole sum NaN
  double value() const;    // rounded once

  std::array<std::int64_t, kDigits>& digits() { return digits_; }

 private:
  static constexpr int kBias = 1074;
  std::array<std::int64_t, kDigits> digits_{};
};

// Name of a parameter in the whole model: "layers.3.self_attn.q_proj.weight".
std::string parameter_name(const ModelSpec& model, const FlatParameter& parameter);

// The part of a parameter that a shard holds, padded to whole blocks of 32 elements.
struct ShardPiece {
  const FlatParameter* parameter = nullptr;
  std::int64_t begin = 0;  // in the shard
  std::int64_t count = 0;
  std::int64_t first = 0;  // element of the parameter at `begin`
  ParameterCut cut;
};
std::vector<ShardPiece> pieces_of(const UnitMemory& unit);
// Weight decay is for parameters with two or more dimensions.
bool decays(const ModelSpec& model, const FlatParameter& parameter);

// Normal(0, 0.02) for matrices, those that write to the residual stream divided by sqrt(2 blocks) (GPT-2, section 2.3);
// 1 for norm weights, 0 for biases. Element i of a parameter is a function of seed, name and i alone (Philox 4x32,
// counter i / 4). `threads` make them. The compute-dtype shadow is refreshed.
void initialise_shard(
    UnitMemory& unit, const ModelSpec& model, const Plan& plan, RankMemory& memory = host_memory(), int threads = 1);

// learning rate of step `number` (from 1), by the plan's schedule
double learning_rate(const Optimizer& optimizer, std::int64_t number);

// Writes the compute-dtype shadow anew, as after loading the shard. `device`: where it lives.
void refresh_shadow(UnitMemory& unit, const Plan& plan, c10::Device device = c10::Device(c10::DeviceType::CPU));

// AdamW or SGD on a CPU rank's shard, then the compute-dtype shadow.
void update_parameters(UnitMemory& unit, const ModelSpec& model, const Plan& plan, std::int64_t number);

// The first element that is not finite; `values.numel()` where all are.
std::int64_t first_not_finite(const at::Tensor& values);

// Adds the squares of `count` values, a multiple of 32, block by block of 32, each block a double:
// a grid that shards do not cut.
void add_squares(const float* values, std::int64_t count, ExactSum& sum);

// Sum (mod 2^64) of hashes of the shard's blocks of 32 elements, each with its parameter's name and
// its place in it; padding is left out. `master`: the shard's stored values, on the host.
std::uint64_t hash_shard(const UnitMemory& unit, const std::byte* master, const ModelSpec& model, const Plan& plan);

}
