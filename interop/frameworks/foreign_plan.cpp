#include "interop/frameworks/foreign_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {

std::span<const EmbeddedFile> trainer_setting_files();

ConfigNode settings_of(std::string_view trainer) {
  static constexpr std::string_view kPath = "interop/frameworks/settings.yaml";
  static const ConfigNode all = parse_yaml(file_named(kPath, trainer_setting_files()).content, kPath);
  return all.at(trainer);
}

std::string ForeignPlan::value(std::string_view key) const {
  for (const auto& [name, text] : keys)
    if (name == key) return text;
  return "";
}

bool ForeignPlan::has(std::string_view key) const {
  return std::ranges::any_of(
      keys, [&](const auto& k) { return k.first == key; });
}

void ForeignPlan::set(std::string_view key, const std::string& value) {
  const auto known = std::ranges::find_if(keys, [&](const auto& k) { return k.first == key; });
  if (known == keys.end()) keys.emplace_back(key, value);
  else known->second = value;
}

namespace {

// PyYAML's YAML 1.1 has underscores between digits.
std::int64_t integer_of(const ConfigNode& node, std::int64_t least) {
  std::string digits(node.text());
  if (node.is_quoted() || std::erase(digits, '_') == 0) return node.as_int(least);
  return parse_yaml(digits, node.location().file).as_int(least);
}

}

bool flag_of(const ConfigNode& node) {
  const std::string text = lower(std::string(node.text()));
  if (!node.is_quoted() && (text == "true" || text == "yes" || text == "on")) return true;
  if (!node.is_quoted() && (text == "false" || text == "no" || text == "off")) return false;
  return node.as_bool();
}

bool says_something(const ConfigNode& node) {
  if (node.is_sequence()) return !node.elements().empty();
  const std::string word = node.is_scalar() ? lower(std::string(node.text())) : "something";
  return !word.empty() && word != "false" && word != "none";
}

std::string shown(const ConfigNode& node) {
  switch (node.kind()) {
    case ConfigNode::Kind::kNull: return "null";
    case ConfigNode::Kind::kScalar: return std::string(node.text().substr(0, 60));
    case ConfigNode::Kind::kSequence: return "[...]";
    case ConfigNode::Kind::kMapping: return "{...}";
  }
  return "";
}

// --- reading ---

const ConfigNode* ForeignReader::at(std::string_view path) {
  ConfigNode node = root_;
  if (node.is_mapping() && node.has(path)) return node.find(path);  // (a command's override)
  while (true) {
    const std::size_t dot = path.find('.');
    if (!node.is_mapping()) return nullptr;
    const ConfigNode* next = node.find(path.substr(0, dot));
    if (next == nullptr) return nullptr;
    if (dot == std::string_view::npos) return next;
    node = *next;
    path.remove_prefix(dot + 1);
  }
}

const ConfigNode* ForeignReader::find(std::string_view path) {
  asked_.emplace_back(path);
  const ConfigNode* node = at(path);
  if (node == nullptr || node->is_null()) return nullptr;
  if (is_auto(path)) {
    if (!told_.contains(std::string(path))) note(Mapping::kDefaulted, path, "", "\"auto\": the trainer fills it in");
    return nullptr;
  }
  return node;
}

bool ForeignReader::is_auto(std::string_view path) {
  const ConfigNode* node = at(path);
  return node != nullptr && node->is_scalar() && node->text() == "auto";
}

void ForeignReader::note(Mapping mapping, std::string_view path, const std::string& to, const std::string& why) {
  told_.emplace(path);
  const ConfigNode* node = at(path);
  ImportEntry entry{mapping, std::string(path), to, why, root_.location().file, 0};
  if (node != nullptr) {
    entry.what += ": " + shown(*node);
    entry.line = node->key_location().line;
  }
  plan_.ledger.push_back(std::move(entry));
}

void ForeignReader::map(std::string_view path, std::string_view key, const std::string& value) {
  note(Mapping::kMapped, path, fmt::format("{}: {}", key, value), "");
  plan_.set(key, value);
  plan_.assumed.erase(std::string(key));
}

