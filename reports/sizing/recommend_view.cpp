#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/sizing/recommend.h"
#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostChoices = 20;
constexpr std::size_t kMostRejected = 12;
constexpr double kHopeless = 0.01;  // a choice that holds with less is counted, not shown

std::string days_text(double seconds) {
  const double days = seconds / kSecondsPerDay;
  if (days >= 1) return fmt::format("{} d", short_number(days));
  return seconds >= 3600  ? fmt::format("{} h", short_number(seconds / 3600))
         : seconds >= 120 ? fmt::format("{} min", short_number(seconds / 60))
                          : fmt::format("{} s", short_number(seconds));
}

std::string range_text(const Quantity& q) { return fmt::format("{} .. {}", short_number(q.low), short_number(q.high)); }

std::string terms_text(const Recommendation& r) {
  std::string text = fmt::format(
      "{} · {} parameters · {} tokens", r.model, short_number(as_double(r.parameters)), short_number(r.terms.tokens));
  if (r.terms.deadline) text += " in " + days_text(*r.terms.deadline);
  if (r.terms.budget) text += fmt::format(" for {} USD", short_number(*r.terms.budget));
  return text +
         fmt::format(" · steps of at most {} x {} tokens", format_count(r.most_sequences), format_count(r.sequence));
}

// Settings of the plan that were free to choose, where they are not PyTorch's defaults.
std::string free_settings(const Plan& plan) {
  std::string words;
  if (plan.loss.kind == Loss::Kind::kChunked) words += fmt::format(", loss chunked-{}", plan.loss.chunks);
  if (plan.allocator.expandable_segments) words += ", expandable_segments";
  if (plan.units.shard_dim == Units::kExpertsDim) words += ", shard_dim experts";
  return words;
}

// "holds with 96 %: fits with 97 %, in time with >99 %, within the budget with 99 %"
std::string odds_text(const RunTerms& terms, const Choice& c) {
  std::string each = "fits with " + chance_text(c.sized.fit_probability);
  if (!terms.deadline && !terms.budget) return each;
  if (terms.deadline) each += ", in time with " + chance_text(c.run.probability_in_time);
  if (terms.budget) each += ", within the budget with " + chance_text(c.run.probability_within_budget);
  return fmt::format("holds with {}: {}", chance_text(c.run.probability), each);
}

Lines first_lines_of(const Recommendation& r, const Paint& paint) {
  const Choice& c = r.choices.front();
  const RunForecast& run = c.run;
  const SizedPlan& sized = c.sized;
  const Plan& plan = sized.plan;
  const std::string head =
      fmt::format("{}: {} d ({}), {} USD ({}), {}", sized.cluster.spec, short_number(run.days.value),
          range_text(run.days), short_number(run.dollars.value), range_text(run.dollars), odds_text(r.terms, c));
  const Interruptions& x = run.interruptions;
  const std::string open = open_stack_text(sized.open_stack);
  Lines lines;
  for (const std::string& line : wrapped(head, kTextWidth, 2))
    lines.push_back(r.meets_terms() ? paint.green(paint.bold(line)) : paint.yellow(paint.bold(line)));
  append(lines, indented(fmt::format("plan: {}, reshard {}, prefetch {}, recompute {}, micro-batch {} x {}{}",
                    words_of(plan.mesh), reshard_words(plan), words_of(plan.prefetch), recompute_words(plan),
                    plan.batch.micro_batch, plan.batch.accumulation, free_settings(plan))));
  lines.push_back(
      fmt::format("  step: {} ({} .. {}, {}), MFU {}, {} exposed, {} to spare", seconds_text(sized.step.value),
          seconds_text(sized.step.low), seconds_text(sized.step.high), to_string(sized.step.evidence),
          percent_text(sized.mfu.value), percent_text(sized.exposed_share), format_bytes(sized.fit.margin())));
  if (!open.empty()) append(lines, indented(open));
  append(lines,
      indented(fmt::format("goodput {}: a failure every {}, a checkpoint of {} in {} every {}, {} to restart{}",
          percent_text(run.goodput.value), days_text(x.mean_between), format_bytes(sized.state), days_text(x.save),
          days_text(run.checkpoint_interval), days_text(x.restart),
          run.evaluation_share > 0 ? fmt::format(", {} for evaluation", percent_text(run.evaluation_share)) : "")));
  append(
      lines, indented(fmt::format("price: {:.2f} USD per GPU and hour ({:.2f} .. {:.2f}; {}{})", c.price.usd_per_hour,
                 c.price.low, c.price.high, c.price.date.empty() ? "" : c.price.date + ", ", c.price.source)));
  return lines;
}

