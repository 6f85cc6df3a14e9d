// Readers first, each above the one that uses it, then the writers in the order of the header.
#include "sim/spec/plan_values.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

namespace {

// Where `word` starts a number, what is meant is a number, right or wrong.
bool looks_like_number(std::string_view word) {
  return !word.empty() && (contains(std::string_view("+-.0123456789"), word[0]));
}

ConfigError wrong_word(const ConfigNode& node, const std::string& expected, const std::vector<std::string>& words) {
  const std::string_view text = node.text();
  std::string shown = node.is_scalar() ? quote(text) + " is not known here" : "no such value can stand here";
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

Reshard read_reshard(const ConfigNode& node) {
  static constexpr const char* kExpected = "always, never or the size of a smaller group, for example 8";
  if (node.is_scalar() && looks_like_number(node.text()))
    return {Reshard::Kind::kGroup, node.as_int(1, plan_limits::kMesh)};
  if (node.text() == "always") return {Reshard::Kind::kAlways, 0};
  if (node.text() == "never") return {Reshard::Kind::kNever, 0};
  // PyTorch's own words for the two.
  if (node.text() == "true" || node.text() == "True")
    throw node.error(quote(node.text()) + " is not known here", kExpected, "always");
  if (node.text() == "false" || node.text() == "False")
    throw node.error(quote(node.text()) + " is not known here", kExpected, "never");
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
    const auto value = parse_number<std::int64_t>(digits);
    // A sign is read; a second dash must not pass for one.
    if (!value || digits[0] == '-' || digits.size() > 7)
      throw node.error(node.is_scalar() ? quote(text) + " is no range" : "no range stands here", kExpected);
    return *value;
  };
  const std::int64_t first = number(text.substr(0, dash));
  const std::int64_t last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (first > last) throw node.error(quote(text) + " runs backwards", kExpected);
  return {first, last};
}

// [{<noun>: 0-30, value: ...}, ...]; the entry of `all`, which comes first, sets what holds
// elsewhere, in place of `otherwise`.
template <typename T>
RangedPolicy<T> read_ranges(
    const ConfigNode& node, std::string_view noun, T (*read)(const ConfigNode&), T otherwise = {}) {
  const std::string expected = fmt::format("a list such as [{{{}: 0-3, value: ...}}]", noun);
  const std::span<const ConfigNode> elements = node.elements();
  if (elements.empty()) throw node.error("the list is empty", expected);
  RangedPolicy<T> policy{otherwise, {}};
  for (const ConfigNode& element : elements) {
    if (!element.is_mapping()) throw element.error("is no range with its value", expected);
    element.allow_only({noun, "value"});
    const ConfigNode numbers = element.at(noun, expected);
    const T value = read(element.at("value", expected));
    if (numbers.text() == "all") {
      if (&element != &elements.front())
        throw numbers.error("all stands behind ranges, which it would undo", "all as first entry");
      policy.value = value;
      continue;
    }
    const auto [first, last] = read_numbers(numbers);
    policy.ranges.push_back({first, last, value});
  }
  return policy;
}

bool read_bool(const ConfigNode& node) { return node.as_bool(); }

Json written_numbers(std::int64_t first, std::int64_t last) {
  return first == last ? Json(first) : Json(fmt::format("{}-{}", first, last));
}

// `otherwise` is what holds where the list says nothing.
template <typename T, typename Write>
Json written_ranges(const RangedPolicy<T>& policy, const char* noun, const T& otherwise, Write write) {
  if (policy.ranges.empty()) return write(policy.value);
  Json list = Json::array();
  const auto add = [&](Json numbers, const T& value) {
    Json entry;
    entry[noun] = std::move(numbers);
    entry["value"] = write(value);
    list.push_back(std::move(entry));
  };
  if (policy.value != otherwise) add("all", policy.value);
  for (const auto& [first, last, value] : policy.ranges) add(written_numbers(first, last), value);
  return list;
}

}

