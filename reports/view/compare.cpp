// Two forecasts side by side. Waterfall bars and memory categories are joined by name, in the order of the first
// forecast; what only the second has follows. Differences are b - a, so a negative time is a gain of the second plan.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "reports/view/views.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

struct Pair {
  std::string name;
  double a = 0;
  double b = 0;
  double difference() const { return b - a; }
};

void put(std::vector<Pair>& pairs, const std::string& name, double Pair::*side, double value) {
  auto it = std::ranges::find(pairs, name, &Pair::name);
  if (it == pairs.end()) it = pairs.insert(pairs.end(), Pair{name, 0, 0});
  (*it).*side += value;
}

std::vector<Pair> bars_of(const Forecast& a, const Forecast& b) {
  std::vector<Pair> pairs;
  for (const WaterfallBar& bar : waterfall(a.graph, a.timeline)) put(pairs, bar.what, &Pair::a, bar.time.seconds());
  for (const WaterfallBar& bar : waterfall(b.graph, b.timeline)) put(pairs, bar.what, &Pair::b, bar.time.seconds());
  return pairs;
}

// Of every communicator one of the two has.
std::vector<Pair> exposed_of(const std::vector<AxisCost>& a, const std::vector<AxisCost>& b) {
  std::vector<Pair> pairs;
  for (const AxisCost& c : a) put(pairs, c.name, &Pair::a, c.exposed.seconds());
  for (const AxisCost& c : b) put(pairs, c.name, &Pair::b, c.exposed.seconds());
  return pairs;
}

std::vector<Pair> categories_of(const Report& a, const Report& b) {
  std::vector<Pair> pairs;
  for (const auto& [name, bytes] : a.at_peak) put(pairs, name, &Pair::a, as_double(bytes.count()));
  for (const auto& [name, bytes] : b.at_peak) put(pairs, name, &Pair::b, as_double(bytes.count()));
  return pairs;
}

struct Metric {
  const char* name;
  const char* key;
  Quantity Report::*quantity;
};
constexpr Metric kMetrics[] = {
    {"step time", "seconds", &Report::seconds},
    {"tokens/s per GPU", "tokens_per_s_per_gpu", &Report::tokens_per_s_per_gpu},
    {"MFU", "mfu", &Report::mfu},
    {"HFU", "hfu", &Report::hfu},
    {"communication", "communication_s", &Report::communication},
    {"exposed communication", "exposed_communication_s", &Report::exposed_communication},
    {"peak allocated", "peak_allocated_bytes", &Report::peak_allocated},
};

std::string metric_text(const Metric& metric, double value) {
  const std::string key = metric.key;
  if (key == "tokens_per_s_per_gpu") return cardinal(value);
  if (key == "mfu" || key == "hfu") return percent_text(value);
  if (key == "peak_allocated_bytes") return bytes_text(value);
  return seconds_text(value);
}

double relative(double a, double b) { return a != 0 ? b / a - 1 : 0; }

Lines metric_lines(const Report& a, const Report& b, const Paint& paint) {
  std::vector<std::vector<std::string>> table = {{"", "A", "B", "B against A"}};
  for (const Metric& metric : kMetrics) {
    const double x = (a.*metric.quantity).value, y = (b.*metric.quantity).value;
    if (x == 0 && y == 0) continue;
    table.push_back(
        {metric.name, metric_text(metric, x), metric_text(metric, y), x != 0 ? signed_percent(relative(x, y)) : "new"});
  }
  table.push_back({"fits", a.fit.fits() ? "yes" : "no", b.fit.fits() ? "yes" : "no", ""});
  Lines lines = aligned(table);
  lines.front() = paint.bold(lines.front());
  return lines;
}

Lines pair_lines(const std::string& title, const std::vector<Pair>& pairs, auto&& format, auto&& with_sign) {
  std::vector<std::vector<std::string>> table = {{title, "A", "B", "B - A"}};
  Pair sum;
  for (const Pair& p : pairs) {
    table.push_back({"  " + p.name, format(p.a), format(p.b), with_sign(p.difference())});
    sum.a += p.a;
    sum.b += p.b;
  }
  table.push_back({"  sum", format(sum.a), format(sum.b), with_sign(sum.difference())});
  return aligned(table);
}

Json pairs_json(const std::vector<Pair>& pairs, const std::string& unit) {
  return json_list(
      pairs,
      [&](const Pair& p) -> Json {
        return {{"what", p.name}, {"a_" + unit, p.a}, {"b_" + unit, p.b}, {"difference_" + unit, p.difference()}};
      });
}

}

std::string compare_text(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb, Color color) {
  const Paint paint(color);
  Lines lines;
  const auto add_table = [&](Lines table) {
    table.front() = paint.bold(table.front());
    if (!lines.empty()) lines.emplace_back();
    append(lines, table);
  };
  const auto differences = plan_differences(ra.plan, rb.plan);
  if (differences.empty()) {
    lines.push_back("the plans are equal");
  } else {
    std::vector<std::vector<std::string>> table = {{"plan", "A", "B"}};
    for (const PlanDifference& d : differences) table.push_back({"  " + d.key, d.a, d.b});
    add_table(aligned(table));
  }
  add_table(metric_lines(ra, rb, paint));
  add_table(pair_lines("where the step goes", bars_of(a, b), seconds_text, signed_seconds));
  const auto exposed = exposed_of(axis_costs(a, ra.cluster), axis_costs(b, rb.cluster));
  if (exposed.size() > 1) add_table(pair_lines("exposed communication by axis", exposed, seconds_text, signed_seconds));
  add_table(pair_lines("memory at the peak", categories_of(ra, rb), bytes_text, signed_bytes));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json compare_json(const Forecast& a, const Report& ra, const Forecast& b, const Report& rb) {
  Json json;
  json["schema"] = "foreshard.compare/1";
  json["plan"] = json_list(plan_differences(ra.plan, rb.plan), [&](const PlanDifference& d) -> Json {
    return {{"key", d.key}, {"a", d.a}, {"b", d.b}};
  });
  Json& step = json["step"] = Json::object();
  for (const Metric& metric : kMetrics) {
    const double x = (ra.*metric.quantity).value, y = (rb.*metric.quantity).value;
    step[metric.key] = {{"a", x}, {"b", y}, {"difference", y - x}, {"ratio", relative(x, y) + 1}};
  }
  json["waterfall"] = pairs_json(bars_of(a, b), "s");
  json["axes"] = {{"a", to_json(axis_costs(a, ra.cluster))}, {"b", to_json(axis_costs(b, rb.cluster))}};
  json["memory_at_peak"] = pairs_json(categories_of(ra, rb), "bytes");
  json["a"] = to_json(ra);
  json["b"] = to_json(rb);
  return json;
}

}
