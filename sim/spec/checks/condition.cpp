// The text is read once, into functions that write the values it names as the table of keys does;
// JSON values are then compared.
#include "sim/spec/checks/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

constexpr std::pair<std::string_view, PlanValue> kPlanFacts[] = {
    {"head_in_chunks", [](const Plan& p) { return Json(p.loss.kind == Loss::Kind::kChunkedHead); }},
    {"host", [](const Plan& p) { return Json(p.host == HostKind::kComputes ? "cpu" : "device"); }},
    {"ranks", [](const Plan& p) { return Json(p.mesh.data_parallel()); }},
    {"runtime.kind", [](const Plan& p) { return Json(to_string(p.runtime.kind)); }},
    {"runtime.minor", [](const Plan& p) { return Json(fsdp2_minor(p.runtime.version).value_or(0)); }},
};

template <typename Holds>
bool any_layer(const ModelSpec& model, Holds holds) {
  return std::ranges::any_of(model.kinds, holds);
}

// "model.norm.weight" is one, "model.decoder.final_layer_norm.weight" and, of a model that is its own base,
// "decoder.final_layer_norm.weight" are not, nor is a head's transform ("lm_head.dense.weight").
bool is_norm_of_base(const LayerSpec& layer) {
  if (layer.role != LayerRole::kFinalNorm || layer.parameters.empty()) return false;
  const bool transforms = !layer.operations.empty() && layer.operations.front().kind == OperationKind::kGemm;
  if (transforms) return false;
  const std::string& name = layer.parameters.front().name;
  return !name.starts_with("decoder.") && std::ranges::count(name, '.') == 2;
}

bool has_experts(const LayerSpec& layer) {
  return std::ranges::any_of(
      layer.parameters, [](const ParameterSpec& p) { return p.shape.size() > 2; });
}

bool reads_images(const LayerSpec& layer) {
  return layer.role == LayerRole::kEmbedding && !layer.tensors.empty() &&
         layer.tensors.front().type != ElementType::kInt64;
}

// A weight that waits for a gradient and leads to no loss.
bool waits_in_vain(const LayerSpec& layer) {
  return std::ranges::any_of(
      layer.parameters, [&](const ParameterSpec& p) { return p.unused || (layer.unread && p.trainable); });
}

auto tells_classes(const ModelSpec& model) {
  return [&model](const LayerSpec& layer) {
    return layer.role == LayerRole::kLoss && !layer.tensors.empty() && layer.tensors.front().per_token > 0 &&
           layer.tensors.front().per_token < model.vocabulary;
  };
}

using JobValue = Json (*)(const PlanDocument&, const ModelSpec&);
constexpr std::pair<std::string_view, JobValue> kJobFacts[] = {
    {"model.tied", [](const PlanDocument&, const ModelSpec& m) { return Json(m.tied_embeddings); }},
    {"model.experts", [](const PlanDocument&, const ModelSpec& m) { return Json(any_layer(m, has_experts)); }},
    {"model.images", [](const PlanDocument&, const ModelSpec& m) { return Json(any_layer(m, reads_images)); }},
    {"model.unused", [](const PlanDocument&, const ModelSpec& m) { return Json(any_layer(m, waits_in_vain)); }},
    {"model.words",  // that its head tells: a classifier has none
        [](const PlanDocument&, const ModelSpec& m) {
          return Json(m.image_tokens > 0 || (!any_layer(m, reads_images) && !any_layer(m, tells_classes(m))));
        }},
    {"model.family", [](const PlanDocument&, const ModelSpec& m) { return Json(m.family); }},
    {"model.norm_of_base",
        [](const PlanDocument& d, const ModelSpec& m) {
          return Json(any_layer(m, [&](const LayerSpec& layer) {
            const bool is_wrapped = d.plan.lora.rank > 0;  // PEFT's wrapper has a "model" of its own
            return is_norm_of_base(layer) && !(is_wrapped && layer.parameters.front().name.starts_with("model."));
          }));
        }},
    {"model.stacks_share_table", [](const PlanDocument&, const ModelSpec& m) { return Json(stacks_share_table(m)); }},
    {"root_unit", [](const PlanDocument& d, const ModelSpec& m) { return Json(has_root_unit(d.plan, m)); }},
    {"ends_written",
        [](const PlanDocument& d, const ModelSpec&) { return Json(d.has("units.embedding") || d.has("units.head")); }},
    {"trainer", [](const PlanDocument& d, const ModelSpec&) { return Json(d.trainer); }},
    {"trainer.minor", [](const PlanDocument& d, const ModelSpec&) { return Json(trainer_minor(d)); }},
};

