// Each loop is written once as a template over the element type. The compiler makes versions for
// the vector units of the machine (target_clones); all of them do the same operations in the same
// order, because sums run over a fixed number of lanes and fused multiply-add is off.
#include "exec/compute/kernels.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "sim/base/error.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define FORESHARD_VECTORISE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define FORESHARD_VECTORISE
#endif

namespace foreshard {
namespace {

struct Bf16 {
  std::uint16_t bits;
};

inline float widen(float value) { return value; }
inline float widen(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
template <typename T>
inline T narrow(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // To nearest even; a NaN stays one.
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    return Bf16{static_cast<std::uint16_t>(is_nan ? (bits >> 16 | 0x40U) : rounded >> 16)};
  }
}

constexpr std::int64_t kLanes = 16;

inline float add_lanes(const std::array<float, kLanes>& lanes) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

template <typename T>
inline __attribute__((always_inline)) void rms_norm_rows(
    RowShape rows, const T* x, const T* weight, float epsilon, T* y, float* rstd) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* row = x + r * rows.width;
    T* out = y + r * rows.width;
    std::array<float, kLanes> lanes{};
    std::int64_t i = 0;
    for (; i + kLanes <= rows.width; i += kLanes) {
      for (std::int64_t j = 0; j < kLanes; ++j) {
        const float value = widen(row[i + j]);
        lanes[at(j)] += value * value;
      }
    }
    for (; i < rows.width; ++i) lanes[0] += widen(row[i]) * widen(row[i]);
    const float mean = add_lanes(lanes) / static_cast<float>(rows.width);
    const float scale = 1.0F / std::sqrt(mean + epsilon);
    rstd[r] = scale;
    for (i = 0; i < rows.width; ++i) out[i] = narrow<T>(widen(row[i]) * scale * widen(weight[i]));
  }
}

template <typename T>
inline __attribute__((always_inline)) void rms_norm_backward_rows(
    RowShape rows, const T* dy, const T* x, const T* weight, const float* rstd, T* dx, float* weight_gradient) {
  for (std::int64_t i = 0; i < rows.width; ++i) weight_gradient[i] = 0;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* in = x + r * rows.width;
    const T* incoming = dy + r * rows.width;
    T* out = dx + r * rows.width;
    const float scale = rstd[r];
    std::array<float, kLanes> lanes{};
    std::int64_t i = 0;
    for (; i + kLanes <= rows.width; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j)
        lanes[at(j)] += widen(incoming[i + j]) * widen(weight[i + j]) * widen(in[i + j]);
    for (; i < rows.width; ++i) lanes[0] += widen(incoming[i]) * widen(weight[i]) * widen(in[i]);
    const float projection = add_lanes(lanes) / static_cast<float>(rows.width) * scale * scale * scale;
    for (i = 0; i < rows.width; ++i) {
      const float gradient = widen(incoming[i]);
      const float value = widen(in[i]);
      weight_gradient[i] += gradient * value * scale;
      out[i] = narrow<T>(gradient * widen(weight[i]) * scale - value * projection);
    }
  }
}

template <typename T>
inline __attribute__((always_inline)) void rotate_rows(
    const Rotation& r, const float* cos, const float* sin, T* values) {
  const std::int64_t half = r.head_dim / 2;
  const float sign = r.inverse ? -1.0F : 1.0F;
  for (std::int64_t t = 0; t < r.tokens; ++t) {
    const float* c = cos + t % r.positions * half;
    const float* s = sin + t % r.positions * half;
    for (std::int64_t h = 0; h < r.heads; ++h) {
      T* a = values + (t * r.heads + h) * r.head_dim;
      T* b = a + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float first = widen(a[i]);
        const float second = widen(b[i]);
        const float sine = sign * s[i];
        a[i] = narrow<T>(first * c[i] - second * sine);
        b[i] = narrow<T>(second * c[i] + first * sine);
      }
    }
  }
}

template <typename T, typename Table>
inline __attribute__((always_inline)) void add_rows_to(
    RowShape rows, const T* values, const std::int64_t* ids, Table* table) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* row = values + r * rows.width;
    Table* target = table + ids[r] * rows.width;
    for (std::int64_t i = 0; i < rows.width; ++i) target[i] = narrow<Table>(widen(target[i]) + widen(row[i]));
  }
}

template <typename T>
inline __attribute__((always_inline)) void column_sums_of(RowShape rows, const T* values, float* sums) {
  for (std::int64_t i = 0; i < rows.width; ++i) sums[i] = 0;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* row = values + r * rows.width;
    for (std::int64_t i = 0; i < rows.width; ++i) sums[i] += widen(row[i]);
  }
}

