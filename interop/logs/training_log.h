// What the log of a training run says of its steps: lines of torchtitan, transformers' Trainer,
// Accelerate (tqdm), Megatron-LM and nanotron, and PyTorch's message when memory is at an end.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace foreshard {

// PyTorch's own figures (c10/cuda/CUDACachingAllocator.cpp), in bytes.
struct OutOfMemory {
  int line = 0;
  double tried = 0;
  std::optional<double> capacity, free, allocated, reserved_unallocated;
  double others = 0;  // that other processes have in use
};

struct TrainingLog {
  std::string trainer;  // "torchtitan", "trainer", "tqdm", "megatron", "nanotron"; "": none of them
  int steps = 0;        // lines that say how long one took
  // Of the last three quarters of them; the first steps are warm-up. Medians.
  std::optional<double> step_s, tokens_per_s_per_gpu, tokens_per_s;
  std::optional<double> memory_bytes, reserved_bytes;  // the most that any line says
  std::optional<double> memory_growth_bytes;           // of reserved memory, from the first lines to the last
  std::optional<double> data_s;                        // that a step waits for its batch
  std::optional<double> retries;                       // of the allocator, all that are reported
  std::optional<double> parameters;                    // that the trainer counted
  int parameters_line = 0;
  std::optional<OutOfMemory> out_of_memory;
  std::string words;  // of the text, for signs of causes, without that message; cut after 256 KiB
};

// Never throws for a text: a log of nothing that is known has no steps.
TrainingLog read_training_log(const std::string& text);
// Throws ConfigError where the file cannot be read, and Error(kInvalidInput) where it has neither a
// step nor a message: with the formats that are.
TrainingLog read_training_log_file(const std::filesystem::path& file);

}
