// The script is interop/scripts/fsdp2.py.in (script_template.h), of which a feature of the plan keeps its lines or
// none, so that the file calls nothing that the plan does not need; behind it stand the parts that no plan changes.
//
// The units and their order are those of the plan's EventGraph: fully_shard is called for nested
// modules first and for the root last.
#include "interop/export/export_fsdp2.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "interop/export/export_fsdp2_limits.h"
#include "interop/export/script_template.h"
#include "models/parameter_names.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

using Facts = std::map<std::string_view, Json>;

const char* torch_dtype(DType dtype) { return word_at(dtype, {"torch.bfloat16", "torch.float16", "torch.float32"}); }

const char* python(bool value) { return value ? "True" : "False"; }

std::string word_of(const Reshard& reshard) {
  if (reshard.kind == Reshard::Kind::kGroup) return fmt::format("{}", reshard.group);
  return python(reshard.kind == Reshard::Kind::kAlways);
}

// "[True] * 31 + [False]"
std::string python_list(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t at = 0; at < words.size();) {
    std::size_t end = at;
    while (end < words.size() && words[end] == words[at]) ++end;
    text += fmt::format("{}[{}]", text.empty() ? "" : " + ", words[at]);
    if (end - at > 1) text += fmt::format(" * {}", end - at);
    at = end;
  }
  return text.empty() ? "[]" : text;
}

void add_dims(const ModelDims& dims, Facts& facts) {
  const bool is_rotary = dims.positions == Positions::kRotary;
  const bool turns_part = dims.rotary_dim > 0 && dims.rotary_dim != dims.head_dim;
  const RopeScaling& scaling = dims.numerics.rope_scaling;
  bool is_dense = false;
  for (std::int64_t i = 0; i < dims.layers; ++i) is_dense |= !has_experts(dims, i);
  facts.insert({
      {"name", dims.name},
      {"family", dims.family},
      {"is_qwen3", dims.family.starts_with("qwen3")},
      {"layers", dims.layers},
      {"hidden", dims.hidden},
      {"heads", dims.heads},
      {"kv_heads", dims.kv_heads},
      {"is_grouped", dims.kv_heads != dims.heads},
      {"head_dim", dims.head_dim},
      {"ffn", dims.ffn},
      {"vocabulary", dims.vocabulary},
      {"max_positions", dims.max_positions},
      {"position_rows", dims.position_rows},
      {"has_more_rows", dims.position_rows > dims.max_positions},
      {"positions", word_at(dims.positions, {"rotary", "learned", "alibi"})},
      {"rotary_dim", turns_part ? dims.rotary_dim : dims.head_dim},
      {"rotates_part", is_rotary && turns_part},
      {"rope_theta", dims.numerics.rope_theta},
      {"rope_scaling", word_at(scaling.kind, {"none", "linear", "llama3", "other"})},
      {"rope_factor", scaling.factor},
      {"rope_low", scaling.low_frequency_factor},
      {"rope_high", scaling.high_frequency_factor},
      {"rope_positions", scaling.original_positions},
      {"epsilon", dims.numerics.norm_epsilon},
      {"gelu_tanh", dims.numerics.gelu_tanh},
      {"norm", word_at(dims.norm, {"rms", "layer", "layer_without_bias"})},
      {"qk_norm", dims.qk_norm != HeadNorm::kNone},
      {"activation", word_at(dims.activation, {"swiglu", "geglu", "gelu", "relu", "relu2"})},
      {"residual", word_at(dims.residual,
                       {"pre_norm", "sandwich", "post_branch", "post_norm", "parallel", "parallel_of_one_norm"})},
      {"embedding_scale", dims.embedding_scale},
      {"embedding_norm", dims.embedding_norm},
      {"conv1d", dims.conv1d},
      {"fused_qkv", dims.fused_qkv},
      {"fused_gate_up", dims.fused_gate_up},
      {"qkv_bias", dims.qkv_bias},
      {"output_bias", dims.output_bias},
      {"mlp_bias", dims.mlp_bias},
      {"tied", dims.tied},
      {"logit_softcap", dims.logit_softcap},
      {"experts_count", dims.moe.experts},
      {"is_mixed", dims.moe.experts > 0 && is_dense},
      {"top_k", dims.moe.top_k},
      {"expert_ffn", dims.moe.ffn},
      {"shared_ffn", dims.moe.shared_ffn},
      {"shared_gate", dims.moe.shared_gate},
      {"dense_layers", fmt::format("{}", fmt::join(dims.moe.dense_layers, ", "))},
      {"sigmoid", dims.moe.sigmoid},
      {"normalized", dims.moe.normalized},
  });
}