void ForeignReader::assume(std::string_view key, const std::string& value, const std::string& why) {
  plan_.ledger.push_back({Mapping::kDefaulted, fmt::format("{}: {}", key, value), "", why, root_.location().file, 0});
  plan_.set(key, value);
  plan_.assumed.emplace(key);
}

void ForeignReader::ignore(std::string_view path, const std::string& why) {
  asked_.emplace_back(path);
  if (at(path) != nullptr) note(Mapping::kIgnored, path, "", why);
}

void ForeignReader::unsupported(std::string_view path, const std::string& why) {
  asked_.emplace_back(path);
  if (at(path) != nullptr) note(Mapping::kUnsupported, path, "", why);
}

bool ForeignReader::integer(std::string_view path, std::string_view key, std::int64_t least) {
  const ConfigNode* node = find(path);
  if (node != nullptr) map(path, key, fmt::format("{}", integer_of(*node, least)));
  return node != nullptr;
}

bool ForeignReader::flag(std::string_view path, std::string_view key, const char* yes, const char* no) {
  const ConfigNode* node = find(path);
  if (node != nullptr) map(path, key, flag_of(*node) ? yes : no);
  return node != nullptr;
}

bool ForeignReader::number(std::string_view path, std::string_view key) {
  const ConfigNode* node = find(path);
  if (node != nullptr) map(path, key, yaml_value(Json(node->as_double())));
  return node != nullptr;
}

bool ForeignReader::clipping(std::string_view path) {
  const ConfigNode* node = find(path);
  if (node == nullptr || node->is_mapping()) return false;
  const double norm = node->as_double(0);
  map(path, "optimizer.clip_norm", norm > 0 ? yaml_value(Json(norm)) : "none");
  return true;
}

void ForeignReader::take(std::string_view section) {
  const ConfigNode rows = settings_.at(section);
  for (const ConfigItem& row : rows.items())
    for (const std::string& path : parts_of(row.key, " ")) take_row(path, row.value);
}

void ForeignReader::take_key(const std::string& path, std::string_view name) {
  using Kind = PlanKeyType::Kind;
  const PlanKey* key = find_plan_key(name);
  FORESHARD_CHECK(key != nullptr, path);
  if (key->type.kind == Kind::kFlag) flag(path, key->path);
  if (key->type.kind == Kind::kInteger) integer(path, key->path, key->type.least);
  if (key->type.kind == Kind::kNumber) number(path, key->path);
}

void ForeignReader::take_row(const std::string& path, const ConfigNode& row) {
  if (row.is_scalar()) return take_key(path, row.text());
  if (const ConfigNode* why = row.find("ignored")) return ignore(path, why->as_string());
  const ConfigNode* node = find(path);
  if (node == nullptr) return;
  if (const ConfigNode* why = row.find("unsupported")) {
    const ConfigNode* above = row.find("above");
    const bool is_on = says_something(*node) && (above == nullptr || node->as_int() > above->as_int());
    return is_on ? unsupported(path, why->as_string()) : ignore(path, "not switched on");
  }
  if (!row.has("words")) {
    const std::string key = row.at("key").as_string();
    const ConfigNode* above = row.find("above");
    if (!says_something(*node)) return;
    if (above != nullptr && node->as_int(std::min<std::int64_t>(1, above->as_int())) <= above->as_int()) return;
    integer(path, key, above != nullptr ? 1 : row.at("least").as_int());
    return;
  }
  if (!node->is_sequence()) return take_word(path, row, *node);
  for (const ConfigNode& each : node->elements()) take_word(path, row, each);
}

