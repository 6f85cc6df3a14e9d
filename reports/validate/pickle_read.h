// Reads Python's pickles (protocols 2 to 5) that hold data alone: None, booleans, integers, floats,
// text, bytes, tuples, lists and dictionaries (docs.python.org/3/library/pickletools.html lists the
// opcodes). Whatever would have Python import or call something is refused, and nothing is run.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace foreshard {

struct PickleValue {
  using List = std::vector<const PickleValue*>;  // of tuples, too
  using Dict = std::vector<std::pair<const PickleValue*, const PickleValue*>>;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Dict> is;

  // The value of a dictionary's key; nullptr where it has none, or is no dictionary.
  const PickleValue* find(std::string_view key) const;
  const List& list() const;       // none where it is no list
  std::string_view text() const;  // "" where it is no text
  std::int64_t integer() const;   // 0 where it is no integer
};

// Values may be shared and may hold themselves; they live as long as the document.
struct PickleDocument {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;
};

// `file` is named in errors. Throws Error(kInvalidInput) with the place.
PickleDocument read_pickle(std::string_view bytes, std::string_view file);

}
