#include "interop/export/script_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

bool is_true(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  return value.is_string() ? !value.get_ref<const std::string&>().empty() : value != 0;
}

// As Python writes it.
std::string text_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class Script {
 public:
  explicit Script(const ScriptFacts& facts) : facts_(facts) {}

  std::string write(std::string_view text) {
    while (!text.empty()) line(cut(text, "\n"));
    FORESHARD_CHECK(open_.empty(), "a template has an %if without its %end");
    return std::move(out_);
  }

 private:
  struct If {
    bool was_outside = true, has_held = false;
  };

  Json value(std::string_view name) const {
    const auto word = words_.find(name);
    return word != words_.end() ? Json(word->second) : facts_(name);
  }

  bool holds_term(std::string_view term) const {
    if (term.starts_with("not ")) return !is_true(value(term.substr(4)));
    const Json left = value(cut(term, " "));
    const std::string_view comparison = cut(term, " ");
    if (comparison.empty()) return is_true(left);
    if (comparison == ">") return left.is_number() && left.get<double>() > parse_number<double>(term).value();
    bool any = false;
    while (!term.empty()) any |= text_of(left) == cut(term, "|");
    return any == (comparison == "=");
  }
  bool holds(std::string_view condition) const {
    while (!condition.empty()) {
      std::string_view terms = cut(condition, " or ");
      bool all = true;
      while (!terms.empty()) all &= holds_term(cut(terms, " and "));
      if (all) return true;
    }
    return false;
  }

  std::string filled(std::string_view text) const {
    std::string result;
    while (true) {
      result += cut(text, "${");
      if (text.empty()) return result;
      std::size_t end = 0;
      for (int depth = 1; depth > 0; ++end) depth += (text[end] == '{') - (text[end] == '}');
      result += part(text.substr(0, end - 1));
      text.remove_prefix(end);
    }
  }
  std::string part(std::string_view inner) const {
    const bool chooses = contains(inner, " ? ");
    const std::string_view asked = cut(inner, " ? ");
    if (!chooses) return text_of(value(asked));
    const std::string_view then = cut(inner, " : ");
    return filled(holds(asked) ? then : inner);
  }

  void line(std::string_view text) {
    const std::size_t indent = std::min(text.find_first_not_of(' '), text.size());
    if (text.substr(indent).starts_with("%(")) {
      text.remove_prefix(2);
      if (const auto asked = cut(text, ")"); is_inside_ && holds(asked)) line(text);
      return;
    }
    if (text.starts_with('%')) return directive(text.substr(1));
    if (!is_inside_) return;
    std::string made = filled(text);
    if (made.empty() && !text.empty()) return;
    if (const std::size_t at = made.find("%module "); at != std::string::npos)
      return add_module(made.substr(0, at), std::string_view(made).substr(at + 8));
    out_ += made + "\n";
  }
  void directive(std::string_view text) {
    const std::string_view word = cut(text, " ");
    if (word == "if") {
      open_.push_back({is_inside_, is_inside_ && holds(text)});
      is_inside_ = open_.back().has_held;
    } else if (word == "elif" || word == "else") {
      If& last = open_.back();
      is_inside_ = last.was_outside && !last.has_held && (word == "else" || holds(text));
      last.has_held |= is_inside_;
    } else if (word == "end") {
      is_inside_ = open_.back().was_outside;
      open_.pop_back();
    } else if (word == "let" && is_inside_) {
      const std::string name(cut(text, " "));
      words_[name] = filled(text);
    } else if (word == "scope" && is_inside_) {
      modules_.clear();
    }
  }
  void add_module(const std::string& indent, std::string_view text) {
    const std::string_view path = cut(text, " ");
    for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      if (!modules_.emplace(path.substr(0, dot)).second) continue;
      out_ += fmt::format("{}self.{} = nn.Module()\n", indent, path.substr(0, dot));
    }
    out_ += fmt::format("{}self.{} = {}\n", indent, path, text);
  }

  const ScriptFacts& facts_;
  std::map<std::string, std::string, std::less<>> words_;
  std::set<std::string> modules_;
  std::vector<If> open_;
  bool is_inside_ = true;
  std::string out_;
};

}

std::string script_of(std::string_view text, const ScriptFacts& facts) { return Script(facts).write(text); }

}