void ForeignReader::take_word(const std::string& path, const ConfigNode& row, const ConfigNode& word) {
  const ConfigNode words = row.at("words");
  const std::vector<std::string> names = words.keys();
  const std::vector<std::string_view> theirs(names.begin(), names.end());
  const bool is_known = contains(theirs, word.text()) || contains(theirs, lower(std::string(word.text())));
  if (const ConfigNode* others = row.find("others"); others != nullptr && !is_known)
    return unsupported(path, others->as_string());
  const std::size_t which =
      names.front() == "true" ? (flag_of(word) ? 0 : 1) : word.as_choice(std::span<const std::string_view>(theirs));
  const ConfigNode& ours = words.items()[which].value;
  if (ours.is_scalar()) return map(path, row.at("key").as_string(), ours.as_string());
  if (const ConfigNode* why = ours.find("ignored")) return ignore(path, why->as_string());
  for (const ConfigItem& each : ours.items()) map(path, each.key, each.value.as_string());
}

void ForeignReader::finish() {
  const std::vector<std::string> quiet = parts_of(settings_.at("quiet").as_string(), " ");
  constexpr int kMostUnknown = 1'000;  // each is compared with all that are known
  int unknown = 0;
  const auto begins = [](std::string_view path, std::string_view with) {
    return path == with || (path.starts_with(with) && path.size() > with.size() && path[with.size()] == '.');
  };
  std::vector<std::string> known = asked_;
  append(known, quiet);
  const std::function<void(const ConfigNode&, const std::string&)> walk = [&](const ConfigNode& node,
                                                                              const std::string& above) {
    for (const ConfigItem& item : node.items()) {
      const std::string path = above.empty() ? item.key : above + "." + item.key;
      const auto is_in = [&](const std::vector<std::string>& list) { return contains(list, path); };
      if (told_.contains(path)) continue;
      const bool is_quiet = std::ranges::any_of(quiet, [&](const std::string& q) {
        return q.ends_with('*') ? path.starts_with(q.substr(0, q.size() - 1)) : begins(path, q);
      });
      if (is_quiet) {
        note(Mapping::kIgnored, path, "", "says nothing of a step's time or memory");
      } else if (is_in(asked_)) {
        note(Mapping::kIgnored, path, "", "as it is by default");
      } else if (item.value.is_mapping() &&
                 std::ranges::any_of(known, [&](const auto& k) { return begins(k, path); })) {
        walk(item.value, path);
      } else {
        if (++unknown > kMostUnknown)
          throw item.value.error(
              "the file has too many keys that nobody knows", fmt::format("the settings of {}", plan_.format));
        const std::string near = nearest_spelling(path, known);
        note(Mapping::kIgnored, path, "",
            near.empty() ? "unknown key" : fmt::format("unknown key; did you mean {}?", near));
      }
    }
  };
  if (root_.is_mapping()) walk(root_, "");
}

ForeignPlan joined(ForeignPlan first, ForeignPlan second) {
  if (!first.has("mesh.shard") && !first.has("mesh.replicate")) first.ranks = second.ranks;
  for (auto& [key, value] : second.keys) {
    const auto said = std::ranges::find(first.keys, key, &std::pair<std::string, std::string>::first);
    const bool is_assumed = second.assumed.contains(key);
    if (said == first.keys.end()) {
      if (is_assumed) first.assumed.insert(key);
      first.keys.emplace_back(key, std::move(value));
      continue;
    }
    if (said->second == value || is_assumed) continue;
    if (first.assumed.erase(key) > 0) {
      said->second = std::move(value);
      continue;
    }
    const auto entry = std::ranges::find_if(
        second.ledger, [&, name = key](const auto& each) { return each.to.starts_with(name + ": "); });
    if (entry == second.ledger.end()) continue;
    entry->mapping = Mapping::kIgnored;
    entry->why = fmt::format("{}'s settings say {}", first.format, said->second);
  }
  append(first.ledger, second.ledger);
  std::erase_if(first.ledger, [&](const ImportEntry& each) {  // assumed, and said by the other
    return each.mapping == Mapping::kDefaulted && std::ranges::any_of(first.keys, [&](const auto& key) {
      return each.what.starts_with(key.first + ": ") && each.what != fmt::format("{}: {}", key.first, key.second);
    });
  });
  return first;
}

