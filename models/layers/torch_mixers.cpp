// Mixers without the packages that have their kernels: the kernel's operation becomes the rows of torch_mixers.txt.
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/layers/mamba.h"
#include "models/yaml/model_yaml_layer.h"
#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_writer.h"

namespace foreshard {

std::span<const EmbeddedFile> torch_mixer_files();

namespace {

using RowCells = std::vector<std::string_view>;

RowCells cells_of(std::string_view text, std::string_view separator) {
  RowCells parts;
  while (!text.empty()) parts.push_back(cut(text, separator));
  return parts;
}

class Expansion {
 public:
  Expansion(LayerSpec& layer, std::size_t at_operation, std::int64_t sequence)
      : layer_(layer),
        writer_(layer, operations_),
        kernel_(layer.operations[at_operation]),
        place_(at_operation),
        positions_(layer.domain.length(sequence)) {
    const ScanShape& s = kernel_.scan;
    const std::int64_t chunks = (positions_ + s.chunk - 1) / s.chunk;
    sizes_ = {{'t', positions_}, {'u', positions_}, {'s', chunks * s.chunk}, {'l', s.chunk}, {'c', chunks},
        {'d', chunks + 1}, {'h', s.heads}, {'p', s.head_dim}, {'n', s.state}, {'g', s.groups}, {'x', s.convolved()}};
  }

  void run() {
    const auto after = layer_.operations.begin() + static_cast<std::ptrdiff_t>(place_) + 1;
    auto end = after;
    Index out = kernel_.outputs.front();
    if (kernel_.function == Function::kScan) {  // with the norm; the projection keeps its input
      sizes_['u'] += layer_.parameters[at(kernel_.parameters[3])].shape.back() - 1;
      out = after->outputs.front();
      append(kernel_.parameters, after->parameters);
      ++end;
      end->saved = end->inputs;
      for (const Index t : kernel_.outputs) std::erase(end->released, t);
    }
    tensors_ = {{"out", out}};
    bool is_of_it = false;
    for (const RowCells& row : rows_of_table(torch_mixer_files().front().content))
      if (row.front().starts_with(": ")) is_of_it = row.front().substr(2) == to_string(kernel_.function);
      else if (is_of_it) add(row);
    finish(out);
    layer_.operations.erase(after - 1, end);
    layer_.operations.insert(layer_.operations.begin() + static_cast<std::ptrdiff_t>(place_),
        std::make_move_iterator(operations_.begin()), std::make_move_iterator(operations_.end()));
  }

 private:
  static std::string_view cell(const RowCells& row, std::size_t column) {
    return column < row.size() ? row[column] : std::string_view();
  }

  std::int64_t elements(std::string_view letters) const {
    std::int64_t product = 1;
    for (const char letter : letters) product = checked_multiply(product, sizes_.at(letter));
    return product;
  }
  Index make(std::string_view name, std::string_view size, bool bytes = false) {
    const bool narrow = size.starts_with('~');
    const std::int64_t all = elements(size.substr(narrow ? 1 : 0));
    return writer_.tensor({.name = std::string(name),
        .per_token = all / positions_,
        .type = bytes    ? ElementType::kByte
                : narrow ? ElementType::kCompute
                         : ElementType::kFp32,
        .per_sequence = all % positions_});
  }
  Index named(std::string_view name) const {
    if (name.front() == '$') return kernel_.inputs[at(name[1] - '0')];
    return tensors_.at(std::string(name));
  }
  Indices all_named(std::string_view names) const {
    Indices list;
    for (const std::string_view name : cells_of(names, " "))
      if (!name.empty() && name.front() != '%') list.push_back(named(name));
    return list;
  }
  Indices workspaces(std::string_view sizes) {
    Indices list;
    for (const std::string_view size : cells_of(sizes, " "))
      if (!size.empty()) list.push_back(make("product of all pairs", size));
    return list;
  }

