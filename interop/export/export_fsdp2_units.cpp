// Units of the exported script: which modules fully_shard is called with, in the order of the
// plan's EventGraph, and what of each is resharded, unsharded or recomputed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "interop/export/export_fsdp2_parts.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

std::string word_of(const Reshard& reshard) {
  if (reshard.kind == Reshard::Kind::kGroup) return fmt::format("{}", reshard.group);
  return python(reshard.kind == Reshard::Kind::kAlways);
}

// "[True] * 31 + [False]"
template <typename T, typename Word>
std::string python_list(const std::vector<T>& values, Word word) {
  std::string text;
  for (std::size_t at = 0; at < values.size();) {
    std::size_t end = at;
    while (end < values.size() && word(values[end]) == word(values[at])) ++end;
    text += fmt::format("{}[{}]", text.empty() ? "" : " + ", word(values[at]));
    if (end - at > 1) text += fmt::format(" * {}", end - at);
    at = end;
  }
  return text.empty() ? "[]" : text;
}

// Modules of a unit that is named as the graph names it.
std::string unit_entries(const ScriptJob& job) {
  const std::string embedding = [&] {
    std::vector<std::string> modules = {fmt::format("model.{}", job.names.embedding)};
    const bool whole = !job.plan.units.table_alone;
    if (whole && job.dims.positions == Positions::kLearned) {
      modules.push_back(fmt::format("model.{}", job.names.positions));
    }
    if (whole && job.dims.embedding_norm) {
      modules.push_back(fmt::format("model.{}", job.names.embedding_norm));
    }
    return fmt::format("{}", fmt::join(modules, ", "));
  }();
  const std::string norm = fmt::format("model.{}", job.names.final_norm);
  const std::string head = fmt::format("model.{}", job.names.head);
  const Units& units = job.plan.units;
  std::string text;
  if (units.embedding == UnitPlacement::kWithHead && units.head == UnitPlacement::kOwn) {
    text += fmt::format("    units.append([{}, {}])\n", embedding, head);
  } else if (units.embedding == UnitPlacement::kWithHead) {
    text += fmt::format("    units.append([{}, {}, {}])\n", embedding, norm, head);
  } else if (units.embedding == UnitPlacement::kOwn) {
    text += fmt::format("    units.append([{}])\n", embedding);
  }
  if (units.blocks == UnitPlacement::kOwn) {
    const std::int64_t per = units.layers_per_unit;
    text += fmt::format("    blocks = model.{}\n", job.names.blocks);
    text += per == 1 ? "    for block in blocks:\n        units.append([block])\n"
                     : fmt::format(
                           "    for first in range(0, LAYERS, {0}):\n"
                           "        units.append(list(blocks[first : first + {0}]))\n",
                           per);
  }
  if (units.head == UnitPlacement::kWithNorm && units.embedding != UnitPlacement::kWithHead) {
    text += fmt::format("    units.append([{}, {}])\n", norm, head);
  } else if (units.head == UnitPlacement::kOwn && units.embedding != UnitPlacement::kWithHead) {
    text += fmt::format("    units.append([{}])\n", head);
  } else if (units.head == UnitPlacement::kNorm) {
    text += fmt::format("    units.append([{}])\n", norm);
  }
  return text;
}

// Of the unit at this place of the graph: which are nested, which is the root.
bool is_nested(const ScriptJob& job, const Unit& unit) {
  return splits_experts(job) && unit.name.find(job.names.experts) != std::string::npos;
}

// An embedding's backward reads no parameters. What others read would be gone.
void check_kept(const Unit& unit) {
  if (unit.name == "embedding" || unit.reshard.kind == Reshard::Kind::kNever) return;
  refuse_script(
      "unshard_in_backward",
      fmt::format("backward of {} reads its parameters, which reshard_after_forward freed: "
                  "PyTorch fails (setStorage)",
                  unit.name),
      "unshard_in_backward: true, or reshard_after_forward: never there");
}

}  // namespace

bool splits_experts(const ScriptJob& job) {
  return job.plan.units.experts == UnitPlacement::kOwn && job.dims.moe.experts > 0;
}

std::string python_units(const ScriptJob& job) {
  std::vector<Reshard> reshard, nested_reshard;
  std::vector<bool> unshard;
  std::string root = "None";
  std::string table;
  const bool rooted = has_root_unit(job.plan, job.model);
  for (std::size_t u = 0; u < job.graph.units.size(); ++u) {
    const Unit& unit = job.graph.units[u];
    const auto number = static_cast<std::int64_t>(u);
    table += fmt::format("    (\"{}\", {}, {}),\n", unit.name, unit.numel, unit.parameters);
    if (rooted && u == 0) {
      const auto& ranges = job.plan.reshard_after_forward.ranges;
      const bool named =
          std::ranges::any_of(ranges, [](const auto& r) { return r.first <= 0 && 0 <= r.last; });
      if (named) root = word_of(job.plan.reshard_after_forward.at(0));
      continue;
    }
    if (!job.plan.unshard_in_backward.at(number)) check_kept(unit);
    (is_nested(job, unit) ? nested_reshard : reshard).push_back(unit.reshard);
    if (!is_nested(job, unit)) unshard.push_back(job.plan.unshard_in_backward.at(number));
  }
  const auto word = [](const Reshard& r) { return word_of(r); };
  std::string text = fmt::format(
      R"(
# ---- units, in the order of forward ----

UNITS = [  # name, elements, parameters; `root` is what no other unit holds
{}]
# Of every unit but the root: True, False, or the ranks of the smaller group that keeps it.
RESHARD = {}
RESHARD_ROOT = {}{}
)",
      table, python_list(reshard, word), root, root == "None" ? "  # not given" : "");
  if (splits_experts(job)) text += "RESHARD_EXPERTS = " + python_list(nested_reshard, word) + "\n";
  if (std::ranges::find(unshard, false) != unshard.end()) {
    text += "UNSHARD_IN_BACKWARD = " +
            python_list(unshard, [](bool value) { return std::string(python(value)); }) + "\n";
  }
  if (recomputes(job)) {
    text += "RECOMPUTE = " +
            python_list(job.recompute,
                        [](Recompute how) { return fmt::format("\"{}\"", to_string(how)); }) +
            "\n";
  }
  text += fmt::format(R"(

def modules_of_units(model):
    """What fully_shard is called with, one list per unit."""
    units = []
{}    return units
)",
                      unit_entries(job));
  return text;
}

}  // namespace foreshard
