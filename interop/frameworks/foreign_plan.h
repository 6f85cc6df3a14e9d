// A plan as somebody else's file says it: keys of our plan with the values that the file gives
// them, and a ledger of everything in the file.
//
// Readers take what the file says about the step and nothing else; what nobody says is left to the
// plan's own defaults. The way back (interop/export_*.h) writes a file and reads it again: what
// then differs from the plan is what the format cannot hold, and the ledger of the export says so.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/export/export_ledger.h"
#include "interop/frameworks/import_ledger.h"
#include "sim/base/config.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

struct ForeignPlan {
  std::string format;  // "TorchTitan", "DeepSpeed", "Accelerate"
  // Dotted keys of a plan with their values as YAML on one line, in the order of the file's reading.
  std::vector<std::pair<std::string, std::string>> keys;
  std::set<std::string, std::less<>> assumed;  // of them, those that no line of the file says
  // Processes that the file counts, which its mesh follows from; 0: it counts none.
  std::int64_t ranks = 0;
  ImportLedger ledger;

  // "" where it says nothing of the key.
  std::string value(std::string_view key) const;
  bool has(std::string_view key) const;
  void set(std::string_view key, const std::string& value);
};

// What settings.yaml says of a trainer, by section.
ConfigNode settings_of(std::string_view trainer);

// Looks keys up by dotted path and writes the ledger. Errors are ConfigErrors at the value.
class ForeignReader {
 public:
  ForeignReader(ConfigNode root, ForeignPlan& plan, std::string_view trainer)
      : root_(std::move(root)), plan_(plan), settings_(settings_of(trainer)) {}

  // The rows of a section of settings.yaml.
  void take(std::string_view section);
  // A key of the plan that takes what the file has as it is.
  void take_key(const std::string& path, std::string_view name);

  // nullptr where absent, null or "auto" (which the ledger notes once).
  const ConfigNode* find(std::string_view path);

  // Whether it is "auto", which somebody else fills in.
  bool is_auto(std::string_view path);

  // The file's value, which is now `key: value` of the plan.
  void map(std::string_view path, std::string_view key, const std::string& value);
  // Taken though the file does not say so.
  void assume(std::string_view key, const std::string& value, const std::string& why);
  void ignore(std::string_view path, const std::string& why);
  void unsupported(std::string_view path, const std::string& why);

  // Whole numbers, flags, positive numbers and words straight to a key; false where absent.
  bool integer(std::string_view path, std::string_view key, std::int64_t least = 1);
  bool flag(std::string_view path, std::string_view key, const char* yes = "true", const char* no = "false");
  bool number(std::string_view path, std::string_view key);
  // The norm that gradients are clipped to; 0 is no clipping.
  bool clipping(std::string_view path);

  // Every leaf that nothing asked for: "says nothing of a step" where its path begins with one of
  // the trainer's quiet ones, else unknown, with the nearest of the paths that were asked for.
  void finish();

 private:
  const ConfigNode* at(std::string_view path);
  void take_row(const std::string& path, const ConfigNode& row);
  void take_word(const std::string& path, const ConfigNode& row, const ConfigNode& word);
  void note(Mapping mapping, std::string_view path, const std::string& to, const std::string& why);

  ConfigNode root_;
  ForeignPlan& plan_;
  ConfigNode settings_;
  std::vector<std::string> asked_;  // paths
  std::set<std::string> told_;      // of them, those with an entry
};

// true or false as PyYAML reads it: yes, on and capitals, too.
bool flag_of(const ConfigNode& node);

// Neither "", [] nor false.
bool says_something(const ConfigNode& node);

// A whole true, false or number as text; "auto" is none.
std::string shown(const ConfigNode& node);

// What two files of one job say: `first` where both say a key, which `second`'s ledger tells.
ForeignPlan joined(ForeignPlan first, ForeignPlan second);

// As a plan file: nested keys on a line each group. `beside`: keys that the file lacks ("model",
// "cluster") with their values.
std::string plan_text(const ForeignPlan& plan, const std::vector<std::pair<std::string, std::string>>& beside);

// `base` with every key of the foreign plan. Throws ConfigError where a value is none of the key's.
PlanDocument document_of(PlanDocument base, const ForeignPlan& plan);

// --- the way back ---

// What a plan is written for.
struct ExportJob {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
};

// The first of `texts` that `read` brings back with the fewest differences from the plan, and the
// ledger: mapped keys, then a line for every key of the plan that it does not hold.
Exported exported_as(const ExportJob& job, const std::vector<std::string>& texts,
    const std::function<ForeignPlan(const std::string&)>& read);

}