// One function per element type, so that each has its versions.
FORESHARD_VECTORISE void rms_norm_fp32(RowShape rows, const float* x, const float* w, float e, float* y, float* r) {
  rms_norm_rows(rows, x, w, e, y, r);
}
FORESHARD_VECTORISE void rms_norm_bf16(RowShape rows, const Bf16* x, const Bf16* w, float e, Bf16* y, float* r) {
  rms_norm_rows(rows, x, w, e, y, r);
}
FORESHARD_VECTORISE void rms_backward_fp32(
    RowShape rows, const float* dy, const float* x, const float* w, const float* r, float* dx, float* dw) {
  rms_norm_backward_rows(rows, dy, x, w, r, dx, dw);
}
FORESHARD_VECTORISE void rms_backward_bf16(
    RowShape rows, const Bf16* dy, const Bf16* x, const Bf16* w, const float* r, Bf16* dx, float* dw) {
  rms_norm_backward_rows(rows, dy, x, w, r, dx, dw);
}
FORESHARD_VECTORISE void rotate_fp32(const Rotation& r, const float* c, const float* s, float* v) {
  rotate_rows(r, c, s, v);
}
FORESHARD_VECTORISE void rotate_bf16(const Rotation& r, const float* c, const float* s, Bf16* v) {
  rotate_rows(r, c, s, v);
}
FORESHARD_VECTORISE void add_rows_fp32(RowShape rows, const float* v, const std::int64_t* ids, float* table) {
  add_rows_to(rows, v, ids, table);
}
FORESHARD_VECTORISE void add_rows_mixed(RowShape rows, const Bf16* v, const std::int64_t* ids, float* table) {
  add_rows_to(rows, v, ids, table);
}
FORESHARD_VECTORISE void add_rows_bf16(RowShape rows, const Bf16* v, const std::int64_t* ids, Bf16* table) {
  add_rows_to(rows, v, ids, table);
}
FORESHARD_VECTORISE void column_sums_fp32(RowShape rows, const float* v, float* sums) { column_sums_of(rows, v, sums); }
FORESHARD_VECTORISE void column_sums_bf16(RowShape rows, const Bf16* v, float* sums) { column_sums_of(rows, v, sums); }
FORESHARD_VECTORISE void widen_all(std::int64_t count, const Bf16* source, float* target) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = widen(source[i]);
}
FORESHARD_VECTORISE void add_all(std::int64_t count, const float* source, float* target) {
  for (std::int64_t i = 0; i < count; ++i) target[i] += source[i];
}
FORESHARD_VECTORISE void add_widened(std::int64_t count, const Bf16* source, float* target) {
  for (std::int64_t i = 0; i < count; ++i) target[i] += widen(source[i]);
}

template <typename T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
T* out(void* p) {
  return static_cast<T*>(p);
}

bool is_fp32(DType dtype) {
  FORESHARD_CHECK(dtype != DType::kFp16, "no kernels for fp16");
  return dtype == DType::kFp32;
}

}

void rms_norm(DType dtype, RowShape rows, const void* x, const void* weight, double epsilon, void* y, float* rstd) {
  const auto e = static_cast<float>(epsilon);
  is_fp32(dtype) ? rms_norm_fp32(rows, in<float>(x), in<float>(weight), e, out<float>(y), rstd)
                 : rms_norm_bf16(rows, in<Bf16>(x), in<Bf16>(weight), e, out<Bf16>(y), rstd);
}

void rms_norm_backward(DType dtype, RowShape rows, const void* dy, const void* x, const void* weight, const float* rstd,
    void* dx, float* weight_gradient) {
  is_fp32(dtype)
      ? rms_backward_fp32(rows, in<float>(dy), in<float>(x), in<float>(weight), rstd, out<float>(dx), weight_gradient)
      : rms_backward_bf16(rows, in<Bf16>(dy), in<Bf16>(x), in<Bf16>(weight), rstd, out<Bf16>(dx), weight_gradient);
}

void rotate(DType dtype, const Rotation& rotation, const float* cos, const float* sin, void* values) {
  is_fp32(dtype) ? rotate_fp32(rotation, cos, sin, out<float>(values))
                 : rotate_bf16(rotation, cos, sin, out<Bf16>(values));
}

void add_rows(DType dtype, RowShape rows, const void* values, const std::int64_t* ids, DType table_dtype, void* table) {
  if (is_fp32(table_dtype)) {
    is_fp32(dtype) ? add_rows_fp32(rows, in<float>(values), ids, out<float>(table))
                   : add_rows_mixed(rows, in<Bf16>(values), ids, out<float>(table));
    return;
  }
  FORESHARD_CHECK(!is_fp32(dtype), "fp32 rows into a bf16 table");
  add_rows_bf16(rows, in<Bf16>(values), ids, out<Bf16>(table));
}

void column_sums(DType dtype, RowShape rows, const void* values, float* sums) {
  is_fp32(dtype) ? column_sums_fp32(rows, in<float>(values), sums) : column_sums_bf16(rows, in<Bf16>(values), sums);
}

void copy_to_fp32(DType dtype, std::int64_t count, const void* source, float* target) {
  if (is_fp32(dtype)) std::memcpy(target, source, at(count) * sizeof(float));
  else widen_all(count, in<Bf16>(source), target);
}

void add_to_fp32(DType dtype, std::int64_t count, const void* source, float* target) {
  is_fp32(dtype) ? add_all(count, in<float>(source), target) : add_widened(count, in<Bf16>(source), target);
}

double negative_log_likelihood(RowShape rows, const float* log_probabilities, const std::int64_t* labels) {
  double sum = 0;
  for (std::int64_t r = 0; r < rows.count; ++r)
    sum -= static_cast<double>(log_probabilities[r * rows.width + labels[r]]);
  return sum;
}

}
