// Models as YAML: any model that is not built in, and any built-in one written out.
//
//     model: my-model          # name
//     positions: 2048          # longest sequence
//     layers:                  # kinds of layers, each written down once
//       embedding:
//         role: embedding      # embedding, block, norm, head, loss or inner
//         tensors:             # the first one is the layer's input
//           token_ids: {per_token: 1, type: int64}
//           rows: 512          # elements per token, in the dtype of the plan's parameters
//         parameters:
//           embed_tokens.weight: [32000, 512]
//         operations:
//           - {op: embedding, inputs: token_ids, outputs: rows, parameters: embed_tokens.weight}
//         output: rows
//     order:
//       - embedding
//       - {kind: block, name: "layers.{}", repeat: 12}
//
// Every field is sim/spec/model_spec.h's; `foreshard schema model` lists them, and models/examples/tinyllama-1.1b.yaml
// is one with comments. `op` is a function (linear for matrix_product); what it usually saves, releases and is called
// is filled in and may be said otherwise.
//
// Every failure is a ConfigError at the wrong place: unknown keys and words; names that are not
// declared, not written yet, written twice or never used; sizes that are negative, too large or do
// not fit what an operation multiplies; layers of which one does not hand on what the next one
// reads; chains that nothing joins; layers that cannot be differentiated.
#pragma once

#include <filesystem>
#include <string>

#include "sim/base/config.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

ModelSpec parse_model_yaml(const ConfigNode& root);
// The name of the file is the source of a model that names none.
ModelSpec load_model_yaml(const std::filesystem::path& path);

// Read back, it gives an equal ModelSpec.
std::string to_model_yaml(const ModelSpec& model);

}
