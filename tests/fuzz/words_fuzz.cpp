// Words of a command line: any bytes are an amount, a time, counts or a unit string, or are
// refused. Names of clusters are cluster_fuzz's.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "planner/amounts.h"
#include "sim/base/unit_strings.h"
#include "tests/fuzz/scratch.h"

namespace {

void unit(auto read) {
  try {
    read();
  } catch (const std::invalid_argument&) {
  }
}

}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string text(reinterpret_cast<const char*>(data), size);
  expect_answer_or_refusal([&] { parse_amount("--tokens", text, "1T"); });
  expect_answer_or_refusal([&] { parse_days("--deadline", text); });
  expect_answer_or_refusal([&] { parse_duration("--restart", text, "10min"); });
  expect_answer_or_refusal([&] { parse_counts("--gpus", text); });
  sequence_length(text);
  unit([&] { parse_bytes(text); });
  unit([&] { parse_bandwidth(text); });
  unit([&] { parse_flop_rate(text); });
  unit([&] { parse_time(text); });
  unit([&] { parse_power(text); });
  unit([&] { parse_price(text); });
  return 0;
}
