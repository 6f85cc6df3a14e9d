// What a captured launch costs, in counts: its class by its name (kernel_classes.csv), its shape by
// its name, grid and operands.
#pragma once

#include <optional>

#include "sim/graph/capture/capture.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {

// Where a captured kernel's bytes do not bind, its flops do: what its threads are busy with, at the fp32 rate of a
// multiprocessor of an H200, on which it was timed, full of threads (CUDA C++ Programming Guide).
inline constexpr double kBusyMultiprocessors = 132;
inline constexpr double kBusyRate = 67e12 / kBusyMultiprocessors;
inline constexpr double kBusyThreads = 2048;

struct CapturedKernel {
  Kernel kernel;
  bool known = true;  // false: no row of the table; priced by the bytes that it is given
};

// Of a launch, a product or a library call; nothing for other calls.
std::optional<CapturedKernel> captured_kernel(const Capture& capture, const CapturedCall& call, Pass pass);

// The plan's word for the kernel of attention that one of this name is; "": of none.
std::string_view attention_kernel_of(std::string_view kernel);

}
