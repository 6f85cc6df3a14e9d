// A column for each runtime. Bars of the waterfall are joined by name in the order in which they
// first occur; a bar that only one runtime has is how an event that only it has shows up.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "reports/view/layout.h"
#include "reports/view/views.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Forecasts = std::vector<RuntimeForecast>;
using Cells = std::vector<std::vector<std::string>>;

struct NamedSeconds {
  std::string what;
  std::vector<double> seconds;  // by forecast
};

std::vector<NamedSeconds> bars_of(const Forecasts& forecasts) {
  std::vector<NamedSeconds> bars;
  for (std::size_t f = 0; f < forecasts.size(); ++f) {
    if (!forecasts[f].refused.empty()) continue;
    for (const WaterfallBar& bar : waterfall(forecasts[f].forecast.graph, forecasts[f].forecast.timeline)) {
      auto at = std::ranges::find(bars, bar.what, &NamedSeconds::what);
      if (at == bars.end()) at = bars.insert(at, {bar.what, std::vector<double>(forecasts.size(), 0)});
      at->seconds[f] += bar.time.seconds();
    }
  }
  return bars;
}

// A row with what `cell` says of each forecast, "-" for those that were refused.
std::vector<std::string> row_of(const std::string& name, const Forecasts& forecasts,
    const std::function<std::string(const RuntimeForecast&)>& cell) {
  std::vector<std::string> row = {name};
  for (const RuntimeForecast& f : forecasts) row.push_back(f.refused.empty() ? cell(f) : "-");
  return row;
}

double bytes_of(const RuntimeForecast& f, const std::string& collective) {
  double sum = 0;
  for (const WireBytes& wire : wire_bytes(f.forecast.graph))
    if (collective.empty() || wire.collective == collective) sum += wire.bytes;
  return sum;
}

Cells figures(const Forecasts& forecasts) {
  Cells table = {{""}};
  for (const RuntimeForecast& f : forecasts) table.front().push_back(f.name);
  const auto add = [&](const char* name, auto cell) { table.push_back(row_of(name, forecasts, cell)); };
  add(
      "step", [](const auto& f) { return seconds_text(f.report.seconds.value); });
  add(
      "tokens/s per GPU", [](const auto& f) { return cardinal(f.report.tokens_per_s_per_gpu.value); });
  add(
      "MFU", [](const auto& f) { return percent_text(f.report.mfu.value); });
  add(
      "communication", [](const auto& f) { return seconds_text(f.report.communication.value); });
  add(
      "exposed communication", [](const auto& f) { return seconds_text(f.report.exposed_communication.value); });
  add("sent per rank", [](const auto& f) { return bytes_text(bytes_of(f, "")); });
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"}) {
    const bool any =
        std::ranges::any_of(forecasts, [&](const auto& f) { return f.refused.empty() && bytes_of(f, collective) > 0; });
    if (!any) continue;
    table.push_back(row_of(fmt::format("  {}", collective), forecasts,
        [&](const auto& f) { return bytes_text(bytes_of(f, collective)); }));
  }
  add(
      "peak allocated", [](const auto& f) { return bytes_text(f.report.peak_allocated.value); });
  add(
      "peak reserved", [](const auto& f) { return bytes_text(f.report.peak_reserved.value); });
  add("fits", [](const auto& f) { return f.report.fit.fits() ? "yes" : "no"; });
  return table;
}

Cells bar_table(const Forecasts& forecasts) {
  Cells table = {{"where the step goes"}};
  for (const RuntimeForecast& f : forecasts) table.front().push_back(f.name);
  for (const NamedSeconds& bar : bars_of(forecasts)) {
    std::vector<std::string> row = {"  " + bar.what};
    for (std::size_t f = 0; f < forecasts.size(); ++f)
      row.push_back(bar.seconds[f] == 0 ? "-" : seconds_text(bar.seconds[f]));
    table.push_back(std::move(row));
  }
  return table;
}

}

std::vector<WireBytes> wire_bytes(const EventGraph& graph) {
  std::vector<WireBytes> list;
  for (const Row& row : graph.rows) {
    const Work& work = graph.works[row.work];
    if (!is_collective(row.kind) || work.communicator == kNoCommunicator) continue;
    const auto ranks = as_double(graph.communicators[work.communicator].group.size);
    const double passes = row.kind == EventKind::kAllReduce ? 2 : 1;
    const std::string name = to_string(row.kind);
    auto at = std::ranges::find(list, name, &WireBytes::collective);
    if (at == list.end()) at = list.insert(at, {name, 0, 0});
    ++at->calls;
    if (ranks > 1) at->bytes += passes * as_double(work.bytes.count()) * (ranks - 1) / ranks;
  }
  return list;
}

std::string runtimes_text(const Forecasts& forecasts, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines;
  const auto add_table = [&](const Cells& table) {
    std::vector<std::string> block = aligned(table);
    block.front() = paint.bold(block.front());
    if (!lines.empty()) lines.emplace_back();
    append(lines, block);
  };
  add_table(figures(forecasts));
  add_table(bar_table(forecasts));
  for (const RuntimeForecast& f : forecasts) {
    if (!f.refused.empty()) {
      lines.emplace_back();
      for (std::string& line : wrapped(f.name + ": " + f.refused, kTextWidth, 2)) lines.push_back(std::move(line));
    }
    if (f.ledger.empty()) continue;
    Cells table = {{fmt::format("{} against {}", f.name, forecasts.front().name), "", ""}};
    for (const LedgerEntry& entry : f.ledger) table.push_back({"  " + entry.what, entry.from, entry.to});
    std::vector<std::string> block = aligned(table, 3);
    lines.emplace_back();
    block.front() = paint.bold(block.front());
    for (std::size_t i = 0; i < block.size(); ++i) {
      lines.push_back(block[i]);
      const std::string& why = i == 0 ? "" : f.ledger[i - 1].why;
      if (why.empty()) continue;
      for (const std::string& line : wrapped("    " + why, kTextWidth, 4)) lines.push_back(paint.dim(line));
    }
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json runtimes_json(const Forecasts& forecasts) {
  Json list = Json::array();
  for (const RuntimeForecast& f : forecasts) {
    Json one = {{"runtime", f.name}};
    if (!f.refused.empty()) {
      one["refused"] = f.refused;
      list.push_back(std::move(one));
      continue;
    }
    Json wire = json_list(
        wire_bytes(f.forecast.graph),
        [&](const WireBytes& w) -> Json {
          return {{"collective", w.collective}, {"calls", w.calls}, {"bytes", w.bytes}};
        });
    Json ledger = json_list(f.ledger, [&](const LedgerEntry& entry) -> Json {
      return {{"what", entry.what}, {"from", entry.from}, {"to", entry.to}, {"why", entry.why}};
    });
    one["report"] = to_json(f.report);
    one["sent_per_rank"] = std::move(wire);
    one["ledger"] = std::move(ledger);
    list.push_back(std::move(one));
  }
  Json bars = json_list(bars_of(forecasts), [&](const NamedSeconds& bar) -> Json {
    return {{"what", bar.what}, {"seconds", bar.seconds}};
  });
  return {{"runtimes", std::move(list)}, {"waterfall", std::move(bars)}};
}

}
