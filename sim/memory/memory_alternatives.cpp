// Weights are counts over the 11 codes without a preset in the first looks that published memory
// (reports/unseen: DL, TH, NB, MT, VN, FP, LB, AL, TY, RA, ZC), of what the difference between
// measurement and forecast is the size of: the logits in DL, AL and RA, a whole copy of the
// parameters in DL, whose excess is the same on 8 to 64 GPUs, a gradient held twice in NB and MT.
#include "sim/memory/memory_alternatives.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr double kCodes = 11;

// Of the six of these codes that keep none of the named, each the mean of its rows' logarithms
// (`accuracy` of the tables in reports/unseen, before their shift: TH, LB, VN, FP, TY, ZC): mean,
// and standard deviation of a sample; with one of them left out 0.02 to 0.08 and 0.09 to 0.13.
constexpr ReservedError kUnread = {0.041, 0.119};

Bytes of(double bytes) { return Bytes(static_cast<std::int64_t>(bytes)); }

double bytes_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

// Of the whole model, what the ranks of one tensor and expert parallel group have together before
// they shard it, per rank.
double parameters_of_rank(const ModelSpec& model, const Mesh& mesh) {
  double dense = 0;
  double experts = 0;
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& p : model.kinds[at(layer.kind)].parameters)
      if (!p.tied) (p.is_expert ? experts : dense) += as_double(p.count());
  }
  return dense / as_double(mesh.tp) + experts / as_double(mesh.ep * mesh.etp);
}

// Whether a rank holds its part of the parameters alone between a layer's uses.
bool shards_parameters(const Plan& plan) {
  switch (plan.runtime.kind) {
    case RuntimeKind::kFsdp2:
    case RuntimeKind::kFsdp1:
    case RuntimeKind::kZero3: return plan.mesh.fsdp() > 1;
    default: return false;
  }
}

}

std::vector<MemoryAlternative> memory_alternatives(const ModelSpec& model, const Plan& plan) {
  const Mesh& mesh = plan.mesh;
  const double parameters = parameters_of_rank(model, mesh);
  const std::int64_t scored = takes_labelled_rows(plan) ? plan.batch.labelled : plan.batch.sequence;
  const double tokens = as_double(plan.batch.micro_batch * scored) / as_double(mesh.cp);
  const double vocabulary = as_double(model.vocabulary) / as_double(plan.tensor_parallel.loss ? mesh.tp : 1);
  std::vector<MemoryAlternative> list;
  const auto add = [&](std::array<const char*, 3> words, double bytes, double codes) {
    if (bytes > 0) list.push_back({words[0], words[1], words[2], of(bytes), codes / kCodes});
  };
  add({"fp32 logits and their gradient", "which loss runs, and whether the loop keeps the outputs",
          "--set loss=NAME, --set logits=held or released"},
      2 * 4 * tokens * vocabulary, 3);
  if (shards_parameters(plan)) {
    add({"a whole copy of the parameters", "whether parameters stay gathered",
            "--set reshard_after_forward=always or never"},
        bytes_of(plan.compute_dtype()) * parameters, 1);
  }
  const double shards = is_zero(plan.runtime.kind) || shards_parameters(plan) ? as_double(mesh.fsdp()) : 1;
  add({"the gradients twice", "where gradients are added up", "--set accumulation.mode=reduce_each or keep_unsharded"},
      bytes_of(plan.reduce_dtype) * parameters / shards, 2);
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) {
    return a.weight * as_double(a.bytes.count()) > b.weight * as_double(b.bytes.count());
  });
  return list;
}

Fit with_alternatives(Fit fit, const ModelSpec& model, const Plan& plan) {
  auto next = fit.besides.begin();
  for (const MemoryAlternative& each : memory_alternatives(model, plan)) {
    // The weights are of codes that trained: one that no GPU here holds is not what trains this.
    if (each.bytes > fit.capacity) continue;
    *next++ = {each.name, each.bytes, each.weight};
  }
  return fit;
}

ReservedError reserved_error(const Fit& fit) {
  const bool is_open = std::ranges::any_of(fit.besides, [](const KeptBesides& each) { return each.weight > 0; });
  return is_open ? kUnread : ReservedError();
}

double log_reach(const std::vector<MemoryAlternative>& alternatives, Bytes forecast) {
  double bytes = 0;
  for (const MemoryAlternative& each : alternatives) bytes += as_double(each.bytes.count());
  return std::log1p(bytes / as_double(forecast.count()));
}

}
