// Dimensions of the two families with the recorder's names, which are Hugging Face's without the
// outer module's. The recorder has no rotary embedding; ours is computed and changes no event.
#include "models/recorded_library.h"

#include <algorithm>
#include <string_view>

#include "models/families.h"
#include "models/model_dims.h"

namespace foreshard {
namespace {

void drop_prefix(std::string& name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.erase(0, prefix.size());
}

// Makes the modules of these names, in the order of the forward, such as may be units: the
// operations from the first to the last that read their parameters.
void nest(LayerSpec& layer, const std::vector<std::string>& names) {
  layer.nested = names;
  for (std::size_t n = 0; n < names.size(); ++n) {
    const auto part = static_cast<std::int8_t>(n + 1);
    for (ParameterSpec& parameter : layer.parameters) {
      if (parameter.name.starts_with(names[n] + ".")) parameter.part = part;
    }
    const auto reads = [&](const Operation& operation) {
      return std::ranges::any_of(operation.parameters, [&](std::int16_t p) {
        return layer.parameters[std::size_t(p)].part == part;
      });
    };
    const auto first = std::ranges::find_if(layer.operations, reads);
    const auto last = std::find_if(layer.operations.rbegin(), layer.operations.rend(), reads);
    for (auto operation = first; operation < last.base(); ++operation) operation->part = part;
  }
}

}  // namespace

ModelSpec build_library_model(const LibraryModel& settings) {
  const bool gpt = settings.arch == "gpt";
  if (!gpt && settings.arch != "llama") {
    throw Error(ExitCode::kMissingCapability,
                "the recorder's architecture \"" + settings.arch + "\" is not known");
  }
  ModelDims dims = *family_dims(gpt ? "gpt3" : "llama");
  dims.name = settings.arch;
  dims.source = "the recorder's configs.json";
  dims.layers = settings.layers;
  dims.hidden = settings.dim;
  dims.heads = settings.heads;
  dims.kv_heads = gpt ? settings.heads : settings.kv_heads;
  if (settings.heads > 0) dims.head_dim = settings.dim / settings.heads;
  dims.ffn = settings.ffn;
  dims.vocabulary = settings.vocab;
  dims.max_positions = dims.position_rows = gpt ? settings.positions : 1 << 20;
  // FSDP1 that makes a unit of a tied table leaves the head with a parameter of its own
  // (use_orig_params=False; else the head fails on the shard of the table).
  dims.tied = settings.tied && settings.wrap != "blocks+emb";
  ModelSpec model = build_model(dims);
  const std::string_view outer = gpt ? "transformer." : "model.";
  drop_prefix(model.block_prefix, outer);
  model.buffer_elements = settings.buffer;
  for (LayerSpec& layer : model.kinds) {
    for (ParameterSpec& parameter : layer.parameters) drop_prefix(parameter.name, outer);
    if (settings.unused && layer.role == LayerRole::kHead) {
      layer.parameters.push_back({.name = "extra.weight", .shape = {settings.dim, settings.dim}});
    }
    if (settings.wrap == "sub" && layer.role == LayerRole::kBlock) {
      nest(layer, {gpt ? "attn" : "self_attn", "mlp"});
    }
    if (settings.wrap == "blocks+emb" && gpt && layer.role == LayerRole::kEmbedding) {
      nest(layer, {"wte", "wpe"});
    }
  }
  return model;
}

}  // namespace foreshard
