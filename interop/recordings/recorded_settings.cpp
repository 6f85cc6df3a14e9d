#include "interop/recordings/recorded_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "sim/base/spelling.h"

namespace foreshard {
namespace {

// DEFAULTS of record_fsdp2.py and record_versions.py.
const std::map<std::string, std::string, std::less<>>& defaults() {
  static const std::map<std::string, std::string, std::less<>> kDefaults = {
      {"model", "llama"},
      {"layers", "4"},
      {"dim", "512"},
      {"ffn", "1536"},
      {"heads", "8"},
      {"kv_heads", "4"},
      {"vocab", "4096"},
      {"seq", "128"},
      {"batch", "2"},
      {"experts", "8"},
      {"top_k", "2"},
      {"tied", "False"},
      {"repeat", "1"},
      {"attention", "flash"},
      {"norm", "fused"},
      {"mesh", "8"},
      {"rank", "0"},
      {"grouping", "titan"},
      {"layers_per_unit", "1"},
      {"expert_units", "False"},
      {"reshard", ""},
      {"reshard_head", "False"},
      {"reshard_root", ""},
      {"param_dtype", "bf16"},
      {"reduce_dtype", "fp32"},
      {"orig_dtype", "fp32"},
      {"output_dtype", ""},
      {"forward_prefetch", "0"},
      {"backward_prefetch", "0"},
      {"accumulate", "1"},
      {"accumulate_mode", "reduce"},
      {"recompute", "none"},
      {"recompute_outside", "False"},
      {"frozen", "none"},
      {"offload", "False"},
      {"embed_unshard_in_backward", "True"},
      {"shard_dim1", "False"},
      {"ignore_norms", "False"},
      {"clip", "False"},
      {"optimizer", "adamw_foreach"},
      {"async_unshard", "False"},
      {"divide_factor", ""},
      {"force_sum", "False"},
      {"eval_forward", "False"},
      {"steps", "3"},
      {"trace", "False"},
      {"reduce_scatter_buffers", "1"},
      {"separate_reduce_scatter_group", "False"},
  };
  return kDefaults;
}

[[noreturn]] void fail_unknown(std::string_view name) {
  throw Error(ExitCode::kMissingCapability,
              fmt::format("the setting {} is not known", quote(name)));
}

template <typename Number>
std::optional<Number> parse(const std::string& word) {
  Number value{};
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

SettingsReader::SettingsReader(const RecordingFolder& folder, std::size_t row)
    : folder_(folder), row_(row) {
  for (const std::string& name : folder.configured(row)) {
    if (!defaults().contains(name)) fail_unknown(name);
  }
  // Settings stand before the column `note`, results after it.
  constexpr std::array<std::string_view, 4> kOff = {"", "False", "0", "none"};
  const CsvFile& index = folder.index();
  const std::size_t end = index.find("note").value_or(0);
  for (std::size_t column = 1; column < end; ++column) {
    const bool is_off = std::ranges::find(kOff, index.text(row, column)) != kOff.end();
    if (!is_off && !defaults().contains(index.header(column))) fail_unknown(index.header(column));
  }
}

std::string SettingsReader::text(std::string_view name) const {
  return text_or(name, defaults().find(name)->second);
}

std::string SettingsReader::text_or(std::string_view name, const std::string& otherwise) const {
  return folder_.setting(row_, name).value_or(otherwise);
}

double SettingsReader::real(std::string_view name) const {
  const std::string word = text(name);
  const auto value = parse<double>(word);
  if (!value) fail(name, quote(word) + " is not a number", "for example 2.5");
  return *value;
}

std::int64_t SettingsReader::number(std::string_view name) const {
  const std::string word = text(name);
  const auto value = parse<std::int64_t>(word);
  if (!value) fail(name, quote(word) + " is not a whole number", "for example 4");
  return *value;
}

bool SettingsReader::flag(std::string_view name) const {
  const std::string word = text(name);
  if (word != "True" && word != "False") {
    fail(name, quote(word) + " is no truth value", "True or False");
  }
  return word == "True";
}

std::optional<DType> SettingsReader::dtype(std::string_view name) const {
  const std::string word = text(name);
  if (word.empty()) return std::nullopt;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    if (word == to_string(dtype)) return dtype;
  }
  unknown(name);
}

void SettingsReader::unknown(std::string_view name) const {
  throw Error(ExitCode::kMissingCapability,
              fmt::format("no plan expresses {} = {}", name, quote(text(name))));
}

void SettingsReader::fail(std::string_view name, const std::string& what,
                          const std::string& expected) const {
  const CsvFile& index = folder_.index();
  if (const auto column = index.find(name)) throw index.error(row_, *column, what, expected);
  throw ConfigError({(folder_.path() / "configs.json").string(), 0, 0, std::string(name)}, what,
                    expected);
}

}  // namespace foreshard
