// Answers of this program as JSON, of which report makes a page: any bytes give a page, or an Error
// for bad input.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "cli/page.h"
#include "sim/base/json_document.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_answer_or_refusal([&] { to_text(page_of_answer(parse_json_document(text, "answer.json"), "answer.json")); });
  return 0;
}
