// One table lists every key with the function that reads it and the one that writes it. Values of
// more than one form (a word, a number or a list) have their readers above it.
#include "sim/spec/plan_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/spelling.h"
#include "sim/spec/plan_check.h"

namespace foreshard {
namespace {

// The word of each value of an enumeration; plan.h names most of them.
template <typename E>
const char* word_of(E value) {
  return to_string(value);
}
const char* word_of(Optimizer::Kind kind) {
  return kind == Optimizer::Kind::kAdamW ? "adamw" : "sgd";
}
const char* word_of(Optimizer::Implementation implementation) {
  switch (implementation) {
    case Optimizer::Implementation::kForeach:
      return "foreach";
    case Optimizer::Implementation::kFused:
      return "fused";
    case Optimizer::Implementation::kLoop:
      return "loop";
  }
  return "?";
}
const char* word_of(Communicators communicators) {
  return communicators == Communicators::kShared ? "shared" : "separate";
}
const char* word_of(HostSync sync) { return sync == HostSync::kNone ? "none" : "step"; }

// The one of `values` whose word stands at `node`.
template <typename E, std::size_t N>
E read_word(const ConfigNode& node, const std::array<E, N>& values) {
  std::array<std::string_view, N> words;
  std::transform(values.begin(), values.end(), words.begin(),
                 [](E value) { return word_of(value); });
  return values[node.as_choice(std::span<const std::string_view>(words))];
}

constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
constexpr std::array kEmbeddingPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot};
constexpr std::array kHeadPlacements = {UnitPlacement::kOwn, UnitPlacement::kRoot,
                                        UnitPlacement::kWithNorm};
constexpr std::array kAccumulationModes = {AccumulationMode::kReduceEach,
                                           AccumulationMode::kKeepUnsharded};
constexpr std::array kOptimizers = {Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd};
constexpr std::array kImplementations = {Optimizer::Implementation::kForeach,
                                         Optimizer::Implementation::kFused,
                                         Optimizer::Implementation::kLoop};
constexpr std::array kCommunicators = {Communicators::kShared, Communicators::kSeparate};
constexpr std::array kHostSyncs = {HostSync::kNone, HostSync::kStep};
constexpr std::array kReductionOrders = {ReductionOrder::kMicrobatch, ReductionOrder::kLibrary};

// Readers of values with more than one form.

// Where `word` starts a number, what is meant is a number, right or wrong.
bool looks_like_number(std::string_view word) {
  return !word.empty() &&
         (std::string_view("+-.0123456789").find(word[0]) != std::string_view::npos);
}

Error not_modelled(const ConfigNode& node, std::string_view what, std::string_view nearest) {
  return {ExitCode::kMissingCapability,
          node.error(fmt::format("{}; nearest plan: {}", what, nearest)).what()};
}

ConfigError wrong_word(const ConfigNode& node, const std::string& expected,
                       const std::vector<std::string>& words) {
  const std::string_view text = node.text();
  std::string shown =
      node.is_scalar() ? quote(text) + " is not known here" : "no such value can stand here";
  return node.error(shown, expected, nearest_spelling(text, words));
}

bool is_version(std::string_view text) {
  bool is_digit_due = true;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c != '.' || is_digit_due)) return false;
    is_digit_due = !is_digit;
  }
  return !is_digit_due;
}

Runtime read_runtime(const ConfigNode& node) {
  static constexpr std::string_view kExpected = "fsdp2, fsdp2@2.11 or native";
  static constexpr std::string_view kLater[] = {"fsdp1", "ddp", "zero1", "zero2", "zero3"};
  const std::string text = node.as_string();
  const std::size_t at = text.find('@');
  const std::string name = text.substr(0, at);
  if (std::find(std::begin(kLater), std::end(kLater), name) != std::end(kLater)) {
    throw not_modelled(node, fmt::format("the runtime {} is not modelled yet", name),
                       "runtime: fsdp2");
  }
  Runtime runtime;
  if (name == "native") {
    runtime.kind = RuntimeKind::kNative;
  } else if (name != "fsdp2") {
    throw node.error(quote(text) + " is no runtime", std::string(kExpected),
                     nearest_spelling(name, std::vector<std::string>{"fsdp2", "native"}));
  }
  runtime.version = at == std::string::npos ? "" : text.substr(at + 1);
  if (at != std::string::npos && !is_version(runtime.version)) {
    throw node.error(quote(runtime.version) + " is no version", std::string(kExpected));
  }
  return runtime;
}

