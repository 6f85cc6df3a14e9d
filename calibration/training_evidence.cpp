#include "calibration/training_evidence.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <utility>

#include "calibration/capability.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/fields.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

constexpr const char* kStepsFile = "calibration/evidence/training_steps.json";

std::ptrdiff_t index_of(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? -1 : found - names.begin();
}

// How much slower products were on a chip whose published ones are of later libraries.
struct EarlyLibrary {
  const char* architecture;
  const char* cause;
  double log_mean, log_sd;
};
constexpr EarlyLibrary kEarlyLibraries[] = {
    // Products of b x 2048 x 8192 x 8192 for b of 1, 2 and 4 (pytorch/pytorch#100850): 720.3, 639
    // and 772 TFLOP/s by cuBLAS 11.11.3, 742.7, 549.5 and 542.9 by 12.0.2. The profile of H100 says
    // 792 on a cool chip and 677 on a hot one: the logarithms of the ratios are 0.192 or 0.034 on
    // average, and spread by 0.155. How hot the chip ran is not said: their middle.
    {"hopper", "gemm early library", (0.192 + 0.034) / 2, 0.155},
    // Four of 2024-10 by torch.matmul and F.linear (ROCm/TransformerEngine#73, in
    // published/gemm_measured.csv): logarithms of 0.167, 0.067, 0.170 and 0.217 below the profile.
    {"cdna3", "gemm early library cdna3", 0.155, 0.063},
};

const EarlyLibrary* early_library(std::string_view architecture) {
  const auto* found = std::ranges::find_if(
      kEarlyLibraries, [&](const EarlyLibrary& each) { return architecture == each.architecture; });
  return found == std::end(kEarlyLibraries) ? nullptr : found;
}

}

FactorCauses causes_of(const Cluster& cluster, const Calibration& calibration, const CauseFacts& facts) {
  const std::string chip = chip_of_key(cluster.gpu.key);
  constexpr std::int64_t kWide = 96;  // between the head sizes that kernels are written for
  FactorCauses causes;
  const auto add = [&](Factor f, std::string name) {
    causes[at(f)].push_back({std::move(name), calibration.factor(f).log_sd});
  };
  add(Factor::kGemm, "gemm " + chip);
  add(Factor::kGemm, "gemm card " + cluster.gpu.key);
  const EarlyLibrary* early = early_library(cluster.gpu.architecture);
  if (facts.library == GemmLibrary::kEarly && early != nullptr) {
    add(Factor::kGemm, early->cause);
    FactorCause& cause = causes[at(Factor::kGemm)].back();
    cause.log_sd = std::hypot(cause.log_sd, early->log_sd);
    cause.log_mean = early->log_mean;
  }
  add(Factor::kAttention,
      fmt::format("attention {} {} {}", chip, facts.attention_kernel, facts.head_dim <= kWide ? 64 : 128));
  add(Factor::kMemoryBound, "memory_bound");
  add(Factor::kIntraNode, "intra_node " + chip);
  const std::string site = facts.site.empty() ? "" : " " + facts.site;
  add(Factor::kInterNode, "inter_node" + site);
  add(Factor::kHost, "host" + site);
  add(Factor::kOverlap, "overlap");
  return causes;
}

double remaining_log_sd(double log_sd, double before) {
  const double rest = log_sd * log_sd - before * before;
  return rest > 1e-6 ? std::sqrt(rest) : 0;
}

void fields(auto& io, FamilyEvidence& family) {
  io("family", family.family);
  io("rows", family.rows, 0);
  io("precision", family.precision);
  io("information", family.information);
}

void fields(auto& io, TrainingEvidence& evidence) {
  io.schema("foreshard.training_evidence/1");
  io("plan_log_sd", evidence.plan_log_sd, 0, 1);
  io("names", evidence.names);
  io("prior_log_sd", evidence.prior_log_sd);
  io("prior_log_mean", evidence.prior_log_mean);
  io("families", evidence.families);
  for (const FamilyEvidence& family : evidence.families) {
    io.require(family.information.size() == evidence.names.size() && family.precision.size() == evidence.names.size(),
        "families", "has sums that are not of the names' number");
  }
}

Json to_json(const TrainingEvidence& evidence) { return fields_json(evidence); }

