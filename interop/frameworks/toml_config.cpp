// toml++ parses; its nodes know where they stand.
#include "interop/frameworks/toml_config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "sim/base/config_tree.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

ConfigMark mark_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

void add(ConfigTreeBuilder& builder, const toml::node& node);

// A table lists its keys by name; here they come as they stand in the file.
void add_table(ConfigTreeBuilder& builder, const toml::table& table) {
  std::vector<std::pair<const toml::key*, const toml::node*>> items;
  for (const auto& [key, value] : table) items.emplace_back(&key, &value);
  std::ranges::stable_sort(items, [](const auto& a, const auto& b) {
    const auto &x = a.first->source().begin, &y = b.first->source().begin;
    return x.line != y.line ? x.line < y.line : x.column < y.column;
  });
  builder.begin_mapping(mark_of(table.source()));
  for (const auto& [key, value] : items) {
    builder.scalar(mark_of(key->source()), std::string(key->str()), Quoting::kPlain);
    add(builder, *value);
  }
  builder.end();
}

void add(ConfigTreeBuilder& builder, const toml::node& node) {
  const ConfigMark mark = mark_of(node.source());
  if (const toml::table* table = node.as_table()) return add_table(builder, *table);
  if (const toml::array* array = node.as_array()) {
    builder.begin_sequence(mark);
    for (const toml::node& element : *array) add(builder, element);
    return builder.end();
  }
  if (const auto* text = node.as_string()) return builder.scalar(mark, text->get(), Quoting::kQuoted);
  std::ostringstream written;
  if (const auto* flag = node.as_boolean()) written << (flag->get() ? "true" : "false");
  else if (const auto* whole = node.as_integer()) written << whole->get();
  else if (const auto* real = node.as_floating_point()) written << fmt::format("{}", real->get());
  else if (const auto* date = node.as_date()) written << date->get();
  else if (const auto* time = node.as_time()) written << time->get();
  else if (const auto* both = node.as_date_time()) written << both->get();
  builder.scalar(mark, written.str(), Quoting::kPlain);
}

}

ConfigNode parse_toml(std::string_view text, std::string_view file_name) {
  ConfigTreeBuilder builder(file_name, ConfigFormat::kYaml);
  const std::string_view checked = checked_text(text, file_name, kMaxYamlBytes);
  try {
    add_table(builder, toml::parse(checked, file_name));
  } catch (const toml::parse_error& error) {
    throw ConfigError({std::string(file_name), static_cast<int>(error.source().begin.line),
                          static_cast<int>(error.source().begin.column), ""},
        fmt::format("not TOML: {}", error.description()));
  }
  return builder.finish();
}

ConfigNode read_toml_file(const std::filesystem::path& path) {
  return parse_toml(read_text_file(path, kMaxYamlBytes), path.string());
}

}
