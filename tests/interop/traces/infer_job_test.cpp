// A plan's step, written down as a trace of the profiler has it, gives the plan back.
#include "interop/traces/infer_job.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>

#include "interop/traces/trace_files.h"
#include "models/families.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/support/cuda_trace.h"
#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

FsdpTrace trace_of(const ModelSpec& model, const Plan& plan, const CudaTraceOptions& options = {}) {
  const CostModel costs(round_cluster(plan.mesh.world()), round_calibration());
  const Forecast made = forecast(model, plan, costs);
  const TemporaryFolder folder;
  return read_job_traces(folder.write("trace.json", cuda_trace(made, made.timeline, options))).front();
}

std::string value_of(const InferredJob& job, const std::string& key) {
  for (const InferredKey& inferred : job.keys) {
    if (inferred.key == key) return inferred.value;
  }
  return "";
}

std::vector<std::string> asked_keys(const InferredJob& job) {
  std::vector<std::string> keys;
  for (const AskedKey& key : job.asked) keys.push_back(key.key);
  return keys;
}

// What the inferred keys make of an empty plan.
Plan plan_of(const InferredJob& job, const ModelSpec& model) {
  PlanDocument document;
  for (const InferredKey& key : job.keys) {
    document = key.key == "model" || key.key == "cluster"
                   ? apply_flag(std::move(document), "--" + key.key, key.key, key.value)
                   : apply_set(std::move(document), key.key + "=" + key.value);
  }
  Cluster cluster = round_cluster(document.plan.mesh.world());
  return resolve(document, model, cluster).plan;
}

CudaTraceOptions with_shapes() { return CudaTraceOptions{.steps = 1, .shapes = true}; }

TEST(InferJob, NamesTheZoosModelByTheSizesOfItsUnits) {
  Plan plan = {.model = "gpt2", .cluster = "16xh100", .batch = {512, 4, 1}, .mesh = {16, 1}};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  const ModelSpec model = load_zoo_model("gpt2");
  const InferredJob job = infer_job(trace_of(model, plan), std::nullopt);
  EXPECT_EQ(value_of(job, "model"), "gpt2");
  EXPECT_EQ(value_of(job, "cluster"), "16xh100");
  EXPECT_EQ(asked_keys(job), (std::vector<std::string>{"batch.sequence", "batch.micro_batch"}));
  EXPECT_EQ(job.order, 1);
}

TEST(InferJob, MakesTheModelOfTheShapesWhereNobodyNamedOneLikeIt) {
  const ModelSpec model = tiny_model(5);
  Plan plan = tiny_plan();
  plan.cluster = "8xh100";
  const InferredJob job = infer_job(trace_of(model, plan, with_shapes()), std::nullopt);
  ASSERT_TRUE(job.model.has_value());
  EXPECT_EQ(job.model->parameters(), model.parameters());
  EXPECT_EQ(job.model->block_count(), 5);
  EXPECT_EQ(asked_keys(job), std::vector<std::string>());
  EXPECT_EQ(value_of(job, "batch.sequence"), "128");
  EXPECT_EQ(value_of(job, "batch.micro_batch"), "2");
  EXPECT_EQ(value_of(job, "units.head"), "with_norm");
  EXPECT_EQ(job.order, 1);
}

TEST(InferJob, AsksForWhatTheTraceDoesNotTell) {
  CudaTraceOptions options = {.device = "A card of tomorrow"};
  const InferredJob job = infer_job(trace_of(tiny_model(3), tiny_plan(), options), std::nullopt);
  EXPECT_EQ(asked_keys(job), (std::vector<std::string>{"cluster", "batch.sequence", "batch.micro_batch", "model"}));
  for (const AskedKey& key : job.asked) {
    EXPECT_FALSE(key.flag.empty());
    EXPECT_FALSE(key.why.empty());
  }
}