TrainingEvidence read_training_evidence(const ConfigNode& root) {
  TrainingEvidence evidence;
  read_fields(root, evidence);
  return evidence;
}

const TrainingEvidence& training_evidence() {
  static const TrainingEvidence evidence = [] {
    const EmbeddedFile& file = file_named(kStepsFile, calibration_files());
    return read_training_evidence(parse_json(file.content, kStepsFile));
  }();
  return evidence;
}

bool has_steps(const std::string& gpu_key) {
  return index_of(training_evidence().names, "gemm " + chip_of_key(gpu_key)) >= 0;
}

Calibration with_kernel_spread(Calibration calibration, std::string_view attention_kernel) {
  const bool is_assumed = std::ranges::any_of(calibration.attention, [&](const AttentionCurve& curve) {
    return curve.kernel == attention_kernel && curve.evidence == Evidence::kAssumed;
  });
  FactorSpread& spread = calibration.spread[at(Factor::kAttention)];
  const double range = std::log(3.0 / 1.7) / 2 / kNinetyPercent;
  if (is_assumed) spread = {std::max(spread.log_sd, range), "the range of arXiv 2307.08691"};
  return calibration;
}

Calibration informed(Calibration calibration, const TrainingEvidence& evidence, const FactorCauses& causes,
    const std::vector<std::string>& without) {
  constexpr auto kOwn = static_cast<Eigen::Index>(kFactors);
  const auto known = static_cast<Eigen::Index>(evidence.names.size());
  // The evidence's causes, then those of the job that it does not know.
  std::vector<double> prior = evidence.prior_log_sd, prior_mean = evidence.prior_log_mean;
  std::vector<std::pair<std::size_t, std::size_t>> parts;  // factor, place in `prior`
  for (std::size_t f = 0; f < kFactors; ++f) {
    double before = 0;
    for (const FactorCause& cause : causes[f]) {
      const std::ptrdiff_t at = index_of(evidence.names, cause.name);
      if (at < 0) {
        const double rest = remaining_log_sd(cause.log_sd, before);
        if (rest == 0 && &cause != &causes[f].front()) continue;
        prior.push_back(std::max(rest, 1e-6));
        prior_mean.push_back(cause.log_mean);
      }
      parts.emplace_back(f, at < 0 ? prior.size() - 1 : static_cast<std::size_t>(at));
      before = std::hypot(before, prior[parts.back().second]);
    }
  }
  const auto size = static_cast<Eigen::Index>(prior.size());
  Eigen::MatrixXd precision = Eigen::MatrixXd::Zero(size, size);
  Eigen::VectorXd information = Eigen::VectorXd::Zero(size);
  for (Eigen::Index i = 0; i < size; ++i) {
    const double sd = prior[at(i)];
    precision(i, i) = 1 / (sd * sd);
    information(i) = prior_mean[at(i)] / (sd * sd);
  }
  FactorKnowledge knowledge;
  for (const FamilyEvidence& family : evidence.families) {
    if (contains(without, family.family)) continue;
    knowledge.informed_by += (knowledge.informed_by.empty() ? "" : ", ") + family.family;
    for (Eigen::Index i = 0; i < known; ++i) {
      const auto row = at(i);
      information(i) += family.information[row];
      for (Eigen::Index j = 0; j <= i; ++j) {
        precision(i, j) += family.precision[row][at(j)];
        precision(j, i) = precision(i, j);
      }
    }
  }
  Eigen::MatrixXd of_factors = Eigen::MatrixXd::Zero(kOwn, size);
  for (const auto& [factor, place] : parts)
    of_factors(static_cast<Eigen::Index>(factor), static_cast<Eigen::Index>(place)) = 1;
  const Eigen::MatrixXd covariance = precision.inverse();
  const Eigen::VectorXd mean = of_factors * (covariance * information);
  const Eigen::MatrixXd lower = (of_factors * covariance * of_factors.transpose()).llt().matrixL();
  for (std::size_t a = 0; a < kFactors; ++a) {
    const auto row = static_cast<Eigen::Index>(a);
    knowledge.center[a] = mean(row);
    for (std::size_t b = 0; b <= a; ++b) knowledge.mixing[a][b] = lower(row, static_cast<Eigen::Index>(b));
  }
  knowledge.plan_log_sd = evidence.plan_log_sd;
  calibration.knowledge = std::move(knowledge);
  return calibration;
}

}
