// What a row's plan becomes.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "interop/steps/training_job.h"
#include "interop/steps/training_rows.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "tests/interop/training_cells.h"

namespace foreshard::training_plan_test {
namespace {

TEST(TrainingRows, ColumnsDecideThePlan) {
  const TrainingJob job = training_job(row_of(small_run()));
  const Plan& plan = job.resolved.plan;
  EXPECT_EQ(plan.runtime.kind, RuntimeKind::kFsdp1);
  EXPECT_EQ(plan.runtime.version, "2.4");  // the oldest that is modelled
  EXPECT_EQ(plan.batch.sequence, 2048);
  EXPECT_EQ(plan.batch.micro_batch, 4);
  EXPECT_EQ(plan.batch.accumulation, 2);  // 128 / 16 ranks / 4
  EXPECT_EQ(plan.mesh.shard, 16);
  EXPECT_EQ(plan.recompute.at(0) == Recompute::kFull, true);
  EXPECT_EQ(plan.recompute.at(1) == Recompute::kFull, false);
  EXPECT_EQ(job.cluster.gpus, 16);
  EXPECT_EQ(job.cluster.nodes(), 2);
  // Of the stack.
  EXPECT_EQ(plan.attention, AttentionKernel::kFa1);
  EXPECT_EQ(plan.autocast, DType::kBf16);
  EXPECT_EQ(plan.kernels.train_metrics, 2);
  // 12 d^2 + 13 d a block (biases of 3d, d, 4d, d; two norms of 2d), final norm, tables.
  EXPECT_EQ(job.model.parameters(), 4 * (12 * 1024 * 1024 + 13 * 1024) + 2 * 1024 + (50368 + 2048) * 1024);
}

TEST(TrainingRows, AColumnStandsOverTheStack) {
  Cells cells = small_run();
  cells["attention_kernel"] = "fa2";
  cells["gather_dtype"] = "bf16";
  cells["residual_dtype"] = "bf16";
  cells["norm_impl"] = "layer_norm_low_precision";
  cells["labelled"] = "300";
  const Plan plan = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(plan.batch.labelled, 300);
  EXPECT_EQ(plan.attention, AttentionKernel::kFa2);
  EXPECT_EQ(plan.param_dtype, DType::kBf16);
  EXPECT_FALSE(plan.autocast.has_value());
  EXPECT_EQ(plan.kernels.residual, ModuleKernels::Residual::kCompute);
  EXPECT_EQ(plan.kernels.norm, ModuleKernels::Norm::kCompute);
}

// MPT is llm-foundry's and InternLM InternEvo's; `generic` says that it is none.
TEST(TrainingRows, AnArchitectureMayNameItsTrainingCode) {
  const auto stack = [](const char* arch, const char* runtime, const char* date, const char* version) {
    Cells cells = small_run();
    cells["stack"] = "unknown";
    cells["arch"] = arch;
    cells["runtime"] = runtime;
    cells["commit_date"] = date;
    cells["runtime_version"] = version;
    return likely_stack(row_of(cells));
  };
  EXPECT_EQ(stack("mpt", "fsdp1", "2022-12", "2.4"), "composer_2022");  // the date decides
  EXPECT_EQ(stack("mpt", "fsdp1", "2023-02-11", ""), "composer_2023_02");
  EXPECT_EQ(stack("mpt", "fsdp1", "2023-05-03", ""), "composer_2023_05");
  EXPECT_EQ(stack("mpt", "fsdp1", "2024-01-06", ""), "composer_2023_10");
  EXPECT_EQ(stack("mpt", "fsdp1", "", "2.1"), "composer_2023_10");
  EXPECT_EQ(stack("mpt", "fsdp1", "", "2.10"), "llm_foundry");
  EXPECT_EQ(stack("mpt", "fsdp1", "", ""), "");
  EXPECT_EQ(stack("mpt", "fsdp2", "2023-05-03", ""), "");
  EXPECT_EQ(stack("gpt", "fsdp1", "2023-05-03", ""), "");
  EXPECT_EQ(stack("internlm", "zero1", "", ""), "internevo");
  Cells cells = small_run();
  cells["stack"] = "generic";
  EXPECT_EQ(likely_stack(row_of(cells)), "generic");
  // The job has the code's kernels, but they stay open: the interval is as wide as without a name.
  cells["stack"] = "";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.kernels.train_metrics, 2);
  EXPECT_FALSE(open_choices(row_of(cells)).empty());
}

// Which of PyTorch's kernels runs follows from whether there is a mask, which transformers have
// where batches are padded.
TEST(TrainingPlan, AttentionOfTransformersMayHaveAMask) {
  Cells cells = unknown_run("fsdp2");
  cells["attention_kernel"] = "sdpa";
  const auto may_have_a_mask = [&](const char* stack) {
    cells["stack"] = stack;
    for (const OpenChoice& open : open_choices(row_of(cells))) {
      if (open.column != "attention_kernel") continue;
      return std::ranges::count(open.assignments, "attention=efficient");
    }
    return std::ptrdiff_t{-1};
  };
  EXPECT_EQ(may_have_a_mask("hf_trainer"), 1);
  EXPECT_EQ(may_have_a_mask("generic"), 0);
}

TEST(TrainingRows, AModelMayReadImages) {
  Cells cells = small_run();
  cells["zoo_model"] = "vit-base-patch16-224";
  cells["seq_len"] = "197";
  EXPECT_EQ(training_job(row_of(cells)).model.name, "vit-base-patch16-224");
}

// shard_group of zero1 is the optimizer's: DeepSpeed's over all ranks, InternEvo's in groups.
TEST(TrainingRows, OptimizersMayBePartitionedInGroups) {
  Cells cells = small_run();
  cells["runtime"] = "zero1";
  cells["stack"] = "internevo";
  cells["reshard"] = "never";
  const Plan whole = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(whole.mesh.shard, 16);
  EXPECT_FALSE(whole.zero.partition_in_groups);
  cells["shard_group"] = "8";
  cells["replicate_group"] = "2";
  const Plan groups = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(groups.mesh.shard, 8);
  EXPECT_EQ(groups.mesh.replicate, 2);
  EXPECT_TRUE(groups.zero.partition_in_groups);
}

// PyTorch 2.5 is the first with CUDA 12.4; where no version is told, its date.
TEST(TrainingRows, VersionOrDateTellTheLibrary) {
  Cells cells = small_run();
  const auto library = [&](const char* version, const char* date) {
    cells["runtime_version"] = version;
    cells["commit_date"] = date;
    return training_job(row_of(cells)).library;
  };
  EXPECT_EQ(library("1.13", ""), GemmLibrary::kEarly);
  EXPECT_EQ(library("2.4", "2025-01-01"), GemmLibrary::kEarly);
  EXPECT_EQ(library("2.5", "2024-01-01"), GemmLibrary::kCurrent);
  EXPECT_EQ(library("", "2024-03-28"), GemmLibrary::kEarly);
  EXPECT_EQ(library("", "2025-03"), GemmLibrary::kCurrent);
  EXPECT_EQ(library("", ""), GemmLibrary::kCurrent);
}

// 16 ranks x 4 x 3 = 192, but only 160 sequences: two whole micro-batches and one of 2.
TEST(TrainingRows, TheLastMicroBatchMayBeSmaller) {
  Cells cells = small_run();
  cells["grad_accum"] = "3";
  cells["global_batch_seqs"] = "160";
  const TrainingJob job = training_job(row_of(cells));
  EXPECT_EQ(job.resolved.plan.batch.accumulation, 2);
  EXPECT_EQ(job.remainder, 2);
  cells["global_batch_seqs"] = "32";  // 2 for each rank: one micro-batch, and not a whole one
  const TrainingJob small = training_job(row_of(cells));
  EXPECT_EQ(small.resolved.plan.batch.micro_batch, 2);
  EXPECT_EQ(small.remainder, 0);
}

const std::vector<std::string> kRuntimes = {"fsdp1", "fsdp2", "ddp", "zero1", "zero2", "zero3", "xla_fsdp"};

using Words = std::map<std::string, std::vector<std::string>>;

// Every word of the columns of words; one number for those that stand for numbers.
Words words_of_columns() {
  Words words;
  for (const char* column : {"arch", "attention_kernel", "norm_impl", "rope_impl", "residual_dtype", "loss_impl",
           "gather_dtype", "reduction_dtype", "master_dtype", "optimizer_impl", "recompute", "compile", "fp8",
           "embedding_unit", "prefetch_kind", "offload"}) {
    for (const std::string_view word : words_of_column(column)) {
      words[column].emplace_back(word == "every_K" ? "every_3" : word);
    }
  }
  return words;
}

// Each word of the grammar alone, with every runtime: a plan comes of all but contradictions.
TEST(TrainingRows, EveryWordOfTheGrammarBecomesAPlan) {
  Words words = words_of_columns();
  for (const auto& [column, all] : words) ASSERT_GE(all.size(), 2U) << column;
  words["forward_prefetch"] = words["limit_all_gathers"] = {"0", "1"};
  words["stack"] = {
      "composer_2022", "composer_2023_10", "torchtitan_2024", "torchtitan_2025", "internevo", "nobody_knows"};
  for (const std::string& runtime : kRuntimes) {
    for (const auto& [column, all] : words) {
      for (const std::string& word : all) {
        Cells cells = unknown_run(runtime);
        cells[column] = word;
        if (column == "fp8") cells["fp8_all_gather"] = "1";
        if (word.starts_with("nvfp4")) cells["gpu"] = "b200";
        EXPECT_NO_THROW((void)training_job(row_of(cells))) << runtime << ' ' << column << '=' << word;
      }
    }
  }
}

// Not the first of its keys alone.
TEST(TrainingRows, AWordSaysAllOfItsKeys) {
  Cells cells = unknown_run("fsdp2");
  cells["adapters"] = "qlora_64";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.lora.base, Lora::Base::kNf4);
  cells = unknown_run("fsdp2");
  cells["fp8"] = "nvfp4_but_5";
  cells["gpu"] = "b200";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.float8_wide_blocks, 5);
  cells = unknown_run("zero3");
  cells["master_dtype"] = cells["optimizer_state"] = "bf16";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.master_dtype, DType::kBf16);
}