Reshard read_reshard(const ConfigNode& node) {
  static constexpr const char* kExpected =
      "always, never or the size of a smaller group, for example 8";
  if (node.is_scalar() && looks_like_number(node.text())) {
    return {Reshard::Kind::kGroup, node.as_int(1, plan_limits::kMesh)};
  }
  if (node.text() == "always") return {Reshard::Kind::kAlways, 0};
  if (node.text() == "never") return {Reshard::Kind::kNever, 0};
  // PyTorch's own words for the two.
  if (node.text() == "true" || node.text() == "True") {
    throw node.error(quote(node.text()) + " is not known here", kExpected, "always");
  }
  if (node.text() == "false" || node.text() == "False") {
    throw node.error(quote(node.text()) + " is not known here", kExpected, "never");
  }
  throw wrong_word(node, kExpected, {"always", "never"});
}

Recompute read_recompute(const ConfigNode& node) {
  static constexpr std::array kValues = {Recompute::kNone, Recompute::kFull, Recompute::kSelective};
  return read_word(node, kValues);
}

// "3" or "0-30".
std::pair<std::int64_t, std::int64_t> read_numbers(const ConfigNode& node) {
  static constexpr const char* kExpected = "a number or a range, for example 31 or 0-30";
  const std::string_view text = node.text();
  const std::size_t dash = text.find('-');
  if (node.is_scalar() && !node.is_quoted() && (dash == 0 || dash == std::string_view::npos)) {
    const std::int64_t number = node.as_int(0, plan_limits::kNumber);
    return {number, number};
  }
  const auto number = [&](std::string_view digits) -> std::int64_t {
    std::int64_t value = -1;
    const auto [end, failure] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    // from_chars takes a sign; a second dash must not pass for one.
    if (failure != std::errc() || end != digits.data() + digits.size() || digits[0] == '-' ||
        digits.size() > 7) {
      throw node.error(node.is_scalar() ? quote(text) + " is no range" : "no range stands here",
                       kExpected);
    }
    return value;
  };
  const std::int64_t first = number(text.substr(0, dash));
  const std::int64_t last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (first > last) throw node.error(quote(text) + " runs backwards", kExpected);
  return {first, last};
}

// [{<noun>: 0-30, value: ...}, ...]; the entry of `all`, which comes first, sets what holds
// elsewhere.
template <typename T>
RangedPolicy<T> read_ranges(const ConfigNode& node, std::string_view noun,
                            T (*read)(const ConfigNode&)) {
  const std::string expected = fmt::format("a list such as [{{{}: 0-3, value: ...}}]", noun);
  const std::span<const ConfigNode> elements = node.elements();
  if (elements.empty()) throw node.error("the list is empty", expected);
  RangedPolicy<T> policy;
  for (const ConfigNode& element : elements) {
    if (!element.is_mapping()) throw element.error("is no range with its value", expected);
    element.allow_only({noun, "value"});
    const ConfigNode numbers = element.at(noun, expected);
    const T value = read(element.at("value", expected));
    if (numbers.text() == "all") {
      if (&element != &elements.front()) {
        throw numbers.error("all stands behind ranges, which it would undo", "all as first entry");
      }
      policy.value = value;
      continue;
    }
    const auto [first, last] = read_numbers(numbers);
    policy.ranges.push_back({first, last, value});
  }
  return policy;
}