Runtime read_runtime(const ConfigNode& node, const std::string& torch) {
  static constexpr RuntimeKind kRuntimes[] = {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp,
      RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3, RuntimeKind::kMegatron, RuntimeKind::kNative};
  static constexpr std::string_view kExpected =
      "fsdp2, fsdp2@2.11, fsdp1, ddp, zero1, zero2, zero3, megatron or native";
  const std::string text = node.as_string();
  const std::size_t at = text.find('@');
  const std::string name = text.substr(0, at);
  const auto* const kind = std::ranges::find_if(kRuntimes, [&](RuntimeKind each) { return name == to_string(each); });
  if (kind == std::end(kRuntimes)) {
    auto names = list_of<std::string>(kRuntimes, [&](const RuntimeKind each) { return to_string(each); });
    throw node.error(quote(text) + " is no runtime", std::string(kExpected), nearest_spelling(name, names));
  }
  Runtime runtime = {.kind = *kind, .version = at == std::string::npos ? "" : text.substr(at + 1), .torch = torch};
  if (at != std::string::npos && !is_version(runtime.version))
    throw node.error(quote(runtime.version) + " is no version", std::string(kExpected));
  return runtime;
}

UnitPlacement read_experts(const ConfigNode& node) {
  return node.as_choice({"own", "block"}) == 0 ? UnitPlacement::kOwn : UnitPlacement::kRoot;
}

RangedPolicy<Reshard> read_reshard_policy(const ConfigNode& node) {
  if (node.is_sequence()) return read_ranges<Reshard>(node, "units", read_reshard);
  return {read_reshard(node), {}};
}

RangedPolicy<bool> read_unshard_in_backward(const ConfigNode& node) {
  if (node.is_sequence()) return read_ranges<bool>(node, "units", read_bool, true);
  return {node.as_bool(), {}};
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
    const auto k = parse_number<std::int64_t>(text.substr(kEvery.size())).value_or(0);
    if (k < 1 || k > plan_limits::kEvery) {
      throw node.error(quote(text) + " names no number of blocks",
          "every-K with K from 1 to " + std::to_string(plan_limits::kEvery) + ", for example every-2");
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
  throw wrong_word(node, "none, full, selective, every-K or a list such as [{layers: 0-3, value: full}]",
      {"none", "full", "selective", "every-2"});
}

// In the order of Loss::Kind; of chunked-, the number follows.
constexpr std::array<std::string_view, 10> kLosses = {"eager", "eager-compute", "compiled", "chunked-", "fused",
    "fused-linear", "tiled-linear", "smoothed", "log-probabilities", "chunked-head-"};

constexpr std::string_view kLiger = "liger";  // fused-linear, of one chunk

Loss read_loss(const ConfigNode& node) {
  static constexpr const char* kExpected =
      "eager, eager-compute, compiled, fused, fused-linear, liger, tiled-linear, smoothed, "
      "log-probabilities, chunked-N or chunked-head-N, for example chunked-8";
  static constexpr std::string_view kChunked = kLosses[at(Loss::Kind::kChunked)];
  static constexpr std::string_view kChunkedHead = kLosses[at(Loss::Kind::kChunkedHead)];
  const std::string_view text = node.text();
  if (text == kLiger) return {Loss::Kind::kFusedLinear, 1};
  const auto word = std::ranges::find(kLosses, text);
  if (word != kLosses.end() && !text.ends_with('-')) return {static_cast<Loss::Kind>(word - kLosses.begin()), 0};
  if (!text.starts_with(kChunked)) {
    throw wrong_word(node, kExpected,
        {"eager", "eager-compute", "compiled", "fused", "fused-linear", "liger", "tiled-linear", "smoothed",
            "log-probabilities", "chunked-8", "chunked-head-8"});
  }
  const bool of_head = text.starts_with(kChunkedHead);
  const auto chunks = parse_number<std::int64_t>(text.substr((of_head ? kChunkedHead : kChunked).size())).value_or(0);
  if (chunks < 2 || chunks > plan_limits::kEvery) {
    throw node.error(quote(text) + " names no number of chunks",
        "chunked-N with N from 2 to " + std::to_string(plan_limits::kEvery));
  }
  return {of_head ? Loss::Kind::kChunkedHead : Loss::Kind::kChunked, chunks};
}

std::int64_t read_forward_prefetch(const ConfigNode& node) {
  if (node.is_scalar() && looks_like_number(node.text())) return node.as_int(0, plan_limits::kPrefetch);
  if (node.text() == "implicit") return Prefetch::kImplicit;
  throw wrong_word(node, "implicit or a number of units from 0 to 1,024, for example 1", {"implicit"});
}

std::optional<DType> read_optional_dtype(const ConfigNode& node) {
  static constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32};
  const std::size_t choice = node.as_choice({"bf16", "fp16", "fp32", "none"});
  if (choice == kDTypes.size()) return std::nullopt;
  return kDTypes[choice];
}

