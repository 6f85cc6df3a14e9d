#include "interop/capture/module_sizes.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/lookup.h"

namespace foreshard {
namespace {

struct Word {
  std::string_view aten, op;
};
// ATen's operations as a model.yaml calls them; of others nothing matters but what they read, make and keep.
constexpr Word kWords[] = {
    {"embedding", "embedding"},
    {"addmm", "linear"},
    {"mm", "linear"},
    {"convolution", "linear"},
    {"native_layer_norm", "layer_norm"},
    {"native_group_norm", "layer_norm"},
    {"native_batch_norm", "layer_norm"},
    {"cudnn_batch_norm", "layer_norm"},
    {"batch_norm_elemt", "layer_norm"},
    {"_fused_rms_norm", "rms_norm"},
    {"add", "add"},
    {"sub", "add"},
    {"sum", "add"},
    {"mul", "multiply"},
    {"bmm", "multiply"},
    {"_to_copy", "cast"},
    {"clone", "copy"},
    {"cat", "copy"},
    {"stack", "copy"},
    {"silu", "silu"},
    {"gelu", "gelu"},
    {"relu", "relu"},
    {"sigmoid", "sigmoid"},
    {"tanh", "tanh"},
    {"_softmax", "softmax"},
    {"native_dropout", "dropout"},
    {"topk", "top_k"},
    {"sort", "sort"},
    {"index", "gather"},
    {"gather", "gather"},
    {"index_select", "gather"},
    {"index_add", "scatter_add"},
    {"scatter_add", "scatter_add"},
    {"_log_softmax", "log_softmax"},
    {"nll_loss_forward", "negative_log_likelihood"},
};

struct Form {
  const char* key;
  std::int64_t (*unit)(const CapturedModules&);
  std::size_t batches, sequences;  // times that it grows with each
};
constexpr std::int64_t kMostPositions = 1 << 12;  // of a row: a patch's pixels
constexpr std::size_t kFixed = 3;
constexpr std::int64_t kMostOfOne = std::int64_t{1} << 32;  // models/yaml/model_yaml_layer.h
constexpr Form kForms[] = {{"per_token", [](const CapturedModules& c) { return c.batch * c.sequence; }, 1, 1},
    {"per_sequence", [](const CapturedModules& c) { return c.batch; }, 1, 0},
    {"per_position", [](const CapturedModules& c) { return c.sequence; }, 0, 1},
    {"fixed", [](const CapturedModules&) { return std::int64_t{1}; }, 0, 0},
    {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence * c.sequence; }, 1, 2},
    {"per_position", [](const CapturedModules& c) { return c.sequence * c.sequence; }, 0, 2}};

bool fits(const std::vector<CapturedModules>& captures, const std::vector<std::int64_t>& elements, const Form& form,
    std::int64_t each, const Form& other, std::int64_t more) {
  for (std::size_t c = 0; c < captures.size(); ++c)
    if (each * form.unit(captures[c]) + more * other.unit(captures[c]) != elements[c]) return false;
  return true;
}

bool is_compute_fp32(const std::vector<CapturedModules>& captures) {
  for (const Json& operation : captures[0].document.at("operations")) {
    const std::string op = operation.at("op");
    if (word_of(op) != "linear") continue;
    return operation.at("out")[0].at("dtype") == "torch.float32";
  }
  return true;
}

Json typed(const std::vector<CapturedModules>& captures, Json made, const std::string& dtype) {
  if (dtype == "torch.int64") made["type"] = "int64";
  if (dtype == "torch.float32" && !is_compute_fp32(captures)) made["type"] = "fp32";
  if (dtype == "torch.bool" || dtype == "torch.uint8") made["type"] = "byte";
  return made;
}

Json typed(
    const std::vector<CapturedModules>& captures, const Form& form, std::int64_t each, const std::string& dtype) {
  Json made = {{form.key, each}};
  if (form.sequences > 1) made["by_pairs"] = true;
  return typed(captures, std::move(made), dtype);
}

// Sums of products of samples and positions, over a common divisor.
struct Size {
  using Powers = std::pair<int, int>;  // of samples, of positions
  std::map<Powers, std::int64_t> terms = {{{0, 0}, 1}};
  std::int64_t divisor = 1;

