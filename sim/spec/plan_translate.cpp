// Asks, mends, asks again. Every round gives a key the value that the problem itself names, so a
// key that comes up twice has no such value.
#include "sim/spec/plan_translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/base/letters.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

// What a runtime does with the model's states, in the order of `kAspects`.
constexpr const char* kAspects[] = {"parameters", "gradients", "optimizer states", "gathers", "reductions"};
constexpr std::size_t kAspectCount = std::size(kAspects);
using Nature = std::array<const char*, kAspectCount>;

Nature nature_of(RuntimeKind kind) {
  switch (kind) {
    case RuntimeKind::kFsdp2:
      return {"sharded, each along its first dimension", "sharded", "sharded", "a unit at a time, copied in and out",
          "reduce-scatter of a unit, copied in"};
    case RuntimeKind::kFsdp1:
      return {"sharded, a flat one for each unit", "sharded", "sharded", "a unit at a time, in place",
          "reduce-scatter of a unit, divided before and after"};
    case RuntimeKind::kDdp: return {"whole on every rank", "whole", "whole", "none", "all-reduce of a bucket"};
    case RuntimeKind::kMegatron:
      return {"16 bits whole, fp32 sharded", "whole, in one buffer", "sharded",
          "a bucket at a time, beside the next forward", "reduce-scatter of a bucket"};
    case RuntimeKind::kZero1:
      return {
          "16 bits whole, fp32 sharded", "whole", "sharded", "all at once after the step", "all-reduce of a bucket"};
    case RuntimeKind::kZero2:
      return {
          "16 bits whole, fp32 sharded", "sharded", "sharded", "all at once after the step", "all-reduce of a bucket"};
    case RuntimeKind::kZero3:
      return {"sharded, each in flat pieces", "sharded", "sharded", "by module, prefetched along the recorded trace",
          "reduce-scatter of a bucket"};
    case RuntimeKind::kNative:
      return {"sharded, a flat one for each unit", "sharded", "sharded", "a unit at a time, in place",
          "reduce-scatter of a unit, in place"};
  }
  return {};
}

struct Assignment {
  std::string key;
  std::string value;
};

// "units.embedding: root and units.head: root", "prefetch.forward: implicit"; empty where the text names no values.
std::vector<Assignment> read_nearest(std::string_view text) {
  std::vector<Assignment> list;
  while (!text.empty()) {
    const std::string_view part = cut(text, " and ");
    const std::size_t colon = part.find(": ");
    if (colon == std::string_view::npos) return {};
    list.push_back({std::string(part.substr(0, colon)), std::string(part.substr(colon + 2))});
  }
  return list;
}

std::string value_of(const Plan& plan, std::string_view key) {
  const PlanKey* found = find_plan_key(key);
  return found == nullptr || found->value == nullptr ? "" : yaml_value(found->write(plan));
}

class Translator {
 public:
  Translator(const PlanDocument& base, const Plan& from, const ModelSpec& model, const Cluster& cluster)
      : document_(base), from_(from), model_(model), cluster_(cluster) {}

  Translation run(const Runtime& runtime) && {
    const RuntimeKind to = runtime.kind;
    const std::string version = runtime.version.empty() ? version_beside(from_.runtime, to) : runtime.version;
    set("runtime", fmt::format("{}@{}", to_string(to), version));
    set_mesh(to);
    drop_foreign_keys(to);
    std::set<std::string> mended;
    while (true) {
      const Plan plan = resolve(document_, model_, cluster_).plan;
      const std::optional<PlanProblem> problem = find_problem(plan, model_, cluster_);
      if (!problem) break;
      const std::vector<Assignment> nearest = read_nearest(problem->did_you_mean);
      const bool is_new = mended.insert(problem->key).second;
      // The nearest plan of what no runtime of this kind can do is one of another kind.
      const bool is_of_other = std::ranges::any_of(nearest, [](const auto& each) { return each.key == "runtime"; });
      if (problem->exit_code != ExitCode::kMissingCapability || nearest.empty() || !is_new || is_of_other)
        throw_problem(*problem, Location{"", 0, 0, problem->key});
      for (const Assignment& each : nearest) {
        enter(each.key, value_of(plan, each.key), each.value, problem->what_is_wrong);
        set(each.key, each.value);
      }
    }
    const Nature was = nature_of(from_.runtime.kind);
    const Nature is = nature_of(to);
    for (std::size_t i = 0; i < kAspectCount; ++i)
      if (std::string_view(was[i]) != is[i]) enter(kAspects[i], was[i], is[i], "");
    result_.document = std::move(document_);
    return std::move(result_);
  }

 private:
  void set(const std::string& key, const std::string& value) {
    document_ = apply_set(std::move(document_), fmt::format("{}={}", key, value));
  }
  void enter(std::string what, std::string from, std::string to, std::string why) {
    result_.ledger.push_back({std::move(what), std::move(from), std::move(to), std::move(why)});
  }

  // The same ranks; what divides them differs.
  void set_mesh(RuntimeKind to) {
    const std::int64_t world = from_.mesh.world();
    Mesh mesh = from_.mesh;
    if (to == RuntimeKind::kDdp) mesh = {1, world};
    else if (is_zero(to) || from_.runtime.kind == RuntimeKind::kDdp) mesh = {world, 1};
    const auto text = [](const Mesh& m) { return fmt::format("{{shard: {}, replicate: {}}}", m.shard, m.replicate); };
    if (mesh != from_.mesh)
      enter("mesh", text(from_.mesh), text(mesh), to == RuntimeKind::kDdp ? "DDP replicates" : "all ranks shard");
    set("mesh", text(mesh));
  }

  void drop_foreign_keys(RuntimeKind to) {
    for (const PlanKey& key : library_keys()) {
      const auto given = document_.given.find(key.path);
      if (given == document_.given.end() || key.belongs_to(to)) continue;
      enter(std::string(key.path), yaml_value(key.write(from_)), "-",
          fmt::format("{} has no such option", to_string(to)));
      document_.given.erase(given);
    }
  }

  PlanDocument document_;
  const Plan& from_;
  const ModelSpec& model_;
  const Cluster& cluster_;
  Translation result_;
};

}

std::string version_beside(const Runtime& from, RuntimeKind to) {
  const auto is_torch = [](RuntimeKind kind) {
    return kind == RuntimeKind::kFsdp2 || kind == RuntimeKind::kFsdp1 || kind == RuntimeKind::kDdp;
  };
  const bool same = is_torch(from.kind) && is_torch(to) && !from.version.empty();
  return same ? from.version : std::string(newest_version(to));
}

Translation translate(
    const PlanDocument& base, const Plan& from, const Runtime& to, const ModelSpec& model, const Cluster& cluster) {
  return Translator(base, from, model, cluster).run(to);
}

}
