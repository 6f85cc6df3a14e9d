// The modules of FSDP2's recordings are data (recorded.yaml): their parts become a model.yaml, with sizes in the places
// of words, and are read as any other. Those of the other libraries are the zoo's families with the recorder's names.
#include "models/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "models/families.h"
#include "models/model_dims.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {

std::span<const EmbeddedFile> recorded_model_files();

namespace {

using FilledWords = std::map<std::string, std::string, std::less<>>;

// With what stands for each "$word".
std::string filled(std::string text, const FilledWords& words) {
  for (std::size_t begin = text.find('$'); begin != std::string::npos; begin = text.find('$', begin)) {
    const std::size_t end = skip(text, begin + 1, is_name_letter);
    text.replace(begin, end - begin, words.find(text.substr(begin + 1, end - begin - 1))->second);
  }
  return text;
}

std::string indented(std::string_view lines, std::string_view by) {
  std::string text;
  while (!lines.empty()) text += fmt::format("{}{}\n", by, cut(lines, "\n"));
  return text;
}

std::string layer_text(const ConfigNode& layer, const ConfigNode& all_parts) {
  std::string text = fmt::format("  \"{}\":\n", layer.at("kind").text());
  const ConfigNode of = layer.at("of");
  for (const char* const key : {"layer", "tensors", "parameters", "operations"}) {
    const bool is_layer = std::string_view(key) == "layer";
    std::string lines;
    for (const ConfigNode& name : of.elements()) {
      const ConfigNode part = all_parts.at(name.text());
      if (const ConfigNode* said = part.find(key)) lines += indented(said->text(), is_layer ? "    " : "      ");
    }
    text += is_layer || lines.empty() ? lines : fmt::format("    {}:\n{}", key, lines);
  }
  return text;
}

FilledWords words_of(const RecordedSettings& s, std::string_view table, std::string_view head) {
  const std::int64_t head_dim = s.dim / s.heads;
  FilledWords words = {
      {"rng", s.attention == "flash" ? "16" : "8"},  // a random-number state; seed and offset, 8 bytes each
      {"head", s.tied ? std::string(table) : fmt::format("{}.weight", head)},
      {"head_is", s.tied ? fmt::format("{{shape: [{}, {}], tied: true}}", s.vocab, s.dim)
                         : fmt::format("[{}, {}]", s.vocab, s.dim)}};
  const std::pair<const char*, std::int64_t> sizes[] = {{"dim", s.dim}, {"ffn", s.ffn}, {"vocab", s.vocab},
      {"seq", s.seq}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", head_dim},
      {"kv", s.kv_heads * head_dim}, {"qkv", 3 * s.dim}, {"experts", s.experts}, {"top_k", s.top_k},
      {"rows", s.top_k * s.dim}, {"rows_ffn", s.top_k * s.ffn}};
  for (const auto& [name, size] : sizes) words[name] = std::to_string(size);
  return words;
}

}

ModelSpec build_recorded_model(const RecordedSettings& s) {
  static const ConfigNode kRoot =
      parse_yaml(recorded_model_files().front().content, recorded_model_files().front().path);
  const ConfigNode models = kRoot.at("models"), parts = kRoot.at("parts");
  const auto refuse = [](std::string_view what, const std::string& word) {
    throw Error(ExitCode::kMissingCapability, "recorded models: no {} \"{}\"", what, word);
  };
  if (!models.has(s.model)) refuse("model", s.model);
  if (s.attention != "flash" && s.attention != "efficient") refuse("attention", s.attention);
  if (s.norm != "fused") refuse("norm", s.norm);
  const ConfigNode model = models.at(s.model), list = model.at("layers");
  const std::span<const ConfigNode> layers = list.elements();
  std::string text = fmt::format(
      "model: {}\nfamily: {}\nsource: modules of the recordings\nhidden: {}\nvocabulary: {}\npositions: {}\n"
      "tied_embeddings: {}\nblock_prefix: layers\nlayers:\n",
      s.model, model.at("family").text(), s.dim, s.vocab, s.seq, s.tied);
  for (const ConfigNode& layer : layers) text += layer_text(layer, parts);
  text += "order:\n";
  for (const ConfigNode& layer : layers) {
    const std::string_view kind = layer.at("kind").text(), name = layer.at("name").text();
    const std::string repeat = contains(name, "{}") ? fmt::format(", repeat: {}", s.layers) : "";
    text += fmt::format("  - {{kind: {}, name: \"{}\"{}}}\n", kind, name, repeat);
  }
  const FilledWords words = words_of(s, model.at("table").text(), layers[layers.size() - 2].at("name").text());
  ModelSpec made = parse_model_yaml(parse_yaml(filled(std::move(text), words), "a recorded model"));
  for (LayerSpec& kind : made.kinds)  // a function of Python's stands for the fused norm
    for (Operation& op : kind.operations) op.makes_all = op.kind == OperationKind::kNorm;
  for (std::int64_t again = s.layers; again < s.repeat * s.layers; ++again) {
    LayerInstance block = made.order[at(1 + again % s.layers)];
    block.same_as = static_cast<std::int32_t>(1 + again % s.layers);
    made.order.insert(made.order.end() - 3, block);
  }
  return made;
}

// Dimensions of the two families with the recorder's names, which are Hugging Face's without the
// outer module's. The recorder has no rotary embedding; ours is computed and changes no event.

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
    for (ParameterSpec& parameter : layer.parameters)
      if (parameter.name.starts_with(names[n] + ".")) parameter.part = part;
    const auto reads = [&](const Operation& operation) {
      return std::ranges::any_of(
          operation.parameters, [&](std::int16_t p) { return layer.parameters[std::size_t(p)].part == part; });
    };
    const auto first = std::ranges::find_if(layer.operations, reads);
    const auto last = std::find_if(layer.operations.rbegin(), layer.operations.rend(), reads);
    for (auto operation = first; operation < last.base(); ++operation) operation->part = part;
  }
}

}

ModelSpec build_library_model(const LibraryModel& settings) {
  const bool gpt = settings.arch == "gpt";
  if (!gpt && settings.arch != "llama")
    throw Error(ExitCode::kMissingCapability, "the recorder's architecture \"" + settings.arch + "\" is not known");
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
    if (settings.unused && layer.role == LayerRole::kHead)
      layer.parameters.push_back({.name = "extra.weight", .shape = {settings.dim, settings.dim}});
    if (settings.wrap == "sub" && layer.role == LayerRole::kBlock) nest(layer, {gpt ? "attn" : "self_attn", "mlp"});
    if (settings.wrap == "blocks+emb" && gpt && layer.role == LayerRole::kEmbedding) nest(layer, {"wte", "wpe"});
  }
  return model;
}

}
