// A unit is known by its modules: blocks are members of a list ("model.layers.3"), the embedding
// and the head are what the model itself calls its input and output embeddings, and a module beside
// the head, or alone behind the blocks, is the last norm.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "interop/capture/capture_import.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

std::vector<std::string> modules_of(const Json& unit) {
  std::vector<std::string> modules;
  const std::string list = text_in(unit, "modules");
  for (std::size_t at = 0; at <= list.size() && !list.empty();) {
    const std::size_t end = std::min(list.find(", ", at), list.size());
    modules.push_back(list.substr(at, end - at));
    at = end + 2;
  }
  return modules;
}

bool is_block(const std::string& module) {
  const std::size_t dot = module.rfind('.');
  return dot != std::string::npos && dot + 1 < module.size() &&
         module.find_first_not_of("0123456789", dot + 1) == std::string::npos;
}

std::string_view last_word(std::string_view module) { return module.substr(module.rfind('.') + 1); }

// `module` is `whole` or lies in it.
bool lies_in(std::string_view module, std::string_view whole) {
  return !whole.empty() && module.starts_with(whole) && (module.size() == whole.size() || module[whole.size()] == '.');
}

enum class Part { kBlock, kEmbedding, kTable, kHead, kNorm, kOther };

class Names {
 public:
  explicit Names(const Json& document)
      : input_(text_in(document, "input_embeddings")), output_(text_in(document, "output_embeddings")) {
    const Json all = document.value("parameters", Json::array());
    if (!all.empty()) last_ = text_in(all.back(), "name");
  }

  Part part(const std::string& module) const {
    if (is_block(module)) return Part::kBlock;
    const std::string_view word = last_word(module);
    const auto says = [&](std::string_view part) { return contains(word, part); };
    if (module == input_ || says("patch_embed")) return Part::kTable;
    if (module == output_ || says("head")) return Part::kHead;
    if (lies_in(input_, module) || says("embed") || word == "wte") return Part::kEmbedding;
    if (says("norm") || word.starts_with("ln")) return Part::kNorm;
    return lies_in(last_, module) ? Part::kHead : Part::kOther;
  }

 private:
  std::string input_, output_, last_;  // the last parameter: whose module ends the model
};

struct Placed {
  std::optional<std::size_t> embedding, head, norm;  // their units
  bool table_alone = false, has_blocks = false;
};

Placed place(const Json& document, const Json& units) {
  const Names names(document);
  Placed placed;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const std::string& module : modules_of(units[u])) {
      const Part part = names.part(module);
      placed.has_blocks |= part == Part::kBlock;
      if (part == Part::kEmbedding || part == Part::kTable) {
        placed.embedding = u;
        placed.table_alone |= part == Part::kTable;
      }
      if (part == Part::kHead) placed.head = u;
      if (part == Part::kNorm) placed.norm = u;
    }
  }
  return placed;
}

std::string words_of(Placed p, bool second_table) {
  if (second_table && p.embedding == p.head) p.embedding = std::nullopt;
  const bool is_one = p.embedding && (p.embedding == p.head || p.embedding == p.norm);
  // (A tied head has no unit: its table's is it.)
  const bool has_norm = p.norm && (p.norm == p.head || (p.norm == p.embedding && !p.head));
  const char* const head = has_norm ? "with_norm" : p.head ? "own" : p.norm ? "norm_only" : "root";
  return fmt::format("{{embedding: {}, head: {}, blocks: {}, table_alone: {}}}",
      is_one        ? "with_head"
      : p.embedding ? "own"
                    : "root",
      head, p.has_blocks ? "own" : "root", p.table_alone && (p.embedding.has_value() || second_table));
}

std::string reshard_word(const Json& unit) {
  const Json said = unit.value("reshard_after_forward", Json(true));
  if (said.is_number_integer()) return std::to_string(said.get<std::int64_t>());
  return said.is_boolean() && !said.get<bool>() ? "never" : "always";
}

// Ranges of units that say the same; what nearly all say is the default, which does not reach the
// root: PyTorch keeps it.
std::string reshard_words(const Json& units) {
  const bool has_root = text_in(units.front(), "name") == "root";
  auto said = list_of<std::string>(units, [&](const Json& unit) { return reshard_word(unit); });
  const std::size_t first = has_root ? 1 : 0;
  const bool all_same =
      std::all_of(said.begin() + first, said.end(), [&](const std::string& word) { return word == said.back(); });
  const bool keeps_root = !has_root || said.front() == "never";
  if (all_same && keeps_root) return said.back();
  std::vector<std::string> ranges;
  if (!keeps_root) ranges.push_back(fmt::format("{{units: 0, value: {}}}", said.front()));
  for (std::size_t from = first; from < said.size();) {
    std::size_t to = from;
    while (to + 1 < said.size() && said[to + 1] == said[from]) ++to;
    if (said[from] != "always") {
      const std::string which = from == to ? fmt::format("{}", from) : fmt::format("{}-{}", from, to);
      ranges.push_back(fmt::format("{{units: {}, value: {}}}", which, said[from]));
    }
    from = to + 1;
  }
  return ranges.empty() ? "always" : fmt::format("[{}]", fmt::join(ranges, ", "));
}

