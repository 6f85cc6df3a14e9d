// Attention as micro-benchmarks time it, serving kernels with their caches included.
//
//   t = F/(e*P) * (1 + s0/S) * (1 + c0/C) * (1 + w*(ceil(C)/C - 1)) + r*Q/BW + t0
// C = B*h*ceil(S/128)/SM as in sim/spec/calibration.h, ceil(C)/C at most 4, Q the bytes of queries,
// keys, values and outputs, r how often they are moved. All relative to a GPU's figures, so that a
// fit moves to another GPU.
#pragma once

#include <span>

#include "calibration/published.h"
#include "sim/spec/cluster.h"

namespace foreshard {

struct MicroAttention {
  double efficiency = 0.5;
  double s_half = 300;
  double c_half = 0.5;
  double wave = 0.2;
  double moves = 1.8;
  double overhead = 8e-6;  // s
};

double attention_seconds(const MicroAttention& model, const AttentionRow& row, const Gpu& gpu);

// Rows of one kernel, head size, pass and mask. Few rows are drawn towards the defaults above, what
// serving sweeps of eight GPUs have in common.
MicroAttention fit_micro_attention(std::span<const AttentionRow> rows, const Gpu& gpu);

}  // namespace foreshard
