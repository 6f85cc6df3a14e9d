// Without the stack's part, draws differ by the machine's factors alone, which move every code's
// step by the same share: so draws over their own code's forecast are one sample, and the width of
// its interval is what each code's own would have.
#include "reports/open_stack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <oneapi/tbb/enumerable_thread_specific.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/report.h"
#include "reports/view/layout.h"
#include "sim/base/error.h"
#include "sim/base/unit_strings.h"
#include "sim/memory/memory_alternatives.h"
#include "sim/search/judge.h"

namespace foreshard {

OpenStack open_stack(std::vector<StackOutcome> outcomes, const std::vector<double>& draws, double width) {
  OpenStack open = {.outcomes = std::move(outcomes)};
  if (draws.empty() || width <= 0) return open;
  const std::vector<double> weights = weights_of(open.outcomes);
  std::vector<double> ratios;
  for (std::size_t k = 0; k < draws.size(); ++k) {
    const std::size_t of = alternative_of_draw(weights, static_cast<int>(k));
    ratios.push_back(draws[k] / open.outcomes[of].seconds);
  }
  const Quantity own = with_interval(1, std::move(ratios), Evidence::kAssumed);
  double within = sum_of<double>(
      open.outcomes, [&](const StackOutcome& each) { return each.weight * each.seconds * (own.high - own.low); });
  open.interval_share = std::clamp(1 - within / width, 0.0, 1.0);
  return open;
}

bool is_unread(std::string_view name) { return name == "none"; }

std::vector<double> weights_of(const std::vector<StackOutcome>& outcomes) {
  return list_of<double>(outcomes, &StackOutcome::weight);
}

double fit_probability(const std::vector<StackOutcome>& outcomes) {
  return sum_of<double>(
      outcomes, [&](const StackOutcome& each) { return each.weight * fit_probability(each.fit); });
}

std::vector<StackCase> StackSet::of(const Plan& plan) const {
  std::vector<StackCase> list;
  if (cases.empty()) return list;
  const std::vector<StackAlternative> plans = plans_of(plan);
  for (std::size_t i = 0; plans.size() > 1 && i < plans.size(); ++i) {
    const auto known = std::ranges::find(cases, plans[i].name, &StackCase::name);
    list.push_back(known != cases.end() ? *known : case_of(plans[i]));
    list.back().weight = plans[i].weight;
    list.back().plan = plans[i].plan;
  }
  return list;
}

struct StackOdds::Code {
  Code(StackCase own, std::shared_ptr<ReservedMemory> replays)
      : of(std::move(own)),
        rule({.terms = {}, .probability = {}, .may_be = {}, .share = 1, .replays = std::move(replays), .samples = {}}),
        judge(of.model, of.costs, rule),
        programs(of.model) {}

  const LayerPrograms& programs_of(const Plan& plan) {
    return programs
        .add(plan, static_cast<std::int16_t>(plan.recompute.value), static_cast<std::int16_t>(plan.batch.micro_batch))
        .get();
  }

