// What the readers of machines and networks share: lines, words, and the ledger of what became of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "interop/network/topology_import.h"
#include "sim/base/error.h"

namespace foreshard {

using Words = std::vector<std::string>;
Words words_of_line(std::string_view line);
// Without the colours of a terminal; at \n, \r or both.
std::vector<std::string> text_lines(std::string_view text);
// "value" of key=value among the words, whatever the case of the key; "" where there is none.
std::string value_of(const Words& words, std::string_view key);
// For a cluster file: letters, digits and . _ - as they are, others as _.
std::string plain_name(std::string_view name);

// What is read of a file, with a ledger of what became of its lines.
template <typename Out>
class LedgerWriter {
 public:
  explicit LedgerWriter(std::string_view file) : file_(file) {}

  void note(Mapping mapping, std::string what, std::string to, std::string why, int line) {
    out.ledger.push_back({mapping, std::move(what), std::move(to), std::move(why), file_, line});
  }
  [[noreturn]] void fail(int line, const std::string& what, const std::string& expected) const {
    throw ConfigError({file_, line, 0, ""}, what, expected);
  }
  const std::string& file() const { return file_; }

  Out out;

 private:
  std::string file_;
};

class Importer : public LedgerWriter<TopologyImport> {
 public:
  using LedgerWriter::LedgerWriter;
  void figure(const std::string& key, const std::string& value, std::string what, int line);
  // A list of hosts or switches as Slurm writes it.
  std::vector<std::string> expanded(std::string_view list, int line, std::size_t most) const;
};

}
