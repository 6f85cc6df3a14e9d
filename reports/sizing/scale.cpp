#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/sizing/recommend.h"
#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

struct LookedAtSize {
  std::optional<ScalePoint> point;
  std::string reason;
  ExitCode failure = ExitCode::kOk;
  std::string model;
  std::int64_t sequence = 0;
};

std::int64_t sequences_of(const Plan& plan) {
  return plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.data_parallel();
}

std::string batch_words(const Plan& plan) {
  return fmt::format("{} x {}", plan.batch.micro_batch, plan.batch.accumulation);
}

double dollars_per_million(const ScalePoint& point) {
  const double gpus = as_double(point.sized.cluster.gpus);
  return point.price.usd_per_hour * gpus / 3600 / point.sized.tokens_per_s.value * 1e6;
}

}

ScalingCurve scale(
    const std::vector<CandidateCluster>& sizes, const JobMaker& make, bool weak, const RecommendOptions& options) {
  std::vector<LookedAtSize> looked(sizes.size());
  const auto judge = [&](std::size_t i) {
    LookedAtSize& l = looked[i];
    try {
      const std::int64_t most = weak ? checked_multiply(options.most_sequences, sizes[i].gpus) : options.most_sequences;
      const JobVariants variants = make(sizes[i], most);
      const SizedJob& job = variants.front();
      l.model = job.model.name;
      l.sequence = job.space.base.batch.sequence;
      if (auto sized = best_plan(variants, {options.confidence}, options.draws))
        l.point = ScalePoint{std::move(*sized), job.price};
      else l.reason = fmt::format("nothing fits with {}", chance_text(options.confidence));
    } catch (const Error& error) {
      if (error.exit_code() == ExitCode::kInternal) throw;
      l.reason = error.what();
      l.failure = error.exit_code();
    }
  };
  judge_each(sizes.size(), {options.threads, options.progress, "scale"}, judge);

  ScalingCurve curve = {.weak = weak};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (looked[i].sequence > 0) {
      curve.model = looked[i].model;
      curve.sequence = looked[i].sequence;
    }
    curve.machine = sizes[i].machine;
    if (looked[i].point) curve.points.push_back(std::move(*looked[i].point));
    else curve.rejected.push_back({sizes[i].spec, sizes[i].gpus, looked[i].reason});
  }
  const bool same_failure = !looked.empty() && curve.points.empty() && looked.front().failure != ExitCode::kOk;
  if (same_failure && looked.front().failure != ExitCode::kInfeasible)
    throw Error(looked.front().failure, looked.front().reason);
  std::ranges::sort(curve.points,
      [](const ScalePoint& a, const ScalePoint& b) { return a.sized.cluster.gpus < b.sized.cluster.gpus; });
  std::vector<std::pair<std::int64_t, double>> rates;
  for (ScalePoint& point : curve.points) {
    const SizedPlan& first = curve.points.front().sized;
    point.speedup = point.sized.tokens_per_s.value / first.tokens_per_s.value;
    point.efficiency = point.speedup * as_double(first.cluster.gpus) / as_double(point.sized.cluster.gpus);
    rates.emplace_back(point.sized.cluster.gpus, point.sized.tokens_per_s.value);
  }
  curve.knee = knee_of(std::move(rates));
  return curve;
}