// Of torch.distributed.tensor, what the plan's axes and placements call.
std::string tensor_imports(const Plan& plan) {
  const bool cuts = plan.mesh.tp > 1, shares = plan.mesh.cp > 1, spreads = plan.mesh.ep > 1;
  std::vector<std::string> names;
  if (shares) names.emplace_back("DTensor");
  if (cuts) names.emplace_back("Replicate");
  if (cuts || shares || spreads || plan.units.shard_dim != 0) names.emplace_back("Shard");
  if (spreads) names.emplace_back("distribute_tensor");
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string commented(const Plan& plan) {
  std::vector<std::string> lines;
  for (const std::string& line : parts_of(to_yaml(plan), "\n")) lines.push_back("#   " + line);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

void add_plan(const Plan& plan, const ModelSpec& model, const ParameterNames& names, Facts& facts) {
  std::vector<std::string> frozen;
  for (const auto& range : plan.frozen.blocks.ranges) {
    frozen.push_back(fmt::format("    for block in model.{}[{}:{}]:", names.blocks, range.first, range.last + 1));
    frozen.push_back(fmt::format("        block.requires_grad_({})", python(!range.value)));
  }
  const auto dtype = [](const std::optional<DType>& of) { return of ? torch_dtype(*of) : ""; };
  const Optimizer& o = plan.optimizer;
  facts.insert({
      {"plan", commented(plan)},
      {"version", plan.runtime.version},
      {"world", plan.mesh.world()},
      {"parameters", model.parameters()},
      {"alloc_conf", alloc_conf(plan.allocator)},
      {"tensor_imports", tensor_imports(plan)},
      {"torch.param", torch_dtype(plan.param_dtype)},
      {"torch.reduce", torch_dtype(plan.reduce_dtype)},
      {"torch.master", torch_dtype(plan.master_dtype)},
      {"torch.output", dtype(plan.output_dtype)},
      {"torch.autocast", dtype(plan.autocast)},
      {"shard_dim", plan.units.shard_dim},
      {"experts_every", plan.units.experts_every},
      {"has_root_unit", has_root_unit(plan, model)},
      {"balances_context", plan.context_parallel.balance == ContextParallel::Balance::kHeadTail},
      {"freezes_embedding", plan.frozen.embedding},
      {"frozen_blocks", fmt::format("{}", fmt::join(frozen, "\n"))},
      {"freezes_norm", plan.frozen.norm},
      {"freezes_head", plan.frozen.head},
      {"unshard_varies", !plan.unshard_in_backward.value || !plan.unshard_in_backward.ranges.empty()},
      {"least_rate", o.learning_rate > 0 ? o.min_learning_rate / o.learning_rate : 0.0},
      {"chunks", plan.loss.kind == Loss::Kind::kChunked ? plan.loss.chunks : 0},
      {"experts_parent", names.experts.substr(0, names.experts.find('.'))},
      {"experts_name", names.experts.substr(names.experts.rfind('.') + 1)},
  });
}

// An embedding's backward reads no parameters. What others read would be gone.
void check_kept(const Unit& unit) {
  if (unit.name == "embedding" || unit.reshard.kind == Reshard::Kind::kNever) return;
  refuse_script("unshard_in_backward",
      fmt::format("backward of {} reads its parameters, which reshard_after_forward freed: PyTorch fails (setStorage)",
          unit.name),
      "unshard_in_backward: true, or reshard_after_forward: never there");
}

// Which modules fully_shard is called with, in the order of the graph, and what of each is
// resharded, unsharded or recomputed.
void add_units(
    const Plan& plan, const ModelDims& dims, const EventGraph& graph, const ParameterNames& names, Facts& facts) {
  const bool splits = plan.units.experts == UnitPlacement::kOwn && dims.moe.experts > 0;
  const bool rooted = facts.at("has_root_unit");
  std::vector<std::string> table, reshard, nested, unshards, recompute;
  bool has_groups = false;
  std::string root;
  for (std::size_t u = 0; u < graph.units.size(); ++u) {
    const Unit& unit = graph.units[u];
    table.push_back(fmt::format("    (\"{}\", {}, {}),", unit.name, unit.numel, unit.parameters));
    has_groups |= unit.reshard.kind == Reshard::Kind::kGroup;
    if (rooted && u == 0) {
      const bool is_named = std::ranges::any_of(
          plan.reshard_after_forward.ranges, [](const auto& range) { return range.first <= 0 && 0 <= range.last; });
      if (is_named) root = word_of(plan.reshard_after_forward.at(0));
      continue;
    }
    const bool unshard = plan.unshard_in_backward.at(static_cast<std::int64_t>(u));
    if (!unshard) check_kept(unit);
    const bool is_nested = splits && contains(unit.name, names.experts);
    (is_nested ? nested : reshard).push_back(word_of(unit.reshard));
    if (!is_nested) unshards.emplace_back(python(unshard));
  }
  bool recomputes = false, selectively = false;
  for (std::int64_t b = 0; b < dims.layers; ++b) {
    const Recompute how = plan.recompute.at(b);
    recompute.push_back(fmt::format("\"{}\"", to_string(how)));
    recomputes |= how != Recompute::kNone;
    selectively |= how == Recompute::kSelective;
  }
  const bool keeps_some = contains(unshards, python(false));
  facts.insert({
      {"units", fmt::format("{}", fmt::join(table, "\n"))},
      {"reshard", python_list(reshard)},
      {"reshard_root", root},
      {"splits_experts", splits},
      {"reshard_experts", python_list(nested)},
      {"unshards", keeps_some ? python_list(unshards) : ""},
      {"has_groups", has_groups},
      {"recomputes", recomputes},
      {"recomputes_selectively", selectively},
      {"recompute_list", python_list(recompute)},
  });
}

}

Exported export_own(const Plan& plan, const ModelSpec& model) {
  check_own(plan);
  const EventGraph graph = build_training_step(model, plan, LayerPrograms(model, plan));
  const bool is_replica = plan.runtime.kind == RuntimeKind::kDdp;
  const std::string root = fmt::format("{}", graph.units.empty() ? "" : word_of(graph.units.front().reshard));
  std::vector<std::string> units, reshard, recomputed, compiled, policy;
  for (std::size_t u = 1; u < graph.units.size() && !is_replica; ++u)
    reshard.push_back(word_of(graph.units[u].reshard));
  std::int64_t block = 0;
  for (const LayerInstance& layer : model.order) {
    if (model.kinds[at(layer.kind)].role != LayerRole::kBlock || layer.same_as >= 0) continue;
    const std::string name = fmt::format("\"{}\"", layer.name);
    if (block % plan.units.layers_per_unit == 0) units.push_back("    [" + name);
    else units.back() += ", " + name;
    if (plan.recompute.at(block++) == Recompute::kFull) recomputed.push_back(name);
  }
  if (!is_replica && units.size() != reshard.size()) {
    refuse_script("units", "a unit beside the root and the blocks has no module of the program's",
        "units.embedding: root, units.head: root, units.blocks: own");
  }
  const auto add = [&](const char* key, DType dtype) {
    policy.push_back(fmt::format("{}={}", key, torch_dtype(dtype)));
  };
  if (plan.param_dtype != plan.master_dtype) add("param_dtype", plan.param_dtype);
  if (plan.reduce_dtype != plan.param_dtype) add("reduce_dtype", plan.reduce_dtype);
  if (plan.output_dtype) add("output_dtype", *plan.output_dtype);
  const Facts facts = {
      {"name", model.name},
      {"version", plan.runtime.version},
      {"world", plan.mesh.world()},
      {"plan", commented(plan)},
      {"runtime", to_string(plan.runtime.kind)},
      {"own_units", fmt::format("{}],", fmt::join(units, "],\n"))},
      {"reshard", python_list(reshard)},
      {"reshard_root", root},
      {"recomputes", !recomputed.empty()},
      {"recomputed", fmt::format("{}", fmt::join(recomputed, ", "))},
      {"policy", fmt::format("{}", fmt::join(policy, ", "))},
  };
  const std::string_view text = file_named("interop/scripts/own.py.in", script_files()).content;
  ExportLedger ledger;
  ledger.mapped(
      "mesh, units, reshard_after_forward, prefetch, recompute, dtype, offload, ddp", "calls around the model");
  ledger.ignored("batch, accumulation, optimizer, loss, compile, dtype.master, dtype.autocast", "the program's own");
  return {script_of(text,
              [&](std::string_view name) {
                const auto known = facts.find(name);
                return known != facts.end() ? known->second : plan_value_named(name)(plan);
              }),
      ledger.take()};
}

Exported export_fsdp2(const Plan& plan, const ModelSpec& model, const ModelDims& dims) {
  check_script_can(plan, dims);
  const ParameterNames& names = parameter_names(dims);
  const EventGraph graph = build_training_step(model, plan, LayerPrograms(model, plan));
  Facts facts;
  add_dims(dims, facts);
  add_plan(plan, model, names, facts);
  add_units(plan, dims, graph, names, facts);
  check_script_model(dims);
  const auto file = [](const char* name) { return std::string_view(file_named(name, script_files()).content); };
  std::string script = script_of(file("interop/scripts/fsdp2.py.in"), [&](std::string_view name) {
    if (const auto known = facts.find(name); known != facts.end()) return known->second;
    if (name.starts_with("names.")) return Json(name_in(names, name.substr(6)));
    const PlanValue value = plan_value_named(name);
    FORESHARD_CHECK(value != nullptr, fmt::format("a script asks for {}", name));
    return value(plan);
  });
  const std::string_view recorder = file("interop/record/timed.py");
  script.append("\n\n").append(recorder.substr(recorder.find("# ---- recording")));
  return {script.append(file("interop/scripts/fsdp2_run.py")), script_ledger(plan, dims)};
}

}
