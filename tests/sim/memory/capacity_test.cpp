// How sure a step is to fit, with what its code may keep besides.
#include "sim/memory/capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/memory/memory_alternatives.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

Fit with(std::int64_t reserved_gib, std::vector<KeptBesides> besides) {
  Fit fit = {.capacity = Bytes(80 * kGiB)};
  fit.reserved = fit.allocated = Bytes(reserved_gib * kGiB);
  std::copy(besides.begin(), besides.end(), fit.besides.begin());
  return fit;
}

TEST(Capacity, WhatOneInFourCodesKeepsTakesAQuarterOfTheProbability) {
  const Fit fit = with(40, {{"a copy", Bytes(60 * kGiB), 0.25}});
  EXPECT_NEAR(fit_probability(fit), 0.75, 1e-6);
  EXPECT_NEAR(fit_probability(with(40, {})), 1, 1e-6);
  // Small enough to fit all the same.
  EXPECT_NEAR(fit_probability(with(40, {{"a mask", Bytes(kGiB), 0.25}})), 1, 1e-6);
}

TEST(Capacity, WhatIsKeptBesidesAddsUp) {
  // Each alone fits, both together do not.
  const Fit fit = with(20, {{"one", Bytes(40 * kGiB), 0.5}, {"other", Bytes(40 * kGiB), 0.4}});
  EXPECT_NEAR(fit_probability(fit), 1 - 0.5 * 0.4, 1e-3);
  EXPECT_EQ(kept_besides(fit, 0.25), Bytes(0));
  EXPECT_EQ(kept_besides(fit, 0.75), Bytes(40 * kGiB));
  EXPECT_EQ(kept_besides(fit, 0.95), Bytes(80 * kGiB));
  EXPECT_EQ(kept_besides(with(50, {}), 0.95), Bytes(0));
}

// 10 % to spare: two standard deviations of what recordings are off by, less than one of what loops
// are that nobody has read, which need more in the mean.
TEST(Capacity, ACodeThatNobodyHasReadIsLessSure) {
  const Fit read = with(72, {}), unread = with(72, {{"next to nothing", Bytes(1), 0.25}});
  EXPECT_GT(fit_probability(read), 0.95);
  EXPECT_LT(fit_probability(unread), 0.8);
  EXPECT_GT(fit_probability(unread), 0.5);
  EXPECT_GT(reserved_error(unread).log_mean, reserved_error(read).log_mean);
  EXPECT_EQ(reserved_error(read).log_sd, kReservedLogSd);
}

TEST(Capacity, ACodeThatNobodyHasReadMayKeepItsLogits) {
  const ModelSpec model = tiny_model(2);
  Plan plan = tiny_plan();
  const Fit fit = with_alternatives(with(40, {}), model, plan);
  const std::vector<MemoryAlternative> all = memory_alternatives(model, plan);
  ASSERT_FALSE(all.empty());
  ASSERT_LE(all.size(), fit.besides.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(fit.besides[i].bytes, all[i].bytes);
    EXPECT_GT(fit.besides[i].weight, 0);
    EXPECT_LT(fit.besides[i].weight, 0.5);
    if (i == 0) continue;  // by what is expected of them
    EXPECT_LE(all[i].weight * static_cast<double>(all[i].bytes.count()),
        all[i - 1].weight * static_cast<double>(all[i - 1].bytes.count()));
  }
  // More tokens, larger logits.
  plan.batch.micro_batch *= 2;
  Bytes before, after;
  for (const MemoryAlternative& each : all) before = before + each.bytes;
  for (const MemoryAlternative& each : memory_alternatives(model, plan)) after = after + each.bytes;
  EXPECT_GT(after, before);
}

}
}
