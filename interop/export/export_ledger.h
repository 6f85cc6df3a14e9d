// What became of every key of a plan in a file that was exported: the ledger of imports, read the
// other way. `what` is the plan's key with its value, `to` what the file says.
#pragma once

#include <string>

#include "interop/frameworks/import_ledger.h"

namespace foreshard {

struct Exported {
  std::string text;     // of the file
  ImportLedger ledger;  // kUnsupported: the format cannot hold it
};

class ExportLedger {
 public:
  void mapped(std::string what, std::string to, std::string why = "") {
    add(Mapping::kMapped, std::move(what), std::move(to), std::move(why));
  }
  // The file needs a value that the plan does not have.
  void defaulted(std::string what, std::string to, std::string why) {
    add(Mapping::kDefaulted, std::move(what), std::move(to), std::move(why));
  }
  // Says nothing to whom the file is for.
  void ignored(std::string what, std::string why) { add(Mapping::kIgnored, std::move(what), "", std::move(why)); }
  void unsupported(std::string what, std::string why) {
    add(Mapping::kUnsupported, std::move(what), "", std::move(why));
  }
  ImportLedger take() { return std::move(entries_); }

 private:
  void add(Mapping mapping, std::string what, std::string to, std::string why) {
    entries_.push_back({mapping, std::move(what), std::move(to), std::move(why), "plan", 0});
  }
  ImportLedger entries_;
};

}
