// scale: one machine kind, several sizes.

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/page.h"
#include "cli/progress.h"
#include "cli/verbs/verbs.h"
#include "planner/amounts.h"
#include "planner/sized_jobs.h"
#include "reports/page/page.h"
#include "reports/sizing/recommend.h"

namespace foreshard {
namespace {

// The answer, with what moves the step at the knee, or at the largest size.
Json body_of(const ScalingCurve& curve) {
  Json body = to_json(curve);
  if (curve.points.empty()) return body;
  const ScalePoint* at = &curve.points.back();
  for (const ScalePoint& point : curve.points)
    if (point.sized.cluster.gpus == curve.knee) at = &point;
  const SizedPlan& sized = at->sized;
  const SizedJob& job = *sized.job;
  body["sensitivity"] = sensitivity_json(forecast(job.model, sized.plan, job.costs), job.costs);
  body["sensitivity"]["gpus"] = sized.cluster.gpus;
  return body;
}

}

ExitCode run_scale(const ScaleOptions& options) {
  const auto machine = find_machine(options.cluster);
  if (!machine) {
    throw invalid_input(
        "--cluster {}: expected a machine without a count, such as h100 (foreshard machines); sizes are --gpus "
        "8,64,512",
        options.cluster);
  }
  const PriceList prices = options.prices.empty() ? PriceList() : read_prices(options.prices);
  const SizedJobs jobs(options.job, options.vary, prices, options.prices);
  const auto spec = [&](std::int64_t gpus) { return machine->spec(gpus); };
  const Cluster& node = machine->machine.node;
  RecommendOptions how = {.threads = options.threads, .confidence = options.confidence};
  const std::int64_t sequence = jobs.job(spec(node.gpus)).resolved.plan.batch.sequence;
  how.most_sequences =
      options.weak > 0 ? options.weak : most_sequences(options.global_batch, options.batch_tokens, sequence);
  const std::int64_t largest = options.weak > 0 ? kMaxGpus : most_gpus(node, options.vary, how.most_sequences);
  const std::vector<std::int64_t> sizes =
      options.gpus.empty() ? likely_sizes(node, 0, RunTerms(), largest) : parse_counts("--gpus", options.gpus);
  auto candidates = list_of<CandidateCluster>(sizes, [&](const std::int64_t gpus) {
    return CandidateCluster{machine->machine.key, spec(gpus), gpus};
  });
  if (candidates.empty()) {
    throw invalid_input(
        "a step of {} sequences is less than one for every GPU of a node of {}", how.most_sequences, node.gpus);
  }
  Progress progress("scale");
  how.progress = progress.until_interrupted();
  const ScalingCurve curve =
      blame_profile(options.job, [&] { return scale(candidates, std::cref(jobs), options.weak > 0, how); });
  Json json;
  if (!options.html.empty() || options.output.form == Form::kJson)
    json = document_json("foreshard.scale/1", body_of(curve));
  if (!options.html.empty()) write_answer_page(options.html, json, options.output.command);
  if (options.csv) write_answer(scale_csv(curve));
  else if (options.output.form == Form::kJson) write_answer(to_text(json));
  else write_text(scale_text(curve, color_of(options.output.color)));
  return curve.points.empty() ? ExitCode::kInfeasible : ExitCode::kOk;
}

}