  std::int64_t at(const CapturedModules& capture) const {
    std::int64_t sum = 0;
    for (const auto& [powers, each] : terms) {
      std::int64_t unit = each;
      for (int i = 0; i < powers.first; ++i) unit *= capture.batch;
      for (int i = 0; i < powers.second; ++i) unit *= capture.sequence;
      sum += unit;
    }
    return sum % divisor == 0 ? sum / divisor : -1;
  }
  // Null where a tensor of model.yaml has none for it.
  Json words() const {
    int samples = 1, positions = 1;
    for (const auto& [powers, each] : terms) {
      samples = std::max(samples, powers.first);
      positions = std::max(positions, powers.second);
    }
    if (samples > 2 || positions > 2) return {};
    Json made = Json::object();
    for (const auto& [powers, each] : terms) {
      const bool is_of_samples = powers.first == samples, is_of_positions = powers.second == positions;
      if ((powers.first > 0 && !is_of_samples) || (powers.second > 0 && !is_of_positions)) return {};
      made[is_of_samples ? (is_of_positions ? "per_token" : "per_sequence")
                         : (is_of_positions ? "per_position" : "fixed")] = each;
    }
    if (positions > 1) made["by_pairs"] = true;
    if (samples > 1) made["by_samples"] = true;
    if (divisor > 1) made["split"] = divisor;
    return made;
  }
};

Size product(const Size& a, const Size& b) {
  Size made;
  made.terms.clear();
  made.divisor = a.divisor * b.divisor;
  std::int64_t common = made.divisor;
  for (const auto& [left, x] : a.terms)
    for (const auto& [right, y] : b.terms) made.terms[{left.first + right.first, left.second + right.second}] += x * y;
  std::erase_if(made.terms, [](const auto& term) { return term.second == 0; });
  for (const auto& [powers, each] : made.terms) common = std::gcd(common, each);
  for (auto& [powers, each] : made.terms) each /= common;
  made.divisor /= common;
  return made;
}

// A line through what the captures have, of their positions: what a stride leaves, less what its kernel takes, or more
// by what stands in front. Two captures leave any line open: one that is nearly through the origin is taken.
std::optional<Size> line_of(const std::vector<CapturedModules>& captures, const std::vector<std::int64_t>& values) {
  constexpr std::int64_t kLeastShare = 8;
  const std::int64_t run = captures[1].sequence - captures[0].sequence;
  const std::int64_t rise = values[1] - values[0];
  if (run == 0 || rise == 0 || (run > 0) != (rise > 0)) return std::nullopt;
  const std::int64_t common = std::gcd(run, rise);
  Size line;
  line.divisor = std::abs(run / common);
  const std::int64_t slope = std::abs(rise / common);
  const std::int64_t rest = values[0] * line.divisor - slope * captures[0].sequence;
  const std::int64_t least = *std::ranges::min_element(values);
  const bool is_prefix = rest > 0 && line.divisor == 1;
  if (!is_prefix && std::abs(rest) * kLeastShare > least * line.divisor) return std::nullopt;
  line.terms = {{{0, 1}, slope}};
  if (rest != 0) line.terms[{0, 0}] = rest;
  for (std::size_t c = 0; c < captures.size(); ++c)
    if (line.at(captures[c]) != values[c]) return std::nullopt;
  return line;
}

// `has_batch`: another extent is the batch itself.
std::optional<Size> extent_of(
    const std::vector<CapturedModules>& captures, const std::vector<std::int64_t>& values, bool has_batch) {
  const auto times = [&](int samples, int positions) -> std::optional<Size> {
    Size made;
    made.terms = {{{samples, positions}, 1}};
    const std::int64_t unit = made.at(captures[0]);
    if (values[0] % unit != 0) return std::nullopt;
    made.terms[{samples, positions}] = values[0] / unit;
    for (std::size_t c = 0; c < captures.size(); ++c)
      if (made.at(captures[c]) != values[c]) return std::nullopt;
    return made;
  };
  const bool is_batch = times(1, 0) && values[0] == captures[0].batch;
  if (auto made = times(0, 0)) return made;
  if (is_batch) return times(1, 0);
  for (const auto& [samples, positions] : {Size::Powers{1, 1}, Size::Powers{0, 1}})
    if (auto made = times(samples, positions)) return made;
  const std::optional<Size> line = line_of(captures, values);
  const std::optional<Size> of_batch = times(1, 0);
  if (of_batch && !(has_batch && line && line->terms.size() == 1)) return of_batch;
  // A part of the samples, or of the positions: the larger one.
  const auto divisor = [&](std::int64_t CapturedModules::*of) {
    const std::int64_t parts = captures[0].*of / values[0];
    for (std::size_t c = 0; c < captures.size(); ++c)
      if (values[c] * parts != captures[c].*of) return std::int64_t{0};
    return parts;
  };
  const std::int64_t of_samples = divisor(&CapturedModules::batch);
  const std::int64_t of_positions = divisor(&CapturedModules::sequence);
  if (of_samples > 1 && (of_positions == 0 || of_samples < of_positions)) {
    Size part;
    part.terms = {{{1, 0}, 1}};
    part.divisor = of_samples;
    return part;
  }
  if (line || has_batch) return line;
  std::vector<std::int64_t> each;  // of a sample
  for (std::size_t c = 0; c < captures.size(); ++c) {
    if (values[c] % captures[c].batch != 0) return std::nullopt;
    each.push_back(values[c] / captures[c].batch);
  }
  const std::optional<Size> rows = line_of(captures, each);
  Size samples;
  samples.terms = {{{1, 0}, 1}};
  return rows ? std::optional(product(samples, *rows)) : std::nullopt;
}

}

std::string word_of(std::string_view aten) {
  if (contains(aten, "scaled_dot_product")) return "attention";
  for (const Word& word : kWords)
    if (word.aten == aten) return std::string(word.op);
  return "scale";
}

