#include "interop/hf/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>

#include "sim/base/config.h"
#include "sim/base/config_tree.h"
#include "sim/base/text_file.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::size_t kShown = 4;  // of many alike

std::uint64_t header_length(std::string_view bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length;
}

void read_header(const fs::path& path, StoredModel& model) {
  const std::string file = path.string();
  const std::string start = read_text_start(path, kLengthBytes);
  if (start.size() < kLengthBytes) {
    throw ConfigError(
        {file, 0, 0, ""}, "is cut off before the length of its header", "a safetensors file, or its first kilobytes");
  }
  const std::uint64_t length = header_length(start);
  if (length > kLongestHeader || length < 2) {
    throw ConfigError({file, 0, 0, ""}, fmt::format("says that its header has {} bytes", length),
        "2 to 100000000, as safetensors writes");
  }
  const std::string bytes = read_text_start(path, kLengthBytes + length);
  if (bytes.size() < kLengthBytes + length) {
    throw ConfigError({file, 0, 0, ""},
        fmt::format("is cut off: {} bytes of a header of {}", bytes.size() - kLengthBytes, length),
        fmt::format("at least {} bytes: head -c {}", kLengthBytes + length, kLengthBytes + length));
  }
  const ConfigNode root = parse_json(std::string_view(bytes).substr(kLengthBytes, length), file);
  if (!root.is_mapping()) throw root.error("the header is no JSON object", "name: {dtype, shape}");
  for (const ConfigItem& item : root.items()) {
    if (item.key == "__metadata__") continue;
    StoredTensor tensor{item.key, item.value.at("dtype").as_string(), {}};
    const ConfigNode shape = item.value.at("shape");
    for (const ConfigNode& size : shape.elements()) tensor.shape.push_back(size.as_int(0, std::int64_t{1} << 40));
    model.tensors.push_back(std::move(tensor));
  }
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Alike in everything but numbers: "model.layers.#.mlp".
std::string pattern(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) text.push_back(c);
    else if (text.empty() || text.back() != '#') text.push_back('#');
  }
  return text;
}

class Comparison {
 public:
  Comparison(const StoredModel& stored, const ModelSpec& model) : stored_(stored), model_(model) {
    for (const StoredTensor& tensor : stored.tensors) by_name_[tensor.name] = &tensor;
  }

  ImportLedger run() {
    std::int64_t elements = 0;
    std::int64_t block = 0;
    for (const LayerInstance& layer : model_.order) {
      const LayerSpec& spec = model_.kinds[at(layer.kind)];
      if (layer.same_as >= 0) continue;
      const bool is_block = spec.role == LayerRole::kBlock;
      const std::string prefix = is_block ? fmt::format("{}.{}.", model_.block_prefix, block++) : "";
      for (const ParameterSpec& parameter : spec.parameters)
        if (!parameter.tied) look_up(prefix, parameter);
    }
    for (const StoredTensor& tensor : stored_.tensors) {
      elements = checked_add(elements, tensor.numel());
      if (!used_.contains(tensor.name))
        note("tensors that the model does not have", tensor.name + " " + shape_text(tensor.shape));
    }
    const std::int64_t expected = model_.parameters();
    const double off = std::abs(static_cast<double>(elements) / static_cast<double>(expected) - 1);
    if (off > 0.005) {
      throw ConfigError({stored_.file, 0, 0, ""},
          fmt::format("holds {} elements, {} has {} parameters ({:.1f} % off){}", elements, model_.name, expected,
              off * 100, first_trouble()),
          "the weights of that model");
    }
    ledger_.push_back({Mapping::kMapped, fmt::format("{} tensors, {} elements", stored_.tensors.size(), elements),
        fmt::format("model: {}, {} parameters", model_.name, expected), "", stored_.file, 0});
    for (const auto& [what, names] : troubles_) {
      for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
        ledger_.push_back({Mapping::kUnsupported, names[i], "",
            i + 1 == kShown && names.size() > kShown ? fmt::format("{}; and {} more", what, names.size() - kShown)
                                                     : what,
            stored_.file, 0});
      }
    }
    return std::move(ledger_);
  }

 private:
  void look_up(const std::string& prefix, const ParameterSpec& parameter) {
    const std::string name = prefix + parameter.name;
    if (const auto found = by_name_.find(name); found != by_name_.end()) {
      used_.insert(name);
      if (found->second->numel() == parameter.numel()) return;
      return note("another shape than the model's",
          fmt::format("{} {}, the model's {}", name, shape_text(found->second->shape), shape_text(parameter.shape)));
    }
    // A matrix of all experts in one tensor, which checkpoints keep one by one.
    if (parameter.shape.size() == 3) {
      const std::size_t dot = name.rfind('.');
      std::int64_t sum = 0;
      for (std::int64_t e = 0; e < parameter.shape[0]; ++e) {
        const auto one = by_name_.find(fmt::format("{}.{}{}.weight", name.substr(0, dot), e, name.substr(dot)));
        if (one == by_name_.end()) continue;
        used_.insert(one->first);
        sum += one->second->numel();
      }
      if (sum == parameter.numel()) return;
    }
    note("not in the files", name + " " + shape_text(parameter.shape));
  }

  void note(const std::string& what, const std::string& name) {
    if (!seen_.insert(what + pattern(name)).second) return;
    troubles_[what].push_back(name);
  }

  std::string first_trouble() const {
    for (const auto& [what, names] : troubles_) return fmt::format("; {}: {}", what, names.front());
    return "";
  }

  const StoredModel& stored_;
  const ModelSpec& model_;
  std::map<std::string, const StoredTensor*> by_name_;
  std::set<std::string> used_, seen_;
  std::map<std::string, std::vector<std::string>> troubles_;
  ImportLedger ledger_;
};

}

std::int64_t StoredTensor::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product = checked_multiply(product, size);
  return product;
}

bool looks_like_safetensors(const fs::path& path) {
  return path.extension() == ".safetensors" || path.filename().string().ends_with(".safetensors.index.json");
}

StoredModel read_safetensors(const fs::path& path) {
  StoredModel model = {.file = path.string()};
  if (path.extension() == ".safetensors") {
    read_header(path, model);
    return model;
  }
  const ConfigNode root = read_json_file(path);
  const ConfigNode map = root.at("weight_map", "the files of the model's tensors");
  std::vector<std::string> files;  // in the order of the index
  std::set<std::string> seen;
  for (const ConfigItem& item : map.items()) {
    const std::string file = item.value.as_string();
    if (seen.insert(file).second) files.push_back(file);
  }
  for (const std::string& file : files) {
    const fs::path part = path.parent_path() / file;
    std::error_code ignored;
    if (fs::exists(part, ignored)) {
      read_header(part, model);
    } else {
      throw ConfigError(map.location(), fmt::format("the file {} is not there", part.string()),
          "its first kilobytes are enough: head -c 1000000");
    }
  }
  return model;
}

ImportLedger check_stored(const StoredModel& stored, const ModelSpec& model) { return Comparison(stored, model).run(); }

}
