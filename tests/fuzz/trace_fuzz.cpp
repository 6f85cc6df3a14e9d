// Traces of torch.profiler, plain or gzipped: any bytes give the steps of a job, what they tell of
// it, and the run of work of each rank, or an Error for bad input.
// seeds: tests/interop/traces/fsdp2_cuda_host
#include <cstddef>
#include <cstdint>

#include "interop/traces/fsdp2_steps.h"
#include "interop/traces/infer_job.h"
#include "interop/traces/kineto.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const auto path = in_scratch("trace.json", {reinterpret_cast<const char*>(data), size});
  expect_answer_or_refusal([&] { infer_job(read_fsdp_steps(read_kineto(path)), std::nullopt); });
  return 0;
}
