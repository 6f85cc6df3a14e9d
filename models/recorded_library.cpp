// Dimensions of the two families with the recorder's names, which are Hugging Face's without the
// outer module's. The recorder has no rotary embedding; ours is computed and changes no event.
#include "models/recorded_library.h"

#include <string_view>

#include "models/families.h"
#include "models/model_dims.h"

namespace foreshard {
namespace {

void drop_prefix(std::string& name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.erase(0, prefix.size());
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
  dims.tied = settings.tied;
  ModelSpec model = build_model(dims);
  const std::string_view outer = gpt ? "transformer." : "model.";
  drop_prefix(model.block_prefix, outer);
  model.buffer_elements = settings.buffer;
  for (LayerSpec& layer : model.kinds) {
    for (ParameterSpec& parameter : layer.parameters) drop_prefix(parameter.name, outer);
    if (settings.unused && layer.role == LayerRole::kHead) {
      layer.parameters.push_back({.name = "extra.weight", .shape = {settings.dim, settings.dim}});
    }
  }
  return model;
}

}  // namespace foreshard
