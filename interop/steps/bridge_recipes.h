// What performance recipes of Megatron-Bridge set besides what its tables of results say
// (megatron_bridge_recipes.csv, which tools/megatron_bridge_recipes.py writes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foreshard {

struct BridgeRecipe {
  std::string dispatcher;         // moe_flex_dispatcher_backend; empty: all-to-alls
  std::string cuda_graphs;        // a word of megatron.cuda_graphs; empty: none
  std::string expert_overlap;     // "yes": overlap_moe_expert_parallel_comm
  std::string recompute_modules;  // with blanks between; empty: nothing is recomputed
};

struct RecipeOfTable {
  std::string_view release;  // "26.02"
  std::string_view model;    // of the zoo
  std::string_view gpu;      // as published: "DGX-GB200"
  std::string_view dtype;    // as published: "FP8-CS"
  std::int64_t micro_batch = 1, pp = 1, vp = 1, ep = 1;
};

// Null: no recipe is known.
const BridgeRecipe* find_bridge_recipe(const RecipeOfTable& of);

}