std::string trained_dtype(const Json& document) {
  for (const Json& parameter : document.value("parameters", Json::array()))
    if (parameter.value("trainable", true)) return text_in(parameter, "dtype");
  return "";
}

// Autocast finds fp32 parameters: what fully_shard has cast already is the policy's.
bool widens(const Json& unit, const Json& document) {
  return !text_in(document, "autocast").empty() && dtype_of_torch(text_in(unit, "param_dtype")) == "fp32";
}

// Master: what the first trained parameter is stored in. Autocast around the forward of FullyShardedDataParallel is
// nothing that its units say (Accelerate's, which makes fp32 of the outputs).
std::string dtype_words(const Json& unit, const Json& document) {
  const std::string master = trained_dtype(document);
  const auto word = [&](const char* key) { return dtype_of_torch(text_in(unit, key)); };
  std::vector<std::string> words = {"param: " + word("param_dtype"), "reduce: " + word("reduce_dtype")};
  if (!master.empty()) words.push_back("master: " + dtype_of_torch(master));
  const std::string autocast = text_in(document, "autocast");
  const bool is_flat = document.contains("fsdp1") && !autocast.empty();
  if (is_flat || widens(unit, document)) words.push_back("autocast: " + dtype_of_torch(autocast));
  const std::string output = text_in(unit, "output_dtype");
  if (is_flat && text_in(document, "logits_dtype") == "torch.float32") words.push_back("output: fp32");
  else if (!output.empty())
    words.push_back("output: " + (output == "None" ? std::string("none") : word("output_dtype")));
  return fmt::format("{{{}}}", fmt::join(words, ", "));
}

}

std::string dtype_of_torch(std::string_view torch) {
  return torch == "torch.bfloat16" ? "bf16" : torch == "torch.float16" ? "fp16" : "fp32";
}

std::string text_in(const Json& of, const char* key) {
  const auto it = of.find(key);
  return it != of.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// Stacks that look one table up as a module of their own each have it a second time, in the root,
// where fully_shard cut the model's own beside the head.
bool has_second_table(const Json& document) {
  const std::string table = text_in(document, "input_embeddings") + ".weight";
  const Json all = document.value("parameters", Json::array());
  const auto named =
      std::ranges::find_if(all, [&](const Json& parameter) { return text_in(parameter, "name") == table; });
  return named != all.end() && std::ranges::any_of(all, [&](const Json& parameter) {
    const std::string name = text_in(parameter, "name");
    return name != table && name.ends_with(".embed_tokens.weight") &&
           parameter.value("shape", Json()) == named->value("shape", Json());
  });
}

std::string InnerAxes::words() const {
  return (cp > 1 ? fmt::format(", cp: {}", cp) : "") + (tp > 1 ? fmt::format(", tp: {}", tp) : "");
}

std::vector<UnitWords> words_of_units(const Json& document, const InnerAxes& axes) {
  Json units = document.at("units");
  const bool second_table = has_second_table(document);
  const auto with_table = std::ranges::find_if(units,
      [&](const Json& unit) { return second_table && text_in(unit, "name") == text_in(document, "input_embeddings"); });
  // (Which is the head's then, and stands where the head does.)
  if (with_table != units.end()) std::rotate(with_table, with_table + 1, units.end());
  std::vector<std::int64_t> mesh;
  for (const Json& extent : units.front().value("mesh", Json::array())) mesh.push_back(extent.get<std::int64_t>());
  if (mesh.empty()) mesh.push_back(1);
  const Json& block =
      *std::find_if(units.begin(), units.end() - 1, [](const Json& unit) { return is_block(text_in(unit, "name")); });
  std::vector<UnitWords> words = {{"mesh",
                                      fmt::format("{{shard: {}, replicate: {}{}}}", mesh.back() / axes.cp,
                                          mesh.size() > 1 ? mesh.front() : 1, axes.words()),
                                      fmt::format("{} parameter groups of fully_shard", units.size())},
      {"units", words_of(place(document, units), second_table), "modules of the parameter groups"},
      {"reshard_after_forward", reshard_words(units), "post_forward_mesh_info of each"},
      {"dtype", dtype_words(block, document), "mp_policy of the blocks", widens(block, document)}};
  if (block.value("offload", false)) {
    words.push_back(
        {"offload", block.value("pinned", true) ? "cpu" : "cpu_unpinned", "CPUOffloadPolicy of the blocks"});
  }
  const Json factor = block.value("divide_factor", Json());
  if (factor.is_number()) {
    words.push_back(
        {"reduction", fmt::format("{{divide_factor: {}}}", factor.get<double>()), "set_gradient_divide_factor"});
  }
  return words;
}

}
