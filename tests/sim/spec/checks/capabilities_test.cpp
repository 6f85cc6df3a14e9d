#include "sim/spec/checks/capabilities.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sim/base/lookup.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

using Texts = std::vector<std::string>;

Texts split(std::string_view text, std::string_view separator) {
  Texts parts;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(std::min(at + separator.size(), text.size()));
  }
  return parts;
}

Plan with(Plan plan, const std::string& key, const std::string& value) {
  PlanDocument document = {.plan = std::move(plan)};
  return apply_set(std::move(document), key + "=" + value).plan;
}

// A value of the key that is not one of `but`.
std::string another_value(const PlanKey& key, const std::set<std::string>& but) {
  static const std::map<std::string_view, std::string> kOfOtherTypes = {
      {"frozen", "[embedding]"}, {"loss", "chunked-8"}, {"allocator", "expandable_segments:True"}};
  const auto other = kOfOtherTypes.find(key.path);
  if (other != kOfOtherTypes.end()) return other->second;
  for (std::size_t i = 0; i < key.type.words; ++i) {
    if (but.count(key.type.word(i)) == 0) return key.type.word(i);
  }
  return but.count("2") > 0 ? "3" : key.path == "units.shard_dim" ? "1" : "2";
}

// A plan that asks for what the row says, term by term.
Plan asking(const Capability& row, RuntimeKind kind) {
  Plan plan;
  plan.runtime = {kind,
      kind == RuntimeKind::kFsdp2 && row.since != kNotYet ? fmt::format("2.{}", row.since - 1) : newest_version(kind)};
  std::map<std::string, std::set<std::string>> excluded;
  for (const std::string& term : split(row.asked, ", ")) {
    const Texts parts = split(term, " ");
    const std::string &key = parts[0], &comparison = parts[1];
    std::string value = parts[2];
    if (key == "host") {
      plan.host = value == "cpu" ? HostKind::kComputes : HostKind::kFeedsDevice;
      continue;
    }
    if (key == "head_in_chunks") {
      plan = with(std::move(plan), "loss", value == "true" ? "chunked-head-8" : "chunked-8");
      continue;
    }
    const PlanKey* found = find_plan_key(key);
    if (comparison == ">") value = std::to_string(std::stoll(value) + 1);
    if (comparison == "!=") {
      if (const PlanKey* with_key = find_plan_key(value); contains(value, '.')) {
        value = yaml_value(with_key->value(plan));
      }
      for (const std::string& each : split(value, "|")) excluded[key].insert(each);
      value = another_value(*found, excluded[key]);
    }
    plan = with(std::move(plan), key, value.substr(0, value.find('|')));
  }
  return plan;
}

TEST(Capabilities, RefuseAPlanOfTheirOwnTermsAndTakeItsNearest) {
  constexpr RuntimeKind kRuntimes[] = {RuntimeKind::kFsdp2, RuntimeKind::kNative, RuntimeKind::kFsdp1,
      RuntimeKind::kDdp, RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3};
  int refused = 0;
  for (const Capability& row : capability_table()) {
    for (const RuntimeKind kind : kRuntimes) {
      if ((row.runtimes & runtimes_of(kind)) == 0) continue;
      Plan plan = asking(row, kind);
      const std::string what = fmt::format("{} {}", to_string(kind), row.asked);
      auto problem = problem_of_capability(plan, row.of, to_string(kind));
      ASSERT_TRUE(problem) << what;
      ++refused;
      for (int round = 0; problem && round < 8; ++round) {
        if (problem->exit_code == ExitCode::kInvalidInput) break;  // more than one way out
        for (const std::string& each : split(problem->did_you_mean, " and ")) {
          const std::size_t colon = each.find(": ");
          ASSERT_NE(colon, std::string::npos) << what << ": " << each;
          std::string value = each.substr(colon + 2);
          value = value.substr(0, value.find(','));
          if (contains(value, ' ')) value = "fp32";  // "that of dtype.master"
          plan = with(plan, each.substr(0, colon), value);
        }
        problem = problem_of_capability(plan, row.of, to_string(kind));
      }
      EXPECT_TRUE(!problem || problem->exit_code == ExitCode::kInvalidInput)
          << what << ": " << problem->key << " " << problem->what_is_wrong;
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(Capabilities, ComeWithTheirVersion) {
  for (const Capability& row : capability_table()) {
    if (row.since == kNotYet) continue;
    for (std::int32_t minor = kOldestFsdp2; minor <= kNewestFsdp2; ++minor) {
      const Runtime runtime{RuntimeKind::kFsdp2, fmt::format("2.{}", minor)};
      EXPECT_EQ(has_capability(runtime, row.asked), minor >= row.since) << row.asked;
    }
  }
  EXPECT_THROW(has_capability({}, "units.shard_dim > 7"), Error);
}

TEST(Capabilities, AskForARangeAsForTheWhole) {
  Plan plan = {.runtime = {RuntimeKind::kFsdp1, newest_version(RuntimeKind::kFsdp1)}};
  plan.unshard_in_backward.ranges = {{1, 1, true}};
  EXPECT_FALSE(problem_of_capability(plan, Capability::Of::kRuntime, "fsdp1"));
  plan.unshard_in_backward.ranges = {{1, 1, true}, {3, 4, false}};
  const auto problem = problem_of_capability(plan, Capability::Of::kRuntime, "fsdp1");
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "unshard_in_backward");
  EXPECT_EQ(problem->what_is_wrong, "fsdp1 gathers every unit in backward");
}

}
}
