// Loops over CPU memory that ATen has no operator for (or none without a temporary), in fp32 or bf16.
//
// Everything is done in a fixed order that depends on the arguments only. Rows are contiguous.
// bf16 values are widened to fp32, worked on, and rounded to nearest even.
#pragma once

#include <cstdint>

#include "sim/spec/plan.h"

namespace foreshard {

struct RowShape {
  std::int64_t count = 0;
  std::int64_t width = 0;
};

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon) per row. Buffers of `dtype`; rstd fp32.
void rms_norm(DType dtype, RowShape rows, const void* x, const void* weight, double epsilon, void* y, float* rstd);

// dx, and the gradient of the weight: weight_gradient[i] = sum over rows of dy * x * rstd, in row order.
void rms_norm_backward(DType dtype, RowShape rows, const void* dy, const void* x, const void* weight, const float* rstd,
    void* dx, float* weight_gradient);

// Rotates pairs (i, i + head_dim/2) of every head of every token, in place. `cos` and `sin` hold
// head_dim/2 values per position; token t stands at position t % positions. Negated sines undo it.
struct Rotation {
  std::int64_t tokens = 0, positions = 0, heads = 0, head_dim = 0;
  bool inverse = false;
};
void rotate(DType dtype, const Rotation& rotation, const float* cos, const float* sin, void* values);

// table[ids[r]] += rows[r], in row order. `values` are of `dtype`, the table of `table_dtype`.
void add_rows(DType dtype, RowShape rows, const void* values, const std::int64_t* ids, DType table_dtype, void* table);

// Sum over rows per column: sums[i] = sum of values[r][i], in row order.
void column_sums(DType dtype, RowShape rows, const void* values, float* sums);

// target[i] = source[i] or target[i] + source[i]; source of `dtype`, target fp32.
void copy_to_fp32(DType dtype, std::int64_t count, const void* source, float* target);
void add_to_fp32(DType dtype, std::int64_t count, const void* source, float* target);

// Negative log likelihood of the labels, summed in row order, from rows of log-probabilities.
double negative_log_likelihood(RowShape rows, const float* log_probabilities, const std::int64_t* labels);

}
