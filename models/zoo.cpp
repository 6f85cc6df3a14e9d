// A strict reader of one small CSV file. A model is found by comparing the first cell of each line, so that loading one
// parses one line; reading all of them also checks names and counts against each other.
#include "models/zoo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "models/families.h"
#include "models/names.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 16> kColumns = {"name", "family", "layers", "hidden", "heads", "kv_heads",
    "head_dim", "ffn", "vocabulary", "positions", "traits", "parameters", "published", "count", "source", "note"};

using Cells = std::array<std::string_view, kColumns.size()>;

struct Line {
  std::string_view file_name;
  int number = 0;  // from 1
  std::string_view text;
};

// Calls `visit` with each line after the header until it returns false.
void for_each_line(std::string_view text, std::string_view file_name, auto visit) {
  int number = 0;
  while (!text.empty())
    if (!visit(Line{file_name, ++number, cut(text, "\n")})) return;
}

[[noreturn]] void fail(const Line& line, std::size_t column, const std::string& what, const std::string& expected = "",
    const std::string& did_you_mean = "") {
  const char* begin = line.text.data();
  std::string_view rest = line.text;
  for (std::size_t i = 0; i < column; ++i) rest.remove_prefix(std::min(rest.find(','), rest.size() - 1) + 1);
  throw ConfigError({.file = std::string(line.file_name),
                        .line = line.number,
                        .column = static_cast<int>(rest.data() - begin) + 1,
                        .key_path = std::string(kColumns[column])},
      what, expected, did_you_mean);
}

Cells split(const Line& line) {
  Cells cells;
  std::string_view rest = line.text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t comma = rest.find(',');
    const bool last = i + 1 == cells.size();
    if ((comma == std::string_view::npos) != last)
      fail(line, 0, "the line does not have " + std::to_string(cells.size()) + " cells");
    cells[i] = rest.substr(0, comma);
    if (!last) rest.remove_prefix(comma + 1);
  }
  return cells;
}

std::int64_t number(const Line& line, std::string_view cell, std::size_t column) {
  const auto value = parse_number<std::int64_t>(cell).value_or(0);
  if (value < 1)
    fail(line, column, "\"" + std::string(cell) + "\" is not a count", "a whole number from 1, for example 4096");
  return value;
}

double constant(const Line& line, std::string_view cell, std::size_t column) {
  const auto value = parse_number<double>(cell).value_or(0);
  if (!(value > 0) || !std::isfinite(value))
    fail(line, column, "\"" + std::string(cell) + "\" is not a constant", "a number above 0, for example 500000");
  return value;
}

std::string nearest(std::string_view word, std::span<const std::string_view> words) {
  const std::vector<std::string> candidates(words.begin(), words.end());
  return nearest_spelling(word, candidates);
}

constexpr std::size_t kTraits = 10;
constexpr std::array<std::string_view, 8> kWords = {
    "tied", "bias", "learned", "two_norms", "dropout", "post_norm", "gated", "scaled"};

