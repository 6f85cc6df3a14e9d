#include <iterator>
#include <optional>
#include <string_view>

#include "interop/steps/training_rows.h"

namespace foreshard {
namespace {

struct Era {
  std::string_view stack;
  std::string_view from_date;  // ISO; of the code
  TorchVersion from_torch;     // that its images had
};

// The repositories' own histories, sources in sim/spec/stacks: Triton's kernel came with
// llm-foundry (first release 2023-05-05), PyTorch 2.1 with its 0.3.0 (2023-10), FlashAttention-2 as
// the default with 0.7.0 (2024-04).
constexpr Era kMosaic[] = {{"composer_2022", "", {}},
                           {"composer_2023_02", "2023-02", {1, 13}},
                           {"composer_2023_05", "2023-05", {2, 0}},
                           {"composer_2023_10", "2023-10", {2, 1}},
                           {"llm_foundry", "2024-04", {2, 3}}};

std::string_view mosaic_stack(const TrainingRow& row) {
  const std::string_view date = row.word("commit_date");
  const std::optional<TorchVersion> torch = torch_version(row);
  if (date.empty() && !torch) return "";
  const Era* era = std::begin(kMosaic);
  for (const Era& each : kMosaic) {
    if (date.empty() ? *torch >= each.from_torch : date >= each.from_date) era = &each;
  }
  return era->stack;
}

}  // namespace

std::string likely_stack(const TrainingRow& row) {
  if (row.has("stack")) return std::string(row.word("stack"));
  const std::string_view arch = row.word("arch"), runtime = row.word("runtime");
  if (arch == "mpt" && runtime == "fsdp1") return std::string(mosaic_stack(row));
  if (arch == "internlm" && runtime == "zero1") return "internevo";
  return "";
}

}  // namespace foreshard