TEST(InferJob, RefusesANamedModelOfOtherSizes) {
  const FsdpTrace trace = trace_of(tiny_model(3), tiny_plan());
  try {
    infer_job(trace, load_zoo_model("gpt2"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("no grouping of the layers of gpt2"), std::string::npos) << error.what();
  }
}

TEST(InferJob, TakesANamedModelByItsSizes) {
  const InferredJob job = infer_job(trace_of(tiny_model(3), tiny_plan()), tiny_model(3));
  EXPECT_EQ(value_of(job, "units.head"), "with_norm");
  EXPECT_EQ(value_of(job, "units.embedding"), "own");
  EXPECT_EQ(job.order, 1);
}

// What real FSDP2 jobs issued (tests/interop/traces/README.md).
const fs::path kHost = fs::path(FORESHARD_SOURCE_DIR) / "tests/interop/traces/fsdp2_cuda_host";

TEST(InferRealJob, ReadsReplicasSelectiveRecomputeAndPrefetch) {
  const InferredJob job = infer_job(read_job_traces(kHost / "hsdp.trace.json").front(), std::nullopt);
  EXPECT_EQ(asked_keys(job), std::vector<std::string>());
  ASSERT_TRUE(job.model.has_value());
  EXPECT_EQ(job.model->block_count(), 4);
  EXPECT_EQ(job.model->hidden, 1024);
  EXPECT_EQ(job.model->vocabulary, 32000);
  const std::pair<const char*, const char*> expected[] = {
      {"cluster", "32xh100"},
      {"batch.sequence", "2048"},
      {"batch.micro_batch", "2"},
      {"batch.accumulation", "2"},
      {"mesh.shard", "8"},
      {"mesh.replicate", "4"},
      {"units.embedding", "own"},
      {"units.head", "with_norm"},
      {"reshard_after_forward", R"([{"units":5,"value":"never"}])"},
      {"prefetch.forward", "1"},
      {"recompute", "selective"},
      {"attention", "flash"},
      {"dtype.param", "bf16"},
      {"dtype.reduce", "fp32"},
      {"accumulation.mode", "reduce_each"},
      {"optimizer.implementation", "fused"},
      {"optimizer.clip_norm", "1.0"},
  };
  for (const auto& [key, value] : expected) EXPECT_EQ(value_of(job, key), value) << key;
  // The job lists blocks alone; a plan's lists have the ends, too.
  EXPECT_GT(job.order, 0.85);
}

TEST(InferRealJob, ReadsSmallerGroupsOfBackwardWithoutShapes) {
  const FsdpTrace trace = read_job_traces(kHost / "group.trace.json").front();
  const InferredJob job = infer_job(trace, std::nullopt);
  EXPECT_EQ(asked_keys(job), (std::vector<std::string>{"batch.sequence", "batch.micro_batch", "model"}));
  ModelDims dims = *family_dims("llama");
  dims.name = "four layers of llama-3.1-8b";
  dims.source = "tests/interop/traces/README.md";
  dims.layers = 4;
  dims.hidden = 4096;
  dims.heads = 32;
  dims.kv_heads = 8;
  dims.head_dim = 128;
  dims.ffn = 14336;
  dims.vocabulary = 128256;
  dims.max_positions = 8192;
  const InferredJob named = infer_job(trace, build_model(dims));
  const std::pair<const char*, const char*> expected[] = {
      {"mesh.shard", "64"},
      {"mesh.replicate", "1"},
      {"units.embedding", "root"},
      {"units.head", "root"},
      {"reshard_after_forward", "8"},
      {"prefetch.forward", "implicit"},
      {"prefetch.backward", "1"},
      {"recompute", "full"},
      {"dtype.reduce", "bf16"},
      {"optimizer.clip_norm", "none"},
  };
  for (const auto& [key, value] : expected) EXPECT_EQ(value_of(named, key), value) << key;
  EXPECT_GT(named.order, 0.95);
}

RC_GTEST_PROP(InferJobProperty, GivesThePlanOfTheStepBack, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(3, 5));
  Plan plan = tiny_plan();
  plan.cluster = "8xh100";
  plan.batch = {*rc::gen::element<std::int64_t>(64, 256), *rc::gen::element<std::int64_t>(1, 2, 3),
      *rc::gen::element<std::int64_t>(1, 1, 2)};
  plan.mesh = {*rc::gen::element<std::int64_t>(2, 8, 64), *rc::gen::element<std::int64_t>(1, 1, 2, 4)};
  if (plan.mesh.replicate > 1) plan.mesh.inner = *rc::gen::element(MeshInner::kShard, MeshInner::kReplicate);
  plan.units.layers_per_unit = *rc::gen::element<std::int64_t>(1, 1, 2);
  plan.units.embedding = *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot);
  plan.units.head = *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm);
  const bool never = *rc::gen::arbitrary<bool>();
  if (never) plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;
  if (!never && plan.mesh.shard == 64 && *rc::gen::arbitrary<bool>()) {
    plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 8};
  }
  if (!never && *rc::gen::arbitrary<bool>()) {
    const std::int64_t last = unit_count(plan, model) - 1;
    plan.reshard_after_forward.ranges = {{last, last, {Reshard::Kind::kNever, 0}}};
  }
  plan.prefetch.forward = *rc::gen::element<std::int64_t>(-1, 1, 2);
  plan.prefetch.backward = *rc::gen::element<std::int64_t>(1, 1, 2);
  plan.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  plan.param_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  plan.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  if (plan.batch.accumulation > 1) {
    plan.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  }
  if (*rc::gen::arbitrary<bool>()) plan.optimizer.clip_norm = 1.0;
  RC_PRE(!find_problem(plan, model, round_cluster(plan.mesh.world())).has_value());

  const InferredJob job = infer_job(trace_of(model, plan, with_shapes()), std::nullopt);
  RC_ASSERT(asked_keys(job).empty());
  RC_ASSERT(job.model.has_value());
  const Plan found = plan_of(job, *job.model);
  RC_LOG() << "found\n" << to_yaml(found) << "wanted\n" << to_yaml(plan);
  // The writer opens no range for a root that only follows its children in later micro-batches.
  RC_ASSERT(job.order > 0.9);
  RC_ASSERT(found.mesh == plan.mesh);
  RC_ASSERT(found.units == plan.units);
  RC_ASSERT(found.batch == plan.batch);
  RC_ASSERT(found.recompute == plan.recompute);
  // Keys that do not matter beside the others (a prefetch of what is never gathered again) may
  // differ: the step may not.
  RC_ASSERT(build_training_step(*job.model, found).fingerprint() == build_training_step(model, plan).fingerprint());
}

}
}
