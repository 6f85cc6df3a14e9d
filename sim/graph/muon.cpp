// torch.optim.Muon (PyTorch 2.11, torch/optim/_muon.py): matrix by matrix, in bf16, five steps of Newton and Schulz. Of
// shards, which are DTensors, every product takes the placements whose exchanges it estimates to be the shortest
// (torch/distributed/tensor: _collective_utils.py, _ops/_matrix_ops.py).
#include <array>
#include <limits>

#include "sim/graph/optimizer_state.h"
#include "sim/graph/step_builder.h"

namespace foreshard {
namespace {

enum class Placed : std::uint8_t { kByRows, kByColumns, kPartial, kWhole };

struct Product16 {
  Placed result, left, right;
};
// As gen_single_dim_einsum_strategies lists them; a summand lies as the result does.
constexpr std::array<Product16, 6> kProducts = {{
    {Placed::kWhole, Placed::kWhole, Placed::kWhole},
    {Placed::kPartial, Placed::kByColumns, Placed::kByRows},
    {Placed::kByRows, Placed::kByRows, Placed::kWhole},
    {Placed::kByColumns, Placed::kWhole, Placed::kByColumns},
    {Placed::kPartial, Placed::kPartial, Placed::kWhole},
    {Placed::kPartial, Placed::kWhole, Placed::kPartial},
}};

struct Matrix16 {
  std::int64_t rows = 0, columns = 0;
  Placed placed = Placed::kWhole;
  std::int64_t ranks = 1;
  std::int32_t buffer = -1;  // none
  bool is_cut() const { return placed == Placed::kByRows || placed == Placed::kByColumns; }
  std::int64_t own_rows() const { return placed == Placed::kByRows ? (rows + ranks - 1) / ranks : rows; }
  std::int64_t own_columns() const { return placed == Placed::kByColumns ? (columns + ranks - 1) / ranks : columns; }
  std::int64_t whole() const { return 2 * rows * columns; }
  std::int64_t own() const { return 2 * own_rows() * own_columns(); }
  Matrix16 transposed() const {
    Matrix16 other = *this;
    std::swap(other.rows, other.columns);
    if (is_cut()) other.placed = placed == Placed::kByRows ? Placed::kByColumns : Placed::kByRows;
    return other;
  }
};

// us, as DTensor estimates it; a host is taken to have 8 GPUs, whatever the cluster.
double estimated_exchange(const Matrix16& from, Placed to) {
  if (from.placed == to || from.placed == Placed::kWhole) return 0;
  if (from.is_cut() && to == Placed::kPartial) return std::numeric_limits<double>::infinity();
  const double ranks = as_double(from.ranks);
  const bool crosses = from.ranks > 8;
  const auto time = [&](std::int64_t bytes, double rounds) {
    const double hops = rounds * (ranks - 1);
    const double gib = as_double(bytes) / (1 << 30);
    return 6.6 + hops * (crosses ? 2.7 : 0.6) + gib * hops / ranks / (87.7 * (crosses ? 0.22 : 1)) * 1e6;
  };
  if (from.is_cut() && to != Placed::kWhole) return time(from.whole() / from.ranks, 1) + 1;
  return time(from.whole(), !from.is_cut() && to == Placed::kWhole ? 2 : 1);
}

}

bool is_of_muon(const Optimizer& optimizer, const ParameterSpec& parameter, LayerRole role) {
  return optimizer.kind == Optimizer::Kind::kMuon && parameter.shape.size() == 2 && role == LayerRole::kBlock;
}

void StepBuilder::step_by_muon(std::int64_t rows, std::int64_t columns, std::int64_t ranks, std::uint8_t communicator) {
  std::vector<Kernel> kernels;
  std::int64_t operations = 0, part = 0;
  const auto run = [&](std::int64_t bytes) { kernels.push_back(memory_kernel(MemoryClass::kOptimizer, bytes)); };
  const auto flush = [&] {
    if (kernels.empty()) return;
    const auto [work, is_new] = muon_works_.try_emplace({rows, columns, part++});
    if (is_new)
      work->second = new_work(EventKind::kOptimizer,
          {.kernels = kernels, .tensors = ranks > 1 ? operations : 1, .caller = Caller::kFunctional});
    add_row(EventKind::kOptimizer, Stream::kCompute, work->second, -1);
    kernels.clear();
    operations = 0;
  };
  const auto exchange = [&](EventKind kind, std::int64_t bytes) {
    flush();
    wait(Stream::kAllReduce, tail(Stream::kCompute));
    const UnitWork work = {.communicator = communicator, .bytes = Bytes(bytes), .caller = Caller::kFunctional};
    wait(Stream::kCompute, push(kind, Stream::kAllReduce, collective_work(kind, work), -1, -1));
  };
  const auto temporary = [&](std::int64_t bytes) {
    return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(bytes));
  };
  const auto placed = [&](const Matrix16& from, Placed to, std::vector<std::int32_t>& made) {
    if (from.placed == to) return from;
    Matrix16 next = from;
    next.placed = to;
    std::int32_t sent = kNoBuffer, received = kNoBuffer;
    const auto pack = [&] {
      sent = temporary(from.own());
      run(2 * from.own());
    };
    if (!from.is_cut()) {
      if (to == Placed::kWhole) run(2 * from.own());  // all-reduces are functional: of a copy
      next.buffer = temporary(next.own());
      exchange(to == Placed::kWhole ? EventKind::kAllReduce : EventKind::kReduceScatter, from.whole());
    } else if (to != Placed::kWhole) {
      pack();
      next.buffer = temporary(next.own());
      exchange(EventKind::kAllToAll, from.own());
      run(2 * next.own());
    } else {
      if (from.placed == Placed::kByColumns) {
        pack();
        received = temporary(next.own());
      } else {
        next.buffer = temporary(next.own());
      }
      exchange(EventKind::kAllGather, from.whole());
      if (from.placed == Placed::kByColumns) {
        next.buffer = temporary(next.own());
        run(2 * next.own());
      }
    }
    StepBuilder::free(sent);
    StepBuilder::free(received);
    made.push_back(next.buffer);
    return next;
  };
  const auto product = [&](const Matrix16* summand, const Matrix16& left, const Matrix16& right) {
    const Product16* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Product16& each : kProducts) {
      const double time = estimated_exchange(left, each.left) + estimated_exchange(right, each.right) +
                          (summand != nullptr ? estimated_exchange(*summand, each.result) : 0);
      if (time < least) best = &each, least = time;
    }
    std::vector<std::int32_t> made;
    if (summand != nullptr) placed(*summand, best->result, made);
    const Matrix16 a = placed(left, best->left, made), b = placed(right, best->right, made);
    Matrix16 result = {left.rows, right.columns, best->result, ranks};
    result.buffer = temporary(result.own());
    if (summand != nullptr) run(2 * result.own());
    Kernel kernel = {.kind = KernelKind::kGemm, .function = Function::kMatrixProduct};
    kernel.m = a.own_rows(), kernel.n = b.own_columns(), kernel.k = a.own_columns();
    kernel.bytes = Bytes(a.own() + b.own() + result.own());
    kernel.flops = Flops(2.0 * as_double(kernel.m) * as_double(kernel.n) * as_double(kernel.k));
    kernels.push_back(kernel);
    ++operations;
    free_all(made);
    return result;
  };

  const bool is_tall = rows > columns;
  Matrix16 x = {std::min(rows, columns), std::max(rows, columns), Placed::kWhole, ranks};
  if (ranks > 1) x.placed = is_tall ? Placed::kByColumns : Placed::kByRows;
  const Placed home = x.placed;
  const std::int64_t own = x.own() / 2, master = master_size();
  std::int32_t update = temporary(own * master);
  run(3 * own * master);  // lerp_ of the momentum
  run(3 * own * master);  // lerp
  if (master > 2) {
    x.buffer = temporary(2 * own);
    run((master + 2) * own);
  }
  run(2 * own);
  operations += 7;  // with the norm's clamp and both of the parameter
  if (ranks > 1) exchange(EventKind::kAllReduce, 2);
  run(4 * own);
  Matrix16 gram, polynomial;
  for (int i = 0; i < 5; ++i) {
    ++operations;  // the transposed view
    const Matrix16 square = product(nullptr, x, x.transposed());
    StepBuilder::free(gram.buffer);
    gram = square;
    const Matrix16 next = product(&gram, gram, gram);
    StepBuilder::free(polynomial.buffer);
    polynomial = next;
    const Matrix16 moved = product(&x, polynomial, x);
    StepBuilder::free(x.buffer);
    x = moved;
  }
  StepBuilder::free(gram.buffer);
  StepBuilder::free(polynomial.buffer);
  StepBuilder::free(update);
  run(2 * own * master);
  std::vector<std::int32_t> made = {x.buffer};
  placed(x, home, made);
  run((2 * master + 2) * own);
  flush();
  free_all(made);
}

}
