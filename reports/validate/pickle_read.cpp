// A stack machine: opcodes push values, and take those above the last mark into a list, a tuple or
// a dictionary. The memo is what pickles refer back to.
#include "reports/validate/pickle_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

class Reader {
 public:
  Reader(std::string_view bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  PickleDocument run() {
    for (;;) {
      const auto op = static_cast<unsigned char>(take(1).front());
      if (op == '.') break;
      step(op);
    }
    document_.root = pop();
    return std::move(document_);
  }

 private:
  using Value = PickleValue*;

  [[noreturn]] void refuse(std::string_view what) const {
    throw invalid_input(
        "{}: byte {}: {}; expected a pickle of plain data, as torch.cuda.memory._dump_snapshot writes it", file_, at_,
        what);
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("the pickle ends early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::uint64_t number(std::size_t count) {  // little endian
    std::uint64_t value = 0;
    const std::string_view taken = take(count);
    for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }

  void push(auto value) {
    document_.values.push_back({std::move(value)});
    stack_.push_back(&document_.values.back());
  }
  Value pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back()))
      refuse("takes a value that is not there");
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<const PickleValue*> above_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    const auto first = stack_.begin() + marks_.back();
    const std::vector<const PickleValue*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  template <typename T>
  T& top_as() {
    if (stack_.empty()) refuse("takes a value that is not there");
    T* held = std::get_if<T>(&stack_.back()->is);
    if (held == nullptr) refuse("adds to what takes nothing");
    return *held;
  }

  void remember(std::size_t slot) {
    constexpr std::size_t kMost = 1 << 26;
    if (stack_.empty() || slot > kMost) refuse("a place in the memo that is none");
    if (slot >= memo_.size()) memo_.resize(slot + 1, nullptr);
    memo_[slot] = stack_.back();
  }
  void recall(std::size_t slot) {
    if (slot >= memo_.size() || memo_[slot] == nullptr) refuse("refers to what is not there");
    stack_.push_back(memo_[slot]);
  }

  void tuple(std::size_t count) {
    PickleValue::List items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(std::move(items));
  }
  void append(const std::vector<const PickleValue*>& items) {
    auto& list = top_as<PickleValue::List>();
    list.insert(list.end(), items.begin(), items.end());
  }
  void set(const std::vector<const PickleValue*>& items) {
    if (items.size() % 2 != 0) refuse("a key without value");
    auto& dict = top_as<PickleValue::Dict>();
    for (std::size_t i = 0; i < items.size(); i += 2) dict.emplace_back(items[i], items[i + 1]);
  }

  void long_integer(std::size_t count) {
    if (count > 8) refuse("an integer of more than 64 bits");
    std::uint64_t value = number(count);
    const bool negative = count > 0 && (value >> (8 * count - 1) & 1) != 0;
    if (negative && count < 8) value |= ~std::uint64_t{0} << (8 * count);
    push(static_cast<std::int64_t>(value));
  }
  void real() {  // big endian
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    push(std::bit_cast<double>(bits));
  }

  void step(unsigned char op) {
    switch (op) {
      case 0x80:  // protocol
        take(1);
        return;
      case 0x95:  // frame
        take(8);
        return;
      case '(': return marks_.push_back(stack_.size());
      case 'N': return push(std::monostate());
      case 0x88:
      case 0x89: return push(op == 0x88);
      case 'J': return push(std::int64_t{static_cast<std::int32_t>(number(4))});
      case 'K': return push(static_cast<std::int64_t>(number(1)));
      case 'M': return push(static_cast<std::int64_t>(number(2)));
      case 0x8a: return long_integer(number(1));
      case 'G': return real();
      case 'X':
      case 'B': return push(std::string(take(number(4))));
      case 0x8c:
      case 'C': return push(std::string(take(number(1))));
      case 0x8d:
      case 0x8e: return push(std::string(take(number(8))));
      case ']':
      case ')': return push(PickleValue::List());
      case '}': return push(PickleValue::Dict());
      case 0x85:
      case 0x86:
      case 0x87: return tuple(op - 0x84U);
      case 't': return push(above_mark());
      case 'a': return append({pop()});
      case 'e': return append(above_mark());
      case 's': {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        return set({key, value});
      }
      case 'u': return set(above_mark());
      case 0x94: return remember(memoized_++);
      case 'q': return remember(number(1));
      case 'r': return remember(number(4));
      case 'h': return recall(number(1));
      case 'j': return recall(number(4));
      default: --at_; refuse(fmt::format("opcode 0x{:02x} is no data: it would have Python run something", op));
    }
  }

  std::string_view bytes_, file_;
  std::size_t at_ = 0, memoized_ = 0;
  PickleDocument document_;
  std::vector<Value> stack_, memo_;
  std::vector<std::size_t> marks_;
};

}

const PickleValue* PickleValue::find(std::string_view key) const {
  const auto* dict = std::get_if<Dict>(&is);
  if (dict == nullptr) return nullptr;
  const auto found = std::ranges::find_if(*dict, [&](const auto& entry) { return entry.first->text() == key; });
  return found == dict->end() ? nullptr : found->second;
}

const PickleValue::List& PickleValue::list() const {
  static const List kNone;
  const auto* list = std::get_if<List>(&is);
  return list == nullptr ? kNone : *list;
}

std::string_view PickleValue::text() const {
  const auto* text = std::get_if<std::string>(&is);
  return text == nullptr ? std::string_view() : *text;
}

std::int64_t PickleValue::integer() const {
  const auto* integer = std::get_if<std::int64_t>(&is);
  return integer == nullptr ? 0 : *integer;
}

PickleDocument read_pickle(std::string_view bytes, std::string_view file) { return Reader(bytes, file).run(); }

}