std::string plan_text(const ForeignPlan& plan, const std::vector<std::pair<std::string, std::string>>& beside) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> groups;
  const auto add = [&](const std::string& key, const std::string& value) {
    const std::size_t dot = key.find('.');
    const std::string top = key.substr(0, dot);
    if (!groups.contains(top)) order.push_back(top);
    groups[top].emplace_back(dot == std::string::npos ? "" : key.substr(dot + 1), value);
  };
  for (const auto& [key, value] : beside) add(key, value);
  for (const auto& [key, value] : plan.keys) add(key, value);
  std::string text;
  for (const std::string& top : order) {
    const auto& members = groups[top];
    if (members.size() == 1 && members.front().first.empty()) {
      text += fmt::format("{}: {}\n", top, members.front().second);
      continue;
    }
    text += top + ": {";
    for (std::size_t i = 0; i < members.size(); ++i)
      text += fmt::format("{}{}: {}", i == 0 ? "" : ", ", members[i].first, members[i].second);
    text += "}\n";
  }
  return text;
}

PlanDocument document_of(PlanDocument base, const ForeignPlan& plan) {
  for (const auto& [key, value] : plan.keys) {
    try {
      base = apply_set(std::move(base), fmt::format("{}={}", key, value));
    } catch (const ConfigError& error) {
      // Said of the trainer's own key and line.
      const auto entry = std::ranges::find_if(
          plan.ledger, [&, name = key](const auto& each) { return each.to.starts_with(name + ": "); });
      if (entry == plan.ledger.end()) throw;
      const std::string_view text = error.what();
      const std::string_view reason = text.substr(std::min(text.find(": "), text.size() - 2) + 2);
      throw ConfigError({entry->file, entry->line, 0, ""}, fmt::format("{}: {}", entry->what, reason));
    }
  }
  return base;
}

// --- the way back ---

namespace {

struct LostKey {
  std::string key, is, back;
};

std::vector<LostKey> differences(const Plan& plan, const Plan& back) {
  std::vector<LostKey> list;
  for (const PlanKey& key : plan_key_table()) {
    if (key.path == "model" || key.path == "cluster") continue;
    if (!key.belongs_to(plan.runtime.kind)) continue;
    const std::string is = yaml_value(key.write(plan)), was = yaml_value(key.write(back));
    if (is != was) list.push_back({std::string(key.path), is, was});
  }
  return list;
}

struct Reading {
  ForeignPlan foreign;
  std::vector<LostKey> lost;
  std::string failure;  // why it cannot be completed; "" where it can
};

Reading read_back(const ExportJob& job, ForeignPlan foreign) {
  Reading reading{std::move(foreign), {}, ""};
  PlanDocument base;
  base.plan.model = job.plan.model;
  base.plan.cluster = job.plan.cluster;
  base.given["model"] = base.given["cluster"] = {PlanLayer::kSet, {}};
  try {
    const Plan back = resolve(document_of(std::move(base), reading.foreign), job.model, job.cluster).plan;
    reading.lost = differences(job.plan, back);
  } catch (const Error& error) {
    reading.failure = error.what();
  }
  return reading;
}

}

Exported exported_as(const ExportJob& job, const std::vector<std::string>& texts,
    const std::function<ForeignPlan(const std::string&)>& read) {
  std::optional<Reading> best;
  std::string text;
  for (const std::string& candidate : texts) {
    Reading reading = read_back(job, read(candidate));
    const auto rank = [](const Reading& r) { return std::pair(!r.failure.empty(), r.lost.size()); };
    if (best && rank(*best) <= rank(reading)) continue;
    best = std::move(reading);
    text = candidate;
  }
  FORESHARD_CHECK(best.has_value(), "no text to export");
  ExportLedger ledger;
  for (const ImportEntry& entry : best->foreign.ledger)
    if (entry.mapping == Mapping::kMapped) ledger.mapped(entry.to, entry.what);
  if (!best->failure.empty()) ledger.unsupported("plan", "the file does not read back as a plan: " + best->failure);
  for (const LostKey& lost : best->lost) {
    ledger.unsupported(fmt::format("{}: {}", lost.key, lost.is),
        fmt::format("{} has no key for it here; read back it is {}", best->foreign.format, lost.back));
  }
  return {text, ledger.take()};
}

}
