// Multipart bodies are cut at their boundary (RFC 7578); of a part's headers only the disposition counts.
#include "cli/http/form.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

constexpr std::string_view kMultipart = "multipart/form-data";
constexpr std::size_t kMostNameBytes = 80;

[[noreturn]] void refuse(const char* what) { throw Error(ExitCode::kInvalidInput, what); }

bool starts_with(std::string_view text, std::string_view lower_case) {
  return lower(text.substr(0, lower_case.size())) == lower_case;
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char letter = lower(c);
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  return std::nullopt;
}

std::string decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const auto high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high && low) {
        plain += static_cast<char>(*high * 16 + *low);
        i += 2;
        continue;
      }
    }
    plain += text[i] == '+' ? ' ' : text[i];
  }
  return plain;
}

// The value of `; key="value"` or `; key=value` in a header.
std::optional<std::string> parameter(std::string_view header, std::string_view key) {
  for (std::size_t at = header.find(';'); at != std::string_view::npos; at = header.find(';', at)) {
    at = header.find_first_not_of(" \t", at + 1);
    if (at == std::string_view::npos) break;
    std::string_view rest = header.substr(at);
    if (!starts_with(rest, key) || rest.size() == key.size() || rest[key.size()] != '=') continue;
    rest.remove_prefix(key.size() + 1);
    const bool is_quoted = rest.starts_with('"');
    if (is_quoted) rest.remove_prefix(1);
    return std::string(rest.substr(0, rest.find(is_quoted ? '"' : ';')));
  }
  return std::nullopt;
}

// One part, without the boundaries around it.
void read_part(std::string_view part, HttpForm& form) {
  const std::size_t end = part.find("\r\n\r\n");
  if (end == std::string_view::npos) refuse("the body: a part without an empty line");
  const std::string_view content = part.substr(end + 4);
  std::string_view headers = part.substr(0, end);
  while (!headers.empty()) {
    const std::string_view line = cut(headers, "\r\n");
    if (!starts_with(line, "content-disposition:")) continue;
    const auto field = parameter(line, "name");
    if (!field) break;
    if (auto name = parameter(line, "filename")) form.files.push_back({*field, std::move(*name), content});
    else form.words.emplace_back(*field, content);
    return;
  }
  refuse("the body: a part without a name");
}

HttpForm read_multipart(std::string_view boundary, std::string_view body) {
  if (boundary.empty()) refuse("the body: multipart/form-data without a boundary");
  HttpForm form;
  const std::string mark = "\r\n--" + std::string(boundary);
  const std::string_view first = std::string_view(mark).substr(2);
  if (!body.starts_with(first)) refuse("the body does not begin with its boundary");
  body.remove_prefix(first.size());
  while (!body.starts_with("--")) {
    if (!body.starts_with("\r\n")) refuse("the body: a boundary does not end its line");
    body.remove_prefix(2);
    const std::size_t end = body.find(mark);
    if (end == std::string_view::npos) refuse("the body ends within a part");
    read_part(body.substr(0, end), form);
    body.remove_prefix(end + mark.size());
  }
  return form;
}

}

HttpWords read_query(std::string_view text) {
  HttpWords words;
  while (!text.empty()) {
    std::string_view word = cut(text, "&");
    if (word.empty()) continue;
    const std::string name = decoded(cut(word, "="));
    words.emplace_back(name, decoded(word));
  }
  return words;
}

bool is_multipart(std::string_view content_type) { return starts_with(content_type, kMultipart); }

HttpForm read_body(std::string_view content_type, std::string_view body) {
  if (is_multipart(content_type)) return read_multipart(parameter(content_type, "boundary").value_or(""), body);
  if (starts_with(content_type, "application/x-www-form-urlencoded")) return {read_query(body), {}};
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) refuse("the body is no JSON object");
  HttpForm form;
  for (const auto& [key, value] : json.items())
    for (const Json& one : value.is_array() ? value : Json::array({value}))
      form.words.emplace_back(key, one.is_string() ? one.get<std::string>() : one.dump());
  return form;
}

std::string plain_file_name(std::string_view name, const std::string& otherwise) {
  const std::size_t slash = name.find_last_of("/\\");
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  std::string plain;
  for (char c : name) {
    const bool is_plain = (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '_' || c == '-';
    if (is_plain || (c == '.' && !plain.empty())) plain += c;
  }
  // The end tells the kind.
  if (plain.size() > kMostNameBytes) plain.erase(0, plain.size() - kMostNameBytes);
  while (!plain.empty() && (plain.front() == '.' || plain.front() == '-')) plain.erase(0, 1);
  return plain.empty() ? otherwise : plain;
}

}
