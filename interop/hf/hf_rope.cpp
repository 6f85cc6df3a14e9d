// Rotary frequencies and what is said about the weights as they are stored.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "interop/hf/hf_readers.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// Types of transformers:src/transformers/modeling_rope_utils.py and older spellings. They change
// the table that positions are rotated by, so neither time nor memory follows from them.
constexpr std::array<std::string_view, 9> kRopeTypes = {
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "su", "mrope", "proportional"};

// {"rope_type": "llama3", "factor": 8.0, ...}; before transformers 4.43 the key was "type". What is
// not computed, or not whole, is kOther.
RopeScaling read_scaling(const ConfigNode& node) {
  RopeScaling scaling = {.kind = RopeScaling::Kind::kOther};
  const ConfigNode* type = node.find("rope_type");
  if (type == nullptr) type = node.find("type");
  if (type == nullptr && node.find("mrope_section") == nullptr)
    throw node.error("has no rope_type", "rope_type, such as llama3 or yarn, or no rope_scaling");
  const std::string name = type == nullptr ? "mrope" : type->as_string();
  if (!contains(kRopeTypes, name)) {
    throw type->error("rope_type \"" + name + "\" is not known",
        "default, linear, dynamic, yarn, longrope, llama3, mrope or proportional");
  }
  if (name == "default") return {};
  const ConfigNode* factor = node.find("factor");
  if (factor == nullptr || factor->is_null()) return scaling;
  const double stretch = factor->as_double(1, 1e6);  // of whatever type
  if (name == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = stretch;
  }
  const ConfigNode* low = node.find("low_freq_factor");
  const ConfigNode* high = node.find("high_freq_factor");
  const ConfigNode* original = node.find("original_max_position_embeddings");
  if (name == "llama3" && low != nullptr && high != nullptr && original != nullptr) {
    scaling.factor = stretch;
    scaling.low_frequency_factor = low->as_double(1e-3, 1e6);
    scaling.high_frequency_factor = high->as_double(1e-3, 1e6);
    scaling.original_positions = original->as_int(1, kLargestHfSize);
    const bool has_band = scaling.high_frequency_factor > scaling.low_frequency_factor;
    if (has_band) scaling.kind = RopeScaling::Kind::kLlama3;
  }
  return scaling;
}

// rope_parameters of transformers 5: of all layers, or of each type of layer.
RopeKeys read_parameters(const ConfigNode& node, Numerics& numerics) {
  if (!node.is_mapping()) throw node.error("is no object", "rope_type, rope_theta, ...");
  const ConfigNode* full = node.find("full_attention");
  const ConfigNode& own = full != nullptr && full->is_mapping() ? *full : node;
  if (const ConfigNode* theta = own.find("rope_theta"); theta && !theta->is_null())
    numerics.rope_theta = theta->as_double(1, 1e12);
  if (own.has("rope_type") || own.has("type")) numerics.rope_scaling = read_scaling(own);
  const ConfigNode* partial = own.find("partial_rotary_factor");
  RopeKeys rope;
  if (partial != nullptr && !partial->is_null()) rope.partial = partial->as_double(0, 1);
  if (const ConfigNode* windowed = node.find("sliding_attention"); windowed && &own != &node) {
    const ConfigNode* part = windowed->is_mapping() ? windowed->find("partial_rotary_factor") : nullptr;
    if (part != nullptr && !part->is_null()) rope.windowed = part->as_double(0, 1);
  }
  return rope;
}

}

RopeKeys read_numerics(KeyReader& keys, ModelDims& dims) {
  RopeKeys rope;
  if (const ConfigNode* value = keys.find({"rms_norm_eps", "layer_norm_eps", "norm_eps"}))
    dims.numerics.norm_epsilon = value->as_double(0, 1);
  if (const ConfigNode* value = keys.find({"rope_theta"})) dims.numerics.rope_theta = value->as_double(1, 1e12);
  if (const ConfigNode* value = keys.find({"rope_scaling"})) {
    if (!value->is_mapping()) throw value->error("is no object", "rope_type, factor, ... or null");
    dims.numerics.rope_scaling = read_scaling(*value);
  }
  if (const ConfigNode* value = keys.find({"rope_parameters"})) rope = read_parameters(*value, dims.numerics);
  return rope;
}

void read_rotary_part(KeyReader& keys, std::optional<double> given, ModelDims& dims, std::string_view spelling) {
  const double fraction = given ? *given : keys.number_or(spelling, 1);
  const auto rotated = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(dims.head_dim)));
  if (rotated < 1 || fraction > 1) {
    keys.refuse(spelling, "no element of a head of " + std::to_string(dims.head_dim) + " is rotated",
        "a fraction of the head dimension");
  }
  dims.rotary_dim = std::min(rotated + rotated % 2, dims.head_dim);  // pairs (torch.arange)
}

void check_rotary(KeyReader& keys, const ModelDims& dims) {
  if (dims.positions != Positions::kRotary) return;
  const std::int64_t rotated = dims.latent.kv_rank > 0 ? dims.latent.rope
                               : dims.rotary_dim > 0   ? dims.rotary_dim
                                                       : dims.head_dim;
  if (rotated % 2 == 0) return;
  keys.refuse("head_dim", "rotary positions turn pairs of elements, and a head has " + std::to_string(rotated),
      "an even head dimension");
}

std::string read_quantization(KeyReader& keys) {
  const ConfigNode* node = keys.find({"quantization_config"});
  if (node == nullptr) return "";
  const ConfigNode* method = node->is_mapping() ? node->find("quant_method") : nullptr;
  const std::string name = method == nullptr ? "" : method->as_string();
  // Formats that models are released in; transformers' quantizers dequantise them for training.
  if (name == "fp8" || name == "mxfp4" || name == "fbgemm_fp8") {
    const std::string text =
        "the weights are released in " + name + "; training holds them in dtype.param and dtype.master";
    keys.comment(text);
    return text;
  }
  throw(method != nullptr ? *method : *node)
      .error("weights quantised by \"" + name + "\" cannot be trained as they are",
          "the configuration of the unquantised model (fp8 and mxfp4 releases are read); "
          "adapters over 4-bit weights: --set lora.base=nf4");
}

}