// nanotron gives the stage with the head fewer blocks.
TEST(TrainingRows, ALastStageHasTheBlocksThatItsRowSays) {
  Cells cells = unknown_run("zero1");
  cells["pp"] = "2";
  cells["shard_group"] = "8";
  cells["last_stage_less"] = "2";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.pipeline.last_less, 2);
}

// Words that contradict nobody, together: what no code does is refused (FSDP1 has no smaller
// groups), everything else has a plan, and so has each alternative of what is open.
TEST(TrainingRows, WordsInAnyCompanyHaveAPlan) {
  std::mt19937 random(20261123);
  const auto pick = [&](const std::vector<std::string>& words) { return words[random() % words.size()]; };
  Words words = words_of_columns();
  for (auto& [column, all] : words) {
    if (column != "fp8" && column != "arch") all.emplace_back("unknown");
  }
  for (const char* flag : {"fp8_all_gather", "forward_prefetch", "limit_all_gathers"}) words[flag] = {"0", "1", ""};
  words["tied_embeddings"] = {"0", "1"};
  words["runtime_version"] = {"1.13", "2.1", "2.4", "2.5", "2.8", "2.11", "unknown"};
  words["commit_date"] = {"", "2022-12", "2024-02", "2025-04", "2026-01-31"};
  words["gpu"] = {"a100-80gb", "h100-pcie", "b200", "mi300x", "l40s"};
  words["stack"] = {"generic", "generic", "composer_2023_05", "torchtitan_2025", "internevo", "other"};
  for (int i = 0; i < 300; ++i) {
    const std::string runtime = pick(kRuntimes);
    Cells cells = unknown_run(runtime);
    for (const auto& [column, all] : words) cells[column] = pick(all);
    const bool is_fsdp = contains(runtime, "fsdp");
    if (is_fsdp) cells["reshard"] = pick({"always", "never", "always_except_last", runtime == "fsdp1" ? "" : "8"});
    std::string row = runtime;
    for (const auto& [column, all] : words) row += " " + column + "=" + cells[column];
    const TrainingRow read = row_of(cells);
    // Kernels and fp8 that a GPU lacks are refused; everything else has a plan.
    const auto has_plan = [&](const std::vector<std::string>& choices) {
      try {
        (void)training_job(read, choices);
      } catch (const Error& error) {
        const std::string what = error.what();
        const bool is_hardware =
            contains(what, "does not run on") || contains(what, "no fp8 units") || contains(what, "float8");
        EXPECT_TRUE(is_hardware) << what << ": " << row;
      }
    };
    has_plan({});
    for (const OpenChoice& open : open_choices(read)) {
      for (const std::string& other : open.assignments) has_plan({other});
    }
  }
}

