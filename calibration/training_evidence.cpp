#include "calibration/training_evidence.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "sim/base/embedded.h"
#include "sim/base/error.h"

namespace foreshard {

std::span<const EmbeddedFile> calibration_files();

namespace {

constexpr const char* kFile = "calibration/evidence/training_steps.json";

// "a100" of "a100-80gb": cards of one chip share their kernels.
std::string chip_of_key(const std::string& key) { return key.substr(0, key.find('-')); }

std::ptrdiff_t index_of(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : found - names.begin();
}

std::vector<double> read_numbers(const ConfigNode& node) {
  std::vector<double> numbers;
  for (const ConfigNode& each : node.elements()) numbers.push_back(each.as_double());
  return numbers;
}

}  // namespace

LatentNames latent_names(const Cluster& cluster, std::string_view attention_kernel,
                         std::int64_t head_dim) {
  const std::string chip = chip_of_key(cluster.gpu.key);
  constexpr std::int64_t kWide = 96;  // between the head sizes that kernels are written for
  LatentNames names;
  const auto name = [&](Factor f) -> std::string& { return names[static_cast<std::size_t>(f)]; };
  name(Factor::kGemm) = "gemm " + chip;
  name(Factor::kAttention) =
      fmt::format("attention {} {} {}", chip, attention_kernel, head_dim <= kWide ? 64 : 128);
  name(Factor::kMemoryBound) = "memory_bound";
  name(Factor::kIntraNode) = "intra_node " + chip;
  name(Factor::kInterNode) = "inter_node";
  name(Factor::kHost) = "host";
  name(Factor::kOverlap) = "overlap";
  return names;
}

Json to_json(const TrainingEvidence& evidence) {
  Json families = Json::array();
  for (const FamilyEvidence& family : evidence.families) {
    families.push_back({{"family", family.family},
                        {"rows", family.rows},
                        {"precision", family.precision},
                        {"information", family.information}});
  }
  return {{"schema", "foreshard.training_evidence/1"},
          {"plan_log_sd", evidence.plan_log_sd},
          {"names", evidence.names},
          {"prior_log_sd", evidence.prior_log_sd},
          {"families", std::move(families)}};
}

TrainingEvidence read_training_evidence(const ConfigNode& root) {
  root.allow_only({"schema", "plan_log_sd", "names", "prior_log_sd", "families"});
  TrainingEvidence evidence;
  evidence.plan_log_sd = root.at("plan_log_sd").as_double(0, 1);
  const ConfigNode names = root.at("names");
  for (const ConfigNode& name : names.elements()) evidence.names.push_back(name.as_string());
  evidence.prior_log_sd = read_numbers(root.at("prior_log_sd"));
  const ConfigNode families = root.at("families");
  for (const ConfigNode& node : families.elements()) {
    FamilyEvidence family;
    family.family = node.at("family").as_string();
    family.rows = node.at("rows").as_int(0);
    const ConfigNode precision = node.at("precision");
    for (const ConfigNode& row : precision.elements()) {
      family.precision.push_back(read_numbers(row));
    }
    family.information = read_numbers(node.at("information"));
    if (family.information.size() != evidence.names.size() ||
        family.precision.size() != evidence.names.size()) {
      throw node.error("its sums are not of the names' number");
    }
    evidence.families.push_back(std::move(family));
  }
  return evidence;
}

const TrainingEvidence& training_evidence() {
  static const TrainingEvidence evidence = [] {
    for (const EmbeddedFile& file : calibration_files()) {
      if (file.path == kFile) return read_training_evidence(parse_json(file.content, kFile));
    }
    throw Error(ExitCode::kInternal, fmt::format("{} is not built in", kFile));
  }();
  return evidence;
}

Calibration with_kernel_spread(Calibration calibration, std::string_view attention_kernel) {
  const bool is_assumed = std::any_of(
      calibration.attention.begin(), calibration.attention.end(), [&](const AttentionCurve& curve) {
        return curve.kernel == attention_kernel && curve.evidence == Evidence::kAssumed;
      });
  FactorSpread& spread = calibration.spread[static_cast<std::size_t>(Factor::kAttention)];
  const double range = std::log(3.0 / 1.7) / 2 / 1.6449;
  if (is_assumed) spread = {std::max(spread.log_sd, range), "the range of arXiv 2307.08691"};
  return calibration;
}

Calibration informed(Calibration calibration, const TrainingEvidence& evidence,
                     const LatentNames& names, const std::vector<std::string>& without) {
  const auto size = static_cast<Eigen::Index>(evidence.names.size());
  constexpr auto kOwn = static_cast<Eigen::Index>(kFactors);
  // The evidence's factors, then those of the job that it does not know.
  Eigen::MatrixXd precision = Eigen::MatrixXd::Zero(size + kOwn, size + kOwn);
  Eigen::VectorXd information = Eigen::VectorXd::Zero(size + kOwn);
  for (Eigen::Index i = 0; i < size; ++i) {
    const double sd = evidence.prior_log_sd[static_cast<std::size_t>(i)];
    precision(i, i) = 1 / (sd * sd);
  }
  std::array<Eigen::Index, kFactors> place{};
  for (std::size_t f = 0; f < kFactors; ++f) {
    const std::ptrdiff_t known = index_of(evidence.names, names[f]);
    const auto own = size + static_cast<Eigen::Index>(f);
    place[f] = known >= 0 ? known : own;
    const double sd = std::max(calibration.spread[f].log_sd, 1e-6);
    precision(own, own) = 1 / (sd * sd);
  }
  FactorKnowledge knowledge;
  for (const FamilyEvidence& family : evidence.families) {
    if (std::find(without.begin(), without.end(), family.family) != without.end()) continue;
    knowledge.informed_by += (knowledge.informed_by.empty() ? "" : ", ") + family.family;
    for (Eigen::Index i = 0; i < size; ++i) {
      const auto row = static_cast<std::size_t>(i);
      information(i) += family.information[row];
      for (Eigen::Index j = 0; j < size; ++j) {
        precision(i, j) += family.precision[row][static_cast<std::size_t>(j)];
      }
    }
  }
  const Eigen::MatrixXd covariance = precision.inverse();
  const Eigen::VectorXd mean = covariance * information;
  Eigen::MatrixXd of_job(kOwn, kOwn);
  for (Eigen::Index a = 0; a < kOwn; ++a) {
    knowledge.center[static_cast<std::size_t>(a)] = mean(place[static_cast<std::size_t>(a)]);
    for (Eigen::Index b = 0; b < kOwn; ++b) {
      of_job(a, b) =
          covariance(place[static_cast<std::size_t>(a)], place[static_cast<std::size_t>(b)]);
    }
  }
  const Eigen::MatrixXd lower = of_job.llt().matrixL();
  for (std::size_t a = 0; a < kFactors; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      knowledge.mixing[a][b] = lower(static_cast<Eigen::Index>(a), static_cast<Eigen::Index>(b));
    }
  }
  knowledge.plan_log_sd = evidence.plan_log_sd;
  calibration.knowledge = std::move(knowledge);
  return calibration;
}

}  // namespace foreshard