template <typename Value, std::size_t N>
Value find(const std::pair<std::string_view, Value> (&facts)[N], std::string_view name) {
  const auto found = std::ranges::find_if(facts, [&](const auto& f) { return f.first == name; });
  return found == std::end(facts) ? nullptr : found->second;
}

Json constant(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  const auto number = parse_number<std::int64_t>(text);
  return number ? Json(*number) : Json(std::string(text));
}

bool compares(const Json& value, char comparison, const Json& with) {
  if (comparison == '=' || comparison == '!') return value == with;
  if (!value.is_number() || !with.is_number()) return false;
  return comparison == '>' ? value > with : value < with;
}

}

bool stacks_share_table(const ModelSpec& model) {
  return std::ranges::any_of(
      model.order,
      [&](const LayerInstance& layer) {
        return layer.same_as >= 0 && model.kinds[at(layer.kind)].role == LayerRole::kEmbedding;
      });
}

PlanValue plan_value_named(std::string_view name) {
  if (const PlanKey* key = find_plan_key(name)) return key->value;
  return find(kPlanFacts, name);
}

struct Condition::Term {
  PlanValue of_plan = nullptr;
  JobValue of_job = nullptr;
  char comparison = '=';  // '=', '!', '>', '<'
  std::vector<Json> right;
  PlanValue right_key = nullptr;

  bool holds(const Json& left, const Plan& plan) const {
    const auto holds_of = [&](const Json& value) {
      const bool any = right_key != nullptr ? compares(value, comparison, right_key(plan))
                                            : std::ranges::any_of(right,
                                                  [&](const Json& with) { return compares(value, comparison, with); });
      return any == (comparison != '!');
    };
    if (!left.is_array()) return holds_of(left);
    return std::ranges::any_of(
        left, [&](const Json& each) { return holds_of(each.is_object() ? each.at("value") : each); });
  }
};

Condition::Condition(std::string_view text) {
  std::vector<Term> terms;
  while (!text.empty()) {
    std::string_view words = cut(text, ", ");
    const std::string_view name = cut(words, " "), comparison = cut(words, " ");
    Term& term = terms.emplace_back();
    term.of_plan = plan_value_named(name);
    term.of_job = find(kJobFacts, name);
    FORESHARD_CHECK(term.of_plan != nullptr || term.of_job != nullptr, fmt::format("a condition asks for {}", name));
    term.comparison = comparison.front();
    if (contains(words, '.')) term.right_key = plan_value_named(words);
    while (!words.empty()) term.right.push_back(constant(cut(words, "|")));
  }
  terms_ = std::make_shared<const std::vector<Term>>(std::move(terms));
}

bool Condition::holds(const Plan& plan) const {
  return !terms_ || std::ranges::all_of(
                        *terms_,
                        [&](const Term& term) {
                          FORESHARD_CHECK(term.of_plan != nullptr, "a condition on a plan asks for a fact of a job");
                          return term.holds(term.of_plan(plan), plan);
                        });
}

bool Condition::holds(const PlanDocument& document, const ModelSpec& model) const {
  return !terms_ || std::ranges::all_of(
                        *terms_,
                        [&](const Term& term) {
                          return term.holds(
                              term.of_plan ? term.of_plan(document.plan) : term.of_job(document, model), document.plan);
                        });
}

}
