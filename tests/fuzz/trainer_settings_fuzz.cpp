// Settings of TorchTitan (TOML), Accelerate (YAML) and DeepSpeed (JSON): any bytes give a plan
// file, or an Error for bad input. A first byte T, Y or J says which; any other: all.
#include <cstddef>
#include <cstdint>

#include "interop/frameworks/foreign_plan.h"
#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const char kind = text.empty() ? ' ' : text[0];
  const bool is_told = kind == 'T' || kind == 'Y' || kind == 'J';
  if (is_told) text.remove_prefix(1);
  const auto judge = [&](char of, auto read) {
    if (is_told && kind != of) return;
    expect_answer_or_refusal([&] {
      const ForeignPlan plan = read();
      document_of(PlanDocument{}, plan);
      plan_text(plan, {{"model", "gpt2"}, {"cluster", "8xh100"}});
      ledger_text(plan.ledger);
    });
  };
  judge('T', [&] { return read_torchtitan(parse_toml(text, "job.toml")); });
  judge('Y', [&] { return read_accelerate(parse_yaml(text, "accelerate.yaml")); });
  judge('J', [&] { return read_deepspeed(parse_json(text, "deepspeed.json")); });
  return 0;
}
