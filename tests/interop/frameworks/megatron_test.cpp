// Megatron-Bridge's and NeMo's settings become a plan of runtime megatron.
#include <gtest/gtest.h>

#include <string>

#include "interop/frameworks/frameworks.h"
#include "sim/base/config.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

ForeignPlan read(const std::string& text) { return read_megatron(parse_yaml(text, "job.yaml")); }

TEST(ReadMegatron, BridgesDegreesAndOverlaps) {
  const ForeignPlan plan = read(R"(
model:
  tensor_model_parallel_size: 4
  context_parallel_size: 2
  sequence_parallel: true
  cp_comm_type: a2a
  seq_length: 8192
  recompute_granularity: full
train: {micro_batch_size: 1, global_batch_size: 128}
ddp: {overlap_grad_reduce: true, overlap_param_gather: false, grad_reduce_in_fp32: false}
comm_overlap: {tp_comm_overlap: true}
optimizer: {clip_grad: 1.0, lr: 0.0003}
mixed_precision: bf16_mixed
)");
  EXPECT_EQ(plan.value("runtime"), "megatron");
  EXPECT_EQ(plan.value("mesh.tp"), "4");
  EXPECT_EQ(plan.value("mesh.cp"), "2");
  EXPECT_EQ(plan.value("context_parallel.rotate"), "ulysses");
  EXPECT_EQ(plan.value("batch.global"), "128");
  EXPECT_EQ(plan.value("recompute"), "full");
  EXPECT_EQ(plan.value("megatron.overlap_param_gather"), "false");
  EXPECT_EQ(plan.value("tensor_parallel.async"), "true");
  EXPECT_EQ(plan.value("dtype.reduce"), "bf16");
  EXPECT_EQ(plan.value("dtype.param"), "bf16");
  EXPECT_NO_THROW(document_of(PlanDocument{}, plan));
}

TEST(ReadMegatron, SelectiveRecomputeIsOfModules) {
  const ForeignPlan plan = read(
      "model: {tensor_model_parallel_size: 1, recompute_granularity: selective,\n"
      "        recompute_modules: [moe_act, layernorm]}\n");
  EXPECT_EQ(plan.value("recompute"), "selective");
  EXPECT_EQ(plan.value("megatron.recompute_modules"), "[moe_act, layernorm]");
  const Plan read_back = document_of(PlanDocument{}, plan).plan;
  using Module = MegatronOptions::Module;
  EXPECT_EQ(read_back.megatron.recompute_modules, (std::vector{Module::kMoeAct, Module::kLayernorm}));
  // Megatron-Core's own default.
  const ForeignPlan bare = read("model: {tensor_model_parallel_size: 1, recompute_granularity: selective}\n");
  EXPECT_EQ(document_of(PlanDocument{}, bare).plan.megatron.recompute_modules, std::vector{Module::kCoreAttn});
}

TEST(ReadMegatron, ExpertsGraphsAndDispatchers) {
  const auto job = [](const std::string& settings) {
    return read("model: {tensor_model_parallel_size: 1, expert_model_parallel_size: 8, " + settings +
                "}\ncomm_overlap: {overlap_moe_expert_parallel_comm: true}\n");
  };
  const ForeignPlan whole = job("cuda_graph_impl: full_iteration, moe_flex_dispatcher_backend: hybridep");
  EXPECT_EQ(whole.value("megatron.cuda_graphs"), "iteration");
  EXPECT_EQ(whole.value("megatron.overlap_expert_parallel"), "true");
  EXPECT_EQ(whole.value("expert_parallel.dispatcher"), "deepep");
  EXPECT_NO_THROW(document_of(PlanDocument{}, whole));
  for (const auto& [words, loss] :
      {std::pair{"cross_entropy_loss_fusion: false, cross_entropy_fusion_impl: te", "eager"},
          {"cross_entropy_loss_fusion: true, cross_entropy_fusion_impl: native", "compiled"},
          {"cross_entropy_fusion_impl: te", "fused"}}) {
    EXPECT_EQ(job(words).value("loss"), loss);
  }
  EXPECT_EQ(job("cuda_graph_impl: transformer_engine").value("megatron.cuda_graphs"), "modules");
  EXPECT_EQ(job("cuda_graph_impl: local, cuda_graph_scope: full_iteration").value("megatron.cuda_graphs"), "iteration");
}

