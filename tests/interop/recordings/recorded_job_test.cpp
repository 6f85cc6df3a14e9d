// What settings of a recording mean, setting by setting.
#include "interop/recordings/recorded_job.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class RecordedJobTest : public testing::Test {
 protected:
  // An index with these columns and one row.
  RecordedJob job(const std::string& columns, const std::string& row, const std::string& configs = "") {
    const fs::path folder = std::to_string(++count_);
    root_.write(folder / "index.csv", "id," + columns + "\nx," + row + "\n");
    if (!configs.empty()) root_.write(folder / "configs.json", configs);
    return read_recorded_job(library_.open(root_ / folder), 0);
  }
  Plan plan(const std::string& columns, const std::string& row) { return job(columns, row).plan; }

  TemporaryFolder root_;
  int count_ = 0;
  RecordingLibrary library_;
};

TEST_F(RecordedJobTest, DefaultsAreTheRecorders) {
  const RecordedJob j = job("torch", "2.11.0");
  EXPECT_EQ(j.settings, RecordedSettings{});
  EXPECT_EQ(j.plan.runtime.version, "2.11");
  EXPECT_EQ(j.plan.batch, (Batch{128, 2, 1}));
  EXPECT_EQ(j.plan.mesh, (Mesh{8, 1}));
  EXPECT_EQ(j.plan.units.embedding, UnitPlacement::kOwn);
  EXPECT_EQ(j.plan.units.head, UnitPlacement::kWithNorm);
  EXPECT_EQ(j.plan.param_dtype, DType::kBf16);
  EXPECT_EQ(j.plan.reduce_dtype, DType::kFp32);
  EXPECT_EQ(j.plan.master_dtype, DType::kFp32);
  EXPECT_FALSE(j.plan.optimizer.clip_norm.has_value());
  EXPECT_EQ(j.plan.prefetch, Prefetch{});
  EXPECT_EQ(j.constant_bytes, 128 * 64 * 4);  // seq x head_dim / 2 complex fp32
  // Embedding and four blocks always, the head (unit 5) never.
  EXPECT_EQ(j.plan.reshard_after_forward.at(0).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(j.plan.reshard_after_forward.at(4).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(j.plan.reshard_after_forward.at(5).kind, Reshard::Kind::kNever);
}

TEST_F(RecordedJobTest, MeshIsReplicateByShard) {
  EXPECT_EQ(plan("mesh,rank", "4x8,7").mesh, (Mesh{8, 4}));
  EXPECT_EQ(plan("mesh,rank", "4x8,7").rank(), 7);
  EXPECT_THROW(plan("mesh", "4y8"), ConfigError);
}

TEST_F(RecordedJobTest, ReshardWords) {
  const auto first = [&](const char* word) { return plan("reshard", word).reshard_after_forward.at(0); };
  EXPECT_EQ(first("True").kind, Reshard::Kind::kAlways);
  EXPECT_EQ(first("False").kind, Reshard::Kind::kNever);
  EXPECT_EQ(first("").kind, Reshard::Kind::kAlways);
  EXPECT_EQ(first("8").kind, Reshard::Kind::kAlways);
  EXPECT_EQ(first("1").kind, Reshard::Kind::kNever);
  EXPECT_EQ(first("2"), (Reshard{Reshard::Kind::kGroup, 2}));
  EXPECT_THROW(first("sometimes"), ConfigError);
  // The head by itself; None is its default, True.
  EXPECT_EQ(plan("reshard,reshard_head", "False,").reshard_after_forward.at(5).kind, Reshard::Kind::kAlways);
}

TEST_F(RecordedJobTest, RootThatWasNotToldStaysUnnamed) {
  EXPECT_TRUE(plan("grouping", "blocks").reshard_after_forward.ranges.empty());
  const auto told = plan("grouping,reshard_root", "blocks,True").reshard_after_forward.ranges;
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].first, 0);
  EXPECT_EQ(told[0].last, 0);
  EXPECT_EQ(told[0].value.kind, Reshard::Kind::kAlways);
  // With torchtitan's grouping a Llama's root is empty, a GPT-2's holds the table of positions.
  EXPECT_EQ(plan("reshard_root", "True").reshard_after_forward.ranges.size(), 1U);  // the head's
  const Plan gpt2 = plan("model,layers,reshard_root,embed_unshard_in_backward,kv_heads", "gpt2,2,True,False,8");
  ASSERT_EQ(gpt2.reshard_after_forward.ranges.size(), 2U);
  EXPECT_EQ(gpt2.reshard_after_forward.ranges[0].first, 4);  // root, table, two blocks, head
  EXPECT_EQ(gpt2.reshard_after_forward.ranges[1].first, 0);
  EXPECT_TRUE(gpt2.unshard_in_backward.at(0));
  EXPECT_FALSE(gpt2.unshard_in_backward.at(1));
}

