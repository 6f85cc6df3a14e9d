// One mapping per model; a family says which of its keys must be there.
#include "models/vision_zoo.h"

#include <array>
#include <utility>

#include "models/families.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLargest = 1'000'000'000;

std::int64_t size(const ConfigNode& node, std::string_view key) {
  return node.at(key, "a size, for example 1024").as_int(1, kLargest);
}

TowerDims read_tower(const ConfigNode& node) {
  node.allow_only({"image", "patch", "layers", "hidden", "heads", "ffn"});
  TowerDims tower;
  tower.image = size(node, "image");
  tower.patch = size(node, "patch");
  tower.layers = size(node, "layers");
  tower.hidden = size(node, "hidden");
  tower.heads = size(node, "heads");
  tower.ffn = size(node, "ffn");
  return tower;
}

ModelDims read_text(const ConfigNode& node) {
  node.allow_only({"layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "positions"});
  ModelDims text = family_dims("llama").value();
  text.layers = size(node, "layers");
  text.hidden = size(node, "hidden");
  text.heads = size(node, "heads");
  text.kv_heads = node.has("kv_heads") ? size(node, "kv_heads") : text.heads;
  text.head_dim = text.hidden / text.heads;
  text.ffn = size(node, "ffn");
  text.vocabulary = size(node, "vocabulary");
  text.max_positions = size(node, "positions");
  return text;
}

VisionEntry read_entry(const ConfigNode& node) {
  static constexpr std::array<std::string_view, 3> kFamilies = {"vit", "clip", "llava"};
  node.allow_only({"name", "family", "tower", "text", "labels", "projection", "parameters",
                   "published", "count", "source", "note"});
  VisionEntry entry;
  VisionDims& dims = entry.dims;
  dims.name = node.at("name").as_string();
  dims.family = kFamilies[node.at("family").as_choice(kFamilies)];
  dims.source = node.at("source").as_string();
  dims.tower = read_tower(node.at("tower"));
  dims.tower.quick_gelu = dims.family != "vit";
  if (dims.family == "vit") {
    dims.labels = size(node, "labels");
  } else {
    dims.text = read_text(node.at("text"));
  }
  if (dims.family == "clip") dims.projection = size(node, "projection");
  entry.parameters = node.at("parameters").as_int(1);
  entry.published = node.at("published").as_int(1);
  entry.exact = node.at("count").as_choice({"exact", "rounded"}) == 0;
  if (entry.exact && entry.published != entry.parameters) {
    throw node.at("published").error("an exact published count differs from parameters");
  }
  if (const ConfigNode* note = node.find("note")) entry.note = note->as_string();
  return entry;
}

}  // namespace

std::vector<VisionEntry> parse_vision_zoo(const ConfigNode& root) {
  std::vector<VisionEntry> entries;
  for (const ConfigNode& node : root.elements()) entries.push_back(read_entry(node));
  return entries;
}

std::vector<VisionEntry> vision_zoo() {
  for (const EmbeddedFile& file : models_files()) {
    if (file.path != "models/zoo/vision.yaml") continue;
    const ConfigNode root = parse_yaml(file.content, file.path);
    return parse_vision_zoo(root);
  }
  throw Error(ExitCode::kInternal, "internal error: models/zoo/vision.yaml is not built in");
}

std::optional<VisionEntry> find_vision_model(std::string_view name) {
  for (VisionEntry& entry : vision_zoo()) {
    if (lower(name) == lower(entry.dims.name)) return std::move(entry);
  }
  return std::nullopt;
}

}  // namespace foreshard