struct Size {
  std::string_view word;
  std::int64_t& (*of)(ModelDims&);
};
constexpr std::array<Size, 22> kSizes = {{
    {"experts", [](ModelDims& d) -> std::int64_t& { return d.moe.experts; }},
    {"top_k", [](ModelDims& d) -> std::int64_t& { return d.moe.top_k; }},
    {"expert_ffn", [](ModelDims& d) -> std::int64_t& { return d.moe.ffn; }},
    {"shared_ffn", [](ModelDims& d) -> std::int64_t& { return d.moe.shared_ffn; }},
    {"q_rank", [](ModelDims& d) -> std::int64_t& { return d.latent.q_rank; }},
    {"kv_rank", [](ModelDims& d) -> std::int64_t& { return d.latent.kv_rank; }},
    {"nope", [](ModelDims& d) -> std::int64_t& { return d.latent.nope; }},
    {"rope", [](ModelDims& d) -> std::int64_t& { return d.latent.rope; }},
    {"value", [](ModelDims& d) -> std::int64_t& { return d.latent.value; }},
    {"rotary_dim", [](ModelDims& d) -> std::int64_t& { return d.rotary_dim; }},
    {"token_types", [](ModelDims& d) -> std::int64_t& { return d.token_types; }},
    {"window", [](ModelDims& d) -> std::int64_t& { return d.window; }},
    {"encoder_layers", [](ModelDims& d) -> std::int64_t& { return d.encoder_layers; }},
    {"prediction_layers", [](ModelDims& d) -> std::int64_t& { return d.prediction_layers; }},
    {"embedding_width", [](ModelDims& d) -> std::int64_t& { return d.embedding_width; }},
    {"mixer_heads", [](ModelDims& d) -> std::int64_t& { return d.mamba.scan.heads; }},
    {"mixer_head_dim", [](ModelDims& d) -> std::int64_t& { return d.mamba.scan.head_dim; }},
    {"state", [](ModelDims& d) -> std::int64_t& { return d.mamba.scan.state; }},
    {"groups", [](ModelDims& d) -> std::int64_t& { return d.mamba.scan.groups; }},
    {"chunk", [](ModelDims& d) -> std::int64_t& { return d.mamba.scan.chunk; }},
    {"expert_latent", [](ModelDims& d) -> std::int64_t& { return d.moe.latent; }},
    {"position_rows", [](ModelDims& d) -> std::int64_t& { return d.position_rows; }},
}};

struct Constant {
  std::string_view word;
  void (*apply)(double value, Numerics& numerics);
};
constexpr std::array<Constant, 3> kConstants = {{
    {"rope_theta", [](double value, Numerics& n) { n.rope_theta = value; }},
    {"norm_epsilon", [](double value, Numerics& n) { n.norm_epsilon = value; }},
    {"rope_llama3",
        [](double value, Numerics& n) {
          n.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
              .factor = value,
              .low_frequency_factor = 1,
              .high_frequency_factor = 4,
              .original_positions = 8192};
        }},
}};

[[noreturn]] void fail_trait(const Line& line, std::string_view trait) {
  std::vector<std::string_view> words(kWords.begin(), kWords.end());
  for (const Size& size : kSizes) words.push_back(size.word);
  for (const Constant& each : kConstants) words.push_back(each.word);
  words.push_back("first_dense");
  words.push_back("unrotated_every");
  words.push_back("full_every");
  words.push_back("attends_every");
  words.push_back("pattern");
  words.push_back("prediction");
  fail(line, kTraits, "unknown trait \"" + std::string(trait) + "\"",
      "words of tied, bias, learned, two_norms, dropout, post_norm, gated, scaled and sizes such as experts=8, "
      "separated by single spaces",
      nearest(trait.substr(0, trait.find('=')), words));
}

void apply_value(const Line& line, std::string_view trait, ModelDims& dims) {
  const std::size_t equals = trait.find('=');
  const std::string_view word = trait.substr(0, equals);
  const auto found = std::ranges::find(kConstants, word, &Constant::word);
  if (found != kConstants.end()) return found->apply(constant(line, trait.substr(equals + 1), kTraits), dims.numerics);
  if (word == "pattern" || word == "prediction") {
    (word == "pattern" ? dims.pattern : dims.prediction_pattern) = trait.substr(equals + 1);
    return;
  }
  if (apply_family_word(trait, dims)) return;
  const std::int64_t value = number(line, trait.substr(equals + 1), kTraits);
  if (word == "attends_every") {  // the others by the delta rule
    for (std::int64_t i = 1; i <= dims.layers; ++i) dims.pattern += i % value == 0 ? 'a' : 'd';
    return;
  }
  if (word == "first_dense") {
    dims.moe.dense_layers.clear();
    for (std::int64_t i = 0; i < std::min(value, dims.layers); ++i) dims.moe.dense_layers.push_back(i);
    return;
  }
  if (word == "full_every") {  // the others attend within `window`
    for (std::int64_t i = 0; i < dims.layers; ++i)
      if ((i + 1) % value != 0) dims.windowed_layers.push_back(i);
    return;
  }
  if (word == "unrotated_every") {
    for (std::int64_t i = value - 1; i < dims.layers; i += value) dims.unrotated_layers.push_back(i);
    return;
  }
  const auto size = std::ranges::find(kSizes, word, &Size::word);
  if (size == kSizes.end()) fail_trait(line, trait);
  size->of(dims) = value;
}

