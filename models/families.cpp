// Reads families.txt, a row for each family.
#include "models/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/parameter_names.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

constexpr std::pair<std::string_view, bool ModelDims::*> kSwitches[] = {{"fused_qkv", &ModelDims::fused_qkv},
    {"regroups_heads", &ModelDims::regroups_heads}, {"qkv_bias", &ModelDims::qkv_bias},
    {"output_bias", &ModelDims::output_bias}, {"mlp_bias", &ModelDims::mlp_bias},
    {"embedding_norm", &ModelDims::embedding_norm}, {"conv1d", &ModelDims::conv1d},
    {"fused_gate_up", &ModelDims::fused_gate_up}, {"embedding_scale", &ModelDims::embedding_scale},
    {"logit_softcap", &ModelDims::logit_softcap}, {"branch_scale", &ModelDims::branch_scale},
    {"logit_scale", &ModelDims::logit_scale}, {"head_bias", &ModelDims::head_bias},
    {"head_first", &ModelDims::head_first}, {"drops_attention_alone", &ModelDims::drops_attention_alone},
    {"buffered_bias", &ModelDims::buffered_bias}, {"wide_loss", &ModelDims::wide_loss},
    {"plain_first", &ModelDims::plain_first}, {"sinks", &ModelDims::sinks},
    {"bidirectional", &ModelDims::bidirectional}, {"dropout", &ModelDims::dropout},
    {"output_scale", &ModelDims::output_scale}, {"drops_mlp_alone", &ModelDims::drops_mlp_alone},
    {"embedding_dropout", &ModelDims::embedding_dropout}, {"attention_dropout", &ModelDims::attention_dropout},
    {"ffn_dropout", &ModelDims::ffn_dropout}};

constexpr std::pair<std::string_view, bool Experts::*> kSwitchesOfExperts[] = {{"shared_gate", &Experts::shared_gate},
    {"sigmoid", &Experts::sigmoid}, {"normalized", &Experts::normalized}, {"scaled", &Experts::scaled},
    {"corrected", &Experts::corrected}, {"bias", &Experts::bias}, {"fused_gate_up", &Experts::fused_gate_up}};

constexpr std::pair<std::string_view, bool BlockParts::*> kSwitchesOfParts[] = {
    {"gate_of_heads", &BlockParts::gate_of_heads}, {"gate_beside_queries", &BlockParts::gate_beside_queries},
    {"attention_norm", &BlockParts::attention_norm}, {"ffn_norm", &BlockParts::ffn_norm},
    {"mixture_norm", &BlockParts::mixture_norm}, {"experts_beside", &BlockParts::experts_beside},
    {"value_norm", &BlockParts::value_norm}, {"layer_scale", &BlockParts::layer_scale},
    {"plain_head", &BlockParts::plain_head}, {"transforms", &BlockParts::transforms},
    {"every_bias", &BlockParts::every_bias}, {"fixed_positions", &BlockParts::fixed_positions}};

// Words of enumerations, in their order.
constexpr std::string_view kActivations[] = {"swiglu", "geglu", "gelu", "relu", "relu2", "xielu", "reglu2"};
constexpr std::string_view kPositions[] = {"rotary", "learned", "alibi", "none", "sinusoidal"};
constexpr std::string_view kResiduals[] = {
    "pre_norm", "sandwich", "post_branch", "post_norm", "parallel", "parallel_of_one_norm"};
constexpr std::string_view kProjections[] = {"by_head", "by_use", "apart", "low_rank"};
constexpr std::string_view kNorms[] = {"rms", "layer", "layer_without_bias", "layer_unweighted", "rms_unweighted"};
constexpr std::string_view kGates[] = {"none", "sigmoid", "softplus"};
constexpr std::string_view kHeadNorms[] = {"none", "each", "whole", "unweighted"};

template <typename Kind>
void set_kind(Kind& kind, std::span<const std::string_view> words, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  FORESHARD_CHECK(found != words.end(), fmt::format("families have no {}", word));
  kind = static_cast<Kind>(found - words.begin());
}

