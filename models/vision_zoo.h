// Published models that read images, as data (models/zoo/vision.yaml) that is built into the
// program. Quick gelu belongs to CLIP's towers, gelu to ViT's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/vision.h"
#include "sim/base/config.h"

namespace foreshard {

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

}  // namespace foreshard