void apply_traits(const Line& line, const Cells& cells, ModelDims& dims) {
  std::string_view rest = cells[kTraits];
  while (!rest.empty()) {
    const std::string_view trait = cut(rest, " ");
    if (contains(trait, '=')) {
      apply_value(line, trait, dims);
    } else if (trait == "tied") {
      dims.tied = true;
    } else if (trait == "bias") {
      add_biases(dims);
    } else if (trait == "learned") {
      dims.positions = Positions::kLearned;
    } else if (trait == "two_norms") {
      dims.residual = Residual::kParallel;
    } else if (trait == "gated") {  // T5 1.1
      dims.activation = Activation::kGeGlu;
      dims.numerics.gelu_new = true;
    } else if (trait == "scaled") {
      dims.output_scale = true;
    } else if (trait == "post_norm") {
      dims.residual = Residual::kPostNorm;
      dims.final_norm = false;
    } else if (trait == "dropout") {
      dims.dropout = dims.embedding_dropout = dims.attention_dropout = true;
    } else if (!apply_family_word(trait, dims)) {
      fail_trait(line, trait);
    }
  }
  if (contains(dims.pattern, 'd')) dims.delta.scan = std::exchange(dims.mamba.scan, {});
}

ModelDims parse_dims(const Line& line, const Cells& cells) {
  if (cells[0].empty()) fail(line, 0, "the name is empty");
  const std::optional<ModelDims> family = family_dims(cells[1]);
  if (!family) {
    fail(line, 1, "unknown family \"" + std::string(cells[1]) + "\"", "a family of models/families.h",
        nearest(cells[1], family_names()));
  }
  ModelDims dims = *family;
  dims.name = cells[0];
  dims.source = cells[14];
  dims.layers = number(line, cells[2], 2);
  dims.hidden = number(line, cells[3], 3);
  dims.heads = number(line, cells[4], 4);
  dims.kv_heads = number(line, cells[5], 5);
  dims.head_dim = number(line, cells[6], 6);
  dims.ffn = number(line, cells[7], 7);
  dims.vocabulary = number(line, cells[8], 8);
  dims.max_positions = number(line, cells[9], 9);
  apply_traits(line, cells, dims);
  if (dims.positions == Positions::kLearned && dims.position_rows == 0) {
    // OPT's table starts with two rows for padding (Hugging Face's OPTLearnedPositionalEmbedding).
    dims.position_rows = dims.max_positions + (dims.naming == Naming::kOpt ? 2 : 0);
  }
  return dims;
}

ZooEntry parse_entry(const Line& line) {
  const Cells cells = split(line);
  ZooEntry entry = {.dims = parse_dims(line, cells),
      .parameters = number(line, cells[11], 11),
      .published = number(line, cells[12], 12)};
  if (cells[13] != "exact" && cells[13] != "rounded")
    fail(line, 13, "unknown count \"" + std::string(cells[13]) + "\"", "exact or rounded");
  entry.exact = cells[13] == "exact";
  if (entry.exact && entry.published != entry.parameters)
    fail(line, 12, "an exact published count differs from parameters");
  if (cells[14].empty()) fail(line, 14, "the source is empty");
  entry.note = cells[15];
  return entry;
}

void check_header(const Line& line) {
  const Cells cells = split(line);
  for (std::size_t i = 0; i < kColumns.size(); ++i)
    if (cells[i] != kColumns[i])
      fail(line, i, "column \"" + std::string(cells[i]) + "\"", "\"" + std::string(kColumns[i]) + "\"");
}

const EmbeddedFile& zoo_file() {
  for (const EmbeddedFile& file : models_files())
    if (file.path == "models/zoo/zoo.csv") return file;
  throw Error(ExitCode::kInternal, "internal error: models/zoo/zoo.csv is not built in");
}

