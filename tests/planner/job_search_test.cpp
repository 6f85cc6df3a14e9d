// What a search judges is what a forecast of its plans says.
#include "planner/job_search.h"

#include <gtest/gtest.h>

#include "models/layers/variants.h"

namespace foreshard {
namespace {

SearchVariants variants_of(const std::string& model, const std::vector<std::string>& set) {
  JobOptions options = {.model = model, .cluster = "8xh100", .sequence = "512"};
  options.assignments.push_back(set);
  return search_variants(load_job(options), {"32", {}});
}

// T5's attention is another kernel where blocks are checkpointed; attention by operations copies
// the heads of several sequences. Others run the same whatever is searched over.
TEST(JobSearch, EveryPlanOfAVariantRunsItsModel) {
  const auto expect_own_model = [](const SearchVariants& variants) {
    for (const JobVariant& variant : variants.list) {
      for (const Plan& plan : plans_of(variant)) {
        EXPECT_EQ(with_variants(variant.job.plain_model, plan), variant.job.model);
      }
    }
    return variants.list.size();
  };
  const std::size_t alike = expect_own_model(variants_of("gpt2", {"loss=eager"}));
  EXPECT_EQ(alike, 1U);
  EXPECT_EQ(expect_own_model(variants_of("t5-small", {"loss=eager"})), 2U);
  EXPECT_EQ(expect_own_model(variants_of("gpt2", {"loss=eager", "attention=eager"})), 2U);
  EXPECT_EQ(expect_own_model(variants_of("gpt2", {"attention=eager", "batch.micro_batch=2"})),
      expect_own_model(variants_of("gpt2", {})));
}

}
}
