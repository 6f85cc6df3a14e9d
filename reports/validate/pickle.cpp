// Lists and dictionaries are written as an empty one, a mark, their items, and the opcode that
// takes everything down to the mark.
#include "reports/validate/pickle.h"

#include <limits>
#include <utility>

namespace foreshard {
namespace {

constexpr char kProto = '\x80', kStop = '.', kMark = '(', kNone = 'N';
constexpr char kNewTrue = '\x88', kNewFalse = '\x89';
constexpr char kTuple2 = '\x86';
constexpr char kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M', kLong1 = '\x8a';
constexpr char kBinUnicode = 'X', kLongBinPut = 'r', kLongBinGet = 'j', kBinGet = 'h',
               kBinPut = 'q';
constexpr char kEmptyList = ']', kAppends = 'e', kEmptyDict = '}', kSetItems = 'u';

}  // namespace

PickleWriter::PickleWriter() {
  out_ += kProto;
  out_ += '\x02';
}

void PickleWriter::bytes(std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::none() { out_ += kNone; }
void PickleWriter::boolean(bool value) { out_ += value ? kNewTrue : kNewFalse; }

void PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 1 << 8) {
    out_ += kBinInt1;
    bytes(bits, 1);
  } else if (value >= 0 && value < 1 << 16) {
    out_ += kBinInt2;
    bytes(bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += kBinInt;
    bytes(bits, 4);
  } else {
    out_ += kLong1;
    out_ += '\x08';
    bytes(bits, 8);
  }
}

void PickleWriter::text(std::string_view value) {
  const auto next = static_cast<std::uint32_t>(memo_.size());
  const auto [known, is_new] = memo_.try_emplace(std::string(value), next);
  const std::uint32_t slot = known->second;
  if (is_new) {
    out_ += kBinUnicode;
    bytes(value.size(), 4);
    out_ += value;
  }
  const bool is_short = slot < 256;
  if (is_new) {
    out_ += is_short ? kBinPut : kLongBinPut;
  } else {
    out_ += is_short ? kBinGet : kLongBinGet;
  }
  bytes(slot, is_short ? 1 : 4);
}

void PickleWriter::pair(std::int64_t first, std::int64_t second) {
  integer(first);
  integer(second);
  out_ += kTuple2;
}

void PickleWriter::begin_list() {
  out_ += kEmptyList;
  out_ += kMark;
}
void PickleWriter::end_list() { out_ += kAppends; }
void PickleWriter::begin_dict() {
  out_ += kEmptyDict;
  out_ += kMark;
}
void PickleWriter::end_dict() { out_ += kSetItems; }

std::string PickleWriter::finish() {
  out_ += kStop;
  return std::move(out_);
}

}  // namespace foreshard