Lines choice_lines(const Recommendation& r, const Paint& paint) {
  std::vector<std::vector<std::string>> table = {
      {"  cluster", "days", "90 %", "USD", "90 %", "USD/1M tok", "MFU", "goodput", "MWh", "spare", "odds"}};
  std::size_t hopeless = 0;
  for (const Choice& c : r.choices) {
    const bool is_hopeless = c.run.probability < kHopeless && &c != &r.choices.front();
    hopeless += is_hopeless;
    if (is_hopeless || table.size() > kMostChoices) continue;
    const std::string mark = c.assumed() > 0 ? "*" : "";
    table.push_back({"  " + c.sized.cluster.spec + mark, short_number(c.run.days.value), range_text(c.run.days),
        short_number(c.run.dollars.value), range_text(c.run.dollars),
        fmt::format("{:.3g}", c.run.dollars_per_million_tokens.value), percent_text(c.sized.mfu.value),
        percent_text(c.run.goodput.value), short_number(c.run.energy_kwh.value / 1000),
        format_bytes(c.sized.fit.margin()), chance_text(c.run.probability)});
  }
  Lines lines = aligned(table);
  lines.front() = paint.dim(lines.front());
  const std::size_t more = r.choices.size() - hopeless - (table.size() - 1);
  if (more > 0) lines.push_back(fmt::format("  ({} more in the JSON)", more));
  if (hopeless > 0) lines.push_back(fmt::format("  {} more hold with less than {:.0f} %", hopeless, 100 * kHopeless));
  const bool any_assumed = std::ranges::any_of(r.choices, [](const Choice& c) { return c.assumed() > 0; });
  if (any_assumed) lines.push_back("  * nobody published its price or its rates: assumed");
  return lines;
}

std::string remedy_words(const TermsRemedy& remedy) {
  using What = TermsRemedy::What;
  switch (remedy.what) {
    case What::kDeadline:
      return fmt::format("--deadline {:.0f}d: {} needs {} and {} USD", std::ceil(remedy.value / kSecondsPerDay),
          remedy.cluster, days_text(remedy.seconds), short_number(remedy.dollars));
    case What::kBudget:
      return fmt::format("--budget {}: {} needs {} USD and {}", short_number(remedy.value), remedy.cluster,
          short_number(remedy.dollars), days_text(remedy.seconds));
    case What::kGpus:
      return fmt::format("--cluster {}{}: {} and {} USD", remedy.cluster,
          remedy.most_sequences > 0 ? fmt::format(" --global-batch {}", remedy.most_sequences) : "",
          days_text(remedy.seconds), short_number(remedy.dollars));
    case What::kTokens: return fmt::format("--tokens {}: so many on {}", short_number(remedy.value), remedy.cluster);
  }
  return "";
}

Lines size_lines(const Recommendation& r) {
  std::vector<std::string> smallest, knees;
  for (const MachineSizes& m : r.machines) {
    smallest.push_back(m.smallest ? fmt::format("{}x{}", *m.smallest, m.machine) : fmt::format("no {}", m.machine));
    std::int64_t largest = 0;
    for (const Choice& c : r.choices)
      if (c.machine == m.machine) largest = std::max(largest, c.sized.cluster.gpus);
    if (m.knee && *m.knee < largest) knees.push_back(fmt::format("{}x{}", *m.knee, m.machine));
  }
  Lines lines = wrapped(fmt::format("smallest that fits: {}", fmt::join(smallest, ", ")), kTextWidth, 2);
  if (!knees.empty()) {
    append(lines,
        wrapped(fmt::format("twice as many bring less than 1.6 times the tokens/s beyond: {}", fmt::join(knees, ", ")),
            kTextWidth, 2));
  }
  return lines;
}

