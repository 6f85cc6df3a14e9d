// The record_function ranges that fully_shard, optimizers and torch.profiler write into a trace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foreshard {

struct FsdpRange {
  enum class Label : std::uint8_t {
    kNone,
    kRootPreForward,
    kPreForward,
    kPostForward,
    kPreBackward,
    kAllGather,
    kCopyOut,
    kAccumulate,  // post_backward_accumulate
    kReshard,     // post_backward_reshard
    kReduce,      // post_backward_reduce
    kRootPostBackward,
    kOptimizer,
    kProfilerStep,
  };

  Label label = Label::kNone;
  std::string unit;          // modules as PyTorch prints them, without wrappers; "" is the root's
  std::int64_t number = -1;  // ProfilerStep#N

  bool has_unit() const { return label >= Label::kPreForward && label <= Label::kReduce; }
};

// "FSDP::pre_forward (layers.3)". Label::kNone: a range of something else.
FsdpRange read_fsdp_range(std::string_view text);

}  // namespace foreshard
