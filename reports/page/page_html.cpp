// The template has one mark per part; parts are put in once, in order, so that nothing inside a
// part is taken for a mark. Inside a script element "<" could end it, so the document's are written
// as \u003c, which JSON reads as the same.
//
// The policy lets run what was built in and nothing else: scripts and style by their SHA-256, no
// address to load from. Hashes are made when the program is configured (cmake/page.cmake).
#include <nlohmann/json.hpp>
#include <string>

#include "reports/page/page.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string_view part(std::string_view name) {
  for (const EmbeddedFile& file : page_files())
    if (file.path.ends_with(name)) return file.content;
  throw Error(ExitCode::kInternal, "the page's part is not built in: " + std::string(name));
}

std::string script_safe(const Json& document) {
  const std::string text = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size() + text.size() / 50);
  for (char c : text) c == '<' ? safe += "\\u003c" : safe += c;
  return safe;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

// In the order in which they use each other.
constexpr const char* kScripts[] = {"base.js", "charts.js", "timeline_data.js", "timeline.js", "step.js", "plans.js",
    "machine.js", "checks.js", "buy.js", "page.js"};

std::string code() {
  std::string elements;
  for (const char* script : kScripts) {
    elements += "<script>";
    elements += part(std::string("page/") + script);
    elements += "</script>\n";
  }
  return elements;
}

std::string policy() {
  return std::string("default-src 'none'; script-src ") + FORESHARD_PAGE_SCRIPTS + "; style-src " +
         FORESHARD_PAGE_STYLES + "; base-uri 'none'; form-action 'none'";
}

}

std::string html_page(const Json& document) {
  const std::string_view page = part("page.html");
  const std::pair<std::string_view, std::string> values[] = {{"@POLICY@", policy()},
      {"@TITLE@", escaped(document.at("title").get<std::string>())}, {"@STYLE@", std::string(part("page.css"))},
      {"@DOCUMENT@", script_safe(document)}, {"@D3@", std::string(part("d3.min.js"))}, {"@CODE@", code()}};
  std::string html;
  std::size_t at = 0;
  for (const auto& [mark, value] : values) {
    const std::size_t found = page.find(mark, at);
    FORESHARD_CHECK(found != std::string_view::npos, "page.html lacks " + std::string(mark));
    html += page.substr(at, found - at);
    html += value;
    at = found + mark.size();
  }
  html += page.substr(at);
  return html;
}

}
