// Logs of nccl-tests, text or JSON: any bytes give sweeps of rising sizes, or an Error for bad
// input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "interop/network/nccl_log.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  looks_like_nccl_tests(text);
  expect_answer_or_refusal([&] {
    for (const CollectiveSweep& sweep : parse_nccl_tests(text, "all_gather_perf.log").sweeps) {
      if (sweep.ranks < 2 || sweep.nodes < 1 || sweep.points.empty()) std::abort();
      double before = 0;
      for (const SizePoint& point : sweep.points) {
        if (!(point.bytes > before && point.seconds > 0)) std::abort();
        before = point.bytes;
      }
    }
  });
  return 0;
}
