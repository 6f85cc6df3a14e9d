// cuBLAS and cuBLASLt: matrix products with their shapes; everything else by name.
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/record.h"
#include "exec/null/state.h"

namespace foreshard::null {
namespace {

using Handle = void*;

struct Matrix {
  int type = 0;
  std::int64_t rows = 0, columns = 0, batch = 1;
};
struct Description {
  bool a_transposed = false, b_transposed = false;
};

struct State {
  std::mutex mutex;
  std::map<Handle, StreamHandle> streams;
  std::map<Handle, int> math, pointer_mode;
  std::map<void*, Matrix> matrices;
  std::map<void*, Description> descriptions;
};

StreamHandle stream_of(Handle handle) {
  const Held<State> s;
  return s->streams[handle];
}

// `operation`: cublasOperation_t, 0 is no transposition. Row and column words are cuBLAS' own, which are column-major.
struct Shape {
  int a_operation, b_operation;
  std::int64_t m, n, k, batch;
};

// Of column-major matrices; nullptr where arrays of pointers on the device say them.
struct Operands {
  const void *c = nullptr, *a = nullptr, *b = nullptr;
};

Status product(const char* name, Handle handle, const Shape& s, int a_type, int c_type, const Operands& o) {
  record_product({name_id(name), stream_of(handle), s.m, s.n, s.k, s.batch, a_type, c_type, s.a_operation != 0,
      s.b_operation != 0, o.c, o.a, o.b});
  return kSuccess;
}

constexpr int kF32 = 0, kF64 = 1, kC32 = 4, kC64 = 5;

}
}

using namespace foreshard::null;

ANSWERS(cublasCreate_v2, *h = new_handle(), Handle* h)
DONE(cublasDestroy_v2)
ANSWERS(cublasSetStream_v2, Held<State>()->streams[h] = stream, Handle h, StreamHandle stream)
ANSWERS(cublasGetStream_v2, *stream = stream_of(h), Handle h, StreamHandle* stream)
DONE(cublasSetWorkspace_v2)
ANSWERS(cublasSetMathMode, Held<State>()->math[h] = mode, Handle h, int mode)
ANSWERS(cublasGetMathMode, *mode = Held<State>()->math[h], Handle h, int* mode)
ANSWERS(cublasSetPointerMode_v2, Held<State>()->pointer_mode[h] = mode, Handle h, int mode)
ANSWERS(cublasGetPointerMode_v2, *mode = Held<State>()->pointer_mode[h], Handle h, int* mode)
DONE(cublasSetAtomicsMode)
DONE(cublasSetSmCountTarget)
ANSWERS(cublasGetVersion_v2, *version = 130100, Handle, int* version)
ANSWERS(cublasGetProperty, *value = which == 0 ? 13 : which == 1 ? 1 : 0, int which, int* value)

