// Values are the plan file's words. Ranks send a hash; only where hashes differ they send the
// facts. The right ones are what most ranks have, rank 0's where no value has more than another.
#include "exec/run/facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "exec/comm/rendezvous.h"
#include "exec/engine/schedule.h"
#include "sim/base/config.h"
#include "sim/base/hash.h"
#include "sim/base/json.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

using Changes = Fact::Changes;

// Told only where it is in use.
constexpr std::string_view kHeldBack = "evaluation.held_back";

// What another value of a plan's key, or of all keys below it, changes; the first that fits. What
// is not here changes numbers.
struct Rule {
  std::string_view key;
  Changes changes;
};
constexpr Rule kRules[] = {
    {"mesh.replicate", Changes::kLastBits},
    {"mesh", Changes::kNothing},
    {"tensor_parallel", Changes::kNothing},  // its slices are told as they result
    {"batch.micro_batch", Changes::kLastBits},
    {"batch.accumulation", Changes::kNothing},  // batch.global tells it
    {"accumulation.mode", Changes::kLastBits},
    {"accumulation", Changes::kNothing},
    {"attention", Changes::kLastBits},
    {"compile", Changes::kLastBits},
    {"kernels", Changes::kLastBits},
    {"loss", Changes::kLastBits},
    {"experts", Changes::kLastBits},
    {"logits", Changes::kNothing},
    {"optimizer.implementation", Changes::kNothing},
    {"runtime", Changes::kNothing},
    {"units", Changes::kNothing},
    {"reshard_after_forward", Changes::kNothing},
    {"unshard_in_backward", Changes::kNothing},
    {"prefetch", Changes::kNothing},
    {"recompute", Changes::kNothing},
    {"recompute_wraps", Changes::kNothing},
    {"recompute_early_stop", Changes::kNothing},
    {"recompute_reentrant", Changes::kNothing},
    {"offload", Changes::kNothing},
    {"buffers", Changes::kNothing},
    {"communicators", Changes::kNothing},
    {"collectives", Changes::kNothing},
    {"allocator", Changes::kNothing},
    {"host_sync", Changes::kNothing},
    {"evaluation", Changes::kNothing},
    {"rank", Changes::kNothing},
};

Changes changes_of_key(std::string_view key) {
  for (const Rule& rule : kRules)
    if (key == rule.key || (key.starts_with(rule.key) && key[rule.key.size()] == '.')) return rule.changes;
  return Changes::kNumbers;
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

void flatten(const Json& value, const std::string& path, Facts& facts) {
  if (!value.is_object()) {
    if (path == kHeldBack || path == "model" || path == "cluster") return;  // names of files
    facts.push_back({path, text_of(value), changes_of_key(path)});
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, path.empty() ? key : path + "." + key, facts);
}

std::string hash_of(const Facts& facts) {
  Fingerprint hash;
  for (const Fact& fact : facts) hash.add(fact.key).add(fact.value);
  return hash.hex();
}

std::string operations_hash(const ModelSpec& model) {
  Fingerprint hash;
  for (const LayerInstance& layer : model.order)
    hash.add(static_cast<std::int64_t>(layer.kind)).add(layer.name).add(std::int64_t{layer.same_as});
  for (const LayerSpec& kind : model.kinds) {
    for (const ParameterSpec& parameter : kind.parameters) {
      hash.add(parameter.name);
      for (const std::int64_t extent : parameter.shape) hash.add(extent);
    }
    for (const Operation& operation : kind.operations) {
      const AttentionShape& attention = operation.attention;
      hash.add(to_string(operation.function)).add(operation.n).add(operation.k);
      hash.add(attention.heads).add(attention.kv_heads).add(attention.head_dim);
      hash.add(std::int64_t{attention.causal});
    }
  }
  return hash.hex();
}

std::string rope_scaling_text(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return "none";
  const char* const kind = scaling.kind == RopeScaling::Kind::kLinear ? "linear" : "llama3";
  return fmt::format("{} {} {} {} {}", kind, scaling.factor, scaling.low_frequency_factor,
      scaling.high_frequency_factor, scaling.original_positions);
}

// One after the other with their lengths: values may hold anything.
std::string pack(const Facts& facts) {
  std::string text;
  for (const Fact& fact : facts)
    text += fmt::format("{} {} {}{}", fact.key.size(), fact.value.size(), fact.key, fact.value);
  return text;
}

std::vector<std::pair<std::string, std::string>> unpack(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> values;
  const auto number = [&] {
    std::size_t value = 0;
    while (text.front() != ' ') {
      value = value * 10 + at(text.front() - '0');
      text.remove_prefix(1);
    }
    text.remove_prefix(1);
    return value;
  };
  while (!text.empty()) {
    const std::size_t key = number();
    const std::size_t value = number();
    values.emplace_back(text.substr(0, key), text.substr(key, value));
    text.remove_prefix(key + value);
  }
  return values;
}

// What most have; the first rank's of those that are as frequent.
std::size_t most_common(const std::vector<std::string>& texts) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < texts.size(); ++i)
    if (std::ranges::count(texts, texts[i]) > std::ranges::count(texts, texts[best])) best = i;
  return best;
}

}

