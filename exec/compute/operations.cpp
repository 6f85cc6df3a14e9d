// One function per arithmetic and direction, found by Operation::function.
//
// A weight's gradient is a matrix product written straight into the unit's flat buffer. A second
// gradient of the same parameter (a tied table, further micro-batches that are kept unsharded) is
// made apart and added, so that a sum is always a sum of whole micro-batch gradients, in order.
#include "exec/compute/operations.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>

#include "exec/compute/device_operations.h"
#include "exec/compute/kernels.h"
#include "exec/memory/flat_storage.h"
#include "models/layers/layers.h"
#include "sim/base/error.h"
#include "sim/graph/axes/layer_cutter.h"

namespace foreshard {
namespace {

using Tensors = std::vector<at::Tensor>;
using Inputs = std::span<const at::Tensor>;

struct Call {
  const Operation& operation;
  const OperationContext& context;
  std::span<const Parameter> parameters;

  const Parameter& parameter(std::size_t i) const { return parameters[at(operation.parameters[i])]; }
  at::TensorOptions options() const {
    return at::TensorOptions().dtype(scalar_type(context.compute)).device(context.batch.tokens.device());
  }
  void mark() const {
    if (context.clock != nullptr) context.clock->mark();
  }
  at::Tensor empty(std::int64_t width) const { return at::empty({context.batch.count(), width}, options()); }
};

DType dtype_of(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat ? DType::kFp32 : DType::kBf16; }

// --- gradients of parameters ---

// `make` writes a gradient of the parameter's shape into the tensor it is given; `made_in` is the dtype it can write.
void put_gradient(const Call& c, const Parameter& parameter, at::ScalarType made_in, auto make) {
  const at::Tensor& place = parameter.gradient;
  if (!*parameter.written && place.scalar_type() == made_in) {
    make(place);
  } else {
    at::Tensor made = at::empty(place.sizes(), place.options().dtype(made_in));
    make(made);
    c.mark();
    *parameter.written ? place.add_(made) : place.copy_(made);
  }
  *parameter.written = true;
}

// A gradient that was made in the parameter's dtype, by an operator that gives no choice.
void put_made(const Parameter& parameter, const at::Tensor& gradient) {
  *parameter.written ? parameter.gradient.add_(gradient) : parameter.gradient.copy_(gradient);
  *parameter.written = true;
}

void sum_columns(const Call& c, const at::Tensor& values, at::Tensor sums) {
  if (c.context.device != nullptr) {
    at::sum_out(sums, values, 0, /*keepdim=*/false, at::kFloat);
  } else {
    column_sums(
        dtype_of(values), {values.size(0), values.size(1)}, values.const_data_ptr(), sums.mutable_data_ptr<float>());
  }
}

void put_column_sums(const Call& c, const Parameter& parameter, const at::Tensor& values) {
  put_gradient(
      c, parameter, at::kFloat, [&](const at::Tensor& place) { sum_columns(c, values, place); });
}

// Rows of the incoming gradient belong to the table's rows `ids`. Where the table holds something
// already, the rows of one id are added up first, so that whole gradients are added.
void put_rows(const Parameter& parameter, const at::Tensor& gradient, const at::Tensor& ids) {
  const at::Tensor& table = parameter.gradient;
  const RowShape rows{gradient.size(0), gradient.size(1)};
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const DType source = dtype_of(gradient);
  const DType target = dtype_of(table);
  if (!*parameter.written) {
    *parameter.written = true;
    table.zero_();
    return add_rows(source, rows, gradient.const_data_ptr(), id, target, table.mutable_data_ptr());
  }
  std::vector<std::int64_t> order(at(rows.count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [id](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
  const RowShape one{1, rows.width};
  constexpr std::int64_t kFirst = 0;
  const at::Tensor sum = at::empty({rows.width}, table.options());
  for (std::size_t i = 0; i < order.size();) {
    const std::int64_t own = id[order[i]];
    sum.zero_();
    for (; i < order.size() && id[order[i]] == own; ++i)
      add_rows(source, one, gradient.select(0, order[i]).const_data_ptr(), &kFirst, target, sum.mutable_data_ptr());
    add_rows(target, one, sum.const_data_ptr(), &own, target, table.mutable_data_ptr());
  }
}

// --- slices ---

// make(first), ..., added as ((0 + 1) + (2 + 3)): a power of two of them.
at::Tensor sum_in_pairs(std::int64_t first, std::int64_t count, const auto& make) {
  if (count == 1) return make(first);
  at::Tensor left = sum_in_pairs(first, count / 2, make);
  return left.add_(sum_in_pairs(first + count / 2, count / 2, make));
}

at::Tensor slice(const at::Tensor& t, std::int64_t dim, std::int64_t j, std::int64_t count) {
  const std::int64_t width = t.size(dim) / count;
  return t.narrow(dim, j * width, width);
}

// Gradients over the rows of each slice, in the dtype in which ranks add theirs.
void put_slices(const Parameter& parameter, const Tensors& summands) {
  const at::ScalarType dtype = parameter.gradient.scalar_type();
  put_made(parameter, sum_in_pairs(0, std::ssize(summands), [&](std::int64_t j) { return summands[at(j)].to(dtype); }));
}

// --- matrix product ---

// Slice j of the columns (of the terms) that a product makes (adds), of its weight as stored.
at::Tensor columns_of(const Call& c, const at::Tensor& weight, std::int64_t j) {
  return slice(weight, c.operation.transposed_weight ? 1 : 0, j, c.context.slices.columns);
}
at::Tensor terms_of(const Call& c, const at::Tensor& weight, std::int64_t j) {
  return slice(weight, c.operation.transposed_weight ? 0 : 1, j, c.context.slices.terms);
}

Tensors product_in_slices(const Call& c, const at::Tensor& x) {
  const at::Tensor& weight = c.parameter(0).value;
  const auto right = [&](const at::Tensor& w) { return c.operation.transposed_weight ? w : w.t(); };
  const std::int64_t terms = c.context.slices.terms, columns = c.context.slices.columns;
  if (terms > 1) {
    return {sum_in_pairs(
        0, terms,
        [&](std::int64_t j) {
          at::Tensor out = c.empty(c.operation.n);
          return at::mm_out(out, slice(x, 1, j, terms), right(terms_of(c, weight, j)));
        })};
  }
  at::Tensor out = c.empty(c.operation.n);
  for (std::int64_t j = 0; j < columns; ++j) {
    at::Tensor place = slice(out, 1, j, columns);
    const at::Tensor w = right(columns_of(c, weight, j));
    if (c.operation.parameters.size() > 1) at::addmm_out(place, slice(c.parameter(1).value, 0, j, columns), x, w);
    else at::mm_out(place, x, w);
  }
  return {out};
}

void weight_in_slices(const Call& c, const at::Tensor& place, const at::Tensor& dy, const at::Tensor& x) {
  const bool transposed = c.operation.transposed_weight;
  const std::int64_t terms = c.context.slices.terms, columns = c.context.slices.columns;
  for (std::int64_t j = 0; j < std::max(terms, columns); ++j) {
    at::Tensor to = terms > 1 ? terms_of(c, place, j) : columns_of(c, place, j);
    const at::Tensor left = terms > 1 ? dy : slice(dy, 1, j, columns);
    const at::Tensor right = terms > 1 ? slice(x, 1, j, terms) : x;
    transposed ? at::mm_out(to, right.t(), left) : at::mm_out(to, left.t(), right);
  }
}

at::Tensor input_in_slices(const Call& c, const at::Tensor& dy) {
  const at::Tensor& weight = c.parameter(0).value;
  const auto right = [&](const at::Tensor& w) { return c.operation.transposed_weight ? w.t() : w; };
  const std::int64_t terms = c.context.slices.terms, columns = c.context.slices.columns;
  const std::int64_t count = std::max(terms, columns);
  at::Tensor out =
      terms > 1 ? c.empty(c.operation.k) : at::empty({columns * c.context.batch.count(), c.operation.k}, c.options());
  for (std::int64_t j = 0; j < count; ++j) {
    at::Tensor place = slice(out, terms > 1 ? 1 : 0, j, count);
    const at::Tensor left = terms > 1 ? dy : slice(dy, 1, j, columns);
    at::mm_out(place, left, right(terms > 1 ? terms_of(c, weight, j) : columns_of(c, weight, j)));
  }
  return out;
}

bool is_in_slices(const Call& c) { return c.context.slices.columns > 1 || c.context.slices.terms > 1; }

// Of a tensor that products in slices read.
Tensors sum_of_slices(const Call& c, const at::Tensor& dy) {
  const std::int64_t count = c.context.slices.columns;
  const at::Tensor each = dy.view({count, -1, dy.size(1)});
  return {sum_in_pairs(0, count / 2,
      [&](std::int64_t pair) { return at::add(each.select(0, 2 * pair), each.select(0, 2 * pair + 1)); })};
}

Tensors matrix_product(const Call& c, Inputs in) {
  if (is_in_slices(c)) return product_in_slices(c, in[0]);
  const at::Tensor& weight = c.parameter(0).value;
  at::Tensor out = c.empty(c.operation.n);
  const at::Tensor right = c.operation.transposed_weight ? weight : weight.t();
  if (c.operation.parameters.size() > 1) at::addmm_out(out, c.parameter(1).value, in[0], right);
  else at::mm_out(out, in[0], right);
  return {out};
}

// A GPU's products write (and add) what they sum in fp32 as such: nothing is rounded between.
void add_product(const Parameter& parameter, const at::Tensor& rows, const at::Tensor& columns) {
  at::Tensor place = parameter.gradient;
  const at::ScalarType type = place.scalar_type();
  *parameter.written ? at::addmm_out(place, place, rows, columns, type) : at::mm_out(place, rows, columns, type);
  *parameter.written = true;
}

Tensors matrix_product_backward(const Call& c, const at::Tensor& dy, Inputs saved) {
  const at::Tensor& x = saved[0];
  const Parameter& weight = c.parameter(0);
  const bool transposed = c.operation.transposed_weight;
  const at::Tensor rows = transposed ? x.t() : dy.t(), columns = transposed ? dy : x;
  if (dy.is_cuda() && !is_in_slices(c) && weight.gradient.scalar_type() != dy.scalar_type()) {
    add_product(weight, rows, columns);
  } else {
    put_gradient(
        c, weight, dy.scalar_type(),
        [&](at::Tensor place) {
          is_in_slices(c) ? weight_in_slices(c, place, dy, x) : void(at::mm_out(place, rows, columns));
        });
  }
  std::vector<at::Tensor> gradients;
  if (c.operation.gradient == GradientRule::kOwn) {
    c.mark();
    const at::Tensor right = c.operation.transposed_weight ? weight.value.t() : weight.value;
    if (saved.size() > 1) {  // what it is added to
      at::Tensor sum = saved[1];
      gradients.push_back(at::addmm_out(sum, sum, dy, right));
    } else if (is_in_slices(c)) {
      gradients.push_back(input_in_slices(c, dy));
    } else {
      gradients.push_back(c.empty(c.operation.k));
      at::mm_out(gradients[0], dy, right);
    }
  }
  if (c.operation.parameters.size() > 1) {
    c.mark();
    put_column_sums(c, c.parameter(1), dy);
  }
  return gradients;
}

// --- attention ---

struct Heads {
  at::Tensor q, k, v;  // [sequences, heads, sequence, head_dim]
};

Heads heads_of(const Call& c, Inputs in) {
  const AttentionShape& shape = c.operation.attention;
  const MicroBatch& batch = c.context.batch;
  const auto view = [&](const at::Tensor& t, std::int64_t heads) {
    return t.view({batch.sequences, batch.sequence, heads, shape.head_dim});
  };
  if (c.operation.inputs.size() == 1) {  // one projection for all three
    const at::Tensor all = view(in[0], shape.heads + 2 * shape.kv_heads);
    return {all.narrow(2, 0, shape.heads).transpose(1, 2), all.narrow(2, shape.heads, shape.kv_heads).transpose(1, 2),
        all.narrow(2, shape.heads + shape.kv_heads, shape.kv_heads).transpose(1, 2)};
  }
  return {view(in[0], shape.heads).transpose(1, 2), view(in[1], shape.kv_heads).transpose(1, 2),
      view(in[2], shape.kv_heads).transpose(1, 2)};
}

// [sequences, heads, sequence, head_dim] as rows of tokens; the kernels lay it out so that this is a view.
at::Tensor token_rows(const Call& c, const at::Tensor& t) {
  return t.transpose(1, 2).reshape({c.context.batch.count(), t.size(1) * t.size(3)});
}

Tensors attention(const Call& c, Inputs in) {
  const Heads h = heads_of(c, in);
  auto [out, logsumexp] = device_attention(c.context.attention, {h.q, h.k, h.v}, c.operation.attention.causal);
  return {token_rows(c, out), logsumexp};
}

Tensors attention_backward(const Call& c, const at::Tensor& dy, Inputs saved) {
  const bool fused = c.operation.inputs.size() == 1;
  // Saved: key, query, value (or the fused projection), logsumexp, output.
  const at::Tensor& logsumexp = saved[fused ? 1 : 3];
  const at::Tensor& out = saved[fused ? 2 : 4];
  const Tensors inputs = fused ? Tensors{saved[0]} : Tensors{saved[1], saved[0], saved[2]};
  const Heads h = heads_of(c, inputs);
  const AttentionShape& shape = c.operation.attention;
  const auto as_heads = [&](const at::Tensor& t) {
    return t.view({c.context.batch.sequences, c.context.batch.sequence, shape.heads, shape.head_dim}).transpose(1, 2);
  };
  auto [dq, dk, dv] = device_attention_backward(
      c.context.attention, as_heads(dy), {h.q, h.k, h.v}, as_heads(out), logsumexp, shape.causal);
  if (!fused) return {token_rows(c, dq), token_rows(c, dk), token_rows(c, dv)};
  at::Tensor all = at::empty_like(saved[0]);
  const Tensors parts = {token_rows(c, dq), token_rows(c, dk), token_rows(c, dv)};
  return {at::cat_out(all, parts, 1)};
}

// --- norms ---

RowShape norm_rows(const Call& c, const at::Tensor& x) {
  const std::int64_t width = c.parameter(0).value.numel();
  return {x.numel() / width, width};
}

Tensors rms_norm_forward(const Call& c, Inputs in) {
  if (c.context.device != nullptr) {
    auto [out, rstd] = device_rms_norm(*c.context.device, in[0], c.parameter(0).value, c.context.numerics.norm_epsilon);
    return {out, rstd};
  }
  const RowShape rows = norm_rows(c, in[0]);
  at::Tensor out = at::empty_like(in[0]);
  at::Tensor rstd = at::empty({rows.count}, c.options().dtype(at::kFloat));
  rms_norm(c.context.compute, rows, in[0].const_data_ptr(), c.parameter(0).value.const_data_ptr(),
      c.context.numerics.norm_epsilon, out.mutable_data_ptr(), rstd.mutable_data_ptr<float>());
  return {out, rstd};
}

// Of the rows of each slice by themselves: the input's gradient, and summands of the weights'.
Tensors norm_backward_in_slices(const Call& c, const at::Tensor& dy, Inputs saved, const auto& backward) {
  at::Tensor dx = at::empty_like(dy);
  std::vector<Tensors> summands(c.operation.parameters.size());
  for (std::int64_t j = 0; j < c.context.slices.rows; ++j) {
    Tensors of_slice;
    for (const at::Tensor& t : saved) of_slice.push_back(slice(t, 0, j, c.context.slices.rows));
    const Tensors made = backward(slice(dy, 0, j, c.context.slices.rows), of_slice);
    slice(dx, 0, j, c.context.slices.rows).copy_(made[0]);
    for (std::size_t p = 0; p < summands.size(); ++p) summands[p].push_back(made[p + 1]);
  }
  for (std::size_t p = 0; p < summands.size(); ++p) put_slices(c.parameter(p), summands[p]);
  return {dx};
}

// Behind x and rstd: what its input's gradient is added to, if it is.
at::Tensor addend_of(Inputs saved) { return saved.size() > 2 ? saved[2] : at::Tensor(); }

Tensors rms_norm_of_slice(const Call& c, const at::Tensor& dy, Inputs saved) {
  const at::Tensor& value = c.parameter(0).value;
  if (c.context.device != nullptr) {
    auto [dx, weight] = device_rms_norm_backward(*c.context.device, {dy, saved[0], value, saved[1], {}});
    return {dx, weight};
  }
  at::Tensor dx = at::empty_like(dy);
  at::Tensor weight = at::empty({value.numel()}, c.options().dtype(at::kFloat));
  rms_norm_backward(c.context.compute, norm_rows(c, dy), dy.const_data_ptr(), saved[0].const_data_ptr(),
      value.const_data_ptr(), saved[1].const_data_ptr<float>(), dx.mutable_data_ptr(),
      weight.mutable_data_ptr<float>());
  return {dx, weight};
}

Tensors rms_norm_backward_of(const Call& c, const at::Tensor& dy, Inputs saved) {
  if (c.context.slices.rows > 1) {
    return norm_backward_in_slices(
        c, dy, saved, [&](const at::Tensor& d, const Tensors& s) { return rms_norm_of_slice(c, d, s); });
  }
  if (c.context.device != nullptr) {
    auto [dx, weight] =
        device_rms_norm_backward(*c.context.device, {dy, saved[0], c.parameter(0).value, saved[1], addend_of(saved)});
    put_made(c.parameter(0), weight);
    return {dx};
  }
  const RowShape rows = norm_rows(c, dy);
  at::Tensor dx = at::empty_like(dy);
  put_gradient(c, c.parameter(0), at::kFloat, [&](const at::Tensor& place) {
    rms_norm_backward(c.context.compute, rows, dy.const_data_ptr(), saved[0].const_data_ptr(),
        c.parameter(0).value.const_data_ptr(), saved[1].const_data_ptr<float>(), dx.mutable_data_ptr(),
        place.mutable_data_ptr<float>());
  });
  if (const at::Tensor addend = addend_of(saved); addend.defined()) dx.add_(addend);
  return {dx};
}

std::optional<at::Tensor> bias_of(const Call& c) {
  if (c.operation.parameters.size() < 2) return std::nullopt;
  return c.parameter(1).value;
}

Tensors layer_norm_forward(const Call& c, Inputs in) {
  const std::int64_t width = c.parameter(0).value.numel();
  auto [out, mean, rstd] =
      at::native_layer_norm(in[0], {width}, c.parameter(0).value, bias_of(c), c.context.numerics.norm_epsilon);
  return {out, mean, rstd};
}

Tensors layer_norm_backward(const Call& c, const at::Tensor& dy, Inputs saved) {
  const std::int64_t width = c.parameter(0).value.numel();
  const bool has_bias = c.operation.parameters.size() > 1;
  if (c.context.slices.rows > 1) {
    return norm_backward_in_slices(
        c, dy, saved,
        [&](const at::Tensor& d, const Tensors& s) {
          auto [dx, weight, bias] = at::native_layer_norm_backward(
              d, s[0], {width}, s[1], s[2], c.parameter(0).value, bias_of(c), {true, true, has_bias});
          return Tensors{dx, weight, bias};
        });
  }
  auto [dx, weight, bias] = at::native_layer_norm_backward(
      dy, saved[0], {width}, saved[1], saved[2], c.parameter(0).value, bias_of(c), {true, true, has_bias});
  put_made(c.parameter(0), weight);
  if (has_bias) put_made(c.parameter(1), bias);
  return {dx};
}

// --- element by element ---

void rotate_in_place(const Call& c, const at::Tensor& values, bool inverse) {
  const std::int64_t head_dim = c.operation.attention.head_dim;
  const MicroBatch& batch = c.context.batch;
  if (c.context.device != nullptr)
    return device_rotate(*c.context.device, values, c.context.rotary.cos, c.context.rotary.sin, head_dim, inverse);
  const Rotation rotation = {.tokens = batch.count(),
      .positions = batch.sequence,
      .heads = values.size(1) / head_dim,
      .head_dim = head_dim,
      .inverse = inverse};
  rotate(c.context.compute, rotation, c.context.rotary.cos.const_data_ptr<float>(),
      c.context.rotary.sin.const_data_ptr<float>(), values.mutable_data_ptr());
}

const char* gelu_kind(const Call& c) { return c.context.numerics.gelu_tanh ? "tanh" : "none"; }

// Of the tokens that this rank has `rows` of: where they stand in their sequences.
at::Tensor positions_of(const Call& c, std::int64_t rows) {
  const MicroBatch& batch = c.context.batch;
  const at::Tensor own = at::arange(rows, batch.tokens.options());
  return own.add_(rows < batch.count() ? c.context.part.index * rows : 0).remainder_(batch.sequence);
}

Tensors add(const Call& c, Inputs in) {
  if (in.size() == 1) return {at::add(in[0], c.parameter(0).value)};  // a bias
  if (c.context.part.count > 1 && in[1].size(0) != in[0].size(0))
    return {at::add(in[0], in[1].index_select(0, positions_of(c, in[0].size(0))))};
  at::Tensor out = at::empty_like(in[0]);
  if (in[1].size(0) == in[0].size(0)) {
    at::add_out(out, in[0], in[1]);
  } else {  // rows of positions, the same for every sequence
    const MicroBatch& batch = c.context.batch;
    at::Tensor shaped = out.view({batch.sequences, batch.sequence, -1});
    at::add_out(shaped, in[0].view(shaped.sizes()), in[1].unsqueeze(0));
  }
  return {out};
}

void put_bias(const Call& c, const at::Tensor& dy) {
  const std::int64_t count = c.context.slices.rows;
  if (count == 1) return put_column_sums(c, c.parameter(0), dy);
  Tensors summands;
  for (std::int64_t j = 0; j < count; ++j) {
    at::Tensor& sums = summands.emplace_back(at::empty({dy.size(1)}, dy.options().dtype(at::kFloat)));
    sum_columns(c, slice(dy, 0, j, count), sums);
  }
  put_slices(c.parameter(0), summands);
}

// --- embedding ---

bool looks_up_positions(const Call& c) { return c.operation.inputs.front() != 0; }

Tensors embedding(const Call& c) {
  const at::Tensor& table = c.parameter(0).value;
  if (looks_up_positions(c)) return {table.narrow(0, 0, c.context.batch.sequence).clone()};
  at::Tensor out = c.empty(table.size(1));
  if (c.context.part.count == 1) {
    at::index_select_out(out, table, 0, c.context.batch.tokens);
    return {out};
  }
  // Rows of other ranks are zero here.
  const at::Tensor own = c.context.batch.tokens.sub(c.context.part.index * table.size(0));
  at::index_select_out(out, table, 0, own.clamp(0, table.size(0) - 1));
  return {out.masked_fill_(own.lt(0).logical_or_(own.ge(table.size(0))).unsqueeze(1), 0)};
}

// Where the table holds gradients already (a tied head's), rows are added to them.
void put_rows_on_device(const Call& c, const Parameter& parameter, const at::Tensor& gradient, const at::Tensor& ids) {
  if (!*parameter.written) parameter.gradient.zero_();
  *parameter.written = true;
  device_add_rows(*c.context.device, parameter.gradient, ids, gradient);
}

void put_some_rows(const Call& c, const Parameter& parameter, const at::Tensor& dy, const at::Tensor& ids) {
  c.context.device != nullptr ? put_rows_on_device(c, parameter, dy, ids) : put_rows(parameter, dy, ids);
}

// Of the rows that this rank has: of its part of the vocabulary, or of its tokens' positions.
void embedding_backward_of_part(const Call& c, const at::Tensor& dy) {
  const Parameter& table = c.parameter(0);
  if (!looks_up_positions(c)) {
    const std::int64_t rows = table.gradient.size(0);
    const at::Tensor own = c.context.batch.tokens.sub(c.context.part.index * rows);
    const at::Tensor places = own.ge(0).logical_and_(own.lt(rows)).nonzero().squeeze(1);
    return put_some_rows(c, table, dy.index_select(0, places), own.index_select(0, places));
  }
  const at::Tensor positions = positions_of(c, dy.size(0));
  Tensors summands;
  for (std::int64_t j = 0; j < c.context.slices.rows; ++j) {
    bool written = false;
    const Parameter summand{table.value, at::empty_like(table.gradient), &written};
    put_some_rows(c, summand, slice(dy, 0, j, c.context.slices.rows), slice(positions, 0, j, c.context.slices.rows));
    summands.push_back(summand.gradient);
  }
  put_slices(table, summands);
}

void embedding_backward(const Call& c, const at::Tensor& dy) {
  const MicroBatch& batch = c.context.batch;
  if (c.context.part.count > 1 || c.context.slices.rows > 1) return embedding_backward_of_part(c, dy);
  put_some_rows(c, c.parameter(0), dy,
      looks_up_positions(c) ? at::arange(batch.sequence, batch.tokens.options()).repeat({batch.sequences})
                            : batch.tokens);
}

// --- loss ---

// The slices' parts of a vocabulary: visit(slice, rows of tokens, what of the slice's logits and
// where in it their labels stand) for a few rows at a time.
struct SliceRows {
  std::int64_t number = 0;  // of the slice, on this rank
  std::int64_t begin = 0, count = 0;
  at::Tensor logits;  // [count, width], a view
  at::Tensor labels;  // [count, 1], clamped to the slice
  at::Tensor absent;  // [count]: the label is of another slice
};
void for_rows_of_slices(const Call& c, const at::Tensor& logits, const auto& visit) {
  const std::int64_t slices = c.context.slices.columns, tokens = logits.size(0);
  const std::int64_t width = logits.size(1) / slices, chunk = loss_rows(width);
  for (std::int64_t j = 0; j < slices; ++j) {
    const std::int64_t offset = (c.context.part.index * slices + j) * width;
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t count = std::min(chunk, tokens - begin);
      const at::Tensor own = c.context.batch.labels.narrow(0, begin, count).sub(offset);
      visit(SliceRows{j, begin, count, slice(logits, 1, j, slices).narrow(0, begin, count),
          own.clamp(0, width - 1).unsqueeze(1), own.lt(0).logical_or_(own.ge(width))});
    }
  }
}

// [slices, 3 * tokens]: of every token its greatest logit, the sum of exponentials from there, and
// the label's logit (0 where another slice has it).
Tensors slice_statistics(const Call& c, Inputs in) {
  const std::int64_t tokens = in[0].size(0);
  at::Tensor all = at::empty({c.context.slices.columns, kSliceStatistics * tokens}, c.options().dtype(at::kFloat));
  for_rows_of_slices(c, in[0], [&](const SliceRows& rows) {
    const at::Tensor own = all.select(0, rows.number).view({kSliceStatistics, tokens});
    const auto place = [&](std::int64_t which) { return own.select(0, which).narrow(0, rows.begin, rows.count); };
    at::Tensor values = rows.logits.to(at::kFloat, false, /*copy=*/true);
    place(2).copy_(values.gather(1, rows.labels).squeeze(1).masked_fill_(rows.absent, 0));
    const at::Tensor greatest = values.amax(1);
    place(0).copy_(greatest);
    place(1).copy_(values.sub_(greatest.unsqueeze(1)).exp_().sum(1));
  });
  return {all};
}

// From the statistics of all slices the loss, and the gradient in place of this rank's logits.
Tensors cross_entropy_of_slices(const Call& c, Inputs in) {
  MicroBatch& batch = c.context.batch;
  const std::int64_t tokens = in[0].size(0);
  const at::Tensor all = in[1].view({-1, kSliceStatistics, tokens});
  const at::Tensor greatest = all.select(1, 0).amax(0);
  at::Tensor sum = at::zeros_like(greatest), chosen = at::zeros_like(greatest);
  for (std::int64_t j = 0; j < all.size(0); ++j) {
    const at::Tensor own = all.select(0, j);
    sum.add_(own.select(0, 0).sub(greatest).exp_().mul_(own.select(0, 1)));
    chosen.add_(own.select(0, 2));
  }
  const at::Tensor norm = sum.log_().add_(greatest);
  const at::Tensor loss = norm.sub(chosen).sum(at::kDouble);
  if (c.context.device != nullptr) batch.loss_sum.add_(loss);
  else batch.loss = loss.item<double>() / as_double(tokens);
  const double scale = batch.loss_scale / as_double(tokens);
  for_rows_of_slices(c, in[0], [&](const SliceRows& rows) {
    at::Tensor values = rows.logits.to(at::kFloat, false, /*copy=*/true);
    values.sub_(norm.narrow(0, rows.begin, rows.count).unsqueeze(1)).exp_();
    values.scatter_add_(1, rows.labels, rows.absent.to(at::kFloat).sub_(1).unsqueeze(1));
    at::Tensor place = rows.logits;
    place.copy_(values.mul_(scale));
  });
  return {at::Tensor(), at::Tensor()};
}

// Rows of logits become log-probabilities, give their share of the loss, and are overwritten with
// their gradient: (probability - [is label]) * scale.
Tensors cross_entropy(const Call& c, Inputs in) {
  if (in.size() > 1) return cross_entropy_of_slices(c, in);
  const at::Tensor& logits = in[0];
  MicroBatch& batch = c.context.batch;
  const std::int64_t vocabulary = logits.size(1);
  const std::int64_t tokens = batch.count();
  const double scale = batch.loss_scale / as_double(tokens);
  if (c.context.device != nullptr) {
    device_cross_entropy(*c.context.device, logits, batch.labels, scale, batch.loss_sum);
    return {at::Tensor(), at::Tensor()};
  }
  const std::int64_t chunk = loss_rows(vocabulary);
  at::Tensor rows = at::empty({chunk, vocabulary}, c.options().dtype(at::kFloat));
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  double loss = 0;
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    at::Tensor part = rows.narrow(0, 0, count);
    at::Tensor source = logits.narrow(0, begin, count);
    if (c.context.compute == DType::kFp32) {
      at::_log_softmax_out(part, source, 1, false);
    } else {
      part.copy_(source);
      at::_log_softmax_out(part, part, 1, false);
    }
    auto* values = part.mutable_data_ptr<float>();
    loss += negative_log_likelihood({count, vocabulary}, values, labels + begin);
    part.exp_();
    for (std::int64_t r = 0; r < count; ++r) values[r * vocabulary + labels[begin + r]] -= 1.0F;
    if (c.context.compute == DType::kFp32) at::mul_out(source, part, at::scalar_tensor(scale, part.options()));
    else  // an out of another dtype would cost a copy of the part
      source.copy_(part.mul_(scale));
  }
  batch.loss = loss / as_double(tokens);
  return {at::Tensor(), at::Tensor()};
}

}

std::vector<at::Tensor> run_forward(const Operation& operation, const OperationContext& context,
    std::span<const Parameter> parameters, std::span<const at::Tensor> inputs) {
  const Call call{operation, context, parameters};
  switch (operation.function) {
    case Function::kMatrixProduct: return matrix_product(call, inputs);
    case Function::kAttention: return attention(call, inputs);
    case Function::kRmsNorm: return rms_norm_forward(call, inputs);
    case Function::kLayerNorm: return layer_norm_forward(call, inputs);
    case Function::kAdd: return add(call, inputs);
    case Function::kRotary: rotate_in_place(call, inputs[0], false); return {inputs[0]};
    case Function::kSiluMultiply: return {silu_multiply(context.device, inputs[0], inputs[1])};
    case Function::kGelu: {
      at::Tensor out = at::empty_like(inputs[0]);
      return {at::gelu_out(out, inputs[0], gelu_kind(call))};
    }
    case Function::kRelu: {
      at::Tensor out = at::empty_like(inputs[0]);
      return {at::relu_out(out, inputs[0])};
    }
    case Function::kEmbedding: return embedding(call);
    case Function::kArange: return {at::Tensor()};
    case Function::kLogSoftmax: return slice_statistics(call, inputs);
    case Function::kCrossEntropy: return cross_entropy(call, inputs);
    default: break;
  }
  FORESHARD_CHECK(
      false, std::string("the engine has no operation ") + to_string(operation.function) + " (" + operation.name + ")");
  return {};
}

std::vector<at::Tensor> run_backward(const Operation& operation, const OperationContext& context,
    std::span<const Parameter> parameters, const at::Tensor& gradient, std::span<const at::Tensor> saved) {
  const Call call{operation, context, parameters};
  switch (operation.function) {
    case Function::kMatrixProduct: return matrix_product_backward(call, gradient, saved);
    case Function::kAttention: return attention_backward(call, gradient, saved);
    case Function::kRmsNorm: return rms_norm_backward_of(call, gradient, saved);
    case Function::kLayerNorm: return layer_norm_backward(call, gradient, saved);
    case Function::kRotary: rotate_in_place(call, gradient, true); return {gradient};
    case Function::kSiluMultiply: return silu_multiply_backward(context.device, gradient, saved[0], saved[1]);
    case Function::kGelu: {
      at::Tensor dx = at::empty_like(gradient);
      return {at::gelu_backward_out(dx, gradient, saved[0], gelu_kind(call))};
    }
    case Function::kRelu: {
      at::Tensor dx = at::empty_like(gradient);
      return {at::threshold_backward_out(dx, gradient, saved[0], 0)};
    }
    case Function::kEmbedding: embedding_backward(call, gradient); return {};
    case Function::kArange: return {};
    case Function::kCopy: return sum_of_slices(call, gradient);
    case Function::kAdd: put_bias(call, gradient); return {gradient};
    case Function::kCrossEntropy: return {saved[0]};  // the gradient stands where the logits were
    default: break;
  }
  FORESHARD_CHECK(false,
      std::string("the engine has no gradient of ") + to_string(operation.function) + " (" + operation.name + ")");
  return {};
}

}
