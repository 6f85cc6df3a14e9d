// No plan over axes that somebody can set beats a search that is free to choose them. Other jobs
// are drawn with --gtest_random_seed=N.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "planner/axes_variants.h"
#include "planner/job_search.h"

namespace foreshard::free_search_test {
namespace {

using Words = std::vector<std::string>;

std::optional<Candidate> best_of(const Job& job, const std::string& batch) {
  return search_job(search_variants(job, {batch, {}}), {.threads = 1, .detail = SearchDetail::kBest}).result.best;
}

TEST(FreeSearch, IsNotBeatenByAxesThatAreSet) {
  constexpr double kSlower = 1e-3;
  std::mt19937 random(static_cast<unsigned>(GTEST_FLAG_GET(random_seed)));
  const auto draw = [&](const auto& values) { return values[random() % values.size()]; };
  for (int i = 0; i < 2; ++i) {
    const std::string model = draw(Words{"llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "gpt-oss-20b",
        "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b"});
    const std::int64_t gpus = draw(std::vector<std::int64_t>{8, 16, 64, 128});
    const std::string cluster = std::to_string(gpus) + "x" + draw(Words{"h100", "h200", "a100", "a100-40gb", "mi300x"});
    const std::string sequence = draw(Words{"2048", "4096", "8192", "32768", "65536"});
    const std::int64_t batch =
        gpus * draw(std::vector<std::int64_t>{1, 2, 8}) / draw(std::vector<std::int64_t>{1, 1, 2});
    const JobOptions options = {.model = model, .cluster = cluster, .sequence = sequence};
    Job job;
    try {
      job = load_job(options);
    } catch (const Error&) {
      continue;  // more positions than the model has
    }
    const std::vector<Job> meshes = jobs_over_axes(job, inner_axis_keys(), batch);
    if (meshes.empty()) continue;
    const Mesh mesh = draw(meshes).resolved.plan.mesh;
    JobOptions with = options;
    with.assignments.push_back({fmt::format("mesh.tp={}", mesh.tp), fmt::format("mesh.cp={}", mesh.cp),
        fmt::format("mesh.ep={}", mesh.ep), fmt::format("mesh.etp={}", mesh.etp)});
    SCOPED_TRACE(fmt::format(
        "{} on {}, {} x {}, {}", model, cluster, batch, sequence, fmt::join(with.assignments.front(), " ")));
    const auto set = best_of(load_job(with), std::to_string(batch));
    if (!set) continue;
    const auto found = best_of(job, std::to_string(batch));
    ASSERT_TRUE(found);
    EXPECT_LE(found->seconds, set->seconds * (1 + kSlower));
  }
}

}
}