TEST(ReadMegatron, NemosPlaces) {
  const ForeignPlan plan = read(R"(
trainer: {precision: bf16, devices: 8, num_nodes: 2, gradient_clip_val: 1.0}
model:
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 2
  expert_model_parallel_size: 8
  encoder_seq_length: 4096
  optim: {lr: 1.0e-4, overlap_grad_sync: false}
)");
  EXPECT_EQ(plan.value("mesh.ep"), "8");
  EXPECT_EQ(plan.value("batch.sequence"), "4096");
  EXPECT_EQ(plan.value("megatron.overlap_grad_reduce"), "false");
  EXPECT_EQ(plan.value("tensor_parallel.sequence"), "false");  // off unless said
  EXPECT_NO_THROW(document_of(PlanDocument{}, plan));
}

// A recipe of NeMo 2.0 as nemo-run writes it.
TEST(ReadMegatron, StrategyOfARecipe) {
  const ForeignPlan plan = read(R"(
_target_: nemo.collections.llm.api.pretrain
data: {micro_batch_size: 1, global_batch_size: 512, seq_length: 8192}
optim: {config: {lr: 3.0e-4, weight_decay: 0.1}}
trainer:
  devices: 8
  num_nodes: 8
  strategy:
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 1
    context_parallel_size: 2
    expert_model_parallel_size: 8
    expert_tensor_parallel_size: 1
    sequence_parallel: true
    ddp: {overlap_grad_reduce: true, overlap_param_gather: true, grad_reduce_in_fp32: false}
)");
  EXPECT_EQ(plan.value("mesh.tp"), "4");
  EXPECT_EQ(plan.value("mesh.cp"), "2");
  EXPECT_EQ(plan.value("mesh.ep"), "8");
  EXPECT_EQ(plan.value("dtype.reduce"), "bf16");
  EXPECT_EQ(plan.value("mesh.etp"), "1");
  EXPECT_EQ(plan.value("tensor_parallel.sequence"), "true");
  EXPECT_EQ(plan.value("megatron.overlap_param_gather"), "true");
  EXPECT_EQ(plan.value("batch.sequence"), "8192");
  EXPECT_EQ(plan.value("batch.global"), "512");
  EXPECT_NO_THROW(document_of(PlanDocument{}, plan));
}

TEST(ReadMegatron, ExpertsAreCutAsLayersAreUnlessSaid) {
  const std::string degrees = "model: {tensor_model_parallel_size: 2, expert_model_parallel_size: ";
  EXPECT_EQ(read(degrees + "4}").value("mesh.etp"), "2");
  EXPECT_EQ(read(degrees + "4, expert_tensor_parallel_size: 1}").value("mesh.etp"), "1");
  EXPECT_EQ(read(degrees + "1}").value("mesh.etp"), "");
}

TEST(ReadMegatron, RowsTravelAsTheDispatcherSends) {
  const auto sent = [](const std::string& words) {
    return read("model: {tensor_model_parallel_size: 1, moe_token_dispatcher_type: " + words + "}")
        .value("expert_parallel.dispatcher");
  };
  EXPECT_EQ(sent("alltoall"), "alltoall");
  EXPECT_EQ(sent("flex, moe_flex_dispatcher_backend: hybridep"), "deepep");
  EXPECT_EQ(sent("allgather"), "");
}

TEST(ReadMegatron, StagesAndTheirChunksAreRead) {
  const ForeignPlan plan = read(R"(
model: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 8,
  virtual_pipeline_model_parallel_size: 4, account_for_loss_in_pipeline_split: true}
)");
  EXPECT_EQ(plan.value("mesh.pp"), "8");
  EXPECT_EQ(plan.value("pipeline.stages_per_rank"), "4");
  EXPECT_EQ(plan.value("pipeline.schedule"), "Interleaved1F1B");
  EXPECT_EQ(plan.value("pipeline.last_stage_less_layers"), "1");
  EXPECT_FALSE(plan.has("pipeline.first_stage_less_layers"));  // 0, as by default
  EXPECT_EQ(
      read("model: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 8}").value("pipeline.schedule"), "");
}

TEST(ReadMegatron, BadInputIsNamed) {
  EXPECT_THROW(read("model: {hidden_size: 4}"), ConfigError);
  EXPECT_THROW(read("model: {tensor_model_parallel_size: zero}"), ConfigError);
  EXPECT_THROW(read("model: {tensor_model_parallel_size: 2, cp_comm_type: ring}"), ConfigError);
}

}
}
