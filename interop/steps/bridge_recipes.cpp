#include "interop/steps/bridge_recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "calibration/csv_table.h"
#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// By release, model and where: "26.02 deepseek-v3 GB200/FP8_MX/1/4/4/64".
using Recipes = std::map<std::string, BridgeRecipe, std::less<>>;

const Recipes& recipes() {
  static const Recipes read = [] {
    constexpr std::string_view kPath = "interop/steps/megatron_bridge_recipes.csv";
    const CsvTable table(file_named(kPath, published_word_files()).content, std::string(kPath));
    Recipes made;
    for (std::size_t i = 0; i < table.rows(); ++i) {
      const BridgeRecipe recipe{table.text(i, "dispatcher"), table.text(i, "cuda_graphs"),
          table.text(i, "expert_overlap"), table.text(i, "recompute_modules")};
      const std::string& list = table.text(i, "recipes");
      for (std::size_t from = 0; from < list.size();) {
        const std::size_t end = std::min(list.find(' ', from), list.size());
        made[fmt::format("{} {} {}", table.text(i, "release"), table.text(i, "model"), list.substr(from, end - from))] =
            recipe;
        from = end + 1;
      }
    }
    return made;
  }();
  return read;
}

// Longer names first: H100 is a part of none, B200 one of GB200.
std::string_view gpu_of(std::string_view published) {
  for (const std::string_view gpu : {"GB300", "GB200", "B300", "B200", "H100"})
    if (contains(published, gpu)) return gpu;
  return "";
}

// "FP8" alone is what a release published of the GPU: scaling by tensors, or by blocks.
std::vector<std::string_view> dtypes_of(std::string_view published) {
  const std::string text = lower(published);
  const auto says = [&](std::string_view word) { return contains(text, word); };
  if (says("fp4")) return {"NVFP4"};
  if (says("mx")) return {"FP8_MX"};
  if (says("sc") || says("block")) return {"FP8_SC"};
  if (says("cs")) return {"FP8_CS"};
  if (says("fp8")) return {"FP8_CS", "FP8_MX"};
  return {"BF16"};
}

}

const BridgeRecipe* find_bridge_recipe(const RecipeOfTable& of) {
  for (const std::string_view dtype : dtypes_of(of.dtype)) {
    const auto found = recipes().find(fmt::format(
        "{} {} {}/{}/{}/{}/{}/{}", of.release, of.model, gpu_of(of.gpu), dtype, of.micro_batch, of.pp, of.vp, of.ep));
    if (found != recipes().end()) return &found->second;
  }
  return nullptr;
}

}