Json ModuleSizes::shaped(const std::vector<std::vector<std::int64_t>>& shapes,
    const std::vector<std::int64_t>& elements, const std::string& dtype) const {
  if (captures_.size() < 2) return {};
  const std::size_t dims = shapes[0].size();
  std::vector<std::vector<std::int64_t>> extents(dims);  // by dimension, of each capture
  bool has_batch = false;
  for (std::size_t d = 0; d < dims; ++d) {
    bool is_batch = captures_[0].batch != captures_[1].batch;
    for (std::size_t c = 0; c < captures_.size(); ++c) {
      if (d >= shapes[c].size()) return {};
      extents[d].push_back(shapes[c][d]);
      is_batch &= shapes[c][d] == captures_[c].batch;
    }
    has_batch |= is_batch;
  }
  Size size;
  for (const auto& each : extents) {
    const std::optional<Size> of = extent_of(captures_, each, has_batch);
    if (!of) return {};
    size = product(size, *of);
  }
  // Of samples that are all as long nothing but their number tells.
  const bool is_square = std::ranges::any_of(size.terms, [](const auto& term) { return term.first.first > 1; });
  if (fixed_sequence() > 0 && !is_square) return {};
  for (std::size_t c = 0; c < captures_.size(); ++c)
    if (size.at(captures_[c]) != elements[c]) return {};
  Json made = size.words();
  return made.is_null() ? made : typed(captures_, made, dtype);
}

Json ModuleSizes::tensor(
    const std::vector<std::int64_t>& elements, const std::string& dtype, std::int64_t width) const {
  for (const Form& form : kForms) {
    const std::int64_t each = elements[0] / form.unit(captures_[0]);
    const bool is_too_much = each > kMostOfOne && &form != &kForms[kFixed];
    if (each > 0 && each % width == 0 && !is_too_much && fits(captures_, elements, form, each, form, 0))
      return typed(captures_, form, each, dtype);
  }
  if (captures_.size() < 2) return {};
  constexpr std::int64_t kGranule = 64;  // elements that the allocator gives to the smallest
  const auto of_pairs = [&](std::size_t c) { return elements[c] % (captures_[c].batch * captures_[c].batch) == 0; };
  if (*std::ranges::max_element(elements) <= kGranule && !(of_pairs(0) && of_pairs(1)))
    return typed(captures_, kForms[kFixed], *std::ranges::max_element(elements), dtype);
  for (std::size_t f = 0; f <= kFixed; ++f) {  // a sum of two
    const Form& form = kForms[f];
    for (std::size_t o = f + 1; o <= kFixed; ++o) {
      const Form& other = kForms[o];
      const std::int64_t a = form.unit(captures_[0]), b = other.unit(captures_[0]);
      const std::int64_t c = form.unit(captures_[1]), d = other.unit(captures_[1]);
      const std::int64_t determinant = a * d - b * c;
      if (determinant == 0) continue;
      const std::int64_t x = (elements[0] * d - elements[1] * b) / determinant;
      const std::int64_t y = (elements[1] * a - elements[0] * c) / determinant;
      const bool may_lack = f == 0 && o == 1 && y >= -x;  // logits but the last
      if (x > 0 && (y > 0 || may_lack) && fits(captures_, elements, form, x, other, y)) {
        Json made = typed(captures_, form, x, dtype);
        made[other.key] = y;
        return made;
      }
    }
  }
  for (const Form& form : kForms) {  // of several positions one
    if (captures_.size() < 2 || (form.sequences == 0 && form.batches == 0)) continue;
    const std::int64_t unit = form.unit(captures_[0]), common = std::gcd(elements[0], unit);
    bool is_it = unit / common <= kMostPositions;
    for (std::size_t c = 1; c < captures_.size(); ++c)
      is_it &= elements[0] / common * form.unit(captures_[c]) == elements[c] * (unit / common);
    if (!is_it) continue;
    Json made = typed(captures_, form, elements[0] / common, dtype);
    made["split"] = unit / common;
    return made;
  }
  // What a target or a mask selects: as large as the largest, where that is next to nothing.
  constexpr std::int64_t kLittle = 1 << 14, kShare = 64;  // elements; of the largest tensor
  const std::int64_t most = *std::ranges::max_element(elements);
  return most <= std::max(kLittle, largest_ / kShare) ? typed(captures_, kForms[kFixed], most, dtype) : Json();
}

ModuleSizes::ModuleSizes(const std::vector<CapturedModules>& captures) : captures_(captures) {
  const auto operations = captures[0].document.find("operations");
  if (operations == captures[0].document.end()) return;
  for (const Json& operation : *operations)
    for (const Json& out : operation.at("out")) largest_ = std::max(largest_, out.at("elements").get<std::int64_t>());
}

std::int64_t ModuleSizes::fixed_sequence() const {
  const std::int64_t length = captures_[0].sequence;
  const bool is_one =
      (captures_.size() > 1 || length == 1) &&
      std::ranges::all_of(captures_, [&](const CapturedModules& each) { return each.sequence == length; });
  return is_one ? length : 0;
}

}