void read_recompute_policy(const ConfigNode& node, PlanDocument& document) {
  static constexpr std::string_view kEvery = "every-";
  document.recompute_every.reset();
  if (node.is_sequence()) {
    document.plan.recompute = read_ranges<Recompute>(node, "layers", read_recompute);
    // Changes nothing, and would make the list look like one of recompute_every.
    auto& ranges = document.plan.recompute.ranges;
    if (every_k(document.plan.recompute)) ranges.erase(ranges.begin());
    return;
  }
  const std::string_view text = node.text();
  if (text.starts_with(kEvery)) {
    const std::string_view digits = text.substr(kEvery.size());
    std::int64_t k = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
    if (failure != std::errc() || end != digits.data() + digits.size() || k < 1 ||
        k > plan_limits::kEvery) {
      throw node.error(quote(text) + " names no number of blocks",
                       "every-K with K from 1 to " + std::to_string(plan_limits::kEvery) +
                           ", for example every-2");
    }
    document.recompute_every = k;
    return;
  }
  for (const Recompute value : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
    if (text == to_string(value)) {
      document.plan.recompute = {value, {}};
      return;
    }
  }
  throw wrong_word(node,
                   "none, full, selective, every-K or a list such as [{layers: 0-3, value: full}]",
                   {"none", "full", "selective", "every-2"});
}

std::int64_t read_forward_prefetch(const ConfigNode& node) {
  if (node.is_scalar() && looks_like_number(node.text())) {
    return node.as_int(0, plan_limits::kPrefetch);
  }
  if (node.text() == "implicit") return Prefetch::kImplicit;
  throw wrong_word(node, "implicit or a number of units from 0 to 1,024, for example 1",
                   {"implicit"});
}

std::optional<double> read_clip_norm(const ConfigNode& node) {
  if (node.text() == "none") return std::nullopt;
  static constexpr const char* kExpected = "a number above 0, for example 1.0, or none";
  if (!node.is_scalar() || !looks_like_number(node.text())) {
    throw wrong_word(node, kExpected, {"none"});
  }
  const double value = node.as_double();
  if (!(value > 0)) throw node.error(quote(node.text()) + " is out of range", kExpected);
  return value;
}

std::optional<std::int64_t> read_optional_steps(const ConfigNode& node) {
  if (node.text() == "none") return std::nullopt;
  if (!node.is_scalar() || !looks_like_number(node.text())) {
    throw wrong_word(node, "a number of steps, for example 1000, or none", {"none"});
  }
  return node.as_int(1, plan_limits::kSteps);
}

std::string read_name(const ConfigNode& node, const char* expected) {
  std::string text = node.is_null() ? "" : node.as_string();
  if (text.empty()) throw node.error("nothing stands here", expected);
  return text;
}

void read_offload(const ConfigNode& node, PlanDocument& /*document*/) {
  if (node.is_scalar() && node.text() == "none") return;
  if (node.is_null()) throw node.error("nothing stands here", "none");
  throw not_modelled(node, "offload is not modelled yet", "offload: none");
}

void read_surround(const ConfigNode& node, PlanDocument& /*document*/) {
  if (node.as_int(1, plan_limits::kMesh) == 1) return;
  throw not_modelled(node, "tensor, context and pipeline parallelism are not modelled yet",
                     "1 for each size of surround");
}

// Writers.

Json written(const Reshard& reshard) {
  if (reshard.kind == Reshard::Kind::kGroup) return reshard.group;
  return reshard.kind == Reshard::Kind::kAlways ? "always" : "never";
}
Json written(Recompute recompute) { return to_string(recompute); }
Json written(const std::optional<std::int64_t>& steps) {
  return steps ? Json(*steps) : Json("none");
}

template <typename T>
Json written(const RangedPolicy<T>& policy, const char* noun) {
  if (policy.ranges.empty()) return written(policy.value);
  Json list = Json::array();
  const auto add = [&](Json numbers, const T& value) {
    Json entry;
    entry[noun] = std::move(numbers);
    entry["value"] = written(value);
    list.push_back(std::move(entry));
  };
  if (policy.value != T{}) add("all", policy.value);
  for (const auto& [first, last, value] : policy.ranges) {
    add(first == last ? Json(first) : Json(fmt::format("{}-{}", first, last)), value);
  }
  return list;
}

Json written(const Runtime& runtime) {
  const bool is_plain_native = runtime.kind == RuntimeKind::kNative &&
                               runtime.version == newest_version(RuntimeKind::kNative);
  const char* name = to_string(runtime.kind);
  return is_plain_native ? name : fmt::format("{}@{}", name, runtime.version);
}

using Node = const ConfigNode&;
using Document = PlanDocument&;

