// Which axes a search tries, and that it is never worse for trying them.
#include "planner/axes_variants.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "planner/changes.h"
#include "planner/job_search.h"
#include "planner/search_space.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/training_step.h"
#include "sim/search/bounds.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard::axes_variants_test {
namespace {

Job job_of(const std::string& model, const std::string& cluster, const std::string& sequence,
    const std::vector<std::string>& set = {}) {
  JobOptions options = {.model = model, .cluster = cluster, .sequence = sequence};
  options.assignments.push_back(set);
  return load_job(options);
}

std::int64_t largest(const std::vector<Job>& jobs, std::int64_t Mesh::*axis) {
  std::int64_t most = 1;
  for (const Job& job : jobs) most = std::max(most, job.resolved.plan.mesh.*axis);
  return most;
}

std::int64_t best_ranks(const JobSearch& found) { return found.result.best->plan.mesh.pp; }

SearchOptions one_thread() { return SearchOptions{.threads = 1, .detail = SearchDetail::kBest}; }

// Attention with a bias of its heads is of heads, and what an encoder hands over is gathered as what the block itself
// has: each sum of a block is scattered, and each norm's output gathered, once.
TEST(TensorParallel, BlocksOfAnEncoderAndADecoderAreCutAlike) {
  const Job job = job_of("t5-small", "8xh100", "512", {"mesh.tp=2"});
  std::vector<std::pair<int, int>> found;  // all-gathers and reduce-scatters of each kind of block
  for (const LayerSpec& layer : part_of_rank(job.model, job.resolved.plan).kinds) {
    if (layer.role != LayerRole::kBlock) continue;
    const auto count = [&](CollectiveKind kind) {
      return static_cast<int>(
          std::ranges::count_if(layer.operations, [&](const Operation& op) { return op.collective.kind == kind; }));
    };
    found.emplace_back(count(CollectiveKind::kAllGather), count(CollectiveKind::kReduceScatter));
  }
  // With the bias and without; the decoder's first also gathers the encoder's states.
  EXPECT_EQ(found, (std::vector<std::pair<int, int>>{{2, 2}, {2, 2}, {4, 3}, {3, 3}}));
}

TEST(AxesVariants, AreLegalAndDifferAndShareTheBatch) {
  for (const auto& [model, cluster, batch] : {std::tuple("llama-3.1-8b", "32xh100", 16),
           std::tuple("qwen3-30b-a3b", "16xh100", 32), std::tuple("deepseek-v2-lite", "24xa100", 24)}) {
    SCOPED_TRACE(model);
    const Job job = job_of(model, cluster, "8192");
    const std::vector<Job> jobs = jobs_over_axes(job, axis_keys(), batch);
    ASSERT_FALSE(jobs.empty());
    std::set<std::vector<std::int64_t>> seen;
    for (const Job& other : jobs) {
      const Mesh& mesh = other.resolved.plan.mesh;
      EXPECT_FALSE(find_problem(other.resolved.plan, other.model, other.cluster));
      EXPECT_EQ(mesh.world(), job.cluster.gpus);
      EXPECT_EQ(batch % mesh.data_parallel(), 0);
      EXPECT_LE(mesh.tp, job.cluster.gpus_per_node());
      EXPECT_FALSE(mesh.is_plain() && mesh.pp == 1);
      const std::int64_t stages = other.resolved.plan.pipeline.stages_per_rank;
      EXPECT_TRUE(seen.insert({mesh.tp, mesh.cp, mesh.ep, mesh.etp, mesh.pp, stages}).second);
    }
  }
}

// Each of 2 groups of 4 experts is shared by 32 ranks, of which 28 would hold padding alone if the
// experts were cut along their first dimension.
TEST(AxesVariants, SharedExpertsAreCutAlongTheNextDimension) {
  const Job job = job_of("mixtral-8x7b", "64xh100", "8192", {"mesh.ep=2"});
  const auto gathered = [&](std::int64_t dimension) {
    Plan plan = job.resolved.plan;
    plan.units.shard_dim = dimension;
    return std::ranges::max(build_training_step(job.model, plan).units, {}, &Unit::padded_numel).padded_numel();
  };
  EXPECT_EQ(8 * gathered(job.resolved.plan.units.shard_dim), gathered(0));
}

// Grouped-query attention of 8 key/value heads; a dense model; latent attention; 4,096 positions.
TEST(AxesVariants, FollowTheModel) {
  const auto of = [](const char* model, const char* sequence) {
    return jobs_over_axes(job_of(model, "64xh100", sequence), axis_keys(), 64);
  };
  const std::vector<Job> dense = of("llama-3.1-8b", "16384");
  EXPECT_EQ(largest(dense, &Mesh::tp), 8);
  EXPECT_EQ(largest(dense, &Mesh::cp), 8);
  EXPECT_EQ(largest(dense, &Mesh::ep), 1);
  EXPECT_GE(largest(dense, &Mesh::pp), 8);
  const std::vector<Job> latent = of("deepseek-v2-lite", "4096");
  EXPECT_EQ(largest(latent, &Mesh::cp), 2);
  EXPECT_EQ(largest(latent, &Mesh::ep), 64);
}

TEST(AxesVariants, WhatIsSetStaysAndOtherRuntimesHaveNone) {
  const Job job = job_of("qwen3-30b-a3b", "16xh100", "4096", {"mesh.ep=8"});
  const std::vector<Job> jobs = jobs_over_axes(job, axis_keys(), 16);
  ASSERT_FALSE(jobs.empty());
  for (const Job& other : jobs) EXPECT_EQ(other.resolved.plan.mesh.ep, 8);
  for (const Job& other : jobs_over_axes(job_of("qwen3-30b-a3b", "16xh100", "4096"), {"mesh.ep"}, 16)) {
    EXPECT_EQ(other.resolved.plan.mesh.tp * other.resolved.plan.mesh.cp, 1);
  }
  EXPECT_TRUE(jobs_over_axes(job_of("gpt2", "8xh100", "1024", {"runtime=ddp"}), axis_keys(), 8).empty());
  EXPECT_TRUE(jobs_over_axes(job_of("llama-3.1-405b", "8xh100", "4096"), axis_keys(), 8).empty());
}

// Stages are for who asks, and for models whose ends share no table.
TEST(AxesVariants, StagesAreForWhereTheyMatter) {
  const auto of = [](const char* model, const char* cluster, const std::vector<std::string>& keys,
                      const std::vector<std::string>& set = {}) {
    return jobs_over_axes(job_of(model, cluster, "2048", set), keys, 32);
  };
  EXPECT_EQ(largest(of("llama-3.1-8b", "16xh100", inner_axis_keys()), &Mesh::pp), 1);
  // Of 8 no fully_shard is left, whose dtypes these are.
  EXPECT_EQ(largest(of("llama-3.1-8b", "8xh100", {"mesh.pp"}), &Mesh::pp), 4);
  EXPECT_EQ(largest(of("llama-3.2-1b", "16xh100", {"mesh.pp"}), &Mesh::pp), 1);
  const std::vector<Job> set = of("llama-3.1-8b", "16xh100", {"mesh.pp"}, {"pipeline.schedule=GPipe"});
  ASSERT_FALSE(set.empty());
  for (const Job& job : set) EXPECT_EQ(job.resolved.plan.pipeline.schedule, PipelineSchedule::kGPipe);
}

// Of stages as of other axes; which number of them won is told beside.
TEST(AxesVariants, StagesAreSearchedAndPredictedAlike) {
  for (const std::vector<std::string>& set : {std::vector<std::string>{"mesh.pp=2"},
           std::vector<std::string>{
               "mesh.pp=2", "pipeline.schedule=Interleaved1F1B", "pipeline.stages_per_rank=2", "mesh.tp=2"},
           std::vector<std::string>{"mesh.pp=4", "runtime=megatron", "recompute=none"}}) {
    const Job job = job_of("llama-3.1-8b", "16xh100", "2048", set);
    const JobSearch found = search_job(search_variants(job, {"16", {}}), one_thread());
    ASSERT_TRUE(found.result.best);
    const Candidate& best = *found.result.best;
    EXPECT_EQ(best.plan.mesh.pp, job.resolved.plan.mesh.pp);
    EXPECT_EQ(global_batch(best.plan), 16);
    const Job& chosen = found.chosen.job;
    const auto predicted = changed_job(chosen, assignments_to(chosen, best.plan));
    ASSERT_TRUE(predicted.has_value());
    EXPECT_EQ(predicted->resolved.plan, best.plan);
    const Forecast made = forecast(predicted->model, best.plan, cost_model(*predicted));
    EXPECT_EQ(made.timeline.period.seconds(), best.seconds);
    EXPECT_EQ(made.memory.peak, best.peak_allocated);
    EXPECT_EQ(made.reserved.peak, best.peak_reserved);
  }
  const Job job = job_of("llama-3.1-8b", "16xh100", "2048");
  const JobSearch found = search_job(search_variants(job, {"32", {"mesh.pp"}}), one_thread());
  ASSERT_TRUE(found.result.best);
  ASSERT_GE(found.pipelines.size(), 4U);  // 1, 2, 4, 8
  for (const PipelineStep& step : found.pipelines) {
    if (step.seconds) {
      EXPECT_LE(step.at_least, *step.seconds);
    }
    if (step.pp == best_ranks(found)) {
      EXPECT_EQ(step.seconds, found.result.best->seconds);
    }
  }
}

// Where the sides of the mesh are a plan file's, they give way; where they are set, they stay.
TEST(AxesVariants, GiveWayToAMeshThatIsSet) {
  const Job job = job_of("llama-3.2-1b", "8xh100", "4096", {"mesh.shard=2"});
  for (const Job& other : jobs_over_axes(job, axis_keys(), 8)) EXPECT_EQ(other.resolved.plan.mesh.shard, 2);
}

// Of every combination of axes and loss, each searched by itself.
double best_of_all(const Job& job, const std::string& batch) {
  const std::int64_t sequences = read_global_batch(batch);
  std::vector<Job> meshes = jobs_over_axes(job, inner_axis_keys(), sequences);
  meshes.push_back(job);
  double best = kAnyStep;
  for (const Job& mesh : meshes) {
    if (sequences % mesh.resolved.plan.mesh.data_parallel() != 0) continue;
    std::vector<Job> jobs = free_variants(mesh);
    jobs.push_back(mesh);
    for (const Job& each : jobs) {
      const JobSearch found = search_job({variants_by_model(each, {batch, {}})}, one_thread());
      if (found.result.best) best = std::min(best, found.result.best->seconds);
    }
  }
  return best;
}

const std::vector<std::string> kOnePrefetch = {"prefetch.forward=1", "prefetch.backward=1"};

// Nobody has to ask for axes.
Plan freely_found(const Job& job, const std::string& batch) {
  const JobSearch found = search_job(search_variants(job, {batch, {}}), one_thread());
  EXPECT_TRUE(found.result.best);
  if (!found.result.best) return {};
  EXPECT_NEAR(found.result.best->seconds / best_of_all(job, batch), 1, SearchOptions().tie);
  return found.result.best->plan;
}

TEST(AxesVariants, ABatchOfFewerSequencesThanGpusIsSharedOut) {
  const Plan plan = freely_found(job_of("llama-3.2-1b", "8xh100", "8192"), "4");
  EXPECT_GE(plan.mesh.tp * plan.mesh.cp, 2);
  EXPECT_EQ(global_batch(plan), 4);
}

TEST(AxesVariants, MixturesSpreadTheirExpertsAndTakeTheLossInParts) {
  const Job job = job_of("gpt-oss-20b", "8xh100", "2048", kOnePrefetch);
  const Plan plan = freely_found(job, "64");
  EXPECT_GT(plan.mesh.ep, 1);
  EXPECT_EQ(plan.loss.kind, Loss::Kind::kChunked);
}

// The best step without axes recomputes; parts of the sequence need not to.
TEST(AxesVariants, LongSequencesAreCutRatherThanRecomputed) {
  const Job job = job_of("llama-3.1-8b", "16xh200", "65536", kOnePrefetch);
  const Plan plan = freely_found(job, "16");
  EXPECT_GT(plan.mesh.cp, 1);
  const JobSearch without = search_job({search_variants(job, {"16", {}}).list}, one_thread());
  ASSERT_TRUE(without.result.best);
  EXPECT_TRUE(without.result.best->recomputes());
}

// What asks less of the code is named, as a search says it where axes are set to 1.
TEST(AxesVariants, TheBestPlanWithoutAxesIsNamed) {
  const auto found_in = [](const Job& job) {
    return search_job(search_variants(job, {"16", {}}), one_thread()).result;
  };
  const auto named_in = [&](const Job& job, const SearchResult& found) {
    return find_without_axes(job, {"16", {}}, found, one_thread());
  };
  const Job job = job_of("qwen1.5-moe-a2.7b", "16xh100", "4096");
  const SearchResult found = found_in(job);
  ASSERT_TRUE(found.best);
  ASSERT_GT(found.best->plan.mesh.ep, 1);
  const auto without = named_in(job, found);
  ASSERT_TRUE(without);
  const Job set = job_of("qwen1.5-moe-a2.7b", "16xh100", "4096", without->changes);
  const SearchResult best = found_in(set);
  EXPECT_TRUE(without->candidate.plan.mesh.is_plain());
  EXPECT_EQ(without->candidate.seconds, best.best->seconds);
  EXPECT_FALSE(named_in(set, best));
}

// Nobody who does not ask gets another answer where one holds without that is as fast.
TEST(AxesVariants, AreLeftAloneWhereAPlanHoldsWithout) {
  const Job job = job_of("llama-3.2-1b", "8xh100", "2048");
  const JobSearch found = search_job(search_variants(job, {"64", {}}), one_thread());
  ASSERT_TRUE(found.result.best);
  EXPECT_TRUE(found.result.best->plan.mesh.is_plain());
  EXPECT_THROW(search_variants(job, {"64", {"mesh.pt"}}), Error);
}

// What prunes axes: no step is shorter than its layers with the collectives inside of them.
// What each mesh takes is what a search says where it is set; the winner is the same.
TEST(AxesVariants, EachMeshHasItsBestStep) {
  const auto searched = [](std::vector<std::string> set, bool each) {
    set.emplace_back("loss=eager");  // which varies with axes that are set, or around the best
    const Job job = job_of("llama-3.2-1b", "4xh100", "8192", set);
    SearchVariants variants = search_variants(job, {"8", {"mesh.tp", "mesh.cp"}});
    variants.each_mesh = each;
    return search_job(variants, one_thread());
  };
  const JobSearch all = searched({}, true), best = searched({}, false);
  EXPECT_EQ(all.result.best->plan, best.result.best->plan);
  EXPECT_TRUE(best.meshes.empty());
  // tp and cp of 1, 2 and 4 over four GPUs, but tp 4: without fully_shard nothing casts.
  EXPECT_EQ(all.meshes.size(), 5U);
  for (const auto& [mesh, seconds] : all.meshes) {
    const JobSearch one = searched({fmt::format("mesh.tp={}", mesh.tp), fmt::format("mesh.cp={}", mesh.cp)}, false);
    ASSERT_EQ(one.result.best.has_value(), seconds.has_value());
    if (!seconds) continue;
    EXPECT_NEAR(one.result.best->seconds / *seconds, 1, SearchOptions().tie);
  }
}

RC_GTEST_PROP(AxesVariantsProperty, NoStepUndercutsItsLayers, ()) {
  const std::string model = *rc::gen::element<std::string>("llama-3.2-1b", "qwen1.5-moe-a2.7b");
  const Job job = job_of(model, "16xa100", "4096");
  const std::vector<Job> jobs = jobs_over_axes(job, axis_keys(), 16);
  const Job& other = *rc::gen::elementOf(jobs);
  Plan plan = other.resolved.plan;
  RC_PRE(plan.mesh.pp == 1);  // tests/sim/search/pipeline_search_test.cpp
  plan.batch.accumulation = *rc::gen::inRange<std::int64_t>(1, 6);
  plan.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  const CostModel costs = cost_model(other);
  const auto bounds_at = [&](std::int64_t micro_batches) {
    Plan few = plan;
    few.batch.accumulation = micro_batches;
    const EventGraph graph = build_training_step(other.model, few);
    const CostTable table = costs.price(graph);
    RC_ASSERT(layers_bound(graph, table) <= contended_bound(graph, table));
    return std::pair(layers_bound(graph, table), contended_bound(graph, table));
  };
  const EventGraph graph = build_training_step(other.model, plan);
  const Time period = Simulator().period(graph, costs.price(graph));
  const auto [layers, contended] = bounds_at(plan.batch.accumulation);
  RC_ASSERT(Time() < layers);
  RC_ASSERT(contended <= period);
  if (plan.batch.accumulation < 3) return;
  const auto two = bounds_at(2), three = bounds_at(3);
  RC_ASSERT(extended_bound(two.first, three.first, plan.batch.accumulation) <= period);
  RC_ASSERT(extended_bound(two.second, three.second, plan.batch.accumulation) <= period);
}

}
}