void set_switch(auto& part, const auto& switches, std::string_view word) {
  const auto found = std::ranges::find_if(switches, [&](const auto& each) { return each.first == word; });
  FORESHARD_CHECK(found != std::end(switches), fmt::format("families have no {}", word));
  part.*found->second = true;
}

// "naming=gemma2", "moe.normalized", "fused_qkv".
void apply(std::string_view value, ModelDims& dims) {
  const std::string_view key = cut(value, "=");
  if (key == "naming") dims.naming = naming_of(value);
  else if (key == "positions") set_kind(dims.positions, kPositions, value);
  else if (key == "position_buckets") dims.position_buckets = std::stoll(std::string(value));
  else if (key == "activation") set_kind(dims.activation, kActivations, value);
  else if (key == "exact_gelu") dims.numerics.gelu_tanh = false;
  else if (key == "residual") set_kind(dims.residual, kResiduals, value);
  else if (key == "delta.projections") set_kind(dims.delta.projections, kProjections, value);
  else if (key == "delta.pre_norm") dims.delta.pre_norm = true;
  else if (key == "biases") add_biases(dims);
  else if (key == "norm") set_kind(dims.norm, kNorms, value);
  else if (key == "head_norm") set_kind(dims.head_norm, kNorms, value);
  else if (key == "qk_norm") set_kind(dims.qk_norm, kHeadNorms, value);
  else if (key == "parts.gate") set_kind(dims.parts.gate, kGates, value);
  else if (constexpr std::string_view kParts = "parts."; key.starts_with(kParts))
    set_switch(dims.parts, kSwitchesOfParts, key.substr(kParts.size()));
  else if (constexpr std::string_view kMoe = "moe."; key.starts_with(kMoe))
    set_switch(dims.moe, kSwitchesOfExperts, key.substr(kMoe.size()));
  else set_switch(dims, kSwitches, key);
}

const std::vector<ModelDims>& families() {
  static const std::vector<ModelDims> read = [] {
    std::vector<ModelDims> rows;
    for (const auto& cells : rows_of_table(family_files().front().content)) {
      ModelDims& dims = rows.emplace_back();
      dims.family = cells.at(0);
      std::string_view words = cells.size() > 1 ? cells[1] : std::string_view();
      while (!words.empty()) apply(cut(words, " "), dims);
    }
    return rows;
  }();
  return read;
}

}

std::span<const std::string_view> family_names() {
  static const std::vector<std::string_view> names = [] {
    return list_of<std::string_view>(families(), &ModelDims::family);
  }();
  return names;
}

void add_biases(ModelDims& dims) {
  dims.norm = NormKind::kLayer;
  dims.qkv_bias = dims.output_bias = dims.mlp_bias = true;
}

bool apply_family_word(std::string_view word, ModelDims& dims) {
  const std::string_view key = word.substr(0, word.find('='));
  const bool is_switch = std::ranges::any_of(kSwitches, [&](const auto& each) { return each.first == word; });
  const bool is_norm = key == "qk_norm" && std::ranges::count(kHeadNorms, word.substr(word.find('=') + 1)) > 0;
  if (is_switch || is_norm) apply(word, dims);
  return is_switch || is_norm;
}

std::optional<ModelDims> family_dims(std::string_view family) {
  for (const ModelDims& dims : families())
    if (dims.family == family) return dims;
  return std::nullopt;
}

ModelDims family_dims(std::string_view family, std::string name, const DecoderSizes& sizes) {
  ModelDims dims = family_dims(family).value();
  dims.name = dims.source = std::move(name);
  dims.layers = sizes.layers;
  dims.hidden = sizes.hidden;
  dims.heads = sizes.heads;
  dims.kv_heads = sizes.kv_heads;
  dims.head_dim = sizes.head_dim;
  dims.ffn = sizes.ffn;
  dims.vocabulary = sizes.vocabulary;
  dims.max_positions = dims.position_rows = sizes.positions;
  return dims;
}

}