Lines rejected_lines(const Recommendation& r) {
  // By reason, in the order of their first cluster.
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const Rejected& one : r.rejected) {
    auto found = std::ranges::find_if(reasons, [&](const auto& reason) { return reason.first == one.reason; });
    if (found == reasons.end()) found = reasons.insert(found, {one.reason, {}});
    found->second.push_back(one.cluster);
  }
  Lines lines;
  for (std::size_t i = 0; i < std::min(reasons.size(), kMostRejected); ++i) {
    const auto& [reason, clusters] = reasons[i];
    append(lines, wrapped(fmt::format("no choice: {}: {}", fmt::join(clusters, ", "), reason), kTextWidth, 2));
  }
  if (reasons.size() > kMostRejected)
    lines.push_back(fmt::format("({} more reasons in the JSON)", reasons.size() - kMostRejected));
  return lines;
}

std::string assumed_text(const RunTerms& terms) {
  std::string text = fmt::format(
      "assumed: {:.2g} failures per GPU and day ({}); checkpoints at {} per GPU; {} to restart; "
      "servers draw {} times their GPUs' limit",
      terms.failures.per_gpu_day, terms.failures.source, format_bandwidth(terms.checkpoint_rate),
      days_text(terms.restart), terms.server_power);
  return text + (terms.pue > 1 ? fmt::format(", buildings {} times that", terms.pue) : ", without cooling");
}

Json choice_json(const Choice& c) {
  const RunForecast& run = c.run;
  const SizedPlan& sized = c.sized;
  const Interruptions& x = run.interruptions;
  const Quantity price{c.price.usd_per_hour, c.price.low, c.price.high, c.price.evidence};
  return Json{{"cluster", sized.cluster.spec}, {"machine", c.machine}, {"gpus", sized.cluster.gpus},
      {"nodes", sized.cluster.nodes()}, {"plan", to_json(sized.plan)}, {"step_s", to_json(sized.step)},
      {"days", to_json(run.days)}, {"dollars", to_json(run.dollars)}, {"gpu_hours", to_json(run.gpu_hours)},
      {"dollars_per_million_tokens", to_json(run.dollars_per_million_tokens)}, {"energy_kwh", to_json(run.energy_kwh)},
      {"goodput", to_json(run.goodput)}, {"probability", run.probability},
      {"probability_in_time", run.probability_in_time}, {"probability_within_budget", run.probability_within_budget},
      {"meets_deadline", run.meets_deadline}, {"within_budget", run.within_budget}, {"mfu", to_json(sized.mfu)},
      {"tokens_per_s", to_json(sized.tokens_per_s)}, {"exposed_communication", sized.exposed_share},
      {"steps", run.steps},
      {"memory", {{"capacity_bytes", sized.fit.capacity.count()}, {"peak_allocated_bytes", sized.fit.allocated.count()},
                     {"peak_reserved_bytes", sized.fit.reserved.count()},
                     {"outside_allocator_bytes", sized.fit.outside.count()},
                     {"margin_bytes", sized.fit.margin().count()}, {"fit_probability", sized.fit_probability}}},
      {"price", {{"usd_per_gpu_hour", to_json(price)}, {"date", c.price.date}, {"source", c.price.source}}},
      {"interruptions", {{"mean_between_s", std::isfinite(x.mean_between) ? Json(x.mean_between) : Json()},
                            {"checkpoint_bytes", sized.state.count()}, {"checkpoint_s", x.save},
                            {"checkpoint_interval_s",
                                std::isfinite(run.checkpoint_interval) ? Json(run.checkpoint_interval) : Json()},
                            {"restart_s", x.restart}, {"evaluation_share", run.evaluation_share}}},
      {"open", open_json(sized.open_stack)},
      {"plans", {{"enumerated", sized.enumerated}, {"simulated", sized.simulated}}}};
}