  void add(const RowCells& row) {
    const RowCells names = cells_of(row[0], ","), sizes = cells_of(row[2], ",");
    const Indices inputs = all_named(cell(row, 3));
    Indices outputs;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is_result = names[i] == "out";
      outputs.push_back(is_result ? tensors_.at("out") : make(names[i], sizes[i]));
      if (!is_result) tensors_.emplace(names[i], outputs.back()), alive_.push_back(outputs.back());
    }
    const bool splits = row[1] == "split", zeros = row[1] == "zeros";
    const Function function = splits || zeros ? Function::kCopy : function_of(row[1]);
    Operation& op = writer_.pass(std::string(names.front()), function, inputs, outputs);
    op.part = kernel_.part;
    op.view = splits;
    if (zeros) op.gradient = GradientRule::kNone;
    if (!splits && !zeros && (function == Function::kAdd || function == Function::kCopy))
      op.gradient = GradientRule::kAlias;
    for (const std::string_view name : cells_of(cell(row, 3), " "))
      if (name.starts_with('%') && at(name[1] - '0') < kernel_.parameters.size())
        op.parameters.push_back(kernel_.parameters[at(name[1] - '0')]);
    op.saved = cell(row, 4) == "=" ? inputs : all_named(cell(row, 4));
    op.forward_workspace = workspaces(cell(row, 5));
    op.backward_workspace = workspaces(cell(row, 6));
    const auto size_of = [&](Index t) {
      return checked_multiply(writer_.width(t), positions_) + writer_.spec_of(t).per_sequence;
    };
    if (op.backward_workspace.size() > 1)  // the second sum is made when the first's terms are gone
      layer_.tensors[at(op.backward_workspace.back())].per_token -= writer_.width(inputs[1]);
    op.sums_last = function == Function::kMultiply && inputs.size() == 2 && cell(row, 8).empty() &&
                   op.backward_workspace.empty() && size_of(inputs[1]) < size_of(outputs[0]);
    for (const bool backward : {false, true}) {
      for (const Index t : backward ? op.backward_workspace : op.forward_workspace)
        for (int pass = 0; pass < 2; ++pass) op.products.push_back({0, 0, t, one(), backward});
    }
    multiply(op, cell(row, 8));
    for (const Index t : all_named(cell(row, 7))) {
      op.released.push_back(t);
      std::erase(alive_, t);
    }
  }
  // The gradients of both factors are as many products.
  void multiply(Operation& op, std::string_view product) {
    if (product.empty()) return;
    const RowCells words = cells_of(product, " ");
    const Index rows = make("rows", words[0], true), steps = words.size() > 3 ? make("steps", words[3], true) : one();
    const std::int64_t n = elements(words[1]), k = elements(words[2]);
    for (const bool backward : {false, true, true}) op.products.push_back({n, k, rows, steps, backward});
  }
  Index one() {
    if (one_ < 0) one_ = writer_.tensor({.name = "one", .fixed = 1, .type = ElementType::kByte});
    return one_;
  }

  // What still has a name, and what ended with the kernel.
  void finish(Index out) {
    Operation& last = operations_.back();
    last.scan = kernel_.scan;  // norms behind it are the mixer's (module_kernels.cpp)
    append(last.released, alive_);
    for (const Index t : kernel_.released)
      if (!contains(kernel_.outputs, t) && t != out) last.released.push_back(t);
    // What only kernels are given copies of.
    for (Operation& op : layer_.operations) {
      const bool copies = op.function == Function::kCopy && op.gradient == GradientRule::kAlias;
      if (copies && op.inputs.size() == 1 && contains(kernel_.inputs, op.outputs.front())) op.view = true;
    }
  }

  LayerSpec& layer_;
  std::vector<Operation> operations_;
  LayerWriter writer_;
  Operation kernel_;
  const std::size_t place_;
  const std::int64_t positions_;
  std::map<char, std::int64_t> sizes_;
  std::map<std::string, Index> tensors_;
  Indices alive_;
  Index one_ = -1;
};

}

void use_torch_mixer(LayerSpec& layer, std::int64_t sequence) {
  for (std::size_t o = 0; o < layer.operations.size(); ++o) {
    const Operation& op = layer.operations[o];
    if (op.kind != OperationKind::kScan) continue;
    const Indices& in = op.inputs;  // (Kimi Linear's decays, of each channel of a key, are not read)
    if (in.size() > 3 && tensor(layer, in[3]).per_token != op.scan.heads) continue;
    Expansion(layer, o, sequence).run();
    return;
  }
}

}
