// Whatever combination of words a job is made of: every buffer of its step is allocated once and
// freed once, and step after step the caching allocator finds it so.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "planner/job.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/reserved.h"

namespace foreshard {
namespace {

JobOptions random_job() {
  const auto one_of = [](std::initializer_list<const char*> words) {
    return std::string(*rc::gen::elementOf(std::vector<const char*>(words)));
  };
  JobOptions job;
  job.model = one_of({"qwen2.5-0.5b", "gpt2", "llama-3.2-1b", "mixtral-8x7b", "gpt-oss-20b",
                      "t5-small", "gemma-3-1b"});
  job.cluster = "8xb200";
  job.runtime = one_of({"fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3", "native"});
  job.sequence = "512";
  job.accumulation = one_of({"1", "2", "3"});
  auto& set = job.assignments.emplace_back();
  const auto draw = [&](const std::string& key, std::initializer_list<const char*> words) {
    set.push_back(key + "=" + one_of(words));
  };
  draw("stack", {"none", "hf_trainer", "lightning", "torchtitan_2025"});
  draw("dtype.param", {"fp32", "bf16"});
  draw("attention", {"flash", "cudnn", "math", "efficient"});
  if (*rc::gen::arbitrary<bool>()) draw("experts", {"grouped", "loop", "transformers"});
  if (*rc::gen::arbitrary<bool>()) draw("units.shard_dim", {"0", "experts", "1"});
  draw("recompute", {"none", "selective", "full"});
  draw("compile", {"none", "blocks"});
  draw("loss", {"eager", "fused", "compiled", "chunked-8"});
  if (*rc::gen::arbitrary<bool>()) draw("dtype.autocast", {"bf16", "none"});
  if (*rc::gen::arbitrary<bool>()) draw("float8", {"rowwise", "tensorwise"});
  return job;
}

RC_GTEST_PROP(BalancedMemoryProperty, EveryBufferIsFreedOnce, ()) {
  const JobOptions options = random_job();
  std::optional<Job> job;
  try {
    job = load_job(options);
  } catch (const Error& error) {
    RC_ASSERT(error.exit_code() != ExitCode::kInternal);  // else: words that contradict each other
    RC_DISCARD("refused");
  }
  const EventGraph graph = build_training_step(job->model, job->resolved.plan);
  RC_ASSERT(replay_allocations(graph).peak == peak_allocated(graph));
  ReservedReplay replay(graph, job->resolved.plan.allocator, DeviceMemory::unlimited());
  for (int step = 0; step < 2; ++step) replay.run_step();
}

// Experts with biases and one weight for gate and up are not those that transformers' grouped
// products are written for.
TEST(BalancedMemory, ExpertsWithBiasesStayAsTheyAre) {
  JobOptions options;
  options.model = "gpt-oss-20b";
  options.cluster = "64xh100";
  options.runtime = "fsdp2";
  options.sequence = "512";
  options.assignments.push_back({"experts=transformers", "units.shard_dim=1"});
  const Job job = load_job(options);
  const EventGraph graph = build_training_step(job.model, job.resolved.plan);
  EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph));
}

}  // namespace
}  // namespace foreshard