Json remedy_json(const TermsRemedy& remedy) {
  static constexpr const char* kNames[] = {"deadline_s", "budget_usd", "gpus", "tokens"};
  Json json = {{"change", kNames[at(remedy.what)]}, {"to", remedy.value}, {"cluster", remedy.cluster}};
  if (remedy.most_sequences > 0) json["global_batch"] = remedy.most_sequences;
  if (remedy.what != TermsRemedy::What::kTokens) {
    json["days"] = remedy.seconds / kSecondsPerDay;
    json["dollars"] = remedy.dollars;
  }
  return json;
}

}

std::string short_number(double value) {
  static constexpr const char* kSuffixes[] = {"", " k", " M", " B", " T"};
  std::size_t suffix = 0;
  while (std::abs(value) >= 999.5 && suffix + 1 < std::size(kSuffixes)) {
    value /= 1000;
    ++suffix;
  }
  const int digits = value == 0 || std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, digits, kSuffixes[suffix]);
}

std::string recommend_text(const Recommendation& r, Color color) {
  const Paint paint(color);
  Lines lines = wrapped(terms_text(r), kTextWidth, 2);
  lines.emplace_back();
  if (r.choices.empty()) {
    lines.push_back(paint.red("no candidate can run it"));
  } else {
    if (!r.meets_terms()) {
      const std::string sure = chance_text(r.terms.confidence);
      lines.push_back(paint.red(fmt::format("no candidate fits{}{} with {}", r.terms.deadline ? " and is in time" : "",
          r.terms.budget ? " and is within the budget" : "", sure)));
      for (const TermsRemedy& remedy : r.remedies) append(lines, indented("it would with " + remedy_words(remedy)));
      lines.emplace_back();
    }
    append(lines, first_lines_of(r, paint));
    lines.emplace_back();
    append(lines, choice_lines(r, paint));
  }
  lines.emplace_back();
  append(lines, size_lines(r));
  append(lines, rejected_lines(r));
  append(lines, wrapped(assumed_text(r.terms), kTextWidth, 2));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const Recommendation& r) {
  const auto maybe = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json json;
  json["schema"] = "foreshard.recommend/1";
  json["model"] = r.model;
  json["parameters"] = r.parameters;
  json["terms"] = {{"tokens", r.terms.tokens}, {"deadline_s", maybe(r.terms.deadline)},
      {"budget_usd", maybe(r.terms.budget)}, {"sequence", r.sequence}, {"most_sequences", r.most_sequences},
      {"failures_per_gpu_day", r.terms.failures.per_gpu_day}, {"failures_source", r.terms.failures.source},
      {"checkpoint_bytes_per_s_per_gpu", r.terms.checkpoint_rate.value()}, {"restart_s", r.terms.restart},
      {"evaluate_every_steps", r.terms.evaluate_every}, {"evaluate_sequences", r.terms.evaluate_sequences},
      {"server_power_over_gpu_limit", r.terms.server_power}, {"pue", r.terms.pue}, {"confidence", r.terms.confidence}};
  json["meets_terms"] = r.meets_terms();
  json["choices"] = json_list(
      r.choices, [&](const Choice& choice) -> Json { return choice_json(choice); });
  json["machines"] = json_list(
      r.machines,
      [&](const MachineSizes& m) -> Json {
        return {{"machine", m.machine}, {"smallest_gpus", maybe(m.smallest)}, {"knee_gpus", maybe(m.knee)}};
      });
  json["rejected"] = json_list(
      r.rejected,
      [&](const Rejected& one) -> Json {
        return {{"cluster", one.cluster}, {"gpus", one.gpus}, {"reason", one.reason}};
      });
  json["would_meet"] = json_list(r.remedies, [&](const TermsRemedy& remedy) -> Json { return remedy_json(remedy); });
  return json;
}

}