std::string scale_text(const ScalingCurve& curve, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines = {paint.bold(curve.model),
      fmt::format("{} · {} scaling · sequence {} · efficiency against the smallest", curve.machine,
          curve.weak ? "weak" : "strong", format_count(curve.sequence)),
      ""};
  std::vector<std::vector<std::string>> table = {
      {"  GPUs", "batch", "step", "90 %", "tokens/s", "per GPU", "efficiency", "", "MFU", "exposed"}};
  for (const ScalePoint& point : curve.points) {
    const SizedPlan& s = point.sized;
    table.push_back({"  " + format_count(s.cluster.gpus), format_count(sequences_of(s.plan)),
        seconds_text(s.step.value), fmt::format("{} .. {}", seconds_text(s.step.low), seconds_text(s.step.high)),
        cardinal(s.tokens_per_s.value), cardinal(s.tokens_per_s.value / as_double(s.cluster.gpus)),
        percent_text(point.efficiency), left(bar(std::min(1.0, point.efficiency), 10), 10), percent_text(s.mfu.value),
        percent_text(s.exposed_share)});
  }
  for (std::string& line : aligned(table)) lines.push_back(std::move(line));
  table = {{"  GPUs", "shard", "reshard", "prefetch", "recompute", "micro-batch", "to spare", "fits", "USD/1M tok"}};
  for (const ScalePoint& point : curve.points) {
    const SizedPlan& s = point.sized;
    table.push_back({"  " + format_count(s.cluster.gpus), format_count(s.plan.mesh.shard), reshard_words(s.plan),
        words_of(s.plan.prefetch), recompute_words(s.plan), batch_words(s.plan), format_bytes(s.fit.margin()),
        chance_text(s.fit_probability), fmt::format("{:.3g}", dollars_per_million(point))});
  }
  lines.emplace_back();
  for (std::string& line : aligned(table)) lines.push_back(std::move(line));
  lines.emplace_back();
  if (curve.points.size() > 1) {
    lines.push_back(curve.knee ? fmt::format("knee: beyond {} GPUs a doubling brings less than {} times the tokens/s",
                                     format_count(*curve.knee), kKneeGain)
                               : fmt::format("no knee among these sizes: every doubling brings {} times the tokens/s "
                                             "or more",
                                     kKneeGain));
  }
  // The same codes at every size; the figures of the largest.
  if (!curve.points.empty()) {
    const std::string open = open_stack_text(curve.points.back().sized.open_stack);
    for (std::string& line : wrapped(open, kTextWidth, 2)) lines.push_back(std::move(line));
  }
  for (const Rejected& one : curve.rejected)
    for (std::string& line : wrapped(fmt::format("no point: {}: {}", one.cluster, one.reason), kTextWidth, 2))
      lines.push_back(std::move(line));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const ScalingCurve& curve) {
  Json json = {{"schema", "foreshard.scale/1"}, {"model", curve.model}, {"machine", curve.machine},
      {"scaling", curve.weak ? "weak" : "strong"}, {"sequence", curve.sequence}, {"knee_gpus", nullptr}};
  if (curve.knee) json["knee_gpus"] = *curve.knee;
  json["points"] = json_list(
      curve.points,
      [&](const ScalePoint& point) -> Json {
        const SizedPlan& s = point.sized;
        return {{"cluster", s.cluster.spec}, {"gpus", s.cluster.gpus}, {"global_batch", sequences_of(s.plan)},
            {"plan", to_json(s.plan)}, {"step_s", to_json(s.step)}, {"tokens_per_s", to_json(s.tokens_per_s)},
            {"speedup", point.speedup}, {"efficiency", point.efficiency}, {"mfu", to_json(s.mfu)},
            {"exposed_communication", s.exposed_share}, {"margin_bytes", s.fit.margin().count()},
            {"fit_probability", s.fit_probability}, {"open", open_json(s.open_stack)},
            {"dollars_per_million_tokens", dollars_per_million(point)}};
      });
  json["rejected"] = json_list(curve.rejected, [&](const Rejected& one) -> Json {
    return {{"cluster", one.cluster}, {"gpus", one.gpus}, {"reason", one.reason}};
  });
  return json;
}

std::string scale_csv(const ScalingCurve& curve) {
  std::string text =
      "gpus,global_batch,step_s,step_s_low,step_s_high,tokens_per_s,tokens_per_s_per_gpu,speedup,efficiency,mfu,"
      "exposed_communication,shard,replicate,reshard,prefetch,recompute,micro_batch,accumulation\n";
  for (const ScalePoint& point : curve.points) {
    const SizedPlan& s = point.sized;
    const Plan& plan = s.plan;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", s.cluster.gpus, sequences_of(plan),
        s.step.value, s.step.low, s.step.high, s.tokens_per_s.value, s.tokens_per_s.value / as_double(s.cluster.gpus),
        point.speedup, point.efficiency, s.mfu.value, s.exposed_share, plan.mesh.shard, plan.mesh.replicate,
        words_of(plan.reshard_after_forward.value), words_of(plan.prefetch), to_string(plan.recompute.value),
        plan.batch.micro_batch, plan.batch.accumulation);
  }
  return text;
}

}