// XLA gathers in place, ahead, and fuses: FSDP1 with a whole model compiled.
TEST(TrainingRows, XlaIsForecastAsMaxText) {
  Cells cells = unknown_run("xla_fsdp");
  cells["recompute"] = "save_dots_except_mlp";
  const Plan plan = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(plan.runtime.kind, RuntimeKind::kFsdp1);
  EXPECT_EQ(plan.compile, Compile::kModel);
  EXPECT_EQ(plan.attention, AttentionKernel::kCudnn);
  EXPECT_EQ(plan.prefetch.forward, 1);
  EXPECT_FALSE(plan.fsdp1.limit_all_gathers);
  EXPECT_TRUE(plan.fsdp1.gradients_in_place);
  EXPECT_TRUE(plan.kernels.scan);
  EXPECT_EQ(plan.recompute.at(0), Recompute::kSelective);
  EXPECT_EQ(plan.recompute_keeps, SelectivePolicy::kDotsExceptMlp);
  cells["attention_kernel"] = "fa2";  // a column outdoes the stack
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.attention, AttentionKernel::kFa2);
}

// DDP's parameters are fp32 under autocast unless they are said to be bf16.
TEST(TrainingRows, DdpIsUnderAutocast) {
  Cells cells = unknown_run("ddp");
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.kernels.residual, ModuleKernels::Residual::kFp32);
  cells["master_dtype"] = "bf16";
  const Plan low = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(low.kernels.residual, ModuleKernels::Residual::kCompute);
  EXPECT_EQ(low.master_dtype, DType::kBf16);
}