Frozen read_frozen(const ConfigNode& node) {
  static constexpr const char* kExpected =
      "none or a list of embedding, norm, head, tower and numbers of blocks, for example [embedding, 0-15]";
  Frozen frozen;
  if (node.is_scalar() && node.text() == "none") return frozen;
  if (!node.is_sequence()) throw wrong_word(node, kExpected, {"none"});
  if (node.elements().empty()) throw node.error("the list is empty", kExpected, "none");
  for (const ConfigNode& element : node.elements()) {
    const std::string_view text = element.text();
    if (text == "embedding") {
      frozen.embedding = true;
    } else if (text == "norm") {
      frozen.norm = true;
    } else if (text == "head") {
      frozen.head = true;
    } else if (text == "tower") {
      frozen.tower = true;
    } else if (element.is_scalar() && looks_like_number(text)) {
      const auto [first, last] = read_numbers(element);
      frozen.blocks.ranges.push_back({first, last, true});
    } else {
      throw wrong_word(element, "embedding, norm, head, tower or numbers of blocks such as 0-15",
          {"embedding", "norm", "head", "tower"});
    }
  }
  return frozen;
}

// Which of a model's modules they name is checked against the model.
std::vector<std::string> read_lora_targets(const ConfigNode& node) {
  static constexpr const char* kExpected = "all-linear or a list of linear modules, for example [q_proj, v_proj]";
  if (node.is_scalar()) {
    if (node.text() != Lora::kAllLinear) throw wrong_word(node, kExpected, {Lora::kAllLinear});
    return {Lora::kAllLinear};
  }
  if (!node.is_sequence()) throw node.error("this is no list", kExpected);
  std::vector<std::string> targets;
  for (const ConfigNode& element : node.elements()) {
    std::string target = element.as_string();
    if (target.empty() || target == Lora::kAllLinear) throw element.error("this is no module", kExpected);
    if (contains(targets, target)) throw element.error("the module stands twice", kExpected);
    targets.push_back(std::move(target));
  }
  if (targets.empty()) throw node.error("the list is empty", kExpected, Lora::kAllLinear);
  return targets;
}

std::optional<double> read_optional_positive(const ConfigNode& node) {
  if (node.text() == "none") return std::nullopt;
  static constexpr const char* kExpected = "a number above 0, for example 1.0, or none";
  if (!node.is_scalar() || !looks_like_number(node.text())) throw wrong_word(node, kExpected, {"none"});
  const double value = node.as_double();
  if (!(value > 0)) throw node.error(quote(node.text()) + " is out of range", kExpected);
  return value;
}

double read_decay(const ConfigNode& node) {
  const double value = node.as_double(0, 1);
  if (value < 1) return value;
  throw node.error(quote(node.text()) + " is out of range", "a number from 0 to below 1, for example 0.95");
}

double read_epsilon(const ConfigNode& node) {
  const double value = node.as_double(0, 1);
  if (value >= std::numeric_limits<float>::min()) return value;  // the update is in fp32
  throw node.error(
      quote(node.text()) + " is out of range", "a number from 1.2e-38, fp32's least, to 1, for example 1e-8");
}

std::optional<std::int64_t> read_optional_steps(const ConfigNode& node) {
  if (node.text() == "none") return std::nullopt;
  if (!node.is_scalar() || !looks_like_number(node.text()))
    throw wrong_word(node, "a number of steps, for example 1000, or none", {"none"});
  return node.as_int(1, plan_limits::kSteps);
}

