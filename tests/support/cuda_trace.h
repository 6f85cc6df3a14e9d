// A step's timeline written as torch.profiler would have recorded it on GPUs: FSDP2's ranges and
// operators on the threads of forward and autograd, launches with correlations, kernels on streams,
// NCCL's kernels with their arguments (as a trace of ProcessGroupNCCL has them, the ranks of long
// groups cut). Fields and their spelling are those of the profiler's Chrome
// trace (the CPU recording beside this file, and for `kernel` and `cuda_runtime` libkineto's
// output_json.cpp); written from a timeline, so what a reader should find is known.
#pragma once

#include <cstdint>
#include <string>

#include "sim/simulate/forecast.h"

namespace foreshard {

struct CudaTraceOptions {
  int rank = 0;
  std::int64_t steps = 2;        // whole ones, one after another; one more goes before them
  std::int64_t first_step = 10;  // ProfilerStep#N
  std::int64_t base_nanoseconds = 1'700'000'000'000'000'000;
  bool named_collectives = true;  // "Collective name" among a kernel's args
  bool optimizer_range = true;
  bool shapes = false;  // record_shapes=True: an operator for each kernel, with its tensors
  const char* device = "NVIDIA H100 80GB HBM3";
  std::int64_t peak_allocated = 0;  // as a [memory] event; 0: none
};

// What PyTorch calls the unit: "tok_embeddings", "layers.3", "norm, output", "" for the root.
std::string module_of(const std::string& unit);

std::string cuda_trace(const Forecast& forecast, const Timeline& timeline, const CudaTraceOptions& options = {});

}