Facts facts_of(const Plan& plan) {
  Facts facts;
  flatten(to_json(plan), "", facts);
  if (!is_microbatch_order(plan.reduction_order) || plan.accumulation == AccumulationMode::kKeepUnsharded) {
    for (Fact& fact : facts)
      if (fact.key == "mesh.shard") fact.changes = Changes::kLastBits;
  }
  const std::int64_t sequences = microbatches_of_step(plan) * plan.batch.micro_batch;
  facts.push_back({"batch.global", std::to_string(sequences), Changes::kNumbers});
  const std::int64_t slices = slices_of_rank(plan) * plan.mesh.tp;
  facts.push_back({"slices", std::to_string(slices), Changes::kLastBits});
  // It takes its sequences from the end of the training data.
  facts.push_back({std::string(kHeldBack), fmt::format("{}", plan.evaluation.every ? plan.evaluation.held_back : 0.0),
      Changes::kNumbers});
  return facts;
}

Facts facts_of(const ModelSpec& model) {
  const Numerics& numerics = model.numerics;
  const auto number = [](const char* key, auto value) {
    return Fact{key, fmt::format("{}", value), Changes::kNumbers};
  };
  return {number("model.norm_epsilon", numerics.norm_epsilon), number("model.rope_theta", numerics.rope_theta),
      {"model.rope_scaling", rope_scaling_text(numerics.rope_scaling), Changes::kNumbers},
      number("model.gelu_tanh", numerics.gelu_tanh), number("model.alibi", numerics.alibi),
      number("model.vocabulary", model.vocabulary), number("model.hidden", model.hidden),
      number("model.layers", model.block_count()), number("model.parameters", model.parameters()),
      {"model.operations", operations_hash(model), Changes::kNumbers}};
}

Fact fact_of(const TokenStore& data) {
  return {"data", fmt::format("{} tokens ({:016x})", data.size(), data.fingerprint()), Changes::kNumbers};
}

void agree(World& world, const std::string& topic, const Facts& facts, ExitCode code) {
  const std::vector<std::string> hashes = world.gather(topic, hash_of(facts));
  if (std::ranges::all_of(hashes, [&](const auto& h) { return h == hashes[0]; })) return;
  const std::vector<std::string> texts = world.gather(topic + ".facts", pack(facts));
  const std::size_t right = most_common(texts);
  const auto expected = unpack(texts[right]);
  const auto odd = at(std::ranges::find_if(texts, [&](const auto& t) { return t != texts[right]; }) - texts.begin());
  std::vector<int> ranks;
  for (std::size_t rank = odd; rank < texts.size(); ++rank)
    if (texts[rank] == texts[odd]) ranks.push_back(static_cast<int>(rank));
  const auto other = unpack(texts[odd]);
  const std::map<std::string, std::string> theirs(other.begin(), other.end());
  std::vector<std::string> differences;
  for (const auto& [key, value] : expected) {
    const auto found = theirs.find(key);
    const std::string there = found == theirs.end() ? "not there" : found->second;
    if (there == value) continue;
    differences.push_back(fmt::format("{} is {} there and {} on rank {}", key, there, value, right));
  }
  if (differences.empty()) differences.emplace_back("it is another version of the program");
  throw Error(code,
      fmt::format("the ranks do not run the same: {} of {} {}: {}; start all with the same program, files and options",
          name_ranks(ranks), world.size(), ranks.size() == 1 ? "differs" : "differ", fmt::join(differences, "; ")));
}

JobIdentity identity_of(const Facts& facts) {
  JobIdentity identity;
  for (const Fact& fact : facts) {
    if (fact.changes == Changes::kNumbers) identity.values[fact.key] = fact.value;
    if (fact.changes == Changes::kLastBits) identity.last_bits[fact.key] = fact.value;
  }
  Fingerprint hash;
  for (const auto& [key, value] : identity.values) hash.add(key).add(value);
  identity.id = hash.hex();
  return identity;
}

std::string to_text(const JobIdentity& identity) {
  return Json{{"id", identity.id}, {"numbers", identity.values}, {"last_bits", identity.last_bits}}.dump();
}

JobIdentity job_identity_of(const std::string& text, const std::string& file) {
  if (text.empty()) return {};
  const ConfigNode root = parse_json(text, file);
  Facts facts;
  const auto take = [&](const char* name, Changes changes) {
    const ConfigNode node = root.at(name);
    for (const ConfigItem& item : node.items()) facts.push_back({item.key, item.value.as_string(), changes});
  };
  take("numbers", Changes::kNumbers);
  take("last_bits", Changes::kLastBits);
  return identity_of(facts);
}

std::vector<FactChange> changes_of(
    const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now) {
  std::vector<FactChange> changes;
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old != before.end() && old->second != value) changes.push_back({key, old->second, value});
  }
  return changes;
}

std::string in_words(std::span<const FactChange> changes) {
  auto texts = list_of<std::string>(changes,
      [&](const FactChange& change) { return fmt::format("{} is {}, was {}", change.key, change.now, change.before); });
  return fmt::format("{}", fmt::join(texts, "; "));
}

}
