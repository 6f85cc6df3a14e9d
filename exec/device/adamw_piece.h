// Elements that one AdamW update covers: shared by the accelerator's interface and its CUDA kernel,
// which knows no Torch.
#pragma once

#include <cstdint>

namespace foreshard {

// All fp32 but the shadow, which is bf16 or null. On a GPU counts are multiples of 4 and pointers of 16 bytes.
struct AdamWPiece {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float *first = nullptr, *second = nullptr;
  void* shadow = nullptr;
  std::int64_t count = 0;
  float decay = 0;
};

}
