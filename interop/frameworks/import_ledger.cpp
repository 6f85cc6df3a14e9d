// One line per entry, columns as wide as their widest cell.
#include "interop/frameworks/import_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace foreshard {

std::string ledger_text(const ImportLedger& ledger) {
  std::size_t width = 0;
  const auto place = [](const ImportEntry& entry) {
    return entry.line > 0 ? fmt::format("{}:{}", entry.file, entry.line) : entry.file;
  };
  for (const ImportEntry& entry : ledger) width = std::max(width, place(entry).size());
  std::string text;
  for (const ImportEntry& entry : ledger) {
    text += fmt::format("{:<{}}  {:<11}  {}", place(entry), width, to_string(entry.mapping), entry.what);
    if (!entry.to.empty()) text += " -> " + entry.to;
    if (!entry.why.empty()) text += fmt::format("  ({})", entry.why);
    text += "\n";
  }
  return text;
}

std::string ledger_comments(const ImportLedger& ledger) {
  std::string text;
  const std::string lines = ledger_text(ledger);
  for (std::string_view rest = lines; !rest.empty();) text += fmt::format("# {}\n", cut(rest, "\n"));
  return text;
}

Json ledger_json(const ImportLedger& ledger) {
  Json entries = Json::array();
  for (const ImportEntry& entry : ledger) {
    entries.push_back({{"mapping", to_string(entry.mapping)}, {"what", entry.what}, {"to", entry.to},
        {"why", entry.why}, {"file", entry.file}, {"line", entry.line}});
  }
  return entries;
}

}