// PyTorch's flash kernel is FlashAttention-1 before 2.2; 2.5 alone prefers cuDNN on Hopper.
TEST(TrainingRows, VersionTellsTheAttentionOfPyTorch) {
  const auto kernel = [](const char* word, const char* version, const char* gpu) {
    Cells cells = unknown_run("fsdp2");
    cells["attention_kernel"] = word;
    cells["runtime_version"] = version;
    cells["gpu"] = gpu;
    return training_job(row_of(cells)).resolved.plan.attention;
  };
  EXPECT_EQ(kernel("sdpa", "2.1", "a100-80gb"), AttentionKernel::kFa1);
  EXPECT_EQ(kernel("sdpa_flash", "2.0", "h100-sxm"), AttentionKernel::kFa1);
  EXPECT_EQ(kernel("sdpa", "2.2", "h100-sxm"), AttentionKernel::kFlash);
  EXPECT_EQ(kernel("sdpa", "2.5", "h100-sxm"), AttentionKernel::kCudnn);
  EXPECT_EQ(kernel("sdpa_flash", "2.5", "h100-sxm"), AttentionKernel::kFlash);
  EXPECT_EQ(kernel("sdpa", "2.5", "a100-80gb"), AttentionKernel::kFlash);
  EXPECT_EQ(kernel("sdpa", "2.6", "h100-sxm"), AttentionKernel::kFlash);
}

// A table that is head as well is in one unit with the head.
TEST(TrainingRows, ATiedTableIsNoUnitOfItsOwn) {
  Cells cells = unknown_run("fsdp2");
  cells["embedding_unit"] = "own";
  cells["tied_embeddings"] = "1";
  cells["reshard"] = "always_except_last";
  const Plan plan = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(plan.units.embedding, UnitPlacement::kWithHead);
  EXPECT_EQ(plan.reshard_after_forward.at(0).kind, Reshard::Kind::kNever);
  EXPECT_EQ(plan.reshard_after_forward.at(1).kind, Reshard::Kind::kAlways);
  cells["runtime"] = "fsdp1";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.units.embedding, UnitPlacement::kRoot);
  cells["tied_embeddings"] = "0";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.units.embedding, UnitPlacement::kOwn);
}

