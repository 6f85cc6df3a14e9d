// yaml-cpp reports events, not nodes: so nesting is refused as soon as it is met, and keys have places. The events are
// recorded first; an alias replays the events of its anchor into the builder, which counts what the aliases expand to.

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/base/config_tree.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

ConfigMark to_mark(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

struct Event {
  enum class Kind { kNull, kScalar, kBeginSequence, kBeginMapping, kEnd, kAlias };
  Kind kind = Kind::kNull;
  ConfigMark mark = {};
  std::string text = {};
  Quoting quoting = Quoting::kPlain;
  YAML::anchor_t alias = 0;
};

// Indices of the first event of an anchored value and of the one behind its last.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;  // 0: not complete yet
};

class YamlHandler final : public YAML::EventHandler {
 public:
  YamlHandler(std::string_view text, std::string_view file_name)
      : text_(text), builder_(file_name, ConfigFormat::kYaml) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (!has_document_) {
      has_document_ = true;
      return;
    }
    const bool is_marked = line(mark.line).substr(0, 3) == "---";
    throw ConfigError(builder_.location(to_mark(mark)),
        is_marked ? "a second YAML document starts here" : "something follows the end of the value",
        "one document per file");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    single({Event::Kind::kNull, to_mark(mark)}, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Event event{Event::Kind::kAlias, to_mark(mark)};
    event.alias = anchor;
    single(std::move(event), 0);
  }
  void OnScalar(
      const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    const bool is_text = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (!is_text) refuse_tag(mark, tag);
    single({Event::Kind::kScalar, to_mark(mark), value, is_text ? Quoting::kQuoted : Quoting::kPlain}, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
      YAML::EmitterStyle::value /*style*/) override {
    refuse_tag(mark, tag);
    open({Event::Kind::kBeginSequence, to_mark(mark)}, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
      YAML::EmitterStyle::value /*style*/) override {
    refuse_tag(mark, tag);
    open({Event::Kind::kBeginMapping, to_mark(mark)}, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  [[noreturn]] void fail(const YAML::Exception& error) const;
  ConfigNode finish() { return builder_.finish(); }

 private:
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    throw ConfigError(
        builder_.location(to_mark(mark)), "the YAML tag " + quote(tag) + " is unknown", "a value without a tag");
  }
  void single(Event event, YAML::anchor_t anchor) {
    const std::size_t begin = events_.size();
    play(event);
    events_.push_back(std::move(event));
    if (anchor != 0) anchors_[anchor] = {begin, events_.size()};
  }
  void open(Event event, YAML::anchor_t anchor) {
    play(event);
    if (anchor != 0) anchors_[anchor] = {events_.size(), 0};
    open_anchors_.push_back(anchor);
    events_.push_back(std::move(event));
  }
  void close() {
    const Event event{Event::Kind::kEnd, {}};
    play(event);
    events_.push_back(event);
    if (open_anchors_.back() != 0) anchors_[open_anchors_.back()].end = events_.size();
    open_anchors_.pop_back();
  }
  // Recursion ends at the builder's nesting limit: what an alias leads to contains another alias
  // only inside a container.
  void play(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kNull: return builder_.null(event.mark);
      case Event::Kind::kScalar: return builder_.scalar(event.mark, event.text, event.quoting);
      case Event::Kind::kBeginSequence: return builder_.begin_sequence(event.mark);
      case Event::Kind::kBeginMapping: return builder_.begin_mapping(event.mark);
      case Event::Kind::kEnd: return builder_.end();
      case Event::Kind::kAlias: break;
    }
    const Range range = anchors_[event.alias];
    if (range.end == 0) throw ConfigError(builder_.location(event.mark), "the alias stands inside its own anchor");
    for (std::size_t i = range.begin; i < range.end; ++i) play(events_[i]);
  }
  std::string_view line(int index) const {
    std::size_t begin = 0;
    for (int i = 0; i < index && begin < text_.size(); ++i)
      begin = std::min(text_.find('\n', begin), text_.size() - 1) + 1;
    return text_.substr(begin, text_.find('\n', begin) - begin);
  }

  std::string_view text_;
  ConfigTreeBuilder builder_;
  std::vector<Event> events_;
  std::unordered_map<YAML::anchor_t, Range> anchors_;
  std::vector<YAML::anchor_t> open_anchors_;
  bool has_document_ = false;
};

struct Rewording {
  std::string_view message;
  std::string_view what_is_wrong;
  std::string_view expected;
};

void YamlHandler::fail(const YAML::Exception& error) const {
  const Rewording rewordings[] = {
      {YAML::ErrorMsg::MAP_VALUE, "a ':' stands where no key can end",
          "one 'key: value' per line with the indentation of its neighbours, and quotes round text that contains ': '"},
      {YAML::ErrorMsg::MAP_KEY, "a key stands where none can", "'key: value' with the indentation of its neighbours"},
      {YAML::ErrorMsg::BLOCK_ENTRY, "a '-' stands where no list can start", "'- value' on a line of its own"},
      {YAML::ErrorMsg::END_OF_MAP, "this does not continue the mapping above",
          "'key: value' with the indentation of its neighbours"},
      {YAML::ErrorMsg::END_OF_SEQ, "this does not continue the list above",
          "'- value' with the indentation of its neighbours"},
      {YAML::ErrorMsg::FLOW_END, "a ']' or '}' stands here without its opening one", ""},
      {YAML::ErrorMsg::EOF_IN_SCALAR, "the text ends before the closing quote", ""},
      {YAML::ErrorMsg::UNKNOWN_ANCHOR, "the alias names no anchor above it", ""},
      {YAML::ErrorMsg::UNKNOWN_TOKEN, "a value cannot start with this character", "quotes round the value"},
  };
  const ConfigMark mark = to_mark(error.mark);
  const std::string_view text = line(error.mark.line);
  if (contains(text.substr(0, text.find_first_not_of(" \t")), '\t') || error.msg == YAML::ErrorMsg::TAB_IN_INDENTATION)
    throw ConfigError(builder_.location(mark), "a tab in the indentation", "spaces");
  if (error.msg == YAML::ErrorMsg::END_OF_SEQ_FLOW || error.msg == YAML::ErrorMsg::END_OF_MAP_FLOW) {
    // yaml-cpp names no place where the file has ended.
    throw ConfigError(builder_.location(builder_.innermost()), "the list or mapping that starts here is not closed",
        "values separated by commas, then ']' or '}'");
  }
  for (const Rewording& rewording : rewordings)
    if (error.msg == rewording.message)
      throw ConfigError(builder_.location(mark), std::string(rewording.what_is_wrong), std::string(rewording.expected));
  throw ConfigError(builder_.location(mark), "not valid YAML: " + error.msg);
}

}

ConfigNode parse_yaml(std::string_view text, std::string_view file_name) {
  text = checked_text(text, file_name, kMaxYamlBytes);
  YamlHandler handler(text, file_name);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(handler)) {
    }
  } catch (const YAML::Exception& error) {
    handler.fail(error);
  }
  return handler.finish();
}

}
