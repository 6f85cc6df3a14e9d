// States of a search: any lines, with the hashes that fit them, give plans or an Error for bad
// input. The hashes are put on here: no mutation would find them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "planner/search_state.h"
#include "sim/base/hash.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  constexpr std::string_view kKey = "0123456789abcdef";
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string sealed = "foreshard.search_state/2 0123456789abcdef\n";
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    sealed += line;
    sealed += ' ' + Fingerprint().add(kKey).add(line).hex() + '\n';
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  for (const std::string_view text :
      {std::string_view(sealed), std::string_view(reinterpret_cast<const char*>(data), size)}) {
    expect_answer_or_refusal([&] {
      const SearchRecord record = parse_search_state(text, "state.txt", kKey);
      if (record.whole_bytes > text.size()) std::abort();
    });
  }
  return 0;
}
