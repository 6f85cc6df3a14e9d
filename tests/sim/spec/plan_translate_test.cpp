// A plan for another runtime: what it cannot do is mended and said, everything else stays.
#include "sim/spec/plan_translate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

struct Translated {
  Plan plan;
  std::vector<LedgerEntry> ledger;
};

Translated translated(std::string_view yaml, const Runtime& to, std::int64_t gpus = 64) {
  const ModelSpec model = small_model();
  const Cluster cluster = cluster_of_gpus(gpus);
  const PlanDocument document = document_of(yaml);
  Translation t = translate(document, resolve(document, model, cluster).plan, to, model, cluster);
  const ResolvedPlan resolved = resolve(t.document, model, cluster);
  EXPECT_FALSE(find_problem(resolved.plan, model, cluster).has_value());
  return {resolved.plan, std::move(t.ledger)};
}

const LedgerEntry* entry(const Translated& t, std::string_view what) {
  const auto found = std::ranges::find_if(t.ledger, [&](const LedgerEntry& e) { return e.what == what; });
  return found == t.ledger.end() ? nullptr : &*found;
}

constexpr const char* kBase = "model: small\ncluster: 64xh100\nbatch: {sequence: 4096, micro_batch: 2}\n";

TEST(PlanTranslate, DdpReplicatesOverTheSameRanks) {
  const Translated t = translated(kBase, {RuntimeKind::kDdp, ""});
  EXPECT_EQ(t.plan.mesh, (Mesh{1, 64}));
  EXPECT_EQ(t.plan.batch, (Batch{4096, 2, 1}));
  ASSERT_NE(entry(t, "mesh"), nullptr);
  EXPECT_EQ(entry(t, "mesh")->from, "{shard: 64, replicate: 1}");
  EXPECT_EQ(entry(t, "mesh")->to, "{shard: 1, replicate: 64}");
  ASSERT_NE(entry(t, "parameters"), nullptr);
  EXPECT_EQ(entry(t, "parameters")->to, "whole on every rank");
}

TEST(PlanTranslate, WhatTheOtherCannotDoIsMendedWithItsReason) {
  const Translated t = translated(std::string(kBase) + "prefetch: {backward_lists: true}\n", {RuntimeKind::kFsdp1, ""});
  EXPECT_FALSE(t.plan.prefetch.backward_lists);
  ASSERT_NE(entry(t, "prefetch.backward_lists"), nullptr);
  EXPECT_EQ(entry(t, "prefetch.backward_lists")->from, "true");
  EXPECT_EQ(entry(t, "prefetch.backward_lists")->to, "false");
  EXPECT_FALSE(entry(t, "prefetch.backward_lists")->why.empty());
}

// The engine does not route tokens to experts, and says that fsdp2 does: not what was asked for.
TEST(PlanTranslate, ARuntimeThatNamesAnotherAsNearestIsRefused) {
  const ModelSpec model = load_zoo_model("mixtral-8x7b");
  const Cluster cluster = cluster_of_gpus(64);
  const PlanDocument document = document_of("model: mixtral-8x7b\ncluster: 64xh100\nbatch: {sequence: 4096}\n");
  const Plan from = resolve(document, model, cluster).plan;
  try {
    translate(document, from, {RuntimeKind::kNative, ""}, model, cluster);
    FAIL() << "translated";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMissingCapability);
    EXPECT_NE(std::string(error.what()).find("softmax"), std::string::npos) << error.what();
  }
}

TEST(PlanTranslate, OptionsOfAnotherLibraryAreDropped) {
  const Translated t =
      translated(std::string(kBase) + "runtime: zero3\nzero: {reduce_bucket_size: 1000}\n", {RuntimeKind::kFsdp2, ""});
  EXPECT_EQ(t.plan.zero.reduce_bucket_size, 1000);  // unread, as DeepSpeed is not there
  ASSERT_NE(entry(t, "zero.reduce_bucket_size"), nullptr);
  EXPECT_EQ(entry(t, "zero.reduce_bucket_size")->to, "-");
}

TEST(PlanTranslate, AnotherRuntimeOfPyTorchIsOfTheSameVersion) {
  EXPECT_EQ(
      translated(std::string(kBase) + "runtime: fsdp2@2.11\n", {RuntimeKind::kFsdp1, ""}).plan.runtime.version, "2.11");
  EXPECT_EQ(version_beside({RuntimeKind::kDdp, "2.6"}, RuntimeKind::kFsdp2), "2.6");
  EXPECT_EQ(version_beside({RuntimeKind::kZero3, "0.19"}, RuntimeKind::kFsdp2), newest_version(RuntimeKind::kFsdp2));
  EXPECT_EQ(version_beside({RuntimeKind::kDdp, "2.6"}, RuntimeKind::kZero3), newest_version(RuntimeKind::kZero3));
}

TEST(PlanTranslate, ToAnotherVersionOfTheSameRuntime) {
  const Translated t = translated(std::string(kBase) + "buffers: {reduce_scatter: 2}\n", {RuntimeKind::kFsdp2, "2.5"});
  EXPECT_EQ(t.plan.runtime, (Runtime{RuntimeKind::kFsdp2, "2.5"}));
  EXPECT_EQ(t.plan.reduce_scatter_buffers, 1);
  EXPECT_NE(entry(t, "buffers.reduce_scatter"), nullptr);
  EXPECT_EQ(entry(t, "parameters"), nullptr);  // the nature is the same
}

TEST(PlanAllocator, IsReadCheckedAndWrittenBack) {
  const PlanDocument document = document_of(std::string(kBase) + "allocator: expandable_segments:True\n");
  EXPECT_TRUE(document.plan.allocator.expandable_segments);
  EXPECT_NE(to_yaml(document.plan).find("allocator: expandable_segments:True"), std::string::npos)
      << to_yaml(document.plan);
  EXPECT_THROW(document_of(std::string(kBase) + "allocator: max_split_size_mb:1\n"), ConfigError);
}

}
}
