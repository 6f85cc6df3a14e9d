// Tables in the words of those who publish them: what a row becomes, and what is refused by name.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "interop/steps/measured_tables.h"
#include "interop/steps/step_forecaster.h"
#include "interop/steps/training_job.h"
#include "interop/steps/training_rows.h"

namespace foreshard::published_words_test {
namespace {

constexpr const char* kHeader =
    "model,gpu,n_gpus,seq,micro_batch,global_batch,dp_replicate,dp_shard,tp,cp,pp,vp,ep,recompute,dtype,compile,async_"
    "tp,runtime,tokens_per_s_per_gpu,step_s,tflops_per_gpu,memory_gib\n";

CsvTable table(const std::string& rows) { return CsvTable(kHeader + rows, "published.csv"); }

TrainingRow row(const std::string& text) {
  const CsvTable one = table(text + "\n");
  EXPECT_TRUE(is_training_table(one));
  return read_training_rows(one).front();
}

const std::string kTitan =
    "Qwen3 14B,\"B200 180GB (8/host, NV18)\",8,4096,4,16,1,4,2,1,1,,,full,\"bf16 (fp32 stored, fp32 "
    "reduce)\",no,no,\"torchtitan May 2026, torch 2.13.0a0+git85\",1000,,,50";

TEST(PublishedWords, ARowSaysItsModelMeshAndCode) {
  const TrainingRow said = row(kTitan);
  EXPECT_EQ(said.problem, "");
  EXPECT_EQ(said.refusal, "");
  EXPECT_EQ(said.id, "torchtitan-L2");
  EXPECT_EQ(said.word("zoo_model"), "qwen3-14b");
  EXPECT_EQ(said.word("gpu"), "b200");
  EXPECT_EQ(said.word("runtime_version"), "2.13");
  EXPECT_EQ(said.word("commit_date"), "2026-05");
  EXPECT_EQ(said.word("stack"), "torchtitan_2025");
  EXPECT_EQ(said.count("gpus_per_node"), 8);
  EXPECT_EQ(said.count("shard_group"), 4);
  EXPECT_EQ(ranks_with_samples(said), 4);
  const TrainingJob job = training_job(said);
  const Plan& plan = job.resolved.plan;
  EXPECT_EQ(plan.mesh.shard, 4);
  EXPECT_EQ(plan.mesh.tp, 2);
  EXPECT_EQ(plan.batch.accumulation, 1);
  EXPECT_EQ(plan.recompute.value, Recompute::kFull);
  EXPECT_EQ(job.model.name, "qwen3-14b");
  std::string staged = kTitan;
  staged.replace(staged.find(",4,2,1,1,,,"), 11, ",2,2,1,2,2,,");
  EXPECT_EQ(training_job(row(staged)).resolved.plan.reshard_after_forward.value.kind, Reshard::Kind::kNever);
}

// 16 sequences of 4096 tokens in the time that eight GPUs take for 1000 tokens a second each.
TEST(PublishedWords, TokensAreThoseOfTheGlobalBatch) {
  const std::vector<AccuracyRow> rows = score_training_steps(table(kTitan + "\n"));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_TRUE(rows[0].scored) << rows[0].reason;
  EXPECT_DOUBLE_EQ(rows[0].measured, 16.0 * 4096 / 8000);
  EXPECT_EQ(rows[1].quantity, std::string("peak_mem_reserved_GiB"));
  EXPECT_DOUBLE_EQ(rows[1].measured, 50);
}

struct Refused {
  const char* from;
  const char* to;
  const char* reason;
};

TEST(PublishedWords, WhatIsNotModelledIsRefusedByName) {
  for (const Refused& each : {Refused{",full,", ",memory budget 0.5,", "memory budget"},
           Refused{"torchtitan May", "Alpa May", "runtime: 'Alpa May"},
           Refused{"Qwen3 14B", "Nobody 3B", "model: 'Nobody 3B' is not in the zoo"},
           Refused{"B200 180GB", "TPU v7", "gpu: 'TPU v7"}}) {
    std::string text = kTitan;
    const std::size_t at = text.find(each.from);
    ASSERT_NE(at, std::string::npos) << each.from;
    text.replace(at, std::string(each.from).size(), each.to);
    const std::vector<AccuracyRow> rows = score_training_steps(table(text + "\n"));
    EXPECT_FALSE(rows[0].scored) << each.to;
    EXPECT_NE(rows[0].reason.find(each.reason), std::string::npos) << rows[0].reason;
  }
}

TEST(PublishedWords, NamesAreReadAsPeopleWriteThem) {
  const auto model = [](const std::string& name) {
    std::string text = kTitan;
    return std::string(row(text.replace(0, 9, name)).word("zoo_model"));
  };
  EXPECT_EQ(model("LLAMA3_70B"), "llama-3-70b");
  EXPECT_EQ(model("LLAMA3.1_405B"), "llama-3.1-405b");
  EXPECT_EQ(model("GPT OSS 120B"), "gpt-oss-120b");
  EXPECT_EQ(model("Qwen3_30B_a3B"), "qwen3-30b-a3b");
  EXPECT_EQ(model("DeepSeekV3 (w/o MTP)"), "deepseek-v3");
  EXPECT_EQ(model("DeepSeek-V3 671B"), "deepseek-v3");
}

// A DGX's Xeons are faster than those of virtual machines with its GPUs.
TEST(PublishedWords, StepsOfADgxWaitLessForTheirHost) {
  const auto seconds = [](const std::string& gpu) {
    const TrainingRow said = row("Qwen3_30B_a3B," + gpu + ",16,4096,1,32,16,1,1,1,1,,16,none,FP8-CS,no,," +
                                 "\"Megatron-Bridge 26.04 (DDP, distributed optimizer)\",1000,,,");
    return StepForecaster(training_job(said), std::nullopt).seconds(central_draw());
  };
  EXPECT_LT(seconds("DGX-H100"), 0.9 * seconds("H100 SXM"));
}

// What a row leaves to its release's recipe (megatron_bridge_recipes.csv; there: the scripts of
// Megatron-Bridge v0.3.0 and v0.1.0): dispatcher, graphs, overlap, modules that run again.
TEST(PublishedWords, TablesOfMegatronBridgeLeaveTheRestToItsRecipes) {
  const auto said = [](const std::string& cells, const std::string& release) {
    return row(cells + ",no,,\"Megatron-Bridge " + release + " (DDP, distributed optimizer)\",1000,,,");
  };
  const TrainingRow oss = said("GPT OSS 120B,DGX-GB200,64,4096,4,1280,64,1,1,1,1,,64,see the recipe,BF16", "26.02");
  EXPECT_EQ(oss.word("dispatcher"), "alltoall");
  EXPECT_EQ(oss.word("recompute_modules"), "layernorm moe_act");
  const Plan plan = training_job(oss).resolved.plan;
  EXPECT_EQ(plan.recompute.value, Recompute::kSelective);
  using Module = MegatronOptions::Module;
  EXPECT_EQ(plan.megatron.recompute_modules, (std::vector{Module::kLayernorm, Module::kMoeAct}));
  EXPECT_EQ(plan.expert_parallel.dispatcher, ExpertParallel::Dispatcher::kAllToAll);
  // "FP8" of an H100 is its FP8_CS; no CUDA graph, but a fused router.
  const TrainingRow qwen = said("Qwen3_30B_a3B,DGX-H100,16,4096,1,1024,8,1,1,1,2,12,8,see the recipe,FP8", "26.02");
  EXPECT_EQ(qwen.word("dispatcher"), "deepep");
  EXPECT_EQ(qwen.word("expert_overlap"), "yes");
  EXPECT_EQ(qwen.word("cuda_graphs"), "routers");
  EXPECT_FALSE(qwen.has("recompute_modules"));
  EXPECT_EQ(training_job(qwen).host, "dgx");
  EXPECT_EQ(training_job(oss).host, "");
  // 61 blocks and one of prediction on 8 x 4 stages: "Et|(tt|)*30mL".
  const TrainingRow deepseek =
      said("DeepSeekV3,DGX-H100,1024,4096,1,8192,64,1,2,1,8,4,64,see the recipe,FP8-CS", "25.09");
  const Plan stages = training_job(deepseek).resolved.plan;
  EXPECT_EQ(stages.pipeline.first_less, 1);
  EXPECT_EQ(stages.pipeline.last_less, 1);
  EXPECT_EQ(training_job(deepseek).model.block_count(), 62);
  EXPECT_EQ(deepseek.word("recompute_modules"), "mla_up_proj mlp");
  // Another micro-batch than any recipe's: what a release's recipes have in common.
  const TrainingRow other = said("GPT OSS 120B,DGX-GB200,64,4096,7,1280,64,1,1,1,1,,64,see the recipe,BF16", "26.02");
  EXPECT_EQ(other.word("dispatcher"), "deepep");
  EXPECT_FALSE(other.has("recompute_modules"));
  // What the row says itself holds.
  EXPECT_FALSE(
      said("GPT OSS 120B,DGX-GB200,64,4096,4,1280,64,1,1,1,1,,64,none,BF16", "26.02").has("recompute_modules"));
  // A cell that names modules.
  EXPECT_EQ(
      said("GPT OSS 120B,DGX-GB200,64,4096,7,1280,64,1,1,1,1,,64,see the recipe (selective: moe_act),BF16", "26.02")
          .word("recompute_modules"),
      "moe_act");
}

// Megatron-Core's distributed optimizer over axes is its own runtime; tensor parallel's collectives
// run beside products.
TEST(PublishedWords, MegatronsDistributedOptimizerOverAxesIsRuntimeMegatron) {
  const TrainingRow said =
      row("Qwen3_30B_a3B,DGX-H100,16,4096,1,1024,8,1,2,1,1,,8,see the recipe,BF16,no,\"TE userbuffers, see the "
          "recipe\",\"Megatron-Bridge 26.02 (DDP, distributed optimizer)\",1000,,,");
  const TrainingJob job = training_job(said);
  const Plan& plan = job.resolved.plan;
  EXPECT_EQ(plan.runtime.kind, RuntimeKind::kMegatron);
  EXPECT_EQ(plan.mesh.shard, 8);
  EXPECT_EQ(plan.mesh.tp, 2);
  EXPECT_EQ(plan.mesh.ep, 8);
  EXPECT_TRUE(plan.tensor_parallel.async);
  EXPECT_TRUE(plan.megatron.overlap_grad_reduce);
}

// What a table of measured variants says besides: a proxy of fewer layers, a model of its own, how
// rows travel, what is reduced in, racks of which some GPUs are left alone.
TEST(PublishedWords, MoreColumnsSayMore) {
  const std::string header =
      "id,model,layers,arch,d_model,heads,kv_heads,d_ff,vocabulary,tied,gpu,n_gpus,seq,micro_batch,global_batch,tp,cp,"
      "pp,ep,sequence_parallel,dispatcher,overlap,recompute,dtype,compile,runtime,step_s\n";
  const std::string megatron = "\"Megatron-LM (DDP, distributed optimizer)\",1\n";
  const CsvTable more(header + "A-1,Grok-1,2,,,,,,,,H100,16,4096,1,64,4,1,1,2,,deepep,no,none," +
                          "\"bf16 (fp32 stored, bf16 reduce)\",no," + megatron +
                          "A-2,ours,12,gpt,1536,16,16,6144,50304,no,H100,8,1024,1,8,2,1,1,1,no,,," + "none,fp16,no," +
                          megatron + "A-3,Qwen3 30B A3B,,,,,,,,,GB200 (4/host),128,4096,1,128,1,1,1,8,,,," +
                          "none,bf16,no," + megatron,
      "more.csv");
  ASSERT_TRUE(is_training_table(more));
  const std::vector<TrainingRow> rows = read_training_rows(more);
  const TrainingJob proxy = training_job(rows[0]), own = training_job(rows[1]);
  EXPECT_EQ(proxy.model.order.size(), 2U + 4U);  // with the embedding, norm, head and loss
  EXPECT_EQ(proxy.resolved.plan.expert_parallel.dispatcher, ExpertParallel::Dispatcher::kDeepEp);
  EXPECT_EQ(proxy.resolved.plan.reduce_dtype, DType::kBf16);
  EXPECT_FALSE(proxy.resolved.plan.megatron.overlap_grad_reduce);
  EXPECT_EQ(own.model.hidden, 1536);
  EXPECT_FALSE(own.model.tied_embeddings);
  EXPECT_FALSE(own.resolved.plan.tensor_parallel.sequence);
  EXPECT_EQ(training_job(rows[2]).cluster.node.gpus, 64);
}

// A note that repeats a recipe says its CUDA graphs and overlap; of a release's recipe that no note
// repeats the release does, for MXFP8 with experts from 26.06 on.
TEST(PublishedWords, RecipesOfMegatronBridgeSayGraphsAndOverlap) {
  using Graphs = MegatronOptions::CudaGraphs;
  struct Case {
    const char* release;
    const char* dtype;
    const char* note;
    Graphs graphs;
    bool overlaps;
  };
  for (const Case& each :
      {Case{"26.06", "MXFP8", "moe_a2a_overlap True; cuda_graph_impl full_iteration", Graphs::kIteration, true},
          Case{"26.06", "MXFP8", "cuda_graph_scope ['attn', 'moe_router']", Graphs::kModules, false},
          Case{"26.08", "MXFP8", "routing forced balanced", Graphs::kIteration, true},
          Case{"26.04", "MXFP8", "routing forced balanced", Graphs::kRouters, false},
          Case{"26.08", "BF16", "routing forced balanced", Graphs::kRouters, false},
          Case{"July 2026", "BF16", "TE CUDA graphs of moe_router", Graphs::kRouters, false},
          Case{"26.02", "BF16", "cuda_graph_scope ['moe_router', 'moe_preprocess']", Graphs::kRouters, false},
          Case{"July 2026", "BF16", "EP overlap on", Graphs::kNone, true}}) {
    const CsvTable one(
        "model,gpu,n_gpus,seq,micro_batch,global_batch,tp,ep,recompute,dtype,runtime,step_s,note\n"
        "Qwen3_30B_a3B,DGX-GB200,8,4096,4,512,1,8,none," +
            std::string(each.dtype) + ",\"Megatron-Bridge " + each.release + " (DDP, distributed optimizer)\",6,\"" +
            each.note + "\"\n",
        "recipes.csv");
    const Plan plan = training_job(read_training_rows(one).front()).resolved.plan;
    EXPECT_EQ(plan.megatron.cuda_graphs, each.graphs) << each.release << each.note;
    EXPECT_EQ(plan.megatron.overlap_expert_parallel, each.overlaps) << each.release << each.note;
  }
}

// Megatron-LM's own words for attention and for what travels over cp; a note without them leaves the plan's.
TEST(PublishedWords, NotesOfMegatronLmSayAttentionAndExchange) {
  using Rotate = ContextParallel::Rotate;
  for (const auto& [note, rotate] :
      {std::pair("cp-comm-type p2p; ", Rotate::kAllToAll), {"cp-comm-type all_gather; ", Rotate::kAllGather},
          {"cp-comm-type a2a; ", Rotate::kUlysses}, {"", ContextParallel().rotate}}) {
    const CsvTable one(
        "model,gpu,n_gpus,seq,micro_batch,global_batch,tp,cp,recompute,dtype,runtime,step_s,note\n"
        "Llama 3.1 8B,H100 SXM,8,8192,1,8,1,8,none,bf16,Megatron-LM (DDP),6,\"" +
            std::string(note) + (*note == 0 ? "" : "attention backend flash") + "\"\n",
        "notes.csv");
    const Plan plan = training_job(read_training_rows(one).front()).resolved.plan;
    EXPECT_EQ(plan.context_parallel.rotate, rotate) << note;
    EXPECT_EQ(plan.attention == AttentionKernel::kFa2, *note != 0) << note;
  }
}

// Experts of fixed capacity are captured whole; AutoModel's benchmarks run TransformerEngine's kernels under FSDP2.
TEST(PublishedWords, WhatCodesDoBesidesTheirColumns) {
  const auto said = [](const std::string& model, const std::string& code) {
    return row(model + ",DGX-B200,8,4096,1,512,1,8,1,1,1,,8,none,BF16,no,no,\"" + code + "\",1000,,,");
  };
  // (A release without a table of its recipes.)
  const std::string bridge = "Megatron-Bridge 25.08 (DDP, distributed optimizer)";
  EXPECT_EQ(said("Qwen3_30B_a3B (tokendrop)", bridge).word("cuda_graphs"), "iteration");
  EXPECT_EQ(said("Qwen3_30B_a3B", bridge).word("cuda_graphs"), "routers");
  const TrainingRow automodel = said("Qwen3 30B A3B", "AutoModel of NVIDIA 2026-06-12 (FSDP2)");
  EXPECT_EQ(automodel.word("runtime"), "fsdp2");
  EXPECT_EQ(training_job(automodel).resolved.plan.kernels.norm, ModuleKernels::Norm::kCompute);
  EXPECT_EQ(training_job(automodel).resolved.plan.accumulation, AccumulationMode::kKeepUnsharded);
}

// KempnerForge's memory is what is allocated, that of Megatron-Bridge's log in GB.
TEST(PublishedWords, CodesSayWhatTheyKeepAndWhichMemoryTheyLog) {
  const std::string start = ",8,4096,1,16,1,2,4,1,1,,1,selective,BF16,yes,no,\"";
  const TrainingRow forge = row("Llama 3 8B,H200" + start + "KempnerForge (FSDP2)\",,1.48,,32.7");
  const Plan plan = training_job(forge).resolved.plan;
  EXPECT_EQ(plan.accumulation, AccumulationMode::kKeepUnsharded);
  EXPECT_FALSE(plan.tensor_parallel.loss);
  EXPECT_EQ(plan.loss.kind, Loss::Kind::kEagerCompute);
  EXPECT_EQ(forge.number("peak_mem_alloc_GiB"), 32.7);
  std::string header = kHeader;
  header.insert(header.size() - 1, ",note");
  const CsvTable notes(header + "Moonlight 16B A3B,H100" + start +
                           "Megatron-Bridge (DDP)\",,1,,1.073741824,the allocated peak in GB\nLlama 3 8B,H100" + start +
                           "torchtitan June 2026\",,1,,,memory policy default\nLlama 3 8B,H100" + start +
                           "Megatron-LM (DDP)\",,,,81.92,memory by gpustat; unfused attention\nLlama 3 8B,H100" +
                           start + "Megatron-LM (DDP)\",,,,80,unfused attention\n",
      "notes.csv");
  const std::vector<TrainingRow> rows = read_training_rows(notes);
  EXPECT_DOUBLE_EQ(rows[0].number("peak_mem_alloc_GiB").value_or(0), 1);
  EXPECT_EQ(rows[0].word("optimizer_state"), "bf16");
  EXPECT_EQ(training_job(rows[1]).resolved.plan.recompute_keeps, SelectivePolicy::kDots);
  EXPECT_DOUBLE_EQ(rows[2].number("peak_mem_total_GiB").value_or(0), 80);
  EXPECT_EQ(training_job(rows[2]).resolved.plan.attention, AttentionKernel::kEager);
  const std::vector<AccuracyRow> scored = score_training_steps(notes);
  ASSERT_EQ(scored.size(), 5U);                               // two of the first, one of the others
  EXPECT_GT(scored[3].predicted, scored[4].predicted + 0.4);  // at least a CUDA context
}

// PyTorch's own B200 are limited to 750 W, those of others to what is sold.
TEST(PublishedWords, APublishersMachinesHaveTheirOwnPowerLimit) {
  const auto watts = [](const std::string& source) {
    std::string header = kHeader;
    header.insert(header.size() - 1, ",source");
    const CsvTable one(header + kTitan + "," + source + "\n", "published.csv");
    return read_training_rows(one).front().number("power_limit_w");
  };
  EXPECT_EQ(watts("pytorch/torchtitan branch of May 2026"), 750);
  EXPECT_FALSE(watts("NousResearch/torchtitan pull request 19").has_value());
}

// TRL checkpoints unless it is told not to.
TEST(PublishedWords, TrlRecomputesByDefault) {
  std::string text = kTitan;
  text.replace(text.find("torchtitan May 2026"), 19, "TRL August 2026 (FSDP2)");
  EXPECT_EQ(row(text).word("stack"), "hf_trainer");
  text.replace(text.find(",full,"), 6, ",,");
  EXPECT_EQ(row(text).word("recompute"), "full");
  text.replace(text.find(",1,1,,,,"), 8, ",1,1,,,none,");
  EXPECT_EQ(row(text).word("recompute"), "none");
}

// TRL's parts hold the head's product, torchtitan's eight of the sequence come behind it.
TEST(PublishedWords, NotesSayThatTheLossIsMadeInParts) {
  using Kind = Loss::Kind;
  const auto loss = [](const std::string& code, const std::string& note, int tp = 1) {
    const CsvTable one(
        "model,gpu,n_gpus,seq,micro_batch,global_batch,tp,dtype,compile,runtime,step_s,note\n"
        "Llama 3.1 8B,H100 SXM,8,8192,1," +
            std::to_string(8 / tp) + "," + std::to_string(tp) + ",bf16,no," + code + ",6,\"" + note + "\"\n",
        "notes.csv");
    return training_job(read_training_rows(one).front()).resolved.plan.loss.kind;
  };
  EXPECT_EQ(loss("TRL August 2026 (FSDP2)", "partial; chunked loss"), Kind::kTiledLinear);
  EXPECT_EQ(loss("torchtitan July 2026", "full; eight loss chunks"), Kind::kChunked);
  EXPECT_EQ(loss("torchtitan July 2026", "full; eight loss chunks", 2), Kind::kEager);
  EXPECT_EQ(loss("torchtitan July 2026", "full"), Kind::kEager);
}

TEST(PublishedWords, ANumberThatIsNoneIsAProblemWithItsPlace) {
  std::string text = kTitan;
  text.replace(text.find(",4096,"), 6, ",4k,");
  const std::vector<std::string> problems = grammar_problems(table(text + "\n"));
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].find("published.csv:2: seq: '4k'"), 0U) << problems[0];
}

}
}
