// What published training steps say about the latent factors of machines, family by family, so that
// a family is never forecast with what its own steps said.
//
// The kernels' curves come from micro-measurements alone. What these leave open (sustained clocks, overlap, kernels
// that nobody timed by themselves) are latent factors with a prior: mean 1, the spread of the profile. A row of a
// family adds, for log(measured / forecast) = sum of sensitivity_k * log(factor_k) + noise, sensitivity' * sensitivity
// / variance to the family's precision matrix and sensitivity * residual / variance to its vector. Posterior precision
// is the prior's plus the matrices of the families that may be used.
//
// calibration/evidence/training_steps.json holds the sums, interop/steps/measured_tables.h makes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// A cause that a factor may be off by; causes of jobs with the same name are one. "gemm a100", "attention a100 fa1 64",
// "memory_bound", "intra_node a100", "inter_node LF", "host LF", "overlap".
struct FactorCause {
  std::string name;
  double log_sd = 0;    // of the factor's logarithm by this cause and those before it
  double log_mean = 0;  // of this cause alone
  bool operator==(const FactorCause&) const = default;
};
// A factor's logarithm is the sum of its causes. Products have up to three: the chip, the card
// where its curve is borrowed, and an early library.
using FactorCauses = std::array<std::vector<FactorCause>, kFactors>;

// kEarly: of CUDA before 12.4, as PyTorch before 2.5 brings it, or of ROCm before 6.3, as PyTorch
// before 2.7. Says something of Hopper and CDNA3, whose published products are of later ones.
enum class GemmLibrary : std::uint8_t { kCurrent, kEarly };

struct CauseFacts {
  std::string attention_kernel;
  std::int64_t head_dim = 0;
  GemmLibrary library = GemmLibrary::kCurrent;
  // Whose machines: hosts and networks are a site's own, and say nothing of another's. "": of
  // someone who has told nothing yet.
  std::string site = {};
};
FactorCauses causes_of(const Cluster& cluster, const Calibration& calibration, const CauseFacts& facts);
// What is left of `log_sd` without the causes before: 0 where they are all of it.
double remaining_log_sd(double log_sd, double before);

struct FamilyEvidence {
  std::string family;
  std::int64_t rows = 0;
  std::vector<std::vector<double>> precision;  // by TrainingEvidence::names, to the diagonal
  std::vector<double> information;
};

struct TrainingEvidence {
  double plan_log_sd = 0;            // of a row's own shape, assumed in the sums
  std::vector<std::string> names;    // latent factors that some row touches, sorted
  std::vector<double> prior_log_sd;  // of each
  std::vector<double> prior_log_mean;
  std::vector<FamilyEvidence> families;
};

Json to_json(const TrainingEvidence& evidence);
// Throws ConfigError.
TrainingEvidence read_training_evidence(const ConfigNode& root);
// The file that is built in.
const TrainingEvidence& training_evidence();
// Whether a step of the file ran on this chip, whichever card it was.
bool has_steps(const std::string& gpu_key);

// Attention by a kernel without rows is as uncertain as the published range of its rate: 1.7 to 3.0
// times slower than FlashAttention-2 (arXiv 2307.08691) as a 90 % interval.
Calibration with_kernel_spread(Calibration calibration, std::string_view attention_kernel);

// `calibration` with the posterior of its job's factors; families in `without` are not used. With
// no family left it is the prior, with plan_log_sd.
Calibration informed(Calibration calibration, const TrainingEvidence& evidence, const FactorCauses& causes,
    const std::vector<std::string>& without);

}