TEST_F(RecordedJobTest, Groupings) {
  const Plan blocks = plan("grouping,layers_per_unit", "blocks,4");
  EXPECT_EQ(blocks.units.embedding, UnitPlacement::kRoot);
  EXPECT_EQ(blocks.units.head, UnitPlacement::kRoot);
  EXPECT_EQ(blocks.units.blocks, UnitPlacement::kOwn);
  EXPECT_EQ(blocks.units.layers_per_unit, 4);
  EXPECT_EQ(plan("grouping", "root").units.blocks, UnitPlacement::kRoot);
  EXPECT_EQ(plan("tied", "True").units.embedding, UnitPlacement::kWithHead);
  EXPECT_EQ(plan("shard_dim1", "True").units.shard_dim, 1);
  EXPECT_EQ(plan("model,expert_units", "moe,True").units.experts, UnitPlacement::kOwn);
  EXPECT_EQ(plan("model,expert_units,grouping", "moe,True,root").units.experts, UnitPlacement::kRoot);
}

TEST_F(RecordedJobTest, DTypesThatAreNotGiven) {
  EXPECT_EQ(plan("param_dtype,orig_dtype", ",fp32").param_dtype, DType::kFp32);
  EXPECT_EQ(plan("torch,reduce_dtype", "2.14.1,").reduce_dtype, DType::kBf16);
  EXPECT_EQ(plan("torch,reduce_dtype", "2.15.0,").reduce_dtype, DType::kFp32);
  EXPECT_EQ(plan("output_dtype", "fp32").output_dtype, DType::kFp32);
  EXPECT_EQ(plan("orig_dtype", "bf16").optimizer.state, DType::kBf16);
}

TEST_F(RecordedJobTest, Accumulation) {
  const auto mode = [&](const char* word) { return plan("accumulate,accumulate_mode", std::string("2,") + word); };
  EXPECT_EQ(mode("reduce").accumulation, AccumulationMode::kReduceEach);
  EXPECT_EQ(mode("no_sync").accumulation, AccumulationMode::kKeepUnsharded);
  EXPECT_EQ(mode("no_sync").accumulation_details, AccumulationDetails{});
  const Plan kept = mode("no_sync_no_reshard");
  EXPECT_EQ(kept.accumulation, AccumulationMode::kKeepUnsharded);
  EXPECT_EQ(kept.accumulation_details.reshard_after_backward, When::kLast);
  const Plan both = mode("no_sync_not_last_backward");
  EXPECT_EQ(both.accumulation, AccumulationMode::kKeepUnsharded);
  EXPECT_EQ(both.accumulation_details.is_last_backward, When::kLast);
  const Plan last = mode("not_last_backward");
  EXPECT_EQ(last.accumulation, AccumulationMode::kReduceEach);
  EXPECT_EQ(last.accumulation_details.is_last_backward, When::kLast);
  EXPECT_EQ(mode("no_all_reduce").accumulation_details.all_reduce, When::kLast);
  EXPECT_THROW(mode("never"), Error);
}