  StackCase of;
  FitRule rule;
  Judge judge;
  ProgramCache programs;
};

struct StackOdds::Codes {
  std::shared_ptr<ReservedMemory> replays;
  oneapi::tbb::enumerable_thread_specific<std::vector<std::unique_ptr<Code>>> of_thread;
};

StackOdds::StackOdds(const StackSet& set, std::shared_ptr<ReservedMemory> replays)
    : set_(set), codes_(std::make_shared<Codes>()) {
  codes_->replays = std::move(replays);
}

StackOdds::Code& StackOdds::code_of(const StackAlternative& by) {
  auto& codes = codes_->of_thread.local();
  for (const auto& code : codes)
    if (code->of.name == by.name) return *code;
  const auto known = std::ranges::find(set_.cases, by.name, &StackCase::name);
  codes.push_back(std::make_unique<Code>(known != set_.cases.end() ? *known : set_.case_of(by), codes_->replays));
  return *codes.back();
}

Fit StackOdds::as_run(Fit fit, const StackAlternative& by) const {
  return is_unread(by.name) ? with_alternatives(fit, set_.cases.front().model, by.plan) : fit;
}

StackOdds::Odds StackOdds::odds_of(const Plan& plan, const Fit& first, FitOf fit_of, auto is_told) {
  std::vector<StackAlternative> plans;
  if (set_.cases.size() > 1) plans = set_.plans_of(plan);
  if (plans.size() < 2) return {fit_probability(first), fit_probability(first)};
  Odds odds{plans.front().weight * fit_probability(as_run(first, plans.front()))};
  double open = 1 - plans.front().weight;
  for (std::size_t i = 1; i < plans.size(); ++i) {
    odds.most = odds.sure + open;
    if (is_told(odds)) return odds;
    const Fit fit = as_run(fit_of(code_of(plans[i]), plans[i].plan), plans[i]);
    odds.sure += plans[i].weight * fit_probability(fit);
    open -= plans[i].weight;
  }
  odds.most = odds.sure;
  return odds;
}

double StackOdds::operator()(const Plan& plan, const Fit& first, double enough) {
  const auto fit_of = [](Code& code, const Plan& own) { return code.judge.fit(own, code.programs_of(own)); };
  return odds_of(plan, first, fit_of, [&](const Odds& odds) { return odds.most < enough; }).most;
}

bool StackOdds::may_be(const Plan& plan, const Fit& least, double enough) {
  const auto fit_of = [](Code& code, const Plan& own) { return code.judge.least_fit(own, code.programs_of(own)); };
  const Odds odds =
      odds_of(plan, least, fit_of, [&](const Odds& each) { return each.most < enough || each.sure >= enough; });
  return odds.sure >= enough;
}

FitRule rule_of(StackOdds& odds, std::shared_ptr<ReservedMemory> replays, FitRule rule) {
  rule.probability = std::ref(odds);
  rule.replays = std::move(replays);
  rule.may_be = [&odds](const Plan& plan, const Fit& least, double enough) { return odds.may_be(plan, least, enough); };
  rule.share = odds.share();
  return rule;
}

namespace {

// "" where none of the codes is unread.
std::string largest_besides(const OpenStack& open) {
  for (const StackOutcome& each : open.outcomes) {
    const KeptBesides& largest = each.fit.besides.front();  // by what is expected of it
    if (largest.weight <= 0) continue;
    return fmt::format("; {:.0f} % keep {} more ({})", 100 * largest.weight, format_bytes(largest.bytes), largest.name);
  }
  return "";
}

Json besides_json(const Fit& fit) {
  Json list = Json::array();
  for (const KeptBesides& each : fit.besides) {
    if (each.weight <= 0) continue;
    list.push_back({{"name", each.name}, {"bytes", each.bytes.count()}, {"weight", each.weight}});
  }
  return list;
}

}

std::string open_stack_text(const OpenStack& open) {
  if (open.outcomes.empty()) return "";
  const auto [least, most] = std::ranges::minmax(open.outcomes, {}, &StackOutcome::seconds);
  auto names = list_of<std::string>(open.outcomes, &StackOutcome::name);
  return fmt::format("training code not told (--set stack=NAME narrows it): {} .. {} over {}{}",
      seconds_text(least.seconds), seconds_text(most.seconds), fmt::join(names, ", "), largest_besides(open));
}

Json open_json(const OpenStack& open) {
  Json list = Json::array();
  if (open.outcomes.empty()) return list;
  Json alternatives = json_list(open.outcomes, [&](const StackOutcome& each) -> Json {
    return {{"name", each.name}, {"weight", each.weight}, {"step_s", each.seconds},
        {"peak_bytes", (each.fit.reserved + each.fit.outside).count()}, {"besides", besides_json(each.fit)}};
  });
  list.push_back(
      {{"key", "stack"}, {"alternatives", std::move(alternatives)}, {"interval_share", open.interval_share}});
  return list;
}

}
