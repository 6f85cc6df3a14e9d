// What a browser sends: any query and any body of the three kinds give words and files, or an Error
// for bad input. The first line is the body's type.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "cli/http/form.h"
#include "sim/base/lookup.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_query(text);
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view body = text.substr(std::min(end + 1, text.size()));
  expect_answer_or_refusal([&] {
    for (const HttpFile& file : read_body(text.substr(0, end), body).files) {
      const std::string name = plain_file_name(file.name, "file");
      if (name.empty() || contains(name, '/') || name[0] == '.') std::abort();
    }
  });
  return 0;
}