TEST_F(RecordedJobTest, BlocksThatAreFrozenOrRecomputed) {
  const auto blocks = [](const auto& policy, auto value) {
    std::string numbers;
    for (int i = 0; i < 10; ++i) numbers += policy.at(i) == value ? std::to_string(i) : "";
    return numbers;
  };
  const Plan half = plan("layers,frozen", "5,first_half");
  EXPECT_TRUE(half.frozen.embedding);
  EXPECT_EQ(blocks(half.frozen.blocks, true), "01");
  const Plan alternate = plan("layers,frozen", "5,alternate");
  EXPECT_FALSE(alternate.frozen.embedding);
  EXPECT_EQ(blocks(alternate.frozen.blocks, true), "13");
  EXPECT_TRUE(plan("frozen", "embedding").frozen.embedding);
  EXPECT_EQ(blocks(plan("layers,recompute", "5,every2").recompute, Recompute::kFull), "024");
  // Three blocks that run twice: 0 and 2, then the same modules again as 3 and 5.
  EXPECT_EQ(blocks(plan("layers,repeat,recompute", "3,2,every2").recompute, Recompute::kFull), "0235");
  EXPECT_EQ(plan("recompute,recompute_outside", "full,True").recompute_wraps, CheckpointWraps::kUnit);
}

TEST_F(RecordedJobTest, TheOtherKnobs) {
  const Plan p = plan(
      "forward_prefetch,backward_prefetch,async_unshard,offload,ignore_norms,clip,optimizer,divide_factor,force_sum,"
      "eval_forward,reduce_scatter_buffers,separate_reduce_scatter_group,embed_unshard_in_backward",
      "2,1,True,True,True,True,adamw_fused,2.0,True,True,3,True,False");
  EXPECT_EQ(p.prefetch.forward, 2);
  EXPECT_EQ(p.prefetch.backward, 1);
  EXPECT_TRUE(p.prefetch.backward_lists);
  EXPECT_TRUE(p.prefetch.async_unshard);
  EXPECT_EQ(p.offload, Offload::kCpu);
  EXPECT_EQ(p.ignored, Ignored::kNorms);
  EXPECT_TRUE(p.optimizer.clip_norm.has_value());
  EXPECT_EQ(p.optimizer.implementation, Optimizer::Implementation::kFused);
  EXPECT_EQ(p.gradient_divide_factor, 2.0);
  EXPECT_TRUE(p.force_sum_reduction);
  EXPECT_TRUE(p.evaluation.in_step);
  EXPECT_EQ(p.reduce_scatter_buffers, 3);
  EXPECT_EQ(p.communicators, Communicators::kSeparate);
  EXPECT_FALSE(p.unshard_in_backward.at(0));
  EXPECT_TRUE(p.unshard_in_backward.at(1));
  EXPECT_EQ(plan("optimizer", "sgd").optimizer.kind, Optimizer::Kind::kSgd);
}

TEST_F(RecordedJobTest, WhatNoPlanExpressesIsNamed) {
  const auto refusal = [&](const std::string& columns, const std::string& row, const std::string& configs = "") {
    try {
      job(columns, row, configs);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kMissingCapability);
      return std::string(error.what());
    }
    return std::string("no refusal");
  };
  EXPECT_EQ(refusal("frozen", "last_half"), "no plan expresses frozen = 'last_half'");
  EXPECT_EQ(refusal("optimizer", "lion"), "no plan expresses optimizer = 'lion'");
  EXPECT_EQ(
      refusal("layers", "4", R"([{"id": "x", "tensor_parallel": 2}])"), "the setting 'tensor_parallel' is not known");
  EXPECT_THROW(job("layers", "four"), ConfigError);
}

TEST_F(RecordedJobTest, UnitsInTheRecordersWords) {
  RecordedSettings llama;
  RecordedSettings gpt2;
  gpt2.model = "gpt2";
  EXPECT_EQ(recorded_unit_name("embedding", llama), "tok_embeddings");
  EXPECT_EQ(recorded_unit_name("embedding", gpt2), "wte");
  EXPECT_EQ(recorded_unit_name("norm+head", llama), "norm+output");
  EXPECT_EQ(recorded_unit_name("norm+head", gpt2), "ln_f+lm_head");
  EXPECT_EQ(recorded_unit_name("embedding+norm+head", llama), "tok_embeddings+norm+output");
  EXPECT_EQ(recorded_unit_name("layers.2-4", llama), "layers.2+layers.3+layers.4");
  EXPECT_EQ(recorded_unit_name("layers.17", llama), "layers.17");
  EXPECT_EQ(recorded_unit_name("layers.1.feed_forward.experts", llama), "layers.1.feed_forward.experts");
  EXPECT_EQ(recorded_unit_name("root", llama), "root");
}

}
}
