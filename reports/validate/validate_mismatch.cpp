// Keys that only change numbers (learning rate, seed, evaluation) or only prices (cluster) cannot
// change a fingerprint. The model is named by path, which may differ for the same model, so it
// counts only where nothing else does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reports/validate/validate.h"
#include "reports/view/plan_words.h"

namespace foreshard {
namespace {

bool changes_the_step(const std::string& key) {
  if (key == "model" || key == "cluster" || key == "seed") return false;
  if (key.starts_with("evaluation.")) return false;
  if (!key.starts_with("optimizer.")) return true;
  return key == "optimizer.kind" || key == "optimizer.implementation" || key == "optimizer.state" ||
         key == "optimizer.clip_norm";
}

std::string version_of(const RunRecord& record) {
  for (const auto& [name, version] : record.versions) {
    if (name == "foreshard") return version;
  }
  return "";
}

}  // namespace

std::string mismatch_sentence(const Forecast& forecast, const Plan& ran, const RunRecord& record,
                              std::string_view version) {
  std::vector<std::string> causes;
  std::string model;
  for (const PlanDifference& d : plan_differences(forecast.plan, ran)) {
    if (d.key == "model") model = fmt::format("model (plan {}, run {})", d.a, d.b);
    if (changes_the_step(d.key)) {
      causes.push_back(fmt::format("{} (plan {}, run {})", d.key, d.a, d.b));
    }
  }
  const std::string other = version_of(record);
  std::string why;
  if (!causes.empty()) {
    why = fmt::format("they differ in {}", fmt::join(causes, ", "));
  } else if (!model.empty()) {
    why = "they differ in " + model;
  } else if (!other.empty() && other != version) {
    why =
        fmt::format("the plans are equal; the run is of foreshard {}, this is {}", other, version);
  } else {
    why =
        "the plans are equal: the model's file has changed since, or the programs are of different "
        "builds";
  }
  return fmt::format("the run is of another step: its fingerprint is {}, the plan's {}; {}",
                     record.fingerprint, forecast.graph.fingerprint(), why);
}

}  // namespace foreshard
