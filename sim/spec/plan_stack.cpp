#include "sim/spec/plan_stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "sim/base/embedded.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {

std::span<const EmbeddedFile> stack_files();

namespace {

const PlanKey* find_key(std::string_view path) {
  for (const PlanKey& key : plan_key_table()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

// A source may stand for several keys in a row.
TrainingStack read_file(const EmbeddedFile& file) {
  static constexpr std::string_view kNames[] = {"name", "description", "runtimes", "keys"};
  static constexpr std::array kRuntimes = {
      RuntimeKind::kFsdp2, RuntimeKind::kNative, RuntimeKind::kFsdp1, RuntimeKind::kDdp,
      RuntimeKind::kZero1, RuntimeKind::kZero2,  RuntimeKind::kZero3};
  const ConfigNode root = parse_yaml(file.content, file.path);
  root.allow_only(kNames);
  TrainingStack stack;
  stack.name = root.at("name").as_string();
  stack.description = root.at("description").as_string();
  for (const ConfigNode& runtime : root.at("runtimes").elements()) {
    stack.runtimes.push_back(read_word(runtime, kRuntimes));
  }
  for (const ConfigNode& group : root.at("keys").elements()) {
    static constexpr std::string_view kParts[] = {"source", "set"};
    group.allow_only(kParts);
    const std::string source = group.at("source").as_string();
    for (const ConfigItem& item : group.at("set").items()) {
      if (find_key(item.key) == nullptr) throw item.value.error("no key of a plan", "dotted paths");
      stack.keys.push_back({item.key, item.value, source});
    }
  }
  return stack;
}

}  // namespace

const std::vector<TrainingStack>& training_stacks() {
  static const std::vector<TrainingStack> stacks = [] {
    std::vector<TrainingStack> read;
    for (const EmbeddedFile& file : stack_files()) read.push_back(read_file(file));
    return read;
  }();
  return stacks;
}

const TrainingStack* find_stack(std::string_view name) {
  const std::vector<TrainingStack>& all = training_stacks();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const TrainingStack& stack) { return stack.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string read_stack(const ConfigNode& node) {
  const std::string name = node.as_string();
  if (name == "none") return "";
  if (find_stack(name) != nullptr) return name;
  std::vector<std::string> names = {"none"};
  for (const TrainingStack& stack : training_stacks()) names.push_back(stack.name);
  throw node.error(quote(name) + " is no stack", fmt::format("one of {}", fmt::join(names, ", ")),
                   nearest_spelling(name, names));
}

PlanDocument with_stack(PlanDocument document) {
  const TrainingStack* stack = find_stack(document.stack);
  if (stack == nullptr) return document;
  for (const StackKey& each : stack->keys) {
    const PlanKey& key = *find_key(each.path);
    if (document.has(each.path)) continue;
    if (key.belongs && !key.belongs(document.plan.runtime.kind)) continue;
    key.read(each.value, document);
    document.given.emplace(each.path, GivenKey{PlanLayer::kStack, each.value.location()});
  }
  return document;
}

}  // namespace foreshard