API Status cublasGemmEx(Handle h, int ta, int tb, int m, int n, int k, const void*, const void* a, int a_type, int,
    const void* b, int, int, const void*, void* c, int c_type, int, int, int) {
  return product("cublasGemmEx", h, {ta, tb, m, n, k, 1}, a_type, c_type, {c, a, b});
}
API Status cublasGemmStridedBatchedEx(Handle h, int ta, int tb, int m, int n, int k, const void*, const void* a,
    int a_type, int, long long, const void* b, int, int, long long, const void*, void* c, int c_type, int, long long,
    int batch, int, int) {
  return product("cublasGemmStridedBatchedEx", h, {ta, tb, m, n, k, batch}, a_type, c_type, {c, a, b});
}
API Status cublasGemmBatchedEx(Handle h, int ta, int tb, int m, int n, int k, const void*, const void* const*,
    int a_type, int, const void* const*, int, int, const void*, void* const*, int c_type, int, int batch, int, int) {
  return product("cublasGemmBatchedEx", h, {ta, tb, m, n, k, batch}, a_type, c_type, {});
}
API Status cublasSgemmEx(Handle h, int ta, int tb, int m, int n, int k, const void*, const void* a, int a_type, int,
    const void* b, int, int, const void*, void* c, int c_type, int) {
  return product("cublasSgemmEx", h, {ta, tb, m, n, k, 1}, a_type, c_type, {c, a, b});
}
#define GEMMS(letter, type)                                                                                            \
  API Status cublas##letter##gemm_v2(Handle h, int ta, int tb, int m, int n, int k, const void*, const void* a, int,   \
      const void* b, int, const void*, void* c, int) {                                                                 \
    return product("cublas" #letter "gemm", h, {ta, tb, m, n, k, 1}, type, type, {c, a, b});                           \
  }                                                                                                                    \
  API Status cublas##letter##gemmStridedBatched(Handle h, int ta, int tb, int m, int n, int k, const void*,            \
      const void* a, int, long long, const void* b, int, long long, const void*, void* c, int, long long, int batch) { \
    return product("cublas" #letter "gemmStridedBatched", h, {ta, tb, m, n, k, batch}, type, type, {c, a, b});         \
  }                                                                                                                    \
  API Status cublas##letter##gemmBatched(Handle h, int ta, int tb, int m, int n, int k, const void*,                   \
      const void* const*, int, const void* const*, int, const void*, void* const*, int, int batch) {                   \
    return product("cublas" #letter "gemmBatched", h, {ta, tb, m, n, k, batch}, type, type, {});                       \
  }                                                                                                                    \
  API Status cublas##letter##gemv_v2(Handle h, int ta, int m, int n, const void*, const void* a, int, const void* x,   \
      int, const void*, void* y, int) {                                                                                \
    const std::int64_t rows = ta == 0 ? m : n, inner = ta == 0 ? n : m;                                                \
    return product("cublas" #letter "gemv", h, {ta, 0, rows, 1, inner, 1}, type, type, {y, a, x});                     \
  }                                                                                                                    \
  API Status cublas##letter##trsm_v2(                                                                                  \
      Handle h, int, int, int, int, int m, int n, const void*, const void*, int, void* b, int) {                       \
    return product("cublas" #letter "trsm", h, {0, 0, m, n, m, 1}, type, type, {b});                                   \
  }                                                                                                                    \
  API Status cublas##letter##trsmBatched(Handle h, int, int, int, int, int m, int n, const void*, const void* const*,  \
      int, void* const*, int, int batch) {                                                                             \
    return product("cublas" #letter "trsmBatched", h, {0, 0, m, n, m, batch}, type, type, {});                         \
  }
GEMMS(S, kF32)
GEMMS(D, kF64)
GEMMS(C, kC32)
GEMMS(Z, kC64)
#undef GEMMS

// Dot products are read by the host or stay on the device: a product of one row and one column.
API Status cublasDotEx(Handle h, int n, const void*, int type, int, const void*, int, int, void* result, int, int) {
  if (!is_device(result)) std::memset(result, 0, static_cast<std::size_t>(bytes_of_type(type)));
  return product("cublasDotEx", h, {0, 0, 1, 1, n, 1}, type, type, {});
}
API Status cublasSdot_v2(Handle h, int n, const float*, int, const float*, int, float* result) {
  if (!is_device(result)) *result = 0;
  return product("cublasSdot", h, {0, 0, 1, 1, n, 1}, kF32, kF32, {});
}
API Status cublasDdot_v2(Handle h, int n, const double*, int, const double*, int, double* result) {
  if (!is_device(result)) *result = 0;
  return product("cublasDdot", h, {0, 0, 1, 1, n, 1}, kF64, kF64, {});
}

// ---- cuBLASLt ----
ANSWERS(cublasLtCreate, *h = new_handle(), Handle* h)
DONE(cublasLtDestroy)
API std::size_t cublasLtGetVersion() { return 130100; }
API std::size_t cublasLtGetCudartVersion() { return 13000; }
ANSWERS(cublasLtMatmulDescCreate, *d = new_handle(), void** d, int, int)
DONE(cublasLtMatmulDescDestroy)
API Status cublasLtMatmulDescSetAttribute(void* d, int which, const void* value, std::size_t) {
  constexpr int kTransA = 3, kTransB = 4;  // cublasLtMatmulDescAttributes_t
  if (which != kTransA && which != kTransB) return kSuccess;
  int operation = 0;
  std::memcpy(&operation, value, sizeof operation);
  const Held<State> s;
  Description& of = s->descriptions[d];
  (which == kTransA ? of.a_transposed : of.b_transposed) = operation != 0;
  return kSuccess;
}
API Status cublasLtMatmulDescGetAttribute(void*, int, void* value, std::size_t bytes, std::size_t* written) {
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return kSuccess;
}
CREATED(cublasLtMatmulPreferenceCreate)
DONE(cublasLtMatmulPreferenceDestroy)
DONE(cublasLtMatmulPreferenceSetAttribute)
API Status cublasLtMatrixLayoutCreate(void** l, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t) {
  *l = new_handle();
  Held<State>()->matrices[*l] = {type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), 1};
  return kSuccess;
}
ANSWERS(cublasLtMatrixLayoutDestroy, Held<State>()->matrices.erase(l), void* l)
API Status cublasLtMatrixLayoutSetAttribute(void* l, int which, const void* value, std::size_t) {
  constexpr int kBatchCount = 5;  // cublasLtMatrixLayoutAttribute_t
  if (which != kBatchCount) return kSuccess;
  int batch = 1;
  std::memcpy(&batch, value, sizeof batch);
  Held<State>()->matrices[l].batch = batch;
  return kSuccess;
}
// One algorithm without workspace. cublasLtMatmulHeuristicResult_t: algorithm of 64 bytes,
// workspace, status, waves, four ints.
API Status cublasLtMatmulAlgoGetHeuristic(
    Handle, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  constexpr std::size_t kResult = 96;
  std::memset(results, 0, kResult);
  *count = 1;
  return kSuccess;
}
API Status cublasLtMatmul(Handle, void* description, const void*, const void* a_data, void* a, const void* b_data,
    void*, const void*, const void*, void*, void* d, void* d_layout, const void*, void*, std::size_t,
    StreamHandle stream) {
  Matrix left, out;
  Description how;
  {
    const Held<State> s;
    left = s->matrices[a];
    out = s->matrices[d_layout];
    how = s->descriptions[description];
  }
  const std::int64_t inner = how.a_transposed ? left.rows : left.columns;
  record_product({name_id("cublasLtMatmul"), stream, out.rows, out.columns, inner, out.batch, left.type, out.type,
      how.a_transposed, how.b_transposed, d, a_data, b_data});
  return kSuccess;
}
