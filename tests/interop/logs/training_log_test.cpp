// Lines as the trainers write them.
#include "interop/logs/training_log.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

TEST(TrainingLog, Torchtitan) {
  const TrainingLog log = read_training_log(
      "[titan] INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
      "\x1b[31mstep:  1  \x1b[38;2;180;60;0mloss: 12.2\x1b[39m  grad_norm:  3.2  memory: 44.02GiB(55.66%)  tps: 520  "
      "mfu: 3.0%\n"
      "step: 10  loss: 10.2  grad_norm:  3.2  memory: 46.02GiB(58.66%)  tps: 3,120  mfu: 17.2%\n"
      "step: 20  loss:  9.2  grad_norm:  3.2  memory: 46.02GiB(58.66%)  tps: 3,120  mfu: 17.2%\n"
      "step: 30  loss:  9.1  grad_norm:  3.2  memory: 46.02GiB(58.66%)  tps: 3,120  mfu: 17.2%\n"
      "[titan] WARNING - 3 CUDA memory allocation retries.\n");
  EXPECT_EQ(log.trainer, "torchtitan");
  EXPECT_EQ(log.steps, 4);
  EXPECT_NEAR(*log.tokens_per_s_per_gpu, 3120, 1e-9);
  EXPECT_NEAR(*log.reserved_bytes, 46.02 * kGiB, 1);
  EXPECT_EQ(*log.retries, 3);
  EXPECT_EQ(*log.parameters, 8030261248);
  EXPECT_EQ(log.parameters_line, 1);
}

TEST(TrainingLog, Megatron) {
  const TrainingLog log = read_training_log(
      " iteration 10/ 100 | consumed samples: 1280 | elapsed time per iteration (ms): 5432.1 | "
      "throughput per GPU (TFLOP/s/GPU): 420.3 | learning rate: 1E-4 |\n"
      "[Rank 0] (after 10 iterations) memory (MB) | allocated: 12345.6 | max allocated: 23456.7 | "
      "reserved: 30000.0 | max reserved: 34567.0\n");
  EXPECT_EQ(log.trainer, "megatron");
  EXPECT_NEAR(*log.step_s, 5.4321, 1e-9);
  EXPECT_NEAR(*log.memory_bytes, 23456.7 * 1024 * 1024, 1);
  EXPECT_NEAR(*log.reserved_bytes, 34567.0 * 1024 * 1024, 1);
}

TEST(TrainingLog, Nanotron) {
  const TrainingLog log = read_training_log(
      "iteration: 10 / 100 | consumed_tokens: 2.62M | time_per_iteration_ms: 1.23K | "
      "tokens_per_sec: 12.3K | tokens_per_sec_per_gpu: 1.54K | lm_loss: 9.1\n");
  EXPECT_EQ(log.trainer, "nanotron");
  EXPECT_NEAR(*log.step_s, 1.23, 1e-9);
  EXPECT_NEAR(*log.tokens_per_s_per_gpu, 1540, 1e-9);
}

TEST(TrainingLog, TrainerSaysItAtTheEnd) {
  const TrainingLog log = read_training_log(
      " 10%|#         | 10/100 [00:35<05:10,  3.45s/it]\r"
      " 11%|#1        | 11/100 [00:38<05:07,  3.45s/it]\n"
      "{'train_runtime': 400.0, 'train_samples_per_second': 2.0, 'train_steps_per_second': 0.25, "
      "'train_loss': 1.2, 'epoch': 1.0}\n");
  EXPECT_EQ(log.trainer, "trainer");
  EXPECT_NEAR(*log.step_s, 4, 1e-9);
}

TEST(TrainingLog, AccelerateHasABar) {
  const TrainingLog log =
      read_training_log(" 10%|# | 10/100 [00:35<05:10,  3.45s/it]\n 50%|# | 50/100 [00:9<0:10, 2.00it/s]\n");
  EXPECT_EQ(log.trainer, "tqdm");
  EXPECT_EQ(log.steps, 2);
}

TEST(TrainingLog, OutOfMemoryOfBothForms) {
  const TrainingLog now = read_training_log(
      "step: 1 of none\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 17.37 GiB. GPU 0 has a total capacity of 31.50 "
      "GiB of which 9.48 GiB is free. Including non-PyTorch memory, this process has 21.9 GiB memory in use. Of the "
      "allocated memory 20.91 GiB is allocated by PyTorch, and 833.28 MiB is reserved by PyTorch but unallocated.\n");
  ASSERT_TRUE(now.out_of_memory);
  EXPECT_EQ(now.out_of_memory->line, 2);
  EXPECT_NEAR(now.out_of_memory->tried, 17.37 * kGiB, 1);
  EXPECT_NEAR(*now.out_of_memory->capacity, 31.5 * kGiB, 1);
  EXPECT_NEAR(*now.out_of_memory->allocated, 20.91 * kGiB, 1);
  EXPECT_NEAR(*now.out_of_memory->reserved_unallocated, 833.28 * 1024 * 1024, 1);
  EXPECT_EQ(now.out_of_memory->others, 0);
  EXPECT_EQ(now.words, "step: 1 of none\ntorch.OutOfMemoryError: CUDA out of memory\n");  // the rest of the message is
                                                                                          // figures, not words
  // Of two processes that are known by number alone, the one that PyTorch's 21.7 GiB are of is its own.
  const TrainingLog shared = read_training_log(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.50 GiB of which 1.10 GiB is "
      "free. Process 71 has 7.50 GiB memory in use. Process 90 has 22.90 GiB memory in use. Of the allocated memory "
      "20.91 GiB is allocated by PyTorch, and 833.28 MiB is reserved by PyTorch but unallocated.\n");
  EXPECT_NEAR(shared.out_of_memory->others, 7.5 * kGiB, 1);
  const TrainingLog named = read_training_log(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.50 GiB of "
      "which 1.10 GiB is free. Process 71 has 7.50 GiB memory in use. Including non-PyTorch "
      "memory, this process has 22.90 GiB memory in use.\n");
  EXPECT_NEAR(named.out_of_memory->others, 7.5 * kGiB, 1);
  const TrainingLog early = read_training_log(
      "RuntimeError: CUDA out of memory. Tried to allocate 9.33 GiB (GPU 0; 10.76 GiB total "
      "capacity; 5.17 GiB already allocated; 4.48 GiB free; 5.28 GiB reserved in total)\n");
  ASSERT_TRUE(early.out_of_memory);
  EXPECT_NEAR(*early.out_of_memory->capacity, 10.76 * kGiB, 1);
  EXPECT_NEAR(*early.out_of_memory->allocated, 5.17 * kGiB, 1);
  EXPECT_NEAR(*early.out_of_memory->reserved_unallocated, 0.11 * kGiB, 1);
  EXPECT_EQ(early.out_of_memory->others, 0);
  const TrainingLog held = read_training_log(
      "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total capacity; 3.00 GiB already allocated; "
      "1.00 GiB free; 4.00 GiB reserved in total by PyTorch)\n");
  EXPECT_NEAR(held.out_of_memory->others, 10 * kGiB, 1);
  const TrainingLog cached = read_training_log(
      "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total capacity; 3.00 GiB already allocated; "
      "1.00 GiB free; 1.00 GiB cached)\n");
  EXPECT_NEAR(cached.out_of_memory->others, 10 * kGiB, 1);
}

TEST(TrainingLog, OtherTextHasNoSteps) {
  EXPECT_EQ(read_training_log("").steps, 0);
  EXPECT_EQ(read_training_log("the step is slow: 3 s/it, 5 tps\n").steps, 0);
}

}
}
