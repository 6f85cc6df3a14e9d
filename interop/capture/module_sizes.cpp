#include "interop/capture/module_sizes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace foreshard {
namespace {

struct Word {
  std::string_view aten, op;
};
// ATen's operations as a model.yaml calls them; of others nothing matters but what they read, make
// and keep.
constexpr Word kWords[] = {
    {"embedding", "embedding"},
    {"addmm", "linear"},
    {"mm", "linear"},
    {"convolution", "linear"},
    {"native_layer_norm", "layer_norm"},
    {"native_group_norm", "layer_norm"},
    {"native_batch_norm", "layer_norm"},
    {"cudnn_batch_norm", "layer_norm"},
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
constexpr Form kForms[] = {
    {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence; }, 1, 1},
    {"per_sequence", [](const CapturedModules& c) { return c.batch; }, 1, 0},
    {"per_position", [](const CapturedModules& c) { return c.sequence; }, 0, 1},
    {"fixed", [](const CapturedModules&) { return std::int64_t{1}; }, 0, 0},
    {"per_token", [](const CapturedModules& c) { return c.batch * c.sequence * c.sequence; }, 1, 2},
    {"per_position", [](const CapturedModules& c) { return c.sequence * c.sequence; }, 0, 2}};

bool fits(const std::vector<CapturedModules>& captures, const std::vector<std::int64_t>& elements,
          const Form& form, std::int64_t each, const Form& other, std::int64_t more) {
  for (std::size_t c = 0; c < captures.size(); ++c) {
    if (each * form.unit(captures[c]) + more * other.unit(captures[c]) != elements[c]) return false;
  }
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

Json typed(const std::vector<CapturedModules>& captures, const Form& form, std::int64_t each,
           const std::string& dtype) {
  Json made = {{form.key, each}};
  if (form.sequences > 1) made["by_pairs"] = true;
  if (dtype == "torch.int64") made["type"] = "int64";
  if (dtype == "torch.float32" && !is_compute_fp32(captures)) made["type"] = "fp32";
  if (dtype == "torch.bool" || dtype == "torch.uint8") made["type"] = "byte";
  return made;
}

}  // namespace

std::string word_of(std::string_view aten) {
  if (aten.find("scaled_dot_product") != aten.npos) return "attention";
  for (const Word& word : kWords) {
    if (word.aten == aten) return std::string(word.op);
  }
  return "scale";
}

Json ModuleSizes::shaped(const std::vector<std::vector<std::int64_t>>& shapes,
                         const std::vector<std::int64_t>& elements,
                         const std::string& dtype) const {
  if (captures_.size() < 2 || fixed_sequence() > 0) return {};
  std::size_t batches = 0, sequences = 0, samples = 0;
  for (std::size_t d = 0; d < shapes[0].size(); ++d) {
    const auto grows_with = [&](bool batch, bool sequence) {
      const auto unit = [&](const CapturedModules& c) {
        return (batch ? c.batch : 1) * (sequence ? c.sequence : 1);
      };
      const std::int64_t each = shapes[0][d] / unit(captures_[0]);
      for (std::size_t c = 0; c < captures_.size(); ++c) {
        if (d >= shapes[c].size() || each * unit(captures_[c]) != shapes[c][d]) return false;
      }
      return each > 0;
    };
    if (grows_with(false, false)) continue;
    const bool both = grows_with(true, true);
    if (!both && !grows_with(false, true) && !grows_with(true, false)) return {};
    const bool sequence = both || grows_with(false, true);
    batches += both || !sequence ? 1 : 0;
    sequences += sequence ? 1 : 0;
    samples += shapes[0][d] == captures_[0].batch ? 1 : 0;  // (half a sequence is none)
  }
  if (batches > 1 && samples == batches) return false;
  for (const Form& form : kForms) {
    const std::int64_t each = elements[0] / form.unit(captures_[0]);
    const bool is_it = form.batches == batches && form.sequences == sequences;
    if (is_it && each > 0 && fits(captures_, elements, form, each, form, 0))
      return typed(captures_, form, each, dtype);
  }
  return {};
}

Json ModuleSizes::tensor(const std::vector<std::int64_t>& elements, const std::string& dtype,
                         std::int64_t width) const {
  for (const Form& form : kForms) {
    const std::int64_t each = elements[0] / form.unit(captures_[0]);
    if (each > 0 && each % width == 0 && fits(captures_, elements, form, each, form, 0)) {
      return typed(captures_, form, each, dtype);
    }
  }
  if (captures_.size() < 2) return {};
  constexpr std::int64_t kGranule = 64;  // elements that the allocator gives to the smallest
  const auto of_pairs = [&](std::size_t c) {
    return elements[c] % (captures_[c].batch * captures_[c].batch) == 0;
  };
  if (*std::ranges::max_element(elements) <= kGranule && !(of_pairs(0) && of_pairs(1))) {
    return typed(captures_, kForms[kFixed], *std::ranges::max_element(elements), dtype);
  }
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
  return {};
}

std::int64_t ModuleSizes::fixed_sequence() const {
  const std::int64_t length = captures_[0].sequence;
  const bool is_one = (captures_.size() > 1 || length == 1) &&
                      std::ranges::all_of(captures_, [&](const CapturedModules& each) {
                        return each.sequence == length;
                      });
  return is_one ? length : 0;
}

}  // namespace foreshard
