// Published models by name, as data (models/zoo/zoo.csv) that is built into the program.
//
// Columns: the sizes of ModelDims; `traits`, words of tied, bias, learned, two_norms, dropout,
// sizes as experts=8 (of experts, top_k, expert_ffn, shared_ffn, first_dense, q_rank, kv_rank,
// nope, rope, value, rotary_dim, token_types, position_rows, mixer_heads,
// mixer_head_dim, state, groups, chunk, expert_latent; pattern=MEM*E and prediction=*E: ModelDims; attends_every=4: the
// other layers by the delta rule, of mixer_heads to chunk; switches of families.txt; unrotated_every=4: every fourth
// layer has no positions) and constants of the arithmetic as its config.json has them (rope_theta, norm_epsilon;
// rope_llama3=8: rope_scaling of rope_type llama3 and factor 8 with low_freq_factor 1, high_freq_factor 4 and
// original_max_position_embeddings 8192, which are those of every Llama), separated by single spaces; without a
// constant: that of Numerics; `parameters`, which the builder must reproduce; `published`, the integer its authors
// print, equal to `parameters` where `count` is exact and a rounded figure where it is rounded; `source`; `note`. Cells
// hold no comma and no quote. Constants: config.json at Hugging Face, as tests/interop/configs and Lightning-AI/litgpt
// litgpt/config.py repeat them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_dims.h"
#include "models/vision.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

struct ZooEntry {
  ModelDims dims;  // name, source included
  std::int64_t parameters = 0;
  std::int64_t published = 0;
  bool exact = true;  // published == parameters
  std::string note;
  bool operator==(const ZooEntry&) const = default;
};

// All entries in the order of the file.
std::vector<ZooEntry> zoo();

// Letter case is free; models/names.h knows what else a name may be. Throws Error(kInvalidInput)
// for an unknown name, with those that begin alike. Parses one line only.
ModelSpec load_zoo_model(std::string_view name, Stack stack = Stack::kEager);
bool is_zoo_model(std::string_view name);
// Of decoders (zoo()), then of models that read images (below), which the engine's
// stack does not execute.
std::vector<std::string> zoo_names();

// What the two above read. Throws ConfigError with the line: unknown header, wrong number of cells,
// a number that is none, unknown family, trait or count, a name twice, exact counts that differ.
std::vector<ZooEntry> parse_zoo(std::string_view text, std::string_view file_name);

// Published models that read images, as data (models/zoo/vision.yaml) that is built into the
// program. Quick gelu belongs to CLIP's towers, gelu to ViT's.

struct VisionEntry {
  VisionDims dims;
  std::int64_t parameters = 0;
  std::int64_t published = 0;
  bool exact = true;  // published == parameters
  std::string note;
};

std::vector<VisionEntry> vision_zoo();

// Letter case is free.
std::optional<VisionEntry> find_vision_model(std::string_view name);

// Throws ConfigError for an unknown key or family, a missing size, and exact counts that differ.
std::vector<VisionEntry> parse_vision_zoo(const ConfigNode& root);

}
