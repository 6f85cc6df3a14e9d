// A stack's file is called as the stack is, and its line of runtimes says whom it is for (tests
// hold both): so what nobody asked for is not read, which takes longer than a small forecast.
#include "sim/spec/plan_stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <span>

#include "sim/base/embedded.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {

std::span<const EmbeddedFile> stack_files();

namespace {

bool holds(const StackKey& key, const Plan& plan) {
  return std::all_of(key.when.begin(), key.when.end(), [&](const auto& each) {
    const Json word = find_plan_key(each.first)->write(plan);
    return std::any_of(each.second.begin(), each.second.end(),
                       [&](const std::string& wanted) { return word == Json(wanted); });
  });
}

// A source may stand for several keys in a row.
TrainingStack read_file(const EmbeddedFile& file) {
  static constexpr std::string_view kNames[] = {"name", "description", "runtimes", "keys"};
  static constexpr std::array kRuntimes = {
      RuntimeKind::kFsdp2,    RuntimeKind::kNative, RuntimeKind::kFsdp1, RuntimeKind::kDdp,
      RuntimeKind::kMegatron, RuntimeKind::kZero1,  RuntimeKind::kZero2, RuntimeKind::kZero3};
  const ConfigNode root = parse_yaml(file.content, file.path);
  root.allow_only(kNames);
  TrainingStack stack;
  stack.name = root.at("name").as_string();
  stack.description = root.at("description").as_string();
  for (const ConfigNode& runtime : root.at("runtimes").elements()) {
    stack.runtimes.push_back(read_word(runtime, kRuntimes));
  }
  for (const ConfigNode& group : root.at("keys").elements()) {
    static constexpr std::string_view kParts[] = {"source", "when", "set"};
    group.allow_only(kParts);
    const std::string source = group.at("source").as_string();
    decltype(StackKey::when) when;
    if (const ConfigNode* node = group.find("when")) {
      for (const ConfigItem& item : node->items()) {
        if (find_plan_key(item.key) == nullptr) throw item.value.error("no key of a plan");
        std::vector<std::string>& words = when.emplace_back().second;
        when.back().first = item.key;
        for (const ConfigNode& word : item.value.elements()) words.push_back(word.as_string());
      }
    }
    for (const ConfigItem& item : group.at("set").items()) {
      if (find_plan_key(item.key) == nullptr)
        throw item.value.error("no key of a plan", "dotted paths");
      stack.keys.push_back({item.key, item.value, source, when});
    }
  }
  return stack;
}

// "sim/spec/stacks/fms_fsdp.yaml" -> "fms_fsdp"
std::string_view name_of(const EmbeddedFile& file) {
  const std::size_t begin = file.path.rfind('/') + 1;
  return file.path.substr(begin, file.path.rfind('.') - begin);
}

bool trains_with(const EmbeddedFile& file, RuntimeKind runtime) {
  constexpr std::string_view kKey = "\nruntimes:";
  const std::string_view text = file.content;
  const std::size_t begin = text.find(kKey) + kKey.size();
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  return line.find(to_string(runtime)) != std::string_view::npos;
}

class StackFile {
 public:
  explicit StackFile(const EmbeddedFile& file) : file_(file) {}
  const EmbeddedFile& file() const { return file_; }
  const TrainingStack& stack() {
    std::call_once(is_read_, [&] { stack_ = read_file(file_); });
    return stack_;
  }

 private:
  const EmbeddedFile& file_;
  std::once_flag is_read_;
  TrainingStack stack_;
};

std::deque<StackFile>& files() {
  static std::deque<StackFile> all(stack_files().begin(), stack_files().end());
  return all;
}

}  // namespace

std::vector<const TrainingStack*> training_stacks() {
  std::vector<const TrainingStack*> stacks;
  for (StackFile& each : files()) stacks.push_back(&each.stack());
  return stacks;
}

std::vector<const TrainingStack*> stacks_of(RuntimeKind runtime) {
  std::vector<const TrainingStack*> stacks;
  for (StackFile& each : files()) {
    if (!trains_with(each.file(), runtime)) continue;
    const std::vector<RuntimeKind>& all = each.stack().runtimes;
    if (std::find(all.begin(), all.end(), runtime) != all.end()) stacks.push_back(&each.stack());
  }
  return stacks;
}

const TrainingStack* find_stack(std::string_view name) {
  for (StackFile& each : files()) {
    if (name_of(each.file()) == name) return &each.stack();
  }
  return nullptr;
}

std::string read_stack(const ConfigNode& node) {
  std::string name = node.as_string();
  if (name == "none") return "";
  if (find_stack(name) != nullptr) return name;
  std::vector<std::string> names = {"none"};
  for (const TrainingStack* stack : training_stacks()) names.push_back(stack->name);
  throw node.error(quote(name) + " is no stack", fmt::format("one of {}", fmt::join(names, ", ")),
                   nearest_spelling(name, names));
}

PlanDocument with_stack(PlanDocument document) {
  const TrainingStack* stack = find_stack(document.stack);
  if (stack == nullptr) return document;
  for (const StackKey& each : stack->keys) {
    const PlanKey& key = *find_plan_key(each.path);
    if (document.has(each.path) || !holds(each, document.plan)) continue;
    if (!key.belongs_to(document.plan.runtime.kind)) continue;
    key.read(key, each.value, document);
    document.given.emplace(each.path, GivenKey{PlanLayer::kStack, each.value.location()});
  }
  return document;
}

}  // namespace foreshard