bool same_name(std::string_view a, std::string_view b) { return lower(a) == lower(b); }

std::optional<Line> find_line(std::string_view name) {
  const EmbeddedFile& file = zoo_file();
  std::optional<Line> found;
  for_each_line(file.content, file.path, [&](const Line& line) {
    if (line.number > 1 && same_name(line.text.substr(0, line.text.find(',')), name)) found = line;
    return !found;
  });
  return found;
}

}

std::vector<ZooEntry> parse_zoo(std::string_view text, std::string_view file_name) {
  std::vector<ZooEntry> entries;
  for_each_line(text, file_name, [&](const Line& line) {
    if (line.number == 1) {
      check_header(line);
      return true;
    }
    ZooEntry entry = parse_entry(line);
    for (const ZooEntry& other : entries)
      if (same_name(other.dims.name, entry.dims.name))
        fail(line, 0, "the name \"" + entry.dims.name + "\" stands twice");
    entries.push_back(std::move(entry));
    return true;
  });
  return entries;
}

std::vector<ZooEntry> zoo() {
  const EmbeddedFile& file = zoo_file();
  return parse_zoo(file.content, file.path);
}

bool is_zoo_model(std::string_view name) { return find_line(name).has_value() || find_vision_model(name).has_value(); }

std::vector<std::string> zoo_names() {
  auto names = list_of<std::string>(zoo(), [&](const ZooEntry& entry) { return entry.dims.name; });
  for (const VisionEntry& entry : vision_zoo()) names.push_back(entry.dims.name);
  return names;
}

ModelSpec load_zoo_model(std::string_view name, Stack stack) {
  if (const std::optional<Line> line = find_line(name)) return build_model(parse_entry(*line).dims, stack);
  if (const std::optional<VisionEntry> entry = find_vision_model(name)) return build_vision_model(entry->dims, stack);
  throw Error(ExitCode::kInvalidInput, unknown_model(name));
}

// One mapping per model; a family says which of its keys must be there.

namespace {

constexpr std::int64_t kLargest = 1'000'000'000;

std::int64_t size(const ConfigNode& node, std::string_view key) {
  return node.at(key, "a size, for example 1024").as_int(1, kLargest);
}

TowerDims read_tower(const ConfigNode& node) {
  node.allow_only({"image", "patch", "layers", "hidden", "heads", "ffn"});
  return TowerDims{.image = size(node, "image"),
      .patch = size(node, "patch"),
      .layers = size(node, "layers"),
      .hidden = size(node, "hidden"),
      .heads = size(node, "heads"),
      .ffn = size(node, "ffn")};
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
  node.allow_only({"name", "family", "tower", "text", "labels", "projection", "parameters", "published", "count",
      "source", "note"});
  VisionEntry entry;
  VisionDims& dims = entry.dims;
  dims.name = node.at("name").as_string();
  dims.family = kFamilies[node.at("family").as_choice(kFamilies)];
  dims.source = node.at("source").as_string();
  dims.tower = read_tower(node.at("tower"));
  dims.tower.quick_gelu = dims.family != "vit";
  if (dims.family == "vit") dims.labels = size(node, "labels");
  else dims.text = read_text(node.at("text"));
  if (dims.family == "clip") dims.projection = size(node, "projection");
  entry.parameters = node.at("parameters").as_int(1);
  entry.published = node.at("published").as_int(1);
  entry.exact = node.at("count").as_choice({"exact", "rounded"}) == 0;
  if (entry.exact && entry.published != entry.parameters)
    throw node.at("published").error("an exact published count differs from parameters");
  if (const ConfigNode* note = node.find("note")) entry.note = note->as_string();
  return entry;
}

}

std::vector<VisionEntry> parse_vision_zoo(const ConfigNode& root) {
  return list_of<VisionEntry>(
      root.elements(), [&](const ConfigNode& node) { return read_entry(node); });
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
  for (VisionEntry& entry : vision_zoo())
    if (lower(name) == lower(entry.dims.name)) return std::move(entry);
  return std::nullopt;
}

}