std::optional<std::int64_t> read_rank(const ConfigNode& node) {
  if (node.text() == "fullest") return std::nullopt;
  if (!node.is_scalar() || !looks_like_number(node.text())) throw wrong_word(node, "a rank, or fullest", {"fullest"});
  return node.as_int(0, plan_limits::kMesh - 1);
}

std::string read_name(const ConfigNode& node, const char* expected) {
  std::string text = node.is_null() ? "" : node.as_string();
  if (text.empty()) throw node.error("nothing stands here", expected);
  return text;
}

AllocatorSettings read_allocator(const ConfigNode& node) {
  const std::string text = node.as_string();
  if (text == "default") return {};
  try {
    return parse_alloc_conf(text);
  } catch (const Error& error) {
    throw node.error(error.what(), "PYTORCH_ALLOC_CONF, for example expandable_segments:True");
  }
}

Json written(const Runtime& runtime) {
  const bool is_plain_native =
      runtime.kind == RuntimeKind::kNative && runtime.version == newest_version(RuntimeKind::kNative);
  const char* name = to_string(runtime.kind);
  return is_plain_native ? name : fmt::format("{}@{}", name, runtime.version);
}

Json written(const Loss& loss) {
  std::string word(kLosses[at(loss.kind)]);
  if (loss.chunks == 1) return kLiger;
  return loss.chunks > 0 ? word + std::to_string(loss.chunks) : word;
}

Json written_experts(UnitPlacement placement) { return placement == UnitPlacement::kOwn ? "own" : "block"; }

Json written(const RangedPolicy<Reshard>& policy) {
  return written_ranges(
      policy, "units", Reshard{},
      [](const Reshard& reshard) {
        if (reshard.kind == Reshard::Kind::kGroup) return Json(reshard.group);
        return Json(reshard.kind == Reshard::Kind::kAlways ? "always" : "never");
      });
}

Json written(const RangedPolicy<Recompute>& policy) {
  if (const auto k = every_k(policy)) return fmt::format("every-{}", *k);
  return written_ranges(policy, "layers", Recompute{}, [](Recompute recompute) { return Json(to_string(recompute)); });
}

Json written_unshard_in_backward(const RangedPolicy<bool>& policy) {
  return written_ranges(
      policy, "units", true, [](bool value) { return Json(value); });
}

Json written(const std::optional<DType>& dtype) { return dtype ? to_string(*dtype) : "none"; }

Json written(const std::optional<double>& number) { return number ? Json(*number) : Json("none"); }

Json written(const std::optional<std::int64_t>& steps) { return steps ? Json(*steps) : Json("none"); }

Json written_lora_targets(const std::vector<std::string>& targets) {
  if (targets.size() == 1 && targets.front() == Lora::kAllLinear) return targets.front();
  return targets;
}

void read_saved_modules(const ConfigNode& node, Lora& lora) {
  static constexpr const char* kExpected = "none, or a list of embedding and head";
  if (node.is_scalar() && node.text() == "none") return;
  if (!node.is_sequence()) throw node.error("this is no list", kExpected);
  for (const ConfigNode& element : node.elements())
    (element.as_choice({"embedding", "head"}) == 0 ? lora.trains_embedding : lora.trains_head) = true;
}

Json written_saved_modules(const Lora& lora) {
  Json list = Json::array();
  if (lora.trains_embedding) list.push_back("embedding");
  if (lora.trains_head) list.push_back("head");
  return list.empty() ? Json("none") : list;
}

Json written(const Frozen& frozen) {
  if (!frozen.any()) return "none";
  Json list = Json::array();
  if (frozen.embedding) list.push_back("embedding");
  for (const auto& [first, last, value] : frozen.blocks.ranges)
    if (value) list.push_back(written_numbers(first, last));
  if (frozen.norm) list.push_back("norm");
  if (frozen.head) list.push_back("head");
  if (frozen.tower) list.push_back("tower");
  return list;
}

Json written(const AllocatorSettings& settings) {
  const std::string text = alloc_conf(settings);
  return text.empty() ? "default" : text;
}

}