constexpr PlanKey kKeys[] = {
    {"model",
     [](Node n, Document d) {
       d.plan.model = read_name(n, "a zoo name or a config.json, for example llama-3.1-8b");
     },
     [](const Plan& p) { return Json(p.model); }},
    {"cluster",
     [](Node n, Document d) {
       d.plan.cluster = read_name(n, "GPUs and their kind or a cluster file, for example 64xh100");
     },
     [](const Plan& p) { return Json(p.cluster); }},
    {"runtime", [](Node n, Document d) { d.plan.runtime = read_runtime(n); },
     [](const Plan& p) { return written(p.runtime); }},
    {"batch.sequence",
     [](Node n, Document d) { d.plan.batch.sequence = n.as_int(1, plan_limits::kSequence); },
     [](const Plan& p) { return Json(p.batch.sequence); }},
    {"batch.micro_batch",
     [](Node n, Document d) { d.plan.batch.micro_batch = n.as_int(1, plan_limits::kMicroBatch); },
     [](const Plan& p) { return Json(p.batch.micro_batch); }},
    {"batch.accumulation",
     [](Node n, Document d) {
       d.plan.batch.accumulation = n.as_int(1, plan_limits::kAccumulation);
     },
     [](const Plan& p) { return Json(p.batch.accumulation); }},
    {"batch.global",
     [](Node n, Document d) { d.global_batch = n.as_int(1, plan_limits::kGlobalBatch); }, nullptr},
    {"mesh.shard", [](Node n, Document d) { d.plan.mesh.shard = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return Json(p.mesh.shard); }},
    {"mesh.replicate",
     [](Node n, Document d) { d.plan.mesh.replicate = n.as_int(1, plan_limits::kMesh); },
     [](const Plan& p) { return Json(p.mesh.replicate); }},
    {"units.layers_per_unit",
     [](Node n, Document d) {
       d.plan.units.layers_per_unit = n.as_int(1, plan_limits::kLayersPerUnit);
     },
     [](const Plan& p) { return Json(p.units.layers_per_unit); }},
    {"units.embedding",
     [](Node n, Document d) { d.plan.units.embedding = read_word(n, kEmbeddingPlacements); },
     [](const Plan& p) { return Json(word_of(p.units.embedding)); }},
    {"units.head", [](Node n, Document d) { d.plan.units.head = read_word(n, kHeadPlacements); },
     [](const Plan& p) { return Json(word_of(p.units.head)); }},
    {"reshard_after_forward",
     [](Node n, Document d) {
       d.plan.reshard_after_forward = n.is_sequence()
                                          ? read_ranges<Reshard>(n, "units", read_reshard)
                                          : RangedPolicy<Reshard>{read_reshard(n), {}};
     },
     [](const Plan& p) { return written(p.reshard_after_forward, "units"); }},
    {"prefetch.forward",
     [](Node n, Document d) { d.plan.prefetch.forward = read_forward_prefetch(n); },
     [](const Plan& p) {
       return p.prefetch.forward == Prefetch::kImplicit ? Json("implicit")
                                                        : Json(p.prefetch.forward);
     }},
    {"prefetch.backward",
     [](Node n, Document d) { d.plan.prefetch.backward = n.as_int(0, plan_limits::kPrefetch); },
     [](const Plan& p) { return Json(p.prefetch.backward); }},
    {"recompute", read_recompute_policy,
     [](const Plan& p) {
       const std::optional<std::int64_t> k = every_k(p.recompute);
       return k ? Json(fmt::format("every-{}", *k)) : written(p.recompute, "layers");
     }},
    {"dtype.param", [](Node n, Document d) { d.plan.param_dtype = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.param_dtype)); }},
    {"dtype.reduce", [](Node n, Document d) { d.plan.reduce_dtype = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.reduce_dtype)); }},
    {"dtype.master", [](Node n, Document d) { d.plan.master_dtype = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.master_dtype)); }},
    {"accumulation.mode",
     [](Node n, Document d) { d.plan.accumulation = read_word(n, kAccumulationModes); },
     [](const Plan& p) { return Json(word_of(p.accumulation)); }},
    {"optimizer.kind",
     [](Node n, Document d) { d.plan.optimizer.kind = read_word(n, kOptimizers); },
     [](const Plan& p) { return Json(word_of(p.optimizer.kind)); }},
    {"optimizer.implementation",
     [](Node n, Document d) { d.plan.optimizer.implementation = read_word(n, kImplementations); },
     [](const Plan& p) { return Json(word_of(p.optimizer.implementation)); }},
    {"optimizer.state", [](Node n, Document d) { d.plan.optimizer.state = read_word(n, kDTypes); },
     [](const Plan& p) { return Json(word_of(p.optimizer.state)); }},
    {"optimizer.clip_norm",
     [](Node n, Document d) { d.plan.optimizer.clip_norm = read_clip_norm(n); },
     [](const Plan& p) {
       return p.optimizer.clip_norm ? Json(*p.optimizer.clip_norm) : Json("none");
     }},
    {"optimizer.learning_rate",
     [](Node n, Document d) { d.plan.optimizer.learning_rate = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.learning_rate); }},
    {"optimizer.beta1", [](Node n, Document d) { d.plan.optimizer.beta1 = n.as_double(0, 1); },
     [](const Plan& p) { return Json(p.optimizer.beta1); }},
    {"optimizer.beta2", [](Node n, Document d) { d.plan.optimizer.beta2 = n.as_double(0, 1); },
     [](const Plan& p) { return Json(p.optimizer.beta2); }},
    {"optimizer.epsilon", [](Node n, Document d) { d.plan.optimizer.epsilon = n.as_double(0, 1); },
     [](const Plan& p) { return Json(p.optimizer.epsilon); }},
    {"optimizer.weight_decay",
     [](Node n, Document d) { d.plan.optimizer.weight_decay = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.weight_decay); }},
    {"optimizer.warmup_steps",
     [](Node n, Document d) { d.plan.optimizer.warmup_steps = n.as_int(0, plan_limits::kSteps); },
     [](const Plan& p) { return Json(p.optimizer.warmup_steps); }},
    {"optimizer.decay_steps",
     [](Node n, Document d) { d.plan.optimizer.decay_steps = read_optional_steps(n); },
     [](const Plan& p) { return written(p.optimizer.decay_steps); }},
    {"optimizer.min_learning_rate",
     [](Node n, Document d) { d.plan.optimizer.min_learning_rate = n.as_double(0, 1e3); },
     [](const Plan& p) { return Json(p.optimizer.min_learning_rate); }},
    {"offload", read_offload, [](const Plan&) { return Json("none"); }},
    {"buffers.reduce_scatter",
     [](Node n, Document d) { d.plan.reduce_scatter_buffers = n.as_int(1, plan_limits::kBuffers); },
     [](const Plan& p) { return Json(p.reduce_scatter_buffers); }},
    {"communicators",
     [](Node n, Document d) { d.plan.communicators = read_word(n, kCommunicators); },
     [](const Plan& p) { return Json(word_of(p.communicators)); }},
    {"host_sync", [](Node n, Document d) { d.plan.host_sync = read_word(n, kHostSyncs); },
     [](const Plan& p) { return Json(word_of(p.host_sync)); }},
    {"reduction_order",
     [](Node n, Document d) { d.plan.reduction_order = read_word(n, kReductionOrders); },
     [](const Plan& p) { return Json(word_of(p.reduction_order)); }},
    {"evaluation.every",
     [](Node n, Document d) { d.plan.evaluation.every = read_optional_steps(n); },
     [](const Plan& p) { return written(p.evaluation.every); }},
    {"evaluation.sequences",
     [](Node n, Document d) {
       d.plan.evaluation.sequences = n.as_int(1, plan_limits::kMicroBatch);
     },
     [](const Plan& p) { return Json(p.evaluation.sequences); }},
    {"evaluation.held_back",
     [](Node n, Document d) { d.plan.evaluation.held_back = n.as_double(0, 0.9); },
     [](const Plan& p) { return Json(p.evaluation.held_back); }},
    {"seed", [](Node n, Document d) { d.plan.seed = n.as_int(0, plan_limits::kSeed); },
     [](const Plan& p) { return Json(p.seed); }},
    {"surround.tensor", read_surround, nullptr},
    {"surround.context", read_surround, nullptr},
    {"surround.pipeline", read_surround, nullptr},
};

}  // namespace

std::span<const PlanKey> plan_key_table() { return kKeys; }

}  // namespace foreshard
