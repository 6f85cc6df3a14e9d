// What became of everything in a file that was imported: one entry per fact, with its place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/letters.h"

namespace foreshard {

enum class Mapping : std::uint8_t {
  kMapped,      // taken over
  kDefaulted,   // not in the file: the value beside it was taken, and why
  kIgnored,     // says nothing that is needed
  kUnsupported  // says something that is needed and cannot be expressed
};
constexpr const char* to_string(Mapping mapping) {
  return word_at(mapping, {"mapped", "defaulted", "ignored", "unsupported"});
}

struct ImportEntry {
  Mapping mapping = Mapping::kMapped;
  std::string what;  // in the file's words: "GPU0 NIC3 PIX", "#wrong"
  std::string to;    // key or value it became; "" for ignored ones
  std::string why;
  std::string file;
  int line = 0;  // from 1; 0: of no line
  bool operator==(const ImportEntry&) const = default;
};
using ImportLedger = std::vector<ImportEntry>;

// Aligned lines "file:line  mapped  what -> to  (why)".
std::string ledger_text(const ImportLedger& ledger);
// The same as comments of a file: "# " before each.
std::string ledger_comments(const ImportLedger& ledger);
// [{mapping, what, to, why, file, line}, ...]
Json ledger_json(const ImportLedger& ledger);

}