// An optimizer on the host beside DDP is forecast as ZeRO-2's.
TEST(TrainingRows, DdpWithAnOffloadedOptimizerIsToldAsZero2) {
  Cells cells = unknown_run("ddp");
  cells["offload"] = "optimizer";
  const Plan plan = training_job(row_of(cells)).resolved.plan;
  EXPECT_EQ(plan.runtime.kind, RuntimeKind::kZero2);
  EXPECT_EQ(plan.zero.offload_optimizer, ZeroOffload::kCpu);
  cells["offload"] = "none";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.runtime.kind, RuntimeKind::kDdp);
}

// Releases of 2024-10-17 and 2024-07-24; a month without a day is its first.
TEST(TrainingRows, AVersionThatIsNotPublishedIsThatOfTheDate) {
  Cells cells = unknown_run("fsdp2");
  const auto version = [&](const char* said, const char* date) {
    cells["runtime_version"] = said;
    cells["commit_date"] = date;
    return torch_version(row_of(cells));
  };
  EXPECT_EQ(version("2.6", "2024-10-17"), (TorchVersion{2, 6}));
  EXPECT_EQ(version("", "2024-10-17"), (TorchVersion{2, 5}));
  EXPECT_EQ(version("unknown", "2024-10"), (TorchVersion{2, 4}));
  EXPECT_EQ(version("", ""), std::nullopt);
  EXPECT_EQ(version("", "1999"), std::nullopt);
  version("", "2024-10-17");
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.runtime.version, "2.5");
}

// Optimizers partitioned by a code of its own with fused kernels: Megatron-Core's. DeepSpeed's and InternEvo's are not.
TEST(TrainingRows, ACodeWithoutPresetMayHaveADistributedOptimizer) {
  Cells cells = unknown_run("zero1");
  cells["norm_impl"] = "rms_fused";
  cells["optimizer_impl"] = "adamw_fused";
  const auto runtime = [&] { return training_job(row_of(cells)).resolved.plan.runtime.kind; };
  EXPECT_EQ(runtime(), RuntimeKind::kMegatron);
  cells["stack"] = "deepspeed_examples";
  EXPECT_EQ(runtime(), RuntimeKind::kZero1);
  cells["stack"] = "";
  cells["offload"] = "optimizer";
  EXPECT_EQ(runtime(), RuntimeKind::kZero1);
}

// --fp8-param-gather: of scales of tensors alone.
TEST(TrainingRows, MegatronMayGatherItsWeightsInFp8) {
  Cells cells = unknown_run("zero1");
  for (const char* cell : {"norm_impl=rms_fused", "optimizer_impl=adamw_fused", "fp8_all_gather=1", "rope_impl=fused",
           "loss_impl=fused", "gpu=b200"}) {
    const std::string text = cell;
    cells[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const auto gathers = [&](const char* recipe) {
    cells["fp8"] = recipe;
    return training_job(row_of(cells)).resolved.plan.float8_all_gather;
  };
  EXPECT_TRUE(gathers("delayed"));
  EXPECT_TRUE(gathers("tensorwise"));
  EXPECT_FALSE(gathers("mxfp8"));
  cells["norm_impl"] = "layer_norm_low_precision";
  EXPECT_TRUE(gathers("tensorwise"));
}

// Norm, rotary embedding and loss by hand: so are SwiGLU and the joined products; fp8 is TransformerEngine's.
TEST(TrainingRows, CodesThatFuseByHandFuseMore) {
  Cells cells = unknown_run("zero1");
  cells["norm_impl"] = "rms_fused";
  cells["rope_impl"] = "fused";
  cells["loss_impl"] = "fused";
  cells["fp8"] = "tensorwise";
  const TrainingJob job = training_job(row_of(cells));
  EXPECT_EQ(job.resolved.plan.compile, Compile::kBlocks);
  EXPECT_EQ(job.resolved.plan.float8, Float8::kCurrent);
  const LayerSpec& block = job.model.kinds[at(job.model.order[1].kind)];
  const auto products =
      std::ranges::count_if(block.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  EXPECT_EQ(products, 4);  // qkv, output, gate and up, down
  cells["loss_impl"] = "eager_fp32";
  EXPECT_EQ(training_job(row_of(cells)).resolved.plan.compile, Compile::kNone);
}

}
}
