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
#include "sim/simulate/forecast.h"

namespace foreshard {

OpenStack open_stack(std::vector<StackOutcome> outcomes, const std::vector<double>& draws,
                     double width) {
  OpenStack open = {.outcomes = std::move(outcomes)};
  if (draws.empty() || width <= 0) return open;
  const std::vector<double> weights = weights_of(open.outcomes);
  std::vector<double> ratios;
  for (std::size_t k = 0; k < draws.size(); ++k) {
    const std::size_t of = alternative_of_draw(weights, static_cast<int>(k));
    ratios.push_back(draws[k] / open.outcomes[of].seconds);
  }
  const Quantity own = with_interval(1, std::move(ratios), Evidence::kAssumed);
  double within = 0;
  for (const StackOutcome& each : open.outcomes) {
    within += each.weight * each.seconds * (own.high - own.low);
  }
  open.interval_share = std::clamp(1 - within / width, 0.0, 1.0);
  return open;
}

bool is_unread(std::string_view name) { return name == "none"; }

std::vector<double> weights_of(const std::vector<StackOutcome>& outcomes) {
  std::vector<double> weights;
  for (const StackOutcome& each : outcomes) weights.push_back(each.weight);
  return weights;
}

double fit_probability(const std::vector<StackOutcome>& outcomes) {
  double sum = 0;
  for (const StackOutcome& each : outcomes) sum += each.weight * fit_probability(each.fit);
  return sum;
}

std::vector<StackCase> StackSet::of(const Plan& plan) const {
  std::vector<StackCase> list;
  if (cases.empty()) return list;
  for (StackAlternative& each : plans_of(plan)) {
    const auto of = std::ranges::find(cases, each.name, &StackCase::name);
    FORESHARD_CHECK(of != cases.end(), "an alternative that the job does not have");
    list.push_back({each.name, each.weight, of->model, std::move(each.plan), of->costs});
  }
  return list;
}

struct StackOdds::Code {
  Code(const StackCase& of, std::shared_ptr<ReservedMemory> replays)
      : name(of.name),
        rule({.terms = {},
              .probability = {},
              .at_most = {},
              .replays = std::move(replays),
              .samples = {}}),
        judge(of.model, of.costs, rule),
        programs(of.model) {}

  const LayerPrograms& programs_of(const Plan& plan) {
    return programs
        .add(plan, static_cast<std::int16_t>(plan.recompute.value),
             static_cast<std::int16_t>(plan.batch.micro_batch))
        .get();
  }

  std::string name;
  FitRule rule;
  Judge judge;
  ProgramCache programs;
};

struct StackOdds::Codes {
  using List = std::vector<std::unique_ptr<Code>>;

  Codes(const StackSet& set, const std::shared_ptr<ReservedMemory>& replays)
      : of_thread([&set, replays] {
          List list;
          for (std::size_t i = 1; i < set.cases.size(); ++i) {
            list.push_back(std::make_unique<Code>(set.cases[i], replays));
          }
          return list;
        }) {}

  oneapi::tbb::enumerable_thread_specific<List> of_thread;
};

StackOdds::StackOdds(const StackSet& set, std::shared_ptr<ReservedMemory> replays)
    : set_(set), codes_(std::make_shared<Codes>(set, std::move(replays))) {}

Fit StackOdds::as_run(Fit fit, const StackAlternative& by) const {
  return is_unread(by.name) ? with_alternatives(fit, set_.cases.front().model, by.plan) : fit;
}

double StackOdds::sum_of(const Plan& plan, const Fit& first, double enough, FitOf fit_of) {
  if (set_.cases.size() < 2) return fit_probability(first);
  Codes::List& codes = codes_->of_thread.local();
  const std::vector<StackAlternative> plans = set_.plans_of(plan);
  double sum = plans.front().weight * fit_probability(as_run(first, plans.front()));
  double open = 1 - plans.front().weight;
  for (std::size_t i = 1; i < plans.size(); ++i) {
    if (sum + open < enough) return sum + open;
    const auto code =
        std::ranges::find_if(codes, [&](const auto& c) { return c->name == plans[i].name; });
    FORESHARD_CHECK(code != codes.end(), "an alternative that the job does not have");
    sum += plans[i].weight * fit_probability(as_run(fit_of(**code, plans[i].plan), plans[i]));
    open -= plans[i].weight;
  }
  return sum;
}

double StackOdds::operator()(const Plan& plan, const Fit& first, double enough) {
  return sum_of(plan, first, enough, [](Code& code, const Plan& own) {
    return code.judge.fit(own, code.programs_of(own));
  });
}

double StackOdds::at_most(const Plan& plan, const Fit& least) {
  return sum_of(plan, least, 0, [](Code& code, const Plan& own) {
    return code.judge.least_fit(own, code.programs_of(own));
  });
}

namespace {

// "" where none of the codes is unread.
std::string largest_besides(const OpenStack& open) {
  for (const StackOutcome& each : open.outcomes) {
    const KeptBesides& largest = each.fit.besides.front();  // by what is expected of it
    if (largest.weight <= 0) continue;
    return fmt::format("; {:.0f} % keep {} more ({})", 100 * largest.weight,
                       format_bytes(largest.bytes), largest.name);
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

}  // namespace

std::string open_stack_text(const OpenStack& open) {
  if (open.outcomes.empty()) return "";
  const auto [least, most] = std::minmax_element(
      open.outcomes.begin(), open.outcomes.end(),
      [](const StackOutcome& a, const StackOutcome& b) { return a.seconds < b.seconds; });
  std::vector<std::string> names;
  for (const StackOutcome& each : open.outcomes) names.push_back(each.name);
  return fmt::format("training code not told (--set stack=NAME narrows it): {} .. {} over {}{}",
                     seconds_text(least->seconds), seconds_text(most->seconds),
                     fmt::join(names, ", "), largest_besides(open));
}

Json open_json(const OpenStack& open) {
  Json list = Json::array();
  if (open.outcomes.empty()) return list;
  Json alternatives = json_list(open.outcomes, [&](const StackOutcome& each) -> Json {
    return {{"name", each.name},
            {"weight", each.weight},
            {"step_s", each.seconds},
            {"peak_bytes", (each.fit.reserved + each.fit.outside).count()},
            {"besides", besides_json(each.fit)}};
  });
  list.push_back({{"key", "stack"},
                  {"alternatives", std::move(alternatives)},
                  {"interval_share", open.interval_share}});
  return list;
}

}  // namespace foreshard
