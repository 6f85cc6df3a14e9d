// Which model_type of a Hugging Face config.json is read as which family, and what its
// configuration class fills in: data, one row each. Internal to interop/.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "interop/hf/hf_keys.h"
#include "models/model_dims.h"

namespace foreshard {

// Which function of interop/hf/hf_readers.h knows the keys.
enum class HfReader : std::uint8_t {
  kDecoder,
  kGpt2,
  kOpt,
  kBloom,
  kMpt,
  kParallel,
  kEncoder,
  kEncoderDecoder,
  kBart,
  kLatent
};

struct HfFamily {
  std::string_view model_type;
  std::string_view family;  // of models/families.h
  HfReader reader = HfReader::kDecoder;
  // Keys of HfReader::kDecoder beside those that all have; words of hf_decoder.cpp.
  std::string_view reads = "";
  // "key=value ..." where the class's default is not the reader's.
  std::string_view defaults = "";
  // The same for sizes, which a text_config may leave out and a file of its own may not.
  std::string_view nested = "";
};

std::span<const HfFamily> hf_families();

// What the class's head scores; none of words, of all others.
std::optional<ScoreOf> score_of(std::string_view architecture);

// Whether the class's head says the next word.
bool is_causal_head(std::string_view architecture);

// The family of the object: by model_type, else by the name of its architecture, else as `fallback`, the model_type of
// the enclosing object, says. Throws ConfigError for an unknown one, with the nearest by name or by the keys that are
// there, and for an architecture without the model's own head or of another model_type.
const HfFamily& hf_family_of(KeyReader& keys, const ConfigNode* fallback);

}
